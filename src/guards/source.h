// Where an object came from, and what was observed of it: the language between the frame interpreter (writes), the
// guard program (checks) and explain() (words).
//
// Who gets which fact: atoms read through a source (int, str, None, bool, float, dtype ...) get kEquals; types,
// functions, code, Python modules, nn.Modules and descriptors get kIdentity; every other object gets kTypeIs and then
// facts on what was seen inside it (an argument list made again on each call passes); tensors get kTensor. Types of
// observed objects are kConstantObject sources: what was looked up on them hangs below as kTypeLookup sources /
// kTypeLacks facts, so an instance that has the recorded type (kTypeIs) has the recorded methods. Static (non-heap)
// types are immutable and are not recorded.
//
// A source is a path from the call's roots. The trace records for each object it reached the source and, for each thing
// it learned through that source, a fact. Ids index into a table; a parent always has a smaller id.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

typedef struct _object PyObject;
typedef struct _typeobject PyTypeObject;

namespace flashover::guards {

using SourceId = int32_t;
constexpr SourceId kNoSource = -1;  // fresh: made during the trace

enum class SourceKind : uint8_t {
  kArgument,     // index: position in the bound arguments of the compiled callable (localsplus order of the root code);
                 // key: its name, for people
  kCallable,     // the compiled function object itself (its defaults, closure, globals hang below it)
  kGlobals,      // module globals dict of function `parent` (func.__globals__); without parent: of the callable
  kBuiltins,     // the builtins dict of function `parent`; without parent: the interpreter's
  kClosureCell,  // parent.__closure__[index] (the cell object)
  kCellContents,  // parent is a cell
  kInstanceDict,  // parent.__dict__ (the dict object); for a type: its own tp_dict
  kType,          // type(parent)
  kTypeLookup,  // parent is a *type*: found on its MRO under `key` (raw, before __get__); index: MRO position where the
                // search starts (0: whole MRO; super() starts later)
  kDictItem,    // parent[key], parent a dict; key is a constant object
  kDictKeyAt,   // index-th key in order
  kDictValueAt,     // index-th value in order
  kSequenceItem,    // parent[index], list, tuple or deque (also subclasses, without calling __getitem__)
  kSetItem,         // index-th in iteration order
  kSlot,            // C member/getset attribute `name` of parent with no Python code behind it (__slots__, __code__,
                    // __defaults__, ...)
  kModule,          // sys.modules[name]
  kTensorAttr,      // .grad, ._base ... of a tensor: `name`
  kContextValue,    // what context variable `parent` holds in the current context
  kWeakTarget,      // what weak reference `parent` refers to; None when that is dead
  kProxied,         // the mapping that read-only proxy (types.MappingProxyType) or dict view `parent` shows
  kConstantObject,  // an object known by address (types of observed objects, globals dicts of functions whose code is
                    // guarded, singletons); `object` kept alive by the guards
};

struct Source {
  SourceKind kind;
  SourceId parent = kNoSource;
  int32_t index = -1;
  PyObject* key = nullptr;  // owned by the table: name or key; null if none
  PyObject* object =
      nullptr;  // the object seen while tracing (owned by the table until the guards are built); never null
};

enum class FactKind : uint8_t {
  kIdentity,  // is `expected`, and of the class it had
  kTypeIs,    // type(x) is `expected`
  kEquals,   // type equal and == `expected` (int, float incl. NaN/-0.0 bitwise, str, bytes, bool, None, complex, dtype,
             // device, Size ...)
  kLength,   // len == number, for list/tuple/dict/set/str
  kDictHas,  // key `expected` present (its value has a source of its own when it mattered); also for sets
  kDictLacks,       // key `expected` absent; also for sets
  kDictOrder,       // same keys in the same order (iteration was seen); `expected`: tuple of the keys; implies kLength
  kTypeLacks,       // x is a type: name `expected` not found on its MRO from position `number` on
  kTypeVersion,     // x is a type: none of its attributes changed at all (when single names cannot tell)
  kInstanceDictIs,  // x.__dict__ is the same dict object as before (catches obj.__dict__ = ...)
  kTensor,  // dtype, device, layout, sizes, strides, requires_grad, dispatch keys, class: as Source::object has them
            // when the guards are built; number: symbolic_parts() (sizes.h), which are not compared
  kStorageOffset,  // x is a tensor whose storage offset is `number` (only seen by as_strided: views of one shape share
                   // an entry)
  kTensorAliases,  // number: another source whose tensor shares storage with this one
  kSameObject,     // number: another source that holds the very same object (two paths met in one object)
  kDistinct,       // number: another source that holds a different object (`a is b` was seen to be false)
  kWritten,        // x was written by the trace: no other source that held an object of its type then may be x now
  kNotAliases,     // none of the tensor inputs share storage except as recorded (number unused)
  kCodeIs,         // x.__code__ is `expected` (functions compared by code, for functions made again each time); number
                   // 1: or code that is equal to it
  kAddressIs,      // x is at the address it had (id() and hash() were seen)
  kSpecials,       // x is a type: none of the special methods that C code may call on its instances changed
  kLooksLike,   // x is a class made by the same statement (or call) as the one seen, whatever its address: class_look()
  kSubclassIs,  // x is an abstract class: `expected` (a type) was found to be (number 1) or not to be a subclass
  kCallGives,   // expected[0](*expected[1:-1]) gives expected[-1]: a C function that reads some state
  kGlobalState,  // packed torch state: grad mode, inference mode, autocast, default dtype, determinism,
                 // threads-independent flags
};

struct Fact {
  FactKind kind;
  SourceId source = kNoSource;
  PyObject* expected = nullptr;  // owned
  int64_t number = 0;
  int32_t location = -1;  // index into locations: the user's file:line that made the trace ask
};

// What the trace observed. Owns its references, but as plain data: build() takes them over, anyone else calls
// release().
struct Observations {
  std::vector<Source> sources;
  std::vector<Fact> facts;
  std::vector<std::string> locations;
  // Names of what *args holds, where a call is known to hand them on (nn.Module.__call__ to forward): for people.
  std::vector<std::string> positional;
};
void release(Observations& o);

std::string str(const Observations& o, SourceId s);             // "self.layers[3].weight"; "x" for arguments
std::string describe(const Observations& o, const Fact& f);     // "self.training is True"
std::string location_of(const Observations& o, const Fact& f);  // file:line that made the trace ask, "" if unknown

}  // namespace flashover::guards
