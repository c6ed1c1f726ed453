// How a view is cut out of its parent: a short list of prim-like steps that can be replayed and inverted.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "graph/builder.h"
#include "ops/names.h"

namespace flashover::graph {

struct ViewStep {
  enum class Kind : uint8_t { kPermute, kReshape, kSlice, kBroadcast, kDiagonal, kAsStrided, kOperator };
  Kind kind = Kind::kReshape;
  std::vector<int64_t> dims;      // permute, broadcast; diagonal: offset, dim1, dim2
  Sizes sizes;                    // reshape, broadcast, as_strided: result sizes; slice: starts
  Sizes ends, steps;              // slice; as_strided: ends = strides
  sym::Expr offset = 0;           // as_strided
  std::string forward, backward;  // operator and its inverse, both of one tensor and `args`
  std::vector<Arg> forward_args, backward_args;
  TensorType forward_type, backward_type;
};
using ViewSteps = std::vector<ViewStep>;

// The view that result `index` of `node` is of its argument `argument`; nullopt when there is no such short list.
// Geometry: `parent` and `child` as traced (eager's strides and offsets).
std::optional<ViewSteps> view_steps(const Graph& traced, const Node& node, size_t index, const TensorType& parent,
                                    const TensorType& child);
// The steps by geometry alone: both on one storage, the parent without gaps.
std::optional<ViewSteps> view_steps_by_geometry(const TensorType& parent, const TensorType& child);

bool is_view_name(std::string_view op);          // op::permute
bool is_metadata_in_place(std::string_view op);  // op::t_: changes geometry, writes nothing
bool is_geometric(const ViewSteps& steps);       // sizes and strides only, the bytes mean the same

ValueId replay(Builder& b, const ViewSteps& steps, ValueId parent);
// The parent with this view's elements replaced by `value`. Throws Declined for views that repeat elements.
ValueId write_back(Builder& b, const ViewSteps& steps, ValueId parent, ValueId value);

}  // namespace flashover::graph
