// Turns what the interpreter reads into sources and facts, and knows which objects need no fact at all.
#include "frame/observe.h"

#include <cstring>

#include "base/boundary.h"
#include "base/check.h"
#include "frame/resume.h"
#include "guards/objects.h"
#include "guards/tensors.h"

namespace flashover::frame {
namespace {

constexpr int kMaxDepth = 6;
constexpr Py_ssize_t kMaxElements = 20000;

PyObject* loaded(const char* module, const char* name) {  // borrowed from its module; null if not imported
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* m = PyDict_GetItemString(modules, module);
  if (m == nullptr) return nullptr;
  PyObject* dict = PyModule_Check(m) ? PyModule_GetDict(m) : nullptr;
  return dict == nullptr ? nullptr : PyDict_GetItemString(dict, name);
}
PyTypeObject* loaded_type(const char* module, const char* name) {
  PyObject* t = loaded(module, name);
  return t != nullptr && PyType_Check(t) ? reinterpret_cast<PyTypeObject*>(t) : nullptr;
}

bool is_foreign(PyObject* o) {
  const char* name = Py_TYPE(o)->tp_name;
  for (const char* module : {"numpy.", "_io.", "datetime."})
    if (std::strncmp(name, module, std::strlen(module)) == 0) return !PyType_Check(o);
  return false;
}
bool is_numpy_scalar(PyObject* o) {
  for (PyTypeObject* t = Py_TYPE(o); t != nullptr; t = t->tp_base)
    if (std::strcmp(t->tp_name, "numpy.generic") == 0) return true;
  return false;
}
// Of a class derived from int, str and the like: never changes, but what it is stands in no attribute.
bool is_value_of_a_subclass(PyObject* o) {
  if (!(Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE)) return false;
  return PyLong_Check(o) || PyUnicode_Check(o) || PyBytes_Check(o) || PyFloat_Check(o) || PyComplex_Check(o);
}
// Values that change in place where no guard looks.
bool keeps_secrets(PyTypeObject* t) {
  for (; t != nullptr && t != &PyBaseObject_Type; t = t->tp_base)
    for (const char* name :
         {"bytearray", "memoryview", "array.array", "mmap.mmap", "_queue.SimpleQueue", "_random.Random", "weakproxy",
          "weakcallableproxy", "_thread.lock", "_thread.RLock", "_multiprocessing.SemLock", "_socket.socket",
          "itertools.count", "itertools.repeat", "decimal.Context", "_ctypes._CData", "frame"})
      if (std::strcmp(t->tp_name, name) == 0) return true;
  return false;
}
PyTypeObject* namespace_type() {
  static PyTypeObject* const type = loaded_type("types", "SimpleNamespace");
  return type;
}
bool is_dict_view(PyObject* o) { return PyDictKeys_Check(o) || PyDictValues_Check(o) || PyDictItems_Check(o); }

}  // namespace

const KnownTypes& known_types() {
  static KnownTypes types;
  if (types.module == nullptr || types.tensor == nullptr) {
    types.tensor = loaded_type("torch._C", "TensorBase");
    if (types.tensor == nullptr) types.tensor = loaded_type("torch._C", "_TensorBase");
    types.parameter = loaded_type("torch.nn.parameter", "Parameter");
    types.module = loaded_type("torch.nn.modules.module", "Module");
    types.size = loaded_type("torch", "Size");
    types.dtype = loaded_type("torch", "dtype");
    types.device = loaded_type("torch", "device");
    types.layout = loaded_type("torch", "layout");
    types.memory_format = loaded_type("torch", "memory_format");
    types.qscheme = loaded_type("torch", "qscheme");
    types.script_function = loaded_type("torch._C", "ScriptFunction");
    types.enum_type = loaded_type("enum", "Enum");
    types.lru_cache = loaded_type("_functools", "_lru_cache_wrapper");
    if (types.lru_cache == nullptr) {
      Py_XDECREF(PyImport_ImportModule("functools"));
      PyErr_Clear();
      types.lru_cache = loaded_type("functools", "_lru_cache_wrapper");
    }
    types.partial = loaded_type("functools", "partial");
    types.deque = loaded_type("collections", "deque");
    types.defaultdict = loaded_type("collections", "defaultdict");
    types.context_var = loaded_type("_contextvars", "ContextVar");
    if (types.module != nullptr) types.module_getattr = PyDict_GetItemString(type_dict(types.module), "__getattr__");
  }
  return types;
}

bool is_tensor(PyObject* o) {
  PyTypeObject* tensor = known_types().tensor;
  return tensor != nullptr && PyObject_TypeCheck(o, tensor);
}

bool is_atom(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  if (o == Py_None || t == &PyLong_Type || t == &PyUnicode_Type || t == &PyBool_Type || t == &PyFloat_Type) return true;
  if (t == &PyBytes_Type || t == &PyComplex_Type || o == Py_Ellipsis || o == Py_NotImplemented) return true;
  const KnownTypes& k = known_types();
  return t == k.dtype || t == k.size || t == k.device || t == k.layout || t == k.memory_format || t == k.qscheme;
}

PyObject* of_module(const char* module, const char* name) {
  PyObject* m = PyDict_GetItemString(PyImport_GetModuleDict(), module);
  return m != nullptr && PyModule_Check(m) ? PyDict_GetItemString(PyModule_GetDict(m), name) : nullptr;
}

bool is_deque(PyObject* o) { return known_types().deque != nullptr && PyObject_TypeCheck(o, known_types().deque); }

bool is_python_class(PyTypeObject* t) {
  // All of them are freed by the one function that the type statement puts in.
  static const destructor of_classes = [] {
    Ref made = Ref::steal(PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyType_Type), "s(){}", "C"));
    PyErr_Clear();
    return made ? reinterpret_cast<PyTypeObject*>(made.get())->tp_dealloc : nullptr;
  }();
  // Those made in C from a specification keep a name of their own.
  return (t->tp_flags & Py_TPFLAGS_HEAPTYPE) && t->tp_dealloc == of_classes &&
         reinterpret_cast<PyHeapTypeObject*>(t)->_ht_tpname == nullptr;
}

bool steps_in_c(PyTypeObject* t) {
  if (t->tp_iternext == nullptr) return false;
  static PyObject* const name = PyUnicode_InternFromString("__next__");
  PyObject* method = _PyType_Lookup(t, name);
  return method == nullptr || Py_TYPE(method) == &PyWrapperDescr_Type;
}

Ref ordered_items(PyObject* dict) {
  if (!PyODict_Check(dict)) return Ref::steal(PyDict_Items(dict));
  Ref keys = Ref::steal(guards::ordered_keys(dict));
  Ref items = Ref::steal(PyList_New(0));
  for (Py_ssize_t i = 0; keys && items && i < PyTuple_GET_SIZE(keys.get()); ++i) {
    PyObject* key = PyTuple_GET_ITEM(keys.get(), i);
    PyObject* value = PyDict_GetItemWithError(dict, key);
    Ref pair = Ref::steal(value != nullptr ? PyTuple_Pack(2, key, value) : nullptr);
    if (!pair || PyList_Append(items.get(), pair.get()) < 0) return {};
  }
  return items;
}

bool is_pinned_kind(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  if (PyType_Check(o) || PyFunction_Check(o) || PyModule_Check(o) || PyCFunction_Check(o) || PyCode_Check(o))
    return true;
  const KnownTypes& k = known_types();
  if (k.module != nullptr && PyObject_TypeCheck(o, k.module)) return true;
  if (k.enum_type != nullptr && PyObject_TypeCheck(o, k.enum_type)) return true;
  if (PyMethod_Check(o) || t == k.partial) return false;
  if (t->tp_flags & Py_TPFLAGS_HEAPTYPE) {
    // Instances of Python classes are described by what is read from them; heap types written in C have no such
    // insides.
    return t == k.lru_cache ||
           (!has_instance_dict(t) && t->tp_getset == nullptr && t->tp_basicsize > 0 && t->tp_new != nullptr &&
            t->tp_base == &PyBaseObject_Type && PyDict_GetItemString(type_dict(t), "__slots__") == nullptr &&
            PyDict_GetItemString(type_dict(t), "__module__") == nullptr);
  }
  if (PyList_Check(o) || PyTuple_Check(o) || PyDict_Check(o) || PyAnySet_Check(o) || PyCell_Check(o) || is_tensor(o) ||
      PyExceptionInstance_Check(o) || t == &PyTraceBack_Type || t == &PyFrame_Type || PyGen_Check(o))
    return false;
  if (t == k.deque || t == &PyDictProxy_Type || is_dict_view(o) || t == &PySlice_Type || t == &PyRange_Type)
    return false;
  return true;  // descriptors, generic aliases, locks, generators, builtin singletons: known by address
}

Recorder::Recorder(trace::Session* session) : numbers(*this, session), session_(session) {
  if (session == nullptr) return;
  known_.reserve(4096);
  paths_.reserve(8192);
  facts_.reserve(8192);
  lookups_.reserve(1024);
}

Recorder::~Recorder() {
  for (auto& s : observations_.sources) {
    Py_XDECREF(s.key);
    Py_XDECREF(s.object);
  }
  for (auto& f : observations_.facts) Py_XDECREF(f.expected);
  for (auto& [dict, keys] : written_)
    for (PyObject* key : keys) Py_DECREF(key);
}

// A class that is known by its looks is none of those that look the same and are known by identity.
void Recorder::tell_apart_from_loose() {
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

guards::Observations Recorder::take() {
  tell_apart_from_loose();
  known_.clear();
  paths_.clear();
  return std::exchange(observations_, {});
}

int32_t Recorder::location_index() {
  if (!location_key) return -1;
  auto [it, added] = location_indices_.try_emplace(location_key(), -1);
  if (added) {
    it->second = static_cast<int32_t>(observations_.locations.size());
    observations_.locations.push_back(location());
  }
  return it->second;
}

void Recorder::fact(FactKind kind, SourceId source, PyObject* expected, int64_t number) {
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

SourceId Recorder::add(SourceKind kind, SourceId parent, int64_t index, PyObject* key, PyObject* object, bool pinned) {
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

void Recorder::reach(SourceKind kind, SourceId parent, int64_t index, PyObject* key, PyObject* object) {
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
  auto [known, first] = known_.try_emplace(object, id);
  if (first) {
    describe(id, object, parent_pinned);
  } else if (is_pinned_kind(object) && !PyIter_Check(object) && pinned(known->second)) {
    fact(FactKind::kIdentity, id, object);
  } else {
    fact(FactKind::kSameObject, id, nullptr, known->second);
  }
}

PyObject* Recorder::read(SourceKind kind, SourceId parent, int64_t index, PyObject* key, PyObject* object) {
  if (changing == nullptr || changing->empty() || !(PyFloat_CheckExact(object) || PyLong_CheckExact(object))) {
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
  if (changing->count(guards::str(observations_, id)) == 0) {
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

namespace {

bool is_on_meta(PyObject* tensor) {
  static PyObject* const name = PyUnicode_InternFromString("is_meta");
  Ref is = Ref::steal(PyObject_GenericGetAttr(tensor, name));
  PyErr_Clear();
  return is.get() == Py_True;
}

}  // namespace

void Recorder::add_input(SourceId id, PyObject* tensor, bool parent_pinned, bool computed) {
  if (session_ != nullptr && !is_plain_tensor_type(Py_TYPE(tensor)))
    throw Declined(std::string("a tensor subclass: ") + Py_TYPE(tensor)->tp_name);
  fact(FactKind::kTensor, id);
  if (session_ == nullptr) return;
  if (!computed && is_on_meta(tensor)) return;  // there is nothing in it to compute with
  const KnownTypes& k = known_types();
  graph::InputKind kind = graph::InputKind::kUser;
  if (parent_pinned && k.parameter != nullptr && PyObject_TypeCheck(tensor, k.parameter)) {
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
  const auto input = static_cast<size_t>(session_->add_input(tensor, kind, guards::str(observations_, id)));
  if (input >= tensor_sources_.size()) tensor_sources_.resize(input + 1, kNoSource);
  if (tensor_sources_[input] == kNoSource) tensor_sources_[input] = id;
}

bool Recorder::is_buffer(SourceId id) const {
  if (id == kNoSource || source(id).kind != SourceKind::kDictItem) return false;
  const guards::Source& dict = source(source(id).parent);
  return dict.key != nullptr && PyUnicode_Check(dict.key) &&
         PyUnicode_CompareWithASCIIString(dict.key, "_buffers") == 0;
}

bool Recorder::add_tensor(PyObject* tensor) {
  SourceId id = source_of(tensor);
  if (id == kNoSource) return false;
  add_input(id, tensor, pinned(id), true);
  return true;
}

void Recorder::add_root(PyObject* function) {
  SourceId id = add(SourceKind::kCallable, kNoSource, -1, nullptr, function, true);
  known_.emplace(function, id);
}

bool Recorder::is_loose(PyObject* o) const {
  return any_loose_ && (PyType_Check(o) || PyFunction_Check(o) || is_module(o)) && is_old(o) && loose(source_of(o));
}

bool Recorder::is_renewed(SourceId id, bool its_type) const {
  if (loose(id)) return true;
  if (renewed == nullptr || renewed->empty()) return false;
  const std::string path = guards::str(observations_, id);
  return renewed->count(its_type ? "type(" + path + ")" : path) != 0;
}

// The class of an object, of which nothing else is known.
void Recorder::type_of(SourceId id, PyObject* object) {
  PyTypeObject* t = Py_TYPE(object);
  auto* type = reinterpret_cast<PyObject*>(t);
  const bool known = is_loose(type);
  if (!known && (is_old(type) || !guards::is_local_class(t) || !is_python_class(t) || !is_renewed(id, true))) {
    fact(FactKind::kTypeIs, id, type);
    return;
  }
  reach(SourceKind::kType, id, -1, nullptr, type);
  const SourceId of = paths_.at(Path{SourceKind::kType, id, -1, nullptr});
  if (!known && !loose(of)) look_alike(of, t);
}

// A class that each call makes anew, by the same code.
void Recorder::look_alike(SourceId id, PyTypeObject* type) {
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

bool Recorder::describe_loosely(SourceId id, PyObject* object) {
  PyTypeObject* t = Py_TYPE(object);
  if (PyType_Check(object)) {
    auto* type = reinterpret_cast<PyTypeObject*>(object);
    if (!guards::is_local_class(type) || !is_python_class(type) || !is_renewed(id)) {
      loose_[static_cast<size_t>(id)] = false;
      return false;
    }
    look_alike(id, type);
    return true;
  }
  if (is_module(object)) {
    if (!is_renewed(id)) return false;
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

void Recorder::describe(SourceId id, PyObject* object, bool parent_pinned) {
  if (is_tensor(object)) return add_input(id, object, parent_pinned);
  if ((any_loose_ || renewed != nullptr) && describe_loosely(id, object)) return;
  if (PyFunction_Check(object) && !parent_pinned) {
    // Functions that a caller makes anew on each call are one function when they run the same code.
    fact(FactKind::kTypeIs, id, reinterpret_cast<PyObject*>(Py_TYPE(object)));
    fact(FactKind::kCodeIs, id, PyFunction_GET_CODE(object), loose(id));
    PyObject* globals = PyFunction_GET_GLOBALS(object);
    const bool own = loose(id) && !is_of_a_module(globals);
    SourceId g = add(SourceKind::kGlobals, id, -1, nullptr, globals, !own);
    fact(own ? FactKind::kTypeIs : FactKind::kIdentity, g,
         own ? reinterpret_cast<PyObject*>(Py_TYPE(globals)) : globals);
    known_.try_emplace(globals, g);
    return;
  }
  if (PyCFunction_Check(object) && !parent_pinned) {
    // A builtin method of an object, bound anew on each call: known by its name and what it is bound to.
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
  if (is_array(object) || (!is_atom(object) && is_numpy_scalar(object))) opaque_.insert(object);
  // Iterators and coroutines that a caller hands over, or that a frame holds, are other ones each time; the trace does
  // not advance them (Interpreter::next).
  const bool iterator = source(id).kind == SourceKind::kArgument && !is_python_class(Py_TYPE(object)) &&
                        (PyIter_Check(object) || PyCoro_CheckExact(object) || PyAsyncGen_CheckExact(object) ||
                         Py_TYPE(object)->tp_as_async != nullptr);
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

SourceId Recorder::constant(PyObject* object) {
  auto [it, added] = known_.try_emplace(object, kNoSource);
  if (added && any_loose_ && fresh_types_.count(object) == 0 && fresh_functions_.count(object) == 0 &&
      (is_module(object) ||
       (PyType_Check(object) && guards::is_local_class(reinterpret_cast<PyTypeObject*>(object)) &&
        !is_of_torch(object)) ||
       (PyFunction_Check(object) && guards::is_local_code(PyFunction_GET_CODE(object))))) {
    known_.erase(it);
    throw Declined("an object of unknown origin beside objects that each call makes anew: " +
                   guards::short_repr(object));
  }
  if (added) it->second = add(SourceKind::kConstantObject, kNoSource, -1, nullptr, object, true);
  return it->second;
}

SourceId Recorder::pass_through(int64_t index, PyObject* name, PyObject* object) {
  auto [it, added] = paths_.try_emplace(Path{SourceKind::kArgument, kNoSource, index, name}, kNoSource);
  if (added) it->second = add(SourceKind::kArgument, kNoSource, index, name, object, false);
  return it->second;
}

SourceId Recorder::instance_dict(PyObject* o) {
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
  known_.emplace(dict, id);
  return id;
}

PyObject* Recorder::type_lookup(PyTypeObject* type, PyObject* name, Py_ssize_t start) {
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
  auto [it, added] = lookups_.try_emplace(LookupKey{type, name, start}, nullptr);
  if (!added) return it->second;
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
  it->second = found;
  SourceId t = constant(reinterpret_cast<PyObject*>(type));
  if (found == nullptr) {
    fact(FactKind::kTypeLacks, t, name, start);
  } else {
    found = read(SourceKind::kTypeLookup, t, start, name, found);
    lookups_[LookupKey{type, name, start}] = found;
  }
  return found;
}

PyObject* Recorder::dict_get(PyObject* dict, PyObject* key) {
  not_opaque(key);
  this->key(key);
  PyObject* value = PyDict_GetItemWithError(dict, key);
  if (value == nullptr && PyErr_Occurred()) return nullptr;
  SourceId id = source_of(dict);
  if (id == kNoSource || detached(dict) || is_written(dict, key)) return value;
  // True only while a capture runs; says nothing about later calls.
  static PyObject* const compiling = PyUnicode_InternFromString("_is_compiling_flag");
  if (key == compiling) return value;
  if (!is_atom(key) && !is_pinned_kind(key) && !is_old(key) && !PyTuple_CheckExact(key)) {
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

namespace {

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

bool is_array(PyObject* o) { return std::strcmp(Py_TYPE(o)->tp_name, "numpy.ndarray") == 0; }

bool Recorder::is_known_by_content(PyObject* o) const {
  const SourceId id = source_of(o);
  return id != kNoSource && source(id).kind != SourceKind::kArgument && pinned(id) && is_small_array_of_numbers(o);
}

void Recorder::not_opaque(PyObject* o) {
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

void Recorder::length(PyObject* container) {
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

void Recorder::contents(PyObject* c) {
  not_opaque(c);
  check_secrets(c);
  if (PyDictProxy_Type.tp_name != nullptr && Py_TYPE(c) == &PyDictProxy_Type) {
    const bool old_proxy = is_old(c);
    c = reinterpret_cast<MappingProxyLayout*>(c)->mapping;
    if (old_proxy && !is_old(c)) throw Declined("a mapping proxy from before the call");
    if (!PyDict_Check(c)) return;
  }
  if (is_dict_view(c)) {
    const bool old_view = is_old(c);
    c = reinterpret_cast<PyObject*>(reinterpret_cast<DictViewLayout*>(c)->dict);
    if (old_view && !is_old(c)) throw Declined("a dict view from before the call");
  }
  SourceId id = source_of(c);
  if (id == kNoSource || detached(c) || is_atom(c)) return;
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
    for (const char* name : {"start", "stop", "step"}) {
      Ref key = Ref::steal(PyUnicode_InternFromString(name));
      Ref value = Ref::steal(PyObject_GetAttr(c, key.get()));
      reach(SourceKind::kSlot, id, -1, key.get(), value.get());
    }
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

void Recorder::default_factory(PyObject* dict) {
  const SourceId id = source_of(dict);
  if (id == kNoSource || !PyObject_TypeCheck(dict, known_types().defaultdict)) return;
  static PyObject* const name = PyUnicode_InternFromString("default_factory");
  Ref factory = Ref::steal(PyObject_GetAttr(dict, name));
  if (!factory) throw Declined("a defaultdict without a default_factory");
  reach(SourceKind::kSlot, id, -1, name, factory.get());
}

void Recorder::numbers_in(PyObject* list) {
  const SourceId id = source_of(list);
  if (changing == nullptr || changing->empty() || id == kNoSource || detached(list)) return;
  for (Py_ssize_t i = 0; i < std::min(PyList_GET_SIZE(list), kMaxElements); ++i) {
    PyObject* item = PyList_GET_ITEM(list, i);
    if (!PyFloat_CheckExact(item) && !PyLong_CheckExact(item)) continue;
    if (PyObject* seen = read(SourceKind::kSequenceItem, id, i, nullptr, item); seen != item)
      PyList_SetItem(list, i, Py_NewRef(seen));
  }
}

void Recorder::dict_contents(PyObject* dict, PyObject* items) {
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

void Recorder::check_secrets(PyObject* o) const {
  if (is_old(o) && keeps_secrets(Py_TYPE(o)))
    throw Declined(std::string("what is in an object from before the call is read: ") + Py_TYPE(o)->tp_name);
}

void Recorder::contents_deep(PyObject* o, int depth) {
  if (depth > kMaxDepth || is_atom(o)) return;
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
  } else if (is_old(o) && t == namespace_type()) {
    if (instance_dict(o) != kNoSource) contents_deep(*_PyObject_GetDictPtr(o), depth + 1);
  }
}

void Recorder::same_or_distinct(PyObject* a, PyObject* b) {
  if (a == b) return;  // one object by two paths: kSameObject was recorded when they met
  SourceId sa = source_of(a), sb = source_of(b);
  if (sa == kNoSource || sb == kNoSource) return;
  if (pinned(sa) && pinned(sb) && is_pinned_kind(a) && is_pinned_kind(b)) return;
  if (Py_TYPE(a) != Py_TYPE(b)) return;
  fact(FactKind::kDistinct, std::max(sa, sb), nullptr, std::min(sa, sb));
}

void Recorder::identity(PyObject* o) {
  const SourceId id = source_of(o);
  if (is_loose(o)) throw Declined("the identity of an object that each call makes anew");
  if (id != kNoSource && !is_atom(o)) fact(FactKind::kAddressIs, id);
}

void Recorder::hash(PyObject* o) {
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
    if (Py_TYPE(o)->tp_hash == PyBaseObject_Type.tp_hash) identity(o);
  }
}

void Recorder::key(PyObject* o) {
  hash(o);
  if (PyTuple_Check(o)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) key(PyTuple_GET_ITEM(o, i));
  } else if (!is_atom(o) && !is_pinned_kind(o) && (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE)) {
    identity(o);  // whether another one is equal shows only when its own __eq__ is asked, which was not needed here
  }
}

void Recorder::specials(PyTypeObject* t) {
  if (!(t->tp_flags & Py_TPFLAGS_HEAPTYPE) || !special_types_.insert(t).second) return;
  auto* type = reinterpret_cast<PyObject*>(t);
  if (!is_fresh_type(type) && !is_loose(type)) fact(FactKind::kSpecials, constant(type));
}

void Recorder::subclass(PyObject* type, PyObject* of, bool is) {
  if (!is_fresh_type(type) && !is_fresh_type(of)) fact(FactKind::kSubclassIs, constant(of), type, is);
}

void Recorder::call_gives(PyObject* f, PyObject* const* args, size_t count, PyObject* kwnames, PyObject* result) {
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

bool Recorder::knows_call(PyObject* f, PyObject* const* args, size_t count) const {
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

void Recorder::whole(PyObject* o) {
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
  if (!is_old(o) || !(Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE)) return;
  whole(reinterpret_cast<PyObject*>(Py_TYPE(o)));
  if (has_instance_dict(Py_TYPE(o)) && instance_dict(o) != kNoSource) contents(*_PyObject_GetDictPtr(o));
}

void Recorder::only_way_to(PyObject* o) {
  if (const SourceId id = source_of(o); id != kNoSource) fact(FactKind::kWritten, id);
}

void Recorder::function(PyObject* f) {
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

void Recorder::forget_writes(PyObject* dict) {
  auto it = written_.find(dict);
  if (it == written_.end()) return;
  for (PyObject* key : it->second) Py_DECREF(key);
  written_.erase(it);
}

void Recorder::written(PyObject* dict, PyObject* key) {
  if (is_written(dict, key)) return;
  written_[dict].push_back(Py_NewRef(key));
}

bool Recorder::is_written(PyObject* dict, PyObject* key) const {
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
