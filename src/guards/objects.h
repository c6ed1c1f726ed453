// Reading CPython objects without running Python code: the version tags, dict pointers and raw slots that guards
// compare.
#pragma once
#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "compat/api.h"
#include "compat/dicts.h"

namespace flashover::guards {

using compat::dict_tag;
using compat::dict_tag_word;
using compat::type_dict;
using compat::type_tag;
using compat::watch_dict;
using compat::watched_changes;

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
// Instances of `type`, a class of C code, never change and hold no more than numbers, names and other such constants;
// they are known by identity.
bool is_constant_of_c(PyTypeObject* type);
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
bool is_dict_view(PyObject* object);       // keys(), values() or items() of a dict
PyObject** proxied_slot(PyObject* proxy);  // where a types.MappingProxyType or a dict view has what it shows
bool is_deque(PyObject* object);
PyObject* deque_item(PyObject* deque, Py_ssize_t index);  // new reference; null past the end, no error set

std::string short_repr(PyObject* object);  // for people; runs no user code

}  // namespace flashover::guards
