// Operands are followed back from the score. What belongs to a pair of query and key is computed by the function, and so
// is what costs little; the rest is a tensor that it reads.
#include "graph/rewrite/score_function.h"

#include <algorithm>
#include <map>

#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

constexpr size_t kMostNodes = 160;  // a compiler's time
constexpr int64_t kRecomputed = 4;  // scalar operations that are not worth a tensor
constexpr size_t kMostProducts = 2, kMostDepth = 400;

class FunctionBuilder {
 public:
  FunctionBuilder(Rewriter& r, ValueId score) : r_(r), score_(r.b.type(score)) {}

  std::optional<ScoreFunction> run(ValueId score, ValueId mask) {
    std::vector<ValueId> results = {score};
    if (mask != kNoValue) results.push_back(mask);
    for (ValueId v : results)
      if (!follow(v, 0)) return std::nullopt;
    Graph f(kNewProgram);
    ScoreFunction out;
    std::map<ValueId, ValueId> inside;
    for (ValueId v : products_) {
      inside[v] = f.add_input(r_.b.type(v), InputKind::kUser, "");
      out.products.push_back(r_.def(v));
    }
    for (ValueId v : captured_) inside[v] = f.add_input(without_origin(r_.b.type(v)), InputKind::kUser, "");
    out.captured = captured_;
    for (ValueId v : inlined_) {
      Node n = *r_.def(v);
      for (Arg& a : n.args) {
        if (auto* one = std::get_if<Ref>(&a); one && one->id != kNoValue) one->id = inside.at(one->id);
        if (auto* list = std::get_if<RefList>(&a))
          for (Ref& ref : *list)
            if (ref.id != kNoValue) ref.id = inside.at(ref.id);
      }
      inside[v] = f.add_node(n.op, std::move(n.args), {without_origin(r_.b.type(v))}).outs[0];
    }
    for (ValueId v : results) f.outputs.push_back({.value = inside.at(v), .type = f.type(inside.at(v))});
    out.text = print(f);
    return out;
  }

 private:
  // The function's own tensors lie nowhere.
  static TensorType without_origin(TensorType t) {
    t.offset = 0;
    t.wrapped_number = false;
    return t;
  }

  bool is_product(const Node* n) const { return n && n->op->name == op::flex_scores; }

  // Whether a product is among what v is made of.
  bool depends(ValueId v, size_t depth) {
    if (const auto it = depends_.find(v); it != depends_.end()) return it->second;
    if (depth > kMostDepth) return depends_[v] = true;
    const Node* n = r_.def(v);
    bool any = is_product(n);
    if (n && n->op->is_prim() && !any) {
      const std::vector<Arg> args = n->args;
      for (const Arg& a : args) for_each_ref(a, [&](ValueId u) { any = any || depends(u, depth + 1); });
    }
    return depends_[v] = any;
  }

  // As many elements as there are pairs of queries and keys: never to lie in memory.
  bool is_quadratic(ValueId v) const {
    double n = 1;
    for (sym::Expr s : r_.b.type(v).sizes) n *= static_cast<double>(s.hint());
    return n >= static_cast<double>(score_.sizes[2].hint()) * static_cast<double>(score_.sizes[3].hint());
  }

  static bool is_computed(const Node& n) {
    if (!n.op->is_prim() || n.outs.size() != 1) return false;
    switch (n.op->kind) {
      case ops::OpKind::kPointwise:
      case ops::OpKind::kView:
        return true;
      case ops::OpKind::kFactory:
        return n.op->prim == Prim::full || n.op->prim == Prim::iota;
      default:
        return n.op->prim == Prim::index || n.op->prim == Prim::gather;
    }
  }

  // 0, 1, 2, ... behind views: what is read there is read in order.
  bool is_position(ValueId v) {
    for (const Node* n = r_.def(v); n; n = r_.def(v)) {
      if (n->op->prim == Prim::iota)
        return ops::is_number(n->args[1], 0) && ops::is_number(n->args[2], 1) && r_.b.rank(v) == 1;
      if (n->op->prim != Prim::reshape && n->op->prim != Prim::broadcast) return false;
      v = ops::as_value(n->args[0]);
    }
    return false;
  }
  bool reads_in_order(const Node& n) {
    if (n.op->prim != Prim::index) return false;
    const RefList list = ops::as_values(n.args[1]);
    return std::all_of(list.begin(), list.end(), [&](const Ref& r) { return r.id == kNoValue || is_position(r.id); });
  }

  // Scalar operations of computing v for each pair again; more than kRecomputed where it reads memory at places that are
  // read from memory.
  int64_t cost(ValueId v, size_t depth) {
    const Node* n = r_.def(v);
    if (!n || !is_computed(*n)) return 0;
    if (depth > 16) return kRecomputed + 1;
    const bool reads = n->op->prim == Prim::index || n->op->prim == Prim::gather;
    int64_t total = n->op->kind == ops::OpKind::kPointwise ? n->op->cost : reads && !reads_in_order(*n) ? 100 : 0;
    const std::vector<Arg> args = n->args;
    for (const Arg& a : args) for_each_ref(a, [&](ValueId u) { total += cost(u, depth + 1); });
    return total;
  }

  bool captured(ValueId v) {
    const TensorType& t = r_.b.type(v);
    if (t.opaque || info(t.dtype).complex) return false;
    if (std::find(captured_.begin(), captured_.end(), v) == captured_.end()) captured_.push_back(v);
    return true;
  }

  bool follow(ValueId v, size_t depth) {
    if (std::find(inlined_.begin(), inlined_.end(), v) != inlined_.end()) return true;
    const Node* n = r_.def(v);
    if (is_product(n)) {
      if (std::find(products_.begin(), products_.end(), v) != products_.end()) return true;
      products_.push_back(v);
      return products_.size() <= kMostProducts && same_sizes(r_.b.type(v).sizes, score_.sizes);
    }
    const bool dependent = depends(v, 0);
    if (!n || !is_computed(*n) || depth > kMostDepth) return !dependent && captured(v);
    if (dependent) {
      // At its own place only.
      if (n->op->kind != ops::OpKind::kPointwise || !same_sizes(r_.b.type(v).sizes, score_.sizes)) return false;
    } else if (!is_quadratic(v) && cost(v, 0) > kRecomputed) {
      return captured(v);
    }
    const std::vector<Arg> args = n->args;
    bool all = true;
    for (const Arg& a : args) for_each_ref(a, [&](ValueId u) { all = all && follow(u, depth + 1); });
    inlined_.push_back(v);
    return all && inlined_.size() <= kMostNodes;
  }

  Rewriter& r_;
  const TensorType score_;
  std::map<ValueId, bool> depends_;
  std::vector<ValueId> products_, captured_, inlined_;
};

}  // namespace

std::optional<ScoreFunction> score_function(Rewriter& r, ValueId score, ValueId mask) {
  return FunctionBuilder(r, score).run(score, mask);
}

}  // namespace flashover::graph
