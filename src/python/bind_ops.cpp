// The operator table for tests: type rules and decompositions of single calls, over plain Python data.
//
// A tensor is ("tensor", dtype, sizes, strides, offset, wrapped_number), dtype a c10 number; other tagged arguments are
// ("dtype", n), ("layout", n), ("format", n), ("device", type, index); the rest are plain Python values.
#include <pybind11/complex.h>
#include <pybind11/stl.h>

#include "base/check.h"
#include "graph/builder.h"
#include "graph/decompose/decompose.h"
#include "ops/ops.h"
#include "python/bind.h"

namespace py = pybind11;

namespace flashover {

py::object constants(const Sizes& s) {
  py::list out;
  for (sym::Expr e : s) out.append(e.value());
  return out;
}

py::object to_python(const Arg& a) {
  struct Visitor {
    py::object operator()(None) const { return py::none(); }
    py::object operator()(Ref r) const {
      return r.id == kNoValue ? py::object(py::none()) : py::make_tuple("ref", r.id);
    }
    py::object operator()(const RefList& l) const {
      py::list out;
      for (Ref r : l) out.append((*this)(r));
      return out;
    }
    py::object operator()(sym::Expr e) const {
      return e.is_const() ? py::object(py::int_(e.value())) : py::object(py::make_tuple("size", e.str()));
    }
    py::object operator()(const Sizes& s) const {
      py::list out;
      for (sym::Expr e : s) out.append((*this)(e));
      return out;
    }
    py::object operator()(DType d) const { return py::make_tuple("dtype", static_cast<int>(d)); }
    py::object operator()(Device d) const { return py::make_tuple("device", static_cast<int>(d.type), d.index); }
    py::object operator()(Layout l) const { return py::make_tuple("layout", static_cast<int>(l)); }
    py::object operator()(MemoryFormat f) const { return py::make_tuple("format", static_cast<int>(f)); }
    py::object operator()(const std::string& s) const { return py::str(s); }
    py::object operator()(const std::vector<bool>& v) const { return py::cast(v); }
    py::object operator()(const std::vector<double>& v) const { return py::cast(v); }
    py::object operator()(bool v) const { return py::bool_(v); }
    py::object operator()(double v) const { return py::float_(v); }
    py::object operator()(std::complex<double> v) const { return py::cast(v); }
  };
  return std::visit(Visitor{}, a);
}

namespace {

// Reads arguments; tensors become inputs of a graph.
class Reader {
 public:
  graph::Graph graph{graph::kNewProgram};

  Arg read(const py::handle& h) {
    if (h.is_none()) return {};
    if (py::isinstance<py::bool_>(h)) return h.cast<bool>();
    if (py::isinstance<py::int_>(h)) return sym::Expr(h.cast<int64_t>());
    if (py::isinstance<py::float_>(h)) return h.cast<double>();
    if (py::isinstance<py::str>(h)) return h.cast<std::string>();
    if (py::isinstance<py::tuple>(h)) return tagged(py::reinterpret_borrow<py::tuple>(h));
    if (py::isinstance<py::list>(h)) return list(py::reinterpret_borrow<py::list>(h));
    return h.cast<std::complex<double>>();
  }

 private:
  Arg tagged(const py::tuple& t) {
    auto tag = t[0].cast<std::string>();
    if (tag == "tensor") return Ref{tensor(t)};
    if (tag == "dtype") return static_cast<DType>(t[1].cast<int>());
    if (tag == "layout") return static_cast<Layout>(t[1].cast<int>());
    if (tag == "format") return static_cast<MemoryFormat>(t[1].cast<int>());
    if (tag == "device") return Device{static_cast<DeviceType>(t[1].cast<int>()), t[2].cast<int8_t>()};
    throw UserError("unknown argument tag: " + tag);
  }
  Arg list(const py::list& l) {
    bool tensors = false, reals = false, flags = !l.empty();
    for (const py::handle& h : l) {
      tensors |= h.is_none() || py::isinstance<py::tuple>(h);
      reals |= py::isinstance<py::float_>(h);
      flags &= py::isinstance<py::bool_>(h);
    }
    if (tensors) {
      RefList refs;
      for (const py::handle& h : l) refs.push_back(h.is_none() ? Ref{} : Ref{tensor(h.cast<py::tuple>())});
      return refs;
    }
    if (reals) return l.cast<std::vector<double>>();
    if (flags) return l.cast<std::vector<bool>>();
    Sizes sizes;
    for (const py::handle& h : l) sizes.emplace_back(h.cast<int64_t>());
    return sizes;
  }
  ValueId tensor(const py::tuple& t) {
    TensorType type;
    type.dtype = static_cast<DType>(t[1].cast<int>());
    for (int64_t s : t[2].cast<std::vector<int64_t>>()) type.sizes.emplace_back(s);
    for (int64_t s : t[3].cast<std::vector<int64_t>>()) type.strides.emplace_back(s);
    type.offset = t[4].cast<int64_t>();
    type.wrapped_number = t[5].cast<bool>();
    return graph.add_input(std::move(type), graph::InputKind::kUser, "");
  }
};

py::tuple write_type(const TensorType& t) {
  return py::make_tuple(static_cast<int>(t.dtype), constants(t.sizes), constants(t.strides), t.offset.value());
}
// [(dtype, sizes, strides, offset)] or None when there is no rule or the rule does not know the case.
py::object infer(const std::string& name, const py::list& args, int default_dtype) {
  const ops::OpRow* op = ops::find_existing(name);
  if (!op || !op->infer) return py::none();
  Reader reader;
  std::vector<Arg> read;
  for (const py::handle& h : args) read.push_back(reader.read(h));
  ops::InferContext context = graph::infer_context(reader.graph, read);
  context.default_dtype = static_cast<DType>(default_dtype);
  std::vector<TensorType> outs;
  if (!op->infer(context, outs)) return py::none();
  py::list result;
  for (const TensorType& t : outs) result.append(write_type(t));
  return result;
}

std::vector<TensorType> types_of(const py::list& outs) {
  std::vector<TensorType> types;
  for (const py::handle& h : outs) {
    TensorType type;
    if (h.is_none()) {  // a result that nobody has
      types.push_back(std::move(type));
      continue;
    }
    auto t = h.cast<py::tuple>();
    type.dtype = static_cast<DType>(t[0].cast<int>());
    for (int64_t s : t[1].cast<std::vector<int64_t>>()) type.sizes.emplace_back(s);
    for (int64_t s : t[2].cast<std::vector<int64_t>>()) type.strides.emplace_back(s);
    types.push_back(std::move(type));
  }
  return types;
}

// Decomposes one call. outs: [(dtype, sizes, strides)] of the call. None when the operator stays extern, else
// {"inputs": n, "nodes": [(op, args, out ids, out types)], "outs": [value id or -1], "text": the graph}.
py::object decompose(const std::string& name, const py::list& args, const py::list& outs) {
  const ops::OpRow* op = ops::find(name);
  graph::Decomposition build = graph::find_decomposition(op);
  if (!build) return py::none();
  Reader reader;
  std::vector<Arg> read;
  for (const py::handle& h : args) read.push_back(reader.read(h));
  const size_t inputs = reader.graph.inputs.size();
  reader.graph.add_node(op, read, types_of(outs));
  for (size_t i = 0; i < outs.size(); ++i)
    if (outs[i].is_none()) reader.graph.nodes.back().outs[i] = kNoValue;
  const graph::Node node = reader.graph.nodes.back();
  reader.graph.nodes.pop_back();
  graph::Builder b(reader.graph);
  std::vector<ValueId> results;
  if (!build(b, node, results)) {
    FLASHOVER_CHECK(reader.graph.nodes.empty()) << name << ": declined after appending nodes";
    return py::none();
  }
  py::list nodes;
  for (const graph::Node& n : reader.graph.nodes) {
    py::list node_args, node_types;
    for (const Arg& a : n.args) node_args.append(to_python(a));
    for (ValueId v : n.outs) node_types.append(write_type(reader.graph.type(v)));
    nodes.append(py::make_tuple(n.op->name, node_args, n.outs, node_types));
  }
  py::dict result;
  result["inputs"] = inputs;
  result["nodes"] = nodes;
  result["outs"] = results;
  result["text"] = graph::print(reader.graph);
  return result;
}

// The text of a traced graph that makes one call and returns its results; outs as for decompose().
std::string call_graph(const std::string& name, const py::list& args, const py::list& outs) {
  Reader reader;
  std::vector<Arg> read;
  for (const py::handle& h : args) read.push_back(reader.read(h));
  graph::Graph& g = reader.graph;
  int32_t storages = 0;
  for (const graph::Input& i : g.inputs) g.values[i.value].storage = storages++;
  std::vector<ValueId> results = g.add_node(ops::find(name), std::move(read), types_of(outs)).outs;
  for (ValueId v : results) {
    g.values[v].storage = storages++;
    g.outputs.push_back({.kind = graph::Output::Kind::kValue, .value = v, .type = g.type(v)});
  }
  return graph::print(g);
}

py::list op_names() {
  py::list out;
  for (const ops::OpRow* op : ops::all())
    out.append(py::make_tuple(op->name, op->infer != nullptr, graph::find_decomposition(op) != nullptr,
                              op->kind == ops::OpKind::kPointwise));
  return out;
}

// Of the operators with a table row: what they write (bits by argument), their twin, whether that drops what is
// written, whether results are views.
py::dict op_effects() {
  py::dict out;
  for (const ops::OpRow* op : ops::all())
    if (op->declared && !op->is_prim())
      out[py::str(op->name)] =
          py::make_tuple(op->mutates, op->functional ? op->functional->name : "", op->drops_mutated, op->is_aten_view);
  return out;
}

}  // namespace

void bind_ops(py::module_& m) {
  m.def("infer", &infer, py::arg("op"), py::arg("args"), py::arg("default_dtype") = static_cast<int>(DType::kF32));
  m.def("decompose", &decompose);
  m.def("call_graph", &call_graph);
  m.def("op_effects", &op_effects);
  m.def("op_names", &op_names,
        "(name, has a type rule, has a decomposition, is pointwise) of every operator seen so far");
}

}  // namespace flashover
