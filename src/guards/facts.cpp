// Fetches the object at a source and tests a fact on it, one case for each kind.
#include "guards/facts.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "base/check.h"
#include "guards/sizes.h"

namespace flashover::guards {
namespace {

// Lists of constants, made anew by each call.
bool same_lists(PyObject* a, PyObject* b) {
  if (!PyList_CheckExact(a) || !PyList_CheckExact(b) || PyList_GET_SIZE(a) != PyList_GET_SIZE(b)) return false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(a); ++i)
    if (!same_constant(PyList_GET_ITEM(a, i), PyList_GET_ITEM(b, i))) return false;
  return true;
}

PyObject* builtins_dict() {
  static PyObject* dict = [] {
    PyObject* module = PyImport_ImportModule("builtins");
    FLASHOVER_CHECK(module) << "no builtins module";
    return PyModule_GetDict(module);  // the module is kept
  }();
  return dict;
}

// What symbolic_parts() names is compared by a SizeProgram.
void leave_open(TensorSpec& spec, int64_t parts) {
  const auto rank = static_cast<size_t>(spec.rank);
  for (size_t d = 0; d < rank && d < kMaxSymbolicRank; ++d) {
    if (parts >> d & 1) spec.geometry[d] = TensorSpec::kAny;
    if (parts >> (kMaxSymbolicRank + d) & 1) spec.geometry[rank + d] = TensorSpec::kAny;
  }
}

// Objects that may be held for as long as the guards live: they do not keep a user's model or data alive.
bool harmless(PyObject* o) {
  if (PyType_Check(o)) return !is_local_class(reinterpret_cast<PyTypeObject*>(o));
  return is_constant(o) || PyModule_Check(o) || PyCode_Check(o) || PyCFunction_Check(o) ||
         Py_TYPE(o) == &PyMethodDescr_Type || Py_TYPE(o) == &PyGetSetDescr_Type || Py_TYPE(o) == &PyMemberDescr_Type ||
         Py_TYPE(o) == &PyWrapperDescr_Type;
}

// Objects without weak references that may be held all the same: they hold no more than their class does.
bool is_small(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  return PyLong_Check(o) || PyBytes_Check(o) || t == &PyClassMethod_Type || t == &PyStaticMethod_Type ||
         t == &PyProperty_Type || is_constant_of_c(t);
}

bool is_weak(const Fact& f) {
  return f.kind == FactKind::kIdentity && f.expected && PyWeakref_CheckRefExact(f.expected);
}

// Changes whenever a class is registered with an abstract one.
int64_t abc_token() {
  static PyObject* const get = [] {
    PyObject* module = PyImport_ImportModule("_abc");
    PyObject* found = module ? PyObject_GetAttrString(module, "get_cache_token") : nullptr;
    Py_XDECREF(module);
    FLASHOVER_CHECK(found) << "no _abc.get_cache_token";
    return found;
  }();
  PyObject* token = PyObject_CallNoArgs(get);
  const int64_t value = token ? PyLong_AsLongLong(token) : -2;
  Py_XDECREF(token);
  PyErr_Clear();
  return value;
}

int32_t find_group(std::vector<int32_t>& groups, int32_t i) {
  while (groups[i] != i) i = groups[i] = groups[groups[i]];
  return i;
}

}  // namespace

FactTable::FactTable(Observations o) : o_(std::move(o)) {
  size_t n = o_.sources.size();
  seen_.resize(n);
  facts_of_.resize(n);
  children_of_.resize(n);
  groups_.resize(n);
  std::iota(groups_.begin(), groups_.end(), 0);
  try {
    for (size_t i = 0; i < n; i++) {
      Source& s = o_.sources[i];
      FLASHOVER_CHECK(s.parent < static_cast<SourceId>(i)) << "source " << i << " comes before its parent";
      FLASHOVER_CHECK(s.object) << "source " << i << " (" << str(o_, static_cast<SourceId>(i)) << ") without an object";
      seen_[i] = s.object;
      if (s.parent != kNoSource) children_of_[s.parent].push_back(static_cast<SourceId>(i));
    }
    for (size_t f = 0; f < o_.facts.size(); f++) {
      const Fact& fact = o_.facts[f];
      if (fact.kind == FactKind::kSubclassIs) {
        subclass_facts_.push_back(static_cast<int32_t>(f));
        abc_token_ = abc_token();
      } else if (is_between(fact.kind)) {
        between_.push_back(static_cast<int32_t>(f));
      } else if (fact.kind != FactKind::kGlobalState) {
        FLASHOVER_CHECK(fact.source >= 0 && fact.source < static_cast<SourceId>(n)) << "a fact without a source";
        facts_of_[fact.source].push_back(static_cast<int32_t>(f));
      }
      prepare(static_cast<int32_t>(f));
    }
  } catch (...) {
    release(o_);
    throw;
  }
  // Only what is known by address stays held; the rest is found again on each check.
  for (Source& s : o_.sources)
    if (s.kind != SourceKind::kConstantObject) Py_CLEAR(s.object);
}

FactTable::~FactTable() { release(o_); }

void FactTable::prepare(int32_t index) {
  Fact& f = o_.facts[index];
  PyObject* object = f.source == kNoSource ? nullptr : seen_[f.source];
  switch (f.kind) {
    case FactKind::kIdentity: {
      PyObject* is = f.expected ? f.expected : object;
      f.number = reinterpret_cast<int64_t>(is);
      types_.resize(o_.facts.size());
      types_[index] = Py_TYPE(is);
      if (harmless(is)) {
        Py_INCREF(is);
        Py_XSETREF(f.expected, is);
      } else if (PyType_SUPPORTS_WEAKREFS(Py_TYPE(is)) && !PyWeakref_Check(is)) {
        PyObject* weak = PyWeakref_NewRef(is, nullptr);
        if (!weak) PyErr_Clear();
        Py_XSETREF(f.expected, weak);
      } else if (!PyObject_IS_GC(is) || is_small(is)) {
        Py_INCREF(is);  // nothing else tells it from another one at its address
        Py_XSETREF(f.expected, is);
      } else {
        Py_CLEAR(f.expected);  // containers: an address that was reused has its own contents checked
      }
      break;
    }
    case FactKind::kEquals:
      FLASHOVER_CHECK(f.expected) << "kEquals without a value";
      if (!is_constant(f.expected))
        throw Declined("guard: a " + std::string(Py_TYPE(f.expected)->tp_name) + " cannot be compared by value (" +
                       str(o_, f.source) + ")");
      break;
    case FactKind::kTypeIs:
    case FactKind::kCodeIs:
    case FactKind::kDictHas:
    case FactKind::kDictLacks:
    case FactKind::kTypeLacks:
      FLASHOVER_CHECK(f.expected) << "a fact without its object: " << describe(index);
      break;
    case FactKind::kDictOrder:
      FLASHOVER_CHECK(PyDict_Check(object)) << "kDictOrder on a " << Py_TYPE(object)->tp_name;
      if (!f.expected) f.expected = ordered_keys(object);
      break;
    case FactKind::kTypeVersion:
      FLASHOVER_CHECK(PyType_Check(object)) << "kTypeVersion on a " << Py_TYPE(object)->tp_name;
      f.number = armed_type_tag(reinterpret_cast<PyTypeObject*>(object));
      if (!f.number) throw Declined("guard: the interpreter does not track changes of class " + short_repr(object));
      break;
    case FactKind::kTensor:
      specs_.push_back(read_tensor(object));
      leave_open(specs_.back(), f.number);
      f.number = static_cast<int64_t>(specs_.size()) - 1;
      // Keeps the class alive, so that its address means the class.
      Py_INCREF(Py_TYPE(object));
      Py_XSETREF(f.expected, reinterpret_cast<PyObject*>(Py_TYPE(object)));
      break;
    case FactKind::kTensorAliases:
      offsets_.resize(o_.facts.size());
      offsets_[index] = memory_of(object).offset - memory_of(seen_[f.number]).offset;
      [[fallthrough]];
    case FactKind::kSameObject:
      groups_[find_group(groups_, f.source)] = find_group(groups_, static_cast<int32_t>(f.number));
      break;
    case FactKind::kInstanceDictIs:
      Py_CLEAR(f.expected);
      break;  // what was seen inside is checked anyway
    case FactKind::kStorageOffset:
      FLASHOVER_CHECK(is_tensor(object)) << "kStorageOffset on a " << Py_TYPE(object)->tp_name;
      f.number = memory_of(object).offset;
      break;
    case FactKind::kWritten: {
      strangers_.resize(o_.facts.size());
      std::unordered_set<PyObject*> met{object};
      for (size_t s = 0; s < seen_.size(); s++)
        if (Py_TYPE(seen_[s]) == Py_TYPE(object) && met.insert(seen_[s]).second)
          strangers_[index].push_back(static_cast<SourceId>(s));
      break;
    }
    case FactKind::kAddressIs:
      f.number = reinterpret_cast<int64_t>(object);
      break;
    case FactKind::kSpecials:
      FLASHOVER_CHECK(PyType_Check(object)) << "kSpecials on a " << Py_TYPE(object)->tp_name;
      Py_XSETREF(f.expected, special_methods(reinterpret_cast<PyTypeObject*>(object)));
      break;
    case FactKind::kLooksLike:
      FLASHOVER_CHECK(PyType_Check(object)) << "kLooksLike on a " << Py_TYPE(object)->tp_name;
      Py_XSETREF(f.expected, class_look(reinterpret_cast<PyTypeObject*>(object)));
      if (!f.expected) throw Declined("guard: class " + short_repr(object) + " cannot be described");
      break;
    case FactKind::kCallGives:
      FLASHOVER_CHECK(f.expected && PyTuple_CheckExact(f.expected) && PyTuple_GET_SIZE(f.expected) > 1)
          << "kCallGives without a call";
      break;
    case FactKind::kSubclassIs:
    case FactKind::kLength:
    case FactKind::kDistinct:
    case FactKind::kNotAliases:
    case FactKind::kGlobalState:
      break;
  }
}

bool FactTable::is_subclass_as_seen(const Fact& f) const {
  int is = PyObject_IsSubclass(f.expected, seen_[f.source]);  // a class that is held
  if (is < 0) PyErr_Clear();
  return is == f.number;
}

bool FactTable::subclasses_hold() const {
  if (subclass_facts_.empty()) return true;
  const int64_t token = abc_token();
  if (token == abc_token_) return true;
  for (int32_t f : subclass_facts_)
    if (!is_subclass_as_seen(o_.facts[f])) return false;
  abc_token_ = token;
  return true;
}

PyObject* FactTable::resolve(SourceId id, PyObject* parent, PyObject* const* args, Keep& keep) const {
  const Source& s = o_.sources[id];
  switch (s.kind) {
    case SourceKind::kArgument:
      return args[s.index];
    case SourceKind::kCallable:
      return seen_[id];  // owned by the compiled callable
    case SourceKind::kGlobals:
      if (!parent) return seen_[id];  // the callable's own, read-only
      return PyFunction_Check(parent) ? PyFunction_GET_GLOBALS(parent) : nullptr;
    case SourceKind::kBuiltins:
      if (!parent) return builtins_dict();
      return PyFunction_Check(parent) ? reinterpret_cast<PyFunctionObject*>(parent)->func_builtins : nullptr;
    case SourceKind::kClosureCell: {
      PyObject* closure = PyFunction_Check(parent) ? PyFunction_GET_CLOSURE(parent) : nullptr;
      return closure && s.index < PyTuple_GET_SIZE(closure) ? PyTuple_GET_ITEM(closure, s.index) : nullptr;
    }
    case SourceKind::kCellContents:
      return PyCell_Check(parent) ? PyCell_GET(parent) : nullptr;
    case SourceKind::kInstanceDict:
      return instance_dict(parent);
    case SourceKind::kType:
      return reinterpret_cast<PyObject*>(Py_TYPE(parent));
    case SourceKind::kTypeLookup:
      return PyType_Check(parent) ? mro_lookup(reinterpret_cast<PyTypeObject*>(parent), s.key, s.index) : nullptr;
    case SourceKind::kDictItem:
      return PyDict_Check(parent) ? dict_get(parent, s.key) : nullptr;
    case SourceKind::kDictKeyAt:
    case SourceKind::kDictValueAt: {
      PyObject *key = nullptr, *value = nullptr;
      if (!PyDict_Check(parent) || !dict_entry(parent, s.index, &key, &value)) return nullptr;
      return s.kind == SourceKind::kDictKeyAt ? key : value;
    }
    case SourceKind::kSequenceItem:
      if (PyTuple_Check(parent))
        return s.index < PyTuple_GET_SIZE(parent) ? PyTuple_GET_ITEM(parent, s.index) : nullptr;
      if (PyList_Check(parent)) return s.index < PyList_GET_SIZE(parent) ? PyList_GET_ITEM(parent, s.index) : nullptr;
      return is_deque(parent) ? keep.hold(deque_item(parent, s.index)) : nullptr;
    case SourceKind::kSetItem: {
      if (!PyAnySet_Check(parent)) return nullptr;
      Py_ssize_t pos = 0;
      Py_hash_t hash;
      PyObject* item = nullptr;
      for (int32_t i = 0; i <= s.index; i++)
        if (!_PySet_NextEntry(parent, &pos, &item, &hash)) return nullptr;
      return item;
    }
    case SourceKind::kSlot:
    case SourceKind::kTensorAttr: {
      if (PyObject* tensor = tensor_of_array(parent)) return tensor;
      if (PyObject** slot = member_slot(parent, s.key); slot && *slot) return *slot;
      return keep.hold(native_attribute(parent, s.key));
    }
    case SourceKind::kModule: {
      PyObject* modules = PyImport_GetModuleDict();
      return modules ? dict_get(modules, s.key) : nullptr;
    }
    case SourceKind::kContextValue: {
      PyObject* value = nullptr;
      if (!PyContextVar_CheckExact(parent) || PyContextVar_Get(parent, nullptr, &value) < 0) PyErr_Clear();
      return keep.hold(value);
    }
    case SourceKind::kWeakTarget:
      return PyWeakref_CheckRef(parent) ? PyWeakref_GET_OBJECT(parent) : nullptr;
    case SourceKind::kProxied:
      return Py_TYPE(parent) == &PyDictProxy_Type || is_dict_view(parent) ? *proxied_slot(parent) : nullptr;
    case SourceKind::kConstantObject:
      return s.object;
  }
  return nullptr;
}

bool FactTable::is_between(FactKind kind) {
  return kind == FactKind::kTensorAliases || kind == FactKind::kSameObject || kind == FactKind::kDistinct ||
         kind == FactKind::kNotAliases || kind == FactKind::kWritten || kind == FactKind::kCallGives;
}

bool FactTable::holds(int32_t index, PyObject* x) const {
  const Fact& f = o_.facts[index];
  switch (f.kind) {
    case FactKind::kIdentity:
      return x == reinterpret_cast<PyObject*>(f.number) && Py_TYPE(x) == types_[index] &&
             (!is_weak(f) || PyWeakref_GET_OBJECT(f.expected) == x);
    case FactKind::kTypeIs:
      return reinterpret_cast<PyObject*>(Py_TYPE(x)) == f.expected;
    case FactKind::kEquals:
      return same_constant(x, f.expected);
    case FactKind::kLength:
      return length(x) == f.number;
    case FactKind::kDictHas:
    case FactKind::kDictLacks: {
      bool has;
      if (PyDict_Check(x)) {
        has = dict_get(x, f.expected) != nullptr;
      } else if (PyAnySet_Check(x)) {
        int found = PySet_Contains(x, f.expected);
        if (found < 0) PyErr_Clear();
        has = found == 1;
      } else {
        return false;
      }
      return has == (f.kind == FactKind::kDictHas);
    }
    case FactKind::kDictOrder:
      return PyDict_Check(x) && keys_in_order(x, f.expected);
    case FactKind::kTypeLacks:
      return PyType_Check(x) && !mro_lookup(reinterpret_cast<PyTypeObject*>(x), f.expected, f.number);
    case FactKind::kTypeVersion:
      return PyType_Check(x) && type_tag(reinterpret_cast<PyTypeObject*>(x)) == f.number;
    case FactKind::kTensor:
      return matches(x, specs_[f.number]);
    case FactKind::kStorageOffset:
      return is_tensor(x) && memory_of(x).offset == f.number;
    case FactKind::kCodeIs:
      return PyFunction_Check(x) &&
             (PyFunction_GET_CODE(x) == f.expected || (f.number == 1 && same_code(PyFunction_GET_CODE(x), f.expected)));
    case FactKind::kAddressIs:
      return reinterpret_cast<int64_t>(x) == f.number;
    case FactKind::kSpecials:
      return PyType_Check(x) && has_special_methods(reinterpret_cast<PyTypeObject*>(x), f.expected);
    case FactKind::kLooksLike:
      return PyType_Check(x) && has_class_look(reinterpret_cast<PyTypeObject*>(x), f.expected);
    case FactKind::kWritten:
    case FactKind::kCallGives:
    case FactKind::kSubclassIs:
    case FactKind::kInstanceDictIs:
    case FactKind::kGlobalState:
    case FactKind::kTensorAliases:
    case FactKind::kSameObject:
    case FactKind::kDistinct:
    case FactKind::kNotAliases:
      return true;
  }
  return false;
}

bool FactTable::holds_between(int32_t index, PyObject* const* current) const {
  const Fact& f = o_.facts[index];
  PyObject* x = f.source == kNoSource ? nullptr : current[f.source];
  switch (f.kind) {
    case FactKind::kSameObject:
      return x == current[f.number];
    case FactKind::kDistinct:
      return x != current[f.number];
    case FactKind::kWritten:
      for (SourceId s : strangers_[index])
        if (current[s] == x) return false;
      return true;
    case FactKind::kCallGives: {
      const Py_ssize_t last = PyTuple_GET_SIZE(f.expected) - 1;
      PyObject** items = &PyTuple_GET_ITEM(f.expected, 0);
      PyObject* now = PyObject_Vectorcall(items[0], items + 1, static_cast<size_t>(last - 1), nullptr);
      if (!now) PyErr_Clear();
      const bool same = now && (now == items[last] || same_constant(now, items[last]) || same_lists(now, items[last]));
      Py_XDECREF(now);
      return same;
    }
    case FactKind::kTensorAliases: {
      if (!is_tensor(x) || !is_tensor(current[f.number])) return false;
      Memory a = memory_of(x), b = memory_of(current[f.number]);
      return a.storage == b.storage && a.offset - b.offset == offsets_[index];
    }
    case FactKind::kNotAliases: {
      struct Range {
        const char *begin, *end;
        int32_t group;
      };
      std::vector<Range> ranges;
      auto& groups = const_cast<std::vector<int32_t>&>(groups_);
      for (size_t s = 0; s < o_.sources.size(); s++)
        for (int32_t i : facts_of_[s])
          if (o_.facts[i].kind == FactKind::kTensor) {
            Memory m = memory_of(current[s]);
            if (m.begin != m.end) ranges.push_back({m.begin, m.end, find_group(groups, static_cast<int32_t>(s))});
          }
      std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
      // Ranges of one group may overlap each other, so compare with the furthest end of every other group: one suffices
      // because disjoint groups leave at most one open range at any address.
      for (size_t i = 1, open = 0; i < ranges.size(); i++) {
        if (ranges[i].begin < ranges[open].end && ranges[i].group != ranges[open].group) return false;
        if (ranges[i].end > ranges[open].end) open = i;
      }
      return true;
    }
    default:
      return true;
  }
}

bool FactTable::still_alone(int32_t index, SourceId moved, PyObject* const* current) const {
  const SourceId written = o_.facts[index].source;
  if (moved == written) return holds_between(index, current);
  const std::vector<SourceId>& others = strangers_[index];  // in order
  return current[moved] != current[written] || !std::binary_search(others.begin(), others.end(), moved);
}

std::string FactTable::claim(int32_t index) const {
  const Fact& f = o_.facts[index];
  if (f.kind != FactKind::kTensor || static_cast<size_t>(f.number) >= specs_.size()) return guards::describe(o_, f);
  return str(o_, f.source) + " is a tensor " + str(specs_[f.number]);
}

std::string FactTable::describe(int32_t index) const {
  const std::string where = location_of(o_, o_.facts[index]);
  return claim(index) + (where.empty() ? "" : ", guarded at " + where);
}

Failure FactTable::failure(int32_t index, PyObject* x, PyObject* const* current) const {
  const Fact& f = o_.facts[index];
  const auto failed = [&](std::string now) { return Failure{claim(index), std::move(now), location_of(o_, f)}; };
  if (f.kind == FactKind::kSubclassIs) return is_subclass_as_seen(f) ? Failure() : failed("not so");
  if (is_between(f.kind)) return holds_between(index, current) ? Failure() : failed("not so");
  if (holds(index, x)) return {};
  std::string now = short_repr(x);
  if (f.kind == FactKind::kTensor && is_tensor(x)) {
    try {
      now = difference(specs_[f.number], read_tensor(x));
    } catch (const Declined& e) {
      now = e.what();
    }
  } else if (f.kind == FactKind::kTypeIs) {
    now = short_repr(reinterpret_cast<PyObject*>(Py_TYPE(x)));
  } else if (f.kind == FactKind::kIdentity) {
    now = "another object (" + now + ")";
  } else if (f.kind == FactKind::kStorageOffset && is_tensor(x)) {
    now = std::to_string(memory_of(x).offset);
  } else if (f.kind == FactKind::kDictOrder && PyDict_Check(x)) {
    PyObject* keys = ordered_keys(x);
    now = short_repr(keys);
    Py_XDECREF(keys);
  } else if (f.kind == FactKind::kLength) {
    now = std::to_string(length(x));
  } else if (f.kind == FactKind::kDictHas || f.kind == FactKind::kDictLacks || f.kind == FactKind::kTypeLacks ||
             f.kind == FactKind::kTypeVersion || f.kind == FactKind::kSpecials || f.kind == FactKind::kLooksLike ||
             f.kind == FactKind::kAddressIs) {
    now = "not so";
  }
  return failed(std::move(now));
}

}  // namespace flashover::guards
