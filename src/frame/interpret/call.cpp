// Calls. Python functions are simply called: CPython binds their arguments and the hook brings their frame back to
// evaluate(). C callables run natively when native.h knows them; everything else ends the capture.
#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_set>

#include "frame/fetched_error.h"
#include "frame/interpret/made_tensor.h"
#include "frame/interpret/native.h"
#include "frame/interpret/opcode_parts.h"
#include "frame/resume.h"
#include "guards/objects.h"

namespace flashover::frame {
namespace {

// Objects that take part in a C-made call must be as well known as those called directly.
void check_callable_argument(PyObject* f) {
  PyTypeObject* t = Py_TYPE(f);
  const KnownTypes& k = known_types();
  if (PyCFunction_Check(f)) {
    const Native* n = native_function(f);
    PyObject* self = PyCFunction_GET_SELF(f);
    const bool method = self != nullptr && !PyModule_Check(self);
    if (n != nullptr && method && !Interpreter::current()->recorder.is_old(self)) return;
    if (n == nullptr || n->handler != nullptr || (n->flags & (Native::kWrites | Native::kCalls)))
      throw Declined("call of " + callable_name(f) + " from native code");
  } else if (t == &PyMethodDescr_Type) {
    auto* d = reinterpret_cast<PyMethodDescrObject*>(f);
    const Native* n = native_method(d->d_method);
    const bool tensor = k.tensor != nullptr && PyType_IsSubtype(PyDescr_TYPE(d), k.tensor);
    if (!(tensor && is_tensor_method_allowed(d->d_method->ml_name)) &&
        (n == nullptr || n->handler != nullptr || (n->flags & (Native::kWrites | Native::kCalls))))
      throw Declined("call of " + callable_name(f) + " from native code");
  } else if (PyType_Check(f)) {
    auto* type = reinterpret_cast<PyTypeObject*>(f);
    if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE) && native_type(type) == nullptr)
      throw Declined("call of " + callable_name(f) + " from native code");
  } else if (PyMethod_Check(f)) {
    check_callable_argument(PyMethod_GET_FUNCTION(f));
  } else if (t != &PyFunction_Type) {  // also what types written in C make of a call
    throw Declined("call of " + callable_name(f) + " from native code");
  }
}

// A cache finds it by its address (a logger): what the cache answers is one thing for one object.
bool is_key_by_identity(PyObject* o) {
  const KnownTypes& k = known_types();
  return Py_TYPE(o)->tp_hash == PyBaseObject_Type.tp_hash &&
         Py_TYPE(o)->tp_richcompare == PyBaseObject_Type.tp_richcompare &&
         !(k.module != nullptr && PyObject_TypeCheck(o, k.module));
}

bool may_be_called_natively(PyObject* f) {
  try {
    check_callable_argument(f);
    return true;
  } catch (const Declined&) {
    return false;
  }
}

// Methods of builtin containers that look at nothing in the container but items that were looked at when they came in.
bool only_adds(PyObject* f) {
  if (Py_TYPE(f) != &PyMethodDescr_Type) return false;
  PyTypeObject* owner = PyDescr_TYPE(f);
  if (owner != &PySet_Type && owner != &PyList_Type && owner != known_types().deque) return false;
  const char* name = reinterpret_cast<PyMethodDescrObject*>(f)->d_method->ml_name;
  for (const char* known : {"add", "discard", "update", "extend", "extendleft"})
    if (std::strcmp(name, known) == 0) return true;
  return false;
}

// Which argument a C callable with kCalls calls: all others are data to it, also if they can be called.
size_t position_of_called(PyObject* f) {
  const char* name = PyType_Check(f)        ? reinterpret_cast<PyTypeObject*>(f)->tp_name
                     : PyCFunction_Check(f) ? reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name
                                            : "";
  for (const char* first : {"map", "filter", "reduce", "itertools.starmap", "itertools.takewhile",
                            "itertools.dropwhile", "itertools.filterfalse"})
    if (std::strcmp(name, first) == 0) return 0;
  for (const char* second : {"itertools.accumulate", "itertools.groupby"})
    if (std::strcmp(name, second) == 0) return 1;
  return SIZE_MAX;
}
bool is_name_of_called(PyObject* keyword) {
  return PyUnicode_CompareWithASCIIString(keyword, "key") == 0 ||
         PyUnicode_CompareWithASCIIString(keyword, "func") == 0;
}

// A cache of which the layout is what we take it for.
LruCacheLayout* layout_of_cache(PyObject* f) {
  auto* c = reinterpret_cast<LruCacheLayout*>(f);
  Ref info = Ref::steal(PyObject_CallMethod(f, "cache_info", nullptr));
  PyErr_Clear();
  if (!info || PyTuple_GET_SIZE(info.get()) != 4) return nullptr;
  const auto is = [&](Py_ssize_t i, Py_ssize_t n) {
    PyObject* o = PyTuple_GET_ITEM(info.get(), i);
    return PyLong_CheckExact(o) && PyLong_AsSsize_t(o) == n;
  };
  const bool unlimited = PyTuple_GET_ITEM(info.get(), 2) == Py_None;
  if (!is(0, c->hits) || !is(1, c->misses) || !(unlimited ? c->maxsize < 0 : is(2, c->maxsize))) return nullptr;
  if (c->cache == nullptr || !PyDict_CheckExact(c->cache) || !is(3, PyDict_GET_SIZE(c->cache))) return nullptr;
  return c;
}

struct CallCount {
  Ref function;
  Py_ssize_t hits, misses;
};
thread_local std::vector<CallCount>* call_counts = nullptr;

bool holds_tensor(PyObject* o, int depth = 0) {
  if (depth > 4) return false;
  if (is_tensor(o)) return true;
  if (PyTuple_Check(o) || PyList_Check(o)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      if (holds_tensor(PySequence_Fast_GET_ITEM(o, i), depth + 1)) return true;
  } else if (PyDict_Check(o)) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(o, &at, &key, &value))
      if (holds_tensor(value, depth + 1)) return true;
  } else if (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) {
    PyObject** dict = PyType_Check(o) ? nullptr : _PyObject_GetDictPtr(o);
    if (dict != nullptr && *dict != nullptr) return holds_tensor(*dict, depth + 1);
  }
  return false;
}

// requires_grad_(flag) of a tensor that has that flag already.
bool keeps_requires_grad(PyObject* tensor, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  if (nargs + keyword_count(kwnames) > 1 || !is_tensor(tensor)) return false;
  PyObject* wanted = nargs + keyword_count(kwnames) == 0 ? Py_True : args[0];
  Ref now = Ref::steal(PyObject_GetAttrString(tensor, "requires_grad"));
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
// torch.autograd.grad; a backward from outside the graph finds no leaf there, since none is let out (recipe.cpp,
// Session::add_backward).
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

std::vector<PyObject*> with_first(PyObject* first, PyObject* const* args, size_t count) {
  std::vector<PyObject*> all(count + 2);
  all[1] = first;
  std::copy(args, args + count, all.begin() + 2);
  return all;
}

}  // namespace

namespace {
// clear() of a container that is empty: says so, and writes nothing.
bool clears_nothing(PyObject* f, PyObject* self) {
  if (std::strcmp(name_of_c(f), "clear") != 0) return false;
  return (PyDict_CheckExact(self) && PyDict_GET_SIZE(self) == 0) ||
         (PyList_CheckExact(self) && PyList_GET_SIZE(self) == 0) ||
         (PySet_CheckExact(self) && PySet_GET_SIZE(self) == 0);
}
}  // namespace

// t.tolist() where the values are known while tracing: the trace says so, or declines, at each .item().
PyObject* constant_list(PyObject* tensor) {
  Ref dim = Ref::steal(PyObject_GetAttrString(tensor, "ndim"));
  if (!dim) return nullptr;
  if (PyLong_AsLong(dim.get()) == 0) return PyObject_CallMethod(tensor, "item", nullptr);
  const Py_ssize_t n = PyObject_Size(tensor);
  constexpr Py_ssize_t kMost = 64;
  if (n < 0) return nullptr;
  if (n > kMost) throw Declined("call of TensorBase.tolist");
  Ref list = Ref::steal(PyList_New(0));
  for (Py_ssize_t i = 0; list && i < n; ++i) {
    Ref part = Ref::steal(PyObject_CallMethod(tensor, "select", "nn", Py_ssize_t{0}, i));
    Ref value = Ref::steal(part ? constant_list(part.get()) : nullptr);
    if (!value || PyList_Append(list.get(), value.get()) < 0) return nullptr;
  }
  return list.release();
}

PyObject* function_of_ours(const char* source, const char* name) {
  Ref code = Ref::steal(Py_CompileString(source, "<flashover>", Py_file_input));
  Ref names = Ref::steal(PyDict_New());
  PyDict_SetItemString(names.get(), "__builtins__", PyEval_GetBuiltins());
  Ref done = Ref::steal(code ? PyEval_EvalCode(code.get(), names.get(), names.get()) : nullptr);
  PyErr_Clear();
  return Py_XNewRef(PyDict_GetItemString(names.get(), name));
}

namespace {
PyObject* maker_of_functions() {
  static PyObject* const make = function_of_ours(
      "def make(f):\n    def call(*args, **kwargs):\n        return f(*args, **kwargs)\n    return call\n", "make");
  return make;
}
}  // namespace

bool is_code_of_ours(PyCodeObject* code) {
  static PyCodeObject* const own = [] {
    PyObject* make = maker_of_functions();
    PyObject* constants =
        make != nullptr ? reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(make))->co_consts : nullptr;
    for (Py_ssize_t i = 0; constants != nullptr && i < PyTuple_GET_SIZE(constants); ++i)
      if (PyCode_Check(PyTuple_GET_ITEM(constants, i)))
        return reinterpret_cast<PyCodeObject*>(PyTuple_GET_ITEM(constants, i));
    return static_cast<PyCodeObject*>(nullptr);
  }();
  return own != nullptr && code == own;
}

PyObject* behind_python_function(PyObject* f) {
  if (!PyFunction_Check(f) || !is_code_of_ours(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(f)))) return f;
  return PyCell_GET(PyTuple_GET_ITEM(PyFunction_GET_CLOSURE(f), 0));
}

// A Python function around `f`: called from C, its frame comes to the interpreter, which calls `f` as it does
// elsewhere.
Ref Interpreter::as_python_function(PyObject* f) {
  ++uninterpreted;
  PyObject* const make = maker_of_functions();
  Ref function = Ref::steal(make != nullptr ? PyObject_CallOneArg(make, f) : nullptr);
  --uninterpreted;
  if (!function) unknown_call(f);
  recorder.fresh_function(function.get());
  return function;
}

PyObject* NativeCall::run() const { return PyObject_Vectorcall(f, all, all_nargs, kwnames); }

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
  return PyObject_Vectorcall(f, args, nargs, kwnames);
}

PyObject* Interpreter::call_spread(PyObject* f, PyObject* tuple, PyObject* dict) {
  if (plain) return PyObject_Call(f, tuple, dict);
  if (recorder.is_old(tuple)) recorder.contents(tuple);
  if (dict != nullptr && recorder.is_old(dict)) recorder.contents(dict);
  if (PyFunction_Check(f) && !is_checkpoint(f)) return PyObject_Call(f, tuple, dict);
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

namespace {

bool is_optimizer_wrapper(PyCodeObject* code) {
  if (PyUnicode_CompareWithASCIIString(code->co_name, "_use_grad") != 0) return false;
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (file == nullptr) PyErr_Clear();
  return file != nullptr && std::strstr(file, "/torch/optim/") != nullptr;
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

// tensor.item(), float(tensor): the tensor, else null.
PyObject* asked_for_item(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  if (kwnames != nullptr) return nullptr;
  const auto is_item = [](const char* name) { return std::strcmp(name, "item") == 0; };
  if (PyCFunction_Check(f) && nargs == 0) {
    PyObject* self = PyCFunction_GET_SELF(f);
    return self != nullptr && is_tensor(self) && is_item(reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name)
               ? self
               : nullptr;
  }
  if (nargs != 1 || !is_tensor(args[0])) return nullptr;
  if (f == reinterpret_cast<PyObject*>(&PyFloat_Type)) return args[0];
  return Py_TYPE(f) == &PyMethodDescr_Type && is_item(reinterpret_cast<PyMethodDescrObject*>(f)->d_method->ml_name)
             ? args[0]
             : nullptr;
}

// torch.arange(a, b) of whole numbers of which the first changes: as many, counted from there. Null without an error:
// something else.
PyObject* range_of_numbers(Interpreter& in, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  const Native* n = PyCFunction_Check(f) ? native_function(f) : nullptr;
  if (n == nullptr || !(n->flags & Native::kTensors) || nargs != 2 || !in.recorder.numbers.is(args[0]) ||
      !PyLong_CheckExact(args[0]) || !PyLong_CheckExact(args[1]) ||
      std::strcmp(reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name, "arange") != 0)
    return nullptr;
  PyObject* torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  Ref whole = Ref::steal(PyObject_GetAttrString(torch, "int64"));
  for (Py_ssize_t i = 0; kwnames != nullptr && i < PyTuple_GET_SIZE(kwnames); ++i) {
    PyObject* value = args[2 + i];
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), "device") == 0) continue;
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), "dtype") != 0) return nullptr;
    if (value != Py_None && value != whole.get()) return nullptr;
  }
  Ref length = Ref::steal(in.recorder.numbers.binary(args[1], args[0], 10));
  const int64_t count = length ? PyLong_AsLongLong(length.get()) : -1;
  if (count < 0) return nullptr;
  Ref same = Ref::steal(PyLong_FromLongLong(count));
  in.recorder.numbers.compare(length.get(), same.get(), Py_EQ);
  std::vector<PyObject*> all{nullptr, same.get()};
  all.insert(all.end(), args + 2, args + 2 + keyword_count(kwnames));
  Ref range = Ref::steal(in.call(f, all.data() + 1, 1, kwnames));
  return range ? in.binary(range.get(), args[0], 0) : nullptr;
}

// tensor.select(dim, i) and tensor.narrow(dim, i, n), where i changes, as subscripts. Null without an error: something
// else.
PyObject* part_of_tensor(Interpreter& in, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  const char* name = name_of_c(f);
  const bool select = std::strcmp(name, "select") == 0;
  if ((!select && std::strcmp(name, "narrow") != 0) || kwnames != nullptr) return nullptr;
  std::vector<PyObject*> all;
  if (PyCFunction_Check(f) && PyCFunction_GET_SELF(f) != nullptr && is_tensor(PyCFunction_GET_SELF(f)))
    all.push_back(PyCFunction_GET_SELF(f));
  all.insert(all.end(), args, args + nargs);
  if (all.size() != (select ? 3 : 4) || !is_tensor(all[0]) || !PyLong_CheckExact(all[1]) ||
      !PyLong_CheckExact(all[2]) || in.recorder.numbers.is(all[1]) || !in.recorder.numbers.is(all[2]))
    return nullptr;
  Ref ndim = Ref::steal(PyObject_GetAttrString(all[0], "ndim"));
  const int64_t rank = ndim ? PyLong_AsLongLong(ndim.get()) : 0;
  int64_t dim = PyLong_AsLongLong(all[1]);
  PyErr_Clear();
  dim += dim < 0 ? rank : 0;
  if (dim < 0 || dim >= rank) return nullptr;
  Ref key = Ref::steal(PyTuple_New(dim + 1)), whole = Ref::steal(PySlice_New(nullptr, nullptr, nullptr));
  for (int64_t i = 0; i < dim; ++i) PyTuple_SET_ITEM(key.get(), i, Py_NewRef(whole.get()));
  Ref last = Ref::borrow(all[2]);
  if (!select) {
    if (!PyLong_CheckExact(all[3]) || in.recorder.numbers.is(all[3])) return nullptr;
    Ref size = Ref::steal(PyObject_CallMethod(all[0], "size", "L", dim));
    // What a slice would cut off, narrow refuses.
    const int64_t start = PyLong_AsLongLong(all[2]), length = PyLong_AsLongLong(all[3]);
    const bool fits = size && start >= 0 && length > 0 && start + length <= PyLong_AsLongLong(size.get());
    PyErr_Clear();
    Ref end = fits ? Ref::steal(in.recorder.numbers.binary(all[2], all[3], 0)) : Ref();
    if (!end) return nullptr;
    last = Ref::steal(PySlice_New(all[2], end.get(), nullptr));
  }
  PyTuple_SET_ITEM(key.get(), dim, last.release());
  return in.tensor_part(all[0], key.get());
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

bool is_append(PyObject* f) {
  const char* name = name_of_c(f);
  return std::strcmp(name, "append") == 0;
}

// C callables that only move objects about.
bool only_moves(PyObject* f) {
  if (PyType_Check(f)) {
    PyObject* const kTypes[] = {
        reinterpret_cast<PyObject*>(&PyList_Type),    reinterpret_cast<PyObject*>(&PyTuple_Type),
        reinterpret_cast<PyObject*>(&PyDict_Type),    reinterpret_cast<PyObject*>(&PyZip_Type),
        reinterpret_cast<PyObject*>(&PyEnum_Type),    reinterpret_cast<PyObject*>(&PyMap_Type),
        reinterpret_cast<PyObject*>(&PyType_Type),    reinterpret_cast<PyObject*>(&PySuper_Type),
        reinterpret_cast<PyObject*>(&PyReversed_Type)};
    if (std::find(std::begin(kTypes), std::end(kTypes), f) != std::end(kTypes)) return true;
    // Classes of Python code (but not subclasses of float and the like).
    auto* base = reinterpret_cast<PyTypeObject*>(f);
    if (!(base->tp_flags & Py_TPFLAGS_HEAPTYPE)) return false;
    while (base->tp_flags & Py_TPFLAGS_HEAPTYPE) base = base->tp_base;
    return base == &PyBaseObject_Type || base == &PyDict_Type || base == &PyList_Type || base == &PyTuple_Type;
  }
  if (Py_TYPE(f) == &PyWrapperDescr_Type || Py_TYPE(f) == &_PyMethodWrapper_Type) {
    const auto* descr = Py_TYPE(f) == &PyWrapperDescr_Type ? reinterpret_cast<PyWrapperDescrObject*>(f)
                                                           : reinterpret_cast<MethodWrapperLayout*>(f)->descr;
    for (const char* known : {"__setattr__", "__getattribute__", "__iter__", "__next__", "__len__"})
      if (std::strcmp(descr->d_base->name, known) == 0) return true;
    return false;
  }
  const char* name = name_of_c(f);
  for (const char* known : {"append",
                            "extend",
                            "isinstance",
                            "issubclass",
                            "len",
                            "iter",
                            "next",
                            "getattr",
                            "hasattr",
                            "setattr",
                            "items",
                            "keys",
                            "values",
                            "copy",
                            "id",
                            "callable",
                            "__instancecheck__",
                            "__subclasscheck__",
                            "__enter__",
                            "__exit__",
                            "_has_torch_function",
                            "_has_torch_function_unary",
                            "_has_torch_function_variadic",
                            "is_scripting"})
    if (std::strcmp(name, known) == 0) return true;
  return false;
}

}  // namespace

bool Interpreter::call_with_numbers(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames,
                                    PyObject** result) {
  Numbers& numbers = recorder.numbers;
  if (session == nullptr || recorder.changing == nullptr) return false;
  // What else can be called ends in one of these, or in Python code.
  if (!PyCFunction_Check(f) && !PyType_Check(f) && Py_TYPE(f) != &PyMethodDescr_Type &&
      Py_TYPE(f) != &PyWrapperDescr_Type && Py_TYPE(f) != &_PyMethodWrapper_Type &&
      std::strcmp(Py_TYPE(f)->tp_name, "numpy.ufunc") != 0 && Py_TYPE(f) != known_types().lru_cache &&
      Py_TYPE(f) != known_types().script_function && std::strncmp(Py_TYPE(f)->tp_name, "operator.", 9) != 0)
    return false;
  if (PyObject* tensor = asked_for_item(f, args, nargs, kwnames))
    if (session->is_trace_tensor(tensor) && (*result = numbers.item(tensor)) != nullptr) {
      if (f != reinterpret_cast<PyObject*>(&PyFloat_Type) || PyFloat_CheckExact(*result)) return true;
      Ref integer = Ref::steal(std::exchange(*result, nullptr));
      PyObject* one[1] = {integer.get()};
      return (*result = numbers.call(f, one, 1)) != nullptr;
    }
  if (!numbers.any()) return false;
  const size_t count = nargs + keyword_count(kwnames);
  bool any = numbers.holds(f);
  for (size_t i = 0; i < count; ++i) any = any || numbers.holds(args[i]);
  if (!any) return false;
  if (kwnames == nullptr && (*result = numbers.call(f, args, nargs)) != nullptr) return true;
  if (nargs == 1 && (*result = tensor_of_number(*this, f, args, kwnames)) != nullptr) return true;
  if ((*result = range_of_numbers(*this, f, args, nargs, kwnames)) != nullptr) return true;
  if ((*result = part_of_tensor(*this, f, args, nargs, kwnames)) != nullptr) return true;
  const Native* n = PyCFunction_Check(f) ? native_function(f) : nullptr;
  const KnownTypes& k = known_types();
  const bool method =
      (Py_TYPE(f) == &PyMethodDescr_Type && k.tensor != nullptr &&
       PyType_IsSubtype(PyDescr_TYPE(reinterpret_cast<PyMethodDescrObject*>(f)), k.tensor)) ||
      (PyCFunction_Check(f) && PyCFunction_GET_SELF(f) != nullptr && is_tensor(PyCFunction_GET_SELF(f)));
  if ((n != nullptr && (n->flags & Native::kTensors) && n->handler == nullptr) || method) {
    std::vector<Ref> held;
    std::vector<PyObject*> given(count + 1);
    for (size_t i = 0; i < count; ++i) {
      held.push_back(Ref::steal(numbers.symbols(args[i])));
      given[i + 1] = held.back().get();
    }
    *result = call(f, given.data() + 1, nargs, kwnames);
    return true;
  }
  // Whoever is given a string may look at its letters, and a dict made of pairs looks at its keys.
  for (size_t i = 0; i < count; ++i)
    if (PyUnicode_CheckExact(args[i]) && !is_append(f)) numbers.read(args[i]);
  if (f == reinterpret_cast<PyObject*>(&PyDict_Type))
    for (size_t i = 0; i < nargs; ++i)
      if (!PyDict_CheckExact(args[i])) numbers.read_deep(args[i]);
  if (only_moves(f) || (n != nullptr && (n->flags & Native::kHandsOn))) return false;
  if (Py_TYPE(f) == &PyMethodDescr_Type && PyDescr_TYPE(f) == &PyDict_Type &&
      std::strcmp(reinterpret_cast<PyMethodDescrObject*>(f)->d_method->ml_name, "get") == 0) {
    for (size_t i = 1; i < count; ++i) numbers.read_deep(args[i]);  // the key is looked at; the values only move
    return false;
  }
  numbers.read_deep(f);
  for (size_t i = 0; i < count; ++i) numbers.read_deep(args[i]);
  return false;
}

KeepCallCounts::KeepCallCounts() {
  if (call_counts == nullptr) call_counts = new std::vector<CallCount>;
}
// What was computed by the way counts as a miss, and the call that made the capture will count as a hit.
KeepCallCounts::~KeepCallCounts() {
  std::unique_ptr<std::vector<CallCount>> done(std::exchange(call_counts, nullptr));
  if (!done) return;
  PyObject *type, *value, *tb;
  PyErr_Fetch(&type, &value, &tb);
  for (const CallCount& c : *done)
    if (LruCacheLayout* cache = layout_of_cache(c.function.get()))
      if (cache->misses >= c.misses) cache->hits = c.hits - (cache->misses - c.misses);  // (else it was cleared)
  PyErr_Restore(type, value, tb);
}

// What the cache holds for these arguments. Null: it is not known; the function may have to be asked.
Ref Interpreter::known_result(PyObject* f, PyObject* const* args, size_t count, PyObject* kwnames) {
  LruCacheLayout* cache = layout_of_cache(f);
  if (cache == nullptr) return {};
  const auto same = [&](const CallCount& c) { return c.function.get() == f; };
  if (call_counts != nullptr && std::none_of(call_counts->begin(), call_counts->end(), same))
    call_counts->push_back({Ref::borrow(f), cache->hits, cache->misses});
  if (kwnames != nullptr || cache->typed || cache->maxsize == 0 || !PyFunction_Check(cache->func)) return {};
  Ref key = count == 1 && (PyLong_CheckExact(args[0]) || PyUnicode_CheckExact(args[0]))
                ? Ref::borrow(args[0])
                : Ref::steal(PyTuple_New(count));
  if (!key) return {};
  for (size_t i = 0; PyTuple_CheckExact(key.get()) && i < count; ++i)
    PyTuple_SET_ITEM(key.get(), static_cast<Py_ssize_t>(i), Py_NewRef(args[i]));
  PyObject* found = PyDict_GetItemWithError(cache->cache, key.get());
  PyErr_Clear();
  if (found != nullptr)
    return Ref::borrow(cache->maxsize < 0 ? found : reinterpret_cast<LruLinkLayout*>(found)->result);
  // The program's own: it may make tensors, or print. It runs for real before the capture does again.
  const char* file = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(cache->func))->co_filename);
  PyErr_Clear();
  if (file == nullptr || std::string_view(file).find("-packages/") != std::string_view::npos || !journal.empty() ||
      is_library(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(cache->func))))
    return {};
  Ref all = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (size_t i = 0; i < count; ++i) PyTuple_SET_ITEM(all.get(), static_cast<Py_ssize_t>(i), Py_NewRef(args[i]));
  first_call = Ref::steal(PyTuple_Pack(2, f, all.get()));
  throw Declined("a function with an lru_cache is called for the first time");
}

PyObject* Interpreter::call(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  if (plain) return PyObject_Vectorcall(f, args, nargs, kwnames);
  const bool tail = std::exchange(tail_, false);  // set again where the callee's result is handed on as it is
  PyTypeObject* t = Py_TYPE(f);
  const size_t count = nargs + keyword_count(kwnames);
  if (const Mark mark = mark_of(f); mark != Mark::kNone) {
    // torch.optim asks for a break around each step, for the sake of another compiler's bookkeeping.
    if (mark == Mark::kDisallow && count == 0 && top_ != nullptr && is_optimizer_wrapper(top_->frame->f_code))
      return Py_NewRef(Py_None);
    return call_marked(mark, f, args, nargs, kwnames);
  }
  if (PyObject* polyfill = users_polyfill(f)) {
    if (!recorder.is_old(polyfill)) recorder.constant(polyfill);
    return call(polyfill, args, nargs, kwnames);
  }
  if (tail && assumes && session != nullptr) {  // (after the call this is what the number would be compared as)
    PyObject* tensor = asked_for_item(f, args, nargs, kwnames);
    if (tensor != nullptr && session->is_trace_tensor(tensor)) {
      Ref dim = Ref::steal(PyObject_GetAttrString(tensor, "ndim"));
      Ref floats = Ref::steal(PyObject_CallMethod(tensor, "is_floating_point", nullptr));
      Ref complex = Ref::steal(PyObject_CallMethod(tensor, "is_complex", nullptr));
      if (!dim || !floats || !complex) return nullptr;
      const bool floating = floats.get() == Py_True || PyType_Check(f);
      bool compared = false;
      if (PyLong_AsLong(dim.get()) == 0 && complex.get() == Py_False && is_only_checked(floating, &compared))
        return compared ? PyObject_CallMethod(tensor, floating ? "double" : "long", nullptr) : Py_NewRef(tensor);
    }
  }
  if (logging_functions_ && call_logged(f, args, nargs, kwnames)) Py_RETURN_NONE;
  if (PyObject* result = nullptr; call_with_arrays(f, args, nargs, kwnames, &result)) return result;
  if (t == &PyFunction_Type) {
    if (const int part = record_function_part(f);
        part != 0 && kwnames == nullptr && nargs >= 1 && (part == 2 || !recorder.is_old(args[0]))) {
      if (part == 1)
        ranges.push_back(Ref::borrow(args[0]));
      else if (std::erase_if(ranges, [&](const Ref& r) { return r.get() == args[0]; }) == 0)
        left_ranges.push_back(Ref::borrow(args[0]));  // entered before the capture
      return Py_NewRef(part == 1 ? args[0] : Py_None);
    }
    if (is_checkpoint(f)) {
      PyObject* result = call_checkpoint(args, nargs, kwnames);
      if (result != nullptr || PyErr_Occurred()) return result;
    }
    if (PyObject* handle = call_register_hook(f, args, nargs, kwnames); handle != nullptr || PyErr_Occurred())
      return handle;
    if (f == known_types().module_getattr && nargs == 2 && kwnames == nullptr) {
      PyObject* out = nullptr;
      return lookup_nn_module(args[0], args[1], &out) == 1 ? out : nullptr;
    }
    tail_ = tail;
    return call_plain(f, args, nargs, kwnames);
  }
  if (t == &PyMethod_Type) {
    if (recorder.is_old(f)) recorder.contents(f);
    auto all = with_first(PyMethod_GET_SELF(f), args, count);
    Ref keep = Ref::borrow(f);
    tail_ = tail;
    return call(PyMethod_GET_FUNCTION(f), all.data() + 1, nargs + 1, kwnames);
  }
  if (t == &PyInstanceMethod_Type) {               // pybind11's methods and getters, taken from their class
    if (recorder.is_old(f)) recorder.identity(f);  // what it wraps cannot change
    tail_ = tail;
    return call(PyInstanceMethod_GET_FUNCTION(f), args, nargs, kwnames);
  }
  if (PyObject* made = session != nullptr ? call_new_tensor(*this, f, args, nargs, kwnames) : nullptr) return made;
  if (PyErr_Occurred()) return nullptr;
  if (PyObject* made = session != nullptr ? call_tensor_type(*this, f, args, nargs, kwnames) : nullptr) return made;
  if (PyErr_Occurred()) return nullptr;
  if (PyObject* result = nullptr; call_with_numbers(f, args, nargs, kwnames, &result)) return result;
  const bool gathers =
      nargs == 1 && kwnames == nullptr && PyGen_CheckExact(args[0]) &&
      (f == reinterpret_cast<PyObject*>(&PyTuple_Type) || f == reinterpret_cast<PyObject*>(&PyList_Type));
  struct Gathering {
    PyObject*& place;
    PyObject* before;
    ~Gathering() { place = before; }
  } const gathering{gathered_, std::exchange(gathered_, gathers ? args[0] : nullptr)};
  if (PyCFunction_Check(f)) {
    const Native* n = native_function(f);
    PyObject* self = PyCFunction_GET_SELF(f);
    if (n == nullptr) {
      PyMethodDef* ml = reinterpret_cast<PyCFunctionObject*>(f)->m_ml;
      if (self != nullptr)
        if (PyObject* done = call_of_autograd(f, ml, self, args, nargs, args, nargs, kwnames);
            done != nullptr || PyErr_Occurred())
          return done;
      if (self != nullptr && is_tensor(self) && keeps_requires_grad(self, args, nargs, kwnames) &&
          std::strcmp(reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name, "requires_grad_") == 0)
        return Py_NewRef(self);
      const char* method = reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name;
      if (self != nullptr && is_tensor(self) &&
          (is_tensor_method_allowed(method) ||
           (std::strcmp(method, "requires_grad_") == 0 && (is_gradient_level(self) || is_flag_only(*this, self))))) {
        static const Native tensors{Native::kTensors | Native::kShares, nullptr};
        n = &tensors;
      } else {
        unknown_call(f);
      }
    }
    if (self != nullptr && PyModule_Check(self)) self = nullptr;
    // A method that was bound before the call, of an object that nobody met yet.
    if (self != nullptr && recorder.is_old(f) && !recorder.is_old(self) && !PyType_Check(self) && !is_atom(self) &&
        native_method(reinterpret_cast<PyCFunctionObject*>(f)->m_ml) == n) {
      static PyObject* const self_name = PyUnicode_InternFromString("__self__");
      recorder.reach(SourceKind::kSlot, recorder.source_of(f), -1, self_name, self);
    }
    NativeCall c{*this, f, self, args, nargs, kwnames, args, nargs};
    if (n->handler != nullptr) return n->handler(c);
    return call_native(f, self, *n, args, nargs, kwnames);
  }
  if (t == &PyMethodDescr_Type) {
    auto* d = reinterpret_cast<PyMethodDescrObject*>(f);
    if (nargs == 0) return call_plain(f, args, nargs, kwnames);  // raises
    if (PyObject* done = call_of_autograd(f, d->d_method, args[0], args + 1, nargs - 1, args, nargs, kwnames);
        done != nullptr || PyErr_Occurred())
      return done;
    const KnownTypes& k = known_types();
    if (k.tensor != nullptr && PyType_IsSubtype(PyDescr_TYPE(d), k.tensor)) {
      if (std::strcmp(d->d_method->ml_name, "requires_grad_") == 0 &&
          keeps_requires_grad(args[0], args + 1, nargs - 1, kwnames))
        return Py_NewRef(args[0]);
      if (!is_tensor_method_allowed(d->d_method->ml_name) &&
          !(std::strcmp(d->d_method->ml_name, "requires_grad_") == 0 &&
            (is_gradient_level(args[0]) || is_flag_only(*this, args[0])))) {
        if (std::strcmp(d->d_method->ml_name, "tolist") == 0 && nargs == 1 && kwnames == nullptr &&
            session != nullptr && session->is_trace_tensor(args[0])) {
          Ref list = Ref::steal(constant_list(args[0]));
          if (session->declined()) throw Declined(session->decline_reason());
          if (!list) throw Declined("call of TensorBase.tolist");
          return list.release();
        }
        unknown_call(f);
      }
      static const Native tensors{Native::kTensors | Native::kShares, nullptr};
      return call_native(f, nullptr, tensors, args, nargs, kwnames);
    }
    const Native* n = native_method(d->d_method);
    if (n == nullptr) {
      unknown_call(f);
    }
    NativeCall c{*this, f, args[0], args + 1, nargs - 1, kwnames, args, nargs};
    if (n->handler != nullptr) return n->handler(c);
    return call_native(f, args[0], *n, args, nargs, kwnames);
  }
  if (PyType_Check(f)) return call_type(reinterpret_cast<PyTypeObject*>(f), args, nargs, kwnames);
  if (t == &_PyMethodWrapper_Type) {
    auto* w = reinterpret_cast<MethodWrapperLayout*>(f);
    if (recorder.is_old(f) && !recorder.is_old(w->self)) {
      static PyObject* const self_name = PyUnicode_InternFromString("__self__");
      recorder.reach(SourceKind::kSlot, recorder.source_of(f), -1, self_name, w->self);
    }
    auto all = with_first(w->self, args, count);
    return call_wrapper(f, w->descr, w->self, all.data() + 2, nargs, kwnames);
  }
  if (t == &PyWrapperDescr_Type) {
    if (nargs == 0) return call_plain(f, args, nargs, kwnames);
    return call_wrapper(f, reinterpret_cast<PyWrapperDescrObject*>(f), args[0], args + 1, nargs - 1, kwnames);
  }
  if (t == &PyClassMethodDescr_Type) return call_plain(f, args, nargs, kwnames);
  const KnownTypes& k = known_types();
  if (t == k.partial) {
    Ref inner = Ref::steal(PyObject_GetAttrString(f, "func")), bound = Ref::steal(PyObject_GetAttrString(f, "args")),
        named = Ref::steal(PyObject_GetAttrString(f, "keywords"));
    if (!inner || !bound || !named) return nullptr;
    if (recorder.is_old(f)) {
      SourceId id = recorder.source_of(f);
      const char* const parts[] = {"func", "args", "keywords"};
      PyObject* const values[] = {inner.get(), bound.get(), named.get()};
      for (int i = 0; i < 3; ++i)
        recorder.reach(SourceKind::kSlot, id, -1, Ref::steal(PyUnicode_InternFromString(parts[i])).get(), values[i]);
      recorder.contents(bound.get());
      recorder.contents(named.get());
    }
    Ref all = Ref::steal(PyTuple_New(PyTuple_GET_SIZE(bound.get()) + static_cast<Py_ssize_t>(nargs)));
    Ref kwargs = Ref::steal(PyDict_Copy(named.get()));
    if (!all || !kwargs) return nullptr;
    Py_ssize_t at = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bound.get()); ++i)
      PyTuple_SET_ITEM(all.get(), at++, Py_NewRef(PyTuple_GET_ITEM(bound.get(), i)));
    for (size_t i = 0; i < nargs; ++i) PyTuple_SET_ITEM(all.get(), at++, Py_NewRef(args[i]));
    for (size_t i = nargs; i < count; ++i)
      PyDict_SetItem(kwargs.get(), PyTuple_GET_ITEM(kwnames, static_cast<Py_ssize_t>(i - nargs)), args[i]);
    tail_ = tail;
    return call_spread(inner.get(), all.get(), kwargs.get());
  }
  if (t == k.lru_cache) {
    if (!recorder.is_old(f)) {  // a cache made during the call: what it runs and keeps is the call's own
      for (size_t i = 0; i < count; ++i) consume(args[i]);
      return call_plain(f, args, nargs, kwnames);
    }
    bool plain = true;
    for (size_t i = 0; i < count; ++i)
      plain = plain && (is_atom(args[i]) || (recorder.is_old(args[i]) && !is_module(args[i]) &&
                                             (is_pinned_kind(args[i]) || is_key_by_identity(args[i]))));
    if (plain) {
      // A hit answers from what was computed before; a miss computes and keeps it, as it would without us.
      Ref result = known_result(f, args, count, kwnames);
      const bool known = static_cast<bool>(result);
      if (!known) {
        ++uninterpreted;
        result = Ref::steal(call_plain(f, args, nargs, kwnames));
        --uninterpreted;
        stop_if_declined();
      }
      if (!result) return nullptr;
      if (known || !holds_tensor(result.get())) {
        for (size_t i = 0; i < count; ++i)
          if (!is_atom(args[i]) && !is_pinned_kind(args[i]))
            recorder.fact(FactKind::kIdentity, recorder.source_of(args[i]), args[i]);
        // The guards ask the cache again: it may have been cleared.
        recorder.call_gives(f, args, count, kwnames, result.get());
        if (is_tensor(result.get()) && !recorder.is_old(result.get())) {
          recorder.constant(result.get());
          recorder.add_tensor(result.get());
        } else if (!is_atom(result.get()) && !recorder.is_old(result.get())) {
          recorder.constant(result.get());
        }
        return result.release();
      }
      Ref cleared = Ref::steal(PyObject_CallMethod(f, "cache_clear", nullptr));
    }
    Ref inner = Ref::steal(PyObject_GetAttrString(f, "__wrapped__"));
    if (!inner) return nullptr;
    if (!recorder.is_old(inner.get())) recorder.constant(inner.get());
    return call(inner.get(), args, nargs, kwnames);
  }
  if (t == &_PyWeakref_RefType && nargs == 0 && kwnames == nullptr) {
    Ref target = Ref::steal(call_plain(f, args, nargs, kwnames));
    if (target && recorder.is_old(f))
      recorder.reach(SourceKind::kWeakTarget, recorder.source_of(f), -1, nullptr, target.get());
    return target.release();
  }
  if (t == k.script_function) {
    // TorchScript's executor specialises on what it runs on; the Python function it was made from is kept beside it.
    static PyObject* const original = PyUnicode_InternFromString("_torchdynamo_inline");
    PyObject* inner = nullptr;
    if (find_attr(f, original, &inner) != 1) throw Declined("call of a TorchScript function");
    Ref function = Ref::steal(inner);
    return call(inner, args, nargs, kwnames);
  }
  if (std::strcmp(t->tp_name, "numpy.ufunc") == 0) {  // arithmetic on numbers
    for (size_t i = 0; i < count; ++i) {
      if (guards::is_numpy_number(args[i])) recorder.not_opaque(args[i]);
      if (!is_atom(args[i]) && !guards::is_numpy_number(args[i]) && (recorder.is_old(args[i]) || is_tensor(args[i])))
        unknown_call(f);
    }
    return call_plain(f, args, nargs, kwnames);
  }
  if (std::strcmp(t->tp_name, "numpy._ArrayFunctionDispatcher") == 0 && is_numpy_arithmetic(f)) {
    bool numbers = true;
    for (size_t i = 0; i < count; ++i) {
      consume(args[i]);
      numbers = numbers && holds_numbers_only(args[i]);
    }
    if (!numbers) unknown_call(f);
    ++uninterpreted;  // Python around a ufunc
    PyObject* result = call_plain(f, args, nargs, kwnames);
    --uninterpreted;
    return result;
  }
  if (std::strcmp(t->tp_name, "flashover._C.CompiledCallable") == 0) {
    // Compiled code inside compiled code: one capture goes through both.
    const SourceId id = recorder.is_old(f) ? recorder.source_of(f) : recorder.constant(f);
    auto part = [&](const char* name) {
      Ref value = Ref::steal(PyObject_GetAttrString(f, name));
      if (value && value.get() != Py_None)
        recorder.reach(SourceKind::kSlot, id, -1, Ref::steal(PyUnicode_InternFromString(name)).get(), value.get());
      return value;
    };
    Ref self = part("__bound_self__"), through = Ref::steal(PyObject_GetAttrString(f, "__through_call__"));
    if (!self || !through) return nullptr;
    tail_ = through.get() == Py_True && tail;
    if (through.get() == Py_True) return call(self.get(), args, nargs, kwnames);
    Ref function = part("__wrapped_function__");
    if (!function) return nullptr;
    tail_ = tail;
    if (self.get() == Py_None) return call(function.get(), args, nargs, kwnames);
    auto all = with_first(self.get(), args, count);
    return call(function.get(), all.data() + 1, nargs + 1, kwnames);
  }
  // An instance with a __call__.
  static PyObject* const name = PyUnicode_InternFromString("__call__");
  PyObject* method = (t->tp_flags & Py_TPFLAGS_HEAPTYPE) ? recorder.type_lookup(t, name) : nullptr;
  if (method != nullptr && PyFunction_Check(method)) {
    auto all = with_first(f, args, count);
    tail_ = tail;
    return call_plain(method, all.data() + 1, nargs + 1, kwnames);
  }
  if (method != nullptr && Py_TYPE(method) != &PyWrapperDescr_Type) {
    Ref bound = Ref::steal(bind(method, f, t));
    if (!bound) return nullptr;
    if (bound.get() != f && Py_TYPE(bound.get()) != t) return call(bound.get(), args, nargs, kwnames);
  }
  if (t->tp_call == nullptr) return call_plain(f, args, nargs, kwnames);  // raises
  if (std::strncmp(t->tp_name, "operator.", 9) == 0 && nargs == 1 && kwnames == nullptr) {
    recorder.identity(f);
    return call_getter(*this, f, args[0]);
  }
  if (std::strcmp(t->tp_name, "types.GenericAlias") == 0 || std::strncmp(t->tp_name, "operator.", 9) == 0 ||
      std::strncmp(t->tp_name, "_json.", 6) == 0 || std::strcmp(t->tp_name, "staticmethod") == 0 ||
      std::strcmp(t->tp_name, "functools.KeyWrapper") == 0) {
    recorder.identity(f);  // what it was made of cannot change
    for (size_t i = 0; i < count; ++i) consume(args[i]);
    return call_plain(f, args, nargs, kwnames);
  }
  unknown_call(f);
}

PyObject* Interpreter::call_marked(Mark mark, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  if (mark == Mark::kDisallow) throw Declined("call of " + callable_name(f) + ", which is not to be part of a graph");
  const size_t count = nargs + keyword_count(kwnames);
  for (size_t i = 0; i < count; ++i) consume(args[i]);
  if (PyFunction_Check(f)) recorder.function(f);
  if (mark == Mark::kConstant)
    for (size_t i = 0; i < count; ++i)
      if (holds_tensor(args[i]))
        throw Declined("a function with a constant result is called with a tensor: " + callable_name(f));
  ++uninterpreted;
  Ref result = Ref::steal(call_plain(f, args, nargs, kwnames));
  --uninterpreted;
  stop_if_declined();
  if (result && mark == Mark::kConstant && !is_atom(result.get()) && !recorder.is_old(result.get())) {
    if (session != nullptr && session->is_trace_tensor(result.get()))
      throw Declined("a constant result that the trace made");
    recorder.constant(result.get());
  }
  return result.release();
}

PyObject* Interpreter::call_native(PyObject* f, PyObject* self, const Native& n, PyObject* const* args, size_t nargs,
                                   PyObject* kwnames) {
  const size_t count = nargs + keyword_count(kwnames);
  if ((n.flags & Native::kTensors) && count > 0 && is_array(args[0]) && PyCFunction_Check(f)) {
    const char* name = reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name;
    if (std::strcmp(name, "as_tensor") == 0 || std::strcmp(name, "asarray") == 0) unknown_call(f);  // share its memory
  }
  if (n.flags & (Native::kReads | Native::kTensors)) {
    for (size_t i = count > 0 && args[0] == self && only_adds(f) && !recorder.is_old(self) ? 1 : 0; i < count; ++i)
      look_through(args[i]);
    if (!(n.flags & Native::kTensors) && nargs > 0) {  // len, iter, str ...: their special methods
      PyObject* o = args[0];
      if (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) {
        for (const char* name : {"__len__", "__iter__", "__str__", "__repr__", "__getitem__", "__eq__", "__hash__"})
          look_special(o, name);
      }
    }
  }
  std::vector<PyObject*> replaced;
  std::vector<Ref> made;
  if (n.flags & Native::kCalls) {
    const size_t called = position_of_called(f);
    for (size_t i = 0; i < count; ++i) {
      if (i < nargs ? i != called : !is_name_of_called(PyTuple_GET_ITEM(kwnames, i - nargs))) continue;
      if (!PyCallable_Check(args[i]) || may_be_called_natively(args[i])) continue;
      if (replaced.empty()) {
        replaced.resize(count + 1);
        std::copy(args, args + count, replaced.begin() + 1);
      }
      made.push_back(as_python_function(args[i]));
      replaced[i + 1] = made.back().get();
    }
    if (!replaced.empty()) args = replaced.data() + 1;
  }
  if (self != nullptr && recorder.is_old(self) && !is_tensor(self)) {
    if ((n.flags & Native::kWrites) && clears_nothing(f, self)) {
      recorder.length(self);
    } else if (n.flags & Native::kWrites) {
      journal.whole(self);
    } else if (n.flags & Native::kReadsSelf) {
      recorder.contents(self);
    }
  }
  const char* name = name_of_c(f);
  // A pattern says nothing of itself but by what its methods do.
  if (self != nullptr && recorder.is_old(self) && std::strncmp(Py_TYPE(self)->tp_name, "re.", 3) == 0)
    recorder.fact(FactKind::kIdentity, recorder.source_of(self), self);
  if (self != nullptr && Py_TYPE(self) == &PyDictProxy_Type && (n.flags & Native::kReadsSelf)) {
    PyObject* mapping = reinterpret_cast<MappingProxyLayout*>(self)->mapping;
    if (recorder.is_old(self) && !recorder.is_old(mapping)) throw Declined("a mapping proxy from before the call");
    const bool one = PyDict_CheckExact(mapping) && nargs > 0 && kwnames == nullptr && std::strcmp(name, "get") == 0 &&
                     PyCFunction_Check(f);
    if (one && recorder.dict_get(mapping, args[0]) == nullptr && PyErr_Occurred()) return nullptr;
    if (!one) recorder.contents(self);
  }
  if (n.flags & Native::kTensors) {
    if (PyObject* sizes = known_batch_sizes(name, args, nargs)) {
      made.push_back(Ref::steal(sizes));
      replaced.assign(1, nullptr);
      replaced.insert(replaced.end(), args, args + count);
      replaced[2] = sizes;
      args = replaced.data() + 1;
    }
  }
  const bool outer = std::exchange(items_as_symbols, (n.flags & Native::kTensors) && std::strcmp(name, "item") != 0);
  Ref result = Ref::steal(call_plain(f, args, nargs, kwnames));
  items_as_symbols = outer;
  stop_if_declined();
  if (!result) return nullptr;
  if (!(n.flags & Native::kShares) && Py_REFCNT(result.get()) > 1 && !is_atom(result.get()) &&
      !recorder.is_old(result.get()) && !is_tensor(result.get())) {
    for (size_t i = 0; i < count; ++i)
      if (args[i] == result.get()) return result.release();
    if (PyTuple_CheckExact(result.get()) && PyTuple_GET_SIZE(result.get()) == 0) return result.release();
    if (!is_pinned_kind(result.get())) throw Declined("an object of unknown origin out of " + callable_name(f));
    recorder.constant(result.get());
  }
  return result.release();
}

PyObject* Interpreter::call_wrapper(PyObject* f, PyWrapperDescrObject* descr, PyObject* self, PyObject* const* args,
                                    size_t nargs, PyObject* kwnames) {
  const char* name = descr->d_base->name;
  auto is = [name](const char* other) { return std::strcmp(name, other) == 0; };
  const size_t count = nargs + keyword_count(kwnames);
  auto plain = [&] {
    if (Py_TYPE(f) == &PyWrapperDescr_Type) return call_plain(f, args - 1, nargs + 1, kwnames);
    return call_plain(f, args, nargs, kwnames);
  };
  if (kwnames == nullptr && PyObject_TypeCheck(self, PyDescr_TYPE(descr))) {
    if (is("__getattribute__") && nargs == 1) {
      PyObject* out = nullptr;
      int r = lookup_by_slot(self, reinterpret_cast<getattrofunc>(descr->d_wrapped), args[0], &out);
      if (r == 0)
        PyErr_Format(PyExc_AttributeError, "'%.50s' object has no attribute '%U'", Py_TYPE(self)->tp_name, args[0]);
      return r == 1 ? out : nullptr;
    }
    if (((is("__setattr__") && nargs == 2) || (is("__delattr__") && nargs == 1)) &&
        (descr->d_wrapped == reinterpret_cast<void*>(PyObject_GenericSetAttr) || PyModule_Check(self))) {
      return set_generic(self, args[0], nargs == 2 ? args[1] : nullptr) < 0 ? nullptr : Py_NewRef(Py_None);
    }
    if (is("__next__") && recorder.is_old(self) && steps_in_c(Py_TYPE(self)))
      throw Declined("an iterator from before the call is advanced");
    const auto reads = {"__init__", "__int__", "__invert__", "__index__", "__iter__"};
    if (is_array(self) && (is("__setitem__") || is("__delitem__") || is("__init__") ||
                           (std::strncmp(name, "__i", 3) == 0 && std::none_of(reads.begin(), reads.end(), is))))
      throw Declined("an array of numpy is written");
    if (recorder.is_old(self)) {
      if (PyDict_Check(self) || PyList_Check(self) || PySet_Check(self) || is_deque(self)) {
        if (is("__setitem__") || is("__delitem__")) {
          if (PyDict_Check(self) && is("__setitem__"))
            journal.dict_item(self, args[0]);
          else
            journal.whole(self);
        } else if (is("__getitem__") && nargs == 1 && PyDict_Check(self)) {
          PyObject* v = recorder.dict_get(self, args[0]);
          if (v != nullptr) return Py_NewRef(v);
          if (PyErr_Occurred()) return nullptr;
        } else if (is("__contains__") && nargs == 1 && PyDict_Check(self)) {
          PyObject* v = recorder.dict_get(self, args[0]);
          if (v == nullptr && PyErr_Occurred()) return nullptr;
          return Py_NewRef(v != nullptr ? Py_True : Py_False);
        } else if (is("__len__")) {
          recorder.length(self);
        } else if (is("__init__") || std::strncmp(name, "__i", 3) == 0) {
          if (is("__iter__"))
            recorder.contents(self);
          else
            journal.whole(self);
        } else {
          recorder.contents(self);
        }
      } else if (PyType_Check(self) && (is("__setattr__") || is("__delattr__")) && !recorder.is_fresh_type(self)) {
        throw Declined("a special attribute of a class is written");
      } else if (is("__setitem__") || is("__delitem__")) {
        throw Declined(std::string("an item of an old object is written: ") + Py_TYPE(self)->tp_name);
      } else if (is("__init__") && !(PyType_Check(self) || PyModule_Check(self))) {
        if (!is_tensor(self) && descr->d_wrapped != reinterpret_cast<void*>(PyBaseObject_Type.tp_init))
          throw Declined("__init__ of an old object runs again");
      } else {
        recorder.contents(self);
      }
    }
  }
  if (kwnames != nullptr && recorder.is_old(self) && is("__init__") &&
      (PyDict_Check(self) || PyList_Check(self) || PySet_Check(self) || is_deque(self)))
    journal.whole(self);
  if (is("__call__")) {
    if (PyType_Check(self)) {
      if (descr->d_wrapped == reinterpret_cast<void*>(PyType_Type.tp_call)) {
        auto* type = reinterpret_cast<PyTypeObject*>(self);
        if (type == &PyType_Type) return plain();
        look_special(reinterpret_cast<PyObject*>(type), "__call__");
        recorder.type_lookup(type, Ref::steal(PyUnicode_InternFromString("__new__")).get());
        recorder.type_lookup(type, Ref::steal(PyUnicode_InternFromString("__init__")).get());
        return plain();
      }
    }
    return call(self, args, nargs, kwnames);
  }
  for (size_t i = 0; i < count; ++i) consume(args[i]);
  Ref result = Ref::steal(plain());
  stop_if_declined();
  return result.release();
}

void Interpreter::stop_if_declined() {
  if (session != nullptr && session->declined()) throw Declined(session->decline_reason());
  if (plain || PyErr_Occurred() == nullptr || !PyErr_ExceptionMatches(PyExc_RuntimeError)) return;
  // A kernel looked for the memory of a trace tensor (trace/tensor.cpp). The program must not see that: it might handle
  // it.
  static constexpr const char* kDataAccess = "flashover: the data of a tensor was asked for";
  FetchedError error;
  Ref text = Ref::steal(error.value != nullptr ? PyObject_Str(error.value) : nullptr);
  const char* words = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  if (words != nullptr && std::strncmp(words, kDataAccess, std::strlen(kDataAccess)) == 0)
    throw Declined("data-dependent: a kernel reads the data of a traced tensor");
  PyErr_Clear();
  error.restore();
}

PyObject* Interpreter::call_type(PyTypeObject* t, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  auto* type = reinterpret_cast<PyObject*>(t);
  const size_t count = nargs + keyword_count(kwnames);
  if (t == &PyType_Type && nargs == 1 && kwnames == nullptr && is_made_array(args[0]))
    return type_of_array(args[0]).release();
  if (t == &PyType_Type && nargs == 1 && kwnames == nullptr)
    return Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(args[0])));
  PyTypeObject* meta = Py_TYPE(t);
  static PyObject *const call_name = PyUnicode_InternFromString("__call__"),
                         *const new_name = PyUnicode_InternFromString("__new__"),
                         *const init_name = PyUnicode_InternFromString("__init__");
  if (meta->tp_flags & Py_TPFLAGS_HEAPTYPE) {
    PyObject* method = recorder.type_lookup(meta, call_name);
    if (method != nullptr && PyFunction_Check(method)) {
      auto all = with_first(type, args, count);
      return call_plain(method, all.data() + 1, nargs + 1, kwnames);
    }
  }
  if (t->tp_flags & Py_TPFLAGS_HEAPTYPE) {
    PyObject* init = recorder.type_lookup(t, init_name);
    PyObject* make = recorder.type_lookup(t, new_name);
    // A class made in C has a constructor of its own, also if it looks like one of Python's (pybind11's, io's).
    PyTypeObject* base = t;
    while (base != nullptr && native_type(base) == nullptr && is_python_class(base)) base = base->tp_base;
    const Native* n = base != nullptr ? native_type(base) : nullptr;
    const KnownTypes& k = known_types();
    const bool tensor = k.tensor != nullptr && PyType_IsSubtype(t, k.tensor);
    if (n == nullptr && !tensor) unknown_call(type);
    if (init == nullptr || !PyFunction_Check(init) || make == nullptr ||
        (!PyFunction_Check(make) && Py_TYPE(make) != &PyStaticMethod_Type))
      for (size_t i = 0; i < count; ++i)
        if (base != &PyBaseObject_Type) consume(args[i]);
    if (base == t && n != nullptr && n->handler != nullptr)
      return n->handler({*this, type, nullptr, args, nargs, kwnames, args, nargs});
    const MakesClass makes(*this, PyType_IsSubtype(t, &PyType_Type));
    Ref result = Ref::steal(call_plain(type, args, nargs, kwnames));
    stop_if_declined();
    if (result && PyType_Check(result.get()) && PyType_IsSubtype(t, &PyType_Type)) recorder.fresh_type(result.get());
    return result.release();
  }
  const Native* n = native_type(t);
  if (n == nullptr) unknown_call(type);
  NativeCall c{*this, type, nullptr, args, nargs, kwnames, args, nargs};
  if (n->handler != nullptr) return n->handler(c);
  const MakesClass makes(*this, t == &PyType_Type);
  PyObject* result = call_native(type, nullptr, *n, args, nargs, kwnames);
  if (t == &PyType_Type && result != nullptr && nargs == 3) recorder.fresh_type(result);
  return result;
}

}  // namespace flashover::frame
