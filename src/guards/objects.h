// Reading CPython objects without running Python code: the version tags, dict pointers and raw slots that guards
// compare. Everything that depends on the interpreter's version is in this header and objects.cpp.
#pragma once
#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <string>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030D0000
#error "guards/objects.h knows CPython 3.11 and 3.12"
#endif

namespace flashover::guards {

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
// Unique over all dicts and all times; any change of keys, order of insertion or values moves it. 3.12 keeps watcher
// bits in the low byte.
inline uint64_t dict_tag(PyObject* dict) {
  uint64_t tag = reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#if PY_VERSION_HEX >= 0x030C0000
  tag &= ~uint64_t{0xFF};
#endif
  return tag;
}
// Eight bytes that change whenever the tag does: on 3.12 without the watchers' byte (but with one of the next member,
// which changes along with the tag, or for nothing).
inline const void* dict_tag_word(PyObject* dict) {
  const auto* tag = reinterpret_cast<const char*>(&reinterpret_cast<PyDictObject*>(dict)->ma_version_tag);
  return PY_VERSION_HEX >= 0x030C0000 ? tag + 1 : tag;
}
#pragma GCC diagnostic pop

// The interpreter says when a watched dict is about to change or to die (3.12 on; 3.11 watches nothing).
bool watch_dict(PyObject* dict);
uint64_t watched_changes();  // of all watched dicts, so far

// Unique over all types and all times while nonzero; moves when an attribute of the type or of a base changes.
// 0: the type has none now (see armed_type_tag).
inline uint32_t type_tag(PyTypeObject* type) {
  return (type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
}
// Eight bytes that change whenever it does, if tp_flags do not.
inline const void* type_tag_word(PyTypeObject* type) {
  static_assert(sizeof(type->tp_version_tag) == 4 &&
                offsetof(PyTypeObject, tp_version_tag) + 8 <= offsetof(PyTypeObject, tp_finalize));
  return &type->tp_version_tag;
}
uint32_t armed_type_tag(PyTypeObject* type);  // assigns one if the interpreter can; else 0

// Where `object` keeps the pointer to its __dict__, as an offset from the object; 0 if it has no dict or keeps it
// elsewhere. Only meaningful once the dict exists.
std::ptrdiff_t dict_slot(PyObject* object);
PyObject* instance_dict(PyObject* object);  // borrowed, made if it is not there yet; null if the type has none

PyObject* type_dict(PyTypeObject* type);  // borrowed

// The address of attribute `name` if it is a plain member slot (__slots__, func.__code__, method.__self__ ...), else
// null. An empty slot reads as None where the attribute does.
PyObject** member_slot(PyObject* object, PyObject* name);
// Attribute `name` through a C getset or member descriptor. New reference or null (no error set). Never runs Python
// code: returns null for any other kind of descriptor.
PyObject* native_attribute(PyObject* object, PyObject* name);

// `name` on the MRO of `type`, from position `start` on. Borrowed; null if absent.
PyObject* mro_lookup(PyTypeObject* type, PyObject* name, Py_ssize_t start);

// Lookup without raising. Borrowed; null if absent. Keys are constants (see is_constant), so no Python code runs but
// for a hash collision with a user's key object.
PyObject* dict_get(PyObject* dict, PyObject* key);

// Immutable built-in values that can be compared by value (numbers, strings, None, dtype, device, Size, tuples of such
// ...).
bool is_numpy_number(PyObject* object);  // a scalar of numpy's own: compared by its bytes
bool is_constant(PyObject* object);
// Same type and same value: floats bit by bit, tuples element by element. Only for constants.
bool same_constant(PyObject* a, PyObject* b);
// Keys of `dict` in iteration order equal `keys` (a tuple) by identity or as constants. Honours OrderedDict's own
// order.
bool keys_in_order(PyObject* dict, PyObject* keys);
PyObject* ordered_keys(PyObject* dict);  // new tuple
// index-th key or value in iteration order. Borrowed.
bool dict_entry(PyObject* dict, Py_ssize_t index, PyObject** key, PyObject** value);
// The special methods that C code looks up on `type`, in a fixed order: a new tuple, None for those it lacks.
PyObject* special_methods(PyTypeObject* type);
bool has_special_methods(PyTypeObject* type, PyObject* methods);
// A Python class that no module knows by its name: each call of the function that makes it may make another one.
bool is_local_class(PyTypeObject* type);
bool is_local_code(PyObject* code);  // of a function that is made in another one
// All that is fixed about a class but for its identity: metaclass, names, layout, its bases (local ones
// left out), and of what its own dict holds the names, the kinds, and the code. A new tuple.
PyObject* class_look(PyTypeObject* type);
bool has_class_look(PyTypeObject* type, PyObject* look);
bool same_code(PyObject* a, PyObject* b);  // also of another code object
// Elements of a list, tuple, dict, set, frozenset, str, bytes or deque (subclasses: of the base part); -1 for anything
// else.
Py_ssize_t length(PyObject* object);
bool is_deque(PyObject* object);
PyObject* deque_item(PyObject* deque, Py_ssize_t index);  // new reference; null past the end, no error set

std::string short_repr(PyObject* object);  // for people; runs no user code

}  // namespace flashover::guards
