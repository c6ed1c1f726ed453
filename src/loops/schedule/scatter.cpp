// The points that a scatter runs over, and where each of them stores.
#include "loops/schedule/scatter.h"

#include "base/check.h"
#include "loops/lower/lower.h"
#include "ops/args.h"
#include "ops/indexed_dims.h"

namespace flashover::loops {

bool is_scatter(const ops::OpRow* op) {
  return is_any_of(op->prim, {Prim::scatter, Prim::index_put, Prim::as_strided_scatter});
}

ScatterDomain scatter_domain(const graph::Graph& g, const graph::Node& node) {
  ScatterDomain d;
  if (node.op->prim == Prim::scatter) {
    d.sizes = g.type(ops::as_value(node.args[2])).sizes;
    d.ordered.assign(d.sizes.size(), false);
    if (!d.sizes.empty()) d.ordered[ops::as_int(node.args[1])] = true;
    return d;
  }
  if (node.op->prim == Prim::as_strided_scatter) {
    d.sizes = g.type(ops::as_value(node.args[1])).sizes;
    d.ordered.assign(d.sizes.size(), true);  // windows may overlap
    return d;
  }
  // index_put: as the result of index() with the same list
  const TensorType& x = g.type(ops::as_value(node.args[0]));
  const RefList list = ops::as_values(node.args[1]);
  Sizes index_sizes;
  for (const Ref& r : list)
    if (r.id != kNoValue) index_sizes = ops::broadcast_sizes(index_sizes, g.type(r.id).sizes);
  const ops::IndexedDims indexed = ops::indexed_dims(list);
  auto put_indices = [&] {
    d.sizes.insert(d.sizes.end(), index_sizes.begin(), index_sizes.end());
    d.ordered.insert(d.ordered.end(), index_sizes.size(), true);
  };
  if (!indexed.adjacent) put_indices();
  for (size_t i = 0; i < x.rank(); ++i) {
    if (indexed.adjacent && i == indexed.first) put_indices();
    if (i < list.size() && list[i].id != kNoValue) continue;
    d.sizes.push_back(x.sizes[i]);
    d.ordered.push_back(false);
  }
  return d;
}

ScatterPoint emit_scatter(Emitter& e, const graph::Node& node, const Index& point) {
  ScatterPoint s;
  const ValueId x = ops::as_value(node.args[0]);
  const TensorType& type = e.type(x);
  if (node.op->prim == Prim::scatter) {
    const int64_t dim = ops::as_int(node.args[1]);
    const std::string& reduce = std::get<std::string>(node.args[4]);
    s.mode = reduce == "add"    ? StoreMode::kAdd
             : reduce == "mul"  ? StoreMode::kMul
             : reduce == "amax" ? StoreMode::kMax
             : reduce == "amin" ? StoreMode::kMin
                                : StoreMode::kSet;
    s.value = e.read(ops::as_value(node.args[3]), point);
    s.at = point;
    if (!point.empty()) {
      const sym::Expr size = type.sizes[dim];
      s.at[dim] = e.indirect(e.convert(e.read(ops::as_value(node.args[2]), point), DType::kI64), size, false,
                             "index out of bounds for dimension " + std::to_string(dim) + " with size " + size.str());
    }
  } else if (node.op->prim == Prim::as_strided_scatter) {
    s.value = e.read(ops::as_value(node.args[1]), point);
    s.at = unflatten(ops::as_expr(node.args[4]) + flatten(point, ops::as_sizes(node.args[3])), type.sizes);
  } else {
    const ValueId values = ops::as_value(node.args[2]);
    const Sizes& sizes = e.type(values).sizes;
    Index from(sizes.size(), 0);
    for (size_t i = 0; i < sizes.size(); ++i)
      if (!sizes[i].is_const(1)) from[i] = point[point.size() - sizes.size() + i];
    s.value = e.read(values, from);
    s.at = advanced_index(e, type, ops::as_values(node.args[1]), point);
    s.mode = ops::as_bool(node.args[3]) ? StoreMode::kAdd : StoreMode::kSet;
  }
  return s;
}

}  // namespace flashover::loops
