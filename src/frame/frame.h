// A Python call, run once on trace tensors, becomes a Capture.
//
// The PEP 523 hook is on only while a capture runs. The interpreter acts as the evaluator of the real, linked frame: it
// runs the bytecode on the *real* Python objects; tensors met through sources are swapped for trace tensors (trace.h),
// so a torch function is simply called. Beside each value stands its source or 'fresh'; what is observed through a
// source becomes a fact. Writes to anything not fresh go through a journal: rolled back when the capture ends, replayed
// by Effects.
//
//   In        a callable and its arguments
//   Out       Capture: graph, observations, input sources, a reconstruction for the result, effects
//   Promises  when capture() returns, nothing the trace did is visible; the program cannot tell that it was traced
//   Declines  anything not surely right: Capture::declined with a reason and the user's file:line. Where the state of
//             the Python frames at that instruction can be rebuilt, the capture ends there instead (Capture::frames;
//             resume.h goes on from it)
#pragma once
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "frame/numbers.h"
#include "frame/sizes.h"
#include "graph/joint.h"
#include "guards/sizes.h"
#include "guards/source.h"
#include "ops/version_steps.h"

typedef struct _object PyObject;

namespace flashover::frame {

// Builds Python objects out of graph outputs, sources and constants, on every call, without running user code.
// Registers are numbered by the order of steps.
struct ReconstructionStep {
  enum class Kind : uint8_t {
    kGraphOutput,  // index
    kSource,       // index: position in Capture::required
    kConstant,     // object (owned)
    kTuple,
    kList,
    kSet,
    kFrozenSet,  // items
    kDict,     // items: key, value, key, value ...; object: exact dict subclass or null (OrderedDict, defaultdict ...)
    kObject,   // object: class; made by its base's __new__ without __init__; filled by kFill steps
    kDeque,    // object: class; items: maxlen
    kNewFrom,  // object: class with an immutable builtin base; items: the value (or two) that the base's __new__ takes
    kException,        // object: class; items: args; made by the builtin base's __new__ and __init__
    kFinishException,  // items: exception, then cause, context and traceback (-1: none)
    kTraceback,        // object: code; items: globals, line, next (-1: none); index: last instruction
    kFillSlots,        // items[0].name = value: pairs; past any __setattr__
    kFillDict,         // items[0].__dict__ <- pairs
    kFillItems,        // items[0] is a dict/list subclass object: contents <- items (dict: pairs)
    kNamedTuple,       // object: class (also torch.return_types structseq); items
    kSlice,
    kCell,
    kFunction,
    kBoundMethod,
    kReduced,       // object: a builtin iterator's rebuilding function; items: arguments, then perhaps a state for
                    // __setstate__
    kDictIterator,  // items: the dict view, dict or set to iterate; index: how many were taken; -1: the view itself
    kGenerator,     // items: function, code, then the slots of its suspended frame (-1: NULL); index: where it goes on;
                    // object: null if it has not started
    kBuiltinMethod,  // a C function bound to items[0]; object: one like it
    kNumber,         // index: step of Capture::numbers
    kEnter,          // items[0].__enter__()
    kLeave,          // items[0].__exit__(None, None, None)
    kNumberOfData,   // index: of Capture::numbers_of_data; items: what it is made of
  };
  Kind kind;
  int32_t index = -1;
  int32_t type = -1;  // register of the class to use instead of `object`, which is another one in each call
  PyObject* object = nullptr;
  std::vector<int32_t> items;
};

// A number that is known once the graph ran.
struct NumberOfData {
  enum class Kind : uint8_t { kItem, kList, kElement, kComputed };
  Kind kind = Kind::kItem;  // tensor.item(); all of a tensor in one list; list[at]; step, with items for its operands
  int64_t at = 0;
  NumberStep step;
};
// Whether the last number on this thread that could not be had was one of these: what a call of the program raises, or
// gives another type, for what tensors hold.
bool& number_of_data_failed();

// Writes to objects that outlive the call, in program order, applied after the graph ran. All items are registers.
struct Effect {
  enum class Kind : uint8_t {
    kSetAttr,
    kDelAttr,
    kSetItem,
    kDelItem,
    kDiscardItem,  // if it is there
    kListReplace,
    kListAppend,
    kSetReplace,
    kDictReplace,
    kCellSet,
    kDequeReplace,
    kSetState,        // item: of an iterator over a list that was written before
    kFiltersMutated,  // items: None. Of module warnings
    kWarn,            // message, category, file, line, module, globals
    kWarnAtCaller     // message, category, level
  };
  Kind kind;
  std::vector<int32_t> items;  // target, then name/key, then value(s)
};

// A frame at a graph break, to be rebuilt: registers. `next`: the code unit of the instruction to go on with. For the
// innermost frame that is the instruction that could not be captured; the others wait for the result of the call before
// `next`.
struct FramePoint {
  int32_t function = -1, code = -1, next = 0;
  std::vector<int32_t> slots;  // localsplus, then the stack; -1: NULL
};

// The same with its objects. Owns its references.
struct FrameState {
  PyObject* function = nullptr;
  PyObject* code = nullptr;
  int32_t next = 0;
  std::vector<PyObject*> slots;
  FrameState() = default;
  FrameState(FrameState&& other) noexcept;
  FrameState& operator=(FrameState&& other) noexcept;
  ~FrameState();
};

// A switch of torch's that the captured part left in another position: setter(*args, value).
struct StateChange {
  PyObject* setter = nullptr;  // lives as long as torch
  std::vector<PyObject*> args;
  PyObject* value = nullptr;  // owned by the capture; null: setter(*args)
};

// An input of the graph that is a part of another one and starts where numbers that change say.
struct NarrowedInput {
  int32_t input = -1, base = -1;  // of the graph; Capture::required (a source until the trace ends)
  struct Narrow {
    int64_t dim, length;
    int32_t start;  // step of Capture::numbers
  };
  std::vector<Narrow> narrows;
  bool grad = false;  // the grad mode it is made in
};

// A tensor whose gradient is of a class with __torch_dispatch__, or that is: its gradient's parts are gradients of
// inputs of the graph. In each call they are results of an autograd node that puts them together, as a form says that
// the reconstruction writes to a list: it finds these lists behind the graph's outputs.
struct WrappedInput {
  int32_t of = -1;  // Capture::required
  std::vector<int32_t> inputs;
};

struct Capture {
  bool declined = false;
  bool retry_as_opaque = false;  // declined, but another capture knows better
  bool out_of_memory = false;    // declined, but another time there may be memory, or room for a file
  bool data_sizes = false;       // it met sizes that follow from data, and took them for symbols
  bool assumes = false;          // questions about them have the usual answers, where a break would do, too
  bool must_raise = false;       // declined, and the program forbids that (torch._dynamo.error_on_graph_break)
  bool differentiated_twice =
      false;                   // declined in a call of the engine with create_graph: what leads there is to be eager's
  std::string reason, where;   // when declined, or of the break
  std::string stack;           // the Python frames there, the caller first, one a line
  std::string reason_to_stay;  // when declined: why the capture could not end in a break there
  bool raised = false;         // the program itself raised while traced (declined too: eager raises it again)
  guards::Observations observations;
  graph::Graph graph{graph::kNewProgram};  // form kTraced
  graph::Joint joint;                      // present: the graph computes gradients, too
  std::vector<int32_t> inference_outputs;  // graph outputs that were made in inference_mode
  VersionSteps version_steps;
  std::vector<graph::OwnCounter> own_counters;
  std::vector<PyObject*> constants;             // tensors for the kConstant inputs, owned
  std::vector<guards::SourceId> input_sources;  // per graph input; kNoSource for constants
  std::vector<guards::SourceId>
      required;               // sources needed at run time: the inputs first, then reconstruction and effect operands
  guards::SizeProgram sizes;  // of inputs whose sizes are symbols, by position in `required`
  std::vector<SizeSymbol> size_symbols;
  bool varies = false;            // numbers or sizes in it are symbols
  bool larger_was_read = false;   // this call has another number than the trace: it is no trace of this call
  bool larger_than_call = false;  // a size of 1 was traced as a larger one: whether it serves this call, `sizes` says
  std::vector<BrokenMark> broken_marks;
  std::vector<NumberOfData> numbers_of_data;
  NumberProgram numbers;  // its values stand behind the required objects when reconstruction and effects run
  std::vector<int32_t> number_inputs;  // by graph input: step of `numbers`, or -1
  std::vector<int32_t> size_inputs;    // the same of ints that are sizes
  std::vector<NarrowedInput> narrowed_inputs;
  bool took_narrowed_inputs = false;  // also where it declined
  std::vector<WrappedInput> wrapped_gradients;
  std::vector<std::pair<int32_t, uint32_t>> written_wrappers;  // Capture::required; how often it is written
  std::vector<std::pair<int32_t, int32_t>> size_sources;       // by symbol, where a wrapped gradient's sizes are such
  std::vector<ReconstructionStep> reconstruction;
  bool calls = false;   // the reconstruction calls methods
  int32_t result = -1;  // register of the return value
  std::vector<Effect> effects;
  std::vector<FramePoint> frames;  // root first; not empty: the graph ends in a break, and there is no `result`
  bool yields = false;             // which is no break: the root is a generator's frame and stands before a yield
  static constexpr int32_t kAsBefore = -2;
  int32_t handled = kAsBefore;  // register of the exception that is being handled from here on; -1: none
  std::vector<StateChange> state;
  double seconds = 0;
  // What _torch_graph.py made of the program's calls of torch, owned; the graph has no gradients then. Null: they
  // were not asked for, or do not say all that the program does.
  PyObject* torch_graph = nullptr;
};
void release(Capture& capture);  // its references

// What to capture: a call of `function`, or the rest of one.
struct CaptureRequest {
  PyObject* function;
  // A call: the bound arguments in localsplus order. The rest of a call: localsplus, the stack, then the function
  // itself and the exception that is being handled (or None). kArgument sources count these. Borrowed.
  PyObject* const* slots;
  size_t count;
  int32_t next = -1;         // code unit of the instruction to start with; -1: a call
  bool may_break = false;    // else a break is a decline
  bool torch_calls = false;  // who takes the graph would rather have the program's calls of torch
  bool whole = false;        // nobody computes numbers beside the graph: those of sizes and of inputs are part of it
  // Where the program asks for sizes that follow from data, the usual answer is taken, with a check, and not a break.
  bool may_assume = false;
  bool steady_values =
      false;  // no version was left for a value yet: those that may be always the same are taken for it
  // Paths of numbers that were seen to change. Null: the one who takes the graph knows no numbers that change.
  const std::unordered_set<std::string>* varying_numbers = nullptr;
  // Whether it takes operators of ours in the place of what ATen takes apart (trace::Session::own_operators).
  bool own_operators = false;
  // Null: the one who takes the graph knows no sizes that change.
  const VaryingSizes* varying_sizes = nullptr;
  // What versions took for granted of sizes that follow from data, and is not so in this call. Null: nothing.
  const std::set<std::string>* refuted = nullptr;
  // The same of other calls: it is likely so again. Null: nothing.
  const std::set<std::string>* likely_refuted = nullptr;
  // Paths of modules, and of classes made in functions, that were seen to be other ones in each call.
  const std::unordered_set<std::string>* per_call_paths = nullptr;
};
Capture capture(const CaptureRequest& request);
bool capturing();  // in this thread

// What captures and guards ask of functions with an lru_cache does not count as calls of them while it lives.
class KeepCallCounts {
 public:
  KeepCallCounts();
  ~KeepCallCounts();
  KeepCallCounts(const KeepCallCounts&) = delete;
};

// GIL held. Arguments as for a vectorcall of `callable` (a Python function, a bound method's function with self first,
// ...). `bound` are the arguments in the root code's localsplus order (what kArgument sources count), borrowed.
Capture capture(PyObject* callable, PyObject* const* bound, size_t count);

// Runs reconstruction and effects. Returns a new reference, or null with a Python error set.
PyObject* rebuild(const Capture& capture, PyObject* const* objects, PyObject* const* graph_outputs);
// The same for a capture that ends in a break: fills `frames`, root first. False with a Python error set.
bool rebuild_frames(const Capture& capture, PyObject* const* objects, PyObject* const* graph_outputs,
                    std::vector<FrameState>& frames);

// For tests: runs the call in the interpreter for good (no tensors, no trace; writes stay). Null with a Python error,
// or with `declined` filled and everything undone.
PyObject* interpret(PyObject* callable, PyObject* args, PyObject* kwargs, std::string* declined);

}  // namespace flashover::frame
