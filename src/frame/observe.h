// What a trace has learned so far: identities with their sources, and facts. The interpreter reports each read of an
// old object here; whatever is not known here was made during the trace.
//
// Sources hang on object identity, not on stack slots: an old object met again, also after a detour through native
// code, is still known. Atoms (int, str, None ...) carry no identity: they are guarded by value at the moment they are
// read.
#pragma once
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <unordered_set>

#include "frame/internals.h"
#include "frame/numbers.h"
#include "frame/sizes.h"
#include "guards/source.h"
#include "trace/trace.h"

namespace flashover::frame {

using guards::FactKind;
using guards::kNoSource;
using guards::SourceId;
using guards::SourceKind;

// Types the trace must recognise; members are null when the module is not loaded.
struct KnownTypes {
  PyTypeObject *tensor = nullptr, *parameter = nullptr, *module = nullptr, *size = nullptr, *dtype = nullptr,
               *device = nullptr, *layout = nullptr, *memory_format = nullptr, *qscheme = nullptr, *enum_type = nullptr,
               *script_function = nullptr, *lru_cache = nullptr, *partial = nullptr, *deque = nullptr,
               *defaultdict = nullptr, *context_var = nullptr;
  PyObject* module_getattr = nullptr;  // torch.nn.Module.__getattr__
};
const KnownTypes& known_types();  // resolved again when torch appears
// A module's attribute, borrowed; null unless the module is loaded: nothing here loads one.
PyObject* of_module(const char* module, const char* name);
bool is_tensor(PyObject* o);
bool is_class_over_memory(PyTypeObject* t);  // of tensors that the dispatcher takes for plain ones
// What no __torch_function__ sees; a method is called. Empty: an error.
Ref tensor_attribute(PyObject* tensor, const char* name);
bool is_nested_tensor(PyTypeObject* t);  // torch's class of jagged ones
bool is_wrapper_type(PyTypeObject* t);   // of tensors with __torch_dispatch__ that tell what they are made of
bool is_atom(PyObject* o);               // immutable, compared by value
bool is_operator(PyObject* o);           // of torch.ops: one object an operator, which never changes
bool is_pinned_kind(PyObject* o);        // guarded by identity: types, functions, modules, descriptors ...
bool is_deque(PyObject* o);
bool is_array(PyObject* o);  // of numpy
bool is_array_of_any_class(PyObject* o);
bool is_numpy_scalar(PyObject* o);
bool is_dict_view(PyObject* o);
bool steps_in_c(PyTypeObject* t);  // an iterator whose position no attribute shows: classes derived from such ones too
bool is_python_class(PyTypeObject* t);  // made by a class statement: its instances hold nothing but Python objects
Ref ordered_items(PyObject* dict);      // (key, value) pairs in iteration order, an OrderedDict's own

class SourceTracker {
 public:
  explicit SourceTracker(trace::Session* session);
  ~SourceTracker();
  SourceTracker(const SourceTracker&) = delete;
  SourceTracker& operator=(const SourceTracker&) = delete;

  void name_positional(std::vector<std::string> names) { observations_.positional = std::move(names); }
  // kNoSource: made during the trace (or an atom).
  SourceId source_of(PyObject* o) const {
    auto it = sources_by_object_.find(o);
    return it == sources_by_object_.end() ? kNoSource : it->second;
  }
  bool is_old(PyObject* o) const { return sources_by_object_.count(o) != 0; }
  // Arguments of foreign C types (files ...) and arrays of numpy: only handed on, since only their type is guarded.
  bool is_opaque(PyObject* o) const { return !opaque_.empty() && opaque_.count(o) != 0; }
  bool is_guarded_by_content(PyObject* array) const;  // not_opaque() would not throw
  bool leaves_arrays = false;                         // contents_deep() passes by arrays of numpy
  void check_secrets(PyObject* o) const;              // of a type that keeps what no fact holds: throws Declined
  // Throws Declined; of an array that is no argument everything is guarded from here on instead.
  void not_opaque(PyObject* o);

  PyObject* proxied(PyObject* proxy);  // what a types.MappingProxyType shows. Throws Declined.

  // `object` was read through this path: names it, records what must be true of it. Throws Declined.
  void reach(SourceKind kind, SourceId parent, int64_t index, PyObject* key, PyObject* object);
  // The same; the result (borrowed) is what the program is to see: for a number that changes from call to call, an
  // object that stands for it. reach() guards its value.
  PyObject* read(SourceKind kind, SourceId parent, int64_t index, PyObject* key, PyObject* object);
  SourceId constant(PyObject* object);  // an object known by address
  // An argument that was not looked at and is only handed on: no facts.
  SourceId pass_through(int64_t index, PyObject* name, PyObject* object);
  SourceId instance_dict(PyObject* o);  // source of o.__dict__; o is old and has one
  void fact(FactKind kind, SourceId source, PyObject* expected = nullptr, int64_t number = 0);

  // Look-ups with their facts. Borrowed results; null is 'absent' (no error set).
  PyObject* type_lookup(PyTypeObject* type, PyObject* name, Py_ssize_t mro_start = 0);
  PyObject* dict_get(PyObject* dict, PyObject* key);  // dict may be fresh; null with an error set if hashing failed
  void length(PyObject* container);                   // old container: its length was seen
  void contents(PyObject* container);                 // every element becomes reachable; deep: nested containers too
  void contents_deep(PyObject* o, int depth = 0);
  void default_factory(PyObject* dict);  // of a defaultdict, which a key that is not there asks
  void numbers_in(PyObject* list);       // an old list, about to be written: what the program is to see of its numbers
  void dict_contents(PyObject* dict, PyObject* items);  // (key, value) pairs in order: all that it held before the call
  void same_or_distinct(PyObject* a, PyObject* b);      // `a is b` was evaluated
  void identity(PyObject* o);                           // id(o) was seen
  void storage_offset(PyObject* tensor);
  void hash(PyObject* o);                                // hash(o) was seen
  void key(PyObject* o);                                 // looked up in a dict or a set
  void specials(PyTypeObject* type);                     // C code may look for special methods of the type's instances
  void subclass(PyObject* type, PyObject* of, bool is);  // an abstract class was asked
  void call_gives(PyObject* f, PyObject* const* args, size_t count, PyObject* kwnames, PyObject* result);
  bool knows_call(PyObject* f, PyObject* const* args, size_t count) const;  // call_gives() has been told of it
  void whole(PyObject* o);  // handed to code that is not watched: all that it may look at of a function, class, object
  void only_way_to(PyObject* o);      // o is written: no other path of the trace may lead to it
  void function(PyObject* function);  // a Python function is about to run
  void fresh_function(PyObject* f) { fresh_functions_.insert(f); }
  void fresh_type(PyObject* t) { fresh_types_.insert(t); }
  // Modules, and classes made in a function, that are other ones in each call (their paths are `per_call_paths`, or
  // hang below such): not known by identity, but by what was seen of them, as the instances of other classes are.
  bool loose(SourceId id) const { return loose_[static_cast<size_t>(id)]; }
  bool is_loose(PyObject* o) const;
  bool is_fresh_type(PyObject* t) const { return fresh_types_.count(t) != 0; }
  bool is_fresh(PyObject* o) const { return is_fresh_type(o) || fresh_functions_.count(o) != 0; }

  // Writes: after detach() nothing read from `container` says anything about its state before the call.
  void detach(PyObject* container) { detached_.insert(container); }
  bool detached(PyObject* container) const { return !detached_.empty() && detached_.count(container) != 0; }
  // A list that items are only added to: its length before, or -1. Once it is read, it is detached too.
  Py_ssize_t appended(PyObject* list) const {
    if (appended_.empty()) return -1;
    auto it = appended_.find(list);
    return it == appended_.end() ? -1 : it->second;
  }
  void append(PyObject* list, Py_ssize_t length) {
    if (length < 0)
      appended_.erase(list);
    else
      appended_[list] = length;
  }
  void written(PyObject* dict, PyObject* key);
  void forget_writes(PyObject* dict);
  bool is_written(PyObject* dict, PyObject* key) const;
  bool has_writes(PyObject* dict) const { return detached(dict) || written_.count(dict) != 0; }

  void add_root(PyObject* function);  // the compiled callable itself
  bool add_tensor(PyObject* tensor);  // an old tensor reached an operator unread: make it an input if it has a source

  void leave_open(SourceId tensor, int64_t parts);  // symbolic_parts() of it (guards/sizes.h)

  guards::Observations take();
  std::string name_of(SourceId id) const { return guards::str(observations_, id); }
  const guards::Source& source(SourceId id) const { return observations_.sources[static_cast<size_t>(id)]; }
  const std::vector<SourceId>& tensor_sources() const { return tensor_sources_; }
  bool is_buffer(SourceId id) const;  // of a module's
  bool pinned(SourceId id) const { return pinned_[static_cast<size_t>(id)]; }

  Numbers numbers;
  std::function<void(PyObject* tensor, size_t index, const std::string& path)> note_input;
  const std::unordered_set<std::string>* varying_numbers = nullptr;  // CaptureRequest::varying_numbers
  const std::unordered_set<std::string>* per_call_paths = nullptr;   // CaptureRequest::per_call_paths
  const VaryingSizes* varying_sizes = nullptr;                       // CaptureRequest::varying_sizes
  bool larger_than_call = false;                                     // a size of 1 is traced as a larger one
  std::vector<BrokenMark> broken_marks;                              // by the sizes of this call alone
  int* uninterpreted = nullptr;  // above 0: Python code that is called meanwhile is none of the program's

  std::function<std::string()> location;   // the user's file:line now
  std::function<uint64_t()> location_key;  // cheap: equal keys, equal locations
  std::function<void(PyObject*)> settle;   // a dict with written items is read whole: the journal knows how it was

 private:
  struct Path {
    SourceKind kind;
    SourceId parent;
    int64_t index;
    PyObject* key;
    bool operator==(const Path&) const = default;
  };
  struct PathHash {
    size_t operator()(const Path& p) const {
      size_t h = reinterpret_cast<size_t>(p.key) >> 4;
      h = h * 0x9E3779B97F4A7C15u + static_cast<size_t>(p.parent);
      h = h * 0x9E3779B97F4A7C15u + (static_cast<size_t>(p.index) << 5) + static_cast<size_t>(p.kind);
      return h ^ (h >> 29);
    }
  };
  struct FactKey {
    FactKind kind;
    SourceId source;
    PyObject* expected;
    int64_t number;
    bool operator==(const FactKey&) const = default;
  };
  struct FactHash {
    size_t operator()(const FactKey& f) const {
      size_t h = reinterpret_cast<size_t>(f.expected) >> 4;
      h = h * 0x9E3779B97F4A7C15u + static_cast<size_t>(f.source);
      h = h * 0x9E3779B97F4A7C15u + (static_cast<size_t>(f.number) << 5) + static_cast<size_t>(f.kind);
      return h ^ (h >> 29);
    }
  };
  struct PointerHash {
    size_t operator()(PyObject* p) const { return (reinterpret_cast<size_t>(p) >> 4) * 0x9E3779B97F4A7C15u >> 7; }
  };
  struct LookupKey {
    PyTypeObject* type;
    PyObject* name;
    Py_ssize_t start;
    bool operator==(const LookupKey&) const = default;
  };
  struct LookupHash {
    size_t operator()(const LookupKey& k) const {
      return ((reinterpret_cast<size_t>(k.type) >> 4) * 31 + (reinterpret_cast<size_t>(k.name) >> 4)) * 31 +
             static_cast<size_t>(k.start);
    }
  };

  struct Lookup {
    PyObject* found = nullptr;
    Ref name;  // kept: another string in its place would be taken for it
  };

  SourceId add(SourceKind kind, SourceId parent, int64_t index, PyObject* key, PyObject* object, bool pinned);
  void wrapper(SourceId id, PyObject* tensor);  // a tensor of a class with __torch_dispatch__
  void jagged(SourceId id, PyObject* tensor);
  void tensor_class(PyTypeObject* t);  // one that is not torch's own
  void add_input(SourceId id, PyObject* tensor, bool parent_pinned, bool computed = false);
  void describe(SourceId id, PyObject* object, bool parent_pinned);
  bool describe_loosely(SourceId id, PyObject* object);  // false: as others
  bool is_per_call(SourceId id, bool its_type = false) const;
  void type_of(SourceId id, PyObject* object);
  void look_alike(SourceId id, PyTypeObject* type);
  void tell_apart_from_loose();
  int32_t location_index();
  bool varies(const std::string& path) const;
  bool is_of_argument(guards::SourceId id) const;

  trace::Session* session_;
  guards::Observations observations_;
  std::vector<char> pinned_, loose_;
  bool any_loose_ = false;
  std::vector<std::pair<SourceId, PyObject*>> loose_types_;
  std::vector<SourceId> ragged_sources_;  // of jagged tensors: what their ragged sizes are known by
  std::unordered_map<PyObject*, SourceId, PointerHash> sources_by_object_;
  std::unordered_map<Path, SourceId, PathHash> paths_;
  std::unordered_set<FactKey, FactHash> facts_;
  std::unordered_map<LookupKey, Lookup, LookupHash> lookups_;
  std::unordered_set<PyObject*> fresh_functions_, fresh_types_, seen_functions_, detached_;
  std::unordered_set<PyTypeObject*> special_types_;
  std::unordered_map<const void*, SourceId> memory_;               // the storage of tensor inputs -> the first of them
  std::unordered_map<PyObject*, std::vector<PyObject*>> written_;  // dict -> keys (owned)
  std::unordered_map<PyObject*, Py_ssize_t> appended_;
  std::unordered_set<PyObject*> opaque_;
  std::unordered_map<uint64_t, int32_t> location_indices_;
  std::vector<SourceId> tensor_sources_;                    // by graph input index
  std::unordered_map<SourceId, PyObject*> number_objects_;  // of sources that read() gave out; borrowed
};

}  // namespace flashover::frame
