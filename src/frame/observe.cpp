// Turns what the interpreter reads into sources and facts, and knows which objects need no fact at all.
#include "frame/observe.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/boundary.h"
#include "base/check.h"
#include "frame/frame.h"
#include "frame/own_calls.h"
#include "frame/resume.h"
#include "guards/objects.h"
#include "guards/tensors.h"

namespace flashover::frame {
namespace {

bool is_foreign(PyObject* o) {
  const char* name = Py_TYPE(o)->tp_name;
  for (const char* module : {"numpy.", "_io.", "datetime."})
    if (std::strncmp(name, module, std::strlen(module)) == 0) return !PyType_Check(o);
  return false;
}

bool is_awaited(PyTypeObject* t) {  // (each class on the heap has the table, most of them an empty one)
  const PyAsyncMethods* m = t->tp_as_async;
  return m != nullptr && (m->am_await != nullptr || m->am_aiter != nullptr || m->am_anext != nullptr);
}

// Of a class derived from int, str and the like: never changes, but what it is stands in no attribute.
bool is_value_of_a_subclass(PyObject* o) {
  if (!(Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE)) return false;
  return PyLong_Check(o) || PyUnicode_Check(o) || PyBytes_Check(o) || PyFloat_Check(o) || PyComplex_Check(o);
}

}  // namespace

SourceTracker::SourceTracker(trace::Session* session) : numbers(*this, session), session_(session) {
  if (session == nullptr) return;
  sources_by_object_.reserve(4096);
  paths_.reserve(8192);
  facts_.reserve(8192);
  lookups_.reserve(1024);
}

SourceTracker::~SourceTracker() {
  for (auto& s : observations_.sources) {
    Py_XDECREF(s.key);
    Py_XDECREF(s.object);
  }
  for (auto& f : observations_.facts) Py_XDECREF(f.expected);
  for (auto& [dict, keys] : written_)
    for (PyObject* key : keys) Py_DECREF(key);
}

// A class that is known by its looks is none of those that look the same and are known by identity.
void SourceTracker::tell_apart_from_loose() {
  for (const auto& [id, loose] : loose_types_) {
    const auto twin = [t = loose](PyObject* other) {
      return other != nullptr && other != t && PyType_Check(other) &&
             guards::is_local_class(reinterpret_cast<PyTypeObject*>(other)) &&
             std::strcmp(reinterpret_cast<PyTypeObject*>(other)->tp_name,
                         reinterpret_cast<PyTypeObject*>(t)->tp_name) == 0;
    };
    std::vector<SourceId> others;
    std::vector<PyObject*> types;
    for (size_t i = 0; i < observations_.sources.size(); ++i)
      if (!loose_[i] && twin(observations_.sources[i].object)) others.push_back(static_cast<SourceId>(i));
    for (const guards::Fact& f : observations_.facts)
      if (f.kind == FactKind::kTypeIs && twin(f.expected)) types.push_back(f.expected);
    for (PyObject* t : types) others.push_back(add(SourceKind::kConstantObject, kNoSource, -1, nullptr, t, true));
    for (SourceId other : others) fact(FactKind::kDistinct, std::max(id, other), nullptr, std::min(id, other));
  }
}

guards::Observations SourceTracker::take() {
  tell_apart_from_loose();
  sources_by_object_.clear();
  paths_.clear();
  return std::exchange(observations_, {});
}

int32_t SourceTracker::location_index() {
  if (!location_key) return -1;
  auto [it, added] = location_indices_.try_emplace(location_key(), -1);
  if (added) {
    it->second = static_cast<int32_t>(observations_.locations.size());
    observations_.locations.push_back(location());
  }
  return it->second;
}

void SourceTracker::fact(FactKind kind, SourceId source, PyObject* expected, int64_t number) {
  if (any_loose_ && expected != nullptr) {
    bool loose = is_loose(expected);
    if (PyTuple_CheckExact(expected))
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(expected); ++i)
        loose = loose || is_loose(PyTuple_GET_ITEM(expected, i));
    if (loose) throw Declined("the identity of an object that each call makes anew");
  }
  if (any_loose_ && source != kNoSource && loose(source) &&
      (kind == FactKind::kTypeVersion || kind == FactKind::kSubclassIs))
    throw Declined("the identity of an object that each call makes anew");
  if (!facts_.insert({kind, source, expected, number}).second) return;
  guards::Fact f;
  f.kind = kind;
  f.source = source;
  f.expected = Py_XNewRef(expected);
  f.number = number;
  f.location = location_index();
  observations_.facts.push_back(f);
}

SourceId SourceTracker::add(SourceKind kind, SourceId parent, int64_t index, PyObject* key, PyObject* object,
                            bool pinned) {
  guards::Source s;
  s.kind = kind;
  s.parent = parent;
  s.index = static_cast<int32_t>(index);
  s.key = Py_XNewRef(key);
  s.object = Py_XNewRef(object);
  observations_.sources.push_back(s);
  pinned_.push_back(pinned);
  loose_.push_back(!pinned && parent != kNoSource && loose(parent));
  return static_cast<SourceId>(observations_.sources.size() - 1);
}

void SourceTracker::reach(SourceKind kind, SourceId parent, int64_t index, PyObject* key, PyObject* object) {
  if (key != nullptr && PyUnicode_CheckExact(key) && !PyUnicode_CHECK_INTERNED(key)) {
    Py_INCREF(key);  // equal names must be one path
    PyUnicode_InternInPlace(&key);
    Py_DECREF(key);  // interned strings stay alive through the table below
  }
  auto [it, added] = paths_.try_emplace(Path{kind, parent, index, key}, kNoSource);
  if (!added) {
    if (source(it->second).object != object && !is_atom(object))
      throw Declined("an object changed while it was traced: " + guards::str(observations_, it->second));
    if (!number_objects_.empty() && number_objects_.count(it->second) != 0)
      numbers.read(number_objects_.at(it->second));
    if (source(it->second).object == object || is_atom(object)) return;
  }
  const bool parent_pinned = parent != kNoSource && pinned(parent);
  const SourceId id = add(kind, parent, index, key, object, parent_pinned && kind != SourceKind::kArgument);
  it->second = id;
  if (is_atom(object)) {
    fact(FactKind::kEquals, id, object);
    return;
  }
  auto [known, first] = sources_by_object_.try_emplace(object, id);
  if (first) {
    describe(id, object, parent_pinned);
  } else if (is_pinned_kind(object) && !PyIter_Check(object) && pinned(known->second)) {
    fact(FactKind::kIdentity, id, object);
  } else {
    fact(FactKind::kSameObject, id, nullptr, known->second);
  }
}

namespace {

// As torch.compiler.config.dynamic_sources: names, or regular expressions that match their beginning. There an argument
// is called L['x'], and is here as well as by its path.
bool is_among(const std::string& patterns, const std::string& path) {
  if (patterns.empty()) return false;
  const size_t root = std::min(path.find_first_of(".["), path.size());
  const std::string torchs = "L['" + path.substr(0, root) + "']" + path.substr(root);
  Ref re = Ref::steal(PyImport_ImportModule("re"));
  const auto matches = [&](const char* how, const std::string& pattern, const std::string& name) {
    Ref found = re ? Ref::steal(PyObject_CallMethod(re.get(), how, "ss", pattern.c_str(), name.c_str())) : Ref();
    PyErr_Clear();
    return found && found.get() != Py_None;
  };
  for (size_t at = 0; at < patterns.size();) {
    const size_t end = std::min(patterns.find(',', at), patterns.size());
    std::string one = patterns.substr(at, end - at);
    std::erase(one, ' ');
    at = end + 1;
    if (!one.empty() &&
        (one == path || one == torchs || matches("fullmatch", one, path) || matches("match", one, torchs)))
      return true;
  }
  return false;
}

}  // namespace

// Of a number.
bool SourceTracker::varies(const std::string& path) const {
  const OwnCalls own(uninterpreted);
  if (varying_sizes != nullptr && is_among(varying_sizes->static_sources, path)) return false;
  return varying_numbers->contains(path) ||
         (varying_sizes != nullptr && is_among(varying_sizes->dynamic_sources, path));
}

// It is one of the arguments, or lies in containers among them.
bool SourceTracker::is_of_argument(SourceId id) const {
  while (id != kNoSource && source(id).kind != SourceKind::kArgument) {
    const SourceKind kind = source(id).kind;
    if (kind != SourceKind::kSequenceItem && kind != SourceKind::kDictItem && kind != SourceKind::kDictValueAt)
      return false;
    id = source(id).parent;
  }
  return id != kNoSource;
}

// 0 and 1 are taken for themselves.
static bool is_larger_int(PyObject* object) {
  int overflow = 0;
  const long long n = PyLong_CheckExact(object) ? PyLong_AsLongLongAndOverflow(object, &overflow) : 0;
  return overflow == 0 && n >= sym::kLeastPresumed;
}

PyObject* SourceTracker::read(SourceKind kind, SourceId parent, int64_t index, PyObject* key, PyObject* object) {
  const bool ints = varying_sizes != nullptr && varying_sizes->ints;
  const bool named = ints || (varying_sizes != nullptr && !varying_sizes->dynamic_sources.empty());
  if (varying_numbers == nullptr || (varying_numbers->empty() && !named) ||
      !(PyFloat_CheckExact(object) || PyLong_CheckExact(object))) {
    reach(kind, parent, index, key, object);
    return object;
  }
  auto [it, added] = paths_.try_emplace(Path{kind, parent, index, key}, kNoSource);
  if (!added) {
    auto known = number_objects_.find(it->second);
    return known == number_objects_.end() ? object : known->second;
  }
  const SourceId id = add(kind, parent, index, key, object, false);
  it->second = id;
  if (!(ints && is_larger_int(object) && is_of_argument(id)) && !varies(guards::str(observations_, id))) {
    fact(FactKind::kEquals, id, object);
    return object;
  }
  fact(FactKind::kTypeIs, id, reinterpret_cast<PyObject*>(Py_TYPE(object)));
  return number_objects_[id] = numbers.from_source(id, object);
}

// What code runs in is the dict of a module, mostly.
static bool is_of_a_module(PyObject* globals) {
  static PyObject* const key = PyUnicode_InternFromString("__name__");
  PyObject* name = PyDict_GetItemWithError(globals, key);
  PyObject* module = name != nullptr ? PyDict_GetItemWithError(PyImport_GetModuleDict(), name) : nullptr;
  PyErr_Clear();
  return module != nullptr && PyModule_Check(module) && PyModule_GetDict(module) == globals;
}

// Operators on other tensors call back into Python, or give results of the same class.
static bool is_plain_tensor_type(PyTypeObject* t) {
  if (t == known_types().parameter) return true;
  const auto part = [](const char* module, const char* name) {
    Ref m = Ref::borrow(PyDict_GetItemString(PyImport_GetModuleDict(), module));
    PyObject* value = m ? PyObject_GetAttrString(m.get(), name) : nullptr;
    PyErr_Clear();
    return value;
  };
  static PyObject* const tensor = part("torch", "Tensor");
  static PyObject* const disabled = part("torch._C", "_disabled_torch_function_impl");
  if (reinterpret_cast<PyObject*>(t) == tensor) return true;
  static PyObject* const name = PyUnicode_InternFromString("__torch_function__");
  return disabled != nullptr && _PyType_Lookup(t, name) == disabled;
}

void SourceTracker::storage_offset(PyObject* tensor) {
  if (is_old(tensor)) fact(FactKind::kStorageOffset, source_of(tensor));
}

void SourceTracker::wrapper(SourceId id, PyObject* tensor) {
  fact(FactKind::kTensor, id);
  session_->add_wrapper(tensor);
  if (is_nested_tensor(Py_TYPE(tensor))) jagged(id, tensor);
}

// torch's own class for jagged tensors, whose code is not looked into: what that reads of one. Its ragged size is known
// by the object that holds the offsets (or lengths): sizes of two are equal where these objects are the same.
void SourceTracker::jagged(SourceId id, PyObject* tensor) {
  const SourceId dict = instance_dict(tensor);
  if (dict == kNoSource) throw Declined("a nested tensor without attributes");
  PyObject* const attributes = *_PyObject_GetDictPtr(tensor);
  PyObject *key, *value, *ragged = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(attributes, &at, &key, &value);) {
    const auto is = [&](const char* name) { return PyUnicode_CompareWithASCIIString(key, name) == 0; };
    if (!PyUnicode_Check(key) ||
        !(is("_values") || is("_offsets") || is("_lengths") || is("_ragged_idx") || is("_metadata_cache")))
      continue;
    read(SourceKind::kDictItem, dict, -1, key, value);
    if (is("_metadata_cache")) contents_deep(value);
    if (is("_offsets") || (is("_lengths") && value != Py_None)) ragged = value;  // (in this order)
  }
  const SourceId source = ragged != nullptr ? source_of(ragged) : kNoSource;
  if (source == kNoSource) throw Declined("a nested tensor without offsets");
  for (const SourceId other : ragged_sources_)
    if (other != source) fact(FactKind::kDistinct, std::max(source, other), nullptr, std::min(source, other));
  if (std::ranges::find(ragged_sources_, source) == ragged_sources_.end()) ragged_sources_.push_back(source);
}

// What Python code sees operators on tensors of a class: part of the program.
void SourceTracker::tensor_class(PyTypeObject* t) {
  static PyObject* const function = PyUnicode_InternFromString("__torch_function__");
  static PyObject* const dispatch = PyUnicode_InternFromString("__torch_dispatch__");
  if (!is_wrapper_type(t) && !is_class_over_memory(t)) throw Declined(std::string("a tensor subclass: ") + t->tp_name);
  for (PyObject* name : {function, dispatch}) type_lookup(t, name);
}

namespace {

PyObject* attribute_of(PyObject* tensor, const char* name) {  // borrowed; null: none
  PyObject** dict = _PyObject_GetDictPtr(tensor);
  return dict != nullptr && *dict != nullptr ? PyDict_GetItemString(*dict, name) : nullptr;
}

// What torch._dynamo.mark_dynamic and its kin leave on a tensor: a set of dimensions.
std::set<size_t> marked(PyObject* tensor, const char* name) {
  std::set<size_t> out;
  PyObject* set = attribute_of(tensor, name);
  Py_ssize_t at = 0;
  PyObject* item;
  Py_hash_t hash;
  while (set != nullptr && PyAnySet_Check(set) && _PySet_NextEntry(set, &at, &item, &hash))
    if (PyLong_CheckExact(item)) out.insert(PyLong_AsSize_t(item));
  PyErr_Clear();
  return out;
}

std::optional<int64_t> int_of(const Ref& o) {
  if (!o || !PyLong_Check(o.get())) return std::nullopt;
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(o.get(), &overflow);
  return overflow != 0 ? std::nullopt : std::optional(value);
}

// The bounds that mark_dynamic(min=, max=) gave; of several marks, what all of them allow.
void add_bounds(PyObject* tensor, size_t dim, sym::Promise& promise) {
  PyObject* ranges = attribute_of(tensor, "_dynamo_dynamic_range");
  if (ranges == nullptr || !PyAnySet_Check(ranges)) return;
  Py_ssize_t at = 0;
  PyObject* range;
  Py_hash_t hash;
  while (_PySet_NextEntry(ranges, &at, &range, &hash)) {
    const auto part = [range](const char* name) { return int_of(Ref::steal(PyObject_GetAttrString(range, name))); };
    if (part("dim") != static_cast<int64_t>(dim)) continue;
    if (const auto least = part("min")) promise.least = std::max(promise.least, *least), promise.bounded = true;
    if (const auto most = part("max")) promise.most = std::min(promise.most, *most), promise.bounded = true;
  }
  PyErr_Clear();
}

// Whether mark_dynamic(specialize_on=) wants this size to have a version of its own.
bool wants_its_own(PyObject* tensor, size_t dim) {
  PyObject* all = attribute_of(tensor, "_specialize_on");
  if (all == nullptr || !PyDict_Check(all)) return false;
  Ref key = Ref::steal(PyLong_FromSize_t(dim));
  PyObject* list = key ? PyDict_GetItemWithError(all, key.get()) : nullptr;
  Ref size = list != nullptr && PyList_CheckExact(list) && PyList_GET_SIZE(list) > 0
                 ? Ref::steal(PyLong_FromLongLong(guards::size_of(tensor, static_cast<int32_t>(dim))))
                 : Ref();
  bool wants = false;
  for (Py_ssize_t i = 0; size && !wants && i < PyList_GET_SIZE(list); ++i) {
    Ref criterion = Ref::borrow(PyList_GET_ITEM(list, i));
    Ref answer = Ref::steal(PyObject_CallOneArg(criterion.get(), size.get()));
    wants = answer && PyObject_IsTrue(answer.get()) == 1;
  }
  PyErr_Clear();
  return wants;
}

bool may_ignore_marks() {  // an option of torch's
  PyObject* config = of_module("torch._dynamo", "config");
  Ref may = config != nullptr ? Ref::steal(PyObject_GetAttrString(config, "allow_ignore_mark_dynamic")) : Ref();
  PyErr_Clear();
  return may.get() == Py_True;
}

// In torch's order: what is marked dynamic is, also where it is marked static.
std::vector<trace::SymbolicSize> sizes_that_change(const VaryingSizes& varying, const std::string& path,
                                                   PyObject* tensor, std::vector<BrokenMark>& broken) {
  const std::set<size_t> dynamic = marked(tensor, "_dynamo_dynamic_indices"),
                         strict = marked(tensor, "_dynamo_strict_unbacked_indices"),
                         unbacked = marked(tensor, "_dynamo_unbacked_indices"),
                         weak = marked(tensor, "_dynamo_weak_dynamic_indices"),
                         // (What torch marks itself, since 2.15: the ragged dimension of a jagged tensor.)
      propagated = marked(tensor, "_dynamo_propagated_dynamic_indices"),
                         fixed = marked(tensor, "_dynamo_static_indices");
  std::set<size_t> open;
  if (!varying.marked_only) {
    if (const auto seen = varying.dims.find(path); seen != varying.dims.end()) open = seen->second;
    if (varying.all || is_among(varying.dynamic_sources, path))
      for (size_t part = 0; part < 2 * kMaxSymbolicRank; ++part) open.insert(part);
    if (is_among(varying.static_sources, path)) open.clear();
  }
  for (size_t d : fixed) open.erase(d);
  for (const std::set<size_t>* marks : {&dynamic, &strict, &unbacked, &weak, &propagated})
    open.insert(marks->begin(), marks->end());
  std::vector<trace::SymbolicSize> out;
  const size_t rank = static_cast<size_t>(guards::rank_of(tensor));
  const bool ignored = may_ignore_marks();
  for (size_t d : open) {
    if (dimension_of_part(d) >= rank) continue;
    if (is_stride_part(d)) {
      out.push_back({d, {}});
      continue;
    }
    sym::Promise promise;
    if (unbacked.contains(d)) promise.kind = sym::Promise::Kind::kUnbacked;
    if (!ignored && (dynamic.contains(d) || strict.contains(d))) {
      promise.kind = sym::Promise::Kind::kDynamic;
      add_bounds(tensor, d, promise);
      const int64_t now = guards::size_of(tensor, static_cast<int32_t>(d));
      if (promise.least > promise.most || now < promise.least || now > promise.most)
        broken.push_back({path, d,
                          std::to_string(now) + " is not in its range from " + std::to_string(promise.least) + " to " +
                              std::to_string(promise.most),
                          ""});
    }
    const bool few = guards::size_of(tensor, static_cast<int32_t>(d)) < sym::kLeastPresumed && varying.few;
    if (!wants_its_own(tensor, d)) out.push_back({d, promise, few && !promise.bounded ? trace::kInsteadOfFew : 0});
  }
  return out;
}

bool is_on_meta(PyObject* tensor) { return tensor_attribute(tensor, "is_meta").get() == Py_True; }

}  // namespace

void SourceTracker::add_input(SourceId id, PyObject* tensor, bool parent_pinned, bool computed) {
  PyTypeObject* const type = Py_TYPE(tensor);
  const bool wraps = session_ != nullptr && is_wrapper_type(type);
  if (session_ != nullptr && (wraps || !is_plain_tensor_type(type))) tensor_class(type);
  if (wraps) return wrapper(id, tensor);
  fact(FactKind::kTensor, id);
  if (session_ == nullptr) return;
  if (!computed && is_on_meta(tensor)) return;  // there is nothing in it to compute with
  const KnownTypes& k = known_types();
  const bool parameter = k.parameter != nullptr && PyObject_TypeCheck(tensor, k.parameter);
  graph::InputKind kind = graph::InputKind::kUser;
  if (parent_pinned && parameter) {
    kind = graph::InputKind::kParameter;
  } else if (parent_pinned && is_buffer(id)) {
    kind = graph::InputKind::kBuffer;
  }
  // Views of one storage stay views of one storage in the graph.
  if (const void* storage = guards::memory_of(tensor).storage;
      storage != nullptr && !session_->is_trace_tensor(tensor)) {
    auto [it, first] = memory_.try_emplace(storage, id);
    if (!first && it->second != id) fact(FactKind::kTensorAliases, id, nullptr, it->second);
  }
  const std::string path = guards::str(observations_, id);
  const bool varies = varying_sizes != nullptr && kind == graph::InputKind::kUser && !session_->is_input(tensor) &&
                      (varying_sizes->parameters || !parameter);
  std::vector<trace::SymbolicSize> symbolic;
  if (varies) {
    const OwnCalls own(uninterpreted);
    symbolic = sizes_that_change(*varying_sizes, path, tensor, broken_marks);
    larger_than_call = larger_than_call || std::ranges::any_of(symbolic, [](auto& s) { return s.instead != 0; });
  }
  const auto input = static_cast<size_t>(session_->add_input(tensor, kind, path, symbolic));
  if (input >= tensor_sources_.size()) tensor_sources_.resize(input + 1, kNoSource);
  if (tensor_sources_[input] == kNoSource) tensor_sources_[input] = id;
  if (note_input) note_input(tensor, input, path);
}

void SourceTracker::leave_open(SourceId tensor, int64_t parts) {
  for (guards::Fact& f : observations_.facts)
    if (f.kind == FactKind::kTensor && f.source == tensor) f.number = parts;
}

bool SourceTracker::is_buffer(SourceId id) const {
  if (id == kNoSource || source(id).kind != SourceKind::kDictItem) return false;
  const guards::Source& dict = source(source(id).parent);
  return dict.key != nullptr && PyUnicode_Check(dict.key) &&
         PyUnicode_CompareWithASCIIString(dict.key, "_buffers") == 0;
}

bool SourceTracker::add_tensor(PyObject* tensor) {
  SourceId id = source_of(tensor);
  if (id == kNoSource) return false;
  add_input(id, tensor, pinned(id), true);
  return true;
}

void SourceTracker::add_root(PyObject* function) {
  SourceId id = add(SourceKind::kCallable, kNoSource, -1, nullptr, function, true);
  sources_by_object_.emplace(function, id);
}

bool SourceTracker::is_loose(PyObject* o) const {
  return any_loose_ && (PyType_Check(o) || PyFunction_Check(o) || is_module(o)) && is_old(o) && loose(source_of(o));
}

bool SourceTracker::is_per_call(SourceId id, bool its_type) const {
  if (loose(id)) return true;
  if (per_call_paths == nullptr || per_call_paths->empty()) return false;
  const std::string path = guards::str(observations_, id);
  return per_call_paths->count(its_type ? "type(" + path + ")" : path) != 0;
}

// The class of an object, of which nothing else is known.
void SourceTracker::type_of(SourceId id, PyObject* object) {
  PyTypeObject* t = Py_TYPE(object);
  auto* type = reinterpret_cast<PyObject*>(t);
  const bool known = is_loose(type);
  if (!known && (is_old(type) || !guards::is_local_class(t) || !is_python_class(t) || !is_per_call(id, true))) {
    fact(FactKind::kTypeIs, id, type);
    return;
  }
  reach(SourceKind::kType, id, -1, nullptr, type);
  const SourceId of = paths_.at(Path{SourceKind::kType, id, -1, nullptr});
  if (!known && !loose(of)) look_alike(of, t);
}

// A class that each call makes again, by the same code.
void SourceTracker::look_alike(SourceId id, PyTypeObject* type) {
  auto* self = reinterpret_cast<PyObject*>(type);
  loose_[static_cast<size_t>(id)] = any_loose_ = true;
  pinned_[static_cast<size_t>(id)] = false;
  fact(FactKind::kTypeIs, id, reinterpret_cast<PyObject*>(Py_TYPE(self)));
  fact(FactKind::kLooksLike, id);
  for (const auto& [other, unused] : loose_types_)
    fact(FactKind::kDistinct, std::max(id, other), nullptr, std::min(id, other));
  loose_types_.emplace_back(id, self);
  static PyObject* const mro = PyUnicode_InternFromString("__mro__");
  for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    PyObject* base = PyTuple_GET_ITEM(type->tp_mro, i);
    if (guards::is_local_class(reinterpret_cast<PyTypeObject*>(base))) {
      reach(SourceKind::kSlot, id, -1, mro, type->tp_mro);
      reach(SourceKind::kSequenceItem, source_of(type->tp_mro), i, nullptr, base);
    } else {
      specials(reinterpret_cast<PyTypeObject*>(base));
    }
  }
  // Its functions by their paths: C code calls them without a look-up.
  const Ref items = Ref::steal(PyDict_Items(type_dict(type)));
  for (Py_ssize_t i = 0; items && i < PyList_GET_SIZE(items.get()); ++i) {
    PyObject *name = PyTuple_GET_ITEM(PyList_GET_ITEM(items.get(), i), 0),
             *value = PyTuple_GET_ITEM(PyList_GET_ITEM(items.get(), i), 1);
    PyTypeObject* t = Py_TYPE(value);
    if (PyUnicode_CheckExact(name) &&
        (PyFunction_Check(value) || t == &PyStaticMethod_Type || t == &PyClassMethod_Type || t == &PyProperty_Type ||
         (PyType_Check(value) && guards::is_local_class(reinterpret_cast<PyTypeObject*>(value)))))
      reach(SourceKind::kTypeLookup, id, 0, name, value);
  }
}

bool SourceTracker::describe_loosely(SourceId id, PyObject* object) {
  PyTypeObject* t = Py_TYPE(object);
  if (PyType_Check(object)) {
    auto* type = reinterpret_cast<PyTypeObject*>(object);
    if (!guards::is_local_class(type) || !is_python_class(type) || !is_per_call(id)) {
      loose_[static_cast<size_t>(id)] = false;
      return false;
    }
    look_alike(id, type);
    return true;
  }
  if (is_module(object)) {
    if (!is_per_call(id)) return false;
    loose_[static_cast<size_t>(id)] = any_loose_ = true;
    type_of(id, object);
    return true;
  }
  if (!loose(id)) return false;
  if (t == &PyStaticMethod_Type || t == &PyClassMethod_Type) {
    static PyObject* const name = PyUnicode_InternFromString("__func__");
    fact(FactKind::kTypeIs, id, reinterpret_cast<PyObject*>(t));
    const Ref function = Ref::steal(PyObject_GetAttr(object, name));
    if (function) reach(SourceKind::kSlot, id, -1, name, function.get());
    return true;
  }
  if (t == &PyProperty_Type) {
    fact(FactKind::kTypeIs, id, reinterpret_cast<PyObject*>(t));
    auto* p = reinterpret_cast<PropertyLayout*>(object);
    static PyObject* const names[] = {PyUnicode_InternFromString("fget"), PyUnicode_InternFromString("fset"),
                                      PyUnicode_InternFromString("fdel")};
    PyObject* const functions[] = {p->get, p->set, p->del};
    for (size_t i = 0; i < 3; ++i)
      if (functions[i] != nullptr) reach(SourceKind::kSlot, id, -1, names[i], functions[i]);
    return true;
  }
  // The look of the class tells which field it gets.
  if (std::strcmp(t->tp_name, "_collections._tuplegetter") == 0) {
    fact(FactKind::kTypeIs, id, reinterpret_cast<PyObject*>(t));
    return true;
  }
  // The look of the class tells where such a member lies.
  if ((t == &PyMemberDescr_Type || t == &PyGetSetDescr_Type) &&
      guards::is_local_class(reinterpret_cast<PyDescrObject*>(object)->d_type)) {
    fact(FactKind::kTypeIs, id, reinterpret_cast<PyObject*>(t));
    return true;
  }
  return false;
}

void SourceTracker::describe(SourceId id, PyObject* object, bool parent_pinned) {
  if (is_tensor(object)) return add_input(id, object, parent_pinned);
  if ((any_loose_ || per_call_paths != nullptr) && describe_loosely(id, object)) return;
  if (PyFunction_Check(object) && !parent_pinned) {
    // Functions that a caller makes again on each call are one function when they run the same code.
    fact(FactKind::kTypeIs, id, reinterpret_cast<PyObject*>(Py_TYPE(object)));
    fact(FactKind::kCodeIs, id, PyFunction_GET_CODE(object), loose(id));
    PyObject* globals = PyFunction_GET_GLOBALS(object);
    const bool own = loose(id) && !is_of_a_module(globals);
    SourceId g = add(SourceKind::kGlobals, id, -1, nullptr, globals, !own);
    fact(own ? FactKind::kTypeIs : FactKind::kIdentity, g,
         own ? reinterpret_cast<PyObject*>(Py_TYPE(globals)) : globals);
    sources_by_object_.try_emplace(globals, g);
    return;
  }
  if (PyCFunction_Check(object) && !parent_pinned) {
    // A builtin method of an object, bound again on each call: known by its name and what it is bound to.
    PyObject* self = reinterpret_cast<PyCFunctionObject*>(object)->m_self;
    if (self != nullptr && !PyModule_Check(self) && !PyType_Check(self) && !PyCapsule_CheckExact(self) &&
        _PyType_Lookup(Py_TYPE(self), Ref::steal(PyUnicode_InternFromString(
                                                     reinterpret_cast<PyCFunctionObject*>(object)->m_ml->ml_name))
                                          .get()) != nullptr) {
      fact(FactKind::kTypeIs, id, reinterpret_cast<PyObject*>(Py_TYPE(object)));
      static PyObject* const self_name = PyUnicode_InternFromString("__self__");
      static PyObject* const name_name = PyUnicode_InternFromString("__name__");
      Ref name = Ref::steal(PyObject_GetAttr(object, name_name));
      reach(SourceKind::kSlot, id, -1, name_name, name.get());
      reach(SourceKind::kSlot, id, -1, self_name, self);
      return;
    }
  }
  if (source(id).kind == SourceKind::kArgument && is_foreign(object)) {
    opaque_.insert(object);
    fact(FactKind::kTypeIs, id, reinterpret_cast<PyObject*>(Py_TYPE(object)));
    return;
  }
  if (is_value_of_a_subclass(object)) {
    fact(FactKind::kIdentity, id, object);
    return;
  }
  // Arrays that are held by what a caller made are other ones each time, as arguments are.
  if (is_array(object) && !parent_pinned) {
    opaque_.insert(object);
    fact(FactKind::kTypeIs, id, reinterpret_cast<PyObject*>(Py_TYPE(object)));
    return;
  }
  if (is_array_of_any_class(object) || (!is_atom(object) && is_numpy_scalar(object))) opaque_.insert(object);
  // Iterators and coroutines that a caller hands over, or that a frame holds, are other ones each time; the trace does
  // not advance them (Interpreter::next).
  const bool iterator = source(id).kind == SourceKind::kArgument && !is_python_class(Py_TYPE(object)) &&
                        (PyIter_Check(object) || PyCoro_CheckExact(object) || PyAsyncGen_CheckExact(object) ||
                         is_awaited(Py_TYPE(object)));
  if (is_pinned_kind(object) && !iterator) {
    fact(FactKind::kIdentity, id, object);
    pinned_[static_cast<size_t>(id)] = true;
    return;
  }
  type_of(id, object);
}

// Some that are there for good have names that lead nowhere.
static bool is_of_torch(PyObject* type) {
  static PyObject *const key = PyUnicode_InternFromString("__module__"), *const torch =
                                                                             PyUnicode_InternFromString("torch.");
  PyObject* name = PyDict_GetItemWithError(type_dict(reinterpret_cast<PyTypeObject*>(type)), key);
  return name != nullptr && PyUnicode_Check(name) && PyUnicode_Tailmatch(name, torch, 0, PY_SSIZE_T_MAX, -1) == 1;
}

SourceId SourceTracker::constant(PyObject* object) {
  auto [it, added] = sources_by_object_.try_emplace(object, kNoSource);
  if (added && any_loose_ && fresh_types_.count(object) == 0 && fresh_functions_.count(object) == 0 &&
      (is_module(object) ||
       (PyType_Check(object) && guards::is_local_class(reinterpret_cast<PyTypeObject*>(object)) &&
        !is_of_torch(object)) ||
       (PyFunction_Check(object) && guards::is_local_code(PyFunction_GET_CODE(object))))) {
    sources_by_object_.erase(it);
    throw Declined("an object of unknown origin beside objects that each call makes anew: " +
                   guards::short_repr(object));
  }
  if (added) it->second = add(SourceKind::kConstantObject, kNoSource, -1, nullptr, object, true);
  return it->second;
}

SourceId SourceTracker::pass_through(int64_t index, PyObject* name, PyObject* object) {
  auto [it, added] = paths_.try_emplace(Path{SourceKind::kArgument, kNoSource, index, name}, kNoSource);
  if (added) it->second = add(SourceKind::kArgument, kNoSource, index, name, object, false);
  return it->second;
}

SourceId SourceTracker::instance_dict(PyObject* o) {
  PyObject* dict = nullptr;
  if (PyModule_Check(o)) {
    dict = PyModule_GetDict(o);
  } else if (PyType_Check(o)) {
    dict = type_dict(reinterpret_cast<PyTypeObject*>(o));
  } else {
    PyObject** slot = _PyObject_GetDictPtr(o);
    if (slot == nullptr) return kNoSource;
    if (*slot == nullptr) {  // materialise: an empty dict is not observable otherwise
      Ref made = Ref::steal(PyObject_GenericGetDict(o, nullptr));
      if (!made) throw Declined("an instance dict could not be made");
      slot = _PyObject_GetDictPtr(o);
    }
    dict = *slot;
  }
  const SourceId known = source_of(dict), parent = source_of(o);
  if (known != kNoSource) {
    // The dict of a module or a class is its own for good; instances may share one.
    const guards::Source& by = source(known);
    if ((by.kind == SourceKind::kInstanceDict && by.parent == parent) || PyModule_Check(o) || PyType_Check(o))
      return known;
  }
  auto [path, added] = paths_.try_emplace(Path{SourceKind::kInstanceDict, parent, -1, nullptr}, known);
  if (!added) return known != kNoSource ? known : path->second;
  const SourceId id = add(SourceKind::kInstanceDict, parent, -1, nullptr, dict, pinned(parent));
  path->second = id;
  if (known != kNoSource && known != id) {
    fact(FactKind::kSameObject, id, nullptr, known);
    return known;
  }
  sources_by_object_.emplace(dict, id);
  return id;
}

PyObject* SourceTracker::type_lookup(PyTypeObject* type, PyObject* name, Py_ssize_t start) {
  if (start == 0 && !(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) return _PyType_Lookup(type, name);  // immutable
  if (!written_.empty()) {  // what the trace itself stored into a class says nothing about later calls
    PyObject* mro = type->tp_mro;
    for (Py_ssize_t i = start; i < PyTuple_GET_SIZE(mro); ++i) {
      PyObject* dict = type_dict(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i)));
      if (is_written(dict, name)) {
        PyObject* value = PyDict_GetItemWithError(dict, name);
        if (value == nullptr) throw Declined("an attribute of a class is deleted");
        for (Py_ssize_t before = start; before < i; ++before) {  // nothing in front of it hides it
          PyObject* derived = PyTuple_GET_ITEM(mro, before);
          if (is_fresh_type(derived) || !(reinterpret_cast<PyTypeObject*>(derived)->tp_flags & Py_TPFLAGS_HEAPTYPE))
            continue;
          constant(derived);
          fact(FactKind::kDictLacks, instance_dict(derived), name);
        }
        return value;
      }
      if (PyDict_GetItemWithError(dict, name) != nullptr) break;
    }
  }
  auto [it, added] = lookups_.try_emplace(LookupKey{type, name, start});
  if (!added) return it->second.found;
  it->second.name = Ref::borrow(name);
  PyObject* found = nullptr;
  if (start == 0) {
    found = _PyType_Lookup(type, name);
  } else {
    PyObject* mro = type->tp_mro;
    for (Py_ssize_t i = start; i < PyTuple_GET_SIZE(mro) && found == nullptr; ++i)
      found = PyDict_GetItemWithError(type_dict(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i))), name);
  }
  if (is_fresh_type(reinterpret_cast<PyObject*>(type))) {
    lookups_.erase(LookupKey{type, name, start});
    return found;
  }
  it->second.found = found;
  SourceId t = constant(reinterpret_cast<PyObject*>(type));
  if (found == nullptr) {
    fact(FactKind::kTypeLacks, t, name, start);
  } else {
    found = read(SourceKind::kTypeLookup, t, start, name, found);
    lookups_[LookupKey{type, name, start}].found = found;
  }
  return found;
}

PyObject* SourceTracker::dict_get(PyObject* dict, PyObject* key) {
  not_opaque(key);
  this->key(key);
  PyObject* value = PyDict_GetItemWithError(dict, key);
  if (value == nullptr && PyErr_Occurred()) return nullptr;
  SourceId id = source_of(dict);
  if (id == kNoSource || detached(dict) || is_written(dict, key)) return value;
  // True only while a capture runs; says nothing about later calls.
  static PyObject* const compiling = PyUnicode_InternFromString("_is_compiling_flag");
  if (key == compiling) return value;
  if (!is_atom(key) && !is_pinned_kind(key) && !is_operator(key) && !is_old(key) && !PyTuple_CheckExact(key)) {
    // A fresh key found by its own __eq__ cannot be named; a fresh key that is absent says nothing that can change.
    if (value != nullptr) throw Declined("an old dict was read with a key made during the call");
  }
  if (value == nullptr) {
    fact(FactKind::kDictLacks, id, key);
  } else {
    if (PyUnicode_CheckExact(key) && !PyUnicode_CHECK_INTERNED(key))
      reach(SourceKind::kDictItem, id, -1, key, value);
    else
      value = read(SourceKind::kDictItem, id, -1, key, value);
  }
  return value;
}

void SourceTracker::same_or_distinct(PyObject* a, PyObject* b) {
  if (a == b) return;  // one object by two paths: kSameObject was recorded when they met
  SourceId sa = source_of(a), sb = source_of(b);
  if (sa == kNoSource || sb == kNoSource) return;
  if (pinned(sa) && pinned(sb) && is_pinned_kind(a) && is_pinned_kind(b)) return;
  if (Py_TYPE(a) != Py_TYPE(b)) return;
  fact(FactKind::kDistinct, std::max(sa, sb), nullptr, std::min(sa, sb));
}

void SourceTracker::identity(PyObject* o) {
  const SourceId id = source_of(o);
  if (is_loose(o)) throw Declined("the identity of an object that each call makes anew");
  if (id != kNoSource && !is_atom(o)) fact(FactKind::kAddressIs, id);
}

void SourceTracker::hash(PyObject* o) {
  if (is_atom(o)) return;
  if (any_loose_ && PyWeakref_Check(o) && is_loose(PyWeakref_GET_OBJECT(o)))
    throw Declined("the identity of an object that each call makes anew");
  if (PyTuple_Check(o)) {
    contents(o);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) hash(PyTuple_GET_ITEM(o, i));
  } else if (PyMethod_Check(o)) {
    contents(o);
    hash(PyMethod_GET_FUNCTION(o));
    identity(PyMethod_GET_SELF(o));
  } else if (PyFrozenSet_Check(o)) {
    contents_deep(o);
  } else {
    if (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) specials(Py_TYPE(o));
    if (Py_TYPE(o)->tp_hash == PyBaseObject_Type.tp_hash) return identity(o);
    // A hash in C reads a value.
    if (PyCFunction_Check(o) && is_old(o) && !pinned(source_of(o)))
      throw Declined("the hash of a method of C from before the call");  // that is, where its object lies
    not_opaque(o);
    check_secrets(o);
    if (PyRange_Check(o) || PySlice_Check(o)) contents(o);
  }
}

void SourceTracker::key(PyObject* o) {
  hash(o);
  if (PyTuple_Check(o)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) key(PyTuple_GET_ITEM(o, i));
  } else if (!is_atom(o) && !is_pinned_kind(o) && (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE)) {
    identity(o);  // whether another one is equal shows only when its own __eq__ is asked, which was not needed here
  }
}

void SourceTracker::specials(PyTypeObject* t) {
  if (!(t->tp_flags & Py_TPFLAGS_HEAPTYPE) || !special_types_.insert(t).second) return;
  auto* type = reinterpret_cast<PyObject*>(t);
  if (!is_fresh_type(type) && !is_loose(type)) fact(FactKind::kSpecials, constant(type));
}

void SourceTracker::subclass(PyObject* type, PyObject* of, bool is) {
  if (!is_fresh_type(type) && !is_fresh_type(of)) fact(FactKind::kSubclassIs, constant(of), type, is);
}

void SourceTracker::call_gives(PyObject* f, PyObject* const* args, size_t count, PyObject* kwnames, PyObject* result) {
  const size_t nargs = count - (kwnames == nullptr ? 0 : static_cast<size_t>(PyTuple_GET_SIZE(kwnames)));
  Ref callee = Ref::borrow(f);
  if (nargs < count) {
    Ref named = Ref::steal(PyDict_New()), only = Ref::steal(PyTuple_Pack(1, f));
    for (size_t i = nargs; named && i < count; ++i)
      PyDict_SetItem(named.get(), PyTuple_GET_ITEM(kwnames, static_cast<Py_ssize_t>(i - nargs)), args[i]);
    callee = Ref::steal(PyObject_Call(reinterpret_cast<PyObject*>(known_types().partial), only.get(), named.get()));
  }
  Ref call = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(nargs) + 2));
  if (!callee || !call) throw Declined("out of memory");
  PyTuple_SET_ITEM(call.get(), 0, callee.release());
  for (size_t i = 0; i < nargs; ++i) PyTuple_SET_ITEM(call.get(), static_cast<Py_ssize_t>(i) + 1, Py_NewRef(args[i]));
  PyTuple_SET_ITEM(call.get(), static_cast<Py_ssize_t>(nargs) + 1, Py_NewRef(result));
  for (const guards::Fact& other : observations_.facts)
    if (other.kind == FactKind::kCallGives && PyObject_RichCompareBool(other.expected, call.get(), Py_EQ) == 1) return;
  PyErr_Clear();
  fact(FactKind::kCallGives, kNoSource, call.get());
}

bool SourceTracker::knows_call(PyObject* f, PyObject* const* args, size_t count) const {
  for (const guards::Fact& fact : observations_.facts) {
    if (fact.kind != FactKind::kCallGives || PyTuple_GET_ITEM(fact.expected, 0) != f ||
        PyTuple_GET_SIZE(fact.expected) != static_cast<Py_ssize_t>(count) + 2)
      continue;
    bool same = true;
    for (size_t i = 0; i < count; ++i)
      same = same && guards::same_constant(PyTuple_GET_ITEM(fact.expected, static_cast<Py_ssize_t>(i) + 1), args[i]);
    if (same) return true;
  }
  return false;
}

void SourceTracker::whole(PyObject* o) {
  if (is_atom(o) || is_tensor(o) || PyModule_Check(o)) return;
  if (is_old(o) && (PyFrame_Check(o) || PyTraceBack_Check(o)))
    throw Declined("a frame of before the call is looked at");
  if (PyMethod_Check(o)) {
    contents(o);
    whole(PyMethod_GET_FUNCTION(o));
    return;
  }
  if (PyType_Check(o)) {
    if (!is_fresh_type(o) && (reinterpret_cast<PyTypeObject*>(o)->tp_flags & Py_TPFLAGS_HEAPTYPE))
      fact(FactKind::kTypeVersion, constant(o));
    return;
  }
  if (PyFunction_Check(o)) {
    if (fresh_functions_.count(o)) return;
    function(o);
    const SourceId id = constant(o);
    for (const char* name : {"__defaults__", "__kwdefaults__", "__name__", "__qualname__", "__doc__"}) {
      Ref key = Ref::steal(PyUnicode_InternFromString(name)), value = Ref::steal(PyObject_GetAttr(o, key.get()));
      if (value && is_atom(value.get())) reach(SourceKind::kSlot, id, -1, key.get(), value.get());
    }
    static PyObject* const annotations = PyUnicode_InternFromString("__annotations__");
    Ref notes = Ref::steal(PyObject_GetAttr(o, annotations));
    if (notes) {
      reach(SourceKind::kSlot, id, -1, annotations, notes.get());
      contents_deep(notes.get());
    }
    PyErr_Clear();
    if (instance_dict(o) != kNoSource) contents(*_PyObject_GetDictPtr(o));
    static PyObject* const wrapped = PyUnicode_InternFromString("__wrapped__");
    if (PyObject* inner = PyDict_GetItemWithError(*_PyObject_GetDictPtr(o), wrapped)) whole(inner);
    return;
  }
  contents_deep(o);
  if (is_old(o) && std::strncmp(Py_TYPE(o)->tp_name, "re.", 3) == 0)  // tells nothing of itself but by its methods
    fact(FactKind::kIdentity, source_of(o), o);
  if (!is_old(o) || !(Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE)) return;
  whole(reinterpret_cast<PyObject*>(Py_TYPE(o)));
  if (has_instance_dict(Py_TYPE(o)) && instance_dict(o) != kNoSource) contents(*_PyObject_GetDictPtr(o));
}

void SourceTracker::only_way_to(PyObject* o) {
  if (const SourceId id = source_of(o); id != kNoSource) fact(FactKind::kWritten, id);
}

void SourceTracker::function(PyObject* f) {
  if (!seen_functions_.insert(f).second || fresh_functions_.count(f)) return;
  SourceId id = constant(f);
  auto* function = reinterpret_cast<PyFunctionObject*>(f);
  fact(FactKind::kCodeIs, id, function->func_code, loose(id));
  static PyObject* const defaults = PyUnicode_InternFromString("__defaults__");
  static PyObject* const kwdefaults = PyUnicode_InternFromString("__kwdefaults__");
  if (function->func_defaults != nullptr) {
    reach(SourceKind::kSlot, id, -1, defaults, function->func_defaults);
    contents(function->func_defaults);
  }
  if (function->func_kwdefaults != nullptr) {
    reach(SourceKind::kSlot, id, -1, kwdefaults, function->func_kwdefaults);
    contents(function->func_kwdefaults);
  }
  if (PyObject* closure = function->func_closure) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(closure); ++i)
      reach(SourceKind::kClosureCell, id, i, nullptr, PyTuple_GET_ITEM(closure, i));
  }
  if (!is_old(function->func_globals)) constant(function->func_globals);
  if (!is_old(function->func_builtins)) constant(function->func_builtins);
}

void SourceTracker::forget_writes(PyObject* dict) {
  auto it = written_.find(dict);
  if (it == written_.end()) return;
  for (PyObject* key : it->second) Py_DECREF(key);
  written_.erase(it);
}

void SourceTracker::written(PyObject* dict, PyObject* key) {
  if (is_written(dict, key)) return;
  written_[dict].push_back(Py_NewRef(key));
}

bool SourceTracker::is_written(PyObject* dict, PyObject* key) const {
  if (written_.empty()) return false;
  auto it = written_.find(dict);
  if (it == written_.end()) return false;
  for (PyObject* k : it->second) {
    if (k == key) return true;
    if (PyUnicode_CheckExact(k) && PyUnicode_CheckExact(key) ? PyUnicode_Compare(k, key) == 0
                                                             : PyObject_RichCompareBool(k, key, Py_EQ) == 1)
      return true;
  }
  return false;
}

}  // namespace flashover::frame
