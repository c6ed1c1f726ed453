// A Python call, run once on trace tensors, becomes a Capture.
//
// The PEP 523 hook is on only while a capture runs. The interpreter acts as the evaluator of the real, linked frame: it
// runs the bytecode on the *real* Python objects; tensors met through sources are swapped for trace tensors (trace.h),
// so a torch function is simply called. Beside each value stands its source or 'fresh'; what is observed through a
// source becomes a fact. Writes to anything not fresh go through a journal: rolled back when the capture ends, replayed
// by Effects.
//
//   In        a callable and its arguments
//   Out       Capture: graph, observations, input sources, a recipe for the result, effects
//   Promises  when capture() returns, nothing the trace did is visible; the program cannot tell that it was traced
//   Declines  anything not surely right: Capture::declined with a reason and the user's file:line (a graph break,
//   later)
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "guards/source.h"

typedef struct _object PyObject;

namespace flashover::frame {

// Builds Python objects out of graph outputs, sources and constants, on every call, without running user code.
// Registers are numbered by the order of steps.
struct RecipeStep {
  enum class Kind : uint8_t {
    kGraphOutput,  // index
    kSource,       // index: position in Capture::wanted
    kConstant,     // object (owned)
    kTuple,
    kList,
    kSet,
    kFrozenSet,  // items
    kDict,      // items: key, value, key, value ...; object: exact dict subclass or null (OrderedDict, defaultdict ...)
    kObject,    // object: class; made by its base's __new__ without __init__; filled by kFill steps
    kFillDict,  // items[0].__dict__ <- pairs
    kFillItems,   // items[0] is a dict/list subclass object: contents <- items (dict: pairs)
    kNamedTuple,  // object: class (also torch.return_types structseq); items
    kSlice,
    kCell,
    kFunction,
    kBoundMethod,
    kPythonInt,  // from a symbolic size: reserved for dynamic shapes
  };
  Kind kind;
  int32_t index = -1;
  PyObject* object = nullptr;
  std::vector<int32_t> items;
};

// Writes to objects that outlive the call, in program order, applied after the graph ran. All items are registers.
struct Effect {
  enum class Kind : uint8_t { kSetAttr, kDelAttr, kSetItem, kDelItem, kListReplace, kSetReplace, kDictReplace, kCellSet, kDequeReplace };
  Kind kind;
  std::vector<int32_t> items;  // target, then name/key, then value(s)
};

struct Capture {
  bool declined = false;
  std::string reason, where;  // when declined
  bool raised = false;        // the program itself raised while traced (declined too: eager raises it again)
  guards::Observations observations;
  graph::Graph graph;                   // form kTraced
  std::vector<PyObject*> constants;     // tensors for the kConstant inputs, owned
  std::vector<guards::SourceId> input_sources;  // per graph input; kNoSource for constants
  std::vector<guards::SourceId> wanted;         // sources needed at run time: the inputs first, then recipe and effect operands
  std::vector<RecipeStep> recipe;
  int32_t result = -1;                  // register of the return value
  std::vector<Effect> effects;
  double seconds = 0;
};

// GIL held. Arguments as for a vectorcall of `callable` (a Python function, a bound method's function with self first, ...).
// `bound` are the arguments in the root code's localsplus order (what kArgument sources count), borrowed.
Capture capture(PyObject* callable, PyObject* const* bound, size_t count);

// Runs recipe and effects. Returns a new reference, or null with a Python error set.
PyObject* rebuild(const Capture& capture, PyObject* const* wanted, PyObject* const* graph_outputs);

// For tests: runs the call in the interpreter for good (no tensors, no trace; writes stay). Null with a Python error, or with
// `declined` filled and everything undone.
PyObject* interpret(PyObject* callable, PyObject* args, PyObject* kwargs, std::string* declined);

}  // namespace flashover::frame
