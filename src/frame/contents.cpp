// What the interpreter reads of containers, whole or in part, and of arrays of numpy.
#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <string_view>

#include "base/boundary.h"
#include "base/check.h"
#include "frame/observe.h"
#include "guards/objects.h"

namespace flashover::frame {
namespace {

constexpr int kMaxContentDepth = 6;

constexpr Py_ssize_t kMaxElements = 20000;

// The instances' layout of these is what guards look at: items, attributes, arguments, values that are known by identity.
bool is_observed_base(PyTypeObject* t) {
  if (t->tp_basicsize == PyBaseObject_Type.tp_basicsize && t->tp_itemsize == 0) return true;
  const KnownTypes& k = known_types();
  PyTypeObject* const known[] = {&PyList_Type,      &PyTuple_Type,    &PyDict_Type,        &PySet_Type,
                                 &PyFrozenSet_Type, &PyODict_Type,    &PyUnicode_Type,     &PyLong_Type,
                                 &PyFloat_Type,     &PyComplex_Type,  &PyBytes_Type,       &PyType_Type,
                                 &PyModule_Type,    &PyProperty_Type, &PyClassMethod_Type, &PyStaticMethod_Type,
                                 &PySuper_Type,     k.deque,          k.defaultdict,       k.partial};
  if (std::find(std::begin(known), std::end(known), t) != std::end(known)) return true;
  // (Classes of pybind11 name their module in their dict alone.)
  PyObject* module = type_dict(t) != nullptr ? PyDict_GetItemString(type_dict(t), "__module__") : nullptr;
  const std::string_view named = module != nullptr && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : "";
  const auto is_of = [&](std::string_view package) {
    return std::string_view(t->tp_name).starts_with(package) || named.starts_with(package);
  };
  return PyType_IsSubtype(t, reinterpret_cast<PyTypeObject*>(PyExc_BaseException)) ||
         PyType_IsSubtype(t, &_PyWeakref_RefType) || is_of("torch") || is_of("numpy");
}

// Values that change in place where no guard looks. And what is not known by identity, of a class that C code made or of
// one of the program over such a class: what their methods in C read is in no attribute.
bool keeps_secrets(PyObject* o) {
  PyTypeObject* const type = Py_TYPE(o);
  for (PyTypeObject* t = type; t != nullptr && t != &PyBaseObject_Type; t = t->tp_base)
    for (const char* name :
         {"bytearray", "memoryview", "array.array", "mmap.mmap", "_queue.SimpleQueue", "_random.Random", "weakproxy",
          "weakcallableproxy", "_thread.lock", "_thread.RLock", "_multiprocessing.SemLock", "_socket.socket",
          "itertools.count", "itertools.repeat", "decimal.Context", "_ctypes._CData", "frame"})
      if (std::strcmp(t->tp_name, name) == 0) return true;
  if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE) || is_pinned_kind(o)) return false;
  PyTypeObject* base = type;
  while (base != nullptr && is_python_class(base)) base = base->tp_base;
  return base != nullptr && !is_observed_base(base);
}

PyTypeObject* namespace_type() {
  static PyTypeObject* const type = reinterpret_cast<PyTypeObject*>(of_module("types", "SimpleNamespace"));
  return type;
}

// What an array holds, as a text. Called by guards.
PyObject* array_content(PyObject*, PyObject* array) {
  Ref shape = Ref::steal(PyObject_GetAttrString(array, "shape"));
  Ref strides = Ref::steal(PyObject_GetAttrString(array, "strides"));
  Ref dtype = Ref::steal(PyObject_GetAttrString(array, "dtype"));
  dtype = Ref::steal(dtype ? PyObject_GetAttrString(dtype.get(), "str") : nullptr);
  Ref bytes = Ref::steal(PyObject_CallMethod(array, "tobytes", nullptr));
  if (!shape || !strides || !dtype || !bytes) return nullptr;
  const Py_hash_t hash = PyObject_Hash(bytes.get());
  return PyUnicode_FromFormat("%R %R %R %zd", shape.get(), strides.get(), dtype.get(), hash);
}

bool is_small_array_of_numbers(PyObject* array) {
  constexpr Py_ssize_t kMostBytes = 1 << 18;
  Ref bytes = Ref::steal(PyObject_GetAttrString(array, "nbytes"));
  Ref dtype = Ref::steal(PyObject_GetAttrString(array, "dtype"));
  Ref kind = Ref::steal(dtype ? PyObject_GetAttrString(dtype.get(), "kind") : nullptr);
  const bool numbers = kind && PyUnicode_Check(kind.get()) && PyUnicode_GET_LENGTH(kind.get()) == 1 &&
                       std::strchr("biufcSU", static_cast<int>(PyUnicode_READ_CHAR(kind.get(), 0))) != nullptr;
  const bool small = bytes && PyLong_AsSsize_t(bytes.get()) <= kMostBytes;
  PyErr_Clear();
  return numbers && small;
}

}  // namespace

bool SourceTracker::is_guarded_by_content(PyObject* o) const {
  const SourceId id = source_of(o);
  return id != kNoSource && source(id).kind != SourceKind::kArgument && pinned(id) && is_small_array_of_numbers(o);
}

void SourceTracker::not_opaque(PyObject* o) {
  if (!is_opaque(o)) return;
  if (const SourceId id = source_of(o); id != kNoSource && is_numpy_scalar(o)) {  // never changes
    const bool number = guards::is_numpy_number(o);
    if (number || source(id).kind != SourceKind::kArgument) {
      opaque_.erase(o);
      fact(number ? FactKind::kEquals : FactKind::kIdentity, id, o);
      return;
    }
  }
  if (const SourceId id = source_of(o);
      is_array(o) && id != kNoSource && source(id).kind != SourceKind::kArgument && is_small_array_of_numbers(o)) {
    static PyMethodDef def = {"array_content", at_boundary<array_content>, METH_O, nullptr};
    static PyObject* const function = PyCFunction_New(&def, nullptr);
    Ref content = Ref::steal(array_content(nullptr, o));
    if (content) {
      opaque_.erase(o);
      fact(FactKind::kIdentity, id, o);
      call_gives(function, &o, 1, nullptr, content.get());
      return;
    }
    PyErr_Clear();
  }
  throw Declined(std::string("what is in an argument is looked at: ") + Py_TYPE(o)->tp_name);
}

void SourceTracker::length(PyObject* container) {
  not_opaque(container);
  if (Py_TYPE(container) == &PyDictProxy_Type) return contents(container);
  SourceId id = source_of(container);
  if (id == kNoSource || detached(container)) return;
  if (appended(container) >= 0) return contents(container);
  if (PyDict_Check(container)) {
    auto it = written_.find(container);
    if (it != written_.end()) return contents(container);
  }
  Py_ssize_t n = PyObject_Size(container);
  if (n < 0) {
    PyErr_Clear();
    throw Declined("length of an old object that has none");
  }
  fact(FactKind::kLength, id, nullptr, n);
}

PyObject* SourceTracker::proxied(PyObject* proxy) {
  PyObject* mapping = *guards::proxied_slot(proxy);
  if (!is_old(proxy)) return mapping;
  if (!PyDict_Check(mapping)) throw Declined("a mapping proxy from before the call");
  reach(SourceKind::kProxied, source_of(proxy), -1, nullptr, mapping);
  return mapping;
}

void SourceTracker::contents(PyObject* c) {
  not_opaque(c);
  check_secrets(c);
  if (Py_TYPE(c) == &PyDictProxy_Type || is_dict_view(c)) {
    c = proxied(c);
    if (!PyDict_Check(c)) return;
  }
  SourceId id = source_of(c);
  if (id == kNoSource || detached(c) || is_atom(c)) return;
  const auto members = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      Ref key = Ref::steal(PyUnicode_InternFromString(name));
      Ref value = Ref::steal(PyObject_GetAttr(c, key.get()));
      reach(SourceKind::kSlot, id, -1, key.get(), value.get());
    }
  };
  if (PyList_Check(c) || PyTuple_Check(c)) {
    const Py_ssize_t added_from = PyList_Check(c) ? appended(c) : -1;
    const Py_ssize_t n = added_from >= 0 ? added_from : PySequence_Fast_GET_SIZE(c);
    if (n > kMaxElements) throw Declined("a very long list was read whole");
    if (added_from >= 0) detach(c);  // the rest of it was made during the trace
    fact(FactKind::kLength, id, nullptr, n);
    for (Py_ssize_t i = 0; i < n; ++i) {
      Ref item = Ref::borrow(PySequence_Fast_GET_ITEM(c, i));
      if (!numbers.is(item.get())) reach(SourceKind::kSequenceItem, id, i, nullptr, item.get());
    }
  } else if (PyDict_Check(c)) {
    if (PyDict_GET_SIZE(c) > kMaxElements) throw Declined("a very large dict was read whole");
    default_factory(c);
    if (written_.count(c) == 0)
      dict_contents(c, ordered_items(c).get());
    else if (settle)
      settle(c);
    else
      throw Declined("a dict was read whole after an item of it was written");
  } else if (PyAnySet_Check(c)) {
    fact(FactKind::kLength, id, nullptr, PySet_GET_SIZE(c));
    Py_ssize_t at = 0, index = 0;
    PyObject* item;
    Py_hash_t hash;
    while (_PySet_NextEntry(c, &at, &item, &hash)) reach(SourceKind::kSetItem, id, index++, nullptr, item);
  } else if (Py_TYPE(c) == &PySlice_Type) {
    auto* s = reinterpret_cast<PySliceObject*>(c);
    static PyObject* const names[] = {PyUnicode_InternFromString("start"), PyUnicode_InternFromString("stop"),
                                      PyUnicode_InternFromString("step")};
    reach(SourceKind::kSlot, id, -1, names[0], s->start);
    reach(SourceKind::kSlot, id, -1, names[1], s->stop);
    reach(SourceKind::kSlot, id, -1, names[2], s->step);
  } else if (Py_TYPE(c) == &PyRange_Type) {
    members({"start", "stop", "step"});
  } else if (PyObject_TypeCheck(c, known_types().partial)) {
    members({"func", "args", "keywords"});
  } else if (PyMethod_Check(c)) {
    static PyObject* const names[] = {PyUnicode_InternFromString("__func__"), PyUnicode_InternFromString("__self__")};
    reach(SourceKind::kSlot, id, -1, names[0], PyMethod_GET_FUNCTION(c));
    reach(SourceKind::kSlot, id, -1, names[1], PyMethod_GET_SELF(c));
  } else if (PyCell_Check(c)) {
    if (PyCell_GET(c) != nullptr) reach(SourceKind::kCellContents, id, -1, nullptr, PyCell_GET(c));
  } else if (is_deque(c)) {
    const Py_ssize_t n = Py_SIZE(c);
    if (n > kMaxElements) throw Declined("a very long deque was read whole");
    static PyObject* const maxlen = PyUnicode_InternFromString("maxlen");
    fact(FactKind::kLength, id, nullptr, n);
    Ref limit = Ref::steal(PyObject_GetAttr(c, maxlen));
    if (limit) reach(SourceKind::kSlot, id, -1, maxlen, limit.get());
    for (Py_ssize_t i = 0; i < n; ++i) {
      Ref item = Ref::steal(known_types().deque->tp_as_sequence->sq_item(c, i));
      if (!item) throw Declined("an old deque could not be read");
      reach(SourceKind::kSequenceItem, id, i, nullptr, item.get());
    }
  } else if (PyExceptionInstance_Check(c)) {
    // What str() and repr() of it show: its arguments, or what its class makes of other members.
    const auto shows = Py_TYPE(c)->tp_str;
    static PyObject* const args = PyUnicode_InternFromString("args");
    const auto* base = reinterpret_cast<PyTypeObject*>(PyExc_BaseException);
    const auto* key_error = reinterpret_cast<PyTypeObject*>(PyExc_KeyError);
    if (!(Py_TYPE(c)->tp_flags & Py_TPFLAGS_HEAPTYPE) && shows != base->tp_str && shows != key_error->tp_str)
      throw Declined(std::string("an exception from before the call was read: ") + Py_TYPE(c)->tp_name);
    Ref value = Ref::steal(PyObject_GetAttr(c, args));
    if (!value) throw Declined("an exception without arguments");
    reach(SourceKind::kSlot, id, -1, args, value.get());
    contents(value.get());
  }
}

void SourceTracker::default_factory(PyObject* dict) {
  const SourceId id = source_of(dict);
  if (id == kNoSource || !PyObject_TypeCheck(dict, known_types().defaultdict)) return;
  static PyObject* const name = PyUnicode_InternFromString("default_factory");
  Ref factory = Ref::steal(PyObject_GetAttr(dict, name));
  if (!factory) throw Declined("a defaultdict without a default_factory");
  reach(SourceKind::kSlot, id, -1, name, factory.get());
}

void SourceTracker::numbers_in(PyObject* list) {
  const SourceId id = source_of(list);
  if (varying_numbers == nullptr || varying_numbers->empty() || id == kNoSource || detached(list)) return;
  for (Py_ssize_t i = 0; i < std::min(PyList_GET_SIZE(list), kMaxElements); ++i) {
    PyObject* item = PyList_GET_ITEM(list, i);
    if (!PyFloat_CheckExact(item) && !PyLong_CheckExact(item)) continue;
    if (PyObject* seen = read(SourceKind::kSequenceItem, id, i, nullptr, item); seen != item)
      PyList_SetItem(list, i, Py_NewRef(seen));
  }
}

void SourceTracker::dict_contents(PyObject* dict, PyObject* items) {
  const SourceId id = source_of(dict);
  const Py_ssize_t n = PyList_GET_SIZE(items);
  if (facts_.insert({FactKind::kDictOrder, id, nullptr, n}).second) {
    Ref keys = Ref::steal(PyTuple_New(n));
    if (!keys) throw Declined("out of memory");
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* pair = PyList_GET_ITEM(items, i);
      PyTuple_SET_ITEM(keys.get(), i, Py_NewRef(PyTuple_GET_ITEM(pair, 0)));
    }
    guards::Fact f;
    f.kind = FactKind::kDictOrder;
    f.source = id;
    f.expected = keys.release();
    f.number = n;
    f.location = location_index();
    observations_.facts.push_back(f);
  }
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* pair = PyList_GET_ITEM(items, i);
    PyObject *key = PyTuple_GET_ITEM(pair, 0), *value = PyTuple_GET_ITEM(pair, 1);
    if (!is_loose(key) && (is_atom(key) || is_old(key) || is_pinned_kind(key))) {
      if (!is_atom(key)) constant(key);
      reach(SourceKind::kDictItem, id, -1, key, value);
    } else {
      reach(SourceKind::kDictKeyAt, id, i, nullptr, key);
      reach(SourceKind::kDictValueAt, id, i, nullptr, value);
    }
  }
}

void SourceTracker::check_secrets(PyObject* o) const {
  if (is_old(o) && keeps_secrets(o))
    throw Declined(std::string("what is in an object from before the call is read: ") + Py_TYPE(o)->tp_name);
}

void SourceTracker::contents_deep(PyObject* o, int depth) {
  if (depth > kMaxContentDepth || is_atom(o)) return;
  if (leaves_arrays && is_array(o)) return;
  not_opaque(o);
  check_secrets(o);
  PyTypeObject* t = Py_TYPE(o);
  if (t->tp_flags & Py_TPFLAGS_HEAPTYPE) specials(t);
  if (t == &PyTuple_Type || t == &PyList_Type || PyTuple_Check(o) || PyList_Check(o)) {
    contents(o);
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      contents_deep(PySequence_Fast_GET_ITEM(o, i), depth + 1);
  } else if (PyDict_Check(o)) {
    contents(o);
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(o, &at, &key, &value)) {
      contents_deep(key, depth + 1);
      contents_deep(value, depth + 1);
    }
  } else if (is_deque(o)) {
    contents(o);
    for (Py_ssize_t i = 0; i < Py_SIZE(o); ++i) {
      Ref item = Ref::steal(known_types().deque->tp_as_sequence->sq_item(o, i));
      if (item) contents_deep(item.get(), depth + 1);
    }
  } else if (PyExceptionInstance_Check(o)) {
    if (!is_old(o)) return;
    contents(o);
    Ref args = Ref::steal(PyObject_GetAttrString(o, "args"));
    if (args) contents_deep(args.get(), depth + 1);
  } else if (PyAnySet_Check(o) || t == &PySlice_Type || t == &PyRange_Type || t == &PyDictProxy_Type ||
             is_dict_view(o)) {
    contents(o);
    if (t == &PySlice_Type) {
      const auto* s = reinterpret_cast<PySliceObject*>(o);
      for (PyObject* part : {s->start, s->stop, s->step}) contents_deep(part, depth + 1);
    }
  } else if (is_old(o) && PyObject_TypeCheck(o, known_types().partial)) {
    contents(o);
    for (const char* part : {"func", "args", "keywords"})
      contents_deep(Ref::steal(PyObject_GetAttrString(o, part)).get(), depth + 1);  // (which o holds)
  } else if (is_old(o) && t == namespace_type()) {
    if (instance_dict(o) != kNoSource) contents_deep(*_PyObject_GetDictPtr(o), depth + 1);
  }
}

}  // namespace flashover::frame
