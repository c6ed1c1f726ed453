// Rewrite rules on prims: uniform values, neutral operands, conversions that lose nothing, chains of views.
#include "graph/passes/fold.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_set>

#include "graph/analysis/attention_mask.h"
#include "graph/analysis/constants.h"
#include "graph/analysis/symbolic.h"
#include "graph/passes/dce.h"
#include "graph/rewrite/match.h"
#include "graph/rewrite/rewriter.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

Arg scalar_of(DType d, double x) {
  if (d == DType::kBool) return x != 0;
  if (is_floating(d)) return x;
  return sym::Expr(static_cast<int64_t>(x));
}

// ---- values that are known to be one number
Graph replace_uniform(Graph g) {
  Constants constants(g);
  // Only where known values meet the rest of the program: what lies behind is dead then.
  std::vector<bool> index_only(g.values.size());
  for (const Node& n : g.nodes) {
    bool all = n.op->is_prim() && n.outs.size() == 1 && n.outs[0] != kNoValue;
    for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { all = all && index_only[v]; });
    if (all) index_only[n.outs[0]] = true;
  }
  std::vector<bool> frontier(g.values.size());
  for (const Node& n : g.nodes) {
    bool inside = true;
    for (ValueId v : n.outs) inside = inside && v != kNoValue && index_only[v];
    if (inside && !n.outs.empty()) continue;
    for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { frontier[v] = index_only[v]; });
  }
  for (Node& n : g.nodes) {
    if (n.outs.size() != 1 || n.outs[0] == kNoValue || !frontier[n.outs[0]] || n.op->prim == Prim::full ||
        n.op->prim == Prim::iota)
      continue;
    const auto array = constants[n.outs[0]];
    if (!array || array->data.empty()) continue;
    const double first = array->data[0];
    bool same = true;
    for (double x : array->data) same = same && std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(first);
    if (!same) continue;
    const TensorType& t = g.type(n.outs[0]);
    n.op = ops::find(Prim::full);
    n.args = {t.sizes, scalar_of(t.dtype, first), t.dtype, t.device};
  }
  return g;
}

// The one number that a value holds everywhere.
std::optional<double> uniform(Rewriter& r, ValueId v) {
  for (;;) {
    const Node* n = r.def(v);
    if (!n) return std::nullopt;
    if (n->op->prim == Prim::full) {
      const Arg& a = n->args[1];
      if (const auto* d = std::get_if<double>(&a)) return round_to(r.b.dtype(v), *d);
      if (const auto* b = std::get_if<bool>(&a)) return *b ? 1.0 : 0.0;
      if (const auto* e = std::get_if<sym::Expr>(&a); e && e->is_const()) return static_cast<double>(e->value());
      return std::nullopt;
    }
    const bool passes = n->op->is_prim() && n->op->kind == ops::OpKind::kView;
    if (!passes && n->op->prim != Prim::copy) return std::nullopt;
    v = ops::as_value(n->args[0]);
  }
}

// ---- arithmetic that changes nothing
enum class Neutral : uint8_t { kOneRight, kOneEither, kZeroAdd, kZeroSub };
template <Neutral kind>
bool neutral(Rewriter& r, const Node& n, Values& results, const void*) {
  const ValueId a = ops::as_value(n.args[0]), b = ops::as_value(n.args[1]);
  const bool floating = is_floating(r.b.dtype(a));
  auto is_neutral = [&](ValueId v) {
    const auto x = uniform(r, v);
    if (!x) return false;
    switch (kind) {
      case Neutral::kOneRight:
      case Neutral::kOneEither:
        return *x == 1.0;
      case Neutral::kZeroAdd:
        return *x == 0.0 && (!floating || std::signbit(*x));  // -0 + +0 is +0
      case Neutral::kZeroSub:
        return *x == 0.0 && (!floating || !std::signbit(*x));
    }
    return false;
  };
  if (is_neutral(b))
    results = {a};
  else if ((kind == Neutral::kOneEither || kind == Neutral::kZeroAdd) && is_neutral(a))
    results = {b};
  return !results.empty();
}

bool where_known(Rewriter& r, const Node& n, Values& results, const void*) {
  const ValueId a = ops::as_value(n.args[1]), b = ops::as_value(n.args[2]);
  if (const auto x = uniform(r, ops::as_value(n.args[0])))
    results = {*x != 0 ? a : b};
  else if (a == b)
    results = {a};
  return !results.empty();
}
bool logic_known(Rewriter& r, const Node& n, Values& results, const void*) {
  const ValueId a = ops::as_value(n.args[0]), b = ops::as_value(n.args[1]);
  if (r.b.dtype(a) != DType::kBool) return false;
  const bool is_and = n.op->prim == Prim::bitwise_and;
  for (auto [x, other] : {std::pair{a, b}, std::pair{b, a}})
    if (const auto u = uniform(r, x)) {
      results = {(*u != 0) == is_and ? other : x};
      return true;
    }
  if (a == b) results = {a};
  return !results.empty();
}

// Bounds of all elements of a value that holds integers, whatever the sizes are.
std::optional<sym::Range> bounds_of(Rewriter& r, ValueId v) {
  if (r.b.dtype(v) != DType::kI64) return std::nullopt;
  if (const auto number = uniform(r, v)) {
    const auto n = static_cast<int64_t>(*number);
    return sym::Range{n, n};
  }
  const Node* n = r.def(v);
  while (n && n->op->is_prim() && n->op->kind == ops::OpKind::kView) n = r.def(ops::as_value(n->args[0]));
  if (!n || n->op->prim != Prim::iota) return std::nullopt;
  const auto* length = std::get_if<sym::Expr>(&n->args[0]);
  const auto* start = std::get_if<sym::Expr>(&n->args[1]);
  const auto* step = std::get_if<sym::Expr>(&n->args[2]);
  if (!length || !start || !step || !start->is_const() || !step->is_const(1)) return std::nullopt;
  return sym::Range{start->value(), (*start + *length - 1).range().hi};
}

// A mask's arange(n) >= 0 is true for every n.
bool comparison_known(Rewriter& r, const Node& n, Values& results, const void*) {
  auto a = bounds_of(r, ops::as_value(n.args[0])), b = bounds_of(r, ops::as_value(n.args[1]));
  if (!a || !b) return false;
  const Prim prim = n.op->prim;
  if (prim == Prim::lt || prim == Prim::le) std::swap(a, b);
  const bool strict = prim == Prim::gt || prim == Prim::lt;  // a > b, else a >= b
  constexpr int64_t kInf = sym::Range::kInf;
  const auto above = [](int64_t x, int64_t y, bool greater) {
    return x != -kInf && y != kInf && (greater ? x > y : x >= y);
  };
  const bool always = above(a->lo, b->hi, strict), never = above(b->lo, a->hi, !strict);
  if (!always && !never) return false;
  const TensorType& t = r.b.type(n.outs[0]);
  results = {r.b.emit(Prim::full, {t.sizes, always, t.dtype, t.device})};
  return true;
}

// ---- conversions
// Every value of a is a value of b.
bool lossless(DType a, DType b) {
  if (a == b) return true;
  if (a == DType::kBool) return b != DType::kBool;
  if (is_floating(a))
    return is_floating(b) &&
           ((is_reduced(a) && (b == DType::kF32 || b == DType::kF64)) || (a == DType::kF32 && b == DType::kF64));
  if (is_integral(a) && is_integral(b))
    return info(a).is_signed ? info(b).is_signed && info(b).bytes > info(a).bytes : info(b).bytes > info(a).bytes;
  if (is_integral(a) && is_floating(b)) return info(a).bytes * 8 <= (b == DType::kF64 ? 32 : b == DType::kF32 ? 16 : 0);
  return false;
}
struct Facts {
  FoldOptions options;
  std::vector<bool> in_memory;  // by value
};
// GPU: what operators read, or the caller, lies in memory as it is. In 16 bits, that is what other kernels read as
// well: the sum before its rounding would be a second copy of it, of twice the size.
std::vector<bool> read_by_operators(const Graph& g) {
  std::vector<int32_t> producer(g.values.size(), -1);
  std::vector<bool> out(g.values.size());
  const auto mark = [&](ValueId v) {
    while (v != kNoValue && g.type(v).device.type == DeviceType::kCUDA && !out[v]) {
      out[v] = true;
      if (producer[v] < 0) return;
      const Node& n = g.nodes[producer[v]];
      // (Copies into an operator's layout go away where the producer can take it.)
      if (!n.op->is_prim() || (n.op->kind != ops::OpKind::kView && n.op->prim != Prim::copy)) return;
      v = ops::as_value(n.args[0]);
    }
  };
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const Node& n = g.nodes[i];
    for (ValueId v : n.outs)
      if (v != kNoValue) producer[v] = static_cast<int32_t>(i);
    if (n.op->is_prim()) continue;
    for (const Arg& a : n.args) for_each_ref(a, mark);
  }
  for (const Output& o : g.outputs)
    if (o.owns_memory()) mark(o.value);
  return out;
}

bool convert_chain(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto& [options, in_memory] = *static_cast<const Facts*>(user);
  const ValueId x = ops::as_value(n.args[0]);
  const DType to = ops::as_dtype(n.args[1]);
  const bool weak = r.b.type(n.outs[0]).wrapped_number;
  if (r.b.dtype(x) == to && weak == r.b.type(x).wrapped_number) {
    results = {x};
    return true;
  }
  const Node* inner = r.def(x, Prim::convert);
  if (!inner) return false;
  const ValueId y = ops::as_value(inner->args[0]);
  const DType from = r.b.dtype(y), middle = r.b.dtype(x);
  // x.bfloat16().float(): the program wants the rounding.
  const bool asked_for = n.args.size() > 2 && inner->args.size() > 2;
  // What is read several times is likely to be stored, too.
  const bool stays = (static_cast<size_t>(x) < in_memory.size() && in_memory[x]) ||
                     (r.b.type(x).device.type == DeviceType::kCUDA && (r.uses(x) > 1 || r.uses(n.outs[0]) > 1));
  const bool through_narrow = !options.strict_numerics && !asked_for && !stays && from == DType::kF32 &&
                              is_reduced(middle) && to == DType::kF32;
  if ((!lossless(from, middle) && !through_narrow) || weak) return false;
  results = {r.b.convert(y, to)};
  return true;
}

// ---- views
bool reshape_chain(Rewriter& r, const Node& n, Values& results, const void*) {
  const ValueId x = ops::as_value(n.args[0]);
  if (same_sizes(r.b.type(x).sizes, ops::as_sizes(n.args[1]))) {
    results = {x};
    return true;
  }
  const Node* inner = r.def(x);
  if (!inner) return false;
  if (inner->op->prim == Prim::reshape) {
    results = {r.b.reshape(ops::as_value(inner->args[0]), ops::as_sizes(n.args[1]))};
  } else if (inner->op->prim == Prim::full) {
    std::vector<Arg> args = inner->args;
    args[0] = n.args[1];
    results = {r.b.emit(Prim::full, std::move(args))};
  }
  return !results.empty();
}
bool permute_chain(Rewriter& r, const Node& n, Values& results, const void*) {
  const ValueId x = ops::as_value(n.args[0]);
  std::vector<int64_t> dims = ops::as_ints(n.args[1]);
  if (std::is_sorted(dims.begin(), dims.end())) {
    results = {x};
    return true;
  }
  const Node* inner = r.def(x, Prim::permute);
  if (!inner) return false;
  const std::vector<int64_t> first = ops::as_ints(inner->args[1]);
  for (int64_t& d : dims) d = first[d];
  results = {r.b.permute(ops::as_value(inner->args[0]), std::move(dims))};
  return true;
}
// A prim.full of other sizes.
Values full_of_sizes(Rewriter& r, const Node& full, Sizes sizes) {
  std::vector<Arg> args = full.args;
  args[0] = std::move(sizes);
  return {r.b.emit(Prim::full, std::move(args))};
}
bool broadcast_chain(Rewriter& r, const Node& n, Values& results, const void*) {
  const ValueId x = ops::as_value(n.args[0]);
  const Sizes sizes = ops::as_sizes(n.args[1]);
  if (same_sizes(r.b.type(x).sizes, sizes)) {
    results = {x};
    return true;
  }
  const Node* inner = r.def(x);
  if (!inner) return false;
  if (inner->op->prim == Prim::full) {
    results = full_of_sizes(r, *inner, sizes);
  } else if (inner->op->prim == Prim::broadcast) {
    const std::vector<int64_t> outer = ops::as_ints(n.args[2]);
    std::vector<int64_t> dims = ops::as_ints(inner->args[2]);
    for (int64_t& d : dims) d = outer[d];
    results = {r.b.broadcast(ops::as_value(inner->args[0]), sizes, dims)};
  }
  return !results.empty();
}
bool slice_chain(Rewriter& r, const Node& n, Values& results, const void*) {
  const ValueId x = ops::as_value(n.args[0]);
  const Sizes starts = ops::as_sizes(n.args[1]), ends = ops::as_sizes(n.args[2]), steps = ops::as_sizes(n.args[3]);
  bool whole = true;
  for (size_t d = 0; d < starts.size(); ++d)
    whole = whole && starts[d].is_const(0) && steps[d].is_const(1) && sym::known_eq(ends[d], r.b.type(x).sizes[d]);
  if (whole) {
    results = {x};
    return true;
  }
  const Node* inner = r.def(x);
  if (!inner) return false;
  if (inner->op->prim == Prim::full) {
    results = full_of_sizes(r, *inner, r.b.type(n.outs[0]).sizes);
  } else if (inner->op->prim == Prim::slice) {
    // x[s1 + s2*t1 : s1 + (e2 - 1)*t1 + 1 : t1*t2]
    const Sizes s1 = ops::as_sizes(inner->args[1]), t1 = ops::as_sizes(inner->args[3]);
    Sizes s, e, t;
    for (size_t d = 0; d < starts.size(); ++d) {
      if (!ends[d].is_const() || !starts[d].is_const()) return false;
      s.push_back(s1[d] + starts[d] * t1[d]);
      e.push_back(ends[d].value() > starts[d].value() ? s1[d] + (ends[d] - 1) * t1[d] + 1 : s.back());
      t.push_back(t1[d] * steps[d]);
    }
    results = {r.b.slice(ops::as_value(inner->args[0]), std::move(s), std::move(e), std::move(t))};
  } else if (inner->op->prim == Prim::cat) {
    // A slice of one operand.
    const RefList list = ops::as_values(inner->args[0]);
    const int64_t dim = ops::as_int(inner->args[1]);
    sym::Expr at = 0;
    for (const Ref& operand : list) {
      const sym::Expr size = r.b.type(operand.id).sizes[dim];
      if (sym::known_le(at, starts[dim]) && sym::known_le(ends[dim], at + size)) {
        Sizes s = starts, e = ends;
        s[dim] = s[dim] - at;
        e[dim] = e[dim] - at;
        results = {r.b.slice(operand.id, std::move(s), std::move(e), steps)};
        return true;
      }
      at += size;
    }
  }
  return !results.empty();
}
bool slice_scatter_whole(Rewriter& r, const Node& n, Values& results, const void*) {
  const ValueId x = ops::as_value(n.args[0]), src = ops::as_value(n.args[1]);
  if (!same_sizes(r.b.type(x).sizes, r.b.type(src).sizes)) return false;
  results = {src};  // steps of one: nothing else fills the whole
  return true;
}
bool copy_same(Rewriter& r, const Node& n, Values& results, const void*) {
  const ValueId x = ops::as_value(n.args[0]);
  if (const Node* inner = r.def(x, Prim::copy)) {
    results = {r.b.emit(Prim::copy, {inner->args[0]}, r.b.type(n.outs[0]))};
    return true;
  }
  if (!same_strides(r.b.type(x), r.b.type(n.outs[0]))) return false;
  results = {x};
  return true;
}
bool double_negation(Rewriter& r, const Node& n, Values& results, const void*) {
  const Node* inner = r.def(ops::as_value(n.args[0]), n.op->name);
  if (inner) results = {ops::as_value(inner->args[0])};
  return inner != nullptr;
}

constexpr RewriteRule kFoldRules[] = {
    {Prim::mul, "x * 1 = x", neutral<Neutral::kOneEither>},
    {Prim::div, "x / 1 = x", neutral<Neutral::kOneRight>},
    {Prim::add, "x + (-0.) = x, integers: x + 0 = x", neutral<Neutral::kZeroAdd>},
    {Prim::sub, "x - 0 = x", neutral<Neutral::kZeroSub>},
    {Prim::where, "where(true, a, b) = a; where(c, a, a) = a", where_known},
    {Prim::ge, "a >= b, where all of a is known to be", comparison_known},
    {Prim::gt, "a > b, likewise", comparison_known},
    {Prim::le, "a <= b, likewise", comparison_known},
    {Prim::lt, "a < b, likewise", comparison_known},
    {Prim::bitwise_and, "a & true = a, a & false = false, a & a = a", logic_known},
    {Prim::bitwise_or, "a | false = a, a | true = true, a | a = a", logic_known},
    {Prim::convert, "convert(convert(x, wider), t) = convert(x, t)", convert_chain},
    {Prim::reshape, "reshape(reshape(x)) = reshape(x); of a full: a full", reshape_chain},
    {Prim::permute, "permute(permute(x)) = permute(x)", permute_chain},
    {Prim::broadcast, "broadcast(broadcast(x)) = broadcast(x); of a full: a full", broadcast_chain},
    {Prim::slice, "slice(slice(x)) = slice(x); of a cat: of the operand", slice_chain},
    {Prim::slice_scatter, "the whole replaced", slice_scatter_whole},
    {Prim::copy, "copy(copy(x)) = copy(x); the same layout: x", copy_same},
    {Prim::neg, "-(-x) = x", double_negation},
    {Prim::logical_not, "!!b = b", double_negation},
};

// ---- attention masks
struct Attention {  // (q, k, v, ...): which arguments are the mask and is_causal
  const ops::OpRow* op;
  size_t mask, causal;
  bool chosen = false;  // the library is chosen, and its backward with it: only a mask that shuts nothing goes
};

// Fused kernels write their result in the query's order of dimensions.
Sizes strides_like_query(const TensorType& q) {
  const bool heads_first = sym::known_le(q.strides[2], q.strides[1]);
  Sizes strides(4);
  strides[3] = 1;
  strides[heads_first ? 2 : 1] = q.sizes[3];
  strides[heads_first ? 1 : 2] = q.sizes[3] * q.sizes[heads_first ? 2 : 1];
  strides[0] = q.sizes[1] * q.sizes[2] * q.sizes[3];
  return strides;
}

Graph fold_masks(Graph g) {
  static const Attention kAttention[] = {
      {ops::find(op::_scaled_dot_product_flash_attention_for_cpu), 5, 4},
      {ops::find(op::scaled_dot_product_attention), 3, 5},
      {ops::find(op::_scaled_dot_product_cudnn_attention), 3, 6, true},
      {ops::find(op::_scaled_dot_product_cudnn_attention_backward), 8, 14, true},
      {ops::find(op::_scaled_dot_product_efficient_attention), 3, 6, true},
      {ops::find(op::_scaled_dot_product_efficient_attention_backward), 4, 11, true},
  };
  // Where the mask itself has a gradient its backward is given it.
  const auto differentiates_mask = [](const Node& n) {
    const auto* output_mask = n.args.size() > 10 ? std::get_if<std::vector<bool>>(&n.args[10]) : nullptr;
    return output_mask != nullptr && output_mask->size() == 4 && (*output_mask)[3];
  };
  Constants constants(g);
  std::vector<size_t> relaid;  // attention nodes whose mask gets another layout
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    Node& n = g.nodes[i];
    const auto* a = std::find_if(std::begin(kAttention), std::end(kAttention), [&](auto& x) { return x.op == n.op; });
    if (a != std::end(kAttention) && n.args.size() > std::max(a->mask, a->causal) && !is_none(n.args[a->mask])) {
      const TensorType q = g.type(ops::as_value(n.args[0])), k = g.type(ops::as_value(n.args[1]));
      const Mask kind = mask_of(g, constants, ops::as_value(n.args[a->mask]), q, k);
      const bool cuda = q.device.type == DeviceType::kCUDA;
      bool fused = false;
      if (a->chosen) {
        if (kind == Mask::kNone && !differentiates_mask(n)) n.args[a->mask] = None{};
      } else if (kind == Mask::kNone) {
        n.args[a->mask] = None{};  // a causal call stays causal
        fused = cuda;
      } else if (kind == Mask::kCausal) {
        n.args[a->mask] = None{};
        n.args[a->causal] = true;
        fused = cuda;
      } else if (const ValueId given = ops::as_value(n.args[a->mask]);
                 cuda && !g.type(given).strides.back().is_const(1)) {
        relaid.push_back(i);
        fused = true;
      }
      if (fused && q.rank() == 4) g.values[n.outs[0]].type.strides = strides_like_query(q);
    }
  }
  // Fused kernels take masks whose last dim is dense; for others ATen goes back to the plain formula.
  for (size_t k = relaid.size(); k-- > 0;) {
    Arg& mask = g.nodes[relaid[k]].args[3];
    TensorType dense = g.type(ops::as_value(mask));
    dense.strides = contiguous_strides(dense.sizes);
    dense.offset = 0;
    Node copy{.op = ops::find(Prim::copy), .args = {mask}, .location = g.nodes[relaid[k]].location};
    copy.outs = {g.add_value(dense)};
    mask = Ref{copy.outs[0]};
    g.nodes.insert(g.nodes.begin() + static_cast<std::ptrdiff_t>(relaid[k]), std::move(copy));
  }
  return dce(std::move(g));
}

// ---- roundings that decide
// Fused 16-bit operators compute in f32 and round once at the end. Where a rounding decides about a value (x ==
// x.max(), floor, a conversion to int) all of these readers must see the same rounded number. Strict: it is rounded
// everywhere.
bool decides(Prim prim) {
  return is_any_of(prim, {Prim::eq,       Prim::ne,       Prim::lt,         Prim::le,        Prim::gt,     Prim::ge,
                          Prim::floor,    Prim::ceil,     Prim::round,      Prim::trunc,     Prim::sign,   Prim::isnan,
                          Prim::isinf,    Prim::signbit,  Prim::fmod,       Prim::remainder, Prim::argmax, Prim::argmin,
                          Prim::floordiv, Prim::truncdiv, Prim::logical_not});
}
Graph mark_roundings(Graph g, bool strict) {
  std::vector<int32_t> producer(g.values.size(), -1);
  for (size_t i = 0; i < g.nodes.size(); ++i)
    for (ValueId v : g.nodes[i].outs)
      if (v != kNoValue) producer[v] = static_cast<int32_t>(i);
  const auto is_rounding = [&](const Node& n) {
    return n.op->prim == Prim::convert && is_reduced(ops::as_dtype(n.args[1])) &&
           !is_reduced(g.type(ops::as_value(n.args[0])).dtype);
  };
  const auto mark = [](Node& n) {
    if (n.args.size() < 3) n.args.resize(3, Arg(true));
  };
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    Node& n = g.nodes[i];
    if (strict && is_rounding(n)) mark(n);
    const bool to_discrete = n.op->prim == Prim::convert && !is_floating(ops::as_dtype(n.args[1]));
    if (!to_discrete && !decides(n.op->prim)) continue;
    for (const Arg& a : n.args)
      for_each_ref(a, [&](ValueId v) {
        while (v != kNoValue && producer[v] >= 0) {
          Node& p = g.nodes[producer[v]];
          const bool passes = p.op->is_prim() && (p.op->kind == ops::OpKind::kView || p.op->prim == Prim::copy);
          if (!passes && p.op->prim != Prim::convert) break;
          if (p.op->prim == Prim::convert) mark(p);
          if (is_rounding(p)) break;
          v = ops::as_value(p.args[0]);
        }
      });
  }
  if (strict)  // what reads a rounded value keeps it
    for (Node& n : g.nodes)
      if (n.op->prim == Prim::convert && is_reduced(g.type(ops::as_value(n.args[0])).dtype)) mark(n);
  return g;
}

Graph apply_rules(Graph g, const FoldOptions& options) {
  const Facts facts{options, read_by_operators(g)};
  return rewrite(std::move(g), kFoldRules, &facts);
}

}  // namespace

Graph fold(Graph g, const FoldOptions& options) {
  g = mark_roundings(std::move(g), options.strict_numerics);
  // Masks over symbols: what is known of them is known of no element by itself.
  if (std::ranges::any_of(g.nodes, [&](const Node& n) { return is_symbolic(g, n); }))
    g = apply_rules(std::move(g), options);
  g = fold_masks(std::move(g));
  g = replace_uniform(std::move(g));
  return apply_rules(std::move(g), options);
}

}  // namespace flashover::graph
