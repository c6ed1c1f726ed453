// For each view operator the cuts that it makes, forwards and as an inverse.
#include "graph/analysis/view_steps.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "ops/args.h"
#include "ops/aten/infer.h"
#include "ops/last_element.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

using Kind = ViewStep::Kind;

ViewStep permute_step(std::vector<int64_t> dims) { return {.kind = Kind::kPermute, .dims = std::move(dims)}; }
ViewStep reshape_step(Sizes sizes) { return {.kind = Kind::kReshape, .sizes = std::move(sizes)}; }

std::vector<int64_t> iota(size_t n) {
  std::vector<int64_t> v(n);
  std::iota(v.begin(), v.end(), 0);
  return v;
}
ViewStep slice_step(const TensorType& x, int64_t dim, sym::Expr start, sym::Expr count, sym::Expr step) {
  ViewStep s{.kind = Kind::kSlice, .sizes = Sizes(x.rank(), 0), .ends = x.sizes, .steps = Sizes(x.rank(), 1)};
  s.sizes[dim] = start;
  s.ends[dim] = count.is_const(0) ? start : start + (count - 1) * step + 1;
  s.steps[dim] = step;
  return s;
}

// What a row may look at: the node, which of its results, and the two types.
struct Cut {
  const Node& node;
  size_t index;
  const TensorType& parent;
  const TensorType& child;
  const Graph& graph;
};
using Steps = std::optional<ViewSteps>;

Steps cut_identity(const Cut&) { return ViewSteps{}; }
Steps cut_reshape(const Cut& c) { return ViewSteps{reshape_step(c.child.sizes)}; }
Steps cut_t(const Cut& c) {
  if (c.parent.rank() < 2) return ViewSteps{};
  return ViewSteps{permute_step({1, 0})};
}
Steps cut_transpose(const Cut& c) {
  if (c.parent.rank() == 0) return ViewSteps{};
  std::vector<int64_t> dims = iota(c.parent.rank());
  std::swap(dims[ops::wrap_dim(ops::as_int(c.node.args[1]), dims.size())],
            dims[ops::wrap_dim(ops::as_int(c.node.args[2]), dims.size())]);
  return ViewSteps{permute_step(std::move(dims))};
}
Steps cut_permute(const Cut& c) {
  std::vector<int64_t> dims = ops::as_ints(c.node.args[1]);
  for (int64_t& d : dims) d = ops::wrap_dim(d, dims.size());
  return ViewSteps{permute_step(std::move(dims))};
}
Steps cut_expand(const Cut& c) {
  ViewStep s{.kind = Kind::kBroadcast, .sizes = c.child.sizes};
  const size_t extra = c.child.rank() - c.parent.rank();
  for (size_t i = 0; i < c.parent.rank(); ++i) s.dims.push_back(static_cast<int64_t>(extra + i));
  return ViewSteps{std::move(s)};
}
// Counted from the end where it is negative, and within [0, size]; nullopt: the facts about sizes do not tell.
std::optional<sym::Expr> position_in(sym::Expr at, sym::Expr size) {
  if (sym::known_lt(at, 0)) at = at + size;
  if (sym::known_le(0, at) && sym::known_le(at, size)) return at;
  if (sym::known_lt(at, 0)) return sym::Expr(0);
  if (sym::known_le(0, at) && sym::known_lt(size, at)) return size;
  return std::nullopt;
}
Steps cut_slice(const Cut& c) {  // (self, dim, start, end, step) or narrow (self, dim, start, length)
  if (c.parent.rank() == 0) return std::nullopt;
  const int64_t dim = ops::wrap_dim(ops::as_int(c.node.args[1]), c.parent.rank());
  const sym::Expr size = c.parent.sizes[dim], count = c.child.sizes[dim];
  const sym::Expr step = c.node.args.size() > 4 ? ops::as_expr(c.node.args[4]) : sym::Expr(1);
  const auto start = is_none(c.node.args[2]) ? sym::Expr(0) : position_in(ops::as_expr(c.node.args[2]), size);
  if (!start) return std::nullopt;
  if (sym::known_eq(count, size) && step.is_const(1)) return ViewSteps{};
  return ViewSteps{slice_step(c.parent, dim, *start, count, step)};
}
Steps select_at(const Cut& c, int64_t dim, sym::Expr index) {
  return ViewSteps{slice_step(c.parent, dim, index, 1, 1), reshape_step(c.child.sizes)};
}
Steps cut_select(const Cut& c) {
  const int64_t dim = ops::wrap_dim(ops::as_int(c.node.args[1]), c.parent.rank());
  const auto index = position_in(ops::as_expr(c.node.args[2]), c.parent.sizes[dim]);
  if (!index) return std::nullopt;
  return select_at(c, dim, *index);
}
Steps cut_unbind(const Cut& c) {
  return select_at(c, ops::wrap_dim(ops::as_int(c.node.args[1]), c.parent.rank()), static_cast<int64_t>(c.index));
}
Steps cut_split(const Cut& c) {  // (self, how, dim): the results follow each other
  const int64_t dim = ops::wrap_dim(ops::as_int(c.node.args[2]), c.parent.rank());
  sym::Expr start = 0;
  for (size_t i = 0; i < c.index; ++i) start += c.graph.type(c.node.outs[i]).sizes[dim];
  if (sym::known_eq(c.child.sizes[dim], c.parent.sizes[dim])) return ViewSteps{};
  return ViewSteps{slice_step(c.parent, dim, start, c.child.sizes[dim], 1)};
}
Steps cut_diagonal(const Cut& c) {
  const size_t rank = c.parent.rank();
  return ViewSteps{{.kind = Kind::kDiagonal,
                    .dims = {ops::as_int(c.node.args[1]), ops::wrap_dim(ops::as_int(c.node.args[2]), rank),
                             ops::wrap_dim(ops::as_int(c.node.args[3]), rank)}}};
}
// These speak of the storage: parent and view are described by their geometry. (The child may be a copy of the view.)
Steps cut_as_strided(const Cut& c) {
  TensorType view = c.child;
  view.sizes = std::get<Sizes>(c.node.args[1]);
  view.strides = std::get<Sizes>(c.node.args[2]);
  const auto* offset = std::get_if<sym::Expr>(&c.node.args[3]);
  view.offset = offset ? *offset : c.parent.offset;
  return view_steps_by_geometry(c.parent, view);
}
Steps cut_unfold(const Cut& c) {
  const size_t rank = c.parent.rank();
  if (rank == 0 || c.child.rank() != rank + 1) return std::nullopt;
  const int64_t dim = ops::wrap_dim(ops::as_int(c.node.args[1]), rank);
  TensorType parent = c.parent, view = c.child;
  // The same elements wherever the parent lies, as long as no two of its own share a place.
  if (!ops::is_dense(parent.sizes, parent.strides) && !ops::aten::overlaps_itself(parent.sizes, parent.strides))
    parent.strides = contiguous_strides(parent.sizes);
  view.strides = parent.strides;
  view.strides.push_back(parent.strides[dim]);
  view.strides[dim] = parent.strides[dim] * ops::as_int(c.node.args[3]);
  view.offset = parent.offset;
  return view_steps_by_geometry(parent, view);
}

ViewStep operator_step(const Cut& c, std::string forward, std::string backward) {
  return {.kind = Kind::kOperator,
          .forward = std::move(forward),
          .backward = std::move(backward),
          .forward_type = c.child,
          .backward_type = c.parent};
}
Steps cut_dtype(const Cut& c) {
  ViewStep s = operator_step(c, op::view_copy_dtype, op::view_copy_dtype);
  s.forward_args = {c.child.dtype};
  s.backward_args = {c.parent.dtype};
  return ViewSteps{std::move(s)};
}
Steps cut_as_real(const Cut& c) { return ViewSteps{operator_step(c, op::view_as_real_copy, op::view_as_complex_copy)}; }
Steps cut_as_complex(const Cut& c) {
  return ViewSteps{operator_step(c, op::view_as_complex_copy, op::view_as_real_copy)};
}
Steps cut_conj(const Cut& c) {
  if (!info(c.parent.dtype).complex) return ViewSteps{};
  return ViewSteps{operator_step(c, op::_conj_physical, op::_conj_physical)};
}
Steps cut_neg(const Cut& c) { return ViewSteps{operator_step(c, op::neg, op::neg)}; }

struct Row {
  std::string_view name;  // without "aten."; any overload unless given
  Steps (*cut)(const Cut&);
};
constexpr Row kRows[] = {
    {"alias", cut_identity},
    {"detach", cut_identity},
    {"lift_fresh", cut_identity},
    {"lift", cut_identity},
    {"view.default", cut_reshape},
    {"view.dtype", cut_dtype},
    {"_unsafe_view", cut_reshape},
    {"reshape", cut_reshape},
    {"_reshape_alias", cut_reshape},
    {"flatten", cut_reshape},
    {"unflatten", cut_reshape},
    {"unsqueeze", cut_reshape},
    {"squeeze", cut_reshape},
    {"t", cut_t},
    {"transpose", cut_transpose},
    {"swapaxes", cut_transpose},
    {"swapdims", cut_transpose},
    {"permute", cut_permute},
    {"expand", cut_expand},
    {"slice", cut_slice},
    {"narrow", cut_slice},
    {"select", cut_select},
    {"unbind", cut_unbind},
    {"split", cut_split},
    {"split_with_sizes", cut_split},
    {"chunk", cut_split},
    {"unsafe_split", cut_split},
    {"unsafe_split_with_sizes", cut_split},
    {"unsafe_chunk", cut_split},
    {"diagonal", cut_diagonal},
    {"unfold", cut_unfold},
    {"as_strided", cut_as_strided},
    {"view_as_real", cut_as_real},
    {"view_as_complex", cut_as_complex},
    {"_conj", cut_conj},
    {"_neg_view", cut_neg},
};
constexpr std::string_view kMetadataInPlace[] = {"t_",       "transpose_", "swapaxes_",   "swapdims_",
                                                 "squeeze_", "unsqueeze_", "as_strided_", "detach_"};

// "aten.permute.default" -> "permute"; the full name stays in `op`.
std::string_view base_name(std::string_view name) {
  if (!op::is_aten(name)) return {};
  name.remove_prefix(5);
  return name.substr(0, name.find('.'));
}

const Row* find_row(std::string_view op) {
  std::string_view base = base_name(op);
  if (base.empty()) return nullptr;
  if (is_metadata_in_place(op)) base.remove_suffix(1);
  if (base.ends_with("_copy") && base != "_to_copy") base.remove_suffix(5);
  const std::string_view overload = op.substr(op.rfind('.') + 1);
  for (const Row& row : kRows) {
    const size_t dot = row.name.find('.');
    if (dot == std::string_view::npos ? row.name == base
                                      : row.name.substr(0, dot) == base && row.name.substr(dot + 1) == overload)
      return &row;
  }
  return nullptr;
}

bool same_geometry(const TensorType& a, const TensorType& b) {
  return a.dtype == b.dtype && a.sizes == b.sizes && a.strides == b.strides && sym::known_eq(a.offset, b.offset);
}

}  // namespace

bool is_view_name(std::string_view op) { return find_row(op) != nullptr; }
bool is_metadata_in_place(std::string_view op) {
  const std::string_view base = base_name(op);
  return std::find(std::begin(kMetadataInPlace), std::end(kMetadataInPlace), base) != std::end(kMetadataInPlace);
}
bool is_geometric(const ViewSteps& steps) {
  return std::none_of(steps.begin(), steps.end(), [](const ViewStep& s) { return s.kind == Kind::kOperator; });
}

std::optional<ViewSteps> view_steps(const Graph& traced, const Node& node, size_t index, const TensorType& parent,
                                    const TensorType& child) {
  const Row* row = find_row(node.op->name);
  if (row) return row->cut({node, index, parent, child, traced});
  if (same_geometry(parent, child)) return ViewSteps{};
  return view_steps_by_geometry(parent, child);
}

std::optional<ViewSteps> view_steps_by_geometry(const TensorType& parent, const TensorType& child) {
  if (parent.dtype != child.dtype || parent.opaque || child.opaque) return std::nullopt;
  if (same_geometry(parent, child)) return ViewSteps{};
  const auto nothing = [](const TensorType& t) {
    return std::any_of(t.sizes.begin(), t.sizes.end(), [](sym::Expr n) { return n.is_const(0); });
  };
  if (nothing(parent) && nothing(child)) return ViewSteps{reshape_step(child.sizes)};
  if (!ops::is_dense(parent.sizes, parent.strides)) return std::nullopt;
  ViewSteps steps;
  std::vector<int64_t> order = iota(parent.rank());
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return ops::is_smaller_stride(parent.strides[b], parent.strides[a]); });
  if (!is_contiguous(parent)) steps.push_back(permute_step(std::move(order)));
  const sym::Expr offset = child.offset - parent.offset;
  const sym::Expr last = ops::last_element(child) - parent.offset;
  const bool empty = std::ranges::any_of(child.sizes, [](sym::Expr n) { return n.is_const(0); });
  if (!empty && (!sym::known_le(0, offset) || !sym::known_lt(last, parent.numel()))) return std::nullopt;
  steps.push_back(
      {.kind = Kind::kAsStrided, .sizes = child.sizes, .ends = child.strides, .offset = empty ? 0 : offset});
  return steps;
}

namespace {

// view_copy and friends give contiguous results, the pointwise ones keep the layout.
ValueId apply_operator(Builder& b, const std::string& op, ValueId x, const std::vector<Arg>& more, TensorType type) {
  std::vector<Arg> args{Ref{x}};
  args.insert(args.end(), more.begin(), more.end());
  type.offset = 0;
  type.strides =
      op.starts_with("aten.view") ? contiguous_strides(type.sizes) : ops::dense_like(type.sizes, b.type(x).strides);
  return b.emit(op, std::move(args), std::move(type));
}

ValueId apply(Builder& b, const ViewStep& s, ValueId x) {
  switch (s.kind) {
    case Kind::kPermute:
      return b.permute(x, s.dims);
    case Kind::kReshape:
      return b.reshape(x, s.sizes);
    case Kind::kSlice:
      return b.slice(x, s.sizes, s.ends, s.steps);
    case Kind::kBroadcast:
      return b.broadcast(x, s.sizes, s.dims);
    case Kind::kDiagonal:
      return b.diagonal(x, s.dims[0], s.dims[1], s.dims[2]);
    case Kind::kAsStrided:
      return b.emit(Prim::as_strided, {Ref{x}, s.sizes, s.ends, s.offset});
    case Kind::kOperator:
      return apply_operator(b, s.forward, x, s.forward_args, s.forward_type);
  }
  return x;
}

TensorType like_parent(Builder& b, ValueId parent) {
  TensorType t = b.type(parent);
  t.offset = 0;
  t.strides = ops::dense_like(t.sizes, t.strides);
  return t;
}

ValueId invert(Builder& b, const ViewStep& s, ValueId parent, ValueId value) {
  switch (s.kind) {
    case Kind::kPermute: {
      std::vector<int64_t> inverse(s.dims.size());
      for (size_t i = 0; i < s.dims.size(); ++i) inverse[s.dims[i]] = static_cast<int64_t>(i);
      return b.permute(value, std::move(inverse));
    }
    case Kind::kReshape:
      return b.reshape(value, b.sizes(parent));
    case Kind::kSlice:
      return b.slice_scatter(parent, value, s.sizes, s.ends, s.steps);
    case Kind::kBroadcast:
      if (!sym::known_eq(b.type(parent).numel(), b.type(value).numel()))
        throw Declined("write to an expanded tensor: several elements share one location");
      return b.reshape(value, b.sizes(parent));
    case Kind::kDiagonal:
      return b.emit(op::diagonal_scatter,
                    {Ref{parent}, Ref{value}, sym::Expr(s.dims[0]), sym::Expr(s.dims[1]), sym::Expr(s.dims[2])},
                    like_parent(b, parent));
    case Kind::kAsStrided:
      if (ops::aten::overlaps_itself(s.sizes, s.ends)) throw Declined("write to a tensor whose elements overlap");
      return b.emit(Prim::as_strided_scatter, {Ref{parent}, Ref{value}, s.sizes, s.ends, s.offset});
    case Kind::kOperator:
      return apply_operator(b, s.backward, value, s.backward_args, s.backward_type);
  }
  return value;
}

}  // namespace

ValueId replay(Builder& b, const ViewSteps& steps, ValueId parent) {
  for (const ViewStep& s : steps) parent = apply(b, s, parent);
  return parent;
}

ValueId write_back(Builder& b, const ViewSteps& steps, ValueId parent, ValueId value) {
  std::vector<ValueId> before{parent};  // the old contents at every stage of the cut
  for (size_t i = 0; i + 1 < steps.size(); ++i) before.push_back(apply(b, steps[i], before.back()));
  for (size_t i = steps.size(); i-- > 0;) value = invert(b, steps[i], before[i], value);
  return value;
}

}  // namespace flashover::graph
