// Data movement by index: select on index ranges, and indirect loads.
#include <set>

#include "base/check.h"
#include "graph/analysis/unpacking.h"
#include "loops/lower/lower.h"
#include "ops/args.h"
#include "ops/indexed_dims.h"

namespace flashover::loops {
namespace {

bool never(Emitter& e, std::optional<Id> condition) {
  if (!condition) return false;
  const Instr& in = e.body()[*condition];
  return in.op == Op::k_const && in.integer == 0;
}
std::optional<Id> both(Emitter& e, std::optional<Id> a, std::optional<Id> b) {
  if (!a) return b;
  if (!b) return a;
  return e.op(Op::k_bitwise_and, *a, *b);
}

Id pad(Emitter& e, const graph::Node& node, const Index& at) {
  const ValueId x = ops::as_value(node.args[0]);
  const Sizes lo = ops::as_sizes(node.args[1]);
  const DType d = e.type(x).dtype;
  std::optional<Id> inside;
  Index from = at;
  for (size_t i = 0; i < at.size(); ++i) {
    from[i] = at[i] - lo[i];
    inside = both(e, inside, e.in_range(from[i], 0, e.type(x).sizes[i]));
  }
  if (never(e, inside)) return e.constant(d, node.args[3]);
  Id value = kNone;
  {
    Emitter::Masked masked(e, inside);
    value = e.read(x, from);
  }
  return inside ? e.op(Op::k_where, *inside, value, e.constant(d, node.args[3])) : value;
}

// The tensors that v is computed from element by element, in `out`; false: there are many.
bool find_sources(const Emitter& e, ValueId v, std::set<ValueId>& out, int steps = 0) {
  constexpr int kMostSteps = 16;
  constexpr size_t kMostSources = 4;
  const graph::Node* n = e.maker(v);
  if (!n || !graph::is_unpacking(*n) || n->op->kind == ops::OpKind::kIndex) {
    out.insert(v);
    return out.size() <= kMostSources;
  }
  bool all = steps < kMostSteps;
  for (const Arg& a : n->args)
    graph::for_each_ref(a, [&](ValueId from) { all = all && find_sources(e, from, out, steps + 1); });
  return all;
}

// Are the pieces one element wide and of the same tensors, as numbers of 4 bits are that two lie in a byte? Then each is
// read where any of them is: once for all of them, and without a mask.
bool are_parts_of_one(const Emitter& e, const RefList& pieces, size_t dim) {
  std::optional<std::set<ValueId>> all;
  for (const Ref& r : pieces) {
    std::set<ValueId> sources;
    if (!e.type(r.id).sizes[dim].is_const(1) || !find_sources(e, r.id, sources)) return false;
    if (all && *all != sources) return false;
    all = std::move(sources);
  }
  return pieces.size() > 1;
}

Id cat(Emitter& e, const graph::Node& node, const Index& at) {
  const RefList list = ops::as_values(node.args[0]);
  const auto dim = static_cast<size_t>(ops::as_int(node.args[1]));
  const bool at_once = are_parts_of_one(e, list, dim);
  struct Candidate {
    std::optional<Id> condition;
    Id value;
  };
  std::vector<Candidate> candidates;
  sym::Expr begin = 0;
  for (const Ref& r : list) {
    const sym::Expr size = e.type(r.id).sizes[dim];
    std::optional<Id> inside = e.in_range(at[dim], begin, begin + size);
    if (!never(e, inside) && !size.is_const(0)) {
      Emitter::Masked masked(e, at_once ? std::nullopt : inside);
      Index from = at;
      from[dim] = size.is_const(1) ? sym::Expr(0) : at[dim] - begin;
      candidates.push_back({inside, e.read(r.id, from)});
      if (!inside) return candidates.back().value;
    }
    begin += size;
  }
  FLASHOVER_CHECK(!candidates.empty()) << "cat of empty tensors is read";
  Id result = candidates.back().value;
  for (size_t i = candidates.size() - 1; i-- > 0;)
    result = e.op(Op::k_where, *candidates[i].condition, candidates[i].value, result);
  return result;
}

Id slice_scatter(Emitter& e, const graph::Node& node, const Index& at) {
  const ValueId x = ops::as_value(node.args[0]), src = ops::as_value(node.args[1]);
  const Sizes starts = ops::as_sizes(node.args[2]), steps = ops::as_sizes(node.args[4]);
  const Sizes& sizes = e.type(src).sizes;
  std::optional<Id> inside;
  Index from(at.size(), 0);
  for (size_t i = 0; i < at.size(); ++i) {
    const sym::Expr relative = at[i] - starts[i];
    from[i] = sym::floordiv(relative, steps[i]);
    inside = both(e, inside, e.in_range(from[i], 0, sizes[i]));
    if (!steps[i].is_const(1)) inside = both(e, inside, e.in_range(sym::mod(relative, steps[i]), 0, 1));
  }
  if (never(e, inside)) return e.read(x, at);
  Id value = kNone;
  {
    Emitter::Masked masked(e, inside);
    value = e.read(src, from);
  }
  return inside ? e.op(Op::k_where, *inside, value, e.read(x, at)) : value;
}

std::string out_of_bounds(int64_t dim, sym::Expr size) {
  return "index out of bounds for dimension " + std::to_string(dim) + " with size " + size.str();
}

Id gather(Emitter& e, const graph::Node& node, const Index& at) {
  const ValueId x = ops::as_value(node.args[0]), index = ops::as_value(node.args[2]);
  const int64_t dim = ops::as_int(node.args[1]);
  const sym::Expr size = e.type(x).sizes[dim];
  Index from = at;
  from[dim] = e.indirect(e.convert(e.read(index, at), DType::kI64), size, false, out_of_bounds(dim, size));
  return e.read(x, from);
}
Id index(Emitter& e, const graph::Node& node, const Index& at) {
  const ValueId x = ops::as_value(node.args[0]);
  return e.read(x, advanced_index(e, e.type(x), ops::as_values(node.args[1]), at));
}

}  // namespace

Index advanced_index(Emitter& e, const TensorType& x, const RefList& list, const Index& at) {
  size_t index_rank = 0;
  for (const Ref& r : list)
    if (r.id != kNoValue) index_rank = std::max(index_rank, e.type(r.id).rank());
  const size_t begin = ops::indexed_dims(list).begin();
  Index from;
  size_t next = 0;
  for (size_t d = 0; d < x.rank(); ++d) {
    if (d < list.size() && list[d].id != kNoValue) {
      const TensorType& t = e.type(list[d].id);
      Index where(t.rank(), 0);
      for (size_t i = 0; i < t.rank(); ++i)
        if (!t.sizes[i].is_const(1)) where[i] = at[begin + index_rank - t.rank() + i];
      Id value = e.convert(e.read(list[d].id, where), DType::kI64);
      from.push_back(e.indirect(value, x.sizes[d], true, out_of_bounds(static_cast<int64_t>(d), x.sizes[d])));
      continue;
    }
    if (next == begin) next += index_rank;
    from.push_back(at[next++]);
  }
  return from;
}

void add_movement(std::vector<LoweringRow>& rows) {
  rows.insert(rows.end(), {{Prim::pad, pad},
                           {Prim::cat, cat},
                           {Prim::slice_scatter, slice_scatter},
                           {Prim::gather, gather},
                           {Prim::index, index}});
}

}  // namespace flashover::loops
