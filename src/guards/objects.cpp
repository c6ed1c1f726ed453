// Layouts of CPython's dicts, types and deques, where they differ between 3.11 and 3.12.
#include "guards/objects.h"

#include <structmember.h>

#include <cstring>
#include <string_view>

namespace flashover::guards {

bool is_deque(PyObject* o) { return std::strcmp(Py_TYPE(o)->tp_name, "collections.deque") == 0; }

namespace {
struct MappingProxyLayout {  // unchanged from 3.8 to 3.14; dict views begin in the same way
  PyObject ob_base;
  PyObject* mapping;
};
}  // namespace
bool is_dict_view(PyObject* object) {
  return PyDictKeys_Check(object) || PyDictValues_Check(object) || PyDictItems_Check(object);
}
PyObject** proxied_slot(PyObject* proxy) { return &reinterpret_cast<MappingProxyLayout*>(proxy)->mapping; }

PyObject* deque_item(PyObject* deque, Py_ssize_t index) {
  if (index >= Py_SIZE(deque)) return nullptr;
  PyObject* item = Py_TYPE(deque)->tp_as_sequence->sq_item(deque, index);
  if (!item) PyErr_Clear();
  return item;
}

namespace {

bool named(PyObject* o, const char* name) {
  return !(Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) && std::strcmp(Py_TYPE(o)->tp_name, name) == 0;
}

bool is_torch_singleton(PyObject* o) {
  return named(o, "torch.dtype") || named(o, "torch.layout") || named(o, "torch.memory_format") ||
         named(o, "torch.qscheme");
}

bool is_size(PyObject* o) { return named(o, "torch.Size"); }

// Iterates an OrderedDict by its own linked list: f(key) returns false to stop. Returns false on stop or failure.
template <typename F>
bool each_ordered_key(PyObject* od, F&& f) {
  PyObject* it = PyODict_Type.tp_iter(od);
  if (!it) {
    PyErr_Clear();
    return false;
  }
  bool ok = true;
  while (ok) {
    PyObject* key = PyIter_Next(it);
    if (!key) {
      ok = !PyErr_Occurred();
      PyErr_Clear();
      break;
    }
    ok = f(key);
    Py_DECREF(key);  // the dict holds it
  }
  Py_DECREF(it);
  return ok;
}

// What the C side of an operator, a builtin or a container may ask an object's class for.
const char* const kSpecials[] = {"__abs__",          "__add__",
                                 "__and__",          "__bool__",
                                 "__bytes__",        "__call__",
                                 "__ceil__",         "__complex__",
                                 "__contains__",     "__delattr__",
                                 "__delete__",       "__get__",
                                 "__set__",          "__delitem__",
                                 "__dir__",          "__divmod__",
                                 "__eq__",           "__float__",
                                 "__floor__",        "__floordiv__",
                                 "__format__",       "__fspath__",
                                 "__ge__",           "__getattr__",
                                 "__getattribute__", "__getitem__",
                                 "__getstate__",     "__gt__",
                                 "__hash__",         "__iadd__",
                                 "__iand__",         "__ifloordiv__",
                                 "__ilshift__",      "__imatmul__",
                                 "__imod__",         "__imul__",
                                 "__index__",        "__int__",
                                 "__invert__",       "__ior__",
                                 "__ipow__",         "__irshift__",
                                 "__isub__",         "__iter__",
                                 "__itruediv__",     "__ixor__",
                                 "__le__",           "__len__",
                                 "__length_hint__",  "__lshift__",
                                 "__lt__",           "__matmul__",
                                 "__missing__",      "__mod__",
                                 "__mul__",          "__ne__",
                                 "__neg__",          "__next__",
                                 "__or__",           "__pos__",
                                 "__pow__",          "__radd__",
                                 "__rand__",         "__rdivmod__",
                                 "__reduce__",       "__reduce_ex__",
                                 "__repr__",         "__reversed__",
                                 "__rfloordiv__",    "__rlshift__",
                                 "__rmatmul__",      "__rmod__",
                                 "__rmul__",         "__ror__",
                                 "__round__",        "__rpow__",
                                 "__rrshift__",      "__rshift__",
                                 "__rsub__",         "__rtruediv__",
                                 "__rxor__",         "__setattr__",
                                 "__setitem__",      "__str__",
                                 "__sub__",          "__torch_function__",
                                 "__truediv__",      "__trunc__",
                                 "__xor__",          "keys",
                                 "__copy__",         "__deepcopy__"};
PyObject* special_name(size_t i) {
  static PyObject* const* const names = [] {
    auto** all = new PyObject*[std::size(kSpecials)];  // kept for good
    for (size_t k = 0; k < std::size(kSpecials); k++) all[k] = PyUnicode_InternFromString(kSpecials[k]);
    return all;
  }();
  return names[i];
}

}  // namespace

PyObject* special_methods(PyTypeObject* type) {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(std::size(kSpecials)));
  for (size_t i = 0; tuple && i < std::size(kSpecials); i++) {
    PyObject* found = _PyType_Lookup(type, special_name(i));
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), Py_NewRef(found ? found : Py_None));
  }
  return tuple;
}

bool has_special_methods(PyTypeObject* type, PyObject* methods) {
  for (size_t i = 0; i < std::size(kSpecials); i++) {
    PyObject* found = _PyType_Lookup(type, special_name(i));
    if ((found ? found : Py_None) != PyTuple_GET_ITEM(methods, static_cast<Py_ssize_t>(i))) return false;
  }
  return true;
}

uint32_t armed_type_tag(PyTypeObject* type) {
  if (uint32_t tag = type_tag(type)) return tag;
  static PyObject* name = PyUnicode_InternFromString("__class__");
  _PyType_Lookup(type, name);  // assigns a tag as a side effect
  return type_tag(type);
}

std::ptrdiff_t dict_slot(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) return -3 * static_cast<std::ptrdiff_t>(sizeof(PyObject*));
  return type->tp_dictoffset > 0 ? type->tp_dictoffset : 0;
}

PyObject* instance_dict(PyObject* object) {
  if (PyType_Check(object)) return type_dict(reinterpret_cast<PyTypeObject*>(object));
  PyObject** slot = _PyObject_GetDictPtr(object);
  if (!slot) return nullptr;
  if (!*slot) {
    PyObject* made = PyObject_GenericGetDict(object, nullptr);
    if (!made) {
      PyErr_Clear();
      return nullptr;
    }
    Py_DECREF(made);  // the object holds it
    slot = _PyObject_GetDictPtr(object);
    if (!slot) return nullptr;
  }
  return *slot && PyDict_Check(*slot) ? *slot : nullptr;
}

PyObject** member_slot(PyObject* object, PyObject* name) {
  if (PyFunction_Check(object)) {  // getsets in name, plain fields in fact
    auto* f = reinterpret_cast<PyFunctionObject*>(object);
    if (PyUnicode_CompareWithASCIIString(name, "__code__") == 0) return &f->func_code;
    if (PyUnicode_CompareWithASCIIString(name, "__defaults__") == 0) return &f->func_defaults;
    if (PyUnicode_CompareWithASCIIString(name, "__kwdefaults__") == 0) return &f->func_kwdefaults;
  }
  PyObject* descr = _PyType_Lookup(Py_TYPE(object), name);
  if (!descr || Py_TYPE(descr) != &PyMemberDescr_Type) return nullptr;
  PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(descr)->d_member;
  if (member->type != T_OBJECT && member->type != T_OBJECT_EX) return nullptr;
  return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + member->offset);
}

namespace {
// pybind11's getters are properties, too.
bool is_native_getter(PyObject* descr) {
  if (Py_TYPE(descr) == &PyMemberDescr_Type || Py_TYPE(descr) == &PyGetSetDescr_Type) return true;
  if (Py_TYPE(descr) != &PyProperty_Type) return false;
  static PyObject* const fget = PyUnicode_InternFromString("fget");
  PyObject* getter = PyObject_GetAttr(descr, fget);
  PyErr_Clear();
  const bool native = getter && PyCFunction_Check(getter);
  Py_XDECREF(getter);
  return native;
}
}  // namespace

PyObject* native_attribute(PyObject* object, PyObject* name) {
  PyObject* descr = _PyType_Lookup(Py_TYPE(object), name);
  PyObject* value = nullptr;
  if (descr && is_native_getter(descr))
    value = Py_TYPE(descr)->tp_descr_get(descr, object, reinterpret_cast<PyObject*>(Py_TYPE(object)));
  if (!value) PyErr_Clear();
  return value;
}

PyObject* mro_lookup(PyTypeObject* type, PyObject* name, Py_ssize_t start) {
  if (start <= 0) return _PyType_Lookup(type, name);
  PyObject* mro = type->tp_mro;
  for (Py_ssize_t i = start; mro && i < PyTuple_GET_SIZE(mro); i++) {
    PyObject* base = PyTuple_GET_ITEM(mro, i);
    if (!PyType_Check(base)) continue;
    PyObject* dict = type_dict(reinterpret_cast<PyTypeObject*>(base));
    if (PyObject* found = dict ? dict_get(dict, name) : nullptr) return found;
  }
  return nullptr;
}

namespace {

bool names_a_local(PyObject* qualname) {
  static PyObject* const locals = PyUnicode_InternFromString("<locals>");
  return qualname && PyUnicode_Check(qualname) && PyUnicode_Contains(qualname, locals) == 1;
}

// What an attribute of a class is, where two classes made by the same statement agree: a new reference.
PyObject* look_of_attribute(PyObject* value) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
  const auto parts = [type](std::initializer_list<PyObject*> values) -> PyObject* {
    PyObject* out = PyTuple_New(static_cast<Py_ssize_t>(values.size()) + 1);
    if (!out) return nullptr;
    PyTuple_SET_ITEM(out, 0, Py_NewRef(type));
    Py_ssize_t at = 1;
    for (PyObject* v : values) {
      PyObject* look = v ? look_of_attribute(v) : Py_NewRef(Py_None);
      if (!look) {
        Py_DECREF(out);
        return nullptr;
      }
      PyTuple_SET_ITEM(out, at++, look);
    }
    return out;
  };
  if (PyFunction_Check(value)) return Py_NewRef(PyFunction_GET_CODE(value));
  if (Py_TYPE(value) == &PyStaticMethod_Type || Py_TYPE(value) == &PyClassMethod_Type) {
    static PyObject* const name = PyUnicode_InternFromString("__func__");
    PyObject* inner = PyObject_GetAttr(value, name);
    PyObject* out = inner ? parts({inner}) : nullptr;
    Py_XDECREF(inner);
    return out;
  }
  if (Py_TYPE(value) == &PyProperty_Type) {
    static PyObject* const names[] = {PyUnicode_InternFromString("fget"), PyUnicode_InternFromString("fset"),
                                      PyUnicode_InternFromString("fdel")};
    PyObject *get = PyObject_GetAttr(value, names[0]), *set = PyObject_GetAttr(value, names[1]),
             *del = PyObject_GetAttr(value, names[2]);
    PyObject* out = get && set && del ? parts({get, set, del}) : nullptr;
    Py_XDECREF(get);
    Py_XDECREF(set);
    Py_XDECREF(del);
    return out;
  }
  if (Py_TYPE(value) == &PyMemberDescr_Type) {
    const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(value)->d_member;
    return Py_BuildValue("Onii", type, member->offset, member->type, member->flags);
  }
  if (std::strcmp(Py_TYPE(value)->tp_name, "_collections._tuplegetter") == 0)  // which field it gets
    return PyObject_CallMethod(value, "__reduce__", nullptr);
  if (is_local_class(Py_TYPE(value))) return Py_NewRef(Py_None);
  return Py_NewRef(type);
}

bool same_look(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyCode_Check(a)) return same_code(a, b);
  if (!PyTuple_CheckExact(a)) return same_constant(a, b);
  if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); i++)
    if (!same_look(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
  return true;
}

}  // namespace

bool is_local_class(PyTypeObject* type) {
  if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) return false;
  PyObject* qualname = reinterpret_cast<PyHeapTypeObject*>(type)->ht_qualname;
  if (names_a_local(qualname)) return true;
  static PyObject *const key = PyUnicode_InternFromString("__module__"), *const dot = PyUnicode_InternFromString(".");
  PyObject* name = PyDict_GetItemWithError(type_dict(type), key);
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* at = name && PyUnicode_CheckExact(name) ? dict_get(modules, name) : nullptr;
  PyObject* parts = at ? PyUnicode_Split(qualname, dot, -1) : nullptr;
  for (Py_ssize_t i = 0; at && parts && i < PyList_GET_SIZE(parts); i++) {
    PyObject* dict = PyModule_Check(at) ? PyModule_GetDict(at)
                     : PyType_Check(at) ? type_dict(reinterpret_cast<PyTypeObject*>(at))
                                        : nullptr;
    at = dict ? dict_get(dict, PyList_GET_ITEM(parts, i)) : nullptr;
  }
  Py_XDECREF(parts);
  PyErr_Clear();
  return at != reinterpret_cast<PyObject*>(type);
}
bool is_local_code(PyObject* code) { return names_a_local(reinterpret_cast<PyCodeObject*>(code)->co_qualname); }

bool same_code(PyObject* a, PyObject* b) {
  if (a == b) return true;
  const int equal = PyObject_RichCompareBool(a, b, Py_EQ);  // C code: of constants too
  if (equal < 0) PyErr_Clear();
  return equal == 1 && same_constant(reinterpret_cast<PyCodeObject*>(a)->co_filename,
                                     reinterpret_cast<PyCodeObject*>(b)->co_filename);
}

PyObject* class_look(PyTypeObject* type) {
  PyObject* dict = type_dict(type);
  PyObject* mro = type->tp_mro;
  PyObject* bases = PyTuple_New(PyTuple_GET_SIZE(mro));
  PyObject* keys = bases ? PyTuple_New(PyDict_GET_SIZE(dict)) : nullptr;
  PyObject* values = keys ? PyTuple_New(PyDict_GET_SIZE(dict)) : nullptr;
  bool good = values != nullptr;
  for (Py_ssize_t i = 0; good && i < PyTuple_GET_SIZE(mro); i++) {
    PyObject* base = PyTuple_GET_ITEM(mro, i);
    const bool local = i == 0 || is_local_class(reinterpret_cast<PyTypeObject*>(base));
    PyTuple_SET_ITEM(bases, i, Py_NewRef(local ? Py_None : base));
  }
  PyObject *key, *value;
  for (Py_ssize_t at = 0, i = 0; good && PyDict_Next(dict, &at, &key, &value); i++) {
    PyObject* look = look_of_attribute(value);
    good = look != nullptr;
    PyTuple_SET_ITEM(keys, i, Py_NewRef(key));
    PyTuple_SET_ITEM(values, i, look);
  }
  PyObject* out = nullptr;
  if (good)
    out = Py_BuildValue("OOsknnnnOOO", Py_TYPE(type), reinterpret_cast<PyHeapTypeObject*>(type)->ht_qualname,
                        type->tp_name, type->tp_flags & ~Py_TPFLAGS_VALID_VERSION_TAG, type->tp_basicsize,
                        type->tp_itemsize, type->tp_dictoffset, type->tp_weaklistoffset, bases, keys, values);
  Py_XDECREF(bases);
  Py_XDECREF(keys);
  Py_XDECREF(values);
  PyErr_Clear();
  return out;
}

bool has_class_look(PyTypeObject* type, PyObject* look) {
  if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) return false;
  PyObject* now = class_look(type);
  const bool same = now && same_look(now, look);
  Py_XDECREF(now);
  return same;
}

PyObject* dict_get(PyObject* dict, PyObject* key) {
  Py_hash_t hash = PyUnicode_CheckExact(key) ? reinterpret_cast<PyASCIIObject*>(key)->hash : -1;
  if (hash == -1 && (hash = PyObject_Hash(key)) == -1) {
    PyErr_Clear();
    return nullptr;
  }
  PyObject* value = _PyDict_GetItem_KnownHash(dict, key, hash);
  if (!value && PyErr_Occurred()) PyErr_Clear();
  return value;
}

bool is_numpy_number(PyObject* o) {
  const std::string_view name = Py_TYPE(o)->tp_name;
  if (!name.starts_with("numpy.") || (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE)) return false;
  if (name == "numpy.bool") return true;
  for (PyTypeObject* t = Py_TYPE(o)->tp_base; t != nullptr; t = t->tp_base)
    if (std::strcmp(t->tp_name, "numpy.number") == 0)
      return name.find("longdouble") == name.npos;  // which has bytes that mean nothing
  return false;
}

static bool same_bytes(PyObject* a, PyObject* b) {
  Py_buffer x, y;
  if (PyObject_GetBuffer(a, &x, PyBUF_SIMPLE) != 0) {
    PyErr_Clear();
    return false;
  }
  bool same = false;
  if (PyObject_GetBuffer(b, &y, PyBUF_SIMPLE) == 0) {
    same = x.len == y.len && std::memcmp(x.buf, y.buf, static_cast<size_t>(x.len)) == 0;
    PyBuffer_Release(&y);
  } else {
    PyErr_Clear();
  }
  PyBuffer_Release(&x);
  return same;
}

bool is_constant_of_c(PyTypeObject* t) {
  for (const char* name :
       {"re.Pattern", "_struct.Struct", "operator.itemgetter", "operator.attrgetter", "operator.methodcaller",
        "types.UnionType", "typing.TypeVar", "typing.ParamSpec", "typing.TypeVarTuple", "typing.TypeAliasType"})
    if (std::strcmp(t->tp_name, name) == 0) return true;
  return false;
}

bool is_constant(PyObject* o) {
  if (o == Py_None || o == Py_Ellipsis || o == Py_NotImplemented || PyBool_Check(o)) return true;
  if (PyLong_CheckExact(o) || PyFloat_CheckExact(o) || PyComplex_CheckExact(o) || PyUnicode_CheckExact(o) ||
      PyBytes_CheckExact(o))
    return true;
  if (is_torch_singleton(o) || named(o, "torch.device") || is_numpy_number(o)) return true;
  if (PyTuple_CheckExact(o) || is_size(o)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); i++)
      if (!is_constant(PyTuple_GET_ITEM(o, i))) return false;
    return true;
  }
  if (PySlice_Check(o)) {
    auto* s = reinterpret_cast<PySliceObject*>(o);
    return is_constant(s->start) && is_constant(s->stop) && is_constant(s->step);
  }
  if (PyRange_Check(o)) return true;
  if (PyFrozenSet_CheckExact(o)) {
    Py_ssize_t pos = 0;
    Py_hash_t hash;
    PyObject* item;
    while (_PySet_NextEntry(o, &pos, &item, &hash))
      if (!is_constant(item)) return false;
    return true;
  }
  return false;
}

bool same_constant(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (is_numpy_number(a)) return same_bytes(a, b);
  if (PyFloat_CheckExact(a)) {  // NaN equals NaN and 0.0 differs from -0.0: what the program sees must be the same
    double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (PyComplex_CheckExact(a))
    return std::memcmp(&reinterpret_cast<PyComplexObject*>(a)->cval, &reinterpret_cast<PyComplexObject*>(b)->cval,
                       sizeof(Py_complex)) == 0;
  if (PyTuple_CheckExact(a) || is_size(a)) {
    if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); i++)
      if (!same_constant(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
    return true;
  }
  if (PySlice_Check(a)) {
    auto* x = reinterpret_cast<PySliceObject*>(a);
    auto* y = reinterpret_cast<PySliceObject*>(b);
    return same_constant(x->start, y->start) && same_constant(x->stop, y->stop) && same_constant(x->step, y->step);
  }
  if (is_torch_singleton(a) || !is_constant(a)) return false;
  int equal = PyObject_RichCompareBool(a, b, Py_EQ);  // int, str, bytes, device, range, frozenset: C code
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

bool keys_in_order(PyObject* dict, PyObject* keys) {
  Py_ssize_t n = PyTuple_GET_SIZE(keys);
  if (PyDict_GET_SIZE(dict) != n) return false;
  Py_ssize_t i = 0;
  auto same = [&](PyObject* key) {
    PyObject* want = i < n ? PyTuple_GET_ITEM(keys, i) : nullptr;
    i++;
    return want && (want == key || same_constant(want, key));
  };
  if (PyODict_Check(dict)) return each_ordered_key(dict, same) && i == n;
  Py_ssize_t pos = 0;
  PyObject *key, *value;
  while (PyDict_Next(dict, &pos, &key, &value))
    if (!same(key)) return false;
  return i == n;
}

PyObject* ordered_keys(PyObject* dict) {
  PyObject* list = PyList_New(0);
  if (PyODict_Check(dict)) {
    each_ordered_key(dict, [&](PyObject* key) { return PyList_Append(list, key) == 0; });
  } else {
    Py_ssize_t pos = 0;
    PyObject *key, *value;
    while (PyDict_Next(dict, &pos, &key, &value)) PyList_Append(list, key);
  }
  PyObject* tuple = PyList_AsTuple(list);
  Py_DECREF(list);
  return tuple;
}

bool dict_entry(PyObject* dict, Py_ssize_t index, PyObject** key, PyObject** value) {
  Py_ssize_t i = 0;
  if (PyODict_Check(dict)) {
    PyObject* found = nullptr;
    each_ordered_key(dict, [&](PyObject* k) {
      if (i++ == index) found = k;
      return !found;
    });
    if (!found) return false;
    *key = found;
    *value = dict_get(dict, found);
    return *value != nullptr;
  }
  Py_ssize_t pos = 0;
  while (PyDict_Next(dict, &pos, key, value))
    if (i++ == index) return true;
  return false;
}

Py_ssize_t length(PyObject* o) {
  if (PyTuple_Check(o)) return PyTuple_GET_SIZE(o);
  if (PyList_Check(o)) return PyList_GET_SIZE(o);
  if (PyDict_Check(o)) return PyDict_GET_SIZE(o);
  if (PyAnySet_Check(o)) return PySet_GET_SIZE(o);
  if (PyUnicode_Check(o)) return PyUnicode_GET_LENGTH(o);
  if (PyBytes_Check(o)) return PyBytes_GET_SIZE(o);
  if (is_deque(o)) return Py_SIZE(o);
  return -1;
}

std::string short_repr(PyObject* o) {
  if (!o) return "nothing";
  if (is_constant(o)) {
    PyObject* text = PyObject_Repr(o);
    const char* utf8 = text ? PyUnicode_AsUTF8(text) : nullptr;
    std::string s = utf8 ? utf8 : "?";
    Py_XDECREF(text);
    PyErr_Clear();
    return s.size() > 80 ? s.substr(0, 77) + "..." : s;
  }
  if (PyType_Check(o)) return std::string("class ") + reinterpret_cast<PyTypeObject*>(o)->tp_name;
  if (PyFunction_Check(o)) {
    const char* name = PyUnicode_AsUTF8(reinterpret_cast<PyFunctionObject*>(o)->func_qualname);
    PyErr_Clear();
    return std::string("function ") + (name ? name : "?");
  }
  if (PyCode_Check(o)) {
    const char* name = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(o)->co_qualname);
    PyErr_Clear();
    return std::string("code of ") + (name ? name : "?");
  }
  if (PyCFunction_Check(o)) return std::string("builtin ") + reinterpret_cast<PyCFunctionObject*>(o)->m_ml->ml_name;
  const char* type = std::strrchr(Py_TYPE(o)->tp_name, '.');
  return std::string("a ") + (type ? type + 1 : Py_TYPE(o)->tp_name);
}

}  // namespace flashover::guards
