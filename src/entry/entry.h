// The compiled callable: what flashover.compile returns for a function, and what a compiled module calls.
//
//   In        a Python function (perhaps with a first argument bound), settings; calls
//   Out       the function's results
//   Promises  a call gives what the function itself would give; a cached entry runs without running Python; a failure
//             to compile is never a failure of the call (but under fullgraph, where it raises)
//   Declines  nothing: what cannot be compiled runs as it is, and explain() says why
// A call binds its arguments (binder.h), tries its entries most recently used first (their guards), runs the one that
// matches (backend.h) and rebuilds the result. A miss captures and compiles a new entry (compile_call.cpp).
#pragma once
#include <Python.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compile/compile.h"
#include "entry/backend.h"
#include "entry/binder.h"
#include "entry/eager.h"
#include "entry/recompiles.h"
#include "frame/frame.h"
#include "guards/guards.h"

namespace flashover::entry {

class RaceClock;
struct BackgroundJob;

struct Settings {
  std::string name;  // for people: "resnet18", "f"
  std::string backend = "flashover";
  PyObject* custom = nullptr;        // a Python backend; owned by the callable
  PyObject* guard_filter = nullptr;  // the option guard_filter_fn; owned by the callable
  PyObject* watcher = nullptr;       // sees each graph and each call of it (checked.h); owned by the callable
  bool fullgraph = false;
  std::optional<bool> dynamic;  // sizes of all inputs are symbols, or of none; else of those that were marked
  bool forced = false;          // its backend stands in for that of another callable (set_stance)
  bool keep_text = false;       // reports hold the text of every stage
  compile::Options options;
};

// The numbers that are inputs of a graph, as 0-d tensors.
struct NumberTensors {
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> sizes;  // of so many elements, for ints that are sizes
};
constexpr int32_t kNumberInput = 1 << 30, kNarrowedInput = 1 << 29, kSizeInput = 1 << 28, kGradientInput = 1 << 27;
PyObject* read_item(PyObject* tensor, DType dtype);  // frame::ReadItem

// The backend "export" makes nothing that runs: its entries hold the graph (program.h).
constexpr std::string_view kExportBackend = "export";
// Something that a trace saw of a tensor among the arguments, beyond its type.
struct SeenOfTensor {
  std::string fact;                  // in words
  const PyObject* tensor = nullptr;  // its address
};

// The result of one compilation: a way to run calls that match `guards`.
struct Entry {
  enum class Kind : uint8_t { kCompiled, kEager };  // kEager: such calls are known not to compile
  Kind kind = Kind::kEager;
  std::unique_ptr<guards::GuardProgram> guards;
  frame::Capture capture;  // observations have moved into the guards
  // What it takes for granted of sizes that follow from data, in words (true: an equality); what the call that it was
  // made for had been found to be otherwise than other versions take it.
  std::vector<std::pair<std::string, bool>> takes;
  std::set<std::string> refuted;
  std::set<std::string> likely_refuted;  // the same of a version that served calls before it was made
  bool assumes = false;        // it would have breaks where it takes such things for granted (frame::Capture::assumes)
  uint64_t unexpected = 0;     // calls that were otherwise than it takes for granted
  std::string static_because;  // why sizes that were to be symbols are numbers after all
  bool general = false;        // made when the limit was reached, with symbols for all sizes
  std::unique_ptr<Runner> runner;
  // Per graph input: index into the required objects, -1 - index into constants, kNumberInput + index into
  // capture.numbers.inputs, kNarrowedInput + index into capture.narrowed_inputs, kSizeInput + index into
  // capture.numbers.sizes; kGradientInput: made when all others are there (wrapped_inputs.h).
  std::vector<int32_t> inputs;
  std::vector<bool> borrowed;            // by graph input: the runner needs no reference of its own to it
  bool ours = false;                     // its graph runs as our kernels, which keep no inputs
  std::shared_ptr<NumberTensors> spare;  // of an earlier call, to be used again when nothing holds it
  std::vector<at::Tensor> constants;
  size_t required = 0;
  // The modules among the arguments of the call it was made for: their addresses, and weak references to them (owned).
  std::string modules;
  std::vector<PyObject*> alive;
  std::vector<SeenOfTensor> seen;    // the backend "export"
  std::vector<std::string> written;  // likewise: by effect, what it does, in words
  bool transient = false;            // no memory to compile it, or no room for files: another call may try again
  bool repeatable = false;  // its graph writes nothing and draws no random numbers: a run that raised left no trace
  int64_t hits = 0;
  bool timed = false;  // has guards on so many dicts that it pays to know whether any changed
  // Of dicts, at the end of the last call, if none changed meanwhile that the guards look at; else 0.
  uint64_t clock = 0;
  uint64_t result_ticks = ~uint64_t{0};  // what making a result takes, at least
  // It is compiled in the background; with symbols for sizes that failed, and calls are to be captured again without.
  std::shared_ptr<BackgroundJob> pending;
  bool again_with_numbers = false;
  std::shared_ptr<RaceClock> racing;  // its calls are timed against the program's
  // For explain().
  int64_t serial = 0;    // in the order they were made
  int64_t version = 0;   // the same, of those for one site
  bool trivial = false;  // kEager: nothing in it to compile
  bool alone = false;    // kEager: nor are the functions that it calls taken on
  EagerCause cause = EagerCause::kDeclined;
  std::string reason, where;  // kEager: why
  std::string continues;      // what comes after a graph break: where it starts
  Recompile again;            // why, if it was compiled again
  double started = 0;         // when its compilation began, in seconds of the steady clock (Python's perf_counter)
  double capture_seconds = 0, guard_seconds = 0, total_seconds = 0;
  int64_t ops = 0;
  compile::Report report;
  ~Entry();
};
using EntryPtr = std::shared_ptr<Entry>;

// `objects`: the entry's objects with its numbers behind them.
std::shared_ptr<NumberTensors> number_tensors(Entry& e, PyObject* const* objects);
at::Tensor narrowed_input(const Entry& e, size_t index, PyObject* const* objects);
// What an element of Entry::inputs stands for in a call.
inline at::Tensor graph_input(const Entry& e, int32_t i, PyObject* const* objects, const NumberTensors* numbers) {
  if (i < 0) return e.constants[-1 - i];
  if (i >= kNumberInput) return numbers->tensors[i - kNumberInput];
  if (i >= kNarrowedInput) return narrowed_input(e, static_cast<size_t>(i - kNarrowedInput), objects);
  if (i == kGradientInput) return {};
  return i >= kSizeInput ? numbers->sizes[i - kSizeInput] : THPVariable_Unpack(objects[i]);
}

// Totals since the process started.
struct Counters {
  int64_t frames = 0, graphs = 0, kernels = 0, graph_breaks = 0, extern_calls = 0, recompiles = 0, cache_hits = 0;
  int64_t eager_calls = 0, eager_frames = 0;  // eager.h
};
Counters& counters();  // GIL held

// Makes an entry for a call with these bound arguments, or for the rest of one after a graph break. GIL held, one at a
// time per process. Never throws; null with a Python error set when the call must raise (fullgraph, interrupts).
EntryPtr compile_call(const Settings& settings, const frame::CaptureRequest& request, Recompile again);

// The Python type CompiledCallable; adds it to the module. Returns false with an error set.
bool add_callable_type(PyObject* module);
// The Python type Disabled: calls a function as it is. A C callable that no capture knows, so a capture stops there.
bool add_disabled_type(PyObject* module);

}  // namespace flashover::entry
