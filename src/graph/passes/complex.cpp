#include "graph/passes/complex.h"

#include <algorithm>

#include "base/check.h"
#include "graph/builder.h"
#include "graph/passes/replace.h"
#include "ops/args.h"

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
      if (complex && n.op->is_prim)
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

  void translate(Node n) {
    const std::string_view name = std::string_view(n.op->name).substr(5);
    const std::vector<Arg> a = n.args;
    const auto none = std::monostate{};
    if (name == "permute") return last(std::move(n), "aten.permute.default", {a[0], a[1]});
    if (name == "reshape") return last(std::move(n), "aten.reshape.default", {a[0], a[1]});
    if (name == "flip") return last(std::move(n), "aten.flip.default", {a[0], a[1]});
    if (name == "diagonal") return last(std::move(n), "aten.diagonal.default", {a[0], a[1], a[2], a[3]});
    if (name == "cat") return last(std::move(n), "aten.cat.default", {a[0], a[1]});
    if (name == "copy") return last(std::move(n), "aten.clone.default", {a[0], none});
    if (name == "convert")
      return last(std::move(n), "aten._to_copy.default", {a[0], a[1], none, none, none, false, none});
    if (name == "full") return last(std::move(n), "aten.full.default", {a[0], a[1], a[2], none, a[3], none});
    if (name == "broadcast") {
      const std::vector<int64_t> dims = ops::as_ints(a[2]);
      const TensorType x = in_.type(ops::as_value(a[0]));
      if (!std::is_sorted(dims.begin(), dims.end())) throw Declined("complex numbers in prim.broadcast that permutes");
      Sizes sizes(in_.type(n.outs[0]).rank(), 1);
      for (size_t i = 0; i < dims.size(); ++i) sizes[dims[i]] = x.sizes[i];
      const ValueId stretched = step(n, "aten.reshape.default", {a[0], sizes}, sizes);
      return last(std::move(n), "aten.expand.default", {Ref{stretched}, a[1], false});
    }
    if (name == "slice") {
      const Sizes starts = ops::as_sizes(a[1]), ends = ops::as_sizes(a[2]), steps = ops::as_sizes(a[3]);
      ValueId x = ops::as_value(a[0]);
      const Sizes wanted = in_.type(n.outs[0]).sizes;
      Sizes sizes = in_.type(x).sizes;
      for (size_t d = 0; d < starts.size(); ++d) {
        if (starts[d].is_const(0) && steps[d].is_const(1) && sym::known_eq(ends[d], sizes[d])) continue;
        sizes[d] = wanted[d];
        x = step(n, "aten.slice.Tensor", {Ref{x}, sym::Expr(static_cast<int64_t>(d)), starts[d], ends[d], steps[d]},
                 sizes);
      }
      return last(std::move(n), "aten.clone.default", {Ref{x}, none});
    }
    if (name == "slice_scatter") {
      const Sizes starts = ops::as_sizes(a[2]), ends = ops::as_sizes(a[3]), steps = ops::as_sizes(a[4]);
      const Sizes sizes = in_.type(ops::as_value(a[0])).sizes;
      size_t cut = sizes.size();
      for (size_t d = 0; d < sizes.size(); ++d) {
        if (starts[d].is_const(0) && steps[d].is_const(1) && sym::known_eq(ends[d], sizes[d])) continue;
        if (cut < sizes.size()) throw Declined("complex numbers in prim.slice_scatter over several dims");
        cut = d;
      }
      if (cut == sizes.size()) return last(std::move(n), "aten.clone.default", {a[1], none});
      return last(std::move(n), "aten.slice_scatter.default",
                  {a[0], a[1], sym::Expr(static_cast<int64_t>(cut)), starts[cut], ends[cut], steps[cut]});
    }
    throw Declined("complex numbers in " + n.op->name);
  }

  Graph in_;
};

}  // namespace

Graph complex_externs(Graph core) { return Translator(std::move(core)).run(); }

}  // namespace flashover::graph
