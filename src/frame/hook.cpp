// PEP 523: while a capture runs, frames of its thread go to the interpreter; everybody else's go on as before.
#include "base/boundary.h"
#include "compat/dispatch.h"
#include "frame/bytecode/code_file.h"
#include "frame/bytecode/decode.h"
#include "frame/bytecode/depth.h"
#include "frame/interpret/instructions.h"
#include "frame/interpret/interpreter.h"
#include "frame/marks.h"
#include "frame/resume.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace flashover::frame {

// Imports, and compilers at work: nothing that they call is the program's own doing.
bool works_for_itself(PyCodeObject* code) {
  const std::string_view file = file_of(code);
  if (file.starts_with("<frozen importlib") || is_callback_of_weak(code)) return true;
  const size_t torch = file.find("-packages/torch/");
  if (torch == file.npos) return false;
  const std::string_view part = file.substr(torch + std::strlen("-packages/torch/"));
  for (const char* folder : {"_dynamo/", "_inductor/", "fx/", "_functorch/_aot_autograd/", "export/", "_export/",
                             "jit/", "_higher_order_ops/", "_subclasses/", "package/"})
    if (part.starts_with(folder)) return true;
  return false;
}

namespace {

thread_local Interpreter* active = nullptr;
int installed = 0;
_PyFrameEvalFunction previous = nullptr;

struct FrameTaker {
  PyObject* function;
  const TakeFrame& take;
};
thread_local FrameTaker* frame_taker = nullptr;
thread_local Continuations* callees = nullptr;
thread_local PyObject* left_alone = nullptr;

// DecodedCode::stands_alone. Of kGenerates, the parts between two yields.
constexpr signed char kAlone = 1, kWorksForItself = 2, kGenerates = 3;

// Of what torch.nn.Module itself does only its calls lead to operators.
bool calls_forward(PyCodeObject* code) {
  return PyUnicode_CompareWithASCIIString(code->co_name, "_call_impl") == 0 ||
         PyUnicode_CompareWithASCIIString(code->co_name, "_wrapped_call_impl") == 0;
}

bool stands_alone(PyCodeObject* code) {
  constexpr int kWithout = CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
  if (!(code->co_flags & CO_OPTIMIZED) || (code->co_flags & kWithout)) return false;
  const std::string_view file = file_of(code);
  if (file.empty() || file == "<string>" || file.starts_with("<frozen")) return false;
  if (file.ends_with("/torch/nn/modules/module.py") && !calls_forward(code)) return false;
  return !is_library(code);
}

signed char kind_of(PyCodeObject* code) {
  DecodedCode* known = decode(code);
  if (known == nullptr) {
    PyErr_Clear();
    return 0;
  }
  if (known->stands_alone < 0)
    known->stands_alone = !stands_alone(code) ? (works_for_itself(code) ? kWorksForItself : 0)
                          : known->generator  ? kGenerates
                                              : kAlone;
  return known->stands_alone;
}

bool is_worth_taking(PyThreadState* tstate, _PyInterpreterFrame* frame, int throwflag) {
  PyCodeObject* code = code_of(frame);
  const signed char kind = kind_of(code);
  if (frame->owner == FRAME_OWNED_BY_THREAD) {
    if (kind != kAlone || next_unit(frame) != 0) return false;
  } else if (frame->owner != FRAME_OWNED_BY_GENERATOR || kind != kGenerates || throwflag) {
    return false;
  }
  if (compat::is_traced(tstate)) return false;
  return mark_of(function_of(frame)) == Mark::kNone && callees->accepts(function_of(frame));
}

// The frame that the evaluator from before has been given. Where that one was installed while ours was, and is here
// again (torch.compile's), it hands frames on to us.
thread_local _PyInterpreterFrame* handed_on = nullptr;

PyObject* hand_on(PyThreadState* tstate, _PyInterpreterFrame* frame, int throwflag) {
  _PyFrameEvalFunction next = previous;
  if (next == nullptr || next == _PyEval_EvalFrameDefault) return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
  _PyInterpreterFrame* const outer = std::exchange(handed_on, frame);
  PyObject* result = next(tstate, frame, throwflag);
  handed_on = outer;
  return result;
}

// What becomes of a frame that a compiled function's eager part calls.
enum class Way : uint8_t { kAsItIs, kTaken, kWithCallees };  // the last: it and what it calls run as they are

Way way_of(PyThreadState* tstate, _PyInterpreterFrame* frame, int throwflag) noexcept {
  try {
    if (is_worth_taking(tstate, frame, throwflag)) return Way::kTaken;
    const bool apart = disables_callees(function_of(frame)) || kind_of(code_of(frame)) == kWorksForItself;
    return apart ? Way::kWithCallees : Way::kAsItIs;
  } catch (const std::exception&) {  // no memory to look at it: its call is not to suffer
    return Way::kAsItIs;
  }
}

PyObject* give_to(const FrameTaker& w, PyThreadState* tstate, _PyInterpreterFrame* frame) {
  try {
    return w.take(tstate, frame);
  } catch (abi::__forced_unwind&) {
    wait_for_the_end();
  } catch (...) {
    tell_of_exception();
    return abandon_frame(tstate, frame);
  }
}

// Where torch hands an operator to a class before what records it sees it, a kernel in Python of a registered operator
// leads here (see Interpreter::as_program; elsewhere the recorder calls the class).
bool is_class_called_by_kernel(const Interpreter& in, _PyInterpreterFrame* frame) {
  if (!compat::kClassesFirst || in.in_library == 0 || in.uninterpreted != in.in_library) return false;
  static PyObject* const name = PyUnicode_InternFromString("__torch_dispatch__");
  if (code_of(frame)->co_name != name || code_of(frame)->co_argcount == 0) return false;
  PyObject* type = compat::local_of(frame, 0);
  return type != nullptr && PyType_Check(type) && is_wrapper_type(reinterpret_cast<PyTypeObject*>(type));
}

PyObject* on_frame(PyThreadState* tstate, _PyInterpreterFrame* frame, int throwflag) {
  if (handed_on == frame) return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
  if (frame_taker != nullptr && function_of(frame) == frame_taker->function && frame->owner == FRAME_OWNED_BY_THREAD) {
    FrameTaker* w = std::exchange(frame_taker, nullptr);
    remove_hook();
    return give_to(*w, tstate, frame);
  }
  Interpreter* interpreter = active;
  if (interpreter == nullptr && callees != nullptr && !trace::internal_call()) {
    if (left_alone == function_of(frame)) {
      left_alone = nullptr;
    } else if (const Way way = way_of(tstate, frame, throwflag); way == Way::kTaken) {
      return take_on(tstate, frame, *callees);
    } else if (way == Way::kWithCallees) {
      TakeCallees nobody(nullptr);
      return hand_on(tstate, frame, throwflag);
    }
  }
  if (interpreter == nullptr || trace::internal_call()) return hand_on(tstate, frame, throwflag);
  if (interpreter->uninterpreted > 0) {
    if (throwflag || !is_class_called_by_kernel(*interpreter, frame)) return hand_on(tstate, frame, throwflag);
    PyObject* result = nullptr;
    interpreter->as_program([&] { result = interpreter->run_frame(tstate, frame, throwflag); });
    return result;
  }
  return interpreter->run_frame(tstate, frame, throwflag);
}

}  // namespace

TakeCallees::TakeCallees(Continuations* continuations)
    : outer_(std::exchange(callees, continuations)), hooked_(continuations != nullptr) {
  if (hooked_) install_hook();
}
TakeCallees::~TakeCallees() {
  if (hooked_) remove_hook();
  callees = outer_;
}

void leave_alone(PyObject* function) {
  if (callees == nullptr) return;
  if (PyMethod_Check(function)) function = PyMethod_GET_FUNCTION(function);
  left_alone = PyFunction_Check(function) ? function : nullptr;
}

PyObject* call_with_nothing(PyObject* function) {
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function));
  const int positional = code->co_argcount, named = code->co_kwonlyargcount;
  std::vector<PyObject*> args(static_cast<size_t>(positional + named) + 1, Py_None);
  Ref names;
  if (named > 0) {
    names = Ref::steal(PyTuple_New(named));
    if (!names) return nullptr;
    for (int i = 0; i < named; ++i) {
      PyObject* name = PyTuple_GET_ITEM(code->co_localsplusnames, positional + i);
      PyTuple_SET_ITEM(names.get(), i, Py_NewRef(name));
    }
  }
  return PyObject_Vectorcall(function, args.data() + 1, static_cast<size_t>(positional), names.get());
}

PyObject* call_for_frame(PyObject* function, const TakeFrame& take) {
  FrameTaker w{function, take};
  struct Waiting {
    FrameTaker* const own;
    FrameTaker* const outer;
    explicit Waiting(FrameTaker* w) : own(w), outer(std::exchange(frame_taker, w)) { install_hook(); }
    ~Waiting() {
      if (frame_taker == own) remove_hook();  // it never got there
      frame_taker = outer;
    }
    Waiting(const Waiting&) = delete;
  } waiting(&w);
  return call_with_nothing(function);
}

void load_frame(_PyInterpreterFrame* frame, PyObject* const* slots, size_t count, int32_t next) {
  std::vector<PyObject*> old;
  for (int i = 0; i < compat::depth_of(frame); ++i) old.push_back(compat::taken_from(frame->localsplus[i]));
  for (size_t i = 0; i < count; ++i) frame->localsplus[i] = compat::slot_with(slots[i]);
  compat::set_depth(frame, static_cast<int>(count));
  compat::go_on_at(frame, next);
  if (const DecodedCode* code = decode(code_of(frame)); code != nullptr) tag_instructions(frame, *code, next);
  for (PyObject* o : old) Py_XDECREF(o);
}

Interpreter* Interpreter::current() { return active; }
bool capturing() { return active != nullptr; }

Interpreter::Interpreter(trace::Session* s) : recorder(s), session(s), outer_(active) {
  recorder.location = [this] { return asking_line(); };
  recorder.location_key = [this] { return asking_key(); };
  context.warnings.save();
  read_logging_functions();
  active = this;
}

Interpreter::~Interpreter() {
  if (plain) return;
  journal.undo();
  active = outer_;
}

void install_hook() {
  PyInterpreterState* interp = PyInterpreterState_Get();
  if (installed++ > 0) return;
  if (_PyFrameEvalFunction now = _PyInterpreterState_GetEvalFrameFunc(interp); now != at_boundary<on_frame>)
    previous = now;
  _PyInterpreterState_SetEvalFrameFunc(interp, at_boundary<on_frame>);
}

void remove_hook() {
  if (--installed > 0) return;
  _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), previous);
}

}  // namespace flashover::frame
