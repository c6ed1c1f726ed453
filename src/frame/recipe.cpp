#include "frame/recipe.h"

#include <cstring>

namespace flashover::frame {
namespace {

constexpr int kMaxDepth = 100;

bool is_namedtuple(PyObject* o) {
  return PyTuple_Check(o) && !PyTuple_CheckExact(o) && PyObject_HasAttrString(reinterpret_cast<PyObject*>(Py_TYPE(o)), "_fields");
}
bool is_structseq(PyObject* o) {
  return PyTuple_Check(o) && PyObject_HasAttrString(reinterpret_cast<PyObject*>(Py_TYPE(o)), "n_sequence_fields");
}

}  // namespace

int32_t RecipeMaker::want(SourceId id) {
  auto [it, added] = wanted_.try_emplace(id, static_cast<int32_t>(capture_.wanted.size()));
  if (added) {
    // Inputs come first and were entered by capture(); anything else is appended.
    for (size_t i = 0; i < capture_.wanted.size(); ++i) {
      if (capture_.wanted[i] == id) {
        it->second = static_cast<int32_t>(i);
        return it->second;
      }
    }
    capture_.wanted.push_back(id);
  }
  return it->second;
}

int32_t RecipeMaker::step(RecipeStep::Kind kind, PyObject* object, std::vector<int32_t> items, int32_t index) {
  RecipeStep s;
  s.kind = kind;
  s.index = index;
  s.object = Py_XNewRef(object);
  s.items = std::move(items);
  capture_.recipe.push_back(std::move(s));
  return static_cast<int32_t>(capture_.recipe.size() - 1);
}

std::vector<int32_t> RecipeMaker::pairs(PyObject* dict) {
  std::vector<int32_t> items;
  PyObject *key, *value;
  Py_ssize_t at = 0;
  while (PyDict_Next(dict, &at, &key, &value)) {
    items.push_back(make(key));
    items.push_back(make(value));
  }
  return items;
}

int32_t RecipeMaker::make(PyObject* o) {
  using Kind = RecipeStep::Kind;
  auto it = registers_.find(o);
  if (it != registers_.end()) {
    if (it->second < 0) throw Declined("a result that contains itself");
    return it->second;
  }
  if (is_atom(o)) return registers_[o] = step(Kind::kConstant, o);
  SourceId id = in_.recorder.source_of(o);
  if (id != kNoSource) {
    const guards::Source& s = in_.recorder.source(id);
    if (s.kind == SourceKind::kConstantObject || (is_pinned_kind(o) && in_.recorder.pinned(id)))
      return registers_[o] = step(Kind::kConstant, o);
    return registers_[o] = step(Kind::kSource, nullptr, {}, want(id));
  }
  if (is_tensor(o)) {
    if (in_.session == nullptr || !in_.session->is_trace_tensor(o))
      throw Declined("a tensor in the result that the trace did not make");
    if (PyObject** dict = _PyObject_GetDictPtr(o); dict != nullptr && *dict != nullptr && PyDict_GET_SIZE(*dict) > 0)
      throw Declined("a tensor in the result that carries Python attributes");
    if (Py_TYPE(o)->tp_name != nullptr && std::strcmp(Py_TYPE(o)->tp_name, "Tensor") != 0)
      throw Declined(std::string("a tensor of a subclass in the result: ") + Py_TYPE(o)->tp_name);
    outputs_.push_back(o);
    return registers_[o] = step(Kind::kGraphOutput, nullptr, {}, static_cast<int32_t>(outputs_.size() - 1));
  }
  if (is_pinned_kind(o) && !PyFunction_Check(o) && !in_.recorder.is_fresh_type(o) &&
      (PyType_Check(o) || PyModule_Check(o) || PyCFunction_Check(o) || PyCode_Check(o) ||
       (known_types().enum_type != nullptr && PyObject_TypeCheck(o, known_types().enum_type))))
    return registers_[o] = step(Kind::kConstant, o);
  if (++depth_ > kMaxDepth) throw Declined("a result nested too deeply");
  registers_[o] = -1;
  int32_t r = make_object(o);
  --depth_;
  return registers_[o] = r;
}

int32_t RecipeMaker::make_object(PyObject* o) {
  using Kind = RecipeStep::Kind;
  PyTypeObject* t = Py_TYPE(o);
  auto* type = reinterpret_cast<PyObject*>(t);
  auto sequence = [&] {
    std::vector<int32_t> items;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) items.push_back(make(PySequence_Fast_GET_ITEM(o, i)));
    return items;
  };
  if (t == &PyTuple_Type) return step(Kind::kTuple, nullptr, sequence());
  if (t == &PyList_Type) return step(Kind::kList, nullptr, sequence());
  if (t == &PyDict_Type) return step(Kind::kDict, nullptr, pairs(o));
  if (t == &PyODict_Type) return step(Kind::kDict, type, pairs(o));
  if (t == &PySet_Type || t == &PyFrozenSet_Type) {
    std::vector<int32_t> items;
    Py_ssize_t at = 0;
    PyObject* item;
    Py_hash_t hash;
    while (_PySet_NextEntry(o, &at, &item, &hash)) items.push_back(make(item));
    return step(t == &PySet_Type ? Kind::kSet : Kind::kFrozenSet, nullptr, std::move(items));
  }
  if (t == &PySlice_Type) {
    auto* s = reinterpret_cast<PySliceObject*>(o);
    return step(Kind::kSlice, nullptr, {make(s->start), make(s->stop), make(s->step)});
  }
  if (t == &PyMethod_Type)
    return step(Kind::kBoundMethod, nullptr, {make(PyMethod_GET_FUNCTION(o)), make(PyMethod_GET_SELF(o))});
  if (t == &PyCell_Type) {
    if (PyCell_GET(o) == nullptr) throw Declined("an empty cell in the result");
    return step(Kind::kCell, nullptr, {make(PyCell_GET(o))});
  }
  if (t == &PyFunction_Type) {
    auto* f = reinterpret_cast<PyFunctionObject*>(o);
    if (f->func_dict != nullptr && PyDict_GET_SIZE(f->func_dict) > 0)
      throw Declined("a function with attributes in the result");
    std::vector<int32_t> items;
    for (PyObject* part : {f->func_code, f->func_globals, f->func_name, f->func_qualname, f->func_defaults,
                           f->func_kwdefaults, f->func_closure, f->func_annotations}) {
      if (part == f->func_globals || part == f->func_code)
        items.push_back(step(Kind::kConstant, part));
      else
        items.push_back(part == nullptr ? make(Py_None) : make(part));
    }
    return step(Kind::kFunction, nullptr, std::move(items));
  }
  if (in_.recorder.is_fresh_type(type)) throw Declined("an instance of a class made during the call in the result");
  if (is_structseq(o) || is_namedtuple(o)) {
    PyObject** dict = has_instance_dict(t) ? _PyObject_GetDictPtr(o) : nullptr;
    if (dict != nullptr && *dict != nullptr && PyDict_GET_SIZE(*dict) > 0)
      throw Declined("a named tuple with attributes in the result");
    return step(Kind::kNamedTuple, type, sequence());
  }
  if (!(t->tp_flags & Py_TPFLAGS_HEAPTYPE) && t != known_types().defaultdict)
    throw Declined(std::string("an object in the result that cannot be made again: ") + t->tp_name);
  // An instance of a Python class: __new__ of its builtin base, then its contents and its __dict__.
  PyTypeObject* base = t;
  while (base->tp_flags & Py_TPFLAGS_HEAPTYPE) base = base->tp_base;
  if (base != &PyBaseObject_Type && base != &PyDict_Type && base != &PyODict_Type && base != &PyList_Type)
    throw Declined(std::string("an object in the result that cannot be made again: ") + t->tp_name);
  for (PyTypeObject* b = t; b != nullptr && b != base; b = b->tp_base) {
    if (PyDict_GetItemString(type_dict(b), "__slots__") != nullptr && b->tp_basicsize != b->tp_base->tp_basicsize &&
        b->tp_dictoffset == b->tp_base->tp_dictoffset)
      throw Declined(std::string("an object with slots in the result: ") + t->tp_name);
  }
  if (PyDict_GetItemString(type_dict(t), "__del__") != nullptr) throw Declined("an object with a finalizer in the result");
  int32_t made = step(Kind::kObject, type);
  registers_[o] = made;  // contents may refer back to it
  if (PyDict_Check(o)) {
    capture_.recipe[static_cast<size_t>(made)].index = 1;
    auto items = pairs(o);
    items.insert(items.begin(), made);
    step(Kind::kFillItems, nullptr, std::move(items));
  } else if (PyList_Check(o)) {
    auto items = sequence();
    items.insert(items.begin(), made);
    step(Kind::kFillItems, nullptr, std::move(items));
  }
  PyObject** dict = _PyObject_GetDictPtr(o);
  if (dict != nullptr && *dict != nullptr && PyDict_GET_SIZE(*dict) > 0) {
    auto items = pairs(*dict);
    items.insert(items.begin(), made);
    step(Kind::kFillDict, nullptr, std::move(items));
  }
  return made;
}

void RecipeMaker::effects() {
  using Kind = Effect::Kind;
  auto emit = [this](Kind kind, std::vector<int32_t> items) { capture_.effects.push_back({kind, std::move(items)}); };
  for (const Journal::Entry& e : in_.journal.entries()) {
    PyObject* t = e.target.get();
    int32_t target = make(t);
    switch (e.kind) {
      case Journal::Entry::Kind::kDictItem: {
        PyObject* now = PyDict_GetItemWithError(t, e.key.get());
        if (now != nullptr && now == e.before.get()) break;
        if (now != nullptr)
          emit(Kind::kSetItem, {target, make(e.key.get()), make(now)});
        else if (e.before)
          emit(Kind::kDelItem, {target, make(e.key.get())});
        break;
      }
      case Journal::Entry::Kind::kDictAll: {
        auto items = pairs(t);
        items.insert(items.begin(), target);
        emit(Kind::kDictReplace, std::move(items));
        break;
      }
      case Journal::Entry::Kind::kList: {
        std::vector<int32_t> items{target};
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(t); ++i) items.push_back(make(PyList_GET_ITEM(t, i)));
        emit(Kind::kListReplace, std::move(items));
        break;
      }
      case Journal::Entry::Kind::kSet: {
        std::vector<int32_t> items{target};
        Py_ssize_t at = 0;
        PyObject* item;
        Py_hash_t hash;
        while (_PySet_NextEntry(t, &at, &item, &hash)) items.push_back(make(item));
        emit(Kind::kSetReplace, std::move(items));
        break;
      }
      case Journal::Entry::Kind::kCell:
        if (PyCell_GET(t) == nullptr)
          emit(Kind::kCellSet, {target});
        else if (PyCell_GET(t) != e.before.get())
          emit(Kind::kCellSet, {target, make(PyCell_GET(t))});
        break;
      case Journal::Entry::Kind::kSlot: {
        Ref now = Ref::steal(PyObject_GenericGetAttr(t, e.key.get()));
        if (!now) {
          PyErr_Clear();
          emit(Kind::kDelAttr, {target, make(e.key.get())});
        } else {
          emit(Kind::kSetAttr, {target, make(e.key.get()), make(now.get())});
        }
        break;
      }
    }
  }
}

}  // namespace flashover::frame
