// Lets strides follow operands between prims, and stops at what sees them.
#include "graph/passes/relax_layout.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"
#include "graph/passes/dce.h"
#include "graph/rewrite/match.h"
#include "graph/rewrite/rewriter.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

// Products give contiguous results whatever the operands' strides, and take any matrix that BLAS takes.
struct Product {
  std::string_view op;
  size_t left, right;
};
constexpr Product kProducts[] = {{op::mm, 0, 1},
                                 {op::bmm, 0, 1},
                                 {op::addmm, 1, 2},
                                 {op::baddbmm, 1, 2},
                                 {"flashover.product.default", 0, 1},
                                 {"flashover.bmm_flushed.default", 0, 1}};

// Pooling kernels compute in the layout of their input: channels last where that is.
struct Follower {
  std::string_view op;
  size_t leader;  // the argument whose layout counts; all images lie alike
};
constexpr Follower kFollowers[] = {
    {op::max_pool2d_with_indices, 0}, {op::max_pool2d_with_indices_backward, 1}, {op::avg_pool2d_backward, 1}};

// One of the last two dims is dense and the other steps over it.
bool suits_blas(const TensorType& t) {
  const size_t r = t.rank();
  if (r < 2) return false;
  auto fits = [&](size_t inner, size_t outer) {
    return (t.strides[inner].is_const(1) || t.sizes[inner].is_const(1)) &&
           sym::known_le(t.sizes[inner], t.strides[outer]);
  };
  return fits(r - 1, r - 2) || fits(r - 2, r - 1);
}

class Relaxer {
 public:
  explicit Relaxer(Graph in)
      : in_(std::move(in)), out_(in_.facts), types_(in_.values.size()), source_(in_.values.size(), kNoValue) {
    for (size_t i = 0; i < in_.values.size(); ++i) types_[i] = in_.values[i].type;
  }

  Graph run() {
    out_.values = std::move(in_.values);
    out_.inputs = std::move(in_.inputs);
    for (Node& n : in_.nodes) {
      if (n.op->prim == Prim::copy) {
        source_[n.outs[0]] = behind_copies(ops::as_value(n.args[0]));
        continue;
      }
      if (n.op->is_prim())
        visit_prim(n);
      else
        visit_extern(n);
      out_.nodes.push_back(std::move(n));
    }
    // What leaves the graph states its strides itself.
    for (Output& o : in_.outputs) {
      if (o.value == kNoValue) continue;
      const ValueId expected = o.value;
      o.value = behind_copies(expected);
      // A copy that an extern needs anyway may be what is returned.
      TensorType written = o.kind == Output::Kind::kSlice ? out_.type(o.value) : o.type;
      if (o.kind == Output::Kind::kSlice) written.strides = o.layout;
      const auto copy = copies_.find({o.value, key_of(written)});
      if (copy != copies_.end() && same_sizes(written.sizes, out_.type(o.value).sizes))
        o.value = copy->second;
      else
        o.value = apart_from_externs(o.value, written);
    }
    for (Mutation& m : in_.mutations) m.value = behind_copies(m.value);
    out_.outputs = std::move(in_.outputs);
    out_.mutations = std::move(in_.mutations);
    return dce(std::move(out_));
  }

 private:
  ValueId behind_copies(ValueId v) const { return source_[v] == kNoValue ? v : source_[v]; }

  template <typename F>
  void replace_refs(Node& n, F&& f) {
    for (Arg& a : n.args) {
      if (auto* r = std::get_if<Ref>(&a); r && r->id != kNoValue) r->id = f(r->id);
      if (auto* l = std::get_if<RefList>(&a))
        for (Ref& r : *l)
          if (r.id != kNoValue) r.id = f(r.id);
    }
  }

  void visit_prim(Node& n) {
    if (n.op->kind == ops::OpKind::kView && n.outs.size() == 1 && n.outs[0] != kNoValue)
      views_.emplace(n.outs[0], View{n.op->prim, n.args});
    replace_refs(n, [&](ValueId v) { return behind_copies(v); });
    std::vector<TensorType> types;
    FLASHOVER_CHECK(ops::infer(n.op->infer, infer_context(out_, n.args), types)) << n.op->name;
    for (size_t i = 0; i < n.outs.size(); ++i)
      if (n.outs[i] != kNoValue) out_.values[n.outs[i]].type.strides = types[i].strides;
    const ops::OpKind kind = n.op->kind;
    bool constant = kind == ops::OpKind::kFactory;
    if (kind == ops::OpKind::kPointwise || kind == ops::OpKind::kView) {
      constant = true;
      for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { constant &= is_constant(v); });
    }
    for (ValueId v : n.outs)
      if (v != kNoValue && constant) constants_.insert(v);
    if (kind == ops::OpKind::kPointwise && !constant && n.outs[0] != kNoValue) vote(n);
  }

  // Constants have no layout of their own; among images channels last wins, since that is what the library's
  // kernels around them want.
  void vote(const Node& n) {
    TensorType& out = out_.values[n.outs[0]].type;
    const bool image = out.rank() == 4;
    const TensorType* chosen = nullptr;
    for (const Arg& a : n.args) {
      const auto* r = std::get_if<Ref>(&a);
      if (!r || r->id == kNoValue || is_constant(r->id)) continue;
      const TensorType& t = out_.type(r->id);
      if (!same_sizes(t.sizes, out.sizes) || !ops::is_dense(t.sizes, t.strides)) continue;
      const bool wins = image && same_strides_as(t, channels_last_strides(t.sizes)) && !same_strides(t, dense_type(t));
      if (!chosen || wins) chosen = &t;
      if (wins) break;
      if (!image) break;
    }
    if (chosen) out.strides = Sizes(chosen->strides);
  }
  static bool same_strides_as(TensorType t, Sizes strides) {
    const TensorType mine = t;
    t.strides = std::move(strides);
    return same_strides(mine, t);
  }
  bool is_constant(ValueId v) const { return constants_.count(v) != 0; }

  // Externs get what eager would have passed, or what a rewrite asked for with a copy: their results' strides depend on
  // it.
  void visit_extern(Node& n) {
    std::vector<ValueId> flexible;
    const bool images = follow(n);
    for (const Product& p : kProducts)
      if (n.op->name == p.op)
        for (size_t i : {p.left, p.right}) flexible.push_back(ops::as_value(n.args[i]));
    replace_refs(n, [&](ValueId v) {
      TensorType expected = types_[v];
      const ValueId x = behind_copies(v);
      if (images && expected.rank() == 4) expected.strides = channels_last_strides(expected.sizes);
      const bool suits = std::find(flexible.begin(), flexible.end(), v) != flexible.end() && suits_blas(out_.type(x));
      const ValueId laid = suits ? x : laid_out(v, x, expected, n.location);
      if (laid == x && n.op->kind != ops::OpKind::kView) read_by_externs_.insert(x);
      return laid;
    });
  }

  // The value with these strides. Kernels write dense memory: what has gaps (padded rows) or an expanded dim is a view,
  // which is made again of an operand with eager's strides.
  ValueId laid_out(ValueId v, ValueId x, const TensorType& expected, int32_t location) {
    if (expected.opaque || same_strides(out_.type(x), expected)) return x;
    const auto view = ops::is_dense(expected.sizes, expected.strides) ? views_.end() : views_.find(v);
    if (view != views_.end()) {
      std::vector<Arg> args = view->second.args;
      const ValueId operand = ops::as_value(args[0]);
      args[0] = Ref{laid_out(operand, behind_copies(operand), types_[operand], location)};
      const ValueId made = Builder(out_, location).emit(view->second.prim, std::move(args));
      if (same_strides(out_.type(made), expected)) return made;
    }
    if (!is_writable_layout(expected)) return x;
    auto [it, fresh] = copies_.try_emplace({x, key_of(expected)}, kNoValue);
    if (fresh) it->second = Builder(out_, location).emit(Prim::copy, {Ref{x}}, plain(expected));
    return it->second;
  }
  // True: the operator takes and gives images channels last.
  bool follow(const Node& n) {
    for (const Follower& f : kFollowers) {
      if (n.op->name != f.op) continue;
      const TensorType& leader = out_.type(behind_copies(ops::as_value(n.args[f.leader])));
      if (leader.rank() != 4 || !all_const(leader.sizes)) return false;
      if (!same_strides_as(leader, channels_last_strides(leader.sizes)) || same_strides(leader, dense_type(leader)))
        return false;
      for (ValueId v : n.outs)
        if (v != kNoValue) out_.values[v].type.strides = channels_last_strides(out_.values[v].type.sizes);
      return true;
    }
    return false;
  }

  // What a kernel makes is written as it is returned. An operator that reads it otherwise needs it otherwise.
  ValueId apart_from_externs(ValueId v, const TensorType& written) {
    if (!read_by_externs_.contains(v) || same_strides(out_.type(v), written) || !is_writable_layout(written)) return v;
    const ValueId copy = Builder(out_).emit(Prim::copy, {Ref{v}}, plain(written));
    copies_.emplace(std::pair{v, key_of(written)}, copy);
    return copy;
  }

  static std::string key_of(const TensorType& t) {
    std::string key;
    for (sym::Expr s : t.strides) key += s.str() + ',';
    return key;
  }
  static TensorType plain(TensorType t) {
    t.offset = 0;
    return t;
  }

  Graph in_, out_;
  std::vector<TensorType> types_;  // as the rewrites left it
  std::vector<ValueId> source_;    // of a copy: what it copies
  std::unordered_set<ValueId> constants_;
  std::unordered_set<ValueId> read_by_externs_;                // as they lie
  std::map<std::pair<ValueId, std::string>, ValueId> copies_;  // by what they copy and its strides
  struct View {
    Prim prim;
    std::vector<Arg> args;  // before copies were left out
  };
  std::unordered_map<ValueId, View> views_;  // by what they make
};

}  // namespace

Graph relax_layout(Graph g) { return Relaxer(std::move(g)).run(); }

}  // namespace flashover::graph
