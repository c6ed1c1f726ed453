// A walk over autograd's graph of trace tensors (outside.h).
#include "trace/outside.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>
#include <vector>

#include "trace/tensor.h"

namespace flashover::trace {
namespace {

namespace autograd = torch::autograd;

// Where histories end that eager computed before the call (session.cpp).
std::vector<const autograd::Node*> outer_gradients(PyObject* outputs) {
  std::vector<autograd::Node*> todo;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); ++i)
    if (PyObject* o = PyTuple_GET_ITEM(outputs, i); THPVariable_Check(o))
      if (autograd::Node* node = autograd::impl::gradient_edge(THPVariable_Unpack(o)).function.get())
        todo.push_back(node);
  std::vector<const autograd::Node*> found;
  std::unordered_set<const autograd::Node*> seen;
  while (!todo.empty()) {
    autograd::Node* node = todo.back();
    todo.pop_back();
    if (!seen.insert(node).second) continue;
    if (node->name() == "FlashoverOuterGradient") found.push_back(node);
    for (const autograd::Edge& e : node->next_edges())
      if (e.is_valid()) todo.push_back(e.function.get());
  }
  return found;
}

}  // namespace

bool leads_outside(PyObject* outputs, PyObject* inputs) {
  if (!PyTuple_Check(outputs) || !PyTuple_Check(inputs)) return true;
  for (const autograd::Node* outer : outer_gradients(outputs))
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i) {
      PyObject* o = PyTuple_GET_ITEM(inputs, i);
      const TraceImpl* impl = THPVariable_Check(o) ? trace_impl(THPVariable_Unpack(o)) : nullptr;
      if (!impl) return true;
      // What the trace made lies on this side.
      if (impl->input >= 0 && autograd::impl::gradient_edge(THPVariable_Unpack(o)).function.get() != outer) return true;
    }
  return false;
}

}  // namespace flashover::trace
