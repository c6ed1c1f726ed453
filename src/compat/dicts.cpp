// Watching dicts, and 3.13's, which keeps the attributes of many objects in the objects themselves and lends these to
// their __dict__: what is written there moves no tag and calls no watcher. A dict that has its items to itself does both.
#include "compat/dicts.h"

#include <algorithm>
#include <new>
#include <unordered_map>

namespace flashover::compat {

#if PY_VERSION_HEX >= 0x030C0000

namespace {
uint64_t changes = 0;  // GIL held
#if PY_VERSION_HEX >= 0x030E0000
uint64_t last_tag = 0;
// By address, for good: who compares a tag may outlive the dict, and a dict that is made there later has another tag.
std::unordered_map<PyObject*, uint64_t>& tags() {
  static auto* const all = new std::unordered_map<PyObject*, uint64_t>;
  return *all;
}
void move_tag(PyObject* dict) {
  if (const auto it = tags().find(dict); it != tags().end()) it->second = ++last_tag;
}
#else
void move_tag(PyObject*) {}
#endif
int on_change(PyDict_WatchEvent, PyObject* dict, PyObject*, PyObject*) noexcept {
  ++changes;
  move_tag(dict);
  return 0;
}
int watcher() {
  static const int id = PyDict_AddWatcher(on_change);  // there are eight
  return id;
}
}  // namespace

#if PY_VERSION_HEX >= 0x030E0000
const uint64_t* tag_of_watched(PyObject* dict) {
  static uint64_t never = ~uint64_t{0};
  try {
    uint64_t& tag = tags()[dict];  // 0: not watched yet
    const bool fresh = (reinterpret_cast<PyDictObject*>(dict)->_ma_watcher_tag >> std::max(watcher(), 0) & 1) == 0;
    if (tag != 0 && !fresh) return &tag;
    if (watch_dict(dict)) {
      tag = ++last_tag;
      return &tag;
    }
  } catch (const std::bad_alloc&) {
  }
  --never;
  return &never;
}
#endif

bool watch_dict(PyObject* dict) {
  const int id = watcher();
  if (id >= 0 && has_its_items(dict) && PyDict_Watch(id, dict) == 0) return true;
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
