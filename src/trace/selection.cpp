// Selective checkpointing: the program's policy is asked, for each operator that is recorded, whether the result is
// kept for the backward or made again. The answer becomes part of the node's location (graph::Location) and so
// reaches the partitioner. As under torch.compile the policy runs while the program is compiled, not in each call.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <new>

#include "base/check.h"
#include "ops/names.h"
#include "trace/no_memory.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

namespace py = pybind11;

// Operators that torch's dispatch modes for checkpoints pass by.
bool is_passed_by(const std::string& name) { return name == op::detach || name == "prim.device.default"; }

graph::Selection selection(py::handle answer) {
  if (py::isinstance<py::bool_>(answer))
    return answer.cast<bool>() ? graph::Selection::kSave : graph::Selection::kAgain;
  if (!py::hasattr(answer, "name")) throw Declined("a checkpoint policy that returns no CheckpointPolicy");
  const auto name = answer.attr("name").cast<std::string>();
  if (name == "MUST_SAVE") return graph::Selection::kSave;
  if (name == "PREFER_SAVE") return graph::Selection::kPreferSave;
  return graph::Selection::kAgain;  // eager keeps nothing else
}

py::object ask(py::handle policy, const c10::OperatorHandle& op, const Stack& stack, size_t base) {
  const py::handle function = torch::detail::getTorchApiFunction(op);
  if (PyList_Check(policy.ptr())) return py::bool_(PySequence_Contains(policy.ptr(), function.ptr()) == 1);
  py::list args;
  py::dict named;
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = stack[base + i];
    if (!arguments[i].kwarg_only()) {
      args.append(torch::jit::toPyObject(value));
    } else if (!value.isNone()) {
      named[arguments[i].name().c_str()] = torch::jit::toPyObject(value);
    }
  }
  const py::object context =
      py::module_::import("torch.utils.checkpoint").attr("SelectiveCheckpointContext")(py::arg("is_recompute") = false);
  return policy(context, function, *args, **named);
}

}  // namespace

void Recorder::select(PyObject* policy) {
  if (policy == policy_) return;
  const py::gil_scoped_acquire gil;
  Py_XINCREF(policy);
  Py_XSETREF(policy_, policy);
  selected_ = graph::Selection::kAgain;
}

void Recorder::ask_policy(const OpFacts& facts, const Stack& stack, size_t base) {
  selected_ = graph::Selection::kAgain;
  if (is_passed_by(facts.schema.name) || facts.composite || facts.per_tensor) return;
  const py::gil_scoped_acquire gil;
  const InternalScope native;  // not interpreted: what it looks at and writes is no part of the program
  try {
    selected_ = selection(ask(policy_, facts.schema.handle, stack, base));
  } catch (py::error_already_set& error) {
    if (says_no_memory(error)) throw std::bad_alloc();
    throw Declined(std::string("a checkpoint policy raised ") + error.what());
  }
}

}  // namespace flashover::trace
