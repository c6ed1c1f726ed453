// The version tags of dicts and types, and dict watchers. From 3.14 on dicts have no tags: a watcher keeps ours.
#pragma once
#include <cstddef>
#include <cstdint>

#include "compat/python_version.h"

namespace flashover::compat {

// The low bits of a dict's tag are the watchers' (3.12), and the optimizer's count (3.13).
constexpr int kWatcherBits = kPython314 ? 0 : kPython313 ? 12 : kPython312 ? 8 : 0;
constexpr uint64_t kDictTick = uint64_t{1} << kWatcherBits;

#if PY_VERSION_HEX >= 0x030D0000
bool lends_its_items(PyObject* dict);
bool take_items_out(PyObject* dict);
#endif

// The interpreter says when a watched dict is about to change or to die (3.12 on; 3.11 watches nothing).
bool watch_dict(PyObject* dict);
uint64_t watched_changes();  // of all watched dicts, so far

inline bool has_its_items([[maybe_unused]] PyObject* dict) {
#if PY_VERSION_HEX >= 0x030D0000
  return reinterpret_cast<PyDictObject*>(dict)->ma_values == nullptr || !lends_its_items(dict) || take_items_out(dict);
#else
  return true;
#endif
}
// From now on any change of the dict moves its tag. False: some do not, for want of memory or of a watcher.
inline bool tag_all_changes(PyObject* dict) { return kPython314 ? watch_dict(dict) : has_its_items(dict); }

// Whether writes of attributes that no dict has been asked for move the tags of dicts made later (see dict_clock).
constexpr bool kTagsAreAClock = !kPython313;

#if PY_VERSION_HEX >= 0x030E0000
// Where the dict's tag is, which stays there for good; of a dict that cannot be watched, one that is another each time.
const uint64_t* tag_of_watched(PyObject* dict);
inline uint64_t dict_tag(PyObject* dict) { return *tag_of_watched(dict); }
inline const void* dict_tag_word(PyObject* dict) { return tag_of_watched(dict); }
#else
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
// Unique over all dicts and all times; any change of keys, order of insertion or values moves it. (Without memory for
// that: another number each time.)
inline uint64_t dict_tag(PyObject* dict) {
  static uint64_t never = ~uint64_t{0};
  if (!tag_all_changes(dict)) return never -= kDictTick;
  return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag & ~(kDictTick - 1);
}
// Eight bytes that change whenever the tag does: from 3.12 on without the watchers' byte (but with one of the next
// member, which changes along with the tag, or for nothing).
inline const void* dict_tag_word(PyObject* dict) {
  const auto* tag = reinterpret_cast<const char*>(&reinterpret_cast<PyDictObject*>(dict)->ma_version_tag);
  return kPython312 ? tag + 1 : tag;
}
#pragma GCC diagnostic pop
#endif

// Unique over all types and all times while nonzero; moves when an attribute of the type or of a base changes.
// From 3.13 on no flag says whether it is valid: it is 0 where it is not.
inline uint32_t type_tag(PyTypeObject* type) {
  return kPython313 || (type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
}

// Borrowed. Static builtin types keep theirs per interpreter from 3.12 on.
inline PyObject* type_dict(PyTypeObject* type) {
#if PY_VERSION_HEX >= 0x030C0000
  PyObject* dict = PyType_GetDict(type);
  Py_XDECREF(dict);  // the type holds it
  return dict;
#else
  return type->tp_dict;
#endif
}

}  // namespace flashover::compat
