#include "graph/passes/sum_products.h"

#include <algorithm>

#include "graph/builder.h"
#include "graph/passes/dce.h"
#include "graph/passes/match.h"
#include "graph/passes/replace.h"
#include "graph/passes/rewriter.h"
#include "ops/args.h"

namespace flashover::graph {
namespace {

class Summer {
 public:
  Summer(Graph& g, const Providers& providers)
      : g_(g), providers_(providers), producer_(g.values.size(), -1), uses_(g.values.size()) {
    for (size_t i = 0; i < g.nodes.size(); ++i) {
      for (ValueId v : g.nodes[i].outs)
        if (v != kNoValue) producer_[v] = static_cast<int32_t>(i);
      for (const Arg& a : g.nodes[i].args) for_each_ref(a, [&](ValueId v) { ++uses_[v]; });
    }
    for (const Output& o : g.outputs)
      if (o.value != kNoValue) ++uses_[o.value];
    for (const Mutation& m : g.mutations) ++uses_[m.value];
  }

  Graph run() {
    std::vector<Sum> at(g_.nodes.size());
    bool any = false;
    std::vector<bool> within(g_.nodes.size());  // a larger sum
    for (size_t i = g_.nodes.size(); i-- > 0;) {
      if (within[i] || !is_sum(g_.nodes[i])) continue;
      Sum sum;
      collect(g_.nodes[i].outs[0], g_.type(g_.nodes[i].outs[0]), true, sum, within);
      if (sum.products.size() < 2) continue;
      any = true;
      at[i] = std::move(sum);
    }
    if (!any) return std::move(g_);
    Graph out = g_;
    out.nodes.clear();
    Builder b(out);
    Replacement replacement(g_.values.size());
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      Node n = g_.nodes[i];
      replacement.apply(n);
      if (at[i].products.empty()) {
        out.nodes.push_back(std::move(n));
        continue;
      }
      b.set_location(n.location);
      const size_t first = out.nodes.size();
      std::vector<ValueId> left, right;
      for (int32_t p : at[i].products) {
        const Node& mm = g_.nodes[p];
        left.push_back(b.permute(replacement.resolve(std::get<Ref>(mm.args[0]).id), {1, 0}));
        right.push_back(replacement.resolve(std::get<Ref>(mm.args[1]).id));
      }
      const TensorType wanted = g_.type(n.outs[0]);
      const ValueId tall = b.permute(b.cat(left, 0), {1, 0});
      ValueId sum = product(b, tall, b.cat(right, 0), wanted.dtype);
      if (b.type(sum).dtype != wanted.dtype) sum = b.convert(sum, wanted.dtype);
      for (ValueId v : at[i].others) sum = b.add(sum, replacement.resolve(v));
      replacement.set(n.outs[0], in_layout(b, first, sum, wanted));
    }
    replacement.apply_results(out);
    return dce(std::move(out));
  }

 private:
  struct Sum {
    std::vector<int32_t> products;  // nodes, their operands of one dtype
    std::vector<ValueId> others;
  };

  // Of the operands' dtype, or of the wanted one where the sums are there anyway.
  ValueId product(Builder& b, ValueId left, ValueId right, DType wanted) const {
    TensorType type = b.type(left);
    const TensorType& other = b.type(right);
    if (type.device.type == DeviceType::kCPU && all_const(type.sizes) && all_const(other.sizes) &&
        suits_product(providers_, type.dtype, {type.sizes[0].value(), type.sizes[1].value(), other.sizes[1].value()})) {
      type.sizes[1] = other.sizes[1];
      const bool wide = type.dtype == DType::kBF16 && wanted == DType::kF32;
      if (wide) type.dtype = wanted;
      return b.emit("flashover.product.default", {Ref{left}, Ref{right}, Arg(), std::string("none"), wide},
                    dense_type(type));
    }
    return b.emit("aten.mm.default", {Ref{left}, Ref{right}});
  }

  bool is_sum(const Node& n) const {
    return n.op->name == "prim.add" && is_floating(g_.type(n.outs[0]).dtype) && g_.type(n.outs[0]).rank() == 2;
  }
  static bool same(const TensorType& a, const TensorType& b) {
    return a.dtype == b.dtype && a.device == b.device && same_sizes(a.sizes, b.sizes);
  }
  // Its operands are smaller than its result.
  bool is_small_product(const Node& n) const {
    const bool own =
        n.op->name == "flashover.product.default" && is_none(n.args[2]) && std::get<std::string>(n.args[3]) == "none";
    if (!own && n.op->name != "aten.mm.default") return false;
    const TensorType &a = g_.type(std::get<Ref>(n.args[0]).id), &b = g_.type(std::get<Ref>(n.args[1]).id);
    const TensorType& out = g_.type(n.outs[0]);
    const bool wide = own && a.dtype == DType::kBF16 && out.dtype == DType::kF32;
    if (a.dtype != b.dtype || a.opaque || b.opaque || (a.dtype != out.dtype && !wide)) return false;
    const int64_t rows = a.sizes[0].hint(), depth = a.sizes[1].hint(), columns = b.sizes[1].hint();
    return depth > 0 && depth * (rows + columns) < rows * columns;
  }
  void collect(ValueId v, const TensorType& type, bool root, Sum& sum, std::vector<bool>& within) const {
    const int32_t at = producer_[v];
    if (at >= 0 && same(g_.type(v), type) && (root || uses_[v] == 1)) {
      const Node& n = g_.nodes[at];
      const Ref *a = n.args.empty() ? nullptr : std::get_if<Ref>(&n.args[0]),
                *b = n.args.size() < 2 ? nullptr : std::get_if<Ref>(&n.args[1]);
      if (is_sum(n) && a && b) {
        if (!root) within[at] = true;
        collect(a->id, type, false, sum, within);
        collect(b->id, type, false, sum, within);
        return;
      }
      // The weight of an autocast region: its gradients are 16-bit products, each widened and then added.
      const int32_t made = widened(n);
      const int32_t product = made >= 0 ? made : at;
      if (!root && is_small_product(g_.nodes[product]) &&
          (sum.products.empty() || factors_of(sum.products[0]) == factors_of(product))) {
        sum.products.push_back(product);
        return;
      }
    }
    sum.others.push_back(v);
  }
  DType factors_of(int32_t node) const { return g_.type(std::get<Ref>(g_.nodes[node].args[0]).id).dtype; }
  // The node whose bf16 result, that nobody else reads, `n` widens; -1: that is not what it does. (f16 may overflow.)
  int32_t widened(const Node& n) const {
    if (n.op->name != "prim.convert") return -1;
    const ValueId from = std::get<Ref>(n.args[0]).id, to = n.outs[0];
    if (uses_[from] != 1 || g_.type(from).dtype != DType::kBF16 ||
        info(g_.type(from).dtype).bytes >= info(g_.type(to).dtype).bytes)
      return -1;
    return producer_[from];
  }

  Graph& g_;
  const Providers& providers_;
  std::vector<int32_t> producer_, uses_;
};

}  // namespace

Graph sum_products(Graph core, const Providers& providers) { return Summer(core, providers).run(); }

}  // namespace flashover::graph
