// Tensors made of Python values.
#include "frame/interpret/made_tensor.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "frame/interpret/instructions.h"
#include "frame/interpret/native.h"

namespace flashover::frame {
namespace {

bool is_list(PyObject* data) {
  return PyList_CheckExact(data) || PyTuple_CheckExact(data) || Py_TYPE(data) == known_types().size;
}

// Torch takes a tensor for a number where it has no dimensions.
bool stands_for_a_number(const Interpreter& in, PyObject* o) {
  if (!is_tensor(o) || std::strcmp(Py_TYPE(o)->tp_name, "Tensor") != 0 || !in.session->is_trace_tensor(o)) return false;
  Ref dims = Ref::steal(PyObject_CallMethod(o, "dim", nullptr));
  return dims && PyLong_AsLong(dims.get()) == 0;
}

// What a new tensor is made of.
struct Elements {
  bool floats = false, ints = false;
  std::vector<PyObject*> tensors;
};

// A number, or lists of numbers and of tensors that stand for one.
bool is_of_numbers(const Interpreter& in, PyObject* data, Elements& elements, int depth = 0) {
  constexpr Py_ssize_t kMost = 32;
  elements.floats |= PyFloat_CheckExact(data);
  elements.ints |= PyLong_CheckExact(data);
  if (PyFloat_CheckExact(data) || PyLong_CheckExact(data)) return true;
  if (depth > 0 && in.session != nullptr && stands_for_a_number(in, data)) {
    elements.tensors.push_back(data);
    return true;
  }
  if (!is_list(data) || depth > 2 || in.recorder.is_old(data)) return false;
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(data);
  if (n == 0 || n > kMost) return false;
  for (Py_ssize_t i = 0; i < n; ++i)
    if (!is_of_numbers(in, PySequence_Fast_GET_ITEM(data, i), elements, depth + 1)) return false;
  return true;
}

// The type that all of them are promoted to.
Ref common_dtype(const Elements& elements) {
  PyObject* torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  Ref dtype;
  const auto promote = [&](Ref other) {
    dtype = dtype && other ? Ref::steal(PyObject_CallMethod(torch, "promote_types", "OO", dtype.get(), other.get()))
                           : std::move(other);
  };
  if (elements.floats) promote(Ref::steal(PyObject_CallMethod(torch, "get_default_dtype", nullptr)));
  if (elements.ints) promote(Ref::steal(PyObject_GetAttrString(torch, "int64")));
  for (PyObject* t : elements.tensors) promote(Ref::steal(PyObject_GetAttrString(t, "dtype")));
  return dtype;
}

// Python's int or float on the way refuses what overflows, or cuts it off: a cast does not.
bool hold_as_they_are(const std::vector<PyObject*>& tensors, PyObject* dtype) {
  const Ref wide = Ref::steal(PyObject_GetAttrString(dtype, "is_floating_point"));
  if (!wide) return false;
  PyObject *torch_int64 = of_module("torch", "int64"), *torch_bool = of_module("torch", "bool");
  return std::all_of(tensors.begin(), tensors.end(), [&](PyObject* t) {
    const Ref own = Ref::steal(PyObject_GetAttrString(t, "dtype"));
    const Ref own_wide = Ref::steal(own ? PyObject_GetAttrString(own.get(), "is_floating_point") : nullptr);
    const Ref own_complex = Ref::steal(own ? PyObject_GetAttrString(own.get(), "is_complex") : nullptr);
    if (!own_wide || own_complex.get() != Py_False) return false;
    if (own.get() == dtype || wide.get() == Py_True || own.get() == torch_bool) return true;
    return own_wide.get() == Py_False && dtype == torch_int64;
  });
}

// torch.full((), number), stacked as the lists are.
PyObject* tensor_of(Interpreter& in, PyObject* data, PyObject* dtype, PyObject* device) {
  if (is_list(data)) {
    Ref parts = Ref::steal(PyList_New(0)), stack = Ref::borrow(of_module("torch", "stack"));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(data); ++i) {
      Ref part = Ref::steal(tensor_of(in, PySequence_Fast_GET_ITEM(data, i), dtype, device));
      if (!part || PyList_Append(parts.get(), part.get()) < 0) return nullptr;
    }
    PyObject* all[2] = {nullptr, parts.get()};
    return stack ? in.call(stack.get(), all + 1, 1, nullptr) : nullptr;
  }
  if (is_tensor(data)) {
    Ref alone = Ref::steal(PyObject_CallMethod(data, "detach", nullptr));  // a number has no gradient
    return alone ? PyObject_CallMethod(alone.get(), "to", "OO", device, dtype) : nullptr;
  }
  static PyObject *const dtype_name = PyUnicode_InternFromString("dtype"), *const device_name =
                                                                               PyUnicode_InternFromString("device");
  Ref full = Ref::borrow(of_module("torch", "full"));
  Ref symbol = Ref::steal(in.recorder.numbers.symbols(data)), sizes = Ref::steal(PyTuple_New(0));
  Ref names = Ref::steal(PyTuple_Pack(2, dtype_name, device_name));
  if (!full || !names) return nullptr;
  PyObject* all[5] = {nullptr, sizes.get(), symbol.get(), dtype, device};
  return in.call(full.get(), all + 1, 2, names.get());
}

// What a number fits in as it is, so that filling with the tensor and with its number are the same.
bool holds_number_of(PyObject* made, PyObject* number) {
  Ref wide = Ref::steal(PyObject_CallMethod(made, "is_floating_point", nullptr));
  if (!wide || wide.get() == Py_True) return static_cast<bool>(wide);
  if (PyFloat_Check(number)) return false;
  Ref dtype = Ref::steal(PyObject_GetAttrString(made, "dtype"));
  return dtype && dtype.get() == of_module("torch", PyBool_Check(number) ? "bool" : "int64");
}

// A number of the kind that the tensor's would be; null for a complex one.
Ref zero_like(PyObject* tensor) {
  Ref wide = Ref::steal(PyObject_CallMethod(tensor, "is_floating_point", nullptr)),
      complex = Ref::steal(PyObject_CallMethod(tensor, "is_complex", nullptr)),
      dtype = Ref::steal(PyObject_GetAttrString(tensor, "dtype"));
  if (!wide || !complex || !dtype || complex.get() == Py_True) return {};
  if (wide.get() == Py_True) return Ref::steal(PyFloat_FromDouble(0));
  return dtype.get() == of_module("torch", "bool") ? Ref::borrow(Py_False) : Ref::steal(PyLong_FromLong(0));
}

}  // namespace

PyObject* call_full_of_tensor(Interpreter& in, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  const bool unbound = Py_TYPE(f) == &PyMethodDescr_Type;
  if (in.session == nullptr || (!unbound && !PyCFunction_Check(f))) return nullptr;
  const std::string_view name = unbound ? reinterpret_cast<PyMethodDescrObject*>(f)->d_method->ml_name
                                        : reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name;
  if (name != "full" && name != "full_like" && name != "new_full") return nullptr;
  size_t at = unbound ? 2 : 1;
  std::vector<PyObject*> given{nullptr};
  given.insert(given.end(), args, args + nargs);
  for (Py_ssize_t i = 0; kwnames != nullptr && i < PyTuple_GET_SIZE(kwnames); ++i) {
    PyObject* key = PyTuple_GET_ITEM(kwnames, i);
    given.push_back(args[nargs + static_cast<size_t>(i)]);
    if (PyUnicode_CompareWithASCIIString(key, "fill_value") == 0) at = given.size() - 2;
    if (PyUnicode_CompareWithASCIIString(key, "out") == 0) return nullptr;
    if (PyUnicode_CompareWithASCIIString(key, "requires_grad") == 0 && given.back() != Py_False) return nullptr;
  }
  if (at + 1 >= given.size() || !stands_for_a_number(in, given[at + 1])) return nullptr;
  Ref tensor = Ref::borrow(given[at + 1]), number = zero_like(tensor.get());
  if (!number) return nullptr;
  given[at + 1] = number.get();
  Ref made = Ref::steal(in.call(f, given.data() + 1, nargs, kwnames));
  if (!made) return nullptr;
  Ref here = Ref::steal(PyObject_GetAttrString(made.get(), "device")),
      there = Ref::steal(PyObject_GetAttrString(tensor.get(), "device"));
  if (!here || !there || PyObject_RichCompareBool(here.get(), there.get(), Py_EQ) != 1 ||
      !holds_number_of(made.get(), number.get()))
    return nullptr;
  Ref alone = Ref::steal(PyObject_CallMethod(tensor.get(), "detach", nullptr));  // a number has no gradient
  return alone ? PyObject_CallMethod(made.get(), "fill_", "O", alone.get()) : nullptr;
}

namespace {

// torch.tensor(data), torch.as_tensor(data). only_of_tensors: what is of numbers alone is somebody else's.
PyObject* make_of_elements(Interpreter& in, PyObject* f, PyObject* const* args, PyObject* kwnames,
                           bool only_of_tensors) {
  if (!PyCFunction_Check(f)) return nullptr;
  const char* name = reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name;
  const Native* n = native_function(f);
  if ((std::strcmp(name, "tensor") != 0 && std::strcmp(name, "as_tensor") != 0) || n == nullptr ||
      !(n->flags & Native::kTensors))
    return nullptr;
  static PyObject *const dtype_name = PyUnicode_InternFromString("dtype"), *const device_name =
                                                                               PyUnicode_InternFromString("device");
  Elements elements;
  if (!is_of_numbers(in, args[0], elements) || (only_of_tensors && elements.tensors.empty())) return nullptr;
  PyObject* torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  Ref dtype = common_dtype(elements);
  Ref device;
  for (Py_ssize_t i = 0; kwnames != nullptr && i < PyTuple_GET_SIZE(kwnames); ++i) {
    PyObject *key = PyTuple_GET_ITEM(kwnames, i), *value = args[1 + i];
    if (PyUnicode_Compare(key, dtype_name) == 0) {
      if (value != Py_None) dtype = Ref::borrow(value);
    } else if (PyUnicode_Compare(key, device_name) == 0) {
      if (value != Py_None) device = Ref::borrow(value);
    } else {
      return nullptr;
    }
  }
  if (!dtype || !hold_as_they_are(elements.tensors, dtype.get())) return nullptr;
  if (!device) {  // (the global state, which is guarded, says it)
    ++in.uninterpreted;
    device = Ref::steal(PyObject_CallMethod(torch, "get_default_device", nullptr));
    --in.uninterpreted;
  }
  return dtype && device ? tensor_of(in, args[0], dtype.get(), device.get()) : nullptr;
}

}  // namespace

PyObject* tensor_of_number(Interpreter& in, PyObject* f, PyObject* const* args, PyObject* kwnames) {
  return make_of_elements(in, f, args, kwnames, false);
}

PyObject* call_tensor_of_tensors(Interpreter& in, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  return nargs == 1 && is_list(args[0]) ? make_of_elements(in, f, args, kwnames, true) : nullptr;
}

namespace {

bool is_array_with_dims(Interpreter& in, PyObject* o) {
  if (!is_made_array(o) && !in.is_traced_array(o)) return false;
  static PyObject* const name = PyUnicode_InternFromString("ndim");
  Ref dims = Ref::steal(in.get_attr(o, name));
  return dims && PyLong_AsLong(dims.get()) > 0;
}

// torch.Tensor(array) of the default dtype: a view where the array has it.
PyObject* tensor_of_array(Interpreter& in, PyObject* array, PyObject* dtype, PyObject* device) {
  Ref make = Ref::borrow(of_module("torch", "as_tensor")), names = Ref::steal(Py_BuildValue("(ss)", "dtype", "device"));
  PyObject* given[] = {nullptr, array, dtype, device};
  return make && names ? in.call(make.get(), given + 1, 1, names.get()) : nullptr;
}

}  // namespace

PyObject* call_tensor_type(Interpreter& in, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  const bool of_one_dtype = std::strcmp(Py_TYPE(f)->tp_name, "torch.tensortype") == 0;
  if ((!of_one_dtype && f != of_module("torch", "Tensor")) || kwnames != nullptr || nargs != 1) return nullptr;
  const bool array = is_array_with_dims(in, args[0]);
  if (!array && in.holds_array(args[0])) throw Declined("an array of numpy is given to a type of tensors");
  if (!of_one_dtype) {
    if (!array) return nullptr;
    static PyObject* const cpu = PyUnicode_InternFromString("cpu");
    PyObject* torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
    Ref dtype = Ref::steal(PyObject_CallMethod(torch, "get_default_dtype", nullptr));
    return dtype ? tensor_of_array(in, args[0], dtype.get(), cpu) : nullptr;
  }
  if (!array && !PyList_CheckExact(args[0]) && !PyTuple_CheckExact(args[0])) return nullptr;
  Ref make = Ref::borrow(of_module("torch", "tensor"));
  Ref dtype = Ref::steal(PyObject_GetAttrString(f, "dtype")), cuda = Ref::steal(PyObject_GetAttrString(f, "is_cuda"));
  Ref device = Ref::steal(PyUnicode_FromString(cuda.get() == Py_True ? "cuda" : "cpu"));
  Ref names = Ref::steal(Py_BuildValue("(ss)", "dtype", "device"));
  if (!make || !dtype || !cuda || !device || !names) return nullptr;
  if (array) return tensor_of_array(in, args[0], dtype.get(), device.get());
  PyObject* given[] = {nullptr, args[0], dtype.get(), device.get()};
  return in.call(make.get(), given + 1, 1, names.get());
}

namespace {

// Of a call tensor.name(...), bound or not: the tensor, and which argument is the first of its own. Null: another call.
PyObject* tensor_of_method(PyObject* f, const char* name, PyObject* const* args, size_t nargs, size_t* first) {
  const bool unbound = Py_TYPE(f) == &PyMethodDescr_Type;
  if (!unbound && !PyCFunction_Check(f)) return nullptr;
  const char* its = unbound ? reinterpret_cast<PyMethodDescrObject*>(f)->d_method->ml_name
                            : reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name;
  if (std::strcmp(its, name) != 0) return nullptr;
  PyObject* self = unbound ? (nargs > 0 ? args[0] : nullptr) : PyCFunction_GET_SELF(f);
  *first = unbound ? 1 : 0;
  return self != nullptr && is_tensor(self) ? self : nullptr;
}

}  // namespace

PyObject* call_new_tensor(Interpreter& in, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  size_t first = 0;
  PyObject* self = tensor_of_method(f, "new_tensor", args, nargs, &first);
  if (self == nullptr || nargs != first + 1) return nullptr;
  static PyObject *const dtype = PyUnicode_InternFromString("dtype"), *const device =
                                                                          PyUnicode_InternFromString("device");
  Ref own_dtype = Ref::steal(in.get_attr(self, dtype)), own_device = Ref::steal(in.get_attr(self, device));
  Ref make = Ref::borrow(of_module("torch", "tensor"));
  Ref names = Ref::steal(PyList_New(0));
  if (!own_dtype || !own_device || !make || !names) return nullptr;
  std::vector<PyObject*> given{nullptr, args[first]};
  bool has_dtype = false, has_device = false;
  for (Py_ssize_t i = 0; kwnames != nullptr && i < PyTuple_GET_SIZE(kwnames); ++i) {
    PyObject *key = PyTuple_GET_ITEM(kwnames, i), *value = args[nargs + static_cast<size_t>(i)];
    const bool is_dtype = PyUnicode_Compare(key, dtype) == 0, is_device = PyUnicode_Compare(key, device) == 0;
    if ((is_dtype || is_device) && value == Py_None) continue;
    has_dtype |= is_dtype;
    has_device |= is_device;
    PyList_Append(names.get(), key);
    given.push_back(value);
  }
  if (!has_dtype) PyList_Append(names.get(), dtype), given.push_back(own_dtype.get());
  if (!has_device) PyList_Append(names.get(), device), given.push_back(own_device.get());
  Ref keywords = Ref::steal(PyList_AsTuple(names.get()));
  return keywords ? in.call(make.get(), given.data() + 1, 1, keywords.get()) : nullptr;
}

PyObject* call_new_of_sizes(Interpreter& in, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  size_t first = 0;
  PyObject* self = tensor_of_method(f, "new", args, nargs, &first);
  if (self == nullptr || kwnames != nullptr) return nullptr;
  const bool one_size = nargs == first + 1 && Py_TYPE(args[first]) == known_types().size;
  for (size_t i = first; i < nargs && !one_size; ++i)
    if (!PyLong_CheckExact(args[i])) return nullptr;
  static PyObject *const dtype = PyUnicode_InternFromString("dtype"), *const device =
                                                                          PyUnicode_InternFromString("device");
  Ref own_dtype = Ref::steal(in.get_attr(self, dtype)), own_device = Ref::steal(in.get_attr(self, device));
  Ref make = Ref::borrow(of_module("torch", "empty"));
  Ref names = Ref::steal(PyTuple_Pack(2, dtype, device)), none = Ref::steal(PyLong_FromLong(0));
  if (!own_dtype || !own_device || !make || !names || !none) return nullptr;
  std::vector<PyObject*> given{nullptr};
  given.insert(given.end(), args + first, args + nargs);
  if (nargs == first) given.push_back(none.get());
  const size_t count = given.size() - 1;
  given.push_back(own_dtype.get());
  given.push_back(own_device.get());
  return in.call(make.get(), given.data() + 1, count, names.get());
}

}  // namespace flashover::frame
