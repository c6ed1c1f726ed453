// How frames are left: one that is given up before it ran, and on 3.12 what CPython's own evaluator does at the end.
#include "frame/interpret/instructions.h"

#include <cstring>

#include "trace/trace.h"

namespace flashover::frame {

PyObject* decline_exception() {
  static PyObject* const type = PyErr_NewException("flashover.Decline", PyExc_BaseException, nullptr);
  return type;
}

PyObject* abandon_frame(PyThreadState* tstate, _PyInterpreterFrame* frame) {
  // (On 3.12 the frame is not linked here; the caller's frame is current.)
  if (!PyErr_Occurred()) {
    // A finalizer that runs while the capture is torn down has no caller to report to.
    const bool finalizer = PyUnicode_CompareWithASCIIString(frame->f_code->co_name, "__del__") == 0;
    Interpreter::current()->abort("");
    if (finalizer) {
      PyErr_Clear();
#if PY_VERSION_HEX >= 0x030C0000
      finish_frame(tstate, frame);
#endif
      return Py_NewRef(Py_None);
    }
  }
#if PY_VERSION_HEX >= 0x030C0000
  finish_frame(tstate, frame);
#endif
  return nullptr;
}

#if PY_VERSION_HEX >= 0x030C0000
PyObject* intrinsic(int which, PyObject* v) {
  switch (which) {
    case 3: {  // STOPITERATION_ERROR: a StopIteration that leaves a generator becomes a RuntimeError
      if (!PyErr_GivenExceptionMatches(v, PyExc_StopIteration)) return Py_NewRef(v);
      Ref error = Ref::steal(PyObject_CallFunction(PyExc_RuntimeError, "s", "generator raised StopIteration"));
      if (!error) return nullptr;
      PyException_SetCause(error.get(), Py_NewRef(v));
      PyException_SetContext(error.get(), Py_NewRef(v));
      return error.release();
    }
    case 5:  // UNARY_POSITIVE
      return PyNumber_Positive(v);
    case 6:  // LIST_TO_TUPLE
      return PyList_AsTuple(v);
    default:
      throw Declined("an intrinsic that the interpreter does not know: " + std::to_string(which));
  }
}

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

// CPython 3.12's evaluator clears the frame it ran; its own functions for that are not exported.
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
#endif

}  // namespace flashover::frame
