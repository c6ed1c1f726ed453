// The instruction loop. It stands in for CPython's evaluator on the real, linked frame: the stack, locals and
// prev_instr are the frame's own, so tracebacks, super(), warnings and sys._getframe see what they would see otherwise.
#include <opcode.h>

#include <algorithm>
#include <unordered_set>

#include "base/boundary.h"
#include "frame/fetched_error.h"
#include "frame/interpret/interpreter.h"
#include "frame/interpret/opcode_parts.h"
#include "frame/resume.h"
#include "frame/signals.h"
#include "graph/checkpoint.h"
#include "trace/assume.h"

namespace flashover::frame {
namespace {

constexpr int kSignalPollInterval = 256;

// Links the frame as the thread's current one for as long as it runs.
class Linked {
 public:
  Linked(PyThreadState* tstate, _PyInterpreterFrame* frame) : tstate_(tstate) {
    _PyCFrame* outer = tstate->cframe;
#if PY_VERSION_HEX < 0x030C0000
    cframe_.use_tracing = outer->use_tracing;
    frame->is_entry = true;
#endif
    cframe_.previous = outer;
    frame->previous = outer->current_frame;
    cframe_.current_frame = frame;
    tstate->cframe = &cframe_;
  }
  ~Linked() { leave(); }
  void leave() {
    if (std::exchange(left_, true)) return;
    tstate_->cframe = cframe_.previous;
#if PY_VERSION_HEX < 0x030C0000
    tstate_->cframe->use_tracing = cframe_.use_tracing;
#endif
  }
  Linked(const Linked&) = delete;
  Linked& operator=(const Linked&) = delete;

 private:
  PyThreadState* tstate_;
  _PyCFrame cframe_;
  bool left_ = false;
};

// Instructions that a plain run goes on through: control flow and arithmetic of numbers is not worth a capture of its
// own, and capturing it would guard on every number that passes.
enum class Ease : uint8_t { kNo, kControl, kLoad, kNumbers };

Ease ease_of(int op) {
  switch (op) {
    case NOP:
    case EXTENDED_ARG:
    case RESUME:
    case POP_TOP:
    case STORE_FAST:
    case JUMP_FORWARD:
    case JUMP_BACKWARD:
    case JUMP_BACKWARD_NO_INTERRUPT:
    case FOR_ITER:
    case RETURN_VALUE:
    case PUSH_EXC_INFO:
    case POP_EXCEPT:
    case RERAISE:
    case SEND:
    case YIELD_VALUE:
#if PY_VERSION_HEX < 0x030C0000
    case PRECALL:
    case POP_JUMP_FORWARD_IF_FALSE:
    case POP_JUMP_FORWARD_IF_TRUE:
    case POP_JUMP_BACKWARD_IF_FALSE:
    case POP_JUMP_BACKWARD_IF_TRUE:
    case POP_JUMP_FORWARD_IF_NONE:
    case POP_JUMP_FORWARD_IF_NOT_NONE:
    case POP_JUMP_BACKWARD_IF_NONE:
    case POP_JUMP_BACKWARD_IF_NOT_NONE:
    case JUMP_IF_FALSE_OR_POP:
    case JUMP_IF_TRUE_OR_POP:
#else
    case POP_JUMP_IF_FALSE:
    case POP_JUMP_IF_TRUE:
    case POP_JUMP_IF_NONE:
    case POP_JUMP_IF_NOT_NONE:
    case RETURN_CONST:
    case END_FOR:
#endif
      return Ease::kControl;
    case LOAD_FAST:
    case LOAD_CONST:
      return Ease::kLoad;
    case COMPARE_OP:
    case BINARY_OP:
    case IS_OP:
    case UNARY_NOT:
    case UNARY_NEGATIVE:
      return Ease::kNumbers;
    default:
      return Ease::kNo;
  }
}

int operands_of(int op) { return op == UNARY_NOT || op == UNARY_NEGATIVE ? 1 : 2; }

bool is_number_like(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  return t == &PyLong_Type || t == &PyFloat_Type || t == &PyBool_Type || t == &PyUnicode_Type || o == Py_None;
}

}  // namespace

void Interpreter::touch(size_t slot, PyCodeObject* code, PyObject* object) {
  untouched_[slot] = 0;
  PyObject* seen = recorder.read(SourceKind::kArgument, kNoSource, static_cast<int64_t>(slot),
                                 PyTuple_GET_ITEM(code->co_localsplusnames, static_cast<Py_ssize_t>(slot)), object);
  if (seen == object) return;
  PyObject*& local = top_->frame->localsplus[slot];
  Py_XSETREF(local, Py_NewRef(seen));
}

void Interpreter::note_break() {
  if (!plain && break_path_.empty()) break_path_ = path_here();
}

Interpreter::Path Interpreter::path_here() const {
  Path path;
  std::vector<const Activation*> chain;
  for (const Activation* a = top_; a != nullptr; a = a->caller) chain.push_back(a);
  std::reverse(chain.begin(), chain.end());
  if (chain.empty()) return path;
  size_t last = 0;  // the innermost frame that only direct calls lead to
  while (last + 1 < chain.size() && chain[last + 1]->direct) ++last;
  // A library's own functions run for real as a whole: nothing in them is worth a graph of its own.
  while (last > 0 && is_library(chain[last]->frame->f_code)) --last;
  for (size_t i = 0; i <= last; ++i)
    path.push_back({chain[i]->count, chain[i]->names != 0 ? chain[i]->names : chain[i]->count});
  return path;
}

void Interpreter::take_snapshot(const Activation& innermost, int next, PyObject** sp) {
  auto snapshot = std::make_unique<Snapshot>();
  for (const Activation* a = &innermost; a != nullptr; a = a->caller) {
    const bool last = a == &innermost;
    _PyInterpreterFrame* f = a->frame;
    Snapshot::Frame out{
        Ref::borrow(frame_function(f)), Ref::borrow(reinterpret_cast<PyObject*>(f->f_code)), last ? next : a->next, {}};
    PyObject** end = last ? sp : a->below;
    for (PyObject** p = f->localsplus; p < end; ++p) out.slots.push_back(Ref::borrow(*p));
    snapshot->frames.insert(snapshot->frames.begin(), std::move(out));
  }
  stopped_ = std::move(snapshot);
}

namespace {

// The class that is being made is seen first by __set_name__, __init_subclass__ and its metaclass.
void note_class_in_the_making(Recorder& recorder, _PyInterpreterFrame* frame) {
  const auto is = [&](const char* name) { return PyUnicode_CompareWithASCIIString(frame->f_code->co_name, name) == 0; };
  const int at = is("__set_name__") ? 1 : 0;
  if (at == 0 && !is("__init_subclass__") && !is("__init__") && !is("mro")) return;
  if (frame->f_code->co_argcount <= at) return;
  PyObject* made = frame->localsplus[at];
  if (made != nullptr && PyType_Check(made) && !recorder.is_old(made) &&
      is_python_class(reinterpret_cast<PyTypeObject*>(made)))
    recorder.fresh_type(made);
}

// A substitute (python/flashover/_substitutes.py) that torch's own code does not get: it wants to know who traces it.
bool is_for_users(PyObject* substitute) {
  const char* name = PyUnicode_AsUTF8(reinterpret_cast<PyFunctionObject*>(substitute)->func_name);
  return name != nullptr && std::string_view(name).starts_with("_users_");
}

// What torch.library.register_autograd calls a registered formula from.
bool is_operator_backward(PyCodeObject* code) {
  static PyObject* const name = PyUnicode_InternFromString("make_autograd_impl.<locals>.backward");
  if (PyUnicode_Compare(code->co_qualname, name) != 0) return false;
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (file == nullptr) PyErr_Clear();
  return file != nullptr && std::string_view(file).ends_with("torch/_library/autograd.py");
}

}  // namespace

// The frame goes on as `start` says. What is read may call Python (torch function modes): that is no part of the
// program, whose first frame has not begun yet.
void Interpreter::take_up(const Subject& start, _PyInterpreterFrame* frame) {
  struct Aside {
    int& depth;
    explicit Aside(int& d) : depth(d) { ++depth; }
    ~Aside() { --depth; }
  } aside(uninterpreted);
  const auto depth = static_cast<size_t>(start.count - 2);
  std::vector<PyObject*> slots(start.slots, start.slots + depth);
  for (PyObject* o : slots) Py_XINCREF(o);
  load_frame(frame, slots.data(), depth, start.next);
  untouched_.assign(depth, 0);
  const bool all = reads_its_locals(frame->f_code);
  const int locals = frame->f_code->co_nlocalsplus;
  for (int i = 0; i < static_cast<int>(depth); ++i) {
    PyObject* o = slots[static_cast<size_t>(i)];
    if (o == nullptr) continue;
    if (i < locals && !PyCell_Check(o) && !all && !(i == 0 && frame->f_code->co_nfreevars > 0)) {
      untouched_[static_cast<size_t>(i)] = 1;
    } else {
      PyObject* name = i < locals ? PyTuple_GET_ITEM(frame->f_code->co_localsplusnames, i) : nullptr;
      PyObject* seen = recorder.read(SourceKind::kArgument, kNoSource, i, name, o);
      if (seen != o) Py_SETREF(frame->localsplus[i], Py_NewRef(seen));
    }
  }
  PyObject* builtins = reinterpret_cast<PyFunctionObject*>(start.function)->func_builtins;
  if (!recorder.is_old(frame->f_globals)) recorder.constant(frame->f_globals);
  if (!recorder.is_old(builtins)) recorder.constant(builtins);
  if (start.next == 0) recorder.function(start.function);  // its closure is still to be read
}

PyObject* Interpreter::run_frame(PyThreadState* tstate, _PyInterpreterFrame* frame, int throwflag) {
  const bool direct = std::exchange(tail_, false);
  if (aborted_) {
    // What the end of a trace object sets off is no part of the program.
    if (works_for_itself(frame->f_code)) return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    return abandon_frame(tstate, frame);
  }
  ++frames;
  try {
    Code* code = decode(frame->f_code);
    if (code == nullptr) throw Declined("out of memory");
    if (code->coroutine) throw Declined("a coroutine");
    if (is_code_of_arrays(frame->f_code)) {
      const int args = frame->f_code->co_nlocalsplus;
      for (int i = 0; i < args; ++i)
        if (frame->localsplus[i] != nullptr) look_around_arrays(frame->localsplus[i]);
      ++uninterpreted;
      PyObject* result = _PyEval_EvalFrameDefault(tstate, frame, throwflag);
      --uninterpreted;
      if (result == nullptr && session != nullptr && session->declined()) abort(session->decline_reason());
      return result;
    }
    if (mark_of(frame_function(frame)) == Mark::kDisallow)
      throw Declined("a function that is not to be part of a graph is called");
    if (const Subject* start = std::exchange(start_, nullptr); start != nullptr && start->next >= 0) {
      take_up(*start, frame);
      resumed_ = is_rest_ = true;
      return evaluate(tstate, frame, throwflag);
    }
    // Code given to exec(): CPython makes a function for it.
    if (!(frame->f_code->co_flags & CO_OPTIMIZED) && !recorder.is_old(frame_function(frame)))
      recorder.fresh_function(frame_function(frame));
    if (making_classes > 0) note_class_in_the_making(recorder, frame);
    recorder.function(frame_function(frame));
    if (code->generator && frame->owner != FRAME_OWNED_BY_GENERATOR)
      return _PyEval_EvalFrameDefault(tstate, frame, throwflag);  // only makes the generator object
    if (code->generator) {
      PyObject* generator = reinterpret_cast<PyObject*>(_PyFrame_GetGenerator(frame));
      if (recorder.is_old(generator)) throw Declined("a generator from before the call is advanced");
      // (Not when it is being closed: one that is dying has cleared its weak references for the last time.)
      if (!throwflag && reinterpret_cast<PyGenObject*>(generator)->gi_weakreflist == nullptr)
        generators_.push_back(Ref::steal(PyWeakref_NewRef(generator, nullptr)));
    }
    if (PyObject* other = substitute_of(frame_function(frame));
        other != nullptr && !code->generator &&
        !(top_ != nullptr && (reinterpret_cast<PyObject*>(top_->frame->f_code) == PyFunction_GET_CODE(other) ||
                              (is_for_users(other) && torchs_own(*top_))))) {
      tail_ = direct;
      PyObject* result = call_substitute(frame, other);
#if PY_VERSION_HEX >= 0x030C0000
      finish_frame(tstate, frame);
#endif
      return result;
    }
    if (is_wrapper_of_torch_compile(frame->f_code) && !throwflag) {
      tail_ = direct;
      PyObject* result = call_inside_torch_compile(frame);
#if PY_VERSION_HEX >= 0x030C0000
      finish_frame(tstate, frame);
#endif
      return result;
    }
    if (is_operator_backward(frame->f_code) && !throwflag) {
      Ref function = Ref::borrow(frame_function(frame));
      tail_ = direct;
      PyObject* result = record_operator_backward(frame);
      if (result != Py_NotImplemented) {
#if PY_VERSION_HEX >= 0x030C0000
        finish_frame(tstate, frame);
#endif
        return result;
      }
      Py_DECREF(result);
      result = evaluate(tstate, frame, throwflag);
      if (result == nullptr) note_operator_backward(function.get());
      return result;
    }
    if (const Library library = library_code(frame->f_code); library != Library::kNo) {
      if (talks_to_the_outside(frame->f_code))
        throw Declined(std::string("call of ") + PyUnicode_AsUTF8(frame->f_code->co_qualname));
      const int args = library == Library::kUnseen ? 0 : frame->f_code->co_argcount + frame->f_code->co_kwonlyargcount;
      for (int i = 0; i < args; ++i)
        if (frame->localsplus[i] != nullptr) {
          recorder.numbers.read_deep(frame->localsplus[i]);
          recorder.whole(frame->localsplus[i]);
        }
      // A registered operator's backward may turn out not to be traceable.
      static PyObject* const differentiable = PyUnicode_InternFromString("autograd_impl");
      if (frame->f_code->co_name == differentiable) note_retry();
      ++uninterpreted;
      PyObject* result = _PyEval_EvalFrameDefault(tstate, frame, throwflag);
      --uninterpreted;
      return result;
    }
  } catch (const Declined& d) {
    abort(d.reason);
    return abandon_frame(tstate, frame);
  } catch (const std::exception& e) {
    abort_for(e);
    return abandon_frame(tstate, frame);
  }
  tail_ = direct;
  return evaluate(tstate, frame, throwflag);
}

// The frame has its arguments and has not begun. NotImplemented: its formula is traced as others are.
PyObject* Interpreter::record_operator_backward(_PyInterpreterFrame* frame) {
  PyObject* record = of_module("flashover._operator_backward", "record");
  PyObject* given = frame->localsplus[1];
  if (record == nullptr || frame->f_code->co_argcount != 1 || given == nullptr || !PyTuple_Check(given))
    return Py_NewRef(Py_NotImplemented);
  Ref args = Ref::steal(PyTuple_New(PyTuple_GET_SIZE(given) + 2));
  PyTuple_SET_ITEM(args.get(), 0, Py_NewRef(frame_function(frame)));
  PyTuple_SET_ITEM(args.get(), 1, Py_NewRef(frame->localsplus[0]));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i)
    PyTuple_SET_ITEM(args.get(), i + 2, Py_NewRef(PyTuple_GET_ITEM(given, i)));
  ++uninterpreted;
  PyObject* result = PyObject_CallObject(record, args.get());
  --uninterpreted;
  return result;
}

// Its formula ended in an error.
void Interpreter::note_operator_backward(PyObject* function) {
  FetchedError error;
  Ref said = Ref::steal(error.value != nullptr ? PyObject_Str(error.value) : nullptr);
  const char* text = said ? PyUnicode_AsUTF8(said.get()) : nullptr;
  std::string why = reason_ + (text != nullptr ? text : "");
  if (session != nullptr && session->declined()) why += session->decline_reason();
  const bool reads_data =
      why.find("data-dependent") != std::string::npos || why.find("the data of a tensor") != std::string::npos;
  PyErr_Clear();
  if (PyObject* note = of_module("flashover._operator_backward", "note"); note != nullptr && reads_data) {
    ++uninterpreted;
    Ref noted = Ref::steal(PyObject_CallOneArg(note, function));
    --uninterpreted;
    another_way_ = another_way_ || noted.get() == Py_True;
    PyErr_Clear();
  }
  error.restore();
}

// The frame has its arguments and has not begun.
PyObject* Interpreter::call_substitute(_PyInterpreterFrame* frame, PyObject* other) {
  const PyCodeObject* code = frame->f_code;
  if (!recorder.is_old(other)) recorder.constant(other);
  int at = code->co_argcount;
  Ref positional = Ref::steal(PyList_New(0)), named = Ref::steal(PyDict_New());
  for (int i = 0; i < at; ++i) PyList_Append(positional.get(), frame->localsplus[i]);
  for (int i = 0; i < code->co_kwonlyargcount; ++i, ++at)
    PyDict_SetItem(named.get(), PyTuple_GET_ITEM(code->co_localsplusnames, at), frame->localsplus[at]);
  if (code->co_flags & CO_VARARGS) {
    recorder.contents(frame->localsplus[at]);
    PyList_SetSlice(positional.get(), PY_SSIZE_T_MAX, PY_SSIZE_T_MAX, frame->localsplus[at++]);
  }
  if (code->co_flags & CO_VARKEYWORDS) {
    recorder.contents(frame->localsplus[at]);
    PyDict_Update(named.get(), frame->localsplus[at]);
  }
  Ref args = Ref::steal(PyList_AsTuple(positional.get()));
  if (!args || PyErr_Occurred()) return nullptr;
  return call_spread(other, args.get(), named.get());
}

namespace {

// Code that does nothing but make an exception and raise it, out of the frame, whichever way it goes.
bool only_raises(const Code& code, int pc) {
  constexpr size_t kMost = 400;
  std::vector<int> open = {pc};
  std::unordered_set<int> seen;
  while (!open.empty()) {
    pc = open.back();
    open.pop_back();
    if (pc < 0 || pc >= static_cast<int>(code.instructions.size()) || seen.size() > kMost) return false;
    if (!seen.insert(pc).second) continue;
    const Instruction& in = code.instructions[static_cast<size_t>(pc)];
    if (handler_at(code, pc) != nullptr) return false;
    if (in.op == RAISE_VARARGS && in.arg > 0) continue;
    const Flow flow = flow_of(in, pc);
    if ((!flow.falls_through && flow.target < 0) || (flow.target >= 0 && flow.target <= pc)) return false;
    if (flow.falls_through) open.push_back(pc + 1 + in.skip);
    if (flow.target >= 0) open.push_back(flow.target);
  }
  return true;
}

}  // namespace

// `assert t.max().item() <= n`: the number that the running call gives is compared with one, or asked for its truth,
// and the program goes on or raises.
bool Interpreter::is_only_checked(bool floating, bool* compared) {
  if (!assumes || top_ == nullptr) return false;
  const Code& code = *decode(top_->frame->f_code);
  const auto count = static_cast<int>(code.instructions.size());
  int pc = top_->next;
  if (pc >= count) return false;
  const auto at = [&code](int i) -> const Instruction& { return code.instructions[static_cast<size_t>(i)]; };
  *compared = at(pc).op == LOAD_CONST || at(pc).op == LOAD_FAST;
  if (*compared) {
    const auto index = static_cast<Py_ssize_t>(at(pc).arg);
    PyObject* other = at(pc).op == LOAD_CONST ? PyTuple_GET_ITEM(top_->frame->f_code->co_consts, index)
                                              : top_->frame->localsplus[index];
    // A whole number and a fraction would be compared as float32.
    if (other == nullptr ||
        !((PyLong_CheckExact(other) && _PyLong_NumBits(other) < 53) || (floating && PyFloat_CheckExact(other))))
      return false;
    pc += 1 + at(pc).skip;
    if (pc >= count || at(pc).op != COMPARE_OP) return false;
    pc += 1 + at(pc).skip;
    if (pc >= count) return false;
  }
  switch (at(pc).op) {
#if PY_VERSION_HEX < 0x030C0000
    case POP_JUMP_FORWARD_IF_FALSE:
    case POP_JUMP_FORWARD_IF_TRUE:
#else
    case POP_JUMP_IF_FALSE:
    case POP_JUMP_IF_TRUE:
#endif
      return only_raises(code, pc + 1 + at(pc).skip) || only_raises(code, flow_of(at(pc), pc).target);
    default:
      return false;
  }
}

// The truth of what a conditional jump takes. Where a tensor decides between going on and raising, the program is taken
// to go on.
int Interpreter::truth_for_jump(PyObject* o, const Code& code, int next, int target, bool jumps_when) {
  if (plain || session == nullptr || !assumes || !session->is_trace_tensor(o)) return truth(o);
  if (only_raises(code, next)) {
    trace::assumption().truth = jumps_when ? 1 : 0;
  } else if (only_raises(code, target)) {
    trace::assumption().truth = jumps_when ? 0 : 1;
  }
  const int result = truth(o);
  trace::assumption().truth = -1;
  return result;
}

#define PUSH(v)             \
  do {                      \
    PyObject* pushed = (v); \
    *sp++ = pushed;         \
  } while (false)
#define POP() (*--sp)
#define TOP() (sp[-1])
#define PEEK(n) (sp[-(n)])
#define NAME(i) PyTuple_GET_ITEM(names, i)

PyObject* Interpreter::evaluate(PyThreadState* tstate, _PyInterpreterFrame* frame, int throwflag, PlainRun* run) {
  PyCodeObject* const co = frame->f_code;
  Code* const code = decode(co);
  Linked linked(tstate, frame);
  PyObject** const locals = frame->localsplus;
  PyObject** const stack = locals + co->co_nlocalsplus;
  PyObject** sp = locals + frame->stacktop;
  _Py_CODEUNIT* const first = _PyCode_CODE(co);
  const Instruction* const instructions = code->instructions.data();
  PyObject* const names = co->co_names;
  PyObject* const consts = co->co_consts;
  int pc = static_cast<int>(frame->prev_instr - first) + 1;
  int polls = 0;
  int current = pc - 1;  // the instruction that runs; a RERAISE makes prev_instr point elsewhere
  PyObject* kwnames = nullptr;
  PyObject* result = nullptr;
  struct Entered {  // on the list of activations for as long as it runs
    Interpreter& in;
    Activation a;
    explicit Entered(Interpreter& i) : in(i) {}
    ~Entered() {
      if (!in.plain) in.top_ = a.caller;
    }
  } entered(*this);
  Activation& act = entered.a;
  char* lazy = nullptr;
  int mark = -1;  // plain runs: since here (with the stack at mark_sp) operands were only loaded
  PyObject** mark_sp = nullptr;
  if (run == nullptr) {
    act.frame = frame;
    act.caller = top_;
    const bool tail = std::exchange(tail_, false);
    act.direct = tail && top_ != nullptr && frame->owner == FRAME_OWNED_BY_THREAD;
    act.to_c = !tail && top_ != nullptr &&
               (frame->owner != FRAME_OWNED_BY_GENERATOR ||
                reinterpret_cast<PyObject*>(_PyFrame_GetGenerator(frame)) != gathered_);
    if (top_ == nullptr) {
      act.on_path = !stop_path_.empty();
      // Hooks that the backward calls have no caller here either.
      lazy = std::exchange(resumed_, false) && !untouched_.empty() ? untouched_.data() : nullptr;
    } else if (act.direct && top_->on_path) {
      act.depth = top_->depth + 1;
      act.on_path = act.depth < stop_path_.size() && stop_path_[top_->depth].count == top_->count;
    }
    if (act.on_path && act.depth + 1 == stop_path_.size()) act.stop = stop_path_.back().begin;
    top_ = &act;
  } else {
    act.stop = run->least + 1;
  }
  bool deep = Py_EnterRecursiveCall("");
#if PY_VERSION_HEX >= 0x030C0000
  if (!deep && tstate->py_recursion_remaining-- <= 1) {
    ++tstate->py_recursion_remaining;
    Py_LeaveRecursiveCall();
    PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded");
    deep = true;
  }
#endif
  frame->stacktop = -1;  // the collector must not look at the stack while it moves
  if (deep) goto leave;

  for (bool thrown = throwflag;;) try {
      if (run != nullptr && run->before) {
        PyObject* awaited = std::exchange(run->before, nullptr)();
        if (awaited == nullptr)
          thrown = true;
        else
          PUSH(awaited);
      }
      for (;;) {
        const Instruction in = instructions[pc];
        const int arg = static_cast<int>(in.arg);
        if (thrown) {  // generator.throw(), or what the frame waited for raised: the error is set
          thrown = false;
          goto error;
        }
        if (++act.count == act.stop) {
          if (run == nullptr) {
            take_snapshot(act, pc, sp);
            throw Declined("stopped");
          }
          Ease ease = kwnames != nullptr ? Ease::kControl : ease_of(in.op);
          if (ease == Ease::kNumbers)
            for (int i = 1; i <= operands_of(in.op); ++i)
              if (!is_number_like(PEEK(i))) ease = Ease::kNo;
          if (ease == Ease::kNo) {
            if (mark >= 0) {
              while (sp > mark_sp) Py_XDECREF(POP());
              pc = mark;
            }
            run->stopped = true;
            goto stop;
          }
          if (ease == Ease::kLoad) {
            if (mark < 0) {
              mark = pc;
              mark_sp = sp;
            }
          } else if (ease == Ease::kControl || sp - operands_of(in.op) < mark_sp) {
            mark = -1;
          }
          ++act.stop;
        }
        frame->prev_instr = first + pc;
        current = pc;
        pc += 1 + in.skip;
        if (gives_way && !aborted_ && signal_waits()) [[unlikely]] {
          abort("a signal came");
          goto error;
        }
        switch (in.op) {
          case NOP:
          case EXTENDED_ARG:
          case RESUME:
#if PY_VERSION_HEX < 0x030C0000
          case PRECALL:
#endif
            break;
          case LOAD_CLOSURE:
          case LOAD_FAST: {
            PyObject* v = locals[arg];
            if (v == nullptr) {
              unbound_local(co, arg);
              goto error;
            }
            if (lazy != nullptr && lazy[arg]) touch(static_cast<size_t>(arg), co, v);
            PUSH(Py_NewRef(locals[arg]));
            break;
          }
          case LOAD_CONST:
            PUSH(Py_NewRef(PyTuple_GET_ITEM(consts, arg)));
            break;
          case STORE_FAST: {
            PyObject* old = locals[arg];
            locals[arg] = POP();
            if (lazy != nullptr) lazy[arg] = 0;
            Py_XDECREF(old);
            break;
          }
          case DELETE_FAST: {
            PyObject* old = locals[arg];
            if (old == nullptr) {
              unbound_local(co, arg);
              goto error;
            }
            locals[arg] = nullptr;
            if (lazy != nullptr) lazy[arg] = 0;
            Py_DECREF(old);
            break;
          }
          case POP_TOP: {
            PyObject* v = POP();
            Py_DECREF(v);
            break;
          }
          case PUSH_NULL:
            PUSH(nullptr);
            break;
          case COPY:
            PUSH(Py_NewRef(PEEK(arg)));
            break;
          case SWAP:
            std::swap(TOP(), PEEK(arg));
            break;

            // Operators.
#if PY_VERSION_HEX < 0x030C0000
          case UNARY_POSITIVE:
#endif
          case UNARY_NEGATIVE:
          case UNARY_INVERT: {
            Ref v = Ref::steal(POP());
            PyObject* r = unary(v.get(), in.op == UNARY_NEGATIVE ? PyNumber_Negative
                                         : in.op == UNARY_INVERT ? PyNumber_Invert
                                                                 : PyNumber_Positive);
            if (r == nullptr) goto error;
            PUSH(r);
            break;
          }
          case UNARY_NOT: {
            Ref v = Ref::steal(POP());
            int t = truth(v.get());
            if (t < 0) goto error;
            PUSH(Py_NewRef(t ? Py_False : Py_True));
            break;
          }
          case BINARY_OP: {
            Ref b = Ref::steal(POP()), a = Ref::steal(POP());
            PyObject* r = binary(a.get(), b.get(), arg);
            if (r == nullptr) goto error;
            PUSH(r);
            break;
          }
          case BINARY_SUBSCR: {
            Ref key = Ref::steal(POP()), o = Ref::steal(POP());
            PyObject* r = subscript(o.get(), key.get());
            if (r == nullptr) goto error;
            PUSH(r);
            break;
          }
          case STORE_SUBSCR: {
            Ref key = Ref::steal(POP()), o = Ref::steal(POP()), v = Ref::steal(POP());
            if (set_subscript(o.get(), key.get(), v.get()) < 0) goto error;
            break;
          }
          case DELETE_SUBSCR: {
            Ref key = Ref::steal(POP()), o = Ref::steal(POP());
            if (set_subscript(o.get(), key.get(), nullptr) < 0) goto error;
            break;
          }
          case COMPARE_OP: {
            Ref b = Ref::steal(POP()), a = Ref::steal(POP());
#if PY_VERSION_HEX < 0x030C0000
            PyObject* r = compare(a.get(), b.get(), arg);
#else
            PyObject* r = compare(a.get(), b.get(), arg >> 4);
#endif
            if (r == nullptr) goto error;
            PUSH(r);
            break;
          }
          case IS_OP: {
            Ref b = Ref::steal(POP()), a = Ref::steal(POP());
            for (Ref* o : {&a, &b})
              if (is_made_array(o->get()))
                if (PyObject* origin = origin_of_array(o->get())) *o = Ref::borrow(origin);
            recorder.same_or_distinct(a.get(), b.get());
            if (recorder.numbers.any() && recorder.numbers.is(a.get()) != recorder.numbers.is(b.get()) &&
                Py_TYPE(a.get()) == Py_TYPE(b.get()))
              throw Declined("the identity of a number that changes");
            PUSH(Py_NewRef((a.get() == b.get()) != (arg != 0) ? Py_True : Py_False));
            break;
          }
          case CONTAINS_OP: {
            Ref c = Ref::steal(POP()), item = Ref::steal(POP());
            int r = contains(c.get(), item.get());
            if (r < 0) goto error;
            PUSH(Py_NewRef((r != 0) != (arg != 0) ? Py_True : Py_False));
            break;
          }

          // Attributes and names.
          case LOAD_ATTR: {
#if PY_VERSION_HEX >= 0x030C0000
            PyObject* name = NAME(arg >> 1);
            const bool method = arg & 1;
#else
            PyObject* name = NAME(arg);
            const bool method = false;
#endif
            Ref o = Ref::steal(POP());
            PyObject* r = nullptr;
            if (method && load_method(*this, o.get(), name, &r) == 1) {
              PUSH(r);
              PUSH(o.release());
              break;
            }
            if (!method) r = get_attr(o.get(), name);
            if (r == nullptr) goto error;
            if (method) PUSH(nullptr);
            PUSH(r);
            break;
          }
#if PY_VERSION_HEX < 0x030C0000
          case LOAD_METHOD: {
            Ref o = Ref::steal(POP());
            PyObject* r = nullptr;
            if (load_method(*this, o.get(), NAME(arg), &r) == 1) {
              PUSH(r);
              PUSH(o.release());
              break;
            }
            if (r == nullptr) goto error;
            PUSH(nullptr);
            PUSH(r);
            break;
          }
#endif
          case STORE_ATTR: {
            Ref o = Ref::steal(POP()), v = Ref::steal(POP());
            if (set_attr(o.get(), NAME(arg), v.get()) < 0) goto error;
            break;
          }
          case DELETE_ATTR: {
            Ref o = Ref::steal(POP());
            if (set_attr(o.get(), NAME(arg), nullptr) < 0) goto error;
            break;
          }
          case LOAD_GLOBAL: {
            PyObject* v = global(frame, NAME(arg >> 1));
            if (v == nullptr) goto error;
            if (arg & 1) PUSH(nullptr);
            PUSH(v);
            break;
          }
          case STORE_GLOBAL: {
            Ref v = Ref::steal(POP());
            if (!plain) journal.dict_item(frame->f_globals, NAME(arg));
            if (PyDict_SetItem(frame->f_globals, NAME(arg), v.get()) < 0) goto error;
            break;
          }
          case DELETE_GLOBAL: {
            if (recorder.dict_get(frame->f_globals, NAME(arg)) == nullptr) {
              name_error(NAME(arg));
              goto error;
            }
            if (!plain) journal.dict_item(frame->f_globals, NAME(arg), true);
            if (PyDict_DelItem(frame->f_globals, NAME(arg)) < 0) goto error;
            break;
          }
          case LOAD_NAME: {
            PyObject* name = NAME(arg);
            Ref v = local_name(*this, frame, name);
            if (!v && PyErr_Occurred()) goto error;
            if (!v) v = Ref::steal(global(frame, name));
            if (!v) goto error;
            PUSH(v.release());
            break;
          }
          case STORE_NAME: {
            Ref v = Ref::steal(POP());
            if (frame->f_locals == nullptr) throw Declined("module code");
            if (set_subscript(frame->f_locals, NAME(arg), v.get()) < 0) goto error;
            break;
          }
          case DELETE_NAME:
            if (frame->f_locals == nullptr) throw Declined("module code");
            if (set_subscript(frame->f_locals, NAME(arg), nullptr) < 0) {
              name_error(NAME(arg));
              goto error;
            }
            break;
          case SETUP_ANNOTATIONS: {
            Ref key = Ref::steal(PyUnicode_InternFromString("__annotations__"));
            Ref there = local_name(*this, frame, key.get());
            if (!there && PyErr_Occurred()) goto error;
            if (!there) {
              Ref fresh = Ref::steal(PyDict_New());
              if (!fresh || set_subscript(frame->f_locals, key.get(), fresh.get()) < 0) goto error;
            }
            break;
          }

          // Cells.
          case MAKE_CELL: {
            if (lazy != nullptr && lazy[arg]) touch(static_cast<size_t>(arg), co, locals[arg]);
            PyObject* cell = PyCell_New(locals[arg]);
            if (cell == nullptr) goto error;
            Py_XSETREF(locals[arg], cell);
            break;
          }
          case COPY_FREE_VARS: {
            PyObject* closure = reinterpret_cast<PyFunctionObject*>(frame_function(frame))->func_closure;
            const int offset = co->co_nlocalsplus - arg;
            for (int i = 0; i < arg; ++i) locals[offset + i] = Py_NewRef(PyTuple_GET_ITEM(closure, i));
            break;
          }
          case LOAD_DEREF: {
            PyObject* cell = locals[arg];
            PyObject* v = PyCell_GET(cell);
            if (v == nullptr) {
              unbound_local(co, arg);
              goto error;
            }
            Ref keep = Ref::borrow(v);
            if (recorder.is_old(cell) && !recorder.detached(cell))
              keep = Ref::borrow(
                  recorder.read(SourceKind::kCellContents, recorder.source_of(cell), -1, nullptr, keep.get()));
            PUSH(keep.release());
            break;
          }
#if PY_VERSION_HEX < 0x030C0000
          case LOAD_CLASSDEREF: {
            Ref v = local_name(*this, frame, PyTuple_GET_ITEM(co->co_localsplusnames, arg));
#else
          case LOAD_FROM_DICT_OR_DEREF: {
            Ref ns = Ref::steal(POP());
            Ref v = Ref::steal(PyObject_GetItem(ns.get(), PyTuple_GET_ITEM(co->co_localsplusnames, arg)));
            if (!v && PyErr_ExceptionMatches(PyExc_KeyError)) PyErr_Clear();
#endif
            if (!v && PyErr_Occurred()) goto error;
            if (!v) {
              PyObject* cell = locals[arg];
              v = Ref::borrow(PyCell_GET(cell));
              if (!v) {
                unbound_local(co, arg);
                goto error;
              }
              if (recorder.is_old(cell)) recorder.contents(cell);
            }
            PUSH(v.release());
            break;
          }
          case STORE_DEREF: {
            Ref v = Ref::steal(POP());
            if (recorder.is_old(locals[arg])) journal.cell(locals[arg]);
            PyCell_Set(locals[arg], v.get());
            break;
          }
          case DELETE_DEREF: {
            if (PyCell_GET(locals[arg]) == nullptr) {
              unbound_local(co, arg);
              goto error;
            }
            if (recorder.is_old(locals[arg])) journal.cell(locals[arg]);
            PyCell_Set(locals[arg], nullptr);
            break;
          }

          // Builders.
          case BUILD_TUPLE: {
            PyObject* t = PyTuple_New(arg);
            if (t == nullptr) goto error;
            for (int i = arg; i-- > 0;) PyTuple_SET_ITEM(t, i, POP());
            PUSH(t);
            break;
          }
          case BUILD_LIST: {
            PyObject* t = PyList_New(arg);
            if (t == nullptr) goto error;
            for (int i = arg; i-- > 0;) PyList_SET_ITEM(t, i, POP());
            PUSH(t);
            break;
          }
          case BUILD_SET: {
            Ref set = Ref::steal(PySet_New(nullptr));
            if (!set) goto error;
            bool ok = true;
            for (int i = arg; i > 0; --i) recorder.numbers.read_deep(PEEK(i));
            for (int i = arg; i > 0; --i) {
              if (!plain) recorder.hash(PEEK(i));
              ok = ok && PySet_Add(set.get(), PEEK(i)) == 0;
            }
            for (int i = 0; i < arg; ++i) Py_DECREF(POP());
            if (!ok) goto error;
            PUSH(set.release());
            break;
          }
          case BUILD_MAP: {
            Ref dict = Ref::steal(PyDict_New());
            if (!dict) goto error;
            bool ok = true;
            for (int i = arg; i > 0; --i) recorder.numbers.read_deep(PEEK(2 * i));
            for (int i = arg; i > 0; --i) {
              if (!plain) recorder.hash(PEEK(2 * i));
              ok = ok && PyDict_SetItem(dict.get(), PEEK(2 * i), PEEK(2 * i - 1)) == 0;
            }
            for (int i = 0; i < 2 * arg; ++i) Py_DECREF(POP());
            if (!ok) goto error;
            PUSH(dict.release());
            break;
          }
          case BUILD_CONST_KEY_MAP: {
            Ref keys = Ref::steal(POP());
            Ref dict = Ref::steal(PyDict_New());
            if (!dict) goto error;
            bool ok = true;
            for (int i = arg; i > 0; --i)
              ok = ok && PyDict_SetItem(dict.get(), PyTuple_GET_ITEM(keys.get(), arg - i), PEEK(i)) == 0;
            for (int i = 0; i < arg; ++i) Py_DECREF(POP());
            if (!ok) goto error;
            PUSH(dict.release());
            break;
          }
          case BUILD_STRING: {
            Ref empty = Ref::steal(PyUnicode_New(0, 0));
            PyObject* s = !plain && recorder.numbers.any() ? recorder.numbers.join(sp - arg, arg) : nullptr;
            if (s == nullptr) s = _PyUnicode_JoinArray(empty.get(), sp - arg, arg);
            for (int i = 0; i < arg; ++i) Py_DECREF(POP());
            if (s == nullptr) goto error;
            PUSH(s);
            break;
          }
          case BUILD_SLICE: {
            Ref step = Ref::steal(arg == 3 ? POP() : nullptr);
            Ref stop = Ref::steal(POP()), start = Ref::steal(POP());
            PyObject* s = PySlice_New(start.get(), stop.get(), step.get());
            if (s == nullptr) goto error;
            PUSH(s);
            break;
          }
          case FORMAT_VALUE: {
            Ref spec = Ref::steal((arg & 4) ? POP() : nullptr);
            Ref v = Ref::steal(POP());
            PyObject* s = format_value(*this, v.get(), arg & 3, spec.get());
            if (s == nullptr) goto error;
            PUSH(s);
            break;
          }
          case LIST_APPEND: {
            Ref v = Ref::steal(POP());
            if (recorder.is_old(PEEK(arg))) journal.append(PEEK(arg), v.get());  // a comprehension, after a break
            if (PyList_Append(PEEK(arg), v.get()) < 0) goto error;
            break;
          }
          case SET_ADD: {
            Ref v = Ref::steal(POP());
            if (recorder.is_old(PEEK(arg))) journal.whole(PEEK(arg));
            recorder.numbers.read_deep(v.get());
            if (!plain) recorder.hash(v.get());
            if (PySet_Add(PEEK(arg), v.get()) < 0) goto error;
            break;
          }
          case MAP_ADD: {
            Ref v = Ref::steal(POP()), k = Ref::steal(POP());
            if (!plain) recorder.hash(k.get());
            if (recorder.is_old(PEEK(arg))) journal.dict_item(PEEK(arg), k.get());
            recorder.numbers.read_deep(k.get());
            if (PyDict_SetItem(PEEK(arg), k.get(), v.get()) < 0) goto error;
            break;
          }
          case LIST_EXTEND: {
            Ref v = Ref::steal(POP());
            look_through(v.get());
            const Py_ssize_t length = PyList_GET_SIZE(PEEK(arg));
            const bool old = recorder.is_old(PEEK(arg));
            if (old) journal.append(PEEK(arg), nullptr);
            Ref none = Ref::steal(_PyList_Extend(reinterpret_cast<PyListObject*>(PEEK(arg)), v.get()));
            for (Py_ssize_t i = length; old && i < PyList_GET_SIZE(PEEK(arg)); ++i)
              journal.append(PEEK(arg), PyList_GET_ITEM(PEEK(arg), i));
            if (!none) {
              not_iterable_after_star(v.get());
              goto error;
            }
            break;
          }
          case SET_UPDATE: {
            Ref v = Ref::steal(POP());
            consume(v.get());
            if (recorder.is_old(PEEK(arg))) journal.whole(PEEK(arg));
            if (_PySet_Update(PEEK(arg), v.get()) < 0) goto error;
            break;
          }
          case DICT_UPDATE: {
            Ref v = Ref::steal(POP());
            look_through(v.get());
            if (recorder.is_old(PEEK(arg))) journal.whole(PEEK(arg));
            if (PyDict_Update(PEEK(arg), v.get()) < 0) {
              if (PyErr_ExceptionMatches(PyExc_AttributeError))
                PyErr_Format(PyExc_TypeError, "'%.200s' object is not a mapping", Py_TYPE(v.get())->tp_name);
              goto error;
            }
            break;
          }
          case DICT_MERGE: {
            Ref v = Ref::steal(POP());
            look_through(v.get());
            if (recorder.is_old(PEEK(arg))) journal.whole(PEEK(arg));
            if (_PyDict_MergeEx(PEEK(arg), v.get(), 2) < 0) {
              bad_keyword_dict(PEEK(2 + arg), v.get());
              goto error;
            }
            break;
          }
#if PY_VERSION_HEX < 0x030C0000
          case LIST_TO_TUPLE: {
            Ref l = Ref::steal(POP());
            if (recorder.is_old(l.get())) recorder.contents(l.get());
            PyObject* t = PyList_AsTuple(l.get());
            if (t == nullptr) goto error;
            PUSH(t);
            break;
          }
#endif
          case UNPACK_SEQUENCE:
          case UNPACK_EX: {
            Ref seq = Ref::steal(POP());
            const bool ex = in.op == UNPACK_EX;
            const int before = ex ? arg & 0xFF : arg, after = ex ? arg >> 8 : -1;
            if (!unpack(*this, seq.get(), before, after, &sp)) goto error;
            break;
          }
          case MAKE_FUNCTION: {
            Ref made = Ref::steal(POP());
            PyObject* f = PyFunction_New(made.get(), frame->f_globals);
            if (f == nullptr) goto error;
            auto* function = reinterpret_cast<PyFunctionObject*>(f);
            if (arg & 8) function->func_closure = POP();
            if (arg & 4) function->func_annotations = POP();
            if (arg & 2) function->func_kwdefaults = POP();
            if (arg & 1) function->func_defaults = POP();
            if (!plain) recorder.fresh_function(f);
            PUSH(f);
            break;
          }
          case LOAD_BUILD_CLASS: {
            Ref name = Ref::steal(PyUnicode_InternFromString("__build_class__"));
            PyObject* b = recorder.dict_get(frame->f_builtins, name.get());
            if (b == nullptr) {
              PyErr_SetString(PyExc_NameError, "__build_class__ not found");
              goto error;
            }
            PUSH(Py_NewRef(b));
            break;
          }
          case LOAD_ASSERTION_ERROR:
            PUSH(Py_NewRef(PyExc_AssertionError));
            break;

          // Calls.
          case KW_NAMES:
            kwnames = PyTuple_GET_ITEM(consts, arg);
            act.names = act.count;
            break;
          case CALL: {
            PyObject* names_now = std::exchange(kwnames, nullptr);
            PyObject** base = sp - arg - 2;
            PyObject* r;
            act.below = base;
            act.next = pc;
            tail_ = true;
            if (base[0] != nullptr) {
              r = call(base[0], base + 1, static_cast<size_t>(arg) + 1 - keyword_count(names_now), names_now);
            } else {
              r = call(base[1], base + 2, static_cast<size_t>(arg) - keyword_count(names_now), names_now);
            }
            tail_ = false;
            while (sp > base) Py_XDECREF(POP());  // (what dies here may end the capture, at this call)
            act.names = 0;
            if (r == nullptr) goto error;
            PUSH(r);
            break;
          }
          case CALL_FUNCTION_EX: {
            Ref kwargs = Ref::steal((arg & 1) ? POP() : nullptr);
            Ref args = Ref::steal(POP());
            Ref f = Ref::steal(POP());
            Py_XDECREF(POP());  // the NULL below
            if (!PyTuple_CheckExact(args.get())) {
              look_through(args.get());
              if (!is_iterable_argument(f.get(), args.get())) goto error;
              args = Ref::steal(PySequence_Tuple(args.get()));
              if (!args) goto error;
            }
            act.below = sp;
            act.next = pc;
            tail_ = true;
            PyObject* r = call_spread(f.get(), args.get(), kwargs.get());
            tail_ = false;
            if (r == nullptr) goto error;
            PUSH(r);
            break;
          }
          case RETURN_VALUE:
            if (act.to_c) recorder.numbers.read_deep(TOP());
            result = POP();
            goto leave;

          // Jumps.
          case JUMP_FORWARD:
            pc += arg;
            break;
          case JUMP_BACKWARD:
            if (session == nullptr && ++polls % kSignalPollInterval == 0 && PyErr_CheckSignals() < 0) goto error;
            [[fallthrough]];
          case JUMP_BACKWARD_NO_INTERRUPT:
            pc -= arg;
            break;
#if PY_VERSION_HEX < 0x030C0000
          case POP_JUMP_FORWARD_IF_FALSE:
          case POP_JUMP_FORWARD_IF_TRUE:
          case POP_JUMP_BACKWARD_IF_FALSE:
          case POP_JUMP_BACKWARD_IF_TRUE: {
            Ref v = Ref::steal(POP());
            const bool wanted = in.op == POP_JUMP_FORWARD_IF_TRUE || in.op == POP_JUMP_BACKWARD_IF_TRUE;
            const bool forward = in.op == POP_JUMP_FORWARD_IF_FALSE || in.op == POP_JUMP_FORWARD_IF_TRUE;
            int t = truth_for_jump(v.get(), *code, pc, pc + (forward ? arg : -arg), wanted);
            if (t < 0) goto error;
            if ((t != 0) == wanted) pc += forward ? arg : -arg;
            break;
          }
          case POP_JUMP_FORWARD_IF_NONE:
          case POP_JUMP_FORWARD_IF_NOT_NONE:
          case POP_JUMP_BACKWARD_IF_NONE:
          case POP_JUMP_BACKWARD_IF_NOT_NONE: {
            Ref v = Ref::steal(POP());
            const bool wanted = in.op == POP_JUMP_FORWARD_IF_NONE || in.op == POP_JUMP_BACKWARD_IF_NONE;
            const bool forward = in.op == POP_JUMP_FORWARD_IF_NONE || in.op == POP_JUMP_FORWARD_IF_NOT_NONE;
            if ((v.get() == Py_None) == wanted) pc += forward ? arg : -arg;
            break;
          }
          case JUMP_IF_FALSE_OR_POP:
          case JUMP_IF_TRUE_OR_POP: {
            int t = truth(TOP());
            if (t < 0) goto error;
            if ((t != 0) == (in.op == JUMP_IF_TRUE_OR_POP)) {
              pc += arg;
            } else {
              Py_DECREF(POP());
            }
            break;
          }
#else
          case POP_JUMP_IF_FALSE:
          case POP_JUMP_IF_TRUE: {
            Ref v = Ref::steal(POP());
            int t = truth_for_jump(v.get(), *code, pc, pc + arg, in.op == POP_JUMP_IF_TRUE);
            if (t < 0) goto error;
            if ((t != 0) == (in.op == POP_JUMP_IF_TRUE)) pc += arg;
            break;
          }
          case POP_JUMP_IF_NONE:
          case POP_JUMP_IF_NOT_NONE: {
            Ref v = Ref::steal(POP());
            if ((v.get() == Py_None) == (in.op == POP_JUMP_IF_NONE)) pc += arg;
            break;
          }
#endif
          case GET_ITER: {
            Ref o = Ref::steal(POP());
            PyObject* it = iterator(o.get());
            if (it == nullptr) goto error;
            PUSH(it);
            break;
          }
          case FOR_ITER: {
            PyObject* v = next(TOP());
            if (v != nullptr) {
              PUSH(v);
              break;
            }
            if (PyErr_Occurred()) goto error;
            Py_DECREF(POP());
#if PY_VERSION_HEX < 0x030C0000
            pc += arg;
#else
            pc += arg + 1;  // past END_FOR
#endif
            break;
          }
          case GET_LEN: {
            Py_ssize_t n = (look_special(TOP(), "__len__"), recorder.length(TOP()), PyObject_Size(TOP()));
            if (n < 0) goto error;
            PyObject* v = PyLong_FromSsize_t(n);
            if (v == nullptr) goto error;
            PUSH(v);
            break;
          }

          // Generators.
          case GET_YIELD_FROM_ITER: {
            if (PyGen_CheckExact(TOP())) break;
            Ref o = Ref::steal(POP());
            PyObject* it = iterator(o.get());
            if (it == nullptr) goto error;
            PUSH(it);
            break;
          }
          case SEND: {
            Ref v = Ref::steal(POP());
            PyObject* out = nullptr;
            if (recorder.is_old(TOP())) throw Declined("an iterator from before the call is advanced");
            PySendResult status = PyIter_Send(TOP(), v.get(), &out);
            if (status == PYGEN_ERROR) goto error;
#if PY_VERSION_HEX < 0x030C0000
            if (status == PYGEN_RETURN) {
              Py_DECREF(POP());
              pc += arg;
            }
#else
            if (status == PYGEN_RETURN) pc += arg;
#endif
            PUSH(out);
            break;
          }
          case YIELD_VALUE: {
            if (frame->owner != FRAME_OWNED_BY_GENERATOR) {  // the root: the real generator's frame goes on from here
              yields_ = true;
              take_snapshot(act, current, sp);
              throw Declined("stopped");
            }
            if (act.to_c) recorder.numbers.read_deep(TOP());
            result = POP();
            auto* generator = _PyFrame_GetGenerator(frame);
            generator->gi_frame_state = FRAME_SUSPENDED;
            _PyFrame_SetStackPointer(frame, sp);
#if PY_VERSION_HEX >= 0x030C0000
            tstate->exc_info = generator->gi_exc_state.previous_item;
            generator->gi_exc_state.previous_item = nullptr;
            linked.leave();
            frame->previous = nullptr;
            ++tstate->py_recursion_remaining;
#endif
            Py_LeaveRecursiveCall();
            return result;
          }

          // Exceptions.
          case PUSH_EXC_INFO: {
            PyObject* v = POP();
            _PyErr_StackItem* info = tstate->exc_info;
            PUSH(info->exc_value != nullptr ? info->exc_value : Py_NewRef(Py_None));
            PUSH(Py_NewRef(v));
            info->exc_value = v;
            break;
          }
          case POP_EXCEPT: {
            _PyErr_StackItem* info = tstate->exc_info;
            PyObject* old = info->exc_value;
            info->exc_value = POP();
            Py_XDECREF(old);
            break;
          }
          case CHECK_EXC_MATCH: {
            Ref type = Ref::steal(POP());
            int r = exception_matches(*this, TOP(), type.get());
            if (r < 0) goto error;
            PUSH(Py_NewRef(r ? Py_True : Py_False));
            break;
          }
          case CHECK_EG_MATCH: {
            Ref type = Ref::steal(POP()), group = Ref::steal(POP());
            Ref match, rest;
            if (!split_group(*this, group.get(), type.get(), match, rest)) goto error;
            if (match.get() != Py_None) PyErr_SetHandledException(match.get());
            PUSH(rest.release());
            PUSH(match.release());
            break;
          }
#if PY_VERSION_HEX < 0x030C0000
          case PREP_RERAISE_STAR: {
            Ref raised = Ref::steal(POP()), original = Ref::steal(POP());
            PyObject* left = what_to_reraise(original.get(), raised.get());
            if (left == nullptr) goto error;
            PUSH(left);
            break;
          }
#else
          case CALL_INTRINSIC_2: {
            Ref b = Ref::steal(POP()), a = Ref::steal(POP());
            if (arg != 1) throw Declined("an intrinsic that the interpreter does not know: " + std::to_string(arg));
            PyObject* left = what_to_reraise(a.get(), b.get());  // INTRINSIC_PREP_RERAISE_STAR
            if (left == nullptr) goto error;
            PUSH(left);
            break;
          }
#endif
          case RERAISE: {
            if (arg > 0) frame->prev_instr = first + PyLong_AsLong(PEEK(arg + 1));
            if (!plain && act.caller != nullptr && recorder.is_old(TOP()))
              throw Declined("an exception from before the call is raised again");
            PyObject* v = POP();
            PyErr_Restore(Py_NewRef(PyExceptionInstance_Class(v)), v, PyException_GetTraceback(v));
            goto unwind;
          }
          case RAISE_VARARGS: {
            Ref cause = Ref::steal(arg == 2 ? POP() : nullptr);
            Ref exception = Ref::steal(arg >= 1 ? POP() : nullptr);
            if (raise(*this, exception.get(), cause.get())) goto unwind;
            goto error;
          }
          case BEFORE_WITH: {
            Ref manager = Ref::steal(POP());
            look_special(manager.get(), "__enter__");
            look_special(manager.get(), "__exit__");
            Ref enter = special_method(manager.get(), "__enter__", "context manager");
            if (!enter) goto error;
            Ref exit = special_method(manager.get(), "__exit__", "context manager");
            if (!exit) goto error;
            PyObject* none[1] = {nullptr};
            PyObject* entered = call(enter.get(), none + 1, 0, nullptr);
            if (entered == nullptr) goto error;
            PUSH(exit.release());
            PUSH(entered);
            break;
          }
          case WITH_EXCEPT_START: {
            PyObject* v = TOP();
            Ref tb = Ref::steal(PyException_GetTraceback(v));
            PyObject* args[4] = {nullptr, PyExceptionInstance_Class(v), v, tb ? tb.get() : Py_None};
            PyObject* r = call(PEEK(4), args + 1, 3, nullptr);
            if (r == nullptr) goto error;
            PUSH(r);
            break;
          }

          // Imports.
          case IMPORT_NAME: {
            Ref fromlist = Ref::steal(POP()), level = Ref::steal(POP());
            PyObject* m = import_name(*this, frame, NAME(arg), fromlist.get(), level.get());
            if (m == nullptr) goto error;
            PUSH(m);
            break;
          }
          case IMPORT_FROM: {
            PyObject* v = import_from(*this, TOP(), NAME(arg));
            if (v == nullptr) goto error;
            PUSH(v);
            break;
          }

          // Structural pattern matching.
          case MATCH_MAPPING:
          case MATCH_SEQUENCE: {
            unsigned long flag = in.op == MATCH_MAPPING ? Py_TPFLAGS_MAPPING : Py_TPFLAGS_SEQUENCE;
            PUSH(Py_NewRef(Py_TYPE(TOP())->tp_flags & flag ? Py_True : Py_False));
            break;
          }
          case MATCH_KEYS: {
            PyObject* v = match_keys(*this, PEEK(2), TOP());
            if (v == nullptr) goto error;
            PUSH(v);
            break;
          }
          case MATCH_CLASS: {
            Ref keywords = Ref::steal(POP()), type = Ref::steal(POP()), subject = Ref::steal(POP());
            PyObject* v = match_class(*this, subject.get(), type.get(), arg, keywords.get());
            if (v == nullptr && PyErr_Occurred()) goto error;
            PUSH(v != nullptr ? v : Py_NewRef(Py_None));
            break;
          }

#if PY_VERSION_HEX >= 0x030C0000
          case RETURN_CONST:
            result = Py_NewRef(PyTuple_GET_ITEM(consts, arg));
            goto leave;
          case LOAD_FAST_CHECK: {
            PyObject* v = locals[arg];
            if (v == nullptr) {
              unbound_local(co, arg);
              goto error;
            }
            if (lazy != nullptr && lazy[arg]) touch(static_cast<size_t>(arg), co, v);
            PUSH(Py_NewRef(locals[arg]));
            break;
          }
          case LOAD_FAST_AND_CLEAR:
            if (lazy != nullptr && lazy[arg]) touch(static_cast<size_t>(arg), co, locals[arg]);
            PUSH(std::exchange(locals[arg], nullptr));
            break;
          case END_FOR:
            Py_DECREF(POP());
            Py_DECREF(POP());
            break;
          case END_SEND: {
            PyObject* v = POP();
            Py_DECREF(POP());
            PUSH(v);
            break;
          }
          case BINARY_SLICE: {
            Ref stop = Ref::steal(POP()), start = Ref::steal(POP()), o = Ref::steal(POP());
            Ref slice = Ref::steal(PySlice_New(start.get(), stop.get(), nullptr));
            PyObject* v = slice ? subscript(o.get(), slice.get()) : nullptr;
            if (v == nullptr) goto error;
            PUSH(v);
            break;
          }
          case STORE_SLICE: {
            Ref stop = Ref::steal(POP()), start = Ref::steal(POP()), o = Ref::steal(POP()), v = Ref::steal(POP());
            Ref slice = Ref::steal(PySlice_New(start.get(), stop.get(), nullptr));
            if (!slice || set_subscript(o.get(), slice.get(), v.get()) < 0) goto error;
            break;
          }
          case LOAD_LOCALS:
            if (frame->f_locals == nullptr) throw Declined("no locals");
            PUSH(Py_NewRef(frame->f_locals));
            break;
          case LOAD_FROM_DICT_OR_GLOBALS: {
            Ref ns = Ref::steal(POP());
            Ref v = Ref::steal(PyObject_GetItem(ns.get(), NAME(arg)));
            if (!v) {
              if (!PyErr_ExceptionMatches(PyExc_KeyError)) goto error;
              PyErr_Clear();
              v = Ref::steal(global(frame, NAME(arg)));
            }
            if (!v) goto error;
            PUSH(v.release());
            break;
          }
          case LOAD_SUPER_ATTR: {
            Ref self = Ref::steal(POP()), cls = Ref::steal(POP()), super = Ref::steal(POP());
            PyObject* args[3] = {nullptr, cls.get(), self.get()};
            // The real super() does with both arguments what it would find by itself with none.
            const bool real = super.get() == reinterpret_cast<PyObject*>(&PySuper_Type);
            Ref object = Ref::steal(call(super.get(), args + 1, real || (arg & 2) ? 2 : 0, nullptr));
            if (!object) goto error;
            PyObject* v = get_attr(object.get(), NAME(arg >> 2));
            if (v == nullptr) goto error;
            if (arg & 1) PUSH(nullptr);
            PUSH(v);
            break;
          }
          case CLEANUP_THROW: {  // sub-iterator, last value sent, exception
            PyObject* v = TOP();
            if (!PyErr_GivenExceptionMatches(v, PyExc_StopIteration)) {
              PyErr_Restore(Py_NewRef(PyExceptionInstance_Class(v)), Py_NewRef(v), PyException_GetTraceback(v));
              goto unwind;
            }
            PyObject* value = reinterpret_cast<PyStopIterationObject*>(v)->value;
            Ref keep = Ref::borrow(value != nullptr ? value : Py_None);
            for (int i = 0; i < 3; ++i) Py_DECREF(POP());
            PUSH(Py_NewRef(Py_None));
            PUSH(keep.release());
            break;
          }
          case CALL_INTRINSIC_1: {
            Ref v = Ref::steal(POP());
            PyObject* r = intrinsic(arg, v.get());
            if (r == nullptr) goto error;
            PUSH(r);
            break;
          }
#endif
          default:
            if (run != nullptr) {
              run->stopped = run->unknown = true;
              pc = current;
              goto stop;
            }
            throw Declined("an instruction that the interpreter does not know: opcode " + std::to_string(in.op));
        }
        if (!old_objects.empty() && sp > stack && TOP() != nullptr) check_origin(TOP());
        if (aborted_) goto error;  // native code may have swallowed the error that stopped the capture
        continue;

      error:
        if (!aborted_) {
          if (session != nullptr && session->declined()) abort(session->decline_reason());
          if (!PyErr_Occurred()) PyErr_SetString(PyExc_SystemError, "error return without exception set");
        }
        if (!aborted_) {
          if (!_PyFrame_IsIncomplete(frame)) PyTraceBack_Here(PyEval_GetFrame());
        }
      unwind:
        kwnames = nullptr;
        act.names = 0;
        mark = -1;
        const Handler* handler = aborted_ ? nullptr : handler_at(*code, current);
        if (handler == nullptr) {
          while (sp > stack) Py_XDECREF(POP());
          goto leave;
        }
        while (sp > stack + handler->depth) Py_XDECREF(POP());
        if (handler->lasti) PUSH(PyLong_FromLong(static_cast<long>(frame->prev_instr - first)));
        PyObject *type, *value, *tb;
        PyErr_Fetch(&type, &value, &tb);
        PyErr_NormalizeException(&type, &value, &tb);
        PyException_SetTraceback(value, tb != nullptr ? tb : Py_None);
        Py_XDECREF(type);
        Py_XDECREF(tb);
        PUSH(value);
        pc = handler->target;
      }
    } catch (const Declined& d) {
      if (plain) {  // none is thrown for good reason
        tell_of_exception();
        while (sp > stack) Py_XDECREF(POP());
        break;
      }
      abort(d.reason);
      while (sp > stack) Py_XDECREF(POP());
      break;
    } catch (const std::exception& e) {
      if (plain) {
        tell_of_exception();
        while (sp > stack) Py_XDECREF(POP());
        break;
      }
      abort_for(e);
      while (sp > stack) Py_XDECREF(POP());
      break;
    }

stop:
  if (run != nullptr && run->stopped) {
    while (pc > 0 && instructions[pc - 1].op == EXTENDED_ARG) --pc;  // CPython must see the whole argument
    frame->prev_instr = first + pc - 1;
    _PyFrame_SetStackPointer(frame, sp);
    Py_LeaveRecursiveCall();
#if PY_VERSION_HEX >= 0x030C0000
    ++tstate->py_recursion_remaining;
#endif
    return nullptr;
  }

leave:
  if (aborted_) {
    Py_CLEAR(result);
    while (sp > stack) Py_XDECREF(POP());
    abort("");  // makes sure an error is set
  }
  _PyFrame_SetStackPointer(frame, sp);
  if (!deep) Py_LeaveRecursiveCall();
#if PY_VERSION_HEX >= 0x030C0000
  if (!deep) ++tstate->py_recursion_remaining;
  linked.leave();  // a frame that is being cleared must not be visible to finalizers
  finish_frame(tstate, frame);
#endif
  return result;
}

void Interpreter::end_generators() {
  const bool was = std::exchange(aborted_, true);  // frames that are entered are left at once
  for (Ref& weak : generators_) {
    Ref generator = Ref::borrow(weak ? PyWeakref_GET_OBJECT(weak.get()) : nullptr);
    if (!generator || generator.get() == Py_None) continue;
    HookInstalled hook;
    Ref closed = Ref::steal(PyObject_CallMethod(generator.get(), "close", nullptr));
    PyErr_Clear();
  }
  generators_.clear();
  aborted_ = was;
}

void Interpreter::remember_old_objects() {
  Ref gc = Ref::steal(PyImport_ImportModule("gc"));
  Ref all = gc ? Ref::steal(PyObject_CallMethod(gc.get(), "get_objects", nullptr)) : Ref();
  if (!all) throw Declined("gc.get_objects() failed");
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(all.get()); ++i) old_objects.insert(PyList_GET_ITEM(all.get(), i));
}

void Interpreter::check_origin(PyObject* o) {
  if (is_atom(o) || recorder.is_old(o) || is_pinned_kind(o) || old_objects.count(o) == 0) return;
  if (PyTuple_CheckExact(o)) return;  // constants of code objects
  throw Declined(std::string("an old object without a source: ") + Py_TYPE(o)->tp_name);
}

void Interpreter::abort(const std::string& reason) noexcept {
  const bool first = !std::exchange(aborted_, true);
  try {
    if (first) {
      reason_ = reason;
      where_ = top_ != nullptr ? asking_line() : location();
      stack_ = stack();
      must_raise_ = breaks_are_errors();
      note_break();
    }
  } catch (const std::exception&) {  // no memory to say where
    out_of_memory_ = true;
  }
  if (first && PyErr_Occurred()) PyErr_Clear();
  if (PyErr_Occurred()) return;
  try {
    if (session != nullptr && !stopped_) session->decline(reason_);  // a stop leaves the trace as it is
  } catch (const std::exception&) {
    out_of_memory_ = true;
  }
  if (!PyErr_Occurred()) PyErr_SetString(decline_exception(), reason_.c_str());
}

void Interpreter::abort_for(const std::exception& e) noexcept {
  try {
    out_of_memory_ = out_of_memory_ || dynamic_cast<const std::bad_alloc*>(&e) != nullptr;
    abort(out_of_memory_ ? "out of memory" : std::string("internal error: ") + e.what());
  } catch (const std::exception&) {
    abort({});
  }
}

namespace {

_PyInterpreterFrame* complete(_PyInterpreterFrame* f) {
  while (f != nullptr && _PyFrame_IsIncomplete(f)) f = f->previous;
  return f;
}

std::string line_of_frame(_PyInterpreterFrame* f) {
  Code* decoded = decode(f->f_code);
  if (decoded == nullptr) {
    PyErr_Clear();
    return "";
  }
  const char* file = PyUnicode_AsUTF8(f->f_code->co_filename);
  if (file == nullptr) PyErr_Clear();
  int unit = static_cast<int>(f->prev_instr - _PyCode_CODE(f->f_code));
  return std::string(file != nullptr ? file : "?") + ":" + std::to_string(line_of(f->f_code, decoded, unit));
}

// A file of the torch package.
bool is_torchs_own(PyCodeObject* code) {
  static const std::string folder = [] {
    PyObject* torch = PyImport_AddModule("torch");  // borrowed
    Ref file = Ref::steal(torch != nullptr ? PyObject_GetAttrString(torch, "__file__") : nullptr);
    const char* path = file ? PyUnicode_AsUTF8(file.get()) : nullptr;
    PyErr_Clear();
    const std::string text = path != nullptr ? path : "";
    return text.substr(0, text.rfind('/') + 1);
  }();
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (file == nullptr) PyErr_Clear();
  return file != nullptr && !folder.empty() &&
         (std::string_view(file).starts_with(folder) || std::string_view(file).ends_with("/flashover/_substitutes.py"));
}

}  // namespace

std::string Interpreter::location() const {
  _PyInterpreterFrame* f = complete(current_frame(PyThreadState_Get()));
  return f == nullptr ? "" : line_of_frame(f);
}

bool Interpreter::torchs_own(Activation& a) {
  if (a.torchs_own < 0) {
    auto [own, fresh] = torchs_own_.try_emplace(a.frame->f_code);
    if (fresh) own->second = is_torchs_own(a.frame->f_code);
    a.torchs_own = own->second;
  }
  return a.torchs_own != 0;
}

_PyInterpreterFrame* Interpreter::asking_frame() {
  for (Activation* a = top_; a != nullptr; a = a->caller)
    if (!torchs_own(*a)) return a->frame;
  return top_ == nullptr ? nullptr : top_->frame;
}

std::string Interpreter::asking_line() {
  _PyInterpreterFrame* f = complete(asking_frame());
  return f == nullptr ? begins_at : line_of_frame(f);
}

uint64_t Interpreter::asking_key() {
  _PyInterpreterFrame* f = asking_frame();
  return f == nullptr ? 0 : reinterpret_cast<uint64_t>(f->prev_instr);
}

namespace {

thread_local PyObject* root_module = nullptr;

// Names `module` and what is below it; of two ways to one module the first counts.
void name_modules(PyObject* module, const std::string& path, std::unordered_map<PyObject*, std::string>& paths,
                  int depth) {
  constexpr int kMostDeep = 64;
  if (depth > kMostDeep || !paths.try_emplace(module, path).second) return;
  static PyObject* const name = PyUnicode_InternFromString("_modules");
  PyObject** dict = _PyObject_GetDictPtr(module);
  PyObject* children = dict != nullptr && *dict != nullptr ? PyDict_GetItemWithError(*dict, name) : nullptr;
  if (children == nullptr || !PyDict_Check(children)) return;
  PyObject *key, *child;
  Py_ssize_t at = 0;
  while (PyDict_Next(children, &at, &key, &child)) {
    const char* text = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : nullptr;
    if (text != nullptr && is_module(child)) name_modules(child, path + "." + text, paths, depth + 1);
  }
  PyErr_Clear();
}

}  // namespace

NamesModules::NamesModules(PyObject* root) : outer_(std::exchange(root_module, root)) {}
NamesModules::~NamesModules() { root_module = outer_; }

// The path from the module that is compiled, in the rest of a call, which finds its modules in local variables.
const std::string* Interpreter::path_of_module(PyObject* module) {
  if (!is_rest_ || root_module == nullptr) return nullptr;
  if (!std::exchange(looked_for_paths_, true)) name_modules(root_module, "self", module_paths_, 0);
  const auto found = module_paths_.find(module);
  return found == module_paths_.end() ? nullptr : &found->second;
}

std::string Interpreter::operator_location() {
  if (top_ == nullptr) return "";  // autograd's engine: the recorder knows which forward it belongs to
  _PyInterpreterFrame* innermost = complete(current_frame(PyThreadState_Get()));
  _PyInterpreterFrame* line = nullptr;
  const std::string* module = nullptr;
  // Beyond the capture's own frames is its caller.
  for (_PyInterpreterFrame* f = innermost; f != nullptr && (line == nullptr || module == nullptr);
       f = complete(f->previous)) {
    bool ours = false;
    for (const Activation* a = top_; a != nullptr && !ours; a = a->caller) ours = a->frame == f;
    if (!ours) break;
    auto [own, fresh] = torchs_own_.try_emplace(f->f_code);
    if (fresh) own->second = is_torchs_own(f->f_code);
    if (line == nullptr && !own->second) line = f;
    if (module != nullptr || f->f_code->co_argcount == 0) continue;
    PyObject* self = f->localsplus[0];
    if (self != nullptr && PyCell_Check(self)) self = PyCell_GET(self);
    if (self == nullptr || !is_module(self)) continue;
    auto [name, unnamed] = module_names_.try_emplace(self);
    if (unnamed) {
      const std::string* path = path_of_module(self);
      const SourceId id = path == nullptr ? recorder.source_of(self) : kNoSource;
      if (path != nullptr) name->second = *path;
      if (id != kNoSource) name->second = recorder.name_of(id);
    }
    module = &name->second;
  }
  if (line == nullptr) line = innermost;
  if (line == nullptr) return "";
  return line_of_frame(line) + (module == nullptr || module->empty() ? "" : " in " + *module) +
         (checkpoint_depth_ > 0 ? graph::checkpoint_mark(checkpoints_) : "");
}

std::string Interpreter::stack() const {
  std::string out;
  for (_PyInterpreterFrame* f = complete(current_frame(PyThreadState_Get())); f != nullptr; f = complete(f->previous)) {
    const char* name = PyUnicode_AsUTF8(f->f_code->co_qualname);
    if (name == nullptr) PyErr_Clear();
    out = line_of_frame(f) + " in " + (name != nullptr ? name : "?") + (out.empty() ? "" : "\n" + out);
  }
  return out;
}

}  // namespace flashover::frame
