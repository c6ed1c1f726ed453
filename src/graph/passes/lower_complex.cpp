// Prims compute with real numbers. What functionalization left of complex tensors (views, writes into them, copies)
// runs as calls of ATen's operators.
#include "graph/passes/lower_complex.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "graph/builder.h"
#include "graph/rewrite/replace.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

bool is_complex(const TensorType& t) { return info(t.dtype).complex; }

class Translator {
 public:
  explicit Translator(Graph in) : in_(std::move(in)) {}

  Graph run() {
    std::vector<Node> nodes = std::move(in_.nodes);
    in_.nodes.clear();
    for (Node& n : nodes) {
      bool complex = false;
      for (ValueId v : n.outs) complex = complex || (v != kNoValue && is_complex(in_.type(v)));
      for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { complex = complex || is_complex(in_.type(v)); });
      if (complex && n.op->is_prim())
        translate(std::move(n));
      else
        in_.nodes.push_back(std::move(n));
    }
    return std::move(in_);
  }

 private:
  // The last operator of a translation makes the prim's own result, in dense memory: externs cannot return overlapping
  // ones.
  void last(Node n, std::string_view op, std::vector<Arg> args) {
    n.op = ops::find(op);
    n.args = std::move(args);
    for (ValueId v : n.outs) {
      TensorType& t = in_.values[v].type;
      t.offset = 0;
      if (!ops::is_dense(t.sizes, t.strides)) t.strides = contiguous_strides(t.sizes);
    }
    in_.nodes.push_back(std::move(n));
  }
  ValueId step(const Node& n, std::string_view op, std::vector<Arg> args, Sizes sizes) {
    TensorType t = in_.type(n.outs[0]);
    t.strides = contiguous_strides(sizes);
    t.sizes = std::move(sizes);
    t.offset = 0;
    Builder b(in_, n.location);
    return b.emit(op, std::move(args), std::move(t));
  }

  struct Cut {
    Sizes starts, ends, steps;
    std::vector<size_t> dims(const Sizes& sizes) const {  // in which not all is taken
      std::vector<size_t> out;
      for (size_t d = 0; d < sizes.size(); ++d)
        if (!starts[d].is_const(0) || !steps[d].is_const(1) || !sym::known_eq(ends[d], sizes[d])) out.push_back(d);
      return out;
    }
    std::vector<Arg> args(size_t d) const { return {sym::Expr(static_cast<int64_t>(d)), starts[d], ends[d], steps[d]}; }
  };
  ValueId cut_dim(const Node& n, ValueId x, const Cut& cut, size_t d) {
    Sizes sizes = in_.type(x).sizes;
    sizes[d] = sym::ceildiv(cut.ends[d] - cut.starts[d], cut.steps[d]);
    std::vector<Arg> args = cut.args(d);
    args.insert(args.begin(), Ref{x});
    return step(n, op::slice_Tensor, std::move(args), std::move(sizes));
  }

  // ATen's writes one dim: the outer dims' slices are taken, and put back after that of the innermost was.
  void slice_scatter(Node n) {
    const std::vector<Arg> a = n.args;
    const Cut cut{ops::as_sizes(a[2]), ops::as_sizes(a[3]), ops::as_sizes(a[4])};
    std::vector<ValueId> parts{ops::as_value(a[0])};
    const std::vector<size_t> dims = cut.dims(in_.type(parts[0]).sizes);
    if (dims.empty()) return last(std::move(n), op::clone, {a[1], None{}});
    for (size_t i = 0; i + 1 < dims.size(); ++i) parts.push_back(cut_dim(n, parts.back(), cut, dims[i]));
    ValueId value = ops::as_value(a[1]);
    for (size_t i = dims.size(); i-- > 0;) {
      std::vector<Arg> args = cut.args(dims[i]);
      args.insert(args.begin(), {Ref{parts[i]}, Ref{value}});
      if (i == 0) return last(std::move(n), op::slice_scatter, std::move(args));
      value = step(n, op::slice_scatter, std::move(args), in_.type(parts[i]).sizes);
    }
  }

  ValueId flat(const Node& n, ValueId x) {
    const Sizes sizes{in_.type(x).numel()};
    return step(n, op::reshape, {Ref{x}, sizes}, sizes);
  }
  ValueId from_element(const Node& n, ValueId x, sym::Expr first) {
    const ValueId all = flat(n, x);
    if (first.is_const(0)) return all;
    const sym::Expr count = in_.type(all).sizes[0];
    return step(n, op::slice_Tensor, {Ref{all}, sym::Expr(0), first, count, sym::Expr(1)}, {count - first});
  }
  // By index: ATen's operator of that name takes offsets in the memory that it is given.
  void as_strided_scatter(Node n) {
    const std::vector<Arg> a = n.args;
    const Sizes sizes = ops::as_sizes(a[2]), strides = ops::as_sizes(a[3]);
    const ValueId x = ops::as_value(a[0]), all = flat(n, x), values = flat(n, ops::as_value(a[1]));
    Builder b(in_, n.location);
    ValueId indices = b.full({}, ops::as_expr(a[4]), DType::kI64, in_.type(x).device);
    for (size_t d = 0; d < sizes.size(); ++d) {
      Sizes one(sizes.size(), 1);
      one[d] = sizes[d];
      const ValueId steps = b.iota(sizes[d], sym::Expr(0), strides[d], DType::kI64, in_.type(x).device);
      indices = b.add(indices, b.reshape(steps, one));
    }
    indices = b.reshape(indices, {in_.type(values).sizes[0]});
    const ValueId put =
        step(n, op::index_put, {Ref{all}, RefList{Ref{indices}}, Ref{values}, false}, in_.type(all).sizes);
    last(std::move(n), op::reshape, {Ref{put}, in_.type(x).sizes});
  }

  void translate(Node n) {
    const std::vector<Arg> a = n.args;
    const auto none = None{};
    switch (n.op->prim) {
      case Prim::permute:
        return last(std::move(n), op::permute, {a[0], a[1]});
      case Prim::reshape:
        return last(std::move(n), op::reshape, {a[0], a[1]});
      case Prim::flip:
        return last(std::move(n), op::flip, {a[0], a[1]});
      case Prim::diagonal:
        return last(std::move(n), op::diagonal, {a[0], a[1], a[2], a[3]});
      case Prim::cat:
        return last(std::move(n), op::cat, {a[0], a[1]});
      case Prim::copy:
        return last(std::move(n), op::clone, {a[0], none});
      case Prim::convert:
        return last(std::move(n), op::_to_copy, {a[0], a[1], none, none, none, false, none});
      case Prim::full:
        return last(std::move(n), op::full, {a[0], a[1], a[2], none, a[3], none});
      case Prim::broadcast: {
        const std::vector<int64_t> dims = ops::as_ints(a[2]);
        const TensorType x = in_.type(ops::as_value(a[0]));
        std::vector<int64_t> order(dims.size());
        std::iota(order.begin(), order.end(), int64_t{0});
        std::sort(order.begin(), order.end(), [&](int64_t i, int64_t k) { return dims[i] < dims[k]; });
        Sizes sizes(in_.type(n.outs[0]).rank(), 1), sorted;
        for (size_t i = 0; i < dims.size(); ++i) sizes[dims[i]] = x.sizes[i];
        for (int64_t i : order) sorted.push_back(x.sizes[i]);
        const ValueId permuted = step(n, op::permute, {a[0], int_list(order)}, sorted);
        const ValueId stretched = step(n, op::reshape, {Ref{permuted}, sizes}, sizes);
        return last(std::move(n), op::expand, {Ref{stretched}, a[1], false});
      }
      case Prim::slice: {
        const Cut cut{ops::as_sizes(a[1]), ops::as_sizes(a[2]), ops::as_sizes(a[3])};
        ValueId x = ops::as_value(a[0]);
        for (size_t d : cut.dims(in_.type(x).sizes)) x = cut_dim(n, x, cut, d);
        return last(std::move(n), op::clone, {Ref{x}, none});
      }
      case Prim::slice_scatter:
        return slice_scatter(std::move(n));
      case Prim::as_strided: {
        // From the first element on, wherever the memory lies.
        const ValueId rest = from_element(n, ops::as_value(a[0]), ops::as_expr(a[3]));
        return last(std::move(n), op::as_strided, {Ref{rest}, a[1], a[2], none});
      }
      case Prim::as_strided_scatter:
        return as_strided_scatter(std::move(n));
      default:
        throw Declined("complex numbers in " + n.op->name);
    }
  }

  Graph in_;
};

}  // namespace

Graph lower_complex(Graph core) { return Translator(std::move(core)).run(); }

}  // namespace flashover::graph
