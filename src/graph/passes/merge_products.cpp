// Joins the addends of a sum that are products into products that start from the sum so far.
#include "graph/passes/merge_products.h"

#include <algorithm>

#include "graph/analysis/addends.h"
#include "graph/rewrite/in_order.h"
#include "graph/rewrite/match.h"
#include "graph/rewrite/rewriter.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

class Summer {
 public:
  Summer(Graph& g, const target::Providers& providers) : g_(g), providers_(providers), sums_(g) {}

  Graph run() {
    std::vector<Sum> at(g_.nodes.size());
    // The sums of which a part ends with a node, and where it ends among their members.
    struct End {
      size_t root, run, member;
    };
    std::vector<std::vector<End>> ends(g_.nodes.size());
    bool any = false;
    for (size_t i = g_.nodes.size(); i-- > 0;) {
      if (!sums_.is_root(i)) continue;
      Sum sum;
      for (ValueId v : sums_.addends(i)) sort_in(v, g_.type(g_.nodes[i].outs[0]), sum);
      for (const Run& run : sum.runs)
        if (run.members.size() == 1) sum.others.push_back(run.value);
      std::erase_if(sum.runs, [](const Run& run) { return run.members.size() == 1; });
      if (sum.runs.empty()) continue;
      any = true;
      for (size_t r = 0; r < sum.runs.size(); ++r) {
        std::vector<int32_t>& members = sum.runs[r].members;
        std::sort(members.begin(), members.end());
        for (size_t end : ends_of_merges(members, g_.type(g_.nodes[i].outs[0])))
          ends[members[end - 1]].push_back({i, r, end});
      }
      at[i] = std::move(sum);
    }
    if (!any) return std::move(g_);
    return rewrite_in_order(g_, [&](size_t i, Node n, const Rewritten& out) {
      auto& [graph, b, replacement] = out;
      b.set_location(n.location);
      if (at[i].runs.empty()) {
        graph.nodes.push_back(std::move(n));
      } else {
        const TensorType sum_type = g_.type(n.outs[0]);
        const size_t first = graph.nodes.size();
        ValueId sum = kNoValue;
        const auto add = [&](ValueId v) { sum = sum == kNoValue ? v : b.add(sum, v); };
        for (const Run& run : at[i].runs) add(b.convert(run.so_far, sum_type.dtype));
        for (ValueId v : at[i].others) add(replacement.resolve(v));
        replacement.set(n.outs[0], in_layout(b, first, sum, sum_type));
      }
      for (const End& e : ends[i]) {
        Run& run = at[e.root].runs[e.run];
        b.set_location(g_.nodes[e.root].location);
        run.so_far = merged_product(b, run, e.member, g_.type(g_.nodes[e.root].outs[0]).dtype, replacement);
        run.done = e.member;
      }
    });
  }

 private:
  struct Run {                     // what can be one
    std::vector<int32_t> members;  // nodes: products, or gradients of tables
    ValueId value;                 // of the first, as it is added
    size_t done = 0;               // members
    ValueId so_far = kNoValue;
  };
  struct Sum {
    std::vector<Run> runs;
    std::vector<ValueId> others;
  };

  // Where the merged products end among the members.
  std::vector<size_t> ends_of_merges(const std::vector<int32_t>& members, const TensorType& sum_type) const {
    std::vector<size_t> ends;
    int64_t bytes = 0;
    for (size_t i = 0; i < members.size(); ++i) {
      const Node& n = g_.nodes[members[i]];
      if (!is_table(n) && sum_type.device.type == DeviceType::kCPU) {
        const TensorType &a = g_.type(left_of(n)), &b = g_.type(right_of(n));
        const int64_t rows = a.sizes[0].hint(), depth = a.sizes[1].hint(), columns = b.sizes[1].hint();
        const int64_t more = depth * (rows + columns) * info(a.dtype).bytes;
        if (bytes > 0 && (bytes + more) * 2 > rows * columns * info(sum_type.dtype).bytes &&
            starts_from(n, sum_type.dtype))
          ends.push_back(i), bytes = 0;
        bytes += more;
      }
    }
    ends.push_back(members.size());
    return ends;
  }

  // One product of the members from `done` to `end`, added to the sum so far.
  ValueId merged_product(Builder& b, const Run& run, size_t end, DType sum_dtype, Replacement& replacement) const {
    const auto operand = [&](size_t i, size_t arg) {
      return replacement.resolve(std::get<Ref>(g_.nodes[run.members[i]].args[arg]).id);
    };
    std::vector<ValueId> left, right;
    if (const Node& table = g_.nodes[run.members[0]]; is_table(table)) {
      for (size_t i = 0; i < end; ++i) {
        const ValueId rows = operand(i, 0), indices = operand(i, 1);
        const sym::Expr count = sym::product(b.sizes(indices)), width = b.sizes(rows).back();
        left.push_back(b.reshape(rows, {count, width}));
        right.push_back(b.reshape(indices, {count}));
      }
      std::vector<Arg> args = table.args;
      args[0] = Ref{b.cat(left, 0)};
      args[1] = Ref{b.cat(right, 0)};
      return b.emit(table.op->name, std::move(args), g_.type(table.outs[0]));
    }
    for (size_t i = run.done; i < end; ++i) {
      left.push_back(operand(i, 0));
      right.push_back(operand(i, 1));
    }
    if (left.size() == 1) return product(b, left[0], right[0], sum_dtype, run.so_far);
    for (ValueId& v : left) v = b.permute(v, {1, 0});
    const ValueId tall = b.permute(b.cat(left, 0), {1, 0});
    return product(b, tall, b.cat(right, 0), sum_dtype, run.so_far);
  }

  bool suits_own(const TensorType& left, const TensorType& right) const {
    return left.device.type == DeviceType::kCPU && all_const(left.sizes) && all_const(right.sizes) &&
           suits_product(providers_, left.dtype,
                         {left.sizes[0].value(), left.sizes[1].value(), right.sizes[1].value()});
  }
  // Products like this one can add to a sum of this dtype.
  bool starts_from(const Node& n, DType sum_dtype) const {
    const TensorType& left = g_.type(left_of(n));
    return left.dtype == sum_dtype || (sum_dtype == DType::kF32 && suits_own(left, g_.type(right_of(n))));
  }

  // `added` (of the sum's dtype, or nothing) and a product of the operands' dtype, or of the sum's where the sums
  // are there anyway.
  ValueId product(Builder& b, ValueId left, ValueId right, DType sum_dtype, ValueId added) const {
    TensorType type = b.type(left);
    const TensorType other = b.type(right);
    const bool wide = type.dtype == DType::kBF16 && sum_dtype == DType::kF32;
    if (suits_own(type, other)) {
      type.sizes[1] = other.sizes[1];
      if (wide) type.dtype = sum_dtype;
      return b.emit("flashover.product.default",
                    {Ref{left}, Ref{right}, added == kNoValue ? Arg() : Arg(Ref{added}), std::string("none"), wide,
                     /*vectors=*/false},
                    dense_type(type));
    }
    if (added == kNoValue) return b.emit(op::mm, {Ref{left}, Ref{right}});
    if (type.dtype == sum_dtype)
      return b.emit(op::addmm, {Ref{added}, Ref{left}, Ref{right}, sym::Expr(1), sym::Expr(1)});
    return b.add(added, b.convert(b.emit(op::mm, {Ref{left}, Ref{right}}), sum_dtype));
  }

  static ValueId left_of(const Node& n) { return std::get<Ref>(n.args[0]).id; }
  static ValueId right_of(const Node& n) { return std::get<Ref>(n.args[1]).id; }
  static bool is_table(const Node& n) { return n.op->name == op::embedding_dense_backward; }
  // A product that gains from others beside it: its operands are smaller than its result, or it can start from the sum.
  bool is_member(const Node& n, DType sum_dtype) const {
    if (is_table(n)) {  // (counts of indices are not to be mixed)
      const TensorType &rows = g_.type(left_of(n)), &out = g_.type(n.outs[0]);
      return !ops::as_bool(n.args[4]) && rows.dtype == out.dtype && rows.rank() > 0 &&
             rows.numel().hint() < out.numel().hint();
    }
    const bool own =
        n.op->name == "flashover.product.default" && is_none(n.args[2]) && std::get<std::string>(n.args[3]) == "none";
    if (!own && n.op->name != op::mm) return false;
    const TensorType &a = g_.type(left_of(n)), &b = g_.type(right_of(n));
    const TensorType& out = g_.type(n.outs[0]);
    const bool wide = own && a.dtype == DType::kBF16 && out.dtype == DType::kF32;
    if (a.rank() != 2 || a.dtype != b.dtype || a.opaque || b.opaque || (a.dtype != out.dtype && !wide)) return false;
    const int64_t rows = a.sizes[0].hint(), depth = a.sizes[1].hint(), columns = b.sizes[1].hint();
    return depth > 0 &&
           (depth * (rows + columns) < rows * columns || (own && suits_own(a, b) && starts_from(n, sum_dtype)));
  }
  // Of the same kind, so that they can be one.
  bool are_alike(const Node& a, const Node& b) const {
    if (is_table(a) || is_table(b))
      return a.op == b.op && Addends::same(g_.type(a.outs[0]), g_.type(b.outs[0])) &&
             ops::as_int(a.args[3]) == ops::as_int(b.args[3]) &&
             g_.type(right_of(a)).dtype == g_.type(right_of(b)).dtype;
    return g_.type(left_of(a)).dtype == g_.type(left_of(b)).dtype;
  }
  void sort_in(ValueId v, const TensorType& type, Sum& sum) const {
    const int32_t at = sums_.producer(v);
    if (at >= 0 && Addends::same(g_.type(v), type) && sums_.uses(v) == 1) {
      // The weight of an autocast region: its gradients are 16-bit products, each widened and then added.
      const int32_t made = widened(g_.nodes[at]);
      const int32_t member = made >= 0 ? made : at;
      if (is_member(g_.nodes[member], type.dtype)) {
        const auto run = std::ranges::find_if(
            sum.runs, [&](const Run& r) { return are_alike(g_.nodes[r.members[0]], g_.nodes[member]); });
        if (run == sum.runs.end())
          sum.runs.push_back({{member}, v});
        else
          run->members.push_back(member);
        return;
      }
    }
    sum.others.push_back(v);
  }
  // The node whose bf16 result, that nothing else reads, `n` widens; -1: that is not what it does. (f16 may overflow.)
  int32_t widened(const Node& n) const {
    if (n.op->prim != Prim::convert) return -1;
    const ValueId from = std::get<Ref>(n.args[0]).id, to = n.outs[0];
    if (sums_.uses(from) != 1 || g_.type(from).dtype != DType::kBF16 ||
        info(g_.type(from).dtype).bytes >= info(g_.type(to).dtype).bytes)
      return -1;
    return sums_.producer(from);
  }

  Graph& g_;
  const target::Providers& providers_;
  Addends sums_;
};

}  // namespace

Graph merge_products(Graph core, const target::Providers& providers) {
  return providers.strict_numerics ? std::move(core) : Summer(core, providers).run();
}

}  // namespace flashover::graph
