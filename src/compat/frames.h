// The evaluator's frames: what they run, where they stand, how they are linked and left.
// Up to 3.12 a frame knows the instruction that ran last, from 3.13 on the one that runs or is to run.
// Up to 3.13 a frame's slots, its locals and above them its stack, hold objects; from 3.14 on references with a tag.
#pragma once
#include <utility>

#include "compat/internals.h"

namespace flashover::compat {

#if PY_VERSION_HEX >= 0x030E0000

using Slot = _PyStackRef;

// Borrowed; null where the slot is empty. Not of a slot that holds the number of an instruction.
inline PyObject* object_in(Slot slot) { return PyStackRef_AsPyObjectBorrow(slot); }
// The slot has the reference from now on. Null: it is empty.
inline Slot slot_with(PyObject* owned) {
  return owned != nullptr ? PyStackRef_FromPyObjectSteal(owned) : PyStackRef_NULL;
}
// What the slot had, as a reference of the caller's own, also where a slot elsewhere had kept the object alive for it.
inline PyObject* taken_from(Slot slot) {
  if (PyStackRef_IsNull(slot)) return nullptr;
  if (PyStackRef_IsTaggedInt(slot)) return PyLong_FromSsize_t(PyStackRef_UntagInt(slot));
  return PyStackRef_AsPyObjectSteal(slot);
}
// As that, but the slot keeps what it has.
inline PyObject* copied_from(Slot slot) {
  if (PyStackRef_IsTaggedInt(slot)) return PyLong_FromSsize_t(PyStackRef_UntagInt(slot));
  return Py_XNewRef(object_in(slot));
}
// Handlers put down the number of an instruction on the stack, which is no object.
inline bool is_instruction(Slot slot) { return PyStackRef_IsTaggedInt(slot); }
inline Slot slot_with_instruction(int unit) { return PyStackRef_TagInt(unit); }

inline PyCodeObject* code_of(const _PyInterpreterFrame* f) {
  return reinterpret_cast<PyCodeObject*>(object_in(f->f_executable));
}
inline PyObject* function_of(const _PyInterpreterFrame* f) { return object_in(f->f_funcobj); }
inline bool is_of_c(const _PyInterpreterFrame* f) { return f->owner >= FRAME_OWNED_BY_INTERPRETER; }
inline int depth_of(const _PyInterpreterFrame* f) { return static_cast<int>(f->stackpointer - f->localsplus); }
inline void set_depth(_PyInterpreterFrame* f, int depth) { f->stackpointer = f->localsplus + depth; }
inline PyGenObject* generator_of(_PyInterpreterFrame* f) { return _PyGen_GetGeneratorFromFrame(f); }
inline _PyInterpreterFrame* frame_of(PyGenObject* generator) { return &generator->gi_iframe; }

#else

using Slot = PyObject*;

inline PyObject* object_in(Slot slot) { return slot; }
inline Slot slot_with(PyObject* owned) { return owned; }
inline PyObject* taken_from(Slot slot) { return slot; }
inline PyObject* copied_from(Slot slot) { return Py_XNewRef(slot); }
inline bool is_instruction(Slot) { return false; }
inline Slot slot_with_instruction(int unit) { return PyLong_FromLong(unit); }
inline int depth_of(const _PyInterpreterFrame* f) { return f->stacktop; }
inline void set_depth(_PyInterpreterFrame* f, int depth) { f->stacktop = depth; }
inline PyGenObject* generator_of(_PyInterpreterFrame* f) { return _PyFrame_GetGenerator(f); }
inline _PyInterpreterFrame* frame_of(PyGenObject* generator) {
  return reinterpret_cast<_PyInterpreterFrame*>(generator->gi_iframe);
}

#endif

#if PY_VERSION_HEX >= 0x030D0000

#if PY_VERSION_HEX < 0x030E0000
inline PyCodeObject* code_of(const _PyInterpreterFrame* f) { return reinterpret_cast<PyCodeObject*>(f->f_executable); }
inline PyObject* function_of(const _PyInterpreterFrame* f) { return f->f_funcobj; }
inline bool is_of_c(const _PyInterpreterFrame* f) { return f->owner == FRAME_OWNED_BY_CSTACK; }
#endif
inline const _Py_CODEUNIT* instruction_of(const _PyInterpreterFrame* f) { return f->instr_ptr; }
inline void stand_at(_PyInterpreterFrame* f, int unit) { f->instr_ptr = _PyCode_CODE(code_of(f)) + unit; }
inline int next_unit(const _PyInterpreterFrame* f) { return static_cast<int>(f->instr_ptr - _PyCode_CODE(code_of(f))); }
inline void go_on_at(_PyInterpreterFrame* f, int unit) { stand_at(f, unit); }
inline _PyInterpreterFrame* current_frame(PyThreadState* thread) { return thread->current_frame; }
inline bool is_traced(PyThreadState* thread) {
  return thread->c_tracefunc != nullptr || thread->c_profilefunc != nullptr;
}

// Links the frame as the thread's current one for as long as it runs.
class Linked {
 public:
  Linked(PyThreadState* thread, _PyInterpreterFrame* frame) : thread_(thread), outer_(thread->current_frame) {
    frame->previous = outer_;
    thread->current_frame = frame;
  }
  ~Linked() { leave(); }
  void leave() {
    if (!std::exchange(left_, true)) thread_->current_frame = outer_;
  }
  Linked(const Linked&) = delete;
  Linked& operator=(const Linked&) = delete;

 private:
  PyThreadState* thread_;
  _PyInterpreterFrame* outer_;
  bool left_ = false;
};

#else

inline PyCodeObject* code_of(const _PyInterpreterFrame* f) { return f->f_code; }
inline const _Py_CODEUNIT* instruction_of(const _PyInterpreterFrame* f) { return f->prev_instr; }
inline void stand_at(_PyInterpreterFrame* f, int unit) { f->prev_instr = _PyCode_CODE(f->f_code) + unit; }
inline int next_unit(const _PyInterpreterFrame* f) {
  return static_cast<int>(f->prev_instr - _PyCode_CODE(f->f_code)) + 1;
}
inline void go_on_at(_PyInterpreterFrame* f, int unit) { stand_at(f, unit - 1); }
inline _PyInterpreterFrame* current_frame(PyThreadState* thread) { return thread->cframe->current_frame; }

#if PY_VERSION_HEX >= 0x030C0000
inline PyObject* function_of(const _PyInterpreterFrame* f) { return f->f_funcobj; }
inline bool is_of_c(const _PyInterpreterFrame* f) { return f->owner == FRAME_OWNED_BY_CSTACK; }
inline bool is_traced(PyThreadState* thread) {
  return thread->c_tracefunc != nullptr || thread->c_profilefunc != nullptr;
}
#else
inline PyObject* function_of(const _PyInterpreterFrame* f) { return reinterpret_cast<PyObject*>(f->f_func); }
inline bool is_of_c(const _PyInterpreterFrame*) { return false; }
inline bool is_traced(PyThreadState* thread) { return thread->cframe->use_tracing; }
#endif

class Linked {
 public:
  Linked(PyThreadState* thread, _PyInterpreterFrame* frame) : thread_(thread) {
    _PyCFrame* outer = thread->cframe;
#if PY_VERSION_HEX < 0x030C0000
    cframe_.use_tracing = outer->use_tracing;
    frame->is_entry = true;
#endif
    cframe_.previous = outer;
    frame->previous = outer->current_frame;
    cframe_.current_frame = frame;
    thread->cframe = &cframe_;
  }
  ~Linked() { leave(); }
  void leave() {
    if (std::exchange(left_, true)) return;
    thread_->cframe = cframe_.previous;
#if PY_VERSION_HEX < 0x030C0000
    thread_->cframe->use_tracing = cframe_.use_tracing;
#endif
  }
  Linked(const Linked&) = delete;
  Linked& operator=(const Linked&) = delete;

 private:
  PyThreadState* thread_;
  _PyCFrame cframe_;
  bool left_ = false;
};

#endif

// The instruction at which the frame stands, as a number of code units.
inline int unit_of(const _PyInterpreterFrame* f) {
  return static_cast<int>(instruction_of(f) - _PyCode_CODE(code_of(f)));
}

inline PyObject* local_of(const _PyInterpreterFrame* f, int slot) {
  return object_in(f->localsplus[slot]);
}  // borrowed
// Puts the reference there. What was there goes once the slot no longer has it.
inline void set_slot(Slot& slot, PyObject* owned) {
  PyObject* old = taken_from(std::exchange(slot, slot_with(owned)));
  Py_XDECREF(old);
}

// The frame's stack for as long as an evaluator of ours runs it: objects, which only that evaluator looks at.
inline PyObject** stack_of(_PyInterpreterFrame* f) {
  return reinterpret_cast<PyObject**>(f->localsplus) + code_of(f)->co_nlocalsplus;
}
PyObject** open_stack(_PyInterpreterFrame* f);             // its end
void close_stack(_PyInterpreterFrame* f, PyObject** end);  // CPython may look at it again

// An evaluator has done with the frame, which is unlinked: from 3.12 on it clears the frame that it ran.
void finish_frame(PyThreadState* thread, _PyInterpreterFrame* frame);

// Counts a Python frame against the recursion limit (3.12 on, beside what Py_EnterRecursiveCall counts). False: it is
// reached, and RecursionError is set.
inline bool enter_python_call([[maybe_unused]] PyThreadState* thread) {
#if PY_VERSION_HEX >= 0x030C0000
  if (thread->py_recursion_remaining-- <= 1) {
    ++thread->py_recursion_remaining;
    PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded");
    return false;
  }
#endif
  return true;
}
inline void leave_python_call([[maybe_unused]] PyThreadState* thread) {
#if PY_VERSION_HEX >= 0x030C0000
  ++thread->py_recursion_remaining;
#endif
}

// A generator's frame waits at a yield from now on; `delegates`: inside yield from or await.
inline void suspend(PyThreadState* thread, _PyInterpreterFrame* frame, Linked& linked, bool delegates) {
  PyGenObject* generator = generator_of(frame);
  generator->gi_frame_state = FRAME_SUSPENDED;
#if PY_VERSION_HEX >= 0x030D0000
  if (delegates) generator->gi_frame_state = FRAME_SUSPENDED_YIELD_FROM;
#else
  static_cast<void>(delegates);
#endif
#if PY_VERSION_HEX >= 0x030C0000
  thread->exc_info = generator->gi_exc_state.previous_item;
  generator->gi_exc_state.previous_item = nullptr;
  linked.leave();
  frame->previous = nullptr;
#else
  static_cast<void>(thread), static_cast<void>(linked);
#endif
}
inline bool is_suspended(const PyGenObject* generator) {
#if PY_VERSION_HEX >= 0x030D0000
  if (generator->gi_frame_state == FRAME_SUSPENDED_YIELD_FROM) return true;
#endif
  return generator->gi_frame_state == FRAME_SUSPENDED;
}

}  // namespace flashover::compat
