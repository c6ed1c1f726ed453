// Each is one element seen as many times as its sizes say, a result of the node that puts a gradient together.
#include "entry/wrapped_inputs.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "base/check.h"
#include "entry/python_graph.h"
#include "torch/convert.h"

namespace flashover::entry {
namespace {

// Gradients of results are inputs of the graph, too, and not of its forward.
size_t position(const frame::Capture& c, int32_t input) {
  return static_cast<size_t>(
      std::count_if(c.graph.inputs.begin(), c.graph.inputs.begin() + input,
                    [](const graph::Input& in) { return in.kind != graph::InputKind::kTangent; }));
}

at::Tensor of_type(const TensorType& type, const frame::Capture& c, const at::Tensor* inputs) {
  const auto value = [&](sym::Expr variable) {
    const auto symbol = sym::size_symbol_index(variable);
    FLASHOVER_CHECK(symbol && static_cast<size_t>(*symbol) < c.size_sources.size()) << "a size of a gradient";
    const auto [input, dim] = c.size_sources[static_cast<size_t>(*symbol)];
    const at::Tensor& of = inputs[position(c, input)];
    const auto at = static_cast<int64_t>(dimension_of_part(static_cast<size_t>(dim)));
    return is_stride_part(static_cast<size_t>(dim)) ? of.stride(at) : of.size(at);
  };
  std::vector<int64_t> sizes;
  for (sym::Expr e : type.sizes) sizes.push_back(sym::evaluate(e, value));
  return at::empty({1}, at::TensorOptions().dtype(aten::to_aten(type.dtype)).device(aten::to_aten(type.device)))
      .expand(sizes);
}

PyObject* function_of_ours(const char* name) {
  PyObject* module = PyImport_ImportModule("flashover._subclasses");
  PyObject* f = module != nullptr ? PyObject_GetAttrString(module, name) : nullptr;
  Py_XDECREF(module);
  if (f == nullptr) throw python_error();
  return f;
}

}  // namespace

void make_wrapped_inputs(const Entry& e, PyObject* const* objects, at::Tensor* inputs, std::vector<PyObject*>* forms) {
  const frame::Capture& c = e.capture;
  for (const frame::WrappedInput& w : c.wrapped_gradients) {
    const Reference parts(PyTuple_New(static_cast<Py_ssize_t>(w.inputs.size())));
    {
      const c10::AutoGradMode none(false);
      for (size_t i = 0; i < w.inputs.size(); ++i) {
        at::Tensor& t = inputs[position(c, w.inputs[i])];
        t = of_type(c.graph.type(c.graph.inputs[static_cast<size_t>(w.inputs[i])].value), c, inputs);
        if (forms) PyTuple_SET_ITEM(parts.p, static_cast<Py_ssize_t>(i), THPVariable_Wrap(t));
      }
    }
    if (!forms) continue;
    static PyObject* const join = function_of_ours("join");
    forms->push_back(PyList_New(0));
    const Reference made(PyObject_CallFunctionObjArgs(join, objects[w.of], forms->back(), parts.p, nullptr));
    if (!made.p) throw python_error();
    for (size_t i = 0; i < w.inputs.size(); ++i)
      inputs[position(c, w.inputs[i])] = THPVariable_Unpack(PyTuple_GET_ITEM(made.p, static_cast<Py_ssize_t>(i)));
  }
}

}  // namespace flashover::entry
