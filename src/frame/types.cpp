// What kinds of objects there are: those that carry no identity, those known by address, those of torch and numpy.
#include <cstring>

#include "frame/observe.h"
#include "guards/objects.h"

namespace flashover::frame {
namespace {

PyObject* loaded(const char* module, const char* name) {  // borrowed from its module; null if not imported
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* m = PyDict_GetItemString(modules, module);
  if (m == nullptr) return nullptr;
  PyObject* dict = PyModule_Check(m) ? PyModule_GetDict(m) : nullptr;
  return dict == nullptr ? nullptr : PyDict_GetItemString(dict, name);
}

PyTypeObject* loaded_type(const char* module, const char* name) {
  PyObject* t = loaded(module, name);
  return t != nullptr && PyType_Check(t) ? reinterpret_cast<PyTypeObject*>(t) : nullptr;
}

bool has_base(PyObject* o, const char* name) {
  for (PyTypeObject* t = Py_TYPE(o); t != nullptr; t = t->tp_base)
    if (std::strcmp(t->tp_name, name) == 0) return true;
  return false;
}

}  // namespace

bool is_dict_view(PyObject* o) { return guards::is_dict_view(o); }

bool is_numpy_scalar(PyObject* o) { return has_base(o, "numpy.generic"); }

const KnownTypes& known_types() {
  static KnownTypes types;
  if (types.module == nullptr || types.tensor == nullptr) {
    types.tensor = loaded_type("torch._C", "TensorBase");
    if (types.tensor == nullptr) types.tensor = loaded_type("torch._C", "_TensorBase");
    types.parameter = loaded_type("torch.nn.parameter", "Parameter");
    types.module = loaded_type("torch.nn.modules.module", "Module");
    types.size = loaded_type("torch", "Size");
    types.dtype = loaded_type("torch", "dtype");
    types.device = loaded_type("torch", "device");
    types.layout = loaded_type("torch", "layout");
    types.memory_format = loaded_type("torch", "memory_format");
    types.qscheme = loaded_type("torch", "qscheme");
    types.script_function = loaded_type("torch._C", "ScriptFunction");
    types.enum_type = loaded_type("enum", "Enum");
    types.lru_cache = loaded_type("_functools", "_lru_cache_wrapper");
    if (types.lru_cache == nullptr) {
      Py_XDECREF(PyImport_ImportModule("functools"));
      PyErr_Clear();
      types.lru_cache = loaded_type("functools", "_lru_cache_wrapper");
    }
    types.partial = loaded_type("functools", "partial");
    types.deque = loaded_type("collections", "deque");
    types.defaultdict = loaded_type("collections", "defaultdict");
    types.context_var = loaded_type("_contextvars", "ContextVar");
    if (types.module != nullptr) types.module_getattr = PyDict_GetItemString(type_dict(types.module), "__getattr__");
  }
  return types;
}

bool is_tensor(PyObject* o) {
  PyTypeObject* tensor = known_types().tensor;
  return tensor != nullptr && PyObject_TypeCheck(o, tensor);
}

// Tensors that are spread over processes have a dispatcher of their own, in C++, that keeps what it decided.
static bool is_distributed(PyTypeObject* t) {
  static PyObject* const name = PyUnicode_InternFromString("__module__");
  PyObject* module = _PyType_Lookup(t, name);
  const char* text = module != nullptr && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : nullptr;
  return text != nullptr && std::string_view(text).starts_with("torch.distributed.");
}

// Its class takes operators from the dispatcher.
static bool takes_dispatch(PyTypeObject* t) {
  static PyObject* const dispatch = PyUnicode_InternFromString("__torch_dispatch__");
  PyObject* tensor = of_module("torch", "Tensor");
  PyObject* plain = tensor != nullptr && PyType_Check(tensor)
                        ? _PyType_Lookup(reinterpret_cast<PyTypeObject*>(tensor), dispatch)
                        : nullptr;
  return _PyType_Lookup(t, dispatch) != plain;
}

bool is_nested_tensor(PyTypeObject* t) {
  return reinterpret_cast<PyObject*>(t) == of_module("torch.nested._internal.nested_tensor", "NestedTensor");
}

// It tells what it is made of.
bool is_wrapper_type(PyTypeObject* t) {
  static PyObject* const flatten = PyUnicode_InternFromString("__tensor_flatten__");
  static PyObject* const unflatten = PyUnicode_InternFromString("__tensor_unflatten__");
  return takes_dispatch(t) && _PyType_Lookup(t, flatten) != nullptr && _PyType_Lookup(t, unflatten) != nullptr &&
         !is_distributed(t);
}

bool is_class_over_memory(PyTypeObject* t) {
  PyTypeObject* tensor = known_types().tensor;
  return tensor != nullptr && PyType_IsSubtype(t, tensor) && !takes_dispatch(t);
}

static Ref value_of(PyObject* tensor, const char* name) {
  Ref value = Ref::steal(PyObject_GetAttrString(tensor, name));
  if (value && PyCFunction_Check(value.get())) value = Ref::steal(PyObject_CallNoArgs(value.get()));
  PyErr_Clear();
  return value;
}

Ref tensor_attribute(PyObject* tensor, const char* name) {
  if (Py_TYPE(tensor) == known_types().parameter || std::strcmp(Py_TYPE(tensor)->tp_name, "Tensor") == 0)
    return value_of(tensor, name);
  PyObject* make = of_module("torch._C", "DisableTorchFunctionSubclass");
  Ref off = Ref::steal(make != nullptr ? PyObject_CallNoArgs(make) : nullptr);
  Ref entered = Ref::steal(off ? PyObject_CallMethod(off.get(), "__enter__", nullptr) : nullptr);
  Ref value = entered ? value_of(tensor, name) : Ref();
  Ref left =
      Ref::steal(entered ? PyObject_CallMethod(off.get(), "__exit__", "OOO", Py_None, Py_None, Py_None) : nullptr);
  PyErr_Clear();
  return value;
}

bool is_atom(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  if (o == Py_None || t == &PyLong_Type || t == &PyUnicode_Type || t == &PyBool_Type || t == &PyFloat_Type) return true;
  if (t == &PyBytes_Type || t == &PyComplex_Type || o == Py_Ellipsis || o == Py_NotImplemented) return true;
  const KnownTypes& k = known_types();
  return t == k.dtype || t == k.size || t == k.device || t == k.layout || t == k.memory_format || t == k.qscheme;
}

PyObject* of_module(const char* module, const char* name) {
  PyObject* m = PyDict_GetItemString(PyImport_GetModuleDict(), module);
  return m != nullptr && PyModule_Check(m) ? PyDict_GetItemString(PyModule_GetDict(m), name) : nullptr;
}

bool is_deque(PyObject* o) { return known_types().deque != nullptr && PyObject_TypeCheck(o, known_types().deque); }

bool is_python_class(PyTypeObject* t) {
  // All of them are freed by the one function that the type statement puts in.
  static const destructor of_classes = [] {
    Ref made = Ref::steal(PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyType_Type), "s(){}", "C"));
    PyErr_Clear();
    return made ? reinterpret_cast<PyTypeObject*>(made.get())->tp_dealloc : nullptr;
  }();
  // Those made in C from a specification keep a name of their own.
  return (t->tp_flags & Py_TPFLAGS_HEAPTYPE) && t->tp_dealloc == of_classes &&
         reinterpret_cast<PyHeapTypeObject*>(t)->_ht_tpname == nullptr;
}

bool steps_in_c(PyTypeObject* t) {
  if (t->tp_iternext == nullptr) return false;
  static PyObject* const name = PyUnicode_InternFromString("__next__");
  PyObject* method = _PyType_Lookup(t, name);
  return method == nullptr || Py_TYPE(method) == &PyWrapperDescr_Type;
}

Ref ordered_items(PyObject* dict) {
  if (!PyODict_Check(dict)) return Ref::steal(PyDict_Items(dict));
  Ref keys = Ref::steal(guards::ordered_keys(dict));
  Ref items = Ref::steal(PyList_New(0));
  for (Py_ssize_t i = 0; keys && items && i < PyTuple_GET_SIZE(keys.get()); ++i) {
    PyObject* key = PyTuple_GET_ITEM(keys.get(), i);
    PyObject* value = PyDict_GetItemWithError(dict, key);
    Ref pair = Ref::steal(value != nullptr ? PyTuple_Pack(2, key, value) : nullptr);
    if (!pair || PyList_Append(items.get(), pair.get()) < 0) return {};
  }
  return items;
}

bool is_pinned_kind(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  if (PyType_Check(o) || PyFunction_Check(o) || PyModule_Check(o) || PyCFunction_Check(o) || PyCode_Check(o))
    return true;
  const KnownTypes& k = known_types();
  if (k.module != nullptr && PyObject_TypeCheck(o, k.module)) return true;
  if (k.enum_type != nullptr && PyObject_TypeCheck(o, k.enum_type)) return true;
  if (PyMethod_Check(o) || t == k.partial) return false;
  if (t->tp_flags & Py_TPFLAGS_HEAPTYPE) {
    // Instances of Python classes are described by what is read from them; heap types written in C have no such
    // insides.
    return t == k.lru_cache || guards::is_constant_of_c(t) ||
           (!has_instance_dict(t) && t->tp_getset == nullptr && t->tp_basicsize > 0 && t->tp_new != nullptr &&
            t->tp_base == &PyBaseObject_Type && PyDict_GetItemString(type_dict(t), "__slots__") == nullptr &&
            PyDict_GetItemString(type_dict(t), "__module__") == nullptr);
  }
  if (PyList_Check(o) || PyTuple_Check(o) || PyDict_Check(o) || PyAnySet_Check(o) || PyCell_Check(o) || is_tensor(o) ||
      PyExceptionInstance_Check(o) || t == &PyTraceBack_Type || t == &PyFrame_Type || PyGen_Check(o))
    return false;
  if (t == k.deque || t == &PyDictProxy_Type || is_dict_view(o) || t == &PySlice_Type || t == &PyRange_Type)
    return false;
  return true;  // descriptors, generic aliases, locks, generators, builtin singletons: known by address
}

bool is_operator(PyObject* o) {
  const char* type = Py_TYPE(o)->tp_name;
  return std::strcmp(type, "OpOverload") == 0 || std::strcmp(type, "OpOverloadPacket") == 0;
}

bool is_array(PyObject* o) { return std::strcmp(Py_TYPE(o)->tp_name, "numpy.ndarray") == 0; }
bool is_array_of_any_class(PyObject* o) { return has_base(o, "numpy.ndarray"); }

}  // namespace flashover::frame
