// What CPython's own evaluator does where a frame ends. Up to 3.11 its caller does that for every evaluator; 3.12 does
// not export it; from 3.13 on it can be called.
#include "compat/frames.h"

#include <cstring>

namespace flashover::compat {

#if PY_VERSION_HEX >= 0x030E0000

// The collector looks at the locals of a frame that runs; the stack lies behind what it is told of.
PyObject** open_stack(_PyInterpreterFrame* f) {
  PyObject** to = stack_of(f);
  const Slot* end = f->stackpointer;
  set_depth(f, code_of(f)->co_nlocalsplus);
  for (const Slot* from = f->stackpointer; from < end; ++from) *to++ = taken_from(*from);
  return to;
}

void close_stack(_PyInterpreterFrame* f, PyObject** end) {
  Slot* to = f->localsplus + code_of(f)->co_nlocalsplus;
  for (PyObject** from = stack_of(f); from < end; ++from) *to++ = slot_with(*from);
  f->stackpointer = to;
}

#else

PyObject** open_stack(_PyInterpreterFrame* f) {
  PyObject** end = f->localsplus + f->stacktop;
  f->stacktop = -1;  // the collector must not look at the stack while it moves
  return end;
}

void close_stack(_PyInterpreterFrame* f, PyObject** end) { _PyFrame_SetStackPointer(f, end); }

#endif

#if PY_VERSION_HEX < 0x030C0000

void finish_frame(PyThreadState*, _PyInterpreterFrame*) {}

#elif PY_VERSION_HEX < 0x030D0000

namespace {

// Somebody keeps the frame object (a traceback, sys._getframe): it takes the frame's contents over.
void hand_over_frame(PyFrameObject* object, _PyInterpreterFrame* frame) {
  const auto size = static_cast<size_t>(reinterpret_cast<char*>(&frame->localsplus[frame->stacktop]) -
                                        reinterpret_cast<char*>(frame));
  Py_INCREF(frame->f_code);
  std::memcpy(static_cast<void*>(object->_f_frame_data), frame, size);
  auto* own = reinterpret_cast<_PyInterpreterFrame*>(object->_f_frame_data);
  object->f_frame = own;
  own->owner = FRAME_OWNED_BY_FRAME_OBJECT;
  own->previous = nullptr;
  if (_PyFrame_IsIncomplete(own)) own->prev_instr = _PyCode_CODE(own->f_code) + own->f_code->_co_firsttraceable - 1;
  PyFrameObject* back = PyEval_GetFrame();  // the frame itself is unlinked already
  object->f_back = reinterpret_cast<PyFrameObject*>(Py_XNewRef(reinterpret_cast<PyObject*>(back)));
  auto* o = reinterpret_cast<PyObject*>(object);
  if (!PyObject_GC_IsTracked(o)) PyObject_GC_Track(o);
}

void pop_from_data_stack(PyThreadState* tstate, _PyInterpreterFrame* frame) {
  auto** base = reinterpret_cast<PyObject**>(frame);
  _PyStackChunk* chunk = tstate->datastack_chunk;
  if (base != &chunk->data[0]) {
    tstate->datastack_top = base;
    return;
  }
  _PyStackChunk* previous = chunk->previous;
  tstate->datastack_top = &previous->data[previous->top];
  tstate->datastack_chunk = previous;
  tstate->datastack_limit = reinterpret_cast<PyObject**>(reinterpret_cast<char*>(previous) + previous->size);
  PyObjectArenaAllocator arenas;
  PyObject_GetArenaAllocator(&arenas);
  arenas.free(arenas.ctx, chunk, chunk->size);
}

}  // namespace

void finish_frame(PyThreadState* tstate, _PyInterpreterFrame* frame) {
  const bool generator = frame->owner == FRAME_OWNED_BY_GENERATOR;
  PyObject *type, *value, *tb;
  PyErr_Fetch(&type, &value, &tb);
  if (generator) {
    auto* g = _PyFrame_GetGenerator(frame);
    g->gi_frame_state = FRAME_CLEARED;
    tstate->exc_info = g->gi_exc_state.previous_item;
    g->gi_exc_state.previous_item = nullptr;
  }
  PyFrameObject* object = std::exchange(frame->frame_obj, nullptr);
  const bool kept = object != nullptr && Py_REFCNT(object) > 1;
  if (kept) hand_over_frame(object, frame);
  Py_XDECREF(reinterpret_cast<PyObject*>(object));
  if (!kept) {
    for (int i = 0; i < frame->stacktop; ++i) Py_XDECREF(frame->localsplus[i]);
    Py_XDECREF(frame->f_locals);
    Py_DECREF(frame->f_funcobj);
  }
  if (generator) {
    frame->previous = nullptr;  // the generator object keeps the code
  } else {
    Py_DECREF(frame->f_code);
    pop_from_data_stack(tstate, frame);
  }
  PyErr_Restore(type, value, tb);
}

#else

void finish_frame(PyThreadState* thread, _PyInterpreterFrame* frame) {
  PyObject* error = PyErr_GetRaisedException();
  frame->previous = thread->current_frame;  // what a frame object that stays on takes for its caller
  _PyEval_FrameClearAndPop(thread, frame);
  PyErr_SetRaisedException(error);
}

#endif

}  // namespace flashover::compat
