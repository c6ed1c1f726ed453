// Functions of torch that are no operators: switches of torch's state, levels and modes, autograd's engine, records.
#include <cstring>

#include "frame/interpret/instructions.h"
#include "frame/interpret/native_handlers.h"
#include "frame/own_calls.h"
#include "trace/aside.h"
#include "trace/outside.h"

namespace flashover::frame {

namespace {
bool is_list_of_atoms(PyObject* o) {
  if (!PyList_CheckExact(o)) return false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(o); ++i)
    if (!is_atom(PyList_GET_ITEM(o, i))) return false;
  return true;
}
}  // namespace

// Reads some state of the process or the thread that may be another one on the next call.
PyObject* do_state(const NativeCall& c) {
  Ref result = Ref::steal(c.run());
  if (!result) return nullptr;
  const size_t count = c.all_nargs + (c.kwnames == nullptr ? 0 : static_cast<size_t>(PyTuple_GET_SIZE(c.kwnames)));
  bool plain = is_atom(result.get()) || PyTuple_CheckExact(result.get()) || is_list_of_atoms(result.get());
  for (size_t i = 0; i < count; ++i) plain = plain && (is_atom(c.all[i]) || is_pinned_kind(c.all[i]));
  if (!plain) throw Declined("call of " + callable_name(c.f));
  if (c.in.context.torch.switched) {  // what the program set itself is no state of before
    if (c.in.recorder.knows_call(c.f, c.all, count)) return result.release();
    throw Declined("call of " + callable_name(c.f) + " after a switch was set");
  }
  // (A list is the program's to write.)
  const Ref kept = PyList_CheckExact(result.get())
                       ? Ref::steal(PyList_GetSlice(result.get(), 0, PyList_GET_SIZE(result.get())))
                       : Ref::borrow(result.get());
  if (!kept) return nullptr;
  c.in.recorder.call_gives(c.f, c.all, count, c.kwnames, kept.get());
  return result.release();
}

PyObject* do_switch(const NativeCall& c) {
  c.in.context.torch.switched = true;
  return c.run();
}

// Levels of forward-mode differentiation are closed again when the capture ends.
PyObject* do_enter_dual_level(const NativeCall& c) {
  Ref level = Ref::steal(c.run());
  if (level) c.in.context.torch.dual_levels.push_back(Ref::borrow(level.get()));
  return level.release();
}

PyObject* do_exit_dual_level(const NativeCall& c) {
  if (c.in.context.torch.dual_levels.empty()) throw Declined("a dual level from before the call is left");
  Ref done = Ref::steal(c.run());
  if (done) c.in.context.torch.dual_levels.pop_back();
  return done.release();
}

PyObject* do_make_inference_mode(const NativeCall& c) {
  Ref made = Ref::steal(c.run());
  if (made)
    c.in.context.torch.inference_modes.push_back({Ref::borrow(made.get()), c.nargs == 0 || c.args[0] == Py_True});
  return made.release();
}

namespace {

PyObject* do_inference_mode(const NativeCall& c, bool enters) {
  auto& modes = c.in.context.torch.inference_modes;
  const auto at = std::find_if(modes.begin(), modes.end(), [&](const auto& m) {
    return c.nargs > 0 && m.guard.get() == c.args[0];  // (pybind11's methods are functions)
  });
  if (at == modes.end() || at->entered == enters) throw Declined("an inference mode from before the call is left");
  Ref done = Ref::steal(c.run());
  TorchModes::InferenceMode mode = std::move(*at);
  modes.erase(at);
  mode.entered = enters;
  if (enters) modes.push_back(std::move(mode));
  return done.release();
}

}  // namespace

PyObject* do_enter_inference_mode(const NativeCall& c) { return do_inference_mode(c, true); }

PyObject* do_leave_inference_mode(const NativeCall& c) { return do_inference_mode(c, false); }

// The trace turns the cache of autocast off; the program sees what it would see.
PyObject* do_autocast_cache(const NativeCall& c) {
  return c.in.context.torch.autocast_cache ? Py_NewRef(c.in.context.torch.autocast_cache.get()) : c.run();
}

PyObject* do_set_autocast_cache(const NativeCall& c) {
  if (!c.in.context.torch.autocast_cache || c.nargs != 1 || !PyBool_Check(c.args[0])) return c.run();
  c.in.context.torch.autocast_cache = Ref::borrow(c.args[0]);
  Py_RETURN_NONE;
}

// torch.Tensor._make_subclass(Parameter, data, requires_grad): a leaf of the trace. Nobody outside gets to see it
// (reconstruction.cpp), so the flag is all there is to it.
PyObject* do_make_parameter(const NativeCall& c) {
  if (c.nargs < 2 || c.args[0] != reinterpret_cast<PyObject*>(known_types().parameter) || c.in.session == nullptr ||
      !c.in.session->is_trace_tensor(c.args[1]))
    throw Declined("call of " + callable_name(c.f));
  c.in.note_retry();
  return c.run();
}

// torch.Tensor._make_wrapper_subclass(cls, size, ...): a tensor without memory, whose class says what operators do.
PyObject* do_make_wrapper(const NativeCall& c) {
  if (c.in.session == nullptr) throw Declined("call of " + callable_name(c.f));
  for (size_t i = 0; i < c.all_nargs + keyword_count(c.kwnames); ++i) c.in.consume(c.all[i]);
  Ref made = Ref::steal(c.run());
  if (made) c.in.session->add_made_subclass(made.get());
  return made.release();
}

// torch.profiler.record_function: names a stretch of the program; what is compiled has no such stretches. Entering
// answers with one record that has ended: after a graph break torch itself may be asked to end it again, which does
// nothing.
PyObject* do_record_function(const NativeCall& c) {
  if (c.nargs == 0 || !PyUnicode_Check(c.args[0])) return Py_NewRef(Py_None);  // _record_function_exit
  static PyObject* const ended = [&c] {
    const OwnCalls own(&c.in.uninterpreted);  // torch's Python frames of the two end in this function, too
    const trace::Aside aside;
    Ref torch = Ref::steal(PyImport_ImportModule("torch"));
    Ref ops = torch ? Ref::steal(PyObject_GetAttrString(torch.get(), "ops")) : Ref();
    Ref profiler = ops ? Ref::steal(PyObject_GetAttrString(ops.get(), "profiler")) : Ref();
    Ref record =
        profiler ? Ref::steal(PyObject_CallMethod(profiler.get(), "_record_function_enter_new", "s", "")) : Ref();
    Ref exit = record ? Ref::steal(PyObject_GetAttrString(profiler.get(), "_record_function_exit")) : Ref();
    Ref done = exit ? Ref::steal(PyObject_CallMethod(exit.get(), "_RecordFunction", "O", record.get())) : Ref();
    return done ? record.release() : nullptr;
  }();
  if (ended == nullptr) {
    PyErr_Clear();
    throw Declined("record_function");
  }
  c.in.recorder.constant(ended);
  return Py_NewRef(ended);
}

// torch.autograd.Function.apply: its forward is Python code; its backward is called when the trace's backward runs.
// Numbers reach both as the objects they are.
PyObject* do_autograd_apply(const NativeCall& c) {
  // Its class is asked in C++ for what runs.
  static PyObject* const names[] = {PyUnicode_InternFromString("forward"), PyUnicode_InternFromString("setup_context"),
                                    PyUnicode_InternFromString("backward"), PyUnicode_InternFromString("vjp"),
                                    PyUnicode_InternFromString("jvp")};
  if (c.self != nullptr && PyType_Check(c.self))
    for (PyObject* name : names) c.in.recorder.type_lookup(reinterpret_cast<PyTypeObject*>(c.self), name);
  for (size_t i = 0; i < c.nargs; ++i) c.in.look_through(c.args[i]);
  c.in.note_retry();
  return c.run();
}

// with torch.autograd.graph.saved_tensors_hooks(pack, unpack): part of the trace, as tensor hooks are.
PyObject* do_push_saved_hooks(const NativeCall& c) {
  if (c.nargs != 2 || c.kwnames != nullptr) return c.run();
  return c.in.push_saved_hooks(c.f, c.args, c.nargs);
}

PyObject* do_pop_saved_hooks(const NativeCall& c) {
  if (c.in.context.torch.saved_hooks.empty()) throw Declined("saved-tensor hooks from before the call are popped");
  c.in.context.torch.saved_hooks.pop_back();
  return c.run();
}

// torch.autograd.grad runs the engine over trace tensors; .backward() would leave its gradients in .grad.
// From torch 2.15 on the engine is left the context that its threads are to run in; a traced backward needs none.
PyObject* do_context_of_backward(const NativeCall& c) {
  const bool known =
      c.nargs >= 1 && PyUnicode_Check(c.args[0]) && PyUnicode_CompareWithASCIIString(c.args[0], "context") == 0;
  if (!known) throw Declined("call of " + callable_name(c.f));
  return Py_NewRef(Py_None);
}

PyObject* do_run_backward(const NativeCall& c) {
  bool accumulates = true, creates = c.nargs > 3 && c.args[3] != Py_False;
  PyObject* inputs = c.nargs > 4 ? c.args[4] : nullptr;
  for (Py_ssize_t i = 0; c.kwnames != nullptr && i < PyTuple_GET_SIZE(c.kwnames); ++i) {
    PyObject *key = PyTuple_GET_ITEM(c.kwnames, i), *value = c.args[c.nargs + static_cast<size_t>(i)];
    if (PyUnicode_CompareWithASCIIString(key, "accumulate_grad") == 0) accumulates = value != Py_False;
    if (PyUnicode_CompareWithASCIIString(key, "create_graph") == 0) creates = value != Py_False;
    if (PyUnicode_CompareWithASCIIString(key, "inputs") == 0) inputs = value;
  }
  // What leads here is differentiated twice: a graph that ended before this call could not be.
  if (creates) c.in.differentiates_twice = c.in.differentiated_twice = true;
  if (accumulates) throw Declined("call of backward(): gradients are accumulated");
  if (!c.in.input_hooks.empty()) throw Declined("a gradient under a hook that the call registered on its input");
  if (c.nargs > 0 && inputs != nullptr && trace::leads_outside(c.args[0], inputs))
    throw Declined("a gradient through what was computed before the call");
  c.in.note_retry();  // a result may lead to what this frees
  for (size_t i = 0; i < c.nargs; ++i) c.in.consume(c.args[i]);
  PyObject* gradients = c.run();
  if (gradients != nullptr) c.in.differentiates_twice = false;
  return gradients;
}

}  // namespace flashover::frame
