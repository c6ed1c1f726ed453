// What becomes of a Python frame that is about to run in a capture: interpreted, run by CPython, replaced by a
// substitute, or the end of the capture.
#include "frame/bytecode/code_file.h"
#include "frame/fetched_error.h"
#include "frame/interpret/instructions.h"
#include "frame/interpret/interpreter.h"
#include "frame/own_calls.h"
#include "frame/resume.h"
#include "trace/aside.h"

namespace flashover::frame {
namespace {

// The class that is being made is seen first by __set_name__, __init_subclass__ and its metaclass.
void note_class_in_the_making(SourceTracker& recorder, _PyInterpreterFrame* frame) {
  const auto is = [&](const char* name) {
    return PyUnicode_CompareWithASCIIString(code_of(frame)->co_name, name) == 0;
  };
  const int at = is("__set_name__") ? 1 : 0;
  if (at == 0 && !is("__init_subclass__") && !is("__init__") && !is("mro")) return;
  if (code_of(frame)->co_argcount <= at) return;
  PyObject* made = compat::local_of(frame, at);
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
  return file_of(code).ends_with("torch/_library/autograd.py");
}

// Something else was called in place of the frame, which leaves it as its evaluator would.
PyObject* replaced(PyThreadState* tstate, _PyInterpreterFrame* frame, PyObject* result) {
  finish_frame(tstate, frame);
  return result;
}

}  // namespace

void Interpreter::touch(size_t slot, PyCodeObject* code, PyObject* object) {
  untouched_[slot] = 0;
  PyObject* seen = recorder.read(SourceKind::kArgument, kNoSource, static_cast<int64_t>(slot),
                                 PyTuple_GET_ITEM(code->co_localsplusnames, static_cast<Py_ssize_t>(slot)), object);
  if (seen == object) return;
  compat::set_slot(top_->frame->localsplus[slot], Py_NewRef(seen));
}

// The frame goes on as `start` says. What is read may call Python (torch function modes): that is no part of the
// program, whose first frame has not begun yet.
void Interpreter::take_up(const CaptureRequest& start, _PyInterpreterFrame* frame) {
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
  const bool all = reads_its_locals(code_of(frame));
  const int locals = code_of(frame)->co_nlocalsplus;
  for (int i = 0; i < static_cast<int>(depth); ++i) {
    PyObject* o = slots[static_cast<size_t>(i)];
    if (o == nullptr) continue;
    if (i < locals && !PyCell_Check(o) && !all && !(i == 0 && code_of(frame)->co_nfreevars > 0)) {
      untouched_[static_cast<size_t>(i)] = 1;
    } else {
      PyObject* name = i < locals ? PyTuple_GET_ITEM(code_of(frame)->co_localsplusnames, i) : nullptr;
      PyObject* seen = recorder.read(SourceKind::kArgument, kNoSource, i, name, o);
      if (seen != o) compat::set_slot(frame->localsplus[i], Py_NewRef(seen));
    }
  }
  PyObject* builtins = reinterpret_cast<PyFunctionObject*>(start.function)->func_builtins;
  if (!recorder.is_old(frame->f_globals)) recorder.constant(frame->f_globals);
  if (!recorder.is_old(builtins)) recorder.constant(builtins);
  if (start.next == 0) recorder.function(start.function);  // its closure is still to be read
}

namespace {

// Torch words its errors (of an overload that does not take the arguments, say) with the operands in them.
bool is_repr_of_tensors(PyCodeObject* code) {
  static const Ref its = [] {
    PyObject* tensor = of_module("torch", "Tensor");
    const Ref repr = Ref::steal(tensor != nullptr ? PyObject_GetAttrString(tensor, "__repr__") : nullptr);
    PyErr_Clear();
    return Ref::borrow(repr && PyFunction_Check(repr.get()) ? PyFunction_GET_CODE(repr.get()) : nullptr);
  }();
  return its && reinterpret_cast<PyObject*>(code) == its.get();
}

// As it is: the Python code that runs meanwhile is none of the program's.
PyObject* left_to_cpython(Interpreter& in, PyThreadState* tstate, _PyInterpreterFrame* frame, int throwflag) {
  const OwnCalls own(&in.uninterpreted);
  return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
}

}  // namespace

// *args and **kwargs.
static int rest_of_arguments(PyCodeObject* code) {
  return ((code->co_flags & CO_VARARGS) != 0 ? 1 : 0) + ((code->co_flags & CO_VARKEYWORDS) != 0 ? 1 : 0);
}

// The tensor by which torch's views of jagged tensors find their kernels: one for the whole process, made when it is
// first needed, which must not be of a trace.
static void make_nested_dummy(int& uninterpreted) {
  static bool made = false;
  if (made) return;
  const trace::Aside aside;
  ++uninterpreted;
  Ref module = Ref::steal(PyImport_ImportModule("torch.nested._internal.nested_tensor"));
  Ref dummy = Ref::steal(module ? PyObject_CallMethod(module.get(), "_nt_view_dummy", nullptr) : nullptr);
  --uninterpreted;
  PyErr_Clear();
  made = true;
}

// What code that is not looked into gets: whatever it may read of it is what it is now in later calls, too.
static void see_arguments(Interpreter& in, _PyInterpreterFrame* frame, LibraryCode library) {
  SourceTracker& recorder = in.recorder;
  const int args =
      library == LibraryCode::kUntracked ? 0 : code_of(frame)->co_argcount + code_of(frame)->co_kwonlyargcount;
  for (int i = 0; i < args; ++i)
    if (PyObject* local = compat::local_of(frame, i); local != nullptr) {
      if (library == LibraryCode::kBatches && recorder.numbers.is(local)) {
        recorder.numbers.as_sizes(local);
        compat::set_slot(frame->localsplus[i], recorder.numbers.symbols(local));
        continue;
      }
      recorder.numbers.read_deep(local);
      recorder.whole(local);
    }
  for (int i = args; i < args + (library == LibraryCode::kOperator ? 2 : 0); ++i)  // *args, **kwargs
    if (compat::local_of(frame, i) != nullptr) recorder.numbers.read_deep(compat::local_of(frame, i));
  if (library == LibraryCode::kNested) make_nested_dummy(in.uninterpreted);
  for (int i = args; i < args + rest_of_arguments(code_of(frame)) && library == LibraryCode::kNested; ++i)
    if (compat::local_of(frame, i) != nullptr) {
      recorder.numbers.read_deep(compat::local_of(frame, i));
      recorder.whole(compat::local_of(frame, i));
    }
}

PyObject* Interpreter::run_frame(PyThreadState* tstate, _PyInterpreterFrame* frame, int throwflag) {
  const bool direct = std::exchange(tail_, false);
  if (ending_.aborted) {
    // What the end of a trace object sets off is no part of the program.
    if (works_for_itself(code_of(frame))) return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    return abandon_frame(tstate, frame);
  }
  // A generator that goes with a trace that is over already has nobody to report that to.
  if (throwflag && session != nullptr && session->declined() && PyErr_ExceptionMatches(PyExc_GeneratorExit))
    return abandon_frame(tstate, frame);
  ++frames;
  try {
    DecodedCode* code = decode(code_of(frame));
    if (code == nullptr) throw Declined("out of memory");
    if (code->coroutine) throw Declined("a coroutine");
    if (is_code_of_arrays(code_of(frame))) {
      for (int i = 0; i < code_of(frame)->co_nlocalsplus; ++i)
        if (compat::local_of(frame, i) != nullptr) look_around_arrays(compat::local_of(frame, i));
      PyObject* result = left_to_cpython(*this, tstate, frame, throwflag);
      if (result == nullptr && session != nullptr && session->declined()) abort(session->decline_reason());
      return result;
    }
    if (items_as_symbols && is_repr_of_tensors(code_of(frame)))
      return replaced(tstate, frame, PyUnicode_FromString("a tensor"));
    const Mark mark = mark_of(function_of(frame));
    if (mark == Mark::kDisallow) throw Declined("a function that is not to be part of a graph is called");
    if (mark == Mark::kConstant) {  // called by native code: torch's start of the driver
      return left_to_cpython(*this, tstate, frame, throwflag);
    }
    if (const CaptureRequest* start = std::exchange(start_, nullptr); start != nullptr && start->next >= 0) {
      take_up(*start, frame);
      resumed_ = is_continuation_ = true;
      return evaluate(tstate, frame, throwflag);
    }
    // Code given to exec(): CPython makes a function for it.
    if (!(code_of(frame)->co_flags & CO_OPTIMIZED) && !recorder.is_old(function_of(frame)))
      recorder.fresh_function(function_of(frame));
    if (making_classes > 0) note_class_in_the_making(recorder, frame);
    recorder.function(function_of(frame));
    if (code->generator && frame->owner != FRAME_OWNED_BY_GENERATOR)
      return _PyEval_EvalFrameDefault(tstate, frame, throwflag);  // only makes the generator object
    if (code->generator) {
      PyObject* generator = reinterpret_cast<PyObject*>(compat::generator_of(frame));
      if (recorder.is_old(generator)) throw Declined("a generator from before the call is advanced");
      // (Not when it is being closed: one that is dying has cleared its weak references for the last time.)
      if (!throwflag && reinterpret_cast<PyGenObject*>(generator)->gi_weakreflist == nullptr)
        generators_.push_back(Ref::steal(PyWeakref_NewRef(generator, nullptr)));
    }
    if (PyObject* other = substitute_of(function_of(frame));
        other != nullptr && !code->generator &&
        !(top_ != nullptr && (reinterpret_cast<PyObject*>(code_of(top_->frame)) == PyFunction_GET_CODE(other) ||
                              (is_for_users(other) && torchs_own(*top_))))) {
      tail_ = direct;
      return replaced(tstate, frame, call_substitute(frame, other));
    }
    if (is_wrapper_of_torch_compile(code_of(frame)) && !throwflag) {
      tail_ = direct;
      return replaced(tstate, frame, call_inside_torch_compile(frame));
    }
    if (is_operator_backward(code_of(frame)) && !throwflag) {
      Ref function = Ref::borrow(function_of(frame));
      tail_ = direct;
      PyObject* result = record_operator_backward(frame);
      if (result != Py_NotImplemented) return replaced(tstate, frame, result);
      Py_DECREF(result);
      result = evaluate(tstate, frame, throwflag);
      if (result == nullptr) note_operator_backward(function.get());
      return result;
    }
    if (const LibraryCode library = library_code(code_of(frame));
        library != LibraryCode::kNo && !calls_what_it_is_given(frame)) {
      if (talks_to_the_outside(code_of(frame)))
        throw Declined(std::string("call of ") + PyUnicode_AsUTF8(code_of(frame)->co_qualname));
      see_arguments(*this, frame, library);
      // A registered operator's backward may turn out not to be traceable.
      static PyObject* const differentiable = PyUnicode_InternFromString("autograd_impl");
      if (code_of(frame)->co_name == differentiable) note_retry();
      const OwnCalls kernels(library == LibraryCode::kNested ? nullptr : &in_library);
      return left_to_cpython(*this, tstate, frame, throwflag);
    }
  } catch (const Declined& d) {
    abort(d.reason);
    return abandon_frame(tstate, frame);
  } catch (const std::exception& e) {
    abort_for(e);
    return abandon_frame(tstate, frame);
  }
  tail_ = direct;
  PyCodeObject* const code = code_of(frame);
  PyObject* result = evaluate(tstate, frame, throwflag);
  if (result == nullptr && ending_.aborted && is_callback_of_weak(code)) {  // it has nobody to report the end to
    PyErr_Clear();
    return Py_NewRef(Py_None);
  }
  return result;
}

// A kernel in Python of a registered operator calls operators on tensors of the program's classes.
void Interpreter::as_program(const std::function<void()>& call) {
  if (in_library == 0 || uninterpreted != in_library) return call();
  struct Restored {
    Interpreter& in;
    const int was = std::exchange(in.in_library, 0);
    ~Restored() { in.uninterpreted = in.in_library = was; }
  } const restored{*this};
  uninterpreted = 0;
  call();
}

// The frame has its arguments and has not begun. NotImplemented: its formula is traced as others are.
PyObject* Interpreter::record_operator_backward(_PyInterpreterFrame* frame) {
  PyObject* record = of_module("flashover._operator_backward", "record");
  PyObject* given = compat::local_of(frame, 1);
  if (record == nullptr || code_of(frame)->co_argcount != 1 || given == nullptr || !PyTuple_Check(given))
    return Py_NewRef(Py_NotImplemented);
  Ref args = Ref::steal(PyTuple_New(PyTuple_GET_SIZE(given) + 2));
  PyTuple_SET_ITEM(args.get(), 0, Py_NewRef(function_of(frame)));
  PyTuple_SET_ITEM(args.get(), 1, Py_NewRef(compat::local_of(frame, 0)));
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
  std::string why = ending_.reason + (text != nullptr ? text : "");
  if (session != nullptr && session->declined()) why += session->decline_reason();
  const bool reads_data =
      why.find("data-dependent") != std::string::npos || why.find("the data of a tensor") != std::string::npos;
  PyErr_Clear();
  if (PyObject* note = of_module("flashover._operator_backward", "note"); note != nullptr && reads_data) {
    ++uninterpreted;
    Ref noted = Ref::steal(PyObject_CallOneArg(note, function));
    --uninterpreted;
    retry_as_opaque_ = retry_as_opaque_ || noted.get() == Py_True;
    PyErr_Clear();
  }
  error.restore();
}

// The frame has its arguments and has not begun.
PyObject* Interpreter::call_substitute(_PyInterpreterFrame* frame, PyObject* other) {
  const PyCodeObject* code = code_of(frame);
  if (!recorder.is_old(other)) recorder.constant(other);
  int at = code->co_argcount;
  Ref positional = Ref::steal(PyList_New(0)), named = Ref::steal(PyDict_New());
  for (int i = 0; i < at; ++i) PyList_Append(positional.get(), compat::local_of(frame, i));
  for (int i = 0; i < code->co_kwonlyargcount; ++i, ++at)
    PyDict_SetItem(named.get(), PyTuple_GET_ITEM(code->co_localsplusnames, at), compat::local_of(frame, at));
  if (code->co_flags & CO_VARARGS) {
    recorder.contents(compat::local_of(frame, at));
    PyList_SetSlice(positional.get(), PY_SSIZE_T_MAX, PY_SSIZE_T_MAX, compat::local_of(frame, at++));
  }
  if (code->co_flags & CO_VARKEYWORDS) {
    recorder.contents(compat::local_of(frame, at));
    PyDict_Update(named.get(), compat::local_of(frame, at));
  }
  Ref args = Ref::steal(PyList_AsTuple(positional.get()));
  if (!args || PyErr_Occurred()) return nullptr;
  return call_spread(other, args.get(), named.get());
}

}  // namespace flashover::frame
