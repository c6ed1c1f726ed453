// Arrays of numpy. An array from before the trace is, where the program does something with it, an Array
// (python/flashover/_arrays.py) over a graph input that shares its memory; what comes out of that are Arrays too. They
// know what they can do: what they cannot ends the capture.
#include <cstring>
#include <string_view>

#include "base/boundary.h"
#include "frame/arrays.h"
#include "frame/bytecode/code_file.h"
#include "frame/interpret/instructions.h"
#include "frame/interpret/native.h"

namespace flashover::frame {
namespace {

constexpr int kMaxArrayDepth = 4;

PyTypeObject* array_type = nullptr;  // set with the first use

PyObject* arrays_attribute(const char* name) {
  static PyObject* const module = [] {
    PyObject* m = PyImport_ImportModule("flashover._arrays");
    Ref type = Ref::steal(m != nullptr ? PyObject_GetAttrString(m, "Array") : nullptr);
    if (type) array_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(type.get()));
    return m;
  }();
  PyObject* part = module != nullptr ? PyDict_GetItemString(PyModule_GetDict(module), name) : nullptr;
  PyErr_Clear();
  if (part == nullptr) throw Declined("an array of numpy");
  return part;
}

bool starts_with_numpy(PyObject* text) {
  const char* utf8 = text != nullptr && PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : nullptr;
  if (utf8 == nullptr) PyErr_Clear();
  return utf8 != nullptr && std::strncmp(utf8, "numpy", 5) == 0 && (utf8[5] == 0 || utf8[5] == '.');
}
// A function or a type of numpy's.
bool is_of_numpy(PyObject* f) {
  if (PyFunction_Check(f)) return starts_with_numpy(reinterpret_cast<PyFunctionObject*>(f)->func_module);
  if (PyCFunction_Check(f)) return starts_with_numpy(reinterpret_cast<PyCFunctionObject*>(f)->m_module);
  const char* name = PyType_Check(f) ? reinterpret_cast<PyTypeObject*>(f)->tp_name : Py_TYPE(f)->tp_name;
  return std::strncmp(name, "numpy.", 6) == 0 && (PyType_Check(f) || std::strcmp(name, "numpy.ufunc") == 0 ||
                                                  std::strcmp(name, "numpy._ArrayFunctionDispatcher") == 0);
}

// torch.from_numpy and the like, Tensor.numpy(): its name.
const char* conversion(PyObject* f, PyObject* const* args, size_t nargs, bool* of_tensor) {
  const char* name = name_of_c(f);
  PyObject* self = PyCFunction_Check(f) ? PyCFunction_GET_SELF(f) : nargs > 0 ? args[0] : nullptr;
  static PyObject* const torch = PyUnicode_InternFromString("torch");
  *of_tensor = self != nullptr && is_tensor(self);
  if (*of_tensor) return std::strcmp(name, "numpy") == 0 ? name : nullptr;
  if (!PyCFunction_Check(f) || self == nullptr || !PyType_Check(self) ||
      std::strcmp(reinterpret_cast<PyTypeObject*>(self)->tp_name, "torch._C._VariableFunctionsClass") != 0) {
    PyObject* module = PyCFunction_Check(f) ? reinterpret_cast<PyCFunctionObject*>(f)->m_module : nullptr;
    if (module == nullptr || !PyUnicode_Check(module) || !PyUnicode_Contains(module, torch)) return nullptr;
  }
  for (const char* known : {"from_numpy", "as_tensor", "asarray", "tensor"})
    if (std::strcmp(name, known) == 0) return name;
  return nullptr;
}

// Do errors of numpy's arithmetic (a division by zero) do more than warn? Called by guards.
PyObject* errors_matter(PyObject*, PyObject*) {
  PyObject* ask = of_module("numpy._core._multiarray_umath", "_get_extobj_dict");
  Ref state = Ref::steal(ask != nullptr ? PyObject_CallNoArgs(ask) : nullptr);
  if (!state || !PyDict_Check(state.get())) {
    PyErr_Clear();
    Py_RETURN_TRUE;
  }
  for (const char* kind : {"divide", "over", "under", "invalid"}) {
    PyObject* how = PyDict_GetItemString(state.get(), kind);
    if (how == nullptr || !PyUnicode_Check(how)) Py_RETURN_TRUE;
    if (PyUnicode_CompareWithASCIIString(how, "warn") != 0 && PyUnicode_CompareWithASCIIString(how, "ignore") != 0)
      Py_RETURN_TRUE;
  }
  Py_RETURN_FALSE;
}

void check_errors(SourceTracker& recorder) {
  static PyMethodDef def = {"errors_of_numpy_matter", at_boundary<errors_matter>, METH_NOARGS, nullptr};
  static PyObject* const function = PyCFunction_New(&def, nullptr);
  if (recorder.knows_call(function, nullptr, 0)) return;
  Ref now = Ref::steal(errors_matter(nullptr, nullptr));
  if (now.get() != Py_False) throw Declined("numpy is told to do more than warn of errors in arithmetic");
  recorder.call_gives(function, nullptr, 0, nullptr, now.get());
}

}  // namespace

bool is_made_array(PyObject* o) { return array_type != nullptr && Py_TYPE(o) == array_type; }

bool names_made_array(const char* words) {
  return array_type != nullptr && std::string_view(words).find("Array") != std::string_view::npos;
}

bool is_code_of_arrays(PyCodeObject* code) {
  if (!file_of(code).ends_with("/flashover/_arrays.py")) return false;
  if (array_type == nullptr) arrays_attribute("Array");
  return true;
}

// Of the array that an Array stands for; null: it was made by the trace.
PyObject* origin_of_array(PyObject* array) {
  Ref origin = Ref::steal(PyObject_GetAttrString(array, "_flashover_origin"));
  PyErr_Clear();
  return origin && origin.get() != Py_None ? origin.get() : nullptr;  // the Array holds it
}

Ref type_of_array(PyObject* array) { return Ref::steal(PyObject_CallOneArg(arrays_attribute("type_of"), array)); }

// (what makes it, then what that is given)
Ref hand_out_array(PyObject* array) { return Ref::steal(PyObject_CallOneArg(arrays_attribute("hand_out"), array)); }

bool Interpreter::is_traced_array(PyObject* o) const {
  if (!is_array(o) || session == nullptr || !recorder.is_old(o)) return false;
  return arrays_.count(o) != 0 || (recorder.is_opaque(o) && !recorder.is_guarded_by_content(o));
}

PyObject* Interpreter::array_of(PyObject* o) {
  if (!is_traced_array(o)) return o;
  return lift_array(o);
}

PyObject* Interpreter::lift_array(PyObject* o) {
  auto it = arrays_.find(o);
  if (it != arrays_.end()) return it->second.get();
  ++uninterpreted;
  Ref tensor = Ref::steal(PyObject_CallOneArg(arrays_attribute("real_tensor"), o));
  --uninterpreted;
  PyErr_Clear();
  if (!tensor) throw Declined("an array of numpy that can be no tensor");
  check_errors(recorder);
  static PyObject* const name = PyUnicode_InternFromString("memory");
  recorder.reach(SourceKind::kTensorAttr, recorder.source_of(o), -1, name, tensor.get());
  ++uninterpreted;
  PyObject* args[2] = {o, tensor.get()};
  Ref made = Ref::steal(PyObject_Vectorcall(arrays_attribute("lifted"), args, 2, nullptr));
  --uninterpreted;
  stop_if_declined();
  if (!made) throw Declined("an array of numpy that can be no tensor");
  return (arrays_[o] = std::move(made)).get();
}

bool Interpreter::holds_array(PyObject* o, int depth) const {
  if (is_made_array(o) || is_traced_array(o)) return true;
  if (depth >= kMaxArrayDepth) return false;
  if (PyTuple_CheckExact(o) || PyList_CheckExact(o)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(o, i);
      // Of an old list nothing need be known yet.
      if (is_array(item) || holds_array(item, depth + 1)) return true;
    }
  } else if (PyDict_CheckExact(o)) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(o, &at, &key, &value))
      if (holds_array(value, depth + 1)) return true;
  }
  return false;
}

// Everything but arrays in `o` is about to be read.
void Interpreter::look_around_arrays(PyObject* o) {
  if (is_made_array(o) || is_tensor(o)) return;
  if (recorder.numbers.any()) recorder.numbers.read_deep(o);
  const bool outer = std::exchange(recorder.leaves_arrays, true);
  try {
    recorder.contents_deep(o);
  } catch (...) {
    recorder.leaves_arrays = outer;
    throw;
  }
  recorder.leaves_arrays = outer;
}

PyObject* Interpreter::array_operation(const std::function<PyObject*()>& run,
                                       std::initializer_list<PyObject*> operands) {
  for (PyObject* o : operands) {
    if (is_tensor(o)) throw Declined("a tensor meets an array of numpy");
    look_around_arrays(o);
  }
  ++uninterpreted;
  Ref result = Ref::steal(run());
  --uninterpreted;
  stop_if_declined();
  if (result && is_made_array(result.get()))
    if (PyObject* origin = origin_of_array(result.get())) return Py_NewRef(origin);
  return result.release();
}

int Interpreter::array_attribute(PyObject* o, PyObject* name, PyObject** out) {
  ++uninterpreted;
  if (is_made_array(o)) {  // what stands for the array has attributes of its own (__torch_function__)
    const Ref type = type_of_array(o);
    const bool known = !type || _PyType_Lookup(reinterpret_cast<PyTypeObject*>(type.get()), name) != nullptr;
    PyErr_Clear();
    if (!known) {
      --uninterpreted;
      return 0;
    }
  }
  const int found = compat::lookup_attribute(o, name, out);
  --uninterpreted;
  stop_if_declined();
  if (found == 1 && std::strncmp(Py_TYPE(*out)->tp_name, "numpy.dtype", 11) == 0 && !recorder.is_old(*out))
    recorder.constant(*out);
  return found;
}

bool Interpreter::call_with_arrays(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames,
                                   PyObject** result) {
  if (session == nullptr) return false;
  const size_t count = nargs + keyword_count(kwnames);
  const bool numpy = is_of_numpy(f);
  if (numpy && recorder.is_old(f)) recorder.fact(FactKind::kIdentity, recorder.source_of(f), f);
  bool of_tensor = false;
  const char* converts = conversion(f, args, nargs, &of_tensor);
  bool any = false, raw = false;
  for (size_t i = 0; i < count; ++i) {
    raw = raw || is_traced_array(args[i]);
    any = any || raw || ((numpy || array_type != nullptr) && holds_array(args[i]));
  }
  if (!any && !numpy && converts == nullptr) return false;
  const auto packed = [&](size_t from) {
    Ref all = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(nargs - from)));
    for (size_t i = from; all && i < nargs; ++i)
      PyTuple_SET_ITEM(all.get(), static_cast<Py_ssize_t>(i - from), Py_NewRef(args[i]));
    return all;
  };
  Ref named = Ref::steal(PyDict_New());
  for (size_t i = nargs; i < count; ++i)
    PyDict_SetItem(named.get(), PyTuple_GET_ITEM(kwnames, static_cast<Py_ssize_t>(i - nargs)), args[i]);
  const auto ask = [&](const char* part, PyObject* what, const Ref& all) {
    check_errors(recorder);
    for (size_t i = 0; i < count; ++i) look_around_arrays(args[i]);
    PyObject* call[3] = {what, all.get(), named.get()};
    *result = array_operation([&] { return PyObject_Vectorcall(arrays_attribute(part), call, 3, nullptr); }, {});
    return true;
  };
  if (converts != nullptr && of_tensor) {
    PyObject* self = PyCFunction_Check(f) ? PyCFunction_GET_SELF(f) : args[0];
    if (!session->is_trace_tensor(self)) return false;
    return ask("from_tensor", self, packed(PyCFunction_Check(f) ? 0 : 1));
  }
  if (converts != nullptr && nargs > 0 && (is_made_array(args[0]) || is_traced_array(args[0])))
    return ask("to_tensor", Ref::steal(PyUnicode_FromString(converts)).get(), packed(0));
  if (numpy && !any && !PyType_Check(f)) {
    ++uninterpreted;
    Ref creates = Ref::steal(PyObject_CallOneArg(arrays_attribute("creates"), f));
    --uninterpreted;
    PyErr_Clear();
    if (creates.get() != Py_True) return false;
    for (size_t i = 0; i < count; ++i)
      if (is_tensor(args[i])) return false;
    return ask("call", f, packed(0));
  }
  if (!any) return false;
  if (numpy) return ask("call", f, packed(0));
  if (PyMethod_Check(f) || PyFunction_Check(f)) return false;  // its code is looked at
  if (PyCFunction_Check(f) && native_function(f) == nullptr) return false;
  const Native* n = PyCFunction_Check(f) ? native_function(f) : nullptr;
  if ((n != nullptr && (n->flags & Native::kTensors)) ||
      (Py_TYPE(f) == &PyMethodDescr_Type && nargs > 0 && is_tensor(args[0])) ||
      (PyCFunction_Check(f) && PyCFunction_GET_SELF(f) != nullptr && is_tensor(PyCFunction_GET_SELF(f))))
    throw Declined("an array of numpy is given to " + callable_name(f));
  // What C code does to an array that it is given, it does to an Array.
  const bool type = PyType_Check(f) && !(reinterpret_cast<PyTypeObject*>(f)->tp_flags & Py_TPFLAGS_HEAPTYPE) &&
                    f != reinterpret_cast<PyObject*>(&PyType_Type);
  const bool module_function =
      n != nullptr && (PyCFunction_GET_SELF(f) == nullptr || PyModule_Check(PyCFunction_GET_SELF(f)));
  if (!raw || !(type || module_function)) return false;
  const char* name = PyCFunction_Check(f) ? reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name : "";
  for (const char* only_moves : {"isinstance", "id", "callable", "is_", "is_not", "setattr", "setitem"})
    if (std::strcmp(name, only_moves) == 0) return false;
  std::vector<PyObject*> given(count + 1);
  for (size_t i = 0; i < count; ++i) given[i + 1] = array_of(args[i]);
  *result = call(f, given.data() + 1, nargs, kwnames);
  return true;
}

// For _arrays.py: the Array of an array from before the trace, None for one that is not.
PyObject* lift_array(PyObject* o) {
  Interpreter* in = Interpreter::current();
  if (in == nullptr || in->session == nullptr || !is_array(o) || !in->recorder.is_old(o)) return Py_NewRef(Py_None);
  try {
    return Py_NewRef(in->lift_array(o));
  } catch (const Declined& d) {
    in->session->decline(d.reason);
    return nullptr;
  }
}

void decline_capture(const std::string& reason) {
  if (trace::Session* session = trace::current()) session->decline(reason);
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, reason.c_str());
}

bool may_write_array(PyObject* o) {
  Interpreter* in = Interpreter::current();
  return in != nullptr && in->recorder.is_opaque(o);
}

}  // namespace flashover::frame
