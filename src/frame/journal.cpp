// How each kind of container is put back exactly as it was, its order included.
#include "frame/journal.h"

#include "base/check.h"

namespace flashover::frame {
namespace {

int dict_store(PyObject* dict, PyObject* key, PyObject* value) {
  return PyODict_Check(dict) ? PyODict_SetItem(dict, key, value) : PyDict_SetItem(dict, key, value);
}
int dict_remove(PyObject* dict, PyObject* key) {
  return PyODict_Check(dict) ? PyODict_DelItem(dict, key) : PyDict_DelItem(dict, key);
}

// `pairs` is a list of (key, value) in order.
void refill(PyObject* dict, PyObject* pairs) {
  if (PyODict_Check(dict)) {
    static PyObject* const clear = PyObject_GetAttrString(reinterpret_cast<PyObject*>(&PyODict_Type), "clear");
    Py_XDECREF(PyObject_CallOneArg(clear, dict));
  } else {
    PyDict_Clear(dict);
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(pairs); ++i) {
    PyObject* pair = PyList_GET_ITEM(pairs, i);
    dict_store(dict, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1));
  }
}

bool same_keys(PyObject* dict, PyObject* pairs) {
  Ref now = ordered_items(dict);
  if (!now || PyList_GET_SIZE(now.get()) != PyList_GET_SIZE(pairs)) return false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(pairs); ++i) {
    PyObject *a = PyList_GET_ITEM(now.get(), i), *b = PyList_GET_ITEM(pairs, i);
    if (PyTuple_GET_ITEM(a, 0) != PyTuple_GET_ITEM(b, 0)) return false;
  }
  return true;
}

// The keys of `pairs` that are there, in their order, then those that other threads put in meanwhile.
void restore_order(PyObject* dict, PyObject* pairs) {
  Ref now = ordered_items(dict), known = Ref::steal(PyDict_New()), all = Ref::steal(PyList_New(0));
  if (!now || !known || !all) return;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(pairs); ++i) {
    PyObject* key = PyTuple_GET_ITEM(PyList_GET_ITEM(pairs, i), 0);
    PyObject* value = PyDict_GetItemWithError(dict, key);
    PyDict_SetItem(known.get(), key, Py_None);
    Ref pair = Ref::steal(value != nullptr ? PyTuple_Pack(2, key, value) : nullptr);
    if (pair) PyList_Append(all.get(), pair.get());
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(now.get()); ++i) {
    PyObject* pair = PyList_GET_ITEM(now.get(), i);
    if (PyDict_Contains(known.get(), PyTuple_GET_ITEM(pair, 0)) == 0) PyList_Append(all.get(), pair);
  }
  refill(dict, all.get());
}

// What was added goes; what other threads added meanwhile stays.
void take_back(PyObject* list, const Journal::Entry& e) {
  for (size_t k = e.added.size(); k-- > 0;)
    for (Py_ssize_t i = PyList_GET_SIZE(list) - 1; i >= e.length; --i)
      if (PyList_GET_ITEM(list, i) == e.added[k].get()) {
        PyList_SetSlice(list, i, i + 1, nullptr);
        break;
      }
}

// The base type's methods, whatever a subclass makes of them.
void deque_refill(PyObject* deque, PyObject* items) {
  auto* type = reinterpret_cast<PyObject*>(known_types().deque);
  Ref cleared = Ref::steal(PyObject_CallMethod(type, "clear", "O", deque));
  Ref filled = Ref::steal(PyObject_CallMethod(type, "extend", "OO", deque, items));
}

}  // namespace

void Journal::dict_item(PyObject* dict, PyObject* key, bool removes) {
  if (recorder_.detached(dict)) return;
  if (recorder_.is_written(dict, key)) {
    for (Entry& e : entries_)
      if (removes && e.kind == Entry::Kind::kDictItem && e.target.get() == dict &&
          PyObject_RichCompareBool(e.key.get(), key, Py_EQ) == 1)
        e.removed = true;
    PyErr_Clear();
    return;
  }
  if (!is_atom(key) && !is_pinned_kind(key)) return whole(dict);
  Entry e{
      Entry::Kind::kDictItem, Ref::borrow(dict), Ref::borrow(key), Ref::borrow(PyDict_GetItemWithError(dict, key)), {}};
  bool first = true;
  for (const Entry& other : entries_)
    if (other.kind == Entry::Kind::kDictItem && other.target.get() == dict) first = false;
  if (first) e.order = ordered_items(dict);
  e.removed = removes;
  PyErr_Clear();
  entries_.push_back(std::move(e));
  recorder_.written(dict, key);
}

// What is noted before a write must not be lost after it: there is room for one more entry from here on.
void Journal::make_room() {
  if (entries_.size() == entries_.capacity()) entries_.reserve(entries_.size() * 2 + 8);
}

void Journal::whole(PyObject* c) {
  make_room();
  const Py_ssize_t appended = recorder_.appended(c);
  if (recorder_.detached(c) && appended < 0) return;
  Entry e{Entry::Kind::kList, Ref::borrow(c), {}, {}, {}};
  if (appended >= 0) {  // it was only added to so far
    recorder_.contents(c);
    e.before = Ref::steal(PyList_GetSlice(c, 0, appended));
    if (!e.before) throw Declined("an old container could not be copied");
    recorder_.append(c, -1);
    std::erase_if(entries_,
                  [c](const Entry& other) { return other.kind == Entry::Kind::kAppend && other.target.get() == c; });
    entries_.push_back(std::move(e));
    return;
  }
  if (PyDict_Check(c) && recorder_.has_writes(c)) {  // items of it were written: the first entry knows how it was
    auto of_this = [c](const Entry& other) { return other.kind == Entry::Kind::kDictItem && other.target.get() == c; };
    for (const Entry& other : entries_)
      if (!e.before && of_this(other)) e.before = other.order;
    if (!e.before) throw Declined("a dict was read whole after an item of it was written");
    recorder_.dict_contents(c, e.before.get());
    std::erase_if(entries_, of_this);
    recorder_.forget_writes(c);
    e.kind = Entry::Kind::kDictAll;
    entries_.push_back(std::move(e));
    recorder_.detach(c);
    return;
  }
  if (PyList_Check(c)) e.before = Ref::steal(PyList_GetSlice(c, 0, PyList_GET_SIZE(c)));
  if (PyList_CheckExact(c)) recorder_.numbers_in(c);
  recorder_.contents(c);  // from here on the trace knows the old contents entirely
  if (PyDict_Check(c)) {
    e.kind = Entry::Kind::kDictAll;
    e.before = ordered_items(c);
  } else if (PyList_Check(c)) {
  } else if (PySet_Check(c)) {
    e.kind = Entry::Kind::kSet;
    e.before = Ref::steal(PySequence_List(c));
  } else if (is_deque(c)) {
    e.kind = Entry::Kind::kDeque;
    e.before = Ref::steal(PySequence_List(c));
  } else {
    throw Declined(std::string("an old object is changed by native code: ") + Py_TYPE(c)->tp_name);
  }
  if (!e.before) throw Declined("an old container could not be copied");
  entries_.push_back(std::move(e));
  recorder_.detach(c);
}

void Journal::append(PyObject* list, PyObject* item) {
  if (!PyList_CheckExact(list)) return whole(list);
  for (Entry& e : entries_) {
    if (e.kind != Entry::Kind::kAppend || e.target.get() != list) continue;
    if (item != nullptr) e.added.push_back(Ref::borrow(item));
    return;
  }
  if (recorder_.detached(list)) return;
  Entry e{Entry::Kind::kAppend, Ref::borrow(list), {}, {}, {}};
  e.length = PyList_GET_SIZE(list);
  if (item != nullptr) e.added.push_back(Ref::borrow(item));
  recorder_.append(list, e.length);
  entries_.push_back(std::move(e));
}

void Journal::cell(PyObject* cell) {
  if (recorder_.detached(cell)) return;
  entries_.push_back({Entry::Kind::kCell, Ref::borrow(cell), {}, Ref::borrow(PyCell_GET(cell)), {}});
  recorder_.detach(cell);
}

void Journal::slot(PyObject* object, PyObject* name, PyObject* before) {
  entries_.push_back({Entry::Kind::kSlot, Ref::borrow(object), Ref::borrow(name), Ref::borrow(before), {}});
}

void Journal::tensor_attribute(PyObject* tensor, PyObject* name) {
  if (recorder_.is_written(tensor, name)) return;
  entries_.push_back({Entry::Kind::kTensorAttribute, Ref::borrow(tensor), Ref::borrow(name), {}, {}});
  recorder_.written(tensor, name);
}

void Journal::class_attribute(PyTypeObject* type, PyObject* name) {
  if (recorder_.is_written(type_dict(type), name)) return;
  auto* object = reinterpret_cast<PyObject*>(type);
  recorder_.constant(object);
  PyObject* before = PyDict_GetItemWithError(type_dict(type), name);
  entries_.push_back({Entry::Kind::kClassAttribute, Ref::borrow(object), Ref::borrow(name), Ref::borrow(before), {}});
  recorder_.written(type_dict(type), name);
}

void Journal::undo() noexcept {
  if (entries_.empty()) return;
  PyObject *type, *value, *tb;
  PyErr_Fetch(&type, &value, &tb);
  while (!entries_.empty()) {
    Entry e = std::move(entries_.back());
    entries_.pop_back();
    PyObject* t = e.target.get();
    switch (e.kind) {
      case Entry::Kind::kDictItem:
        if (e.before) {
          dict_store(t, e.key.get(), e.before.get());
        } else if (PyDict_Contains(t, e.key.get()) == 1) {
          dict_remove(t, e.key.get());
        }
        if (e.order && !same_keys(t, e.order.get())) restore_order(t, e.order.get());
        break;
      case Entry::Kind::kDictAll:
        refill(t, e.before.get());
        break;
      case Entry::Kind::kList:
        PyList_SetSlice(t, 0, PyList_GET_SIZE(t), e.before.get());
        break;
      case Entry::Kind::kAppend:
        take_back(t, e);
        break;
      case Entry::Kind::kSet:
        PySet_Clear(t);
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(e.before.get()); ++i)
          PySet_Add(t, PyList_GET_ITEM(e.before.get(), i));
        break;
      case Entry::Kind::kDeque:
        deque_refill(t, e.before.get());
        break;
      case Entry::Kind::kCell:
        PyCell_Set(t, e.before.get());
        break;
      case Entry::Kind::kSlot:
        PyObject_GenericSetAttr(t, e.key.get(), e.before.get());
        break;
      case Entry::Kind::kTensorAttribute:
        break;
      case Entry::Kind::kClassAttribute:
        PyType_Type.tp_setattro(t, e.key.get(), e.before.get());
        break;
    }
    PyErr_Clear();
  }
  PyErr_Restore(type, value, tb);
}

}  // namespace flashover::frame
