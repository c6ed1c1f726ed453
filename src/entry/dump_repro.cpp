// Hands a graph and its inputs to Python, which writes the program.
#include "entry/dump_repro.h"

#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/python_variable.h>

#include "base/check.h"
#include "entry/log.h"
#include "entry/python_graph.h"
#include "frame/fetched_error.h"
#include "torch/convert.h"

namespace flashover::entry {
namespace {

void append(PyObject* list, PyObject* steal) {
  const Reference item(steal);
  if (PyList_Append(list, item.p) != 0) throw python_error();
}

PyObject* repro_inputs(const graph::Graph& g, const std::vector<at::Tensor>& examples) {
  Reference list(PyList_New(0));
  size_t next = 0;
  for (const graph::Input& in : g.inputs) {
    const TensorType& t = g.type(in.value);
    const bool tangent = in.kind == graph::InputKind::kTangent;
    const auto options = at::TensorOptions().dtype(aten::to_aten(t.dtype)).device(aten::to_aten(t.device));
    append(list.p, THPVariable_Wrap(tangent ? at::ones(aten::to_ints(t.sizes), options) : examples.at(next++)));
  }
  return list.release();
}

PyObject* options_as_dict(const OptionValues& options) {
  Reference dict(PyDict_New());
  for (const auto& [name, value] : options) {
    const Reference text(PyUnicode_FromString(value.c_str()));
    if (PyDict_SetItemString(dict.p, name.c_str(), text.p) != 0) throw python_error();
  }
  return dict.release();
}

}  // namespace

void dump_repro(int number, const std::string& name, const graph::Graph& g, const std::vector<at::Tensor>& examples,
                const OptionValues& options) {
  frame::FetchedError pending;
  try {
    const Reference description(to_python(g)), tensors(repro_inputs(g, examples)), given(options_as_dict(options));
    const Reference module(PyImport_ImportModule("flashover._dump"));
    const Reference done(
        PyObject_CallMethod(module.p, "write_repro", "isOOO", number, name.c_str(), description.p, tensors.p, given.p));
  } catch (python_error&) {
    PyErr_Clear();
    log_line("FLASHOVER_DUMP: no program for graph " + std::to_string(number) + " of " + name);
  } catch (const Declined&) {  // its sizes are symbols
  } catch (const std::exception& e) {
    log_line("FLASHOVER_DUMP: no program for graph " + std::to_string(number) + " of " + name + ": " + e.what());
  }
  pending.restore();
}

}  // namespace flashover::entry
