// Calls, by what is called. Python functions are simply called: CPython binds their arguments and the hook brings their
// frame back to evaluate(). C callables run natively when native.h knows them; everything else ends the capture.
#include <cstring>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "frame/bytecode/code_file.h"
#include "frame/interpret/calls.h"
#include "frame/interpret/made_tensor.h"
#include "frame/interpret/native.h"
#include "frame/interpret/torch_calls.h"
#include "frame/resume.h"
#include "guards/objects.h"
#include "trace/contiguous_call.h"

namespace flashover::frame {
namespace {

// requires_grad_(flag) of a tensor that has that flag already.
bool keeps_requires_grad(PyObject* tensor, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  if (nargs + keyword_count(kwnames) > 1 || !is_tensor(tensor)) return false;
  PyObject* wanted = nargs + keyword_count(kwnames) == 0 ? Py_True : args[0];
  Ref now = tensor_attribute(tensor, "requires_grad");
  PyErr_Clear();
  return now && now.get() == wanted;
}

// np.prod(shape) and the like: numbers in, a number out, nothing else.
bool is_numpy_arithmetic(PyObject* f) {
  static const std::unordered_set<std::string_view> kPure = {
      "prod",   "sum",  "mean",   "max",    "min", "amax", "amin", "std",  "var",         "median",   "round",
      "around", "clip", "argmax", "argmin", "any", "all",  "ndim", "size", "array_equal", "allclose", "isclose"};
  Ref name = Ref::steal(PyObject_GetAttrString(f, "__name__"));
  PyErr_Clear();
  const char* text = name && PyUnicode_Check(name.get()) ? PyUnicode_AsUTF8(name.get()) : nullptr;
  return text != nullptr && kPure.count(text) != 0;
}

bool holds_numbers_only(PyObject* o) {
  if (PyTuple_Check(o) || PyList_Check(o)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      if (!holds_numbers_only(PySequence_Fast_GET_ITEM(o, i))) return false;
    return true;
  }
  return PyLong_CheckExact(o) || PyFloat_CheckExact(o) || PyBool_Check(o) || o == Py_None;
}

// A tensor of the trace: the flag is all there is to it. Gradients go to it where the program asks for them by
// torch.autograd.grad; a backward from outside the graph finds no leaf there, since none is let out
// (reconstruction.cpp, Session::add_backward).
bool is_flag_only(Interpreter& in, PyObject* tensor) {
  if (in.session == nullptr || in.recorder.is_old(tensor) || !in.session->is_trace_tensor(tensor)) return false;
  in.note_retry();
  return true;
}

// A level of torch.func.grad wraps a tensor and asks for its gradient; that level is part of the trace.
bool is_gradient_level(PyObject* tensor) {
  static PyObject* const ask = [] {
    Ref m = Ref::borrow(PyDict_GetItemString(PyImport_GetModuleDict(), "torch._C._functorch"));
    PyObject* f = m ? PyObject_GetAttrString(m.get(), "is_gradtrackingtensor") : nullptr;
    PyErr_Clear();
    return f;
  }();
  Ref answer = Ref::steal(ask != nullptr ? PyObject_CallOneArg(ask, tensor) : nullptr);
  PyErr_Clear();
  return answer.get() == Py_True;
}

bool is_optimizer_wrapper(PyCodeObject* code) {
  if (PyUnicode_CompareWithASCIIString(code->co_name, "_use_grad") != 0) return false;
  return file_of(code).find("/torch/optim/") != std::string_view::npos;
}

// torch.profiler.record_function around traced code would measure the trace. 1: __enter__, 2: __exit__.
int record_function_part(PyObject* f) {
  const PyObject* name = reinterpret_cast<PyFunctionObject*>(f)->func_qualname;
  if (PyUnicode_CompareWithASCIIString(const_cast<PyObject*>(name), "record_function.__enter__") != 0 &&
      PyUnicode_CompareWithASCIIString(const_cast<PyObject*>(name), "record_function.__exit__") != 0)
    return 0;
  const char* file = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(f))->co_filename);
  if (file == nullptr) PyErr_Clear();
  if (file == nullptr || std::strstr(file, "/torch/autograd/profiler.py") == nullptr) return 0;
  return PyUnicode_CompareWithASCIIString(const_cast<PyObject*>(name), "record_function.__enter__") == 0 ? 1 : 2;
}

// operator.itemgetter, attrgetter and methodcaller do what the expressions do.
PyObject* call_getter(Interpreter& in, PyObject* f, PyObject* o) {
  ++in.uninterpreted;
  Ref made_of = Ref::steal(PyObject_CallMethod(f, "__reduce__", nullptr));
  --in.uninterpreted;
  if (!made_of || !PyTuple_Check(made_of.get()) || PyTuple_GET_SIZE(made_of.get()) < 2 ||
      PyTuple_GET_ITEM(made_of.get(), 0) != reinterpret_cast<PyObject*>(Py_TYPE(f)))
    throw Declined("call of " + callable_name(f));  // a methodcaller with keywords
  PyObject* parts = PyTuple_GET_ITEM(made_of.get(), 1);
  const Py_ssize_t n = PyTuple_GET_SIZE(parts);
  const char* kind = Py_TYPE(f)->tp_name + std::strlen("operator.");
  if (std::strcmp(kind, "methodcaller") == 0) {
    Ref method = Ref::steal(in.get_attr(o, PyTuple_GET_ITEM(parts, 0)));
    Ref rest = Ref::steal(PyTuple_GetSlice(parts, 1, n));
    return method && rest ? in.call_spread(method.get(), rest.get(), nullptr) : nullptr;
  }
  const auto one = [&](PyObject* part) {
    if (std::strcmp(kind, "itemgetter") == 0) return Ref::steal(in.subscript(o, part));
    Ref names = Ref::steal(PyObject_CallMethod(part, "split", "s", "."));
    Ref at = Ref::borrow(o);
    for (Py_ssize_t i = 0; names && at && i < PyList_GET_SIZE(names.get()); ++i) {
      PyObject* name = Py_NewRef(PyList_GET_ITEM(names.get(), i));
      PyUnicode_InternInPlace(&name);
      at = Ref::steal(in.get_attr(at.get(), name));
      Py_DECREF(name);
    }
    return at;
  };
  if (n == 1) return one(PyTuple_GET_ITEM(parts, 0)).release();
  Ref all = Ref::steal(PyTuple_New(n));
  for (Py_ssize_t i = 0; all && i < n; ++i) {
    Ref value = one(PyTuple_GET_ITEM(parts, i));
    if (!value) return nullptr;
    PyTuple_SET_ITEM(all.get(), i, value.release());
  }
  return all.release();
}

}  // namespace

void Interpreter::unknown_call(PyObject* f) {
  if (std::strcmp(Py_TYPE(f)->tp_name, "flashover._C.Disabled") == 0) {
    Ref reason = Ref::steal(PyObject_GetAttrString(f, "reason")),
        function = Ref::steal(PyObject_GetAttrString(f, "__disabled_function__"));
    PyErr_Clear();
    if (reason && PyUnicode_Check(reason.get()) && PyUnicode_GET_LENGTH(reason.get()) > 0)
      throw Declined(PyUnicode_AsUTF8(reason.get()));
    Ref name = function ? Ref::steal(_PyObject_FunctionStr(function.get())) : Ref();
    PyErr_Clear();
    throw Declined(std::string("call of ") + (name ? PyUnicode_AsUTF8(name.get()) : "a function") +
                   ", which is disabled");
  }
  throw Declined("call of " + callable_name(f));
}

PyObject* Interpreter::call_plain(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  return recorder.numbers.of_sizes(PyObject_Vectorcall(f, args, nargs, kwnames));
}

PyObject* Interpreter::call_spread(PyObject* f, PyObject* tuple, PyObject* dict) {
  if (plain) return PyObject_Call(f, tuple, dict);
  if (recorder.is_old(tuple)) recorder.contents(tuple);
  if (dict != nullptr && recorder.is_old(dict)) recorder.contents(dict);
  if (PyFunction_Check(f) && !is_checkpoint(f) && torch_calls == nullptr && mark_of(f) == Mark::kNone)
    return PyObject_Call(f, tuple, dict);
  const Py_ssize_t n = PyTuple_GET_SIZE(tuple), k = dict != nullptr ? PyDict_GET_SIZE(dict) : 0;
  std::vector<PyObject*> args(static_cast<size_t>(n + k) + 1);
  for (Py_ssize_t i = 0; i < n; ++i) args[static_cast<size_t>(i) + 1] = PyTuple_GET_ITEM(tuple, i);
  Ref names;
  if (k > 0) {
    names = Ref::steal(PyTuple_New(k));
    PyObject *key, *value;
    Py_ssize_t at = 0, i = 0;
    while (PyDict_Next(dict, &at, &key, &value)) {
      if (!PyUnicode_Check(key)) {
        PyErr_SetString(PyExc_TypeError, "keywords must be strings");
        return nullptr;
      }
      PyTuple_SET_ITEM(names.get(), i, Py_NewRef(key));
      args[static_cast<size_t>(n + i++) + 1] = value;
    }
  }
  return call(f, args.data() + 1, static_cast<size_t>(n), names.get());
}

bool CallHandlers::marked(Interpreter& in, const PythonCall& c, PyObject** result) {
  const Mark mark = mark_of(c.f);
  if (mark == Mark::kNone) return false;
  // torch.optim asks for a break around each step, for the sake of another compiler's bookkeeping.
  const bool step =
      mark == Mark::kDisallow && c.count() == 0 && in.top_ != nullptr && is_optimizer_wrapper(code_of(in.top_->frame));
  *result = step ? Py_NewRef(Py_None) : in.call_marked(mark, c.f, c.args, c.nargs, c.kwnames);
  return true;
}

bool CallHandlers::polyfill(Interpreter& in, const PythonCall& c, PyObject** result) {
  PyObject* function = in.users_polyfill(c.f);
  if (function == nullptr) return false;
  if (!in.recorder.is_old(function)) in.recorder.constant(function);
  *result = in.call(function, c.args, c.nargs, c.kwnames);
  return true;
}

// After the call this is what the number would be compared as.
bool CallHandlers::checked_item(Interpreter& in, const PythonCall& c, PyObject** result) {
  if (!c.tail || !in.assumes || in.session == nullptr) return false;
  PyObject* tensor = asked_for_item(c.f, c.args, c.nargs, c.kwnames);
  if (tensor == nullptr || !in.session->is_trace_tensor(tensor)) return false;
  Ref dim = tensor_attribute(tensor, "ndim");
  Ref floats = Ref::steal(PyObject_CallMethod(tensor, "is_floating_point", nullptr));
  Ref complex = Ref::steal(PyObject_CallMethod(tensor, "is_complex", nullptr));
  if (!dim || !floats || !complex) return true;
  const bool whole = c.f == reinterpret_cast<PyObject*>(&PyLong_Type);
  if (whole && floats.get() == Py_True) return false;  // what is compared is cut off
  const bool floating = floats.get() == Py_True || (PyType_Check(c.f) && !whole);
  bool compared = false;
  if (PyLong_AsLong(dim.get()) != 0 || complex.get() != Py_False || !in.is_only_checked(floating, &compared))
    return false;
  *result = compared ? PyObject_CallMethod(tensor, floating ? "double" : "long", nullptr) : Py_NewRef(tensor);
  return true;
}

bool CallHandlers::logged(Interpreter& in, const PythonCall& c, PyObject** result) {
  if (!in.logging_functions_ || !in.call_logged(c.f, c.args, c.nargs, c.kwnames)) return false;
  *result = Py_NewRef(Py_None);
  return true;
}

bool CallHandlers::arrays(Interpreter& in, const PythonCall& c, PyObject** result) {
  return in.call_with_arrays(c.f, c.args, c.nargs, c.kwnames, result);
}

bool CallHandlers::tensor_makers(Interpreter& in, const PythonCall& c, PyObject** result) {
  if (in.session == nullptr) return false;
  for (auto* make :
       {call_new_tensor, call_new_of_sizes, call_tensor_type, call_tensor_of_tensors, call_full_of_tensor}) {
    *result = make(in, c.f, c.args, c.nargs, c.kwnames);
    if (*result != nullptr || PyErr_Occurred() != nullptr) return true;
  }
  return false;
}

bool CallHandlers::numbers(Interpreter& in, const PythonCall& c, PyObject** result) {
  return in.call_with_numbers(c.f, c.args, c.nargs, c.kwnames, result);
}

PyObject* CallHandlers::python_function(Interpreter& in, const PythonCall& c) {
  if (const int part = record_function_part(c.f); part != 0 && c.kwnames == nullptr && c.nargs >= 1) {
    std::vector<Ref>&entered = in.context.ranges.entered, &left = in.context.ranges.left;
    // A decorated function may call itself: one object is entered several times.
    const auto last =
        std::ranges::find_if(entered.rbegin(), entered.rend(), [&](const Ref& r) { return r.get() == c.args[0]; });
    if (part == 1)
      entered.push_back(Ref::borrow(c.args[0]));
    else if (last != entered.rend())
      entered.erase(std::next(last).base());
    else
      left.push_back(Ref::borrow(c.args[0]));  // entered before the capture
    return Py_NewRef(part == 1 ? c.args[0] : Py_None);
  }
  if (is_checkpoint(c.f)) {
    PyObject* result = in.call_checkpoint(c.args, c.nargs, c.kwnames);
    if (result != nullptr || PyErr_Occurred()) return result;
  }
  if (PyObject* handle = in.call_register_hook(c.f, c.args, c.nargs, c.kwnames); handle != nullptr || PyErr_Occurred())
    return handle;
  if (c.f == known_types().module_getattr && c.nargs == 2 && c.kwnames == nullptr) {
    PyObject* out = nullptr;
    return in.lookup_nn_module(c.args[0], c.args[1], &out) == 1 ? out : nullptr;
  }
  in.tail_ = c.tail;
  return in.call_plain(c.f, c.args, c.nargs, c.kwnames);
}

PyObject* CallHandlers::bound_method(Interpreter& in, const PythonCall& c) {
  if (in.recorder.is_old(c.f)) in.recorder.contents(c.f);
  auto all = with_first(PyMethod_GET_SELF(c.f), c.args, c.count());
  Ref keep = Ref::borrow(c.f);
  in.tail_ = c.tail;
  return in.call(PyMethod_GET_FUNCTION(c.f), all.data() + 1, c.nargs + 1, c.kwnames);
}

// Methods and getters of pybind11, taken from their class.
PyObject* CallHandlers::instance_method(Interpreter& in, const PythonCall& c) {
  if (in.recorder.is_old(c.f)) in.recorder.identity(c.f);  // what it wraps cannot change
  in.tail_ = c.tail;
  return in.call(PyInstanceMethod_GET_FUNCTION(c.f), c.args, c.nargs, c.kwnames);
}

PyObject* CallHandlers::c_function(Interpreter& in, const PythonCall& c) {
  const Native* n = native_function(c.f);
  PyObject* self = PyCFunction_GET_SELF(c.f);
  if (n == nullptr) {
    PyMethodDef* ml = reinterpret_cast<PyCFunctionObject*>(c.f)->m_ml;
    if (self != nullptr)
      if (PyObject* done = in.call_of_autograd(c.f, ml, self, c.args, c.nargs, c.args, c.nargs, c.kwnames);
          done != nullptr || PyErr_Occurred())
        return done;
    if (self != nullptr && is_tensor(self) && keeps_requires_grad(self, c.args, c.nargs, c.kwnames) &&
        std::strcmp(reinterpret_cast<PyCFunctionObject*>(c.f)->m_ml->ml_name, "requires_grad_") == 0)
      return Py_NewRef(self);
    const char* method = reinterpret_cast<PyCFunctionObject*>(c.f)->m_ml->ml_name;
    if (self != nullptr && is_tensor(self) &&
        (is_tensor_method_allowed(method) ||
         (std::strcmp(method, "requires_grad_") == 0 && (is_gradient_level(self) || is_flag_only(in, self))))) {
      static const Native tensors{Native::kTensors | Native::kShares, nullptr};
      n = &tensors;
    } else {
      in.unknown_call(c.f);
    }
  }
  if (self != nullptr && PyModule_Check(self)) self = nullptr;
  // A method that was bound before the call, of an object that nobody met yet.
  if (self != nullptr && in.recorder.is_old(c.f) && !in.recorder.is_old(self) && !PyType_Check(self) &&
      !is_atom(self) && native_method(reinterpret_cast<PyCFunctionObject*>(c.f)->m_ml) == n) {
    static PyObject* const self_name = PyUnicode_InternFromString("__self__");
    in.recorder.reach(SourceKind::kSlot, in.recorder.source_of(c.f), -1, self_name, self);
  }
  const NativeCall native{in, c.f, self, c.args, c.nargs, c.kwnames, c.args, c.nargs};
  if (n->handler != nullptr) return n->handler(native);
  return in.call_native(c.f, self, *n, c.args, c.nargs, c.kwnames);
}

PyObject* CallHandlers::method_descriptor(Interpreter& in, const PythonCall& c) {
  auto* d = reinterpret_cast<PyMethodDescrObject*>(c.f);
  if (c.nargs == 0) return in.call_plain(c.f, c.args, c.nargs, c.kwnames);  // raises
  if (PyObject* done =
          in.call_of_autograd(c.f, d->d_method, c.args[0], c.args + 1, c.nargs - 1, c.args, c.nargs, c.kwnames);
      done != nullptr || PyErr_Occurred())
    return done;
  const KnownTypes& k = known_types();
  if (k.tensor != nullptr && PyType_IsSubtype(PyDescr_TYPE(d), k.tensor)) return tensor_method(in, c);
  const Native* n = native_method(d->d_method);
  if (n == nullptr) in.unknown_call(c.f);
  const NativeCall native{in, c.f, c.args[0], c.args + 1, c.nargs - 1, c.kwnames, c.args, c.nargs};
  if (n->handler != nullptr) return n->handler(native);
  return in.call_native(c.f, c.args[0], *n, c.args, c.nargs, c.kwnames);
}

// Strides that the program gets: those of a tensor without elements are no products of its sizes.
static void ask_for_elements(Interpreter& in, PyObject* tensor) {
  if (in.session == nullptr || in.session->sizes().empty() || !in.session->is_trace_tensor(tensor)) return;
  Numbers& numbers = in.recorder.numbers;
  Ref sizes = Ref::steal(numbers.of_sizes(PyObject_CallMethod(tensor, "size", nullptr)));
  Ref one = Ref::steal(PyLong_FromLong(1));
  for (Py_ssize_t d = 0; sizes && one && d < PyTuple_GET_SIZE(sizes.get()); ++d) {
    PyObject* size = PyTuple_GET_ITEM(sizes.get(), d);
    if (!numbers.is_of_data(size)) numbers.compare(size, one.get(), Py_GE);  // (it is a guard then)
  }
  PyErr_Clear();
}

PyObject* CallHandlers::tensor_method(Interpreter& in, const PythonCall& c) {
  auto* d = reinterpret_cast<PyMethodDescrObject*>(c.f);
  if (std::strcmp(d->d_method->ml_name, "requires_grad_") == 0 &&
      keeps_requires_grad(c.args[0], c.args + 1, c.nargs - 1, c.kwnames))
    return Py_NewRef(c.args[0]);
  if (std::strcmp(d->d_method->ml_name, "as_subclass") == 0) {
    const bool known = in.session != nullptr && c.count() == 2 && c.kwnames == nullptr &&
                       in.session->is_trace_tensor(c.args[0]) && PyType_Check(c.args[1]) &&
                       is_class_over_memory(reinterpret_cast<PyTypeObject*>(c.args[1]));
    if (!known) in.unknown_call(c.f);
    static const Native alias{Native::kTensors | Native::kShares, nullptr};
    return in.call_native(c.f, nullptr, alias, c.args, c.nargs, c.kwnames);
  }
  if (std::strcmp(d->d_method->ml_name, "stride") == 0) ask_for_elements(in, c.args[0]);
  if (std::strcmp(d->d_method->ml_name, "storage_offset") == 0 && c.count() == 1) {
    in.recorder.storage_offset(c.args[0]);
    return in.call_plain(c.f, c.args, c.nargs, c.kwnames);
  }
  if (!is_tensor_method_allowed(d->d_method->ml_name) &&
      !(std::strcmp(d->d_method->ml_name, "requires_grad_") == 0 &&
        (is_gradient_level(c.args[0]) || is_flag_only(in, c.args[0])))) {
    if (std::strcmp(d->d_method->ml_name, "tolist") == 0 && c.nargs == 1 && c.kwnames == nullptr &&
        in.session != nullptr && in.session->is_trace_tensor(c.args[0])) {
      Ref list = Ref::steal(constant_list(c.args[0], &in.recorder.numbers));
      if (in.session->declined()) throw Declined(in.session->decline_reason());
      if (!list) throw Declined("call of TensorBase.tolist");
      return list.release();
    }
    in.unknown_call(c.f);
  }
  static const Native tensors{Native::kTensors | Native::kShares, nullptr};
  std::optional<trace::ContiguousCall> by_operator;
  if (std::strcmp(d->d_method->ml_name, "contiguous") == 0 && in.session != nullptr &&
      in.session->is_trace_tensor(c.args[0]))
    by_operator.emplace(c.args[0]);
  return in.call_native(c.f, nullptr, tensors, c.args, c.nargs, c.kwnames);
}

PyObject* CallHandlers::type(Interpreter& in, const PythonCall& c) {
  return in.call_type(reinterpret_cast<PyTypeObject*>(c.f), c.args, c.nargs, c.kwnames);
}

PyObject* CallHandlers::method_wrapper(Interpreter& in, const PythonCall& c) {
  auto* w = reinterpret_cast<MethodWrapperLayout*>(c.f);
  if (in.recorder.is_old(c.f) && !in.recorder.is_old(w->self)) {
    static PyObject* const self_name = PyUnicode_InternFromString("__self__");
    in.recorder.reach(SourceKind::kSlot, in.recorder.source_of(c.f), -1, self_name, w->self);
  }
  auto all = with_first(w->self, c.args, c.count());
  return in.call_wrapper(c.f, w->descr, w->self, all.data() + 2, c.nargs, c.kwnames);
}

PyObject* CallHandlers::wrapper_descriptor(Interpreter& in, const PythonCall& c) {
  if (c.nargs == 0) return in.call_plain(c.f, c.args, c.nargs, c.kwnames);
  return in.call_wrapper(c.f, reinterpret_cast<PyWrapperDescrObject*>(c.f), c.args[0], c.args + 1, c.nargs - 1,
                         c.kwnames);
}

PyObject* CallHandlers::class_method_descriptor(Interpreter& in, const PythonCall& c) {
  return in.call_plain(c.f, c.args, c.nargs, c.kwnames);
}

PyObject* CallHandlers::partial(Interpreter& in, const PythonCall& c) {
  Ref inner = Ref::steal(PyObject_GetAttrString(c.f, "func")), bound = Ref::steal(PyObject_GetAttrString(c.f, "args")),
      named = Ref::steal(PyObject_GetAttrString(c.f, "keywords"));
  if (!inner || !bound || !named) return nullptr;
  if (in.recorder.is_old(c.f)) {
    in.recorder.contents(c.f);
    in.recorder.contents(bound.get());
    in.recorder.contents(named.get());
  }
  Ref all = Ref::steal(PyTuple_New(PyTuple_GET_SIZE(bound.get()) + static_cast<Py_ssize_t>(c.nargs)));
  Ref kwargs = Ref::steal(PyDict_Copy(named.get()));
  if (!all || !kwargs) return nullptr;
  Py_ssize_t at = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bound.get()); ++i)
    PyTuple_SET_ITEM(all.get(), at++, Py_NewRef(PyTuple_GET_ITEM(bound.get(), i)));
  for (size_t i = 0; i < c.nargs; ++i) PyTuple_SET_ITEM(all.get(), at++, Py_NewRef(c.args[i]));
  for (size_t i = c.nargs; i < c.count(); ++i)
    PyDict_SetItem(kwargs.get(), PyTuple_GET_ITEM(c.kwnames, static_cast<Py_ssize_t>(i - c.nargs)), c.args[i]);
  in.tail_ = c.tail;
  return in.call_spread(inner.get(), all.get(), kwargs.get());
}

PyObject* CallHandlers::weak_reference(Interpreter& in, const PythonCall& c) {
  if (c.nargs != 0 || c.kwnames != nullptr) return instance(in, c);
  return take_weak_target(in, c.f, in.call_plain(c.f, c.args, c.nargs, c.kwnames));
}

PyObject* take_weak_target(Interpreter& in, PyObject* reference, PyObject* target) {
  Ref taken = Ref::steal(target);
  if (taken && in.recorder.is_old(reference))
    in.recorder.reach(SourceKind::kWeakTarget, in.recorder.source_of(reference), -1, nullptr, taken.get());
  return taken.release();
}

PyObject* CallHandlers::script_function(Interpreter& in, const PythonCall& c) {
  // TorchScript's executor specialises on what it runs on; the Python function it was made from is kept beside it.
  static PyObject* const original = PyUnicode_InternFromString("_torchdynamo_inline");
  PyObject* inner = nullptr;
  if (in.find_attr(c.f, original, &inner) != 1) throw Declined("call of a TorchScript function");
  Ref function = Ref::steal(inner);
  return in.call(inner, c.args, c.nargs, c.kwnames);
}

// What torch.ops.<library>.<operator> calls where kernels are Python code (torch 2.14): goes through the dispatcher.
PyObject* CallHandlers::registered_operator(Interpreter& in, const PythonCall& c) {
  static const Native tensors{Native::kTensors | Native::kShares, nullptr};
  return in.call_native(c.f, nullptr, tensors, c.args, c.nargs, c.kwnames);
}

// Arithmetic on numbers.
PyObject* CallHandlers::numpy_ufunc(Interpreter& in, const PythonCall& c) {
  for (size_t i = 0; i < c.count(); ++i) {
    if (guards::is_numpy_number(c.args[i])) in.recorder.not_opaque(c.args[i]);
    if (!is_atom(c.args[i]) && !guards::is_numpy_number(c.args[i]) &&
        (in.recorder.is_old(c.args[i]) || is_tensor(c.args[i])))
      in.unknown_call(c.f);
  }
  return in.call_plain(c.f, c.args, c.nargs, c.kwnames);
}

PyObject* CallHandlers::numpy_function(Interpreter& in, const PythonCall& c) {
  bool numbers = true;
  for (size_t i = 0; i < c.count(); ++i) {
    in.consume(c.args[i]);
    numbers = numbers && holds_numbers_only(c.args[i]);
  }
  if (!numbers) in.unknown_call(c.f);
  ++in.uninterpreted;  // Python around a ufunc
  PyObject* result = in.call_plain(c.f, c.args, c.nargs, c.kwnames);
  --in.uninterpreted;
  return result;
}

// Compiled code inside compiled code: one capture goes through both.
PyObject* CallHandlers::compiled_callable(Interpreter& in, const PythonCall& c) {
  const SourceId id = in.recorder.is_old(c.f) ? in.recorder.source_of(c.f) : in.recorder.constant(c.f);
  auto part = [&](const char* name) {
    Ref value = Ref::steal(PyObject_GetAttrString(c.f, name));
    if (value && value.get() != Py_None)
      in.recorder.reach(SourceKind::kSlot, id, -1, Ref::steal(PyUnicode_InternFromString(name)).get(), value.get());
    return value;
  };
  Ref self = part("__bound_self__"), through = Ref::steal(PyObject_GetAttrString(c.f, "__through_call__"));
  if (!self || !through) return nullptr;
  in.tail_ = through.get() == Py_True && c.tail;
  if (through.get() == Py_True) return in.call(self.get(), c.args, c.nargs, c.kwnames);
  Ref function = part("__wrapped_function__");
  if (!function) return nullptr;
  in.tail_ = c.tail;
  if (self.get() == Py_None) return in.call(function.get(), c.args, c.nargs, c.kwnames);
  auto all = with_first(self.get(), c.args, c.count());
  return in.call(function.get(), all.data() + 1, c.nargs + 1, c.kwnames);
}

PyObject* CallHandlers::instance(Interpreter& in, const PythonCall& c) {
  static PyObject* const name = PyUnicode_InternFromString("__call__");
  PyObject* method = (c.type()->tp_flags & Py_TPFLAGS_HEAPTYPE) ? in.recorder.type_lookup(c.type(), name) : nullptr;
  if (method != nullptr && PyFunction_Check(method)) {
    auto all = with_first(c.f, c.args, c.count());
    in.tail_ = c.tail;
    return in.call_plain(method, all.data() + 1, c.nargs + 1, c.kwnames);
  }
  if (method != nullptr && Py_TYPE(method) != &PyWrapperDescr_Type) {
    Ref bound = Ref::steal(in.bind(method, c.f, c.type()));
    if (!bound) return nullptr;
    if (bound.get() != c.f && Py_TYPE(bound.get()) != c.type()) return in.call(bound.get(), c.args, c.nargs, c.kwnames);
  }
  if (c.type()->tp_call == nullptr) return in.call_plain(c.f, c.args, c.nargs, c.kwnames);  // raises
  if (std::strncmp(c.type()->tp_name, "operator.", 9) == 0 && c.nargs == 1 && c.kwnames == nullptr) {
    in.recorder.identity(c.f);
    return call_getter(in, c.f, c.args[0]);
  }
  if (std::strcmp(c.type()->tp_name, "types.GenericAlias") == 0 ||
      std::strncmp(c.type()->tp_name, "operator.", 9) == 0 || std::strncmp(c.type()->tp_name, "_json.", 6) == 0 ||
      std::strcmp(c.type()->tp_name, "staticmethod") == 0 ||
      std::strcmp(c.type()->tp_name, "functools.KeyWrapper") == 0) {
    in.recorder.identity(c.f);  // what it was made of cannot change
    for (size_t i = 0; i < c.count(); ++i) in.consume(c.args[i]);
    return in.call_plain(c.f, c.args, c.nargs, c.kwnames);
  }
  in.unknown_call(c.f);
}

namespace {

template <PyTypeObject* kType>
bool is_exactly(PyObject* f) {
  return Py_TYPE(f) == kType;
}
template <PyTypeObject* KnownTypes::*kType>
bool is_known(PyObject* f) {
  return Py_TYPE(f) == known_types().*kType;
}
bool is_named(PyObject* f, const char* name) { return std::strcmp(Py_TYPE(f)->tp_name, name) == 0; }

struct CallableKind {
  bool (*matches)(PyObject* f);
  PyObject* (*handler)(Interpreter& in, const PythonCall& c);
};

constexpr CallableKind kPythonCallables[] = {
    {is_exactly<&PyFunction_Type>, CallHandlers::python_function},
    {is_exactly<&PyMethod_Type>, CallHandlers::bound_method},
    {is_exactly<&PyInstanceMethod_Type>, CallHandlers::instance_method},
};

constexpr CallableKind kOtherCallables[] = {
    {[](PyObject* f) { return PyCFunction_Check(f) != 0; }, CallHandlers::c_function},
    {is_exactly<&PyMethodDescr_Type>, CallHandlers::method_descriptor},
    {[](PyObject* f) { return PyType_Check(f) != 0; }, CallHandlers::type},
    {[](PyObject* f) { return Py_TYPE(f) == &_PyMethodWrapper_Type; }, CallHandlers::method_wrapper},
    {is_exactly<&PyWrapperDescr_Type>, CallHandlers::wrapper_descriptor},
    {is_exactly<&PyClassMethodDescr_Type>, CallHandlers::class_method_descriptor},
    {is_known<&KnownTypes::partial>, CallHandlers::partial},
    {is_known<&KnownTypes::lru_cache>, CallHandlers::lru_cache},
    {is_exactly<&_PyWeakref_RefType>, CallHandlers::weak_reference},
    {is_known<&KnownTypes::script_function>, CallHandlers::script_function},
    {[](PyObject* f) { return is_named(f, "torch._C._PyObjectDispatchFunc"); }, CallHandlers::registered_operator},
    {[](PyObject* f) { return is_named(f, "numpy.ufunc"); }, CallHandlers::numpy_ufunc},
    {[](PyObject* f) { return is_named(f, "numpy._ArrayFunctionDispatcher") && is_numpy_arithmetic(f); },
     CallHandlers::numpy_function},
    {[](PyObject* f) { return is_named(f, "flashover._C.CompiledCallable"); }, CallHandlers::compiled_callable},
};

constexpr bool (*kInterceptions[])(Interpreter&, const PythonCall&, PyObject**) = {
    CallHandlers::marked, CallHandlers::polyfill, CallHandlers::checked_item, CallHandlers::logged,
    CallHandlers::arrays};
constexpr bool (*kInterceptionsOfC[])(Interpreter&, const PythonCall&, PyObject**) = {
    CallHandlers::tensor_makers, CallHandlers::cache_of_changing_numbers, CallHandlers::numbers};

// The generator that tuple() or list() runs: what it yields is only put together.
PyObject* generator_to_gather(const PythonCall& c) {
  const bool gathers =
      c.nargs == 1 && c.kwnames == nullptr && PyGen_CheckExact(c.args[0]) &&
      (c.f == reinterpret_cast<PyObject*>(&PyTuple_Type) || c.f == reinterpret_cast<PyObject*>(&PyList_Type));
  return gathers ? c.args[0] : nullptr;
}

}  // namespace

PyObject* Interpreter::call(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  if (plain) return PyObject_Vectorcall(f, args, nargs, kwnames);
  if (torch_calls == nullptr || !torch_calls->takes(f, args, nargs)) return call_by_kind(f, args, nargs, kwnames);
  return torch_calls->around(f, args, nargs, kwnames, [&] { return call_by_kind(f, args, nargs, kwnames); });
}

PyObject* Interpreter::call_by_kind(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  // tail_ is set again where the callee's result is handed on as it is.
  const PythonCall c{f, args, nargs, kwnames, std::exchange(tail_, false)};
  PyObject* result = nullptr;
  for (const auto intercepts : kInterceptions)
    if (intercepts(*this, c, &result)) return result;
  for (const CallableKind& row : kPythonCallables)
    if (row.matches(f)) return row.handler(*this, c);
  for (const auto intercepts : kInterceptionsOfC)
    if (intercepts(*this, c, &result)) return result;
  struct Gathering {
    PyObject*& generator;
    PyObject* outer;
    ~Gathering() { generator = outer; }
  } const gathering{gathered_, std::exchange(gathered_, generator_to_gather(c))};
  for (const CallableKind& row : kOtherCallables)
    if (row.matches(f)) return row.handler(*this, c);
  return CallHandlers::instance(*this, c);
}

}  // namespace flashover::frame
