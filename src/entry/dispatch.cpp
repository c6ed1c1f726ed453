// A call of what flashover.compile returned: which entry serves it, what makes one on a miss, and every way by which it
// runs as the program is written instead.
#include <c10/util/SmallVector.h>

#include <optional>

#include "base/check.h"
#include "entry/background.h"
#include "entry/callable.h"
#include "entry/capture_lock.h"
#include "entry/continuations.h"
#include "entry/data_cases.h"
#include "entry/describe.h"
#include "entry/generator.h"
#include "entry/log.h"
#include "entry/lookup.h"
#include "entry/program.h"
#include "entry/python_graph.h"
#include "entry/race_clock.h"
#include "entry/run_entry.h"
#include "entry/stance.h"
#include "entry/torch_config.h"
#include "frame/marks.h"
#include "frame/resume.h"
#include "frame/signals.h"
#include "frame/tracers.h"
#include "guards/arrays.h"
#include "guards/objects.h"

namespace flashover::entry {
namespace {

PyObject* call_original(Callable* c, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  guards::let_go_of_arrays();
  if (c->through_call || !c->function) return PyObject_Vectorcall(c->self, args, nargsf, kwnames);
  if (!c->self) return PyObject_Vectorcall(c->function, args, nargsf, kwnames);
  size_t count =
      static_cast<size_t>(PyVectorcall_NARGS(nargsf)) + (kwnames ? static_cast<size_t>(PyTuple_GET_SIZE(kwnames)) : 0);
  c10::SmallVector<PyObject*, 16> with_self;
  with_self.push_back(c->self);
  with_self.append(args, args + count);
  return PyObject_Vectorcall(c->function, with_self.data(), static_cast<size_t>(PyVectorcall_NARGS(nargsf)) + 1,
                             kwnames);
}

// The same where the call would be compiled but for `reason`.
PyObject* call_original(Callable* c, EagerCause cause, const std::string& reason, PyObject* const* args, size_t nargsf,
                        PyObject* kwnames) {
  Py_INCREF(c);  // the warning, or the program, may drop it
  const bool fine = c->state->eager.note(c->state->settings, {.cause = cause, .reason = reason});
  PyObject* result = fine ? call_original(c, args, nargsf, kwnames) : nullptr;
  Py_DECREF(c);
  return result;
}

PyObject* call_eager(Callable* c, const Entry& entry, PyObject* const* args, size_t nargsf, PyObject* kwnames);

// An eager call that is expected to raise, as what was compiled did. Where it does not, that is worth a word.
PyObject* call_raising(Callable* c, const std::string& reason, PyObject* const* args, size_t nargsf,
                       PyObject* kwnames) {
  Py_INCREF(c);
  PyObject* result = call_original(c, EagerCause::kRaises, reason, args, nargsf, kwnames);
  static const std::string kOnly = ", and the program itself did not";
  if (result && !is_new_generator(result)) {
    const std::string text = reason + kOnly;
    if (!c->state->eager.warn(c->state->settings, {.reason = text}, calling_line())) Py_CLEAR(result);
  }
  Py_DECREF(c);
  return result;
}

// Its graph was captured whole for fullgraph, and runs operator by operator.
EagerLog::Event of_operators(const Entry& e) { return {EagerCause::kSaid, false, false, e.reason, e.where}; }
const std::string kCalleesUnderProfiler =
    "functions that are called at graph breaks are not compiled while a profiler is active (sys.setprofile)";

// What a capture of this call by what is known so far is to do. sizes: lives as long as it.
frame::CaptureRequest request_of(Callable* c, Bound& bound, const std::optional<frame::VaryingSizes>& sizes) {
  CallableState& s = *c->state;
  frame::CaptureRequest request{c->function, bound.slots(), static_cast<size_t>(s.signature.slots)};
  request.may_break = !s.settings.fullgraph;
  request.may_assume = s.may_assume;
  request.varying_numbers = &s.varying_numbers;
  request.varying_sizes = sizes ? &*sizes : nullptr;
  request.per_call_paths = &s.per_call.paths;
  return request;
}

// Where sizes that follow from data are otherwise than the versions that ran take them. Null: none serves the call, or
// an error is set.
EntryPtr other_case(Callable* c, Bound& bound, SourceObjects& objects, const DataCase& seen) {
  CallableState& s = *c->state;
  return find_case(s.entries, bound.slots(), objects, seen, [&]() -> EntryPtr {
    const auto slots = static_cast<size_t>(s.signature.slots);
    const std::vector<EntryPtr> same = entries_of(s.entries, modules_among(bound.slots(), slots, s.per_call));
    if (same.size() >= s.limit || !may_compile_again()) return nullptr;
    const Held function(c->function);
    const std::optional<frame::VaryingSizes> sizes = s.sizes.wanted(s.settings);
    frame::CaptureRequest request = request_of(c, bound, sizes);
    request.refuted = &seen.refuted(!s.settings.fullgraph);
    Settings settings = s.settings;
    settings.fullgraph = false;  // a case that cannot be compiled is no error: the call runs eager
    EntryPtr made = make_entry(s, settings, s.settings.name, request, seen.why(), s.made);
    if (made && !made->transient) note_modules(*made, bound.slots(), slots, s.per_call);
    return made;
  });
}

// The args are for a call that must be repeated in eager.
PyObject* run_call(Callable* c, const EntryPtr& entry, Bound& bound, SourceObjects& objects, PyObject* const* args,
                   size_t nargsf, PyObject* kwnames, DataCase seen = {}) {
  std::vector<frame::FrameState> frames;
  Repeat repeat;
  if (!entry->ours && !entry->reason.empty() && !c->state->eager.note(c->state->settings, of_operators(*entry)))
    return nullptr;
  PyObject* result = run_entry(entry, c->state->settings, objects.data(), frames, repeat);
  if (result || PyErr_Occurred()) return result;
  if (repeat.unexpected_size) note_unexpected(entry, c->state->entries, c->state->may_assume);
  if (repeat.unexpected_size && seen.note(entry, repeat.fact)) {
    const Held held(reinterpret_cast<PyObject*>(c));
    if (const EntryPtr other = other_case(c, bound, objects, seen)) {
      other->hits++;
      return run_call(c, other, bound, objects, args, nargsf, kwnames, std::move(seen));
    }
    if (PyErr_Occurred()) return nullptr;
  }
  if (repeat.needed)
    return repeat.cause == EagerCause::kRaises ? call_raising(c, repeat.reason, args, nargsf, kwnames)
                                               : call_original(c, repeat.cause, repeat.reason, args, nargsf, kwnames);
  if (frame::profiled() &&
      !c->state->eager.note(c->state->settings,
                            {.cause = EagerCause::kTracer, .frame = true, .reason = kCalleesUnderProfiler}))
    return nullptr;
  CompiledContinuations continuations(*c->state);
  const Held held(reinterpret_cast<PyObject*>(c));  // the program may drop it on the way
  return frame::resume(std::move(frames), continuations);
}

constexpr size_t kMaxModules = 64;  // so many limits are in all

// A module among the arguments whose parameters get their sizes in the first call, by hooks that eager runs.
bool is_uninitialized(Bound& bound, size_t slots) {
  for (size_t i = 0; i < slots; ++i) {
    PyObject* o = bound.slots()[i];
    if (o == nullptr || !frame::is_module(o)) continue;
    Reference module(PyImport_ImportModule("flashover._compiled_module"));
    Reference answer(PyObject_CallMethod(module.p, "is_uninitialized", "O", o));
    if (answer.p == Py_True) return true;
  }
  return false;
}

PyObject* miss(Callable* c, Bound& bound, SourceObjects& objects, PyObject* const* args, size_t nargsf,
               PyObject* kwnames) {
  if (frame::run_signal_handlers()) return nullptr;
  CallableState& s = *c->state;
  const Stance stance = current_stance();
  const char* const forbidden_by = s.entries.empty() ? nullptr : what_forbids_recompiling();
  const bool fails = forbidden_by != nullptr;
  if (torch_only_runs())
    return call_original(c, EagerCause::kRequested, "torch._dynamo.run compiles nothing", args, nargsf, kwnames);
  if (torch_compiles_nothing())
    return call_original(c, EagerCause::kRequested, "torch._dynamo.config.disable is set", args, nargsf, kwnames);
  if (stance == Stance::kEagerOnRecompile || (stance == Stance::kEagerThenCompile && s.calls == 1))
    return call_original(c, EagerCause::kRequested, std::string("the stance is ") + name_of(stance), args, nargsf,
                         kwnames);
  const auto slots = static_cast<size_t>(s.signature.slots);
  // What follows asks Python code whose errors count for nothing, so signals wait until it is done.
  std::optional<frame::HeldSignals> held(std::in_place);
  look_up_limit(s);
  note_per_call_arguments(s, bound.slots(), slots);
  const std::string modules = modules_among(bound.slots(), slots, s.per_call);
  const std::vector<EntryPtr> same = entries_of(s.entries, modules);
  const bool full = same.size() >= s.limit || s.entries.size() >= s.limit * kMaxModules;
  // Past the limit one more version, for all sizes, serves instead of eager.
  const bool last = full && s.sizes.general_is_missing(same, bound.slots(), s.settings);
  if (s.over_limit && full && !last && !fails) {
    held.reset();
    return call_original(c, EagerCause::kLimit, *s.over_limit, args, nargsf, kwnames);
  }
  if (is_uninitialized(bound, slots)) {
    held.reset();
    return call_original(c, EagerCause::kRequested, "the call initializes lazy modules", args, nargsf, kwnames);
  }
  Recompile why = why_recompile(same, bound.slots(), s.settings);
  const std::string failed = why.last();
  s.sizes.learn(same, bound.slots(), s.settings, s.varying_numbers, reinterpret_cast<PyObject*>(s.signature.code),
                c->self, -1);
  note_per_call_identity(same, bound.slots(), !s.per_call.slots.empty(), s.per_call.paths);
  held.reset();
  if (frame::run_signal_handlers()) return nullptr;
  if (fails) {
    raise_would_recompile(s.settings, failed, forbidden_by);
    return nullptr;
  }
  EntryPtr entry;
  bool changed = false, only_now = false;
  {
    const bool waits = !compiles_in_background(s.settings);
    CaptureLock lock(waits ? CaptureLock::IfHeld::kWait : CaptureLock::IfHeld::kLeave);
    if (lock.busy() && !waits) return call_original(c, EagerCause::kRequested, kBusy, args, nargsf, kwnames);
    if (lock.interrupted()) return nullptr;
    entry = find_entry(s.entries, bound.slots(), objects);  // another thread may have made it meanwhile
    if (!entry && full && !last) {
      s.over_limit = limit_text(s.settings.name, s.limit, failed);
      log(Topic::kRecompiles, *s.over_limit);
    } else if (!entry) {
      const Held function(c->function);
      const std::optional<frame::VaryingSizes> sizes = s.sizes.wanted(s.settings, last);
      frame::CaptureRequest request = request_of(c, bound, sizes);
      request.steady_values = !why.by_values;
      const std::set<std::string> likely = case_of_late(same);
      if (request.may_break) request.likely_refuted = &likely;  // (else a wrong guess would be an error)
      Settings settings = s.settings;
      const bool by_operators = stance == Stance::kAotEagerThenCompile && s.calls == 1;
      if (by_operators) settings.backend = "eager", settings.custom = nullptr;
      entry = make_entry(s, settings, s.settings.name, request, std::move(why), s.made);
      if (!entry) return nullptr;
      entry->general = last;
      s.sizes.note(*entry, s.settings);
      only_now = entry->transient || (by_operators && entry->kind == Entry::Kind::kCompiled);
      if (!only_now) {
        note_modules(*entry, bound.slots(), slots, s.per_call);
        s.entries.insert(s.entries.begin(), entry);
        if (may_race(s.settings, *entry)) entry->racing = std::make_shared<RaceClock>();
      }
      // The program may not change what was captured before this very call has run.
      changed = entry->kind == Entry::Kind::kCompiled && !objects.match(*entry, bound.slots());
    }
  }
  if (!entry) return call_original(c, EagerCause::kLimit, *s.over_limit, args, nargsf, kwnames);
  if (changed) return call_original(c, EagerCause::kDeclined, kChangedMeanwhile, args, nargsf, kwnames);
  if (entry->kind == Entry::Kind::kEager) return call_eager(c, *entry, args, nargsf, kwnames);
  entry->hits++;
  return run_call(c, entry, bound, objects, args, nargsf, kwnames);
}

// As it is, because the call itself cannot be compiled: what it calls may.
PyObject* call_original_taking_callees(Callable* c, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  if (c->state->settings.fullgraph) return call_original(c, args, nargsf, kwnames);
  CompiledContinuations continuations(*c->state);
  const Held held(reinterpret_cast<PyObject*>(c));
  frame::TakeCallees callees(&continuations);
  if (c->function) frame::leave_alone(c->function);
  return call_original(c, args, nargsf, kwnames);
}

// Its call makes the generator and runs nothing; fullgraph says so instead.
bool only_makes_a_generator(const Callable* c) {
  constexpr int kKinds = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
  return (c->state->signature.code->co_flags & kKinds) == CO_GENERATOR && !c->state->settings.fullgraph;
}

PyObject* call_eager(Callable* c, const Entry& entry, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  if (entry.cause == EagerCause::kRaises) return call_raising(c, entry.reason, args, nargsf, kwnames);
  const bool alone = entry.alone;  // (the warning may drop the entry)
  if (!c->state->eager.note(c->state->settings, {entry.cause, false, false, entry.reason, entry.where})) return nullptr;
  return alone ? call_original(c, args, nargsf, kwnames) : call_original_taking_callees(c, args, nargsf, kwnames);
}

// A version that lost: such calls run eager from now on, without what they call being compiled. Of one with breaks, other
// frames than those with the breaks may be faster compiled all the same: that is a race of its own, in which the program
// as it is written takes the compiled code's place.
void retreat(Callable* c, Entry& e, const Race& race) {
  constexpr int kFew = 8;  // calls that compile something
  const bool has_others = e.kind == Entry::Kind::kCompiled && !e.alone && !e.capture.frames.empty();
  if (has_others && !(c->function && frame::disables_callees(c->function)))
    e.racing = std::make_shared<RaceClock>(kFew);
  e.reason = "it is slower compiled: " + race.text();
  e.kind = Entry::Kind::kEager;
  e.cause = EagerCause::kSlower;
  e.alone = true;
  e.where.clear();
  log(Topic::kBreaks, c->state->settings.name + " retreats: " + e.reason);
}

// Whether the frames that it calls race (retreat()).
bool others_race(const Entry& e) { return e.racing && e.cause == EagerCause::kSlower; }

void settle_race(Callable* c, const EntryPtr& entry) {
  const std::shared_ptr<RaceClock> clock = entry->racing;
  if (!clock || !clock->race().over()) return;
  const bool eager = clock->race().winner() == Race::Side::kEager, others = others_race(*entry);
  entry->racing.reset();
  if (others && eager) {
    entry->alone = false;
    entry->reason += "; the functions that it calls are compiled, each by itself";
    log(Topic::kBreaks, c->state->settings.name + ": " + entry->reason);
  } else if (others) {
    log(Topic::kBreaks,
        c->state->settings.name + ": nor are the functions that it calls faster compiled: " + clock->race().text());
  } else if (eager && entry->cause != EagerCause::kSlower) {
    retreat(c, *entry, clock->race());
  }
}

// A call of a version that is timed against the program.
PyObject* call_racing(Callable* c, const EntryPtr& entry, Bound& bound, SourceObjects& objects, PyObject* const* args,
                      size_t nargsf, PyObject* kwnames) {
  static const std::string kWhy = "it is timed beside compiled calls";
  const Held held(reinterpret_cast<PyObject*>(c));
  const std::shared_ptr<RaceClock> clock = entry->racing;
  const bool eager = clock->start(c->state->calls) == Race::Side::kEager;
  settle_race(c, entry);
  const bool races = entry->racing == clock;
  PyObject* result;
  if (races && eager && others_race(*entry)) {
    result = call_original_taking_callees(c, args, nargsf, kwnames);
  } else if (races && eager) {
    result = call_original(c, EagerCause::kTimed, kWhy, args, nargsf, kwnames);
  } else if (entry->kind == Entry::Kind::kEager) {
    result = call_eager(c, *entry, args, nargsf, kwnames);
  } else {
    entry->hits++;
    result = run_call(c, entry, bound, objects, args, nargsf, kwnames);
  }
  clock->stop();
  if (entry->racing == clock) settle_race(c, entry);
  return result;
}

// Where the only version lost its race most calls do not pay for guards, either: some ask whether there is another call to
// be compiled now.
EntryPtr the_one_that_lost(const CallableState& s) {
  constexpr int64_t kAsks = 16;
  if (s.entries.size() != 1) return nullptr;
  const bool lost = s.entries.front()->cause == EagerCause::kSlower && !s.entries.front()->racing;
  return lost && s.calls % kAsks != 0 ? s.entries.front() : nullptr;
}

PyObject* call_compiled(Callable* c, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  CallableState& s = *c->state;
  frame::TakeCallees no_callees(nullptr);  // compiled code inside compiled code looks after itself
  s.calls++;
  EagerCause cause;
  s.skipped = reason_not_to_compile(
      c->function && PyFunction_Check(c->function) ? PyFunction_GET_CODE(c->function) : nullptr, cause);
  if (s.skipped) return call_original(c, cause, s.skipped, args, nargsf, kwnames);
  if (current_stance() == Stance::kForceEager)
    return call_original(c, EagerCause::kRequested, "the stance is force_eager", args, nargsf, kwnames);
  if (PyObject* backend = s.settings.forced ? nullptr : forced_backend()) {
    PyObject* other = Py_XNewRef(with_backend(c, backend));
    PyObject* result = other ? PyObject_Vectorcall(other, args, nargsf, kwnames) : nullptr;
    Py_XDECREF(other);
    return result;
  }
  if (!refresh(c))
    return call_original(c, EagerCause::kDeclined, "it has no __call__ in Python", args, nargsf, kwnames);
  if (only_makes_a_generator(c)) return call_original(c, args, nargsf, kwnames);
  if (const EntryPtr only = the_one_that_lost(s)) return call_eager(c, *only, args, nargsf, kwnames);
  const bool timed = !s.entries.empty() && s.entries.front()->clock != 0;  // before a dict is made of **kwargs
  const uint64_t clock = timed ? guards::dict_clock() : 0;
  Bound bound;
  auto* f = reinterpret_cast<PyFunctionObject*>(c->function);
  if (!bound.bind(s.signature, f, c->self, args, PyVectorcall_NARGS(nargsf), kwnames))
    return call_original(c, args, nargsf, kwnames);  // raises the TypeError
  SourceObjects objects;
  if (EntryPtr entry = find_entry(s.entries, bound.slots(), objects, clock)) {
    if (entry->racing) [[unlikely]]
      return call_racing(c, entry, bound, objects, args, nargsf, kwnames);
    if (entry->kind == Entry::Kind::kEager && !drop_stale(s.entries, entry, s.sizes, s.settings))
      return call_eager(c, *entry, args, nargsf, kwnames);
    if (entry->kind == Entry::Kind::kCompiled) {
      entry->hits++;
      return run_call(c, entry, bound, objects, args, nargsf, kwnames);
    }
  }
  return miss(c, bound, objects, args, nargsf, kwnames);
}

}  // namespace

bool refresh(Callable* c) {
  if (c->through_call) {
    PyTypeObject* type = Py_TYPE(c->self);
    uint32_t tag = guards::type_tag(type);
    if (tag == 0 || tag != c->state->type_tag) {
      static PyObject* name = PyUnicode_InternFromString("__call__");
      PyObject* found = _PyType_Lookup(type, name);
      if (found != c->function) {
        c->state->entries.clear();
        c->state->continuations.clear();
        Py_XINCREF(found);
        Py_XSETREF(c->function, found);
      }
      c->state->type_tag = guards::armed_type_tag(type);
    }
  }
  if (!c->function || !PyFunction_Check(c->function)) return false;
  auto* f = reinterpret_cast<PyFunctionObject*>(c->function);
  CallableState& s = *c->state;
  if (reinterpret_cast<PyObject*>(s.signature.code) == f->func_code) return true;
  PyObject* const before = reinterpret_cast<PyObject*>(s.signature.code);
  s.signature = Signature::of(f);
  Py_INCREF(f->func_code);  // else other code at its address would be taken for it
  // Guards count the arguments of the code that they were made for.
  const std::vector<EntryPtr> of_that = std::move(s.entries);
  s.entries.clear();
  Py_XDECREF(before);
  return true;
}

const char* reason_not_to_compile(PyObject* code, EagerCause& cause) {
  cause = EagerCause::kState;
  if (compiling_in_this_thread()) return "it is called while something is compiled";
  return reason_to_skip(reinterpret_cast<PyCodeObject*>(code), cause);
}

namespace {

// Makes the entry for a call with these arguments, if there is none, and runs nothing of it.
template <typename Use>
PyObject* with_entry(PyObject* self, PyObject* args, PyObject* kwargs, Use&& use) {
  auto* c = reinterpret_cast<Callable*>(self);
  CallableState& s = *c->state;
  if (!refresh(c)) throw UserError(s.settings.name + " has no code in Python that could be lowered");
  EagerCause cause;
  if (const char* reason = reason_not_to_compile(PyFunction_GET_CODE(c->function), cause))
    throw UserError(s.settings.name + " cannot be lowered now: " + reason);
  const GivenArguments given(args, kwargs);
  if (kwargs && !given.names) return nullptr;
  Bound bound;
  if (!bound.bind(s.signature, reinterpret_cast<PyFunctionObject*>(c->function), c->self, given.objects.data(),
                  PyTuple_GET_SIZE(args), given.names)) {
    if (!PyErr_Occurred())
      PyErr_Format(PyExc_TypeError, "these arguments do not fit the signature of %s", s.settings.name.c_str());
    return nullptr;
  }
  const Held held(self);
  CaptureLock lock;
  if (lock.interrupted()) return nullptr;
  SourceObjects objects;
  EntryPtr entry = find_entry(s.entries, bound.slots(), objects);
  if (!entry) {
    const std::optional<frame::VaryingSizes> sizes = s.sizes.wanted(s.settings);
    frame::CaptureRequest request = request_of(c, bound, sizes);
    request.steady_values = s.entries.empty();
    request.whole = s.settings.backend == kExportBackend;
    entry = make_entry(s, s.settings, s.settings.name, request, {}, s.made);
    if (!entry) return nullptr;
    s.sizes.note(*entry, s.settings);
    if (!entry->transient) {
      note_modules(*entry, bound.slots(), static_cast<size_t>(s.signature.slots), s.per_call);
      s.entries.insert(s.entries.begin(), entry);
    }
  }
  return use(entry, bound, objects);
}

}  // namespace

PyObject* lower(PyObject* self, PyObject* args, PyObject* kwargs) {
  return with_entry(self, args, kwargs, [](const EntryPtr& entry, Bound&, SourceObjects&) { return describe(*entry); });
}

PyObject* program(PyObject* self, PyObject* args, PyObject* kwargs) {
  return with_entry(self, args, kwargs, [](const EntryPtr& entry, Bound& bound, SourceObjects& objects) {
    if (!objects.match(*entry, bound.slots())) throw UserError(kChangedMeanwhile);
    return describe_program(*entry, objects.data());
  });
}

PyObject* call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  auto* c = reinterpret_cast<Callable*>(self);
  PyObject* result = call_compiled(c, args, nargsf, kwnames);
  if (!result || !is_new_generator(result) || c->state->skipped) return result;
  const Stance stance = current_stance();
  if (stance == Stance::kForceEager || (stance == Stance::kEagerThenCompile && c->state->calls == 1)) return result;
  keep_compiling(result, self, std::make_unique<CompiledContinuations>(*c->state));
  return result;
}

}  // namespace flashover::entry
