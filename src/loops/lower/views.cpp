// Views are maps from result coordinates to operand coordinates.
#include <algorithm>

#include "base/check.h"
#include "loops/lower/lower.h"
#include "ops/args.h"
#include "sym/samples.h"

namespace flashover::loops {

sym::Expr flatten(const Index& at, const Sizes& strides) {
  sym::Expr flat = 0;
  for (size_t i = 0; i < at.size(); ++i) flat += at[i] * strides[i];
  return flat;
}

Index unflatten(sym::Expr flat, const Sizes& sizes) {
  Index at(sizes.size(), 0);
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i].is_const(1)) continue;
    if (i == 0) {
      at[i] = flat;  // in range already
      break;
    }
    at[i] = sym::mod(flat, sizes[i]);
    flat = sym::floordiv(flat, sizes[i]);
  }
  // A leading run of size-1 dims leaves nothing to divide away, but the top one that counts must not be reduced by mod.
  return at;
}

Index reshape_index(const Index& at, const Sizes& to, const Sizes& from) {
  Index result(from.size(), 0);
  const auto is_zero = [](const sym::Expr& size) { return size.is_const(0); };
  if (std::any_of(from.begin(), from.end(), is_zero)) return result;  // no element: this is never evaluated
  // Walk both shapes from the back in groups of equal products; each group is flattened and unflattened on its own.
  size_t i = to.size(), j = from.size();
  while (i > 0 || j > 0) {
    size_t i_end = i, j_end = j;
    sym::Expr a = 1, b = 1;
    if (i > 0) a = to[--i];
    if (j > 0) b = from[--j];
    while (!sym::known_eq(a, b)) {
      const bool grow_a = i > 0 && (j == 0 || sym::usually_below(a, b));
      if (grow_a) {
        a *= to[--i];
      } else {
        if (j == 0 && (sym::has_size_symbol(a) || sym::has_size_symbol(b)))
          throw Declined("symbolic size: whether " + a.str() + " is " + b.str() + " in a reshape");
        FLASHOVER_CHECK(j > 0) << "reshape between different numbers of elements";
        b *= from[--j];
      }
    }
    Index group(at.begin() + static_cast<std::ptrdiff_t>(i), at.begin() + static_cast<std::ptrdiff_t>(i_end));
    Sizes group_to(to.begin() + static_cast<std::ptrdiff_t>(i), to.begin() + static_cast<std::ptrdiff_t>(i_end));
    Sizes group_from(from.begin() + static_cast<std::ptrdiff_t>(j), from.begin() + static_cast<std::ptrdiff_t>(j_end));
    Index mapped = unflatten(flatten(group, contiguous_strides(group_to)), group_from);
    std::copy(mapped.begin(), mapped.end(), result.begin() + static_cast<std::ptrdiff_t>(j));
  }
  return result;
}

namespace {

Id broadcast(Emitter& e, const graph::Node& node, const Index& at) {
  const ValueId x = ops::as_value(node.args[0]);
  const std::vector<int64_t> dims = ops::as_ints(node.args[2]);
  const Sizes& sizes = e.type(x).sizes;
  Index from(dims.size(), 0);
  for (size_t i = 0; i < dims.size(); ++i)
    if (!sizes[i].is_const(1)) from[i] = at[dims[i]];
  return e.read(x, from);
}
Id permute(Emitter& e, const graph::Node& node, const Index& at) {
  const std::vector<int64_t> dims = ops::as_ints(node.args[1]);
  Index from(dims.size(), 0);
  for (size_t i = 0; i < dims.size(); ++i) from[dims[i]] = at[i];
  return e.read(ops::as_value(node.args[0]), from);
}
Id reshape(Emitter& e, const graph::Node& node, const Index& at) {
  const ValueId x = ops::as_value(node.args[0]);
  return e.read(x, reshape_index(at, e.type(node.outs[0]).sizes, e.type(x).sizes));
}
Id slice(Emitter& e, const graph::Node& node, const Index& at) {
  const Sizes starts = ops::as_sizes(node.args[1]), steps = ops::as_sizes(node.args[3]);
  Index from(at.size(), 0);
  for (size_t i = 0; i < at.size(); ++i) from[i] = starts[i] + at[i] * steps[i];
  return e.read(ops::as_value(node.args[0]), from);
}
Id flip(Emitter& e, const graph::Node& node, const Index& at) {
  const ValueId x = ops::as_value(node.args[0]);
  Index from = at;
  for (int64_t d : ops::as_ints(node.args[1])) from[d] = e.type(x).sizes[d] - 1 - at[d];
  return e.read(x, from);
}
Id diagonal(Emitter& e, const graph::Node& node, const Index& at) {
  const ValueId x = ops::as_value(node.args[0]);
  const int64_t offset = ops::as_int(node.args[1]);
  const auto dim1 = static_cast<size_t>(ops::as_int(node.args[2])),
             dim2 = static_cast<size_t>(ops::as_int(node.args[3]));
  Index from;
  size_t next = 0;
  for (size_t i = 0; i < e.type(x).rank(); ++i) {
    if (i == dim1) {
      from.push_back(at.back() + std::max<int64_t>(-offset, 0));
    } else if (i == dim2) {
      from.push_back(at.back() + std::max<int64_t>(offset, 0));
    } else {
      from.push_back(at[next++]);
    }
  }
  return e.read(x, from);
}
Id as_strided(Emitter& e, const graph::Node& node, const Index& at) {
  const ValueId x = ops::as_value(node.args[0]);
  sym::Expr flat = ops::as_expr(node.args[3]) + flatten(at, ops::as_sizes(node.args[2]));
  return e.read(x, unflatten(flat, e.type(x).sizes));
}

}  // namespace

void add_views(std::vector<LoweringRow>& rows) {
  rows.insert(rows.end(), {{Prim::broadcast, broadcast},
                           {Prim::permute, permute},
                           {Prim::reshape, reshape},
                           {Prim::slice, slice},
                           {Prim::flip, flip},
                           {Prim::diagonal, diagonal},
                           {Prim::as_strided, as_strided}});
}

}  // namespace flashover::loops
