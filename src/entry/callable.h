// The object that flashover.compile makes, as its Python type (callable.cpp), the dispatch of its calls (dispatch.cpp)
// and what follows graph breaks in them (continuations.cpp) see it.
#pragma once
#include <Python.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "entry/eager.h"
#include "entry/entry.h"
#include "entry/remembered_sizes.h"

namespace flashover::entry {

// Which sizes of inputs are to be symbols where calls are compiled again.
struct SymbolicSizes {
  frame::VaryingSizes varying;
  std::optional<Hash128> site;                                       // where what changes is remembered by
  bool none_without_gradients = false, none_with_gradients = false;  // it did not work, and is not tried again
  // What a capture by these settings is to know of them; nullopt: nothing. all: every size is to be a symbol. (A copy:
  // other threads learn more while the capture runs.)
  std::optional<frame::VaryingSizes> wanted(const Settings& settings, bool all = false);
  void note(const Entry& made, const Settings& settings);
  // Takes note of sizes and numbers that changed since these versions were made; before the first one, of those that
  // did in earlier processes. code, module, next: site_of().
  void learn(const std::vector<EntryPtr>& entries, PyObject* const* slots, const Settings& settings,
             std::unordered_set<std::string>& numbers, PyObject* code, PyObject* module, int next);
  // Whether calls that differ from these versions in sizes would be served by one for all sizes, which is not made yet.
  bool general_is_missing(const std::vector<EntryPtr>& entries, PyObject* const* slots, const Settings& settings);

 private:
  bool possible(const Settings& settings) {
    const bool ours =
        settings.backend == "flashover" || settings.backend == "eager" || settings.backend == kExportBackend;
    return (settings.custom != nullptr ? takes_torch_calls(settings.custom) : ours) && !none();
  }
  bool& none() { return c10::GradMode::is_enabled() ? none_with_gradients : none_without_gradients; }
};

// What was compiled for one resume site (where calls go on after a graph break): an instruction of a code object, with a
// given shape of the stack.
struct Continuation {
  PyObject* code = nullptr;  // owned: the key has its address
  Settings settings;
  std::vector<EntryPtr> entries;
  bool may_assume = true;  // frame::CaptureRequest::may_assume
  std::unordered_set<std::string> varying_numbers;
  SymbolicSizes sizes;
  int64_t made = 0;                                   // entries so far
  std::optional<std::string> over_limit;              // what is said of it
  std::vector<std::pair<size_t, PyObject*>> modules;  // those in the key: slot, weak reference (owned)
  int64_t first_call = 0, last_call = 0;              // in the course of which it was made and last used
  ~Continuation() {
    for (const auto& [slot, weak] : modules) Py_DECREF(weak);
    Py_XDECREF(code);
  }
  // The modules of the key died: what has their addresses now are others.
  bool gone() const {
    return std::ranges::any_of(modules, [](auto& m) { return PyWeakref_GET_OBJECT(m.second) == Py_None; });
  }
};

// Which objects have another identity in each call, at one resume site or of the calls themselves.
struct PerCallIdentity {
  std::unordered_set<size_t> slots;  // hold another module in each call, which dies with that
  std::unordered_set<std::string>
      paths;  // of such modules, and of classes made in functions (CaptureRequest::per_call_paths)
};

struct CallableState {
  Settings settings;
  std::unordered_map<std::string, std::shared_ptr<Continuation>> continuations;
  std::unordered_map<std::string, std::shared_ptr<PerCallIdentity>>
      per_call_by_site;  // keys of continuations, without modules
  PerCallIdentity per_call;
  Signature signature;
  std::vector<EntryPtr> entries;                    // most recently used first
  bool may_assume = true;                           // frame::CaptureRequest::may_assume
  std::unordered_set<std::string> varying_numbers;  // paths of those that were seen to change
  SymbolicSizes sizes;
  // Code of functions that were called in the course of a call and taken on: how often that led to nothing.
  struct Barren {
    int times = 0;
    bool eager = false;  // it has something to compile, which did not work
  };
  std::unordered_map<PyObject*, Barren> barren;  // owned keys
  PyObject* root = nullptr;                      // Callable::self, if that is a module
  uint32_t type_tag = 0;                         // of self's type when `function` was looked up on it
  size_t limit = 0;                              // how often it is compiled for the same modules
  int64_t calls = 0, recompiles = 0;
  EagerLog eager;
  int64_t made = 0;  // entries so far
  double recompile_seconds = 0;
  std::optional<std::string> over_limit;  // what is said of it
  PyObject* forced = nullptr;             // dict: forced backend -> the callable that compiles for it; owned
  const char* skipped = nullptr;          // why the last call was not even tried
};

struct Callable {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* function;  // the Python function whose calls are compiled; null if there is none
  PyObject* self;      // its first argument, or null
  PyObject* dict;
  PyObject* weakrefs;
  bool through_call;  // `function` is type(self).__call__, looked up again when the class changes
  CallableState* state;
};

// Keeps an object for a while; what sets an error meanwhile is not disturbed.
class Held {
 public:
  explicit Held(PyObject* o) : o_(Py_NewRef(o)) {}
  ~Held() { Py_DECREF(o_); }
  Held(const Held&) = delete;

 private:
  PyObject* const o_;
};

// A type of callables: what differs from one to the other.
struct CallableSlots {
  const char* name;
  Py_ssize_t size, vectorcall, dict, weakrefs;  // the last three are offsets
  newfunc tp_new;
  destructor tp_dealloc;
  traverseproc tp_traverse;
  inquiry tp_clear;
  reprfunc tp_repr;
  PyMemberDef* members;
};
// What they share: they are called by vectorcall, bound to an instance as functions are, and have a dict and weak
// references.
void be_callable(PyTypeObject& type, const CallableSlots& slots);
// The vectorcall of a Callable: binds the arguments and runs the entry that matches, or compiles one.
PyObject* call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames);
// Compiles for a call with these arguments and runs nothing: what describe() says of the entry. Of a call with graph
// breaks: what comes before the first one.
PyObject* lower(PyObject* self, PyObject* args, PyObject* kwargs);
// The same for the backend "export": what program.h says of the entry.
PyObject* program(PyObject* self, PyObject* args, PyObject* kwargs);
// Arguments of a call as a vectorcall has them. An error is set where there was no memory: names is null then.
class GivenArguments {
 public:
  GivenArguments(PyObject* args, PyObject* kwargs)
      : objects(&PyTuple_GET_ITEM(args, 0), &PyTuple_GET_ITEM(args, 0) + PyTuple_GET_SIZE(args)),
        names(kwargs ? PySequence_Tuple(kwargs) : nullptr) {
    for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++)
      objects.push_back(PyDict_GetItem(kwargs, PyTuple_GET_ITEM(names, i)));
  }
  ~GivenArguments() { Py_XDECREF(names); }
  GivenArguments(const GivenArguments&) = delete;

  std::vector<PyObject*> objects;  // borrowed
  PyObject* const names;
};
// False when there is no Python function to compile. Drops everything compiled when the class got another __call__.
bool refresh(Callable* c);
// The callable that compiles the same function by the backend that set_stance forces; borrowed.
PyObject* with_backend(Callable* c, PyObject* backend);
// Why no call of `code` is compiled or served now; null: it may be. `cause`: which kind of reason it is.
const char* reason_not_to_compile(PyObject* code, EagerCause& cause);

}  // namespace flashover::entry
