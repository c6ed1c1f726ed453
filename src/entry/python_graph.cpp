// Builds tuples, lists and strings; no type of ours reaches Python here.
#include "entry/python_graph.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include "base/check.h"
#include "frame/size_expression.h"
#include "graph/checkpoint.h"
#include "ops/names.h"

namespace flashover::entry {
namespace {

PyObject* new_ref(PyObject* o) { return Py_NewRef(o); }

PyObject* text(const std::string& s) {
  return PyUnicode_FromStringAndSize(s.data(), static_cast<Py_ssize_t>(s.size()));
}

PyObject* reference(ValueId v) { return v == kNoValue ? Py_NewRef(Py_None) : Py_BuildValue("(i)", v); }

template <typename T, typename F>
PyObject* list(const T& items, F&& make) {
  PyObject* out = PyList_New(0);
  for (const auto& item : items) {
    PyObject* o = out ? make(item) : nullptr;
    if (!o || PyList_Append(out, o) != 0) {
      Py_XDECREF(o);
      Py_XDECREF(out);
      return nullptr;
    }
    Py_DECREF(o);
  }
  return out;
}

struct ToPython {
  bool symbols;  // sizes may be such
  PyObject* integer(sym::Expr e) const {
    if (!symbols && !e.is_const()) throw Declined("custom backend: symbolic sizes");
    return frame::size_expression(e);
  }
  PyObject* operator()(None) const { return Py_NewRef(Py_None); }
  PyObject* operator()(Ref r) const { return reference(r.id); }
  PyObject* operator()(const RefList& l) const {
    return list(l, [](Ref r) { return reference(r.id); });
  }
  PyObject* operator()(sym::Expr e) const { return integer(e); }
  PyObject* operator()(const Sizes& s) const {
    return list(s, [this](sym::Expr e) { return integer(e); });
  }
  PyObject* operator()(double d) const { return PyFloat_FromDouble(d); }
  PyObject* operator()(const std::vector<double>& l) const { return list(l, PyFloat_FromDouble); }
  PyObject* operator()(bool b) const { return PyBool_FromLong(b); }
  PyObject* operator()(const std::vector<bool>& l) const {
    return list(l, [](bool b) { return PyBool_FromLong(b); });
  }
  PyObject* operator()(std::complex<double> c) const { return PyComplex_FromDoubles(c.real(), c.imag()); }
  PyObject* operator()(const std::string& s) const { return text(s); }
  PyObject* operator()(DType d) const {
    return new_ref(reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<at::ScalarType>(d))));
  }
  PyObject* operator()(Device d) const {
    return THPDevice_New(at::Device(static_cast<at::DeviceType>(d.type), d.index));
  }
  PyObject* operator()(Layout) const { return new_ref(reinterpret_cast<PyObject*>(torch::getTHPLayout(at::kStrided))); }
  PyObject* operator()(MemoryFormat f) const {
    return new_ref(torch::utils::getTHPMemoryFormat(static_cast<at::MemoryFormat>(f)));
  }
};

}  // namespace

PyObject* to_python(const graph::Graph& g, bool sizes) {
  PyObject* inputs = list(g.inputs, [](const graph::Input& i) {
    return Py_BuildValue("(iis)", i.value, static_cast<int>(i.kind), i.name.c_str());
  });
  PyObject* nodes =
      inputs ? list(g.nodes,
                    [&](const graph::Node& n) -> PyObject* {
                      PyObject* args = list(n.args, [sizes](const Arg& a) { return std::visit(ToPython{sizes}, a); });
                      PyObject* outs = args ? list(n.outs, [](ValueId v) { return PyLong_FromLong(v); }) : nullptr;
                      if (!outs) {
                        Py_XDECREF(args);
                        return nullptr;
                      }
                      const std::string where =
                          n.location >= 0 ? graph::str(g.facts.locations[static_cast<size_t>(n.location)]) : "";
                      return Py_BuildValue("(sNNs)", n.op->name.c_str(), args, outs, where.c_str());
                    })
             : nullptr;
  PyObject* outputs =
      nodes ? list(g.outputs, [](const graph::Output& o) { return PyLong_FromLong(o.value); }) : nullptr;
  if (!outputs) {
    Py_XDECREF(inputs);
    Py_XDECREF(nodes);
    return nullptr;
  }
  std::vector<ValueId> weak;  // numbers that promote as Python's do
  for (const graph::Node& n : g.nodes)
    for (ValueId v : n.outs)
      if (v != kNoValue && n.op->prim == Prim::full && g.type(v).wrapped_number) weak.push_back(v);
  PyObject* numbers = list(weak, [](ValueId v) { return PyLong_FromLong(v); });
  PyObject* memory = list(g.values, [](const graph::Value& v) { return PyLong_FromLong(v.storage); });
  return Py_BuildValue("{s:N,s:N,s:N,s:N,s:N}", "inputs", inputs, "nodes", nodes, "outputs", outputs, "weak", numbers,
                       "memory", memory);
}

PyObject* places_of_symbols(const graph::Graph& g) {
  Reference out(PyDict_New());
  const auto note = [&](ValueId v, const Sizes& of, bool stride) {
    for (size_t d = 0; d < of.size(); ++d) {
      if (of[d].kind() != sym::Kind::kVar) continue;
      const std::string name(of[d].name());
      if (PyDict_GetItemString(out.p, name.c_str())) continue;
      Reference place(Py_BuildValue("(iii)", v, static_cast<int>(d), stride ? 1 : 0));
      if (PyDict_SetItemString(out.p, name.c_str(), place.p) != 0) throw python_error();
    }
  };
  for (const bool stride : {false, true}) {
    const auto note_value = [&](ValueId v) {
      if (v != kNoValue) note(v, stride ? g.type(v).strides : g.type(v).sizes, stride);
    };
    for (const graph::Input& in : g.inputs) note_value(in.value);
    for (const graph::Node& n : g.nodes)
      for (const ValueId v : n.outs) note_value(v);
  }
  return out.release();
}

}  // namespace flashover::entry
