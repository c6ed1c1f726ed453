// How what a capture left open is closed again, the last first.
#include "frame/interpret/context.h"

#include <algorithm>

#include "frame/observe.h"

namespace flashover::frame {

void Locks::undo() {
  for (; !held.empty(); held.pop_back()) {
    Ref done = Ref::steal(PyObject_CallMethod(held.back().lock.get(), "release", nullptr));
    PyErr_Clear();
  }
}

void TorchModes::leave_inference_modes() {
  for (; !inference_modes.empty(); inference_modes.pop_back()) {
    const InferenceMode& last = inference_modes.back();
    if (!last.entered) continue;
    Ref done = Ref::steal(PyObject_CallMethod(last.guard.get(), "__exit__", "OOO", Py_None, Py_None, Py_None));
    PyErr_Clear();
  }
}

void TorchModes::undo() {
  leave_inference_modes();
  for (; !dual_levels.empty(); dual_levels.pop_back()) {
    Ref torch_c = Ref::steal(PyImport_ImportModule("torch._C"));
    Ref names = Ref::steal(Py_BuildValue("(s)", "level"));
    Ref leave = Ref::steal(torch_c ? PyObject_GetAttrString(torch_c.get(), "_exit_dual_level") : nullptr);
    PyObject* args[2] = {nullptr, dual_levels.back().get()};
    Ref done = Ref::steal(leave && names ? PyObject_Vectorcall(leave.get(), args + 1, 0, names.get()) : nullptr);
    PyErr_Clear();
  }
}

void Warnings::save() {
  filters_before = Ref::borrow(of_module("warnings", "filters"));
  printer_before = Ref::borrow(of_module("warnings", "_showwarnmsg_impl"));
}

bool Warnings::filters_of_before() const { return of_module("warnings", "filters") == filters_before.get(); }
bool Warnings::recorded() const { return of_module("warnings", "_showwarnmsg_impl") != printer_before.get(); }

bool Warnings::printed() const {
  static PyObject* const original = Py_XNewRef(of_module("warnings", "_showwarning_orig"));
  PyObject* printer = of_module("warnings", "_showwarnmsg_impl");
  return printer != nullptr && PyFunction_Check(printer) && of_module("warnings", "showwarning") == original;
}

Path CaptureContext::before_what_is_open(bool variables_changed, Path path) const {
  const auto earlier = [&path](const Path& other) {
    const auto before = [](const Ordinal& a, const Ordinal& b) { return a.count < b.count; };
    if (path.empty() || std::lexicographical_compare(other.begin(), other.end(), path.begin(), path.end(), before))
      path = other;
  };
  if (!torch.saved_hooks.empty()) earlier(torch.saved_hooks.front());
  if (!locks.held.empty()) earlier(locks.held.front().path);
  if (variables_changed && !variable_path.empty()) earlier(variable_path);
  return path;
}

void CaptureContext::undo() {
  locks.undo();
  torch.undo();
}

}  // namespace flashover::frame
