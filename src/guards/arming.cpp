// How each source hangs off its parent, and each fact off its object, as a compare; then all of them level by level.
#include "guards/arming.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "guards/objects.h"

namespace flashover::guards {
namespace {

class Arming {
 public:
  Arming(ProgramState& program, Segment& segment)
      : p_(program), s_(segment), tagged_(program.table_.sources().size()), loose_(program.table_.sources().size()) {}
  void run();

 private:
  void sort_tensors();
  void add_words(GuardInstr& in, int32_t of);
  void add_object(SourceId id, PyObject* object, PyObject* dict);
  void add_word(SourceId id, void* where) const;
  void add_dict(SourceId id);
  bool add_type(SourceId id, PyObject* type, bool facts = true);
  void add_pointer(SourceId id, PyObject** where);
  void add_resolve(SourceId id);
  void link(SourceId id);
  void add_fact(SourceId id, int32_t index);

  ProgramState& p_;
  Segment& s_;
  std::unordered_map<void*, int32_t> dicts_, objects_, types_;  // -> index of the instruction
  std::unordered_set<SourceId> tensors_;
  std::vector<bool> tagged_;        // by source: while the instructions before it hold, it is the same live object
  std::vector<bool> loose_;         // by source: it or what it hangs off is
  std::vector<int32_t> dict_code_;  // by dict: index of its instruction
};

void Arming::run() {
  s_.code.clear();
  s_.dicts.clear();
  s_.types.clear();
  s_.loose.clear();
  s_.arms++;
  for (SourceId id : s_.sources) {
    const SourceId parent = p_.source(id).parent;
    loose_[id] = p_.loose_[id] || (parent != kNoSource && loose_[parent]);
    if (loose_[id]) {
      s_.loose.push_back(id);
      continue;
    }
    if (id != s_.root) link(id);
    for (int32_t fact : p_.table_.facts_of(id)) add_fact(id, fact);
  }
  // Neighbours in memory follow each other: the processor fetches ahead.
  const auto address = [](const GuardInstr& i) {
    return i.op == GuardOp::kDict || i.op == GuardOp::kObject ? reinterpret_cast<uintptr_t>(i.a) : 0;
  };
  const auto type = [](const GuardInstr& i) {
    return i.op == GuardOp::kObject ? std::pair(i.b, i.number) : std::pair(static_cast<void*>(nullptr), int64_t{0});
  };
  std::stable_sort(s_.code.begin(), s_.code.end(), [&](const GuardInstr& x, const GuardInstr& y) {
    return std::tuple(x.level, x.op, type(x), address(x)) < std::tuple(y.level, y.op, type(y), address(y));
  });
  s_.code.shrink_to_fit();
  s_.phases.clear();
  s_.all = s_.still = {};
  for (const TensorOf& t : s_.tensor_of) p_.positions_[t.source].tensor = -1;
  s_.tensors.clear();
  s_.tensor_of.clear();
  for (uint32_t i = 0; i < s_.code.size(); i++) {
    GuardInstr& in = s_.code[i];
    if (i > 0 && in.level != s_.code[i - 1].level) s_.all.fill(), s_.still.fill();
    if (in.op == GuardOp::kTensor) {  // nothing hangs off what is compared of a tensor: they come last
      s_.tensors.emplace_back();
      s_.tensor_of.push_back({in.index, static_cast<const TensorSpec*>(in.a)});
      take_look(p_.current_[in.index], p_.looks_, s_.tensors.back());
    } else if (in.op == GuardOp::kItem || in.op == GuardOp::kFact || in.op == GuardOp::kResolve) {
      s_.all.fill(), s_.still.fill();
      const auto all = static_cast<uint32_t>(s_.all.words.size()), still = static_cast<uint32_t>(s_.still.words.size());
      if (s_.phases.empty() || s_.phases.back().end != i || s_.phases.back().all != all)
        s_.phases.push_back({all, still, i, i});
      s_.phases.back().end = i + 1;
    } else {
      add_words(in, static_cast<int32_t>(i));
    }
  }
  s_.all.fill(), s_.still.fill();
  s_.phases.push_back({static_cast<uint32_t>(s_.all.words.size()), static_cast<uint32_t>(s_.still.words.size()), 0, 0});
  sort_tensors();
  s_.armed = true;
}

// Those of one look together.
void Arming::sort_tensors() {
  std::vector<std::pair<TensorCompare, TensorOf>> all;
  for (size_t i = 0; i < s_.tensors.size(); ++i) all.emplace_back(s_.tensors[i], s_.tensor_of[i]);
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& x, const auto& y) { return std::less<>()(x.first.look, y.first.look); });
  for (size_t i = 0; i < all.size(); ++i) {
    std::tie(s_.tensors[i], s_.tensor_of[i]) = all[i];
    p_.positions_[all[i].second.source].tensor = static_cast<int32_t>(i);
  }
}

void Arming::add_words(GuardInstr& in, int32_t of) {
  const auto add = [&](const void* at, bool dict = false) {
    const auto* where = static_cast<const char*>(at);
    Word word{where, read(where)};
    if (dict && !compat::tag_all_changes(static_cast<PyObject*>(in.a))) word.is = ~word.is;  // never so
    s_.all.words.push_back(word);
    s_.all.of.push_back(of);
    if (dict) return;
    s_.still.words.push_back(word);
    s_.still.of.push_back(of);
  };
  switch (in.op) {
    case GuardOp::kObject:
      add(&static_cast<PyObject*>(in.a)->ob_type);
      if (in.number) add(static_cast<char*>(in.a) + in.number);
      break;
    case GuardOp::kDict:
      add(dict_tag_word(static_cast<PyObject*>(in.a)), true);
      break;
    case GuardOp::kType:
      add(&static_cast<PyTypeObject*>(in.a)->tp_flags);
      add(type_tag_word(static_cast<PyTypeObject*>(in.a)));
      break;
    default:
      in.number = static_cast<int64_t>(s_.all.words.size() << 32 | s_.still.words.size());
      add(in.a);
  }
}

void Arming::add_object(SourceId id, PyObject* object, PyObject* dict) {
  std::ptrdiff_t slot = dict ? dict_slot(object) : 0;
  auto [it, fresh] = objects_.emplace(object, static_cast<int32_t>(s_.code.size()));
  if (fresh) {
    s_.code.push_back({GuardOp::kObject, -1, object, Py_TYPE(object), slot ? dict : nullptr, slot, p_.own_level(id)});
    return;
  }
  GuardInstr& i = s_.code[it->second];
  i.level = std::min(i.level, p_.own_level(id));
  if (slot) {
    i.c = dict;
    i.number = slot;
  }
}
// Eight bytes of the object, or of what is held, which are now as they must be.
void Arming::add_word(SourceId id, void* where) const {
  s_.code.push_back({GuardOp::kPointer, id, where, nullptr, nullptr, 0, p_.own_level(id)});
}
void Arming::add_dict(SourceId id) {
  PyObject* dict = p_.current_[id];
  auto [it, fresh] = dicts_.emplace(dict, static_cast<int32_t>(s_.dicts.size()));
  if (fresh) {
    s_.dicts.emplace_back();
    p_.watched_ = p_.watched_ && watch_dict(dict);
    dict_code_.push_back(static_cast<int32_t>(s_.code.size()));
    s_.code.push_back(
        {GuardOp::kDict, it->second, dict, nullptr, nullptr, static_cast<int64_t>(dict_tag(dict)), p_.own_level(id)});
  }
  int32_t& level = s_.code[dict_code_[it->second]].level;
  level = std::min(level, p_.own_level(id));
  auto& ids = s_.dicts[it->second];
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
}
// Returns false if the interpreter has no tag for it. facts: what is seen of the type are facts on `id` and below.
bool Arming::add_type(SourceId id, PyObject* type, bool facts) {
  auto it = types_.find(type);
  if (it == types_.end()) {
    const uint32_t tag = armed_type_tag(reinterpret_cast<PyTypeObject*>(type));
    if (!tag) return false;
    it = types_.emplace(type, static_cast<int32_t>(s_.code.size())).first;
    s_.code.push_back(
        {GuardOp::kType, static_cast<int32_t>(s_.types.size()), type, nullptr, nullptr, tag, p_.own_level(id)});
    s_.types.emplace_back();
  }
  GuardInstr& i = s_.code[it->second];
  i.level = std::min(i.level, p_.own_level(id));
  auto& ids = s_.types[i.index];
  const SourceId seen = facts ? id : kNoSource;
  if (std::find(ids.begin(), ids.end(), seen) == ids.end()) ids.push_back(seen);
  return true;
}
void Arming::add_pointer(SourceId id, PyObject** where) {
  if (*where == p_.current_[id] || (!*where && p_.current_[id] == Py_None)) {
    // A constant that is held is itself while the pointer is the same: nothing more to compare (default arguments,
    // mostly).
    if (is_constant(p_.current_[id])) {
      if (p_.held_.insert(p_.current_[id]).second) Py_INCREF(p_.current_[id]);
      tagged_[id] = true;
    }
    s_.code.push_back({GuardOp::kPointer, id, where, *where, nullptr, 0, p_.link_level(id)});
  } else {
    add_resolve(id);
  }
}
void Arming::add_resolve(SourceId id) {
  s_.code.push_back({GuardOp::kResolve, id, p_.current_[id], nullptr, nullptr, p_.by_address(id), p_.link_level(id)});
}

// How the object of `id` hangs off its parent's.
void Arming::link(SourceId id) {
  const Source& s = p_.source(id);
  PyObject* object = p_.current_[id];
  PyObject* parent = s.parent == kNoSource ? nullptr : p_.current_[s.parent];
  auto field = [&](auto PyFunctionObject::*member) {
    if (!parent) {
      tagged_[id] = true;
    } else if (PyFunction_Check(parent)) {
      add_pointer(id, &(reinterpret_cast<PyFunctionObject*>(parent)->*member));
    } else {
      add_resolve(id);
    }
  };
  switch (s.kind) {
    case SourceKind::kCallable:
    case SourceKind::kConstantObject:
      tagged_[id] = true;
      break;
    case SourceKind::kGlobals:
      field(&PyFunctionObject::func_globals);
      break;
    case SourceKind::kBuiltins:
      field(&PyFunctionObject::func_builtins);
      break;
    case SourceKind::kClosureCell:
      if (!PyFunction_Check(parent)) return add_resolve(id);
      s_.code.push_back({GuardOp::kPointer, id, &reinterpret_cast<PyFunctionObject*>(parent)->func_closure,
                         PyFunction_GET_CLOSURE(parent), nullptr, 0, p_.own_level(s.parent)});
      add_pointer(id, &PyTuple_GET_ITEM(PyFunction_GET_CLOSURE(parent), s.index));
      break;
    case SourceKind::kCellContents:
      add_pointer(id, &reinterpret_cast<PyCellObject*>(parent)->ob_ref);
      break;
    case SourceKind::kInstanceDict:
      if (PyType_Check(parent)) {
        tagged_[id] = tagged_[s.parent];  // the dict of a type is made once
      } else if (dict_slot(parent)) {
        add_object(s.parent, parent, object);
        tagged_[id] = true;
      } else {
        add_resolve(id);
      }
      break;
    case SourceKind::kType:
      add_object(s.parent, parent, nullptr);
      tagged_[id] = true;
      break;
    case SourceKind::kTypeLookup:
      if (add_type(s.parent, parent))
        tagged_[id] = true;
      else
        add_resolve(id);
      break;
    case SourceKind::kDictKeyAt:
    case SourceKind::kDictValueAt:
      if (PyODict_Check(parent)) return add_resolve(id);  // its order has no tag
      [[fallthrough]];
    case SourceKind::kDictItem:
      add_dict(s.parent);
      tagged_[id] = true;
      break;
    case SourceKind::kSequenceItem:
      if (PyTuple_Check(parent)) {
        add_pointer(id, &PyTuple_GET_ITEM(parent, s.index));
        tagged_[id] = tagged_[id] || tagged_[s.parent];
      } else if (!PyList_Check(parent)) {
        add_resolve(id);
      } else {
        s_.code.push_back({GuardOp::kItem, s.index, parent, object, nullptr, id, p_.link_level(id)});
      }
      break;
    case SourceKind::kSlot:
      if (PyObject** where = member_slot(parent, s.key)) {
        add_pointer(id, where);
      } else if (PyFunction_Check(parent) && PyUnicode_CompareWithASCIIString(s.key, "__name__") == 0) {
        add_pointer(id, &reinterpret_cast<PyFunctionObject*>(parent)->func_name);
      } else if (object == reinterpret_cast<PyObject*>(Py_TYPE(parent)) &&
                 PyUnicode_CompareWithASCIIString(s.key, "__class__") == 0 && add_type(s.parent, object, false)) {
        add_object(s.parent, parent, nullptr);
        tagged_[id] = true;
      } else {
        add_resolve(id);
      }
      break;
    case SourceKind::kProxied:  // (set once, when the proxy is made)
      add_pointer(id, proxied_slot(parent));
      tagged_[id] = tagged_[id] || tagged_[s.parent];
      break;
    case SourceKind::kSetItem:
    case SourceKind::kContextValue:
    case SourceKind::kWeakTarget:
    case SourceKind::kTensorAttr:
    case SourceKind::kModule:
      add_resolve(id);
      break;
    case SourceKind::kArgument:
      break;
  }
}

void Arming::add_fact(SourceId id, int32_t index) {
  const Fact& f = p_.table_.facts()[index];
  PyObject* object = p_.current_[id];
  bool tagged = tagged_[id];
  auto plain = [&] { s_.code.push_back({GuardOp::kFact, id, nullptr, nullptr, nullptr, index, p_.own_level(id)}); };
  switch (f.kind) {
    case FactKind::kEquals:
      if (!tagged) plain();
      break;
    case FactKind::kIdentity:
      // The way to it was compared, its class is below: what is left is whether it is still the object at its
      // address.
      if (!tagged && f.expected != object) {
        if (f.expected && PyWeakref_CheckRefExact(f.expected))
          add_word(id, &reinterpret_cast<PyWeakReference*>(f.expected)->wr_object);
        else
          plain();
      }
      [[fallthrough]];
    case FactKind::kTypeIs:
      // Only objects of heap types and modules can change their class.
      if (!tagged || (Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE) || PyModule_Check(object))
        add_object(id, object, nullptr);
      break;
    case FactKind::kInstanceDictIs:
      if (PyObject* dict = instance_dict(object); dict && !PyType_Check(object)) add_object(id, object, dict);
      break;
    case FactKind::kLength:
      if (PyDict_Check(object))
        add_dict(id);
      else if (PyList_CheckExact(object) || (PyTuple_CheckExact(object) && !tagged))
        add_object(id, object, nullptr), add_word(id, &reinterpret_cast<PyVarObject*>(object)->ob_size);
      else if (!(tagged && (PyTuple_Check(object) || PyUnicode_Check(object) || PyBytes_Check(object))))
        plain();
      break;
    case FactKind::kDictHas:
    case FactKind::kDictLacks:
      if (PyDict_Check(object))
        add_dict(id);
      else
        plain();
      break;
    case FactKind::kDictOrder:
      add_dict(id);
      if (PyODict_Check(object) && PyTuple_GET_SIZE(f.expected) > 1) plain();
      break;
    case FactKind::kAddressIs:
      if (!tagged) plain();
      break;
    case FactKind::kSpecials:
    case FactKind::kLooksLike:
    case FactKind::kTypeLacks:
    case FactKind::kTypeVersion:
      if (!add_type(id, object)) plain();
      break;
    case FactKind::kTensor:
      if (tensors_.insert(id).second)  // two facts about one tensor that both held say the same
        s_.code.push_back({GuardOp::kTensor, id, const_cast<TensorSpec*>(&p_.table_.spec(index)), nullptr, nullptr, 0,
                           p_.own_level(id)});
      break;
    case FactKind::kStorageOffset:
      plain();
      break;
    case FactKind::kCodeIs:
      if (PyFunction_GET_CODE(object) != f.expected) return plain();
      s_.code.push_back({GuardOp::kPointer, id, &reinterpret_cast<PyFunctionObject*>(object)->func_code, f.expected,
                         nullptr, 0, p_.own_level(id)});
      break;
    case FactKind::kGlobalState:
    case FactKind::kTensorAliases:
    case FactKind::kSameObject:
    case FactKind::kDistinct:
    case FactKind::kWritten:
    case FactKind::kSubclassIs:
    case FactKind::kCallGives:
    case FactKind::kNotAliases:
      break;
  }
}

}  // namespace

bool ProgramState::by_address(SourceId id) const {
  if (!table_.children_of(id).empty()) return true;
  for (int32_t f : table_.facts_of(id)) {
    const FactKind kind = table_.facts()[f].kind;
    if (kind != FactKind::kEquals && kind != FactKind::kTensor && kind != FactKind::kStorageOffset) return true;
  }
  return false;
}

void arm(ProgramState& program, Segment& segment) { Arming(program, segment).run(); }

}  // namespace flashover::guards
