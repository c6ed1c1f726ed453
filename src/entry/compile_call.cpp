// A miss: capture the call, guard it, hand the graph to the backend. Everything that can go wrong ends here in an entry
// that says why such calls stay eager.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/decimal.h"
#include "base/interrupt.h"
#include "base/notice.h"
#include "base/options.h"
#include "base/passing_failure.h"
#include "base/stack.h"
#include "entry/background.h"
#include "entry/checked.h"
#include "entry/data_cases.h"
#include "entry/dump_repro.h"
#include "entry/eager.h"
#include "entry/entry.h"
#include "entry/filter_guards.h"
#include "entry/log.h"
#include "entry/program.h"
#include "entry/race_clock.h"
#include "entry/run_entry.h"
#include "entry/torch_config.h"
#include "entry/torch_told.h"
#include "entry/wrapped_inputs.h"
#include "frame/fetched_error.h"
#include "frame/marks.h"
#include "frame/signals.h"
#include "graph/analysis/devices.h"
#include "guards/global_state.h"
#include "trace/exchange.h"
#include "trace/trace.h"

namespace flashover::entry {
namespace {

class Clock {
 public:
  double lap() {
    auto now = std::chrono::steady_clock::now();
    double s = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return s;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Failures of the compiler or the machine are said once per cause, as a warning. False: the warning was turned into an
// error.
bool warn_once(const std::string& text, const std::string& cause) {
  static std::set<std::string> said;  // GIL held
  if (!said.insert(cause).second) return true;
  return PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) == 0;
}

bool warn_once(const std::string& text) { return warn_once(text, text); }

// What the stages had to say.
bool say_notices() {
  for (const std::string& text : take_notices())
    if (!warn_once(text, cause_of(text))) return false;
  return true;
}

// One fact for each input that lies in another one's memory.
void record_shared_inputs(frame::Capture& c) {
  std::unordered_map<int32_t, guards::SourceId> first;
  for (size_t i = 0; i < c.input_sources.size(); i++) {
    const guards::SourceId source = c.input_sources[i];
    const int32_t storage = c.graph.values[c.graph.inputs[i].value].storage;
    if (source == guards::kNoSource || storage < 0) continue;
    if (auto [found, isnew] = first.emplace(storage, source); !isnew)
      c.observations.facts.push_back({guards::FactKind::kTensorAliases, source, nullptr, found->second});
  }
}

// as_strided counts from the start of the storage, not of the tensor.
bool counts_from_storage(const graph::Graph& g) {
  for (const graph::Node& n : g.nodes)
    if (n.op->name.find("as_strided") != std::string::npos) return true;
  return false;
}

// A failure of the moment is met by the next call again, as far as one knows, if so many came in a row. GIL held.
constexpr int kTries = 3;
int& failures_in_a_row() {
  static int failures = 0;
  return failures;
}

struct Attempt {
  const Settings& settings;
  Entry& entry;
  EntryPtr shared;     // the same entry
  bool fatal = false;  // a Python error is set and must reach the caller

  // The call stays eager. fullgraph turns that into an error.
  void decline(const std::string& reason, const std::string& where, const char* error = "Unsupported",
               bool forbidden = false) {
    entry.kind = Entry::Kind::kEager;
    entry.reason = reason;
    entry.where = where;
    if (!(settings.fullgraph || forbidden) || !error) return;
    raise(error, (where.empty() ? "" : where + ": ") + reason, reason, where, entry.capture.stack);
    fatal = true;
  }
  // A backend of the user's own raised: that is an error, not a reason to go on eager.
  void backend_raised(python_error& error) {
    error.restore();
    fatal = true;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return;  // interrupts pass
    frame::FetchedError inner;
    inner.normalize();
    if (inner.trace) PyException_SetTraceback(inner.value, inner.trace);
    PyObject* text = PyObject_Str(inner.value);
    const char* utf8 = text ? PyUnicode_AsUTF8(text) : nullptr;
    std::string what = std::string(Py_TYPE(inner.value)->tp_name) + ": " + (utf8 ? utf8 : "?");
    Py_XDECREF(text);
    if (backends_may_fail() && !settings.fullgraph) {  // as the program asked
      PyErr_Clear();
      fatal = false;
      return fail(what);
    }
    raise("BackendCompilerFailed", "backend '" + settings.backend + "' raised:\n" + what, what, "");
    frame::FetchedError outer;
    outer.normalize();
    PyObject_SetAttrString(outer.value, "inner_exception", inner.value);
    PyObject* backend = PyUnicode_FromString(settings.backend.c_str());
    if (backend != nullptr) PyObject_SetAttrString(outer.value, "backend_name", backend);
    Py_XDECREF(backend);
    PyErr_Clear();
    PyException_SetCause(outer.value, std::exchange(inner.value, nullptr));  // steals
    outer.restore();
  }
  // This call runs eager, or raises under fullgraph; the next one tries again.
  void run_out_of_memory() {
    if (settings.fullgraph) {
      PyErr_NoMemory();
      fatal = true;
      return;
    }
    entry.kind = Entry::Kind::kEager;
    entry.transient = true;
    entry.cause = EagerCause::kSaid;
    entry.reason = "out of memory";
    log(Topic::kBreaks, settings.name + ": runs eager: out of memory");
    const std::string text = "flashover: there was no memory to compile " + settings.name + ", this call runs eager";
    fatal = !warn_once(text);
  }
  // Not this graph's doing alone: said once for all calls that meet it.
  void blame(const Declined& d, const std::string& beginning) {
    entry.cause = EagerCause::kSaid;
    decline(d.reason, d.where, "BackendCompilerFailed");
    const std::string text = beginning + d.reason;
    if (!fatal) fatal = !warn_once(text, cause_of(text));
  }
  void fail(const std::string& what) {
    entry.kind = Entry::Kind::kEager;
    entry.reason = "compiler failure: " + what;
    entry.cause = EagerCause::kSaid;
    if (settings.fullgraph) {
      raise("BackendCompilerFailed", "backend '" + settings.backend + "' failed: " + what, what, "");
      fatal = true;
    } else {
      fatal = !warn_once("flashover: compiling " + settings.name + " failed, it runs eager: " + what);
    }
  }
};

void connect_inputs(Entry& e) {
  const frame::Capture& c = e.capture;
  FLASHOVER_CHECK(c.input_sources.size() == c.graph.inputs.size())
      << c.input_sources.size() << " input sources for " << c.graph.inputs.size() << " graph inputs";
  size_t next = 0, constant = 0;
  // Of a number that `steps` lists. False: input i is none.
  const auto add_number = [&](size_t i, const std::vector<int32_t>& by_input, const std::vector<int32_t>& steps,
                              int32_t kind) {
    if (i >= by_input.size() || by_input[i] < 0) return false;
    const auto at = std::find(steps.begin(), steps.end(), by_input[i]) - steps.begin();
    e.inputs.push_back(kind + static_cast<int32_t>(at));
    return true;
  };
  for (size_t i = 0; i < c.input_sources.size(); i++) {
    const guards::SourceId s = c.input_sources[i];
    if (c.graph.inputs[i].kind == graph::InputKind::kTangent) continue;  // comes when the backward runs
    if (add_number(i, c.number_inputs, c.numbers.inputs, kNumberInput)) continue;
    if (add_number(i, c.size_inputs, c.numbers.sizes, kSizeInput)) continue;
    const auto gradient = [&](const frame::WrappedInput& w) {
      return std::ranges::find(w.inputs, static_cast<int32_t>(i)) != w.inputs.end();
    };
    if (std::ranges::any_of(c.wrapped_gradients, gradient)) {
      e.inputs.push_back(kGradientInput);
      continue;
    }
    const auto narrowed =
        std::find_if(c.narrowed_inputs.begin(), c.narrowed_inputs.end(),
                     [&](const frame::NarrowedInput& p) { return p.input == static_cast<int32_t>(i); });
    if (narrowed != c.narrowed_inputs.end()) {
      e.inputs.push_back(kNarrowedInput + static_cast<int32_t>(narrowed - c.narrowed_inputs.begin()));
      continue;
    }
    if (s == guards::kNoSource) {
      FLASHOVER_CHECK(constant < c.constants.size()) << "a graph input without a tensor";
      e.constants.push_back(THPVariable_Unpack(c.constants[constant]));
      e.inputs.push_back(-1 - static_cast<int32_t>(constant++));
      continue;
    }
    while (next < c.required.size() && c.required[next] != s) next++;
    FLASHOVER_CHECK(next < c.required.size()) << "a graph input whose source is not required";
    e.inputs.push_back(static_cast<int32_t>(next++));
  }
  e.required = c.required.size();
  e.borrowed.assign(e.inputs.size(), false);
}

// Such operators sum up in their own order.
bool takes_own_operators(const Settings& s) {
  return s.backend == "flashover" && !s.custom && !s.options.flag("strict_numerics") &&
         !s.options.flag("batch_invariant");
}

// Captures the call and makes its guards. False: the entry says what came of it.
bool capture_and_guard(Attempt& a, const frame::CaptureRequest& request, bool first = true) {
  Entry& e = a.entry;
  Clock clock;
  guards::GlobalState before = guards::GlobalState::read();
  frame::CaptureRequest asked = request;
  asked.own_operators = takes_own_operators(a.settings);
  e.capture = frame::capture(asked);
  e.capture_seconds = clock.lap();
  if (PyErr_Occurred()) {  // an interrupt, not the program's own doing
    a.fatal = true;
    return false;
  }
  if (std::string moved = before.difference(guards::GlobalState::read()); !moved.empty())
    throw InternalError("capture left torch's state changed: " + moved);
  frame::Capture& c = e.capture;
  if (c.out_of_memory && !c.raised) throw std::bad_alloc();
  const bool interfered = c.declined && trace::exchange().interfered;
  e.transient = c.out_of_memory || interfered;
  if (interfered) {                    // nothing that fullgraph forbids: it could be captured another time
    e.cause = EagerCause::kRequested;  // no warning: it passes
    a.decline(c.reason, c.where, nullptr);
    return false;
  }
  e.ops = static_cast<int64_t>(c.graph.nodes.size());
  const bool compiles = !c.declined && !c.raised;
  if (compiles) {
    if (counts_from_storage(c.graph))
      for (guards::SourceId s : c.input_sources)
        if (s != guards::kNoSource) c.observations.facts.push_back({guards::FactKind::kStorageOffset, s});
    // Memory shared between inputs matters only when some of it is written; then it must be shared as it was here.
    if (!graph::writes_an_input(c.graph))
      std::erase_if(c.observations.facts,
                    [](const guards::Fact& f) { return f.kind == guards::FactKind::kNotAliases; });
    else
      record_shared_inputs(c);
    if (a.settings.backend == kExportBackend) note_of_program(e);
  }
  if (compiles && a.settings.guard_filter != nullptr) filter_guards(c, a.settings.guard_filter);
  std::vector<guards::SourceId> required = compiles ? c.required : std::vector<guards::SourceId>{};
  try {
    e.guards = guards::build(std::exchange(c.observations, {}), required);
  } catch (const Declined& d) {
    // What the trace does once for good (an import, a cache that is filled) may have changed what it read before.
    if (!c.raised && first) {
      frame::release(c);
      c = {};
      return capture_and_guard(a, request, false);
    }
    a.decline(d.reason, d.where);
    return false;
  }
  e.timed = e.guards->worth_a_clock();
  e.guard_seconds = clock.lap();
  if (logged(Topic::kGuards))
    for (const std::string& w : e.guards->describe()) log(Topic::kGuards, a.settings.name + ": " + w);
  return true;
}

// The call was not captured: it stays eager, or raises.
void decline_capture(Attempt& a, const frame::CaptureRequest& request) {
  Entry& e = a.entry;
  frame::Capture& c = e.capture;
  if (c.declined) {
    counters().graph_breaks++;
    tell_break(c.reason);
  }
  const bool marked = frame::mark_of(request.function) == frame::Mark::kDisallow;
  if (marked) e.cause = EagerCause::kRequested;
  e.alone = c.differentiated_twice || frame::disables_callees(request.function);
  if (!c.reason_to_stay.empty())
    log(Topic::kBreaks, a.settings.name + ": cannot go on after the break: " + c.reason_to_stay, c.reason_to_stay);
  if (c.raised) e.cause = EagerCause::kRaises;
  a.decline(c.raised && c.reason.empty() ? "the program raised an exception while it was traced" : c.reason, c.where,
            c.raised ? nullptr : "Unsupported", c.must_raise);
}

// Marks that the program contradicts are an error, as torch's. False: an error is set.
bool accept(Attempt& a, const std::vector<frame::BrokenMark>& marks) {
  std::string said, warned, where;
  for (const frame::BrokenMark& m : marks) {
    const std::string text = "\n  - " + part_in_words(m.path, m.dim) + " is marked as dynamic, but " + m.reason +
                             (m.where.empty() ? "" : " at " + with_text(m.where));
    (m.ours ? warned : said) += text;
    if (!m.ours && where.empty()) where = m.where;
  }
  if (said.empty())
    return a.fatal = !warn_once("flashover: " + a.settings.name + " is compiled for single sizes:" + warned), !a.fatal;
  const std::string how =
      "\nLeave the mark out, use torch._dynamo.maybe_mark_dynamic or other bounds, or change what asks.";
  raise("ConstraintViolationError", a.settings.name + ": sizes that were marked are not so:" + said + how, said, where,
        a.entry.capture.stack);
  a.fatal = true;
  return false;
}

void keep_texts(Attempt& a, bool pipeline) {
  Entry& e = a.entry;
  frame::Capture& c = e.capture;
  e.report.want_texts = a.settings.keep_text || logged(Topic::kPlan) || logged(Topic::kKernels);
  if (dumping()) e.report.dump_number = compile::next_dump_number();
  if (a.settings.keep_text || dumping() || logged(Topic::kGraph)) {
    std::string text = graph::print(c.graph);
    log(Topic::kGraph, a.settings.name + ":\n" + text);
    if (!pipeline) {  // else the pipeline does it, stage by stage
      dump(e.report.dump_number, a.settings.name, "traced.txt", text);
      e.report.texts.emplace_back("traced", std::move(text));
    }
  }
}

// The inputs of this call, for backends that look at examples.
std::vector<at::Tensor> example_inputs(Entry& e, PyObject* const* bound) {
  const frame::Capture& c = e.capture;
  std::vector<PyObject*> objects(e.required), values;
  if (!e.guards->check(bound, objects.data()))
    throw InternalError("guards fail right after the trace: " + e.guards->explain_failure(bound));
  std::vector<at::Tensor> examples;
  std::shared_ptr<NumberTensors> numbers;
  if (!c.numbers.empty()) {
    if (!frame::evaluate(c.numbers, objects.data(), read_item, values))
      throw Declined("a number does not fit its tensors");
    objects.insert(objects.end(), values.begin(), values.end());
    numbers = number_tensors(e, objects.data());
    for (PyObject* v : values) Py_DECREF(v);
  }
  for (int32_t i : e.inputs) examples.push_back(graph_input(e, i, objects.data(), numbers.get()));
  make_wrapped_inputs(e, objects.data(), examples.data(), nullptr);
  return examples;
}

// Without those that only make numbers.
size_t calls_of(const graph::Graph& g) {
  return static_cast<size_t>(std::ranges::count_if(g.nodes, [](const graph::Node& n) {
    bool takes_values = false;
    for (const auto& a : n.args) graph::for_each_ref(a, [&](auto) { takes_values = true; });
    return takes_values;
  }));
}

// False: an error is set.
bool run_backend(Attempt& a, const std::vector<at::Tensor>& examples, bool pipeline) {
  Entry& e = a.entry;
  frame::Capture& c = e.capture;
  counters().graphs++;
  tell_graph(calls_of(c.graph));
  const auto run_by = [&](const std::string& backend) {
    if (c.torch_graph != nullptr) {
      e.report.extern_calls = static_cast<int64_t>(c.graph.nodes.size());
      c.own_counters.clear();  // torch counts
      e.runner = make_torch_runner(c, a.settings.custom, examples);
      return;
    }
    graph::Graph graph = c.graph;
    const Request request{backend, a.settings.custom, a.settings.options, examples, c.joint, c.version_steps};
    e.runner = a.settings.watcher ? make_checked(std::move(graph), request, e.report, a.settings.watcher)
                                  : make_runner(std::move(graph), request, e.report);
  };
  try {
    run_by(a.settings.backend);
  } catch (python_error& error) {  // the user's backend raised
    a.backend_raised(error);
    return false;
  } catch (const EnvironmentFailure&) {  // no graph of this machine would compile
    throw;
  } catch (const Declined& d) {
    // fullgraph forbids to run the program itself: the graph runs operator by operator, or it is an error.
    if (!a.settings.fullgraph || !pipeline || !c.numbers.empty() || !c.narrowed_inputs.empty() || !c.sizes.empty())
      throw;
    static const std::string kOperators = "eager";
    run_by(kOperators);
    e.ours = false;
    e.reason = d.reason;
    const std::string text = "flashover: " + a.settings.name +
                             " is captured whole, but its graph runs eager, operator by operator: " + d.reason;
    if (!warn_once(text)) {
      a.fatal = true;
      return false;
    }
  }
  return true;
}

void note_compiled(Attempt& a) {
  Entry& e = a.entry;
  for (size_t i = 0; i < e.inputs.size(); ++i)  // what is made for a call has no other owner
    e.borrowed[i] = e.inputs[i] < kGradientInput && e.runner->borrows(i);
  for (const auto& [symbol, source] : e.report.kernel_sources) {
    log(Topic::kKernels, source);
    dump(e.report.dump_number, a.settings.name, "kernel_" + symbol + (source.starts_with("import ") ? ".py" : ".cpp"),
         source);
  }
  for (const auto& [stage, text] : e.report.texts)
    if (stage == "plan" || stage.starts_with("plan_")) log(Topic::kPlan, a.settings.name + ", " + stage + ":\n" + text);
  if (!a.settings.keep_text) {
    e.report.texts.clear();
    e.report.kernel_sources.clear();
  }
  if (!e.report.cache_note.empty() && !warn_once(e.report.cache_note)) {
    a.fatal = true;
    return;
  }
  e.kind = Entry::Kind::kCompiled;
  counters().frames++;
  counters().kernels += e.report.kernels;
  counters().extern_calls += e.report.extern_calls;
  counters().cache_hits += e.report.cache_hit;
}

// Runs what compiles; whatever goes wrong ends in the entry, or in a Python error that must reach the caller.
void contained(Attempt& a, const std::function<void()>& compile) {
  Entry& entry = a.entry;
  try {
    with_stack(kCompileStack, compile);
  } catch (const PassingFailure& e) {
    a.blame(e, "flashover: this call runs eager, as others will while it lasts: ");
    entry.transient = ++failures_in_a_row() < kTries;
  } catch (const EnvironmentFailure& e) {
    a.blame(e, "flashover: calls run eager, this machine cannot compile them: ");
  } catch (const SlowKernel& e) {
    a.blame(e, "flashover: such calls run eager: ");
  } catch (const Declined& d) {
    a.decline(d.reason, d.where, "BackendCompilerFailed");
  } catch (const UserError& e) {
    a.fail(e.what());
  } catch (python_error& e) {
    e.restore();
    a.fatal = true;
  } catch (const Interrupted&) {  // the handler's error is set
    a.fatal = true;
  } catch (const std::bad_alloc&) {
    a.run_out_of_memory();
  } catch (const std::exception& e) {
    a.fail(e.what());
  }
  if (entry.kind == Entry::Kind::kCompiled) failures_in_a_row() = 0;
}

// The second half of attempt(), on the background's thread. settings: without fullgraph, which is for calls to raise.
void compile_unattended(const Settings& settings, const EntryPtr& entry, const std::vector<at::Tensor>& examples) {
  Attempt a{settings, *entry, entry};
  Clock clock;
  const std::shared_ptr<BackgroundJob> job = entry->pending;
  contained(a, [&] {
    if (run_backend(a, examples, true)) note_compiled(a);
  });
  entry->pending.reset();
  entry->total_seconds += clock.lap();
  if (!a.fatal) a.fatal = !say_notices();
  if (entry->kind == Entry::Kind::kCompiled) {
    entry->alone = false;
    entry->cause = EagerCause::kDeclined;
    entry->reason.clear();
    if (may_race(settings, *entry)) entry->racing = std::make_shared<RaceClock>();
    return;
  }
  entry->runner.reset();
  if (entry->cause == EagerCause::kRequested) entry->cause = EagerCause::kDeclined;  // there was no warning yet
  if (!a.fatal) {
    entry->again_with_numbers = !entry->capture.sizes.empty();
    entry->static_because = entry->reason;
  } else if (job->stop.stopped) {
    entry->cause = EagerCause::kRequested;
    entry->reason = "compiling it in the background was cancelled";
  } else if (job->stop.over()) {
    entry->reason = "compiling it in the background took longer than the option compile_deadline allows";
  } else {
    entry->reason = "compiling it in the background raised an exception";
  }
}

// Calls of this entry run eager until it is compiled.
void compile_in_background(Attempt& a, std::vector<at::Tensor> examples) {
  Entry& e = a.entry;
  Settings settings = a.settings;
  settings.fullgraph = false;
  e.kind = Entry::Kind::kEager;
  e.cause = EagerCause::kRequested;
  e.reason = "it is being compiled in the background";
  e.alone = true;
  e.pending = std::make_shared<BackgroundJob>();
  e.pending->seconds = static_cast<double>(int_option(settings.options.values, "compile_deadline"));
  const EntryPtr entry = a.shared;
  e.pending->work = [entry, settings, examples = std::move(examples)] {
    compile_unattended(settings, entry, examples);
  };
  e.pending->dropped = [entry] {
    entry->reason = "compiling it in the background was cancelled";
    entry->pending.reset();
  };
  compile_later(e.pending);
}

// What was captured of a call with larger sizes may not be this call's.
bool is_of_this_call(Entry& e, const frame::CaptureRequest& request) {
  const frame::Capture& c = e.capture;
  if (!c.larger_than_call) return true;
  if (c.declined || c.raised || c.larger_was_read || !c.broken_marks.empty()) return false;
  // A size that is one number is compared as the tensor has it, and not with what the trace took it for.
  if (std::ranges::any_of(c.size_symbols,
                          [](const frame::SizeSymbol& s) { return s.fixed && s.value == trace::kInsteadOfFew; }))
    return false;
  e.required = c.required.size();
  SourceObjects objects;
  return objects.match(e, request.slots);
}

// A graph of torch's calls has no checks of what the capture took for granted, and no writes that the trace knows how
// to hand to autograd only together with the backward.
bool is_better_traced(const frame::Capture& c) {
  // (Checks of sizes that follow from data are in the graph, and a call that fails one runs again.)
  return c.declined || c.assumes || (c.data_sizes && !graph::repeatable(c.graph)) || !c.narrowed_inputs.empty() ||
         std::ranges::any_of(c.graph.nodes,
                             [](const graph::Node& n) { return n.op->check && n.op->name != op::check_sizes; });
}

void forget_capture(Entry& e) {
  frame::release(e.capture);
  e.capture = {};
  e.guards.reset();
  e.runner.reset();
  e.spare.reset();  // of the numbers that it had
  e.inputs.clear();
  e.constants.clear();
  e.report = {};
}

void attempt(Attempt& a, const frame::CaptureRequest& given) {
  Entry& e = a.entry;
  frame::Capture& c = e.capture;
  std::optional<frame::KeepCallCounts> keep(std::in_place);
  frame::CaptureRequest request = given;
  request.torch_calls = a.settings.custom != nullptr && takes_torch_calls(a.settings.custom);
  std::optional<frame::VaryingSizes> as_they_are;
  if (!capture_and_guard(a, request)) return;
  if (!is_of_this_call(e, request)) {
    forget_capture(e);
    as_they_are = *given.varying_sizes;
    as_they_are->few = false;
    request.varying_sizes = &*as_they_are;
    if (!capture_and_guard(a, request)) return;
  }
  if (c.torch_graph != nullptr && is_better_traced(c)) {
    forget_capture(e);
    request.torch_calls = false;
    if (!capture_and_guard(a, request)) return;
  }
  // What symbols were compared with before the program raised is in no guard: for other numbers it may not raise.
  if (c.raised && c.varies) e.transient = true;
  if (c.declined || c.raised) return decline_capture(a, request);
  if (!c.broken_marks.empty() && !accept(a, c.broken_marks)) return;
  e.takes = facts_taken(c.graph);
  e.assumes = c.assumes;
  const bool of_calls = c.torch_graph != nullptr && c.data_sizes;
  e.repeatable = (a.settings.custom == nullptr || of_calls) && graph::repeatable(c.graph);
  const bool breaks = !c.frames.empty();
  if (breaks && !c.yields) {
    counters().graph_breaks++;
    tell_break(c.reason);
    log(Topic::kBreaks, a.settings.name + ": graph break: " + c.reason + (c.where.empty() ? "" : " at " + c.where),
        c.reason, c.stack);
  }
  connect_inputs(e);
  if (c.graph.nodes.empty() &&
      (breaks ? c.graph.outputs.empty() : request.next >= 0)) {  // only Python between two breaks
    e.trivial = !breaks || c.yields;
    e.kind = e.trivial ? Entry::Kind::kEager : Entry::Kind::kCompiled;
    return;
  }
  const bool pipeline = a.settings.backend == "flashover" && !a.settings.custom;
  e.ours = pipeline;
  keep_texts(a, pipeline);
  if (pipeline && c.joint.present && graph::uses_cuda(c.graph) &&
      !bool_option(a.settings.options.values, "cuda_training")) {
    e.cause = EagerCause::kRequested;
    a.decline("the option cuda_training is off", "", nullptr);
    return;
  }
  const std::vector<at::Tensor> examples = example_inputs(e, request.slots);
  if (dumping() && pipeline)
    dump_repro(e.report.dump_number, a.settings.name, c.graph, examples, a.settings.options.values);
  keep.reset();  // other threads go on while the kernels are built, and their calls count
  if (compiles_in_background(a.settings)) return compile_in_background(a, examples);
  if (run_backend(a, examples, pipeline)) note_compiled(a);
}

// With symbols for the sizes that change; where some stage cannot do with them, with the numbers of this call.
void attempt_with_sizes(Attempt& a, const frame::CaptureRequest& request) {
  Entry& e = a.entry;
  try {
    return attempt(a, request);
  } catch (const EnvironmentFailure&) {
    throw;
  } catch (const Declined& d) {
    if (e.capture.sizes.empty()) throw;
    e.static_because = d.reason;
  } catch (const InternalError& error) {
    if (e.capture.sizes.empty()) throw;
    e.static_because = error.what();
  }
  const std::string said = a.settings.name + ": compiled for the sizes of this call alone: " + e.static_because;
  log(Topic::kRecompiles, said);
  if (std::ranges::any_of(e.capture.size_symbols, [](const frame::SizeSymbol& s) { return s.marked; }) &&
      !warn_once("flashover: sizes that were marked are numbers: " + said)) {
    a.fatal = true;
    return;
  }
  forget_capture(e);
  frame::CaptureRequest fixed = request;
  fixed.varying_sizes = nullptr;
  attempt(a, fixed);
}

}  // namespace

Entry::~Entry() {
  frame::release(capture);
  for (PyObject* w : alive) Py_DECREF(w);
}

Counters& counters() {
  static Counters c;
  return c;
}

EntryPtr compile_call(const Settings& settings, const frame::CaptureRequest& request, Recompile again) {
  static int64_t made = 0;  // GIL held
  auto entry = std::make_shared<Entry>();
  entry->serial = made++;
  entry->started = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  if (request.refuted)
    entry->refuted = *request.refuted;
  else if (request.likely_refuted)
    entry->likely_refuted = *request.likely_refuted;
  entry->again = std::move(again);
  Attempt a{settings, *entry, entry};
  Clock clock;
  const frame::HeldSignals held;
  // A signal that Python had noted before them would have its handler run in the middle of the trace.
  if (frame::run_signal_handlers()) return nullptr;
  Progress progress(settings.name);
  const ToldCompilation told;
  if (told.raised()) return nullptr;
  contained(a, [&] { attempt_with_sizes(a, request); });
  if (!a.fatal) a.fatal = !say_notices() || frame::run_signal_handlers();
  entry->total_seconds = clock.lap();
  if (a.fatal) return nullptr;
  tell_frame(entry->kind == Entry::Kind::kCompiled);
  if (logged(Topic::kTimes)) {
    std::string line = settings.name + ": " + fixed_decimal(entry->total_seconds, 6) + " s: capture " +
                       fixed_decimal(entry->capture_seconds, 6) + ", guards " + fixed_decimal(entry->guard_seconds, 6);
    for (const auto& s : entry->report.stages) line += ", " + s.name + " " + fixed_decimal(s.seconds, 6);
    log(Topic::kTimes, line);
  }
  if (entry->kind == Entry::Kind::kEager && !entry->pending) {
    entry->runner.reset();
    guards::release(entry->capture.observations);
  }
  return entry;
}

}  // namespace flashover::entry
