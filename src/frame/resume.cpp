// Starts the frames of a break, the outermost first, each under the hook that loads its state.
#include "frame/resume.h"

#include "base/boundary.h"
#include "frame/bytecode/decode.h"
#include "frame/interpret/instructions.h"
#include "frame/interpret/interpreter.h"

namespace flashover::frame {
namespace {

Interpreter& plain() {
  thread_local Interpreter interpreter{Interpreter::Plain{}};
  return interpreter;
}

void load(_PyInterpreterFrame* frame, FrameState& state) {
  std::vector<PyObject*> slots;
  slots.swap(state.slots);
  load_frame(frame, slots.data(), slots.size(), state.next);
}

PyObject* start(std::vector<FrameState>& frames, size_t at, Continuations& c);

// Runs a frame whose state is loaded to its end. frames[at] is this frame; those after it are calls it waits for.
// `fresh`: it is about to begin. When it throws, the frame stands at an instruction.
PyObject* drive_on(PyThreadState* tstate, _PyInterpreterFrame* frame, std::vector<FrameState>& frames, size_t at,
                   Continuations& c, bool fresh) {
  std::vector<FrameState> further;
  std::vector<FrameState>* now = &frames;
  for (;;) {
    PlainRun run;
    if (at + 1 < now->size()) {
      run.least = 0;
      run.before = [&c, now, at] { return start(*now, at + 1, c); };
    }
    if (fresh) run.least = 0;
    fresh = false;
    TakeCallees callees(&c);
    if (decode(code_of(frame)) == nullptr) return _PyEval_EvalFrameDefault(tstate, frame, 1);
    PyObject* value = plain().step(tstate, frame, run);
    if (!run.stopped) return value;
    // What is compiled begins with a frame of the function, which has other code by now.
    const bool replaced = PyFunction_GET_CODE(function_of(frame)) != reinterpret_cast<PyObject*>(code_of(frame));
    further.clear();
    // What the frame holds, kept alive also if the frame should change under the compiler.
    PyObject* handled = tstate->exc_info->exc_value;
    std::vector<PyObject*> slots;
    slots.reserve(static_cast<size_t>(compat::depth_of(frame)) + 2);
    for (int i = 0; i < compat::depth_of(frame); ++i) slots.push_back(compat::copied_from(frame->localsplus[i]));
    slots.push_back(Py_NewRef(function_of(frame)));
    slots.push_back(Py_NewRef(handled == nullptr ? Py_None : handled));
    const CaptureRequest request{function_of(frame), slots.data(), slots.size(), next_unit(frame), true};
    value = nullptr;
    PyObject* const code = reinterpret_cast<PyObject*>(code_of(frame));
    auto outcome = Continuations::Outcome::kRaised;
    try {
      if (!run.unknown && !replaced)
        outcome = c.resume(request, code, &value, further);
      else if (c.gives_up(request, code,
                          replaced ? "the function was given other code" : "an instruction that only CPython knows"))
        outcome = Continuations::Outcome::kNotTaken;
    } catch (abi::__forced_unwind&) {
      wait_for_the_end();
    } catch (...) {
      tell_of_exception();
    }
    PyObject *type, *error, *tb;
    PyErr_Fetch(&type, &error, &tb);
    for (PyObject* o : slots) Py_XDECREF(o);
    PyErr_Restore(type, error, tb);
    switch (outcome) {
      case Continuations::Outcome::kNotTaken:
        return _PyEval_EvalFrameDefault(tstate, frame, 0);
      case Continuations::Outcome::kRaised:
        compat::go_on_at(
            frame, next_unit(frame) +
                       1);  // raised by the instruction that it was to go on with, which may be the first of a try
        return _PyEval_EvalFrameDefault(tstate, frame, 1);
      case Continuations::Outcome::kReturned:
        for (int depth = compat::depth_of(frame); depth > code_of(frame)->co_nlocalsplus;) {
          compat::set_depth(frame, --depth);
          Py_XDECREF(compat::taken_from(frame->localsplus[depth]));
        }
        finish_frame(tstate, frame);
        return value;
      case Continuations::Outcome::kBroke:
        load(frame, further.front());
        now = &further;
        at = 0;
        break;
    }
  }
}

PyObject* drive(PyThreadState* tstate, _PyInterpreterFrame* frame, std::vector<FrameState>& frames, size_t at,
                Continuations& c, bool fresh = false) {
  try {
    return drive_on(tstate, frame, frames, at, c, fresh);
  } catch (abi::__forced_unwind&) {
    wait_for_the_end();
  } catch (...) {  // out of memory between two instructions: the program sees it there
    tell_of_exception();
    return _PyEval_EvalFrameDefault(tstate, frame, 1);
  }
}

// The program may have given the function other code while its frame waited: a frame has the code it began with.
class CodeOfThen {
 public:
  CodeOfThen(PyObject* function, PyObject* code)
      : place_(reinterpret_cast<PyFunctionObject*>(function)->func_code), now_(std::exchange(place_, code)) {}
  ~CodeOfThen() { put_back(); }
  CodeOfThen(const CodeOfThen&) = delete;
  void put_back() {
    if (now_) place_ = std::exchange(now_, nullptr);
  }

 private:
  PyObject*& place_;  // no reference moves: nothing of the program runs meanwhile
  PyObject* now_;
};

PyObject* start(std::vector<FrameState>& frames, size_t at, Continuations& c) {
  PyObject* function = frames[at].function;
  CodeOfThen code(function, frames[at].code);
  return call_for_frame(function, [&](PyThreadState* tstate, _PyInterpreterFrame* frame) {
    code.put_back();
    load(frame, frames[at]);
    return drive(tstate, frame, frames, at, c);
  });
}

}  // namespace

PyObject* take_on(PyThreadState* tstate, _PyInterpreterFrame* frame, Continuations& continuations) {
  std::vector<FrameState> none;
  return drive(tstate, frame, none, 0, continuations, true);
}

PyObject* resume(std::vector<FrameState> frames, Continuations& continuations) {
  return start(frames, 0, continuations);
}

bool is_module(PyObject* o) {
  PyTypeObject* module = known_types().module;
  return module != nullptr && PyType_IsSubtype(Py_TYPE(o), module);
}

}  // namespace flashover::frame
