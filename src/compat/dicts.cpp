// Watching dicts, and 3.13's, which keeps the attributes of many objects in the objects themselves and lends these to
// their __dict__: what is written there moves no tag and calls no watcher. A dict that has its items to itself does both.
#include "compat/dicts.h"

namespace flashover::compat {

#if PY_VERSION_HEX >= 0x030C0000

namespace {
uint64_t changes = 0;  // GIL held
int on_change(PyDict_WatchEvent, PyObject*, PyObject*, PyObject*) noexcept {
  ++changes;
  return 0;
}
}  // namespace

bool watch_dict(PyObject* dict) {
  static const int id = PyDict_AddWatcher(on_change);  // there are eight
  if (id >= 0 && tag_all_changes(dict) && PyDict_Watch(id, dict) == 0) return true;
  PyErr_Clear();
  return false;
}
uint64_t watched_changes() { return changes; }

#else

bool watch_dict(PyObject*) { return false; }
uint64_t watched_changes() { return 0; }

#endif

}  // namespace flashover::compat

#if PY_VERSION_HEX >= 0x030D0000
#include "compat/internals.h"

#include <internal/pycore_dict.h>

namespace flashover::compat {

bool lends_its_items(PyObject* dict) {
  const PyDictValues* values = reinterpret_cast<PyDictObject*>(dict)->ma_values;
  return values != nullptr && values->embedded;
}

// popitem() takes such a dict's items out of the object. What it pops is put there for that.
bool take_items_out(PyObject* dict) {
  static PyObject *const key = PyUnicode_InternFromString("__flashover__"), *const pop =
                                                                                PyUnicode_InternFromString("popitem");
  PyObject* error = PyErr_GetRaisedException();
  if (PyDict_SetItem(dict, key, Py_None) == 0) {
    PyObject* popped = PyObject_CallMethodNoArgs(dict, pop);
    if (popped == nullptr) {
      PyErr_Clear();
      PyDict_DelItem(dict, key);
    }
    Py_XDECREF(popped);
  }
  PyErr_Clear();
  PyErr_SetRaisedException(error);
  return !lends_its_items(dict);
}

}  // namespace flashover::compat
#endif
