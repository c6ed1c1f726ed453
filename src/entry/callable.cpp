#include <Python.h>
#include <pthread.h>
#include <structmember.h>

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/boundary.h"
#include "base/check.h"
#include "base/decimal.h"
#include "base/options.h"
#include "entry/eager.h"
#include "entry/entry.h"
#include "entry/generator.h"
#include "entry/log.h"
#include "entry/stance.h"
#include "entry/versions.h"
#include "frame/operands.h"
#include "frame/resume.h"
#include "frame/tracers.h"
#include "guards/arrays.h"
#include "guards/global_state.h"
#include "guards/objects.h"
#include "run/run.h"
#include "run/watch.h"

namespace flashover::entry {

constexpr size_t kMaxContinuations = 4096;  // modules that come and go leave theirs behind
constexpr int kMaxBarren = 4;

// What was compiled for one place after a graph break: an instruction of a code object, with a given shape of the
// stack.
struct Continuation {
  PyObject* code = nullptr;  // owned: the key has its address
  Settings settings;
  std::vector<EntryPtr> entries;
  std::unordered_set<std::string> numbers;
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

// What is known of one such place, or of the calls themselves, whichever modules are in it.
struct Renewed {
  std::unordered_set<size_t> slots;       // hold another module in each call, which dies with that
  std::unordered_set<std::string> paths;  // of such modules, and of classes made in functions (Subject::renewed)
};

struct CallableState {
  Settings settings;
  std::unordered_map<std::string, std::shared_ptr<Continuation>> continuations;
  std::unordered_map<std::string, std::shared_ptr<Renewed>> places;  // by their keys without modules
  Renewed renewed;
  Signature signature;
  std::vector<EntryPtr> entries;            // most recently used first
  std::unordered_set<std::string> numbers;  // paths of those that were seen to change
  // Code of functions that were called in the course of a call and taken on: how often that led to nothing.
  struct Barren {
    int times = 0;
    bool eager = false;  // it has something to compile, which did not work
  };
  std::unordered_map<PyObject*, Barren> barren;  // owned keys
  PyObject* root = nullptr;                      // Callable::self, if that is a module
  uint32_t type_tag = 0;                         // of self's type when `function` was looked up on it
  size_t limit = 8;                              // how often it is compiled for the same modules
  int64_t calls = 0, recompiles = 0;
  EagerLog eager;
  int64_t made = 0;  // entries so far
  double recompile_seconds = 0;
  std::optional<std::string> over_limit;  // what is said of it
  PyObject* forced = nullptr;             // dict: forced backend -> the callable that compiles for it; owned
  const char* skipped = nullptr;          // why the last call was not even tried
};

namespace {

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

// Captures swap tensors in place for a while, so one at a time in the whole process. Not held while waiting for the
// GIL.
std::timed_mutex& compile_mutex() {
  alignas(std::timed_mutex) static unsigned char place[sizeof(std::timed_mutex)];
  static std::timed_mutex* m = [] {
    // A child forked while another thread compiles must not wait for that thread.
    pthread_atfork(nullptr, nullptr, [] { new (place) std::timed_mutex; });
    return new (place) std::timed_mutex;
  }();
  return *m;
}
thread_local bool compiling_here = false;

class CompileLock {
 public:
  CompileLock() {
    while (!(locked_ = compile_mutex().try_lock())) {
      const frame::AtRest rests;  // the capture that this waits for may want the arguments of this call
      PyThreadState* saved = PyEval_SaveThread();
      locked_ = compile_mutex().try_lock_for(std::chrono::milliseconds(20));
      PyEval_RestoreThread(saved);
      if (locked_) break;
      if (PyErr_CheckSignals() < 0) return;
    }
    compiling_here = true;
  }
  ~CompileLock() {
    if (!locked_) return;
    compiling_here = false;
    compile_mutex().unlock();
  }
  CompileLock(const CompileLock&) = delete;
  bool interrupted() const { return !locked_; }  // a signal handler raised while this was waited for: the error is set

 private:
  bool locked_ = false;
};

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

// False when there is no Python function to compile. Drops everything compiled when the class got another __call__.
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

const char* skips(PyObject* code, EagerCause& cause) {
  cause = EagerCause::kState;
  if (compiling_here) return "it is called while something is compiled";
  return reason_to_skip(reinterpret_cast<PyCodeObject*>(code), cause);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Why a call that ran, or was to run, as what was compiled is made again in CPython.
struct Repeat {
  bool wanted = false;
  EagerCause cause = EagerCause::kRaises;
  std::string reason;
};

// An operator did not keep what its meta function promised: such calls are eager from now on. False: an error is set.
bool retire(const EntryPtr& e, const Settings& settings, const run::Mismatch& m) {
  const std::string text = "flashover: " + settings.name + ": " + m.what();
  if (!m.clean || settings.fullgraph) {
    PyErr_SetString(PyExc_RuntimeError, (text + (m.clean ? "" : "; inputs may have been written already")).c_str());
    return false;
  }
  e->kind = Entry::Kind::kEager;
  e->cause = EagerCause::kSaid;
  e->reason = m.what();
  return PyErr_WarnEx(PyExc_RuntimeWarning, (text + "; such calls run eager").c_str(), 1) == 0;
}

// What a call of an entry needs: the objects at its sources (borrowed), behind them its numbers (owned).
class Wanted {
 public:
  Wanted() = default;
  Wanted(const Wanted&) = delete;
  ~Wanted() { clear(); }
  // Is this the entry for such a call?
  bool match(Entry& e, PyObject* const* slots, bool untouched = false) {
    clear();
    const size_t numbers = e.capture.numbers.steps.size();
    objects_.resize(std::max(objects_.size(), e.wanted + numbers));
    if (!e.guards->check(slots, objects_.data(), untouched)) return false;
    if (numbers == 0) return true;
    if (!frame::evaluate(e.capture.numbers, objects_.data(), read_item, values_)) return false;
    std::copy(values_.begin(), values_.end(), objects_.begin() + static_cast<std::ptrdiff_t>(e.wanted));
    return true;
  }
  PyObject** data() { return objects_.data(); }

 private:
  void clear() {
    for (PyObject* v : std::exchange(values_, {})) Py_DECREF(v);
  }
  c10::SmallVector<PyObject*, 64> objects_;
  std::vector<PyObject*> values_;
};

// What the program made inside of inference_mode is such a tensor outside, too.
void make_inference(at::Tensor& t) {
  if (t.is_inference() || t.requires_grad() || !t.has_storage()) return;
  c10::InferenceMode mode;
  at::Tensor made = at::empty({0}, t.options());
  made.set_(t.storage(), t.storage_offset(), t.sizes(), t.strides());
  t = std::move(made);
}

// The inputs of a graph, some of them without a reference of their own: their Python objects are held meanwhile.
class Inputs {
 public:
  Inputs(const Entry& e, PyObject* const* wanted, const NumberTensors* numbers) : e_(e) {
    tensors_.reserve(e.inputs.size());
    for (size_t i = 0; i < e.inputs.size(); ++i) {
      const int32_t in = e.inputs[i];
      if (e.borrowed[i])
        tensors_.emplace_back(
            Pointer::reclaim((in < 0 ? e.constants[-1 - in] : THPVariable_Unpack(wanted[in])).unsafeGetTensorImpl()));
      else
        tensors_.push_back(graph_input(e, in, wanted, numbers));
    }
  }
  Inputs(const Inputs&) = delete;
  ~Inputs() {
    for (size_t i = 0; i < tensors_.size(); ++i)
      if (e_.borrowed[i]) static_cast<void>(tensors_[i].unsafeReleaseTensorImpl());
  }
  const at::Tensor* data() const { return tensors_.data(); }
  size_t size() const { return tensors_.size(); }

 private:
  using Pointer = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  const Entry& e_;
  c10::SmallVector<at::Tensor, 16> tensors_;
};

// Null without an error: with `repeat`, nothing happened and the call must be repeated in eager (it raises there, as
// the program would, with its effects so far; or the entry was retired); else it ends in a graph break, and `frames`
// say how to go on.
PyObject* run_entry(const EntryPtr& e, const Settings& settings, PyObject** wanted,
                    std::vector<frame::FrameState>& frames, Repeat& repeat) {
  const std::shared_ptr<NumberTensors> numbers =
      e->capture.numbers.inputs.empty() ? nullptr : number_tensors(*e, wanted);
  const Inputs inputs(*e, wanted, numbers.get());
  const size_t held = e->wanted + e->capture.numbers.steps.size();
  for (size_t i = 0; i < held; i++) Py_INCREF(wanted[i]);
  guards::let_go_of_arrays();
  std::vector<at::Tensor> outputs;
  PyObject* result = nullptr;
  bool ran = false;
  run::failure_was_undone() = false;
  const auto undone = [&] { return !ran && (e->repeatable || run::failure_was_undone()); };
  // Other threads may change dicts while the graph runs, and finalizers while the result is made: dicts that are made
  // for a result are always as many.
  const bool quiet = e->timed && e->capture.effects.empty() && e->capture.frames.empty();
  const uint64_t before = quiet ? guards::dict_clock() : 0;
  uint64_t after = 0;
  try {
    torch::PyWarningHandler warnings;
    try {
      at::RecordFunction range(at::RecordScope::USER_SCOPE);
      if (range.isActive()) [[unlikely]]
        range.before("flashover: " + settings.name);
      if (!e->runner) {
        // Only Python before the break.
      } else if (e->runner->needs_gil()) {
        e->runner->run(inputs.data(), inputs.size(), outputs);
      } else {
        PyThreadState* saved = PyEval_SaveThread();
        try {
          e->runner->run(inputs.data(), inputs.size(), outputs);
        } catch (...) {
          PyEval_RestoreThread(saved);
          throw;
        }
        PyEval_RestoreThread(saved);
      }
    } catch (...) {
      warnings.set_in_exception();
      throw;
    }
    ran = true;
    if (quiet) after = guards::dict_clock();
    give_own_counters(e->capture.own_counters, inputs.data(), outputs);
    for (int32_t i : e->capture.inference_outputs) make_inference(outputs[static_cast<size_t>(i)]);
    c10::SmallVector<PyObject*, 8> wrapped;
    for (at::Tensor& t : outputs) wrapped.push_back(THPVariable_Wrap(std::move(t)));
    if (e->capture.frames.empty()) {
      result = frame::rebuild(e->capture, wanted, wrapped.data());
    } else {
      frame::rebuild_frames(e->capture, wanted, wrapped.data(), frames);
    }
    for (PyObject* o : wrapped) Py_XDECREF(o);
  } catch (python_error& error) {
    error.restore();
  } catch (const run::Mismatch& m) {
    repeat = {retire(e, settings, m), EagerCause::kSaid, e->reason};
  } catch (const std::exception& error) {
    if (undone())
      repeat = {true, EagerCause::kRaises, "what was compiled raised: " + first_line(error.what())};
    else
      tell_of_exception();
  } catch (...) {
    if (undone())
      repeat = {true, EagerCause::kRaises, "what was compiled raised"};
    else
      tell_of_exception();
  }
  for (size_t i = 0; i < held; i++) Py_DECREF(wanted[i]);
  if (quiet) {
    const uint64_t end = guards::dict_clock(), ticks = end - after;
    e->clock = result && after == before + guards::kDictTick && ticks == e->result_ticks ? end : 0;
    if (result) e->result_ticks = std::min(ticks, e->result_ticks);
  }
  return result;
}

// Code that many modules run has entries for each of them, and the limit is on how often it is compiled for one of
// them. The modules among the arguments, as a key.
PyObject* module_in(PyObject* slot) {
  if (slot && PyCell_Check(slot)) slot = PyCell_GET(slot);
  return slot && frame::is_module(slot) ? slot : nullptr;
}
std::string modules_among(PyObject* const* slots, size_t count, const Renewed& renewed) {
  std::string key;
  for (size_t i = 0; i < count; i++)
    if (PyObject* o = module_in(slots[i]); o && !renewed.slots.contains(i))
      key.append(reinterpret_cast<const char*>(&o), sizeof o);
  return key;
}
// Which objects that entries are guarded on by identity are other ones now, and will be again: classes that were made
// in a function; `modules`: modules too.
void note_renewed(const std::vector<EntryPtr>& entries, PyObject* const* slots, bool modules,
                  std::unordered_set<std::string>& out) {
  for (const EntryPtr& e : entries) {
    if (!e->guards) continue;
    for (auto& [path, now] : e->guards->changed_objects(slots))
      if (PyType_Check(now) ? guards::is_local_class(reinterpret_cast<PyTypeObject*>(now))
                            : modules && frame::is_module(now))
        out.insert(std::move(path));
  }
}
void note_modules(Entry& e, PyObject* const* slots, size_t count, const Renewed& renewed) {
  e.modules = modules_among(slots, count, renewed);
  for (size_t at = 0; at < e.modules.size(); at += sizeof(PyObject*)) {
    PyObject* o;
    std::memcpy(&o, e.modules.data() + at, sizeof o);
    if (PyObject* w = PyWeakref_NewRef(o, nullptr)) e.alive.push_back(w);
  }
  PyErr_Clear();
}
// Those for the same modules; entries of modules that are gone leave `entries`.
std::vector<EntryPtr> for_the_same(std::vector<EntryPtr>& entries, const std::string& modules) {
  std::vector<EntryPtr> gone, same;
  for (EntryPtr& e : entries)
    for (PyObject* w : e->alive)
      if (e && PyWeakref_GET_OBJECT(w) == Py_None) gone.push_back(std::move(e));
  std::erase(entries, nullptr);
  for (const EntryPtr& e : entries)
    if (e->modules == modules) same.push_back(e);
  return same;  // (releasing what is gone may run code of the program: last)
}

// The entry for these arguments, most recently used first; its wanted objects in `wanted`.
// clock: the dicts' before this call made any of its own.
EntryPtr find(std::vector<EntryPtr>& entries, PyObject* const* slots, Wanted& wanted, uint64_t clock = 0) {
  for (size_t i = 0; i < entries.size(); i++) {
    Entry& e = *entries[i];
    if (!e.guards) continue;  // failed before there were any: only counts
    const bool untouched = clock != 0 && e.clock != 0 && clock == e.clock + guards::kDictTick;
    e.clock = 0;
    if (!wanted.match(e, slots, untouched)) continue;
    const auto at = static_cast<std::ptrdiff_t>(i);
    if (i > 0) std::rotate(entries.begin(), entries.begin() + at, entries.begin() + at + 1);
    return entries.front();
  }
  return nullptr;
}

// Why none of these entries is the one for such a call.
Recompile why_again(const std::vector<EntryPtr>& entries, PyObject* const* slots) {
  Recompile why;
  if (entries.empty()) return why;
  why.called = calling_line();
  for (const EntryPtr& e : entries) {
    guards::Failure f = e->guards ? e->guards->failure(slots) : guards::Failure{e->reason, "", e->where};
    if (!f) f = {"comparisons of numbers go the same way", "another way", ""};
    why.missed.push_back({e->version, e->hits, std::move(f)});
  }
  return why;
}

// Compiles and takes note of it; null with an error set when the call must raise. Entries are those of one place.
EntryPtr make_entry(CallableState& s, const Settings& settings, const std::string& name, const frame::Subject& subject,
                    Recompile why, int64_t& made) {
  const bool again = static_cast<bool>(why);
  const int64_t version = made++;
  if (again) {
    s.recompiles++;
    counters().recompiles++;
    if (logged(Topic::kRecompiles)) log(Topic::kRecompiles, name + ": " + words(why, version, s.limit));
  }
  EntryPtr entry = compile_call(settings, subject, std::move(why));
  if (!entry) return nullptr;
  entry->version = version;
  if (!again) return entry;
  s.recompile_seconds += entry->total_seconds;
  log(Topic::kRecompiles, name + ": version " + std::to_string(version) + " took " +
                              fixed_decimal(entry->total_seconds * 1e3, 1) +
                              " ms; recompiles so far: " + std::to_string(s.recompiles) + ", " +
                              fixed_decimal(s.recompile_seconds * 1e3, 1) + " ms");
  return entry;
}

void note_numbers(const std::vector<EntryPtr>& entries, PyObject* const* slots, std::unordered_set<std::string>& out) {
  for (const EntryPtr& e : entries)
    if (e->guards)
      for (std::string& path : e->guards->changed_numbers(slots)) out.insert(std::move(path));
}

// Where the option says nothing, torch._dynamo.config.recompile_limit counts as soon as torch._dynamo is in use.
void look_up_limit(CallableState& s) {
  if (s.settings.options.values.contains("recompile_limit")) return;
  static PyObject* const name = PyUnicode_InternFromString("torch._dynamo.config");
  PyObject* module = guards::dict_get(PyImport_GetModuleDict(), name);
  PyObject* limit = module ? PyObject_GetAttrString(module, "recompile_limit") : nullptr;
  const long value = limit && PyLong_CheckExact(limit) ? PyLong_AsLong(limit) : -1;
  PyErr_Clear();
  Py_XDECREF(limit);
  if (value >= 0) s.limit = static_cast<size_t>(value);
}

constexpr size_t kModules = 64;  // so many limits are in all

std::string limit_text(const std::string& name, size_t limit, const std::string& failed) {
  return "flashover: " + name + " was compiled " + std::to_string(limit) +
         " times (recompile_limit); other calls run eager. The last guard that failed: " + failed +
         ". FLASHOVER_LOGS=recompiles tells of each.";
}

const std::string kChangedMeanwhile = "the program changed what was captured while it was compiled";

// Takes frames on after a graph break: finds or makes the entry for what is left of a call.
class Rest final : public frame::Continuations {
 public:
  explicit Rest(CallableState& s) : s_(s) {}

  bool wants(PyObject* function) override {
    auto it = s_.barren.find(PyFunction_GET_CODE(function));
    if (it == s_.barren.end() || it->second.times < kMaxBarren) return true;
    static const std::string kReason = "it could not be compiled before";
    if (it->second.eager)
      s_.eager.note(s_.settings, {.frame = true, .quiet = true, .reason = kReason, .where = kNowhere});
    return false;
  }

  Outcome go_on(const frame::Subject& rest, PyObject* code, PyObject** result,
                std::vector<frame::FrameState>& frames) override {
    frame::TakeCallees nobody(nullptr);
    eager_ = false;
    const Outcome outcome = try_to(rest, code, result, frames);
    if (rest.next == 0 || (reinterpret_cast<PyCodeObject*>(code)->co_flags & CO_GENERATOR)) {  // what was called
      auto [it, added] = s_.barren.try_emplace(code);
      if (added) Py_INCREF(code);
      it->second.times = outcome == Outcome::kNotTaken ? it->second.times + 1 : 0;
      it->second.eager = eager_;
    }
    return outcome;
  }

  bool gives_up(const frame::Subject& rest, PyObject* code, const char* reason) override {
    frame::TakeCallees nobody(nullptr);
    return leave(rest, code, EagerCause::kDeclined, reason, line_of(rest, code)) != Outcome::kRaised;
  }

 private:
  static const inline std::string kNowhere;
  bool eager_ = false;  // the frame that go_on was asked for last was given up, though there is something to compile

  // CPython runs the rest of this frame. Where it has no tensors at hand, and is not the compiled function's own, that
  // is counted only: most such functions (loggers, progress bars) have nothing to compile.
  Outcome leave(const frame::Subject& rest, PyObject* code, EagerCause cause, const std::string& reason,
                const std::string& where) {
    eager_ = true;
    const bool own = reinterpret_cast<PyObject*>(s_.signature.code) == code;
    const bool quiet = !own && !deals_with_tensors(rest.slots, rest.count);
    const EagerLog::Event event{.cause = cause, .frame = true, .quiet = quiet, .reason = reason, .where = where};
    return s_.eager.note(s_.settings, event) ? Outcome::kNotTaken : Outcome::kRaised;
  }
  static std::string line_of(const frame::Subject& rest, PyObject* code) {
    const int line = PyCode_Addr2Line(reinterpret_cast<PyCodeObject*>(code), rest.next * 2);
    const char* file = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(code)->co_filename);
    PyErr_Clear();
    return std::string(file ? file : "?") + ":" + std::to_string(line);
  }

  Outcome try_to(const frame::Subject& rest, PyObject* code, PyObject** result,
                 std::vector<frame::FrameState>& frames) {
    EagerCause cause;
    if (const char* reason = skips(code, cause)) return leave(rest, code, cause, reason, line_of(rest, code));
    if (current_stance() == Stance::kForceEager)
      return leave(rest, code, EagerCause::kWanted, "the stance is force_eager", line_of(rest, code));
    const std::string place = key(rest, code);
    std::shared_ptr<Renewed>& of_place = s_.places[place];
    if (!of_place) of_place = std::make_shared<Renewed>();
    const std::shared_ptr<Renewed> held = of_place;
    Renewed& renewed = *held;
    auto found = s_.continuations.find(place + modules_among(rest.slots, rest.count, renewed));
    std::shared_ptr<Continuation> here = found == s_.continuations.end() ? nullptr : found->second;
    if (!here || here->gone()) {
      look_for_renewed(place, rest, renewed);
      if (s_.continuations.size() >= kMaxContinuations)
        return leave(rest, code, EagerCause::kDeclined, "there are too many places that go on after graph breaks",
                     line_of(rest, code));
      found = s_.continuations.find(place + modules_among(rest.slots, rest.count, renewed));
      here = found != s_.continuations.end() ? found->second : begin(place, rest, code, renewed);
    }
    here->last_call = s_.calls;
    Wanted wanted;
    EntryPtr entry = find(here->entries, rest.slots, wanted);
    if (!entry) {
      Outcome failed = Outcome::kNotTaken;
      entry = make(*here, rest, code, renewed, wanted, failed);
      if (!entry) return failed;
    }
    if (entry->kind == Entry::Kind::kEager)
      return entry->trivial ? Outcome::kNotTaken : leave(rest, code, entry->cause, entry->reason, entry->where);
    entry->hits++;
    Repeat repeat;
    *result = run_entry(entry, here->settings, wanted.data(), frames, repeat);
    if (*result) return Outcome::kReturned;
    if (PyErr_Occurred()) return Outcome::kRaised;
    return repeat.wanted ? leave(rest, code, repeat.cause, repeat.reason, line_of(rest, code)) : Outcome::kBroke;
  }

  static std::string key(const frame::Subject& rest, PyObject* code) {
    std::string k(reinterpret_cast<const char*>(&code), sizeof code);
    k.append(reinterpret_cast<const char*>(&rest.next), sizeof rest.next);
    for (size_t i = 0; i < rest.count; i++) k += rest.slots[i] ? '1' : '0';
    return k;
  }

  std::shared_ptr<Continuation> begin(const std::string& place, const frame::Subject& rest, PyObject* code,
                                      const Renewed& renewed) {
    auto here = std::make_shared<Continuation>();
    here->code = Py_NewRef(code);
    here->settings = s_.settings;
    here->settings.fullgraph = false;
    here->first_call = s_.calls;
    for (size_t i = 0; i < rest.count; i++)
      if (PyObject* module = module_in(rest.slots[i]); module && !renewed.slots.contains(i)) {
        if (PyObject* weak = PyWeakref_NewRef(module, nullptr)) here->modules.emplace_back(i, weak);
        PyErr_Clear();
      }
    s_.continuations[place + modules_among(rest.slots, rest.count, renewed)] = here;
    return here;
  }

  // Modules that were made and died in the course of one call will be others in the next one, too. What was compiled
  // for modules that are gone is dropped.
  void look_for_renewed(const std::string& place, const frame::Subject& rest, Renewed& renewed) {
    std::vector<std::shared_ptr<Continuation>> gone;
    for (auto it = s_.continuations.begin(); it != s_.continuations.end();) {
      const std::shared_ptr<Continuation>& c = it->second;
      bool dead = false;
      if (it->first.starts_with(place))
        for (const auto& [slot, weak] : c->modules) {
          if (PyWeakref_GET_OBJECT(weak) != Py_None) continue;
          dead = true;
          if (c->first_call == c->last_call) renewed.slots.insert(slot);
        }
      if (dead) gone.push_back(c);
      it = dead ? s_.continuations.erase(it) : std::next(it);
    }
    if (!renewed.slots.empty())
      for (const auto& c : gone) note_renewed(c->entries, rest.slots, true, renewed.paths);
  }

  EntryPtr make(Continuation& here, const frame::Subject& rest, PyObject* code, Renewed& renewed, Wanted& wanted,
                Outcome& failed_how) {
    look_up_limit(s_);
    const Stance stance = current_stance();
    const bool fails = stance == Stance::kFailOnRecompile && !here.entries.empty();
    const auto leaves = [&](EagerCause cause, const std::string& reason) {
      failed_how = leave(rest, code, cause, reason, line_of(rest, code));
      return nullptr;
    };
    if (stance == Stance::kEagerOnRecompile) return leaves(EagerCause::kWanted, "the stance is eager_on_recompile");
    if (torch_only_runs()) return leaves(EagerCause::kWanted, "torch._dynamo.run compiles nothing");
    if (here.over_limit && here.entries.size() >= s_.limit && !fails)
      return leaves(EagerCause::kLimit, *here.over_limit);
    Recompile why = why_again(here.entries, rest.slots);
    const std::string failed = why.last();
    note_numbers(here.entries, rest.slots, here.numbers);
    note_renewed(here.entries, rest.slots, !renewed.slots.empty(), renewed.paths);
    if (fails) {
      PyErr_Format(PyExc_RuntimeError,
                   "flashover: %s needs to be compiled again, and the stance is fail_on_recompile: %s",
                   s_.settings.name.c_str(), failed.c_str());
      failed_how = Outcome::kRaised;
      return nullptr;
    }
    const std::string where = line_of(rest, code), name = s_.settings.name + " after the graph break before " + where;
    if (here.entries.size() >= s_.limit) {
      here.over_limit = limit_text(name, s_.limit, failed);
      log(Topic::kRecompiles, *here.over_limit);
      return leaves(EagerCause::kLimit, *here.over_limit);
    }
    EntryPtr made;
    {
      CompileLock lock;
      if (lock.interrupted()) {
        failed_how = Outcome::kRaised;
        return nullptr;
      }
      if (EntryPtr found = find(here.entries, rest.slots, wanted)) return found;  // by another thread
      frame::Subject subject = rest;
      subject.first = here.entries.empty();
      subject.numbers = &here.numbers;
      subject.renewed = &renewed.paths;
      const frame::NamesModules named(s_.root);
      made = make_entry(s_, here.settings, name, subject, std::move(why), here.made);
      if (!made) {
        failed_how = Outcome::kRaised;
        return nullptr;
      }
      made->continues = where;
      if (!made->transient) here.entries.insert(here.entries.begin(), made);
    }
    if (made->kind == Entry::Kind::kEager || wanted.match(*made, rest.slots)) return made;
    return leaves(EagerCause::kDeclined, kChangedMeanwhile);
  }

  CallableState& s_;
};

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

// The args are for a call that must be repeated in eager.
PyObject* run_call(Callable* c, const EntryPtr& entry, PyObject** wanted, PyObject* const* args, size_t nargsf,
                   PyObject* kwnames) {
  std::vector<frame::FrameState> frames;
  Repeat repeat;
  if (!entry->ours && !entry->reason.empty() && !c->state->eager.note(c->state->settings, of_operators(*entry)))
    return nullptr;
  PyObject* result = run_entry(entry, c->state->settings, wanted, frames, repeat);
  if (result || PyErr_Occurred()) return result;
  if (repeat.wanted)
    return repeat.cause == EagerCause::kRaises ? call_raising(c, repeat.reason, args, nargsf, kwnames)
                                               : call_original(c, repeat.cause, repeat.reason, args, nargsf, kwnames);
  if (frame::profiled() &&
      !c->state->eager.note(c->state->settings,
                            {.cause = EagerCause::kTracer, .frame = true, .reason = kCalleesUnderProfiler}))
    return nullptr;
  Rest rest(*c->state);
  const Held held(reinterpret_cast<PyObject*>(c));  // the program may drop it on the way
  return frame::resume(std::move(frames), rest);
}

// Modules that were arguments of one call and died after it.
void note_renewed_arguments(CallableState& s, PyObject* const* slots, size_t count) {
  std::vector<EntryPtr> gone;
  for (const EntryPtr& e : s.entries)
    if (e->hits <= 1)
      for (PyObject* w : e->alive)
        if (PyWeakref_GET_OBJECT(w) == Py_None && (gone.empty() || gone.back() != e)) gone.push_back(e);
  for (const EntryPtr& e : gone) {
    if (!e->guards) continue;
    for (auto& [path, now] : e->guards->changed_objects(slots)) {
      if (!frame::is_module(now)) continue;
      for (size_t i = 0; i < count; i++)
        if (module_in(slots[i]) == now) s.renewed.slots.insert(i);
      s.renewed.paths.insert(std::move(path));
    }
  }
}

PyObject* miss(Callable* c, Bound& bound, Wanted& wanted, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  // What follows asks Python code whose errors count for nothing: a signal that waits is handled before.
  if (PyErr_CheckSignals() < 0) return nullptr;
  CallableState& s = *c->state;
  const Stance stance = current_stance();
  const bool fails = stance == Stance::kFailOnRecompile && !s.entries.empty();
  if (torch_only_runs())
    return call_original(c, EagerCause::kWanted, "torch._dynamo.run compiles nothing", args, nargsf, kwnames);
  if (stance == Stance::kEagerOnRecompile || (stance == Stance::kEagerThenCompile && s.calls == 1))
    return call_original(c, EagerCause::kWanted, std::string("the stance is ") + name_of(stance), args, nargsf,
                         kwnames);
  const auto slots = static_cast<size_t>(s.signature.slots);
  look_up_limit(s);
  note_renewed_arguments(s, bound.slots(), slots);
  const std::string modules = modules_among(bound.slots(), slots, s.renewed);
  const std::vector<EntryPtr> same = for_the_same(s.entries, modules);
  const bool full = same.size() >= s.limit || s.entries.size() >= s.limit * kModules;
  if (s.over_limit && full && !fails) return call_original(c, EagerCause::kLimit, *s.over_limit, args, nargsf, kwnames);
  Recompile why = why_again(same, bound.slots());
  const std::string failed = why.last();
  note_numbers(same, bound.slots(), s.numbers);
  note_renewed(same, bound.slots(), !s.renewed.slots.empty(), s.renewed.paths);
  if (fails) {
    PyErr_Format(PyExc_RuntimeError,
                 "flashover: %s needs to be compiled again, and the stance is fail_on_recompile: %s",
                 s.settings.name.c_str(), failed.c_str());
    return nullptr;
  }
  EntryPtr entry;
  bool changed = false, only_now = false;
  {
    CompileLock lock;
    if (lock.interrupted()) return nullptr;
    entry = find(s.entries, bound.slots(), wanted);  // another thread may have made it meanwhile
    if (!entry && full) {
      s.over_limit = limit_text(s.settings.name, s.limit, failed);
      log(Topic::kRecompiles, *s.over_limit);
    } else if (!entry) {
      const Held function(c->function);
      frame::Subject subject{c->function, bound.slots(), slots};
      subject.may_break = !s.settings.fullgraph;
      subject.first = same.empty();
      subject.numbers = &s.numbers;
      subject.renewed = &s.renewed.paths;
      Settings settings = s.settings;
      const bool by_operators = stance == Stance::kAotEagerThenCompile && s.calls == 1;
      if (by_operators) settings.backend = "eager", settings.custom = nullptr;
      entry = make_entry(s, settings, s.settings.name, subject, std::move(why), s.made);
      if (!entry) return nullptr;
      only_now = entry->transient || (by_operators && entry->kind == Entry::Kind::kCompiled);
      if (!only_now) {
        note_modules(*entry, bound.slots(), slots, s.renewed);
        s.entries.insert(s.entries.begin(), entry);
      }
      // The program may not change what was captured before this very call has run.
      changed = entry->kind == Entry::Kind::kCompiled && !wanted.match(*entry, bound.slots());
    }
  }
  if (!entry) return call_original(c, EagerCause::kLimit, *s.over_limit, args, nargsf, kwnames);
  if (changed) return call_original(c, EagerCause::kDeclined, kChangedMeanwhile, args, nargsf, kwnames);
  if (entry->kind == Entry::Kind::kEager) return call_eager(c, *entry, args, nargsf, kwnames);
  entry->hits++;
  return run_call(c, entry, wanted.data(), args, nargsf, kwnames);
}

// As it is, because the call itself cannot be compiled: what it calls may.
PyObject* call_original_taking_callees(Callable* c, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  if (c->state->settings.fullgraph) return call_original(c, args, nargsf, kwnames);
  Rest rest(*c->state);
  const Held held(reinterpret_cast<PyObject*>(c));
  frame::TakeCallees callees(&rest);
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

// The callable that compiles the same function by the backend that set_stance forces; borrowed.
PyObject* with_backend(Callable* c, PyObject* backend);

PyObject* call_compiled(Callable* c, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  CallableState& s = *c->state;
  frame::TakeCallees nobody(nullptr);  // compiled code inside compiled code looks after itself
  s.calls++;
  EagerCause cause;
  s.skipped = skips(c->function && PyFunction_Check(c->function) ? PyFunction_GET_CODE(c->function) : nullptr, cause);
  if (s.skipped) return call_original(c, cause, s.skipped, args, nargsf, kwnames);
  if (current_stance() == Stance::kForceEager)
    return call_original(c, EagerCause::kWanted, "the stance is force_eager", args, nargsf, kwnames);
  if (PyObject* backend = s.settings.forced ? nullptr : forced_backend()) {
    PyObject* other = Py_XNewRef(with_backend(c, backend));
    PyObject* result = other ? PyObject_Vectorcall(other, args, nargsf, kwnames) : nullptr;
    Py_XDECREF(other);
    return result;
  }
  if (!refresh(c))
    return call_original(c, EagerCause::kDeclined, "it has no __call__ in Python", args, nargsf, kwnames);
  if (only_makes_a_generator(c)) return call_original(c, args, nargsf, kwnames);
  const bool timed = !s.entries.empty() && s.entries.front()->clock != 0;  // before a dict is made of **kwargs
  const uint64_t clock = timed ? guards::dict_clock() : 0;
  Bound bound;
  auto* f = reinterpret_cast<PyFunctionObject*>(c->function);
  if (!bound.bind(s.signature, f, c->self, args, PyVectorcall_NARGS(nargsf), kwnames))
    return call_original(c, args, nargsf, kwnames);  // raises the TypeError
  Wanted wanted;
  if (EntryPtr entry = find(s.entries, bound.slots(), wanted, clock)) {
    if (entry->kind == Entry::Kind::kEager) return call_eager(c, *entry, args, nargsf, kwnames);
    entry->hits++;
    return run_call(c, entry, wanted.data(), args, nargsf, kwnames);
  }
  return miss(c, bound, wanted, args, nargsf, kwnames);
}

PyObject* call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  auto* c = reinterpret_cast<Callable*>(self);
  PyObject* result = call_compiled(c, args, nargsf, kwnames);
  if (!result || !is_new_generator(result) || c->state->skipped) return result;
  const Stance stance = current_stance();
  if (stance == Stance::kForceEager || (stance == Stance::kEagerThenCompile && c->state->calls == 1)) return result;
  keep_compiling(result, self, std::make_unique<Rest>(*c->state));
  return result;
}

// ---- the Python type ----

const char* text_of(PyObject* o) {
  const char* s = o ? PyUnicode_AsUTF8(o) : nullptr;
  return s ? s : "";
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"function", "self",      "through_call", "name",    "backend",
                                "custom",   "fullgraph", "keep_text",    "options", nullptr};
  PyObject *function = Py_None, *self = Py_None, *custom = Py_None, *options = nullptr;
  const char *name = "", *backend = "flashover";
  int through_call = 0, fullgraph = 0, keep_text = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O$pssOppO!:CompiledCallable", const_cast<char**>(names), &function,
                                   &self, &through_call, &name, &backend, &custom, &fullgraph, &keep_text, &PyDict_Type,
                                   &options))
    return nullptr;
  if (through_call && self == Py_None) return PyErr_SetString(PyExc_TypeError, "through_call needs self"), nullptr;
  if (!through_call && !PyFunction_Check(function))
    return PyErr_Format(PyExc_TypeError, "a Python function is needed, not a %s", Py_TYPE(function)->tp_name), nullptr;
  auto state = std::make_unique<CallableState>();
  state->settings.name = name;
  state->settings.backend = backend;
  state->settings.fullgraph = fullgraph;
  state->settings.keep_text = keep_text;
  PyObject *key, *value;
  for (Py_ssize_t pos = 0; options && PyDict_Next(options, &pos, &key, &value);)
    state->settings.options.values[text_of(key)] = text_of(value);
  if (PyErr_Occurred()) return nullptr;
  state->limit = static_cast<size_t>(int_option(state->settings.options.values, "recompile_limit"));
  auto* c = PyObject_GC_New(Callable, type);
  if (!c) return nullptr;
  c->vectorcall = at_boundary<call>;
  c->function = through_call ? nullptr : Py_NewRef(function);
  c->self = self == Py_None ? nullptr : Py_NewRef(self);
  c->dict = c->weakrefs = nullptr;
  c->through_call = through_call;
  if (custom != Py_None) state->settings.custom = Py_NewRef(custom);
  c->state = state.release();
  c->state->root = c->self && frame::is_module(c->self) ? c->self : nullptr;
  PyObject_GC_Track(c);
  return reinterpret_cast<PyObject*>(c);
}

PyObject* with_backend(Callable* c, PyObject* backend) {
  CallableState& s = *c->state;
  if (!s.forced) s.forced = PyDict_New();
  if (PyObject* known = s.forced ? PyDict_GetItemWithError(s.forced, backend) : nullptr) return known;
  if (PyErr_Occurred()) return nullptr;
  PyObject* module = PyImport_ImportModule("flashover.backends");
  PyObject* pair = module ? PyObject_CallMethod(module, "forced", "O", backend) : nullptr;
  Py_XDECREF(module);
  PyObject* options = PyDict_New();
  for (const auto& [name, text] : s.settings.options.values) {
    PyObject* value = PyUnicode_FromString(text.c_str());
    if (value) PyDict_SetItemString(options, name.c_str(), value);
    Py_XDECREF(value);
  }
  const auto object = [](PyObject* o) { return o ? o : Py_None; };
  const auto flag = [](bool b) { return b ? Py_True : Py_False; };
  PyObject* kwargs =
      pair ? Py_BuildValue("{s:O,s:O,s:O,s:s,s:O,s:O,s:O,s:O,s:N}", "function",
                           c->through_call ? Py_None : object(c->function), "self", object(c->self), "through_call",
                           flag(c->through_call), "name", s.settings.name.c_str(), "backend", PyTuple_GET_ITEM(pair, 0),
                           "custom", PyTuple_GET_ITEM(pair, 1), "fullgraph", flag(s.settings.fullgraph), "keep_text",
                           flag(s.settings.keep_text), "options", options)
           : nullptr;
  PyObject* none = PyTuple_New(0);
  PyObject* other = kwargs && none ? make(Py_TYPE(c), none, kwargs) : nullptr;
  if (other) reinterpret_cast<Callable*>(other)->state->settings.forced = true;
  const bool kept = other && PyDict_SetItem(s.forced, backend, other) == 0;
  if (!pair) Py_XDECREF(options);
  Py_XDECREF(pair);
  Py_XDECREF(kwargs);
  Py_XDECREF(none);
  Py_XDECREF(other);  // the dict has it
  return kept ? other : nullptr;
}

int traverse(PyObject* o, visitproc visit, void* arg) noexcept {
  auto* c = reinterpret_cast<Callable*>(o);
  Py_VISIT(c->state->forced);
  Py_VISIT(c->function);
  Py_VISIT(c->self);
  Py_VISIT(c->dict);
  Py_VISIT(c->state->settings.custom);
  auto visit_entries = [&](const std::vector<EntryPtr>& entries) {
    for (const EntryPtr& e : entries) {
      if (e.use_count() > 1) continue;  // running: its references are not only ours
      for (const frame::RecipeStep& s : e->capture.recipe) Py_VISIT(s.object);
    }
    return 0;
  };
  if (int stopped = visit_entries(c->state->entries)) return stopped;
  for (const auto& [key, place] : c->state->continuations)
    if (int stopped = place.use_count() > 1 ? 0 : visit_entries(place->entries)) return stopped;
  return 0;
}

int clear(PyObject* o) noexcept {
  auto* c = reinterpret_cast<Callable*>(o);
  std::vector<EntryPtr> entries = std::move(c->state->entries);
  c->state->entries.clear();
  auto continuations = std::move(c->state->continuations);
  c->state->continuations.clear();
  entries.clear();
  continuations.clear();
  auto barren = std::move(c->state->barren);
  c->state->barren.clear();
  for (const auto& [code, count] : barren) Py_DECREF(code);
  Py_CLEAR(c->state->forced);
  if (PyCodeObject* code = std::exchange(c->state->signature, {}).code) Py_DECREF(code);
  Py_CLEAR(c->function);
  c->state->root = nullptr;
  Py_CLEAR(c->self);
  Py_CLEAR(c->dict);
  Py_CLEAR(c->state->settings.custom);
  return 0;
}

void destroy(PyObject* o) noexcept {
  auto* c = reinterpret_cast<Callable*>(o);
  PyObject_GC_UnTrack(o);
  if (c->weakrefs) PyObject_ClearWeakRefs(o);
  clear(o);
  delete c->state;
  Py_TYPE(o)->tp_free(o);
}

PyObject* get(PyObject* o, PyObject* instance, PyObject*) {
  return instance && instance != Py_None ? PyMethod_New(o, instance) : Py_NewRef(o);
}

PyObject* repr(PyObject* o) {
  return PyUnicode_FromFormat("<flashover compiled %s>", reinterpret_cast<Callable*>(o)->state->settings.name.c_str());
}

PyObject* strings(const std::vector<std::string>& list) {
  PyObject* out = PyList_New(0);
  for (const std::string& s : list) {
    PyObject* text = PyUnicode_FromStringAndSize(s.data(), static_cast<Py_ssize_t>(s.size()));
    if (text) PyList_Append(out, text);
    Py_XDECREF(text);
  }
  return out;
}

PyObject* step_of(const std::string& side, const plan::Plan& p, const plan::Step& s, double seconds, bool frozen) {
  // Distinct memory: a tensor and its views count once, repeated elements too.
  std::vector<plan::TensorId> reads, writes;
  const auto add = [&](std::vector<plan::TensorId>& to, plan::TensorId t) {
    if (std::find(to.begin(), to.end(), t) == to.end()) to.push_back(t);
  };
  plan::for_each_read(s, [&](plan::TensorId t) { add(reads, t); });
  plan::for_each_write(s, [&](plan::TensorId t) { add(writes, t); });
  const auto describe = [&](const std::vector<plan::TensorId>& list, long long& bytes) {
    PyObject* out = PyList_New(0);
    for (plan::TensorId t : list) {
      const TensorType& type = p.tensors[static_cast<size_t>(t)].type;
      int64_t n = info(type.dtype).bytes;
      for (size_t d = 0; d < type.sizes.size() && n > 0; ++d)
        if (d >= type.strides.size() || !type.strides[d].is_const(0)) n *= type.sizes[d].as_const().value_or(0);
      bytes += n;
      PyObject* pair = Py_BuildValue("(is)", static_cast<int>(plan::root(p, t)), str(type).c_str());
      if (pair) PyList_Append(out, pair);
      Py_XDECREF(pair);
    }
    return out;
  };
  long long read = 0, written = 0;
  PyObject *from = describe(reads, read), *to = describe(writes, written);
  static constexpr const char* kKinds[] = {"kernel", "extern", "copy", "release"};
  const bool kernel = s.kind == plan::StepKind::kLaunch;
  return Py_BuildValue("{s:s,s:s,s:s,s:s,s:s,s:s,s:L,s:L,s:d,s:O,s:N,s:N}", "side", side.c_str(), "kind",
                       kKinds[static_cast<size_t>(s.kind)], "name", run::name_of(p, s).c_str(), "symbol",
                       kernel ? p.kernels[static_cast<size_t>(s.kernel)].symbol.c_str() : "", "label", s.label.c_str(),
                       "operators", s.operators.c_str(), "bytes_read", read, "bytes_written", written, "seconds",
                       seconds, "frozen", frozen ? Py_True : Py_False, "reads", from, "writes", to);
}

// The plans of an entry, step by step.
PyObject* steps_of(const Entry& e) {
  PyObject* out = PyList_New(0);
  if (!e.runner) return out;
  for (const auto& [side, executable] : e.runner->parts) {
    const plan::Plan& p = executable->plan();
    const std::vector<double> times = executable->times();
    const auto append = [&](const plan::Step& s, double seconds, bool frozen) {
      // Memory that is taken or given back is no work.
      if (s.kind == plan::StepKind::kRelease || plan::takes_memory(s)) return;
      PyObject* d = step_of(side, p, s, seconds, frozen);
      if (d) PyList_Append(out, d);
      Py_XDECREF(d);
    };
    for (const plan::Step& s : p.frozen_steps) append(s, -1, true);
    for (size_t i = 0; i < p.steps.size(); ++i) append(p.steps[i], times[i], false);
  }
  return out;
}

// What explain() shows of one entry.
PyObject* describe(const Entry& e) {
  PyObject* stages = PyDict_New();
  auto stage = [&](const char* name, double seconds) {
    PyObject* v = PyFloat_FromDouble(seconds);
    PyDict_SetItemString(stages, name, v);
    Py_XDECREF(v);
  };
  stage("capture", e.capture_seconds);
  stage("guards", e.guard_seconds);
  for (const auto& s : e.report.stages) stage(s.name.c_str(), s.seconds);
  const compile::Report& r = e.report;
  PyObject* texts = PyDict_New();
  for (const auto& [name, text] : r.texts) {
    PyObject* v = PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
    PyDict_SetItemString(texts, name.c_str(), v);
    Py_XDECREF(v);
  }
  PyObject* sources = PyDict_New();
  for (const auto& [symbol, text] : r.kernel_sources) {
    PyObject* v = PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
    if (v) PyDict_SetItemString(sources, symbol.c_str(), v);
    Py_XDECREF(v);
  }
  std::string device;
  const plan::Plan* first = e.runner && !e.runner->parts.empty() ? &e.runner->parts[0].second->plan() : nullptr;
  if (first) device = first->device.type == DeviceType::kCUDA ? "cuda:" + std::to_string(first->device.index) : "cpu";
  return Py_BuildValue(
      "{s:L,s:L,s:s,s:s,s:s,s:N,s:O,s:O,s:L,s:L,s:s,s:O,s:s,s:O,s:s,s:s,s:s,s:N,s:s,s:L,s:L,s:L,s:L,s:L,s:O,s:s,s:d,s:"
      "N,s:n,s:s,s:N,s:N,s:N}",
      "serial", static_cast<long long>(e.serial), "version", static_cast<long long>(e.version), "stack",
      e.capture.stack.c_str(), "device", device.c_str(), "target", first ? first->target.c_str() : "", "steps",
      steps_of(e), "compiled", e.kind == Entry::Kind::kCompiled ? Py_True : Py_False, "training",
      r.training ? Py_True : Py_False, "saved_bytes", static_cast<long long>(r.saved_bytes), "backward_kernels",
      static_cast<long long>(r.backward_kernels), "continues", e.continues.c_str(), "breaks",
      e.kind == Entry::Kind::kCompiled && !e.capture.frames.empty() && !e.capture.yields ? Py_True : Py_False, "stays",
      e.capture.reason_to_stay.c_str(), "trivial", e.trivial ? Py_True : Py_False, "reason",
      (e.reason.empty() ? e.capture.reason : e.reason).c_str(), "where",
      (e.where.empty() ? e.capture.where : e.where).c_str(), "recompiled_for", e.again.last().c_str(), "missed",
      to_python(e.again), "called", e.again.called.c_str(), "hits", static_cast<long long>(e.hits), "ops",
      static_cast<long long>(e.ops), "kernels", static_cast<long long>(r.kernels), "extern_calls",
      static_cast<long long>(r.extern_calls), "slab_bytes", static_cast<long long>(r.slab_bytes), "cache_hit",
      r.cache_hit ? Py_True : Py_False, "cache_note", r.cache_note.c_str(), "seconds", e.total_seconds, "guards",
      strings(e.guards ? e.guards->words() : std::vector<std::string>{}), "guard_instructions",
      static_cast<Py_ssize_t>(e.guards ? e.guards->size() : 0), "guard_parts",
      (e.guards ? e.guards->parts() : "").c_str(), "stages", stages, "texts", texts, "kernel_sources", sources);
}

PyObject* entries(PyObject* o, PyObject*) {
  PyObject* out = PyList_New(0);
  const CallableState& s = *reinterpret_cast<Callable*>(o)->state;
  std::vector<EntryPtr> all = s.entries;
  for (const auto& [key, place] : s.continuations) all.insert(all.end(), place->entries.begin(), place->entries.end());
  for (const EntryPtr& e : all) {
    PyObject* d = describe(*e);
    if (!d || PyList_Append(out, d) != 0) {
      Py_XDECREF(d);
      Py_DECREF(out);
      return nullptr;
    }
    Py_DECREF(d);
  }
  return out;
}

PyObject* reset(PyObject* o, PyObject*) {
  std::vector<EntryPtr> old;
  CallableState& s = *reinterpret_cast<Callable*>(o)->state;
  old.swap(s.entries);
  decltype(s.continuations) rest;
  rest.swap(s.continuations);
  s.places.clear();
  s.renewed = {};
  decltype(s.barren) barren;
  barren.swap(s.barren);
  for (const auto& [code, count] : barren) Py_DECREF(code);
  s.over_limit.reset();
  Py_CLEAR(s.forced);
  s.eager.forget_said();
  s.made = 0;
  Py_RETURN_NONE;
}

PyObject* measure(PyObject* o, PyObject* on) {
  const int truth = PyObject_IsTrue(on);
  if (truth < 0) return nullptr;
  const CallableState& s = *reinterpret_cast<Callable*>(o)->state;
  const auto each = [&](const std::vector<EntryPtr>& entries) {
    for (const EntryPtr& e : entries)
      if (e->runner)
        for (const auto& [side, executable] : e->runner->parts) executable->measure(truth != 0);
  };
  each(s.entries);
  for (const auto& [key, place] : s.continuations) each(place->entries);
  Py_RETURN_NONE;
}

PyObject* tallies(PyObject* o, PyObject*) {
  CallableState& s = *reinterpret_cast<Callable*>(o)->state;
  return Py_BuildValue("{s:L,s:L,s:L,s:N,s:L,s:d,s:z}", "calls", static_cast<long long>(s.calls), "eager_calls",
                       static_cast<long long>(s.eager.calls()), "eager_frames",
                       static_cast<long long>(s.eager.frames()), "eager", s.eager.to_python(), "recompiles",
                       static_cast<long long>(s.recompiles), "recompile_seconds", s.recompile_seconds, "skipped",
                       s.skipped);
}

// For benchmarks: nanoseconds that the guards of the entry used last take for a call with these arguments: (when some
// dict of the process changed since the last call, when none did). None if the call does not match it. The least of
// many; or, if `before` is to be called before each check (to walk over memory, to run a model), the middle of some.
PyObject* time_guards(PyObject* o, PyObject* before, PyObject* args, PyObject* kwargs) {
  auto* c = reinterpret_cast<Callable*>(o);
  CallableState& s = *c->state;
  if (s.entries.empty() || !s.entries.front()->guards || !refresh(c)) Py_RETURN_NONE;
  const EntryPtr e = s.entries.front();
  std::vector<PyObject*> given(&PyTuple_GET_ITEM(args, 0), &PyTuple_GET_ITEM(args, 0) + PyTuple_GET_SIZE(args));
  PyObject* names = kwargs ? PySequence_Tuple(kwargs) : nullptr;
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++)
    given.push_back(PyDict_GetItem(kwargs, PyTuple_GET_ITEM(names, i)));
  Bound bound;
  const bool fits = bound.bind(s.signature, reinterpret_cast<PyFunctionObject*>(c->function), c->self, given.data(),
                               PyTuple_GET_SIZE(args), names);
  Py_XDECREF(names);
  if (!fits) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
  std::vector<PyObject*> wanted(e->wanted);
  std::array<std::vector<double>, 2> times;
  for (int i = 0; i < (before ? 40 : 4000); i++) {
    if (before) {
      PyObject* done = PyObject_CallNoArgs(before);
      if (!done) return nullptr;
      Py_DECREF(done);
    }
    const auto start = std::chrono::steady_clock::now();
    const bool yes = e->guards->check(bound.slots(), wanted.data(), i % 2 == 1);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    if (!yes) Py_RETURN_NONE;
    times[i % 2].push_back(took.count());
  }
  for (std::vector<double>& t : times) std::sort(t.begin(), t.end());
  const size_t which = before ? times[0].size() / 2 : 0;
  return Py_BuildValue("dd", times[0][which], times[1][which]);
}
PyObject* time_warm_guards(PyObject* o, PyObject* args, PyObject* kwargs) {
  return time_guards(o, nullptr, args, kwargs);
}
PyObject* time_guards_after(PyObject* o, PyObject* args, PyObject* kwargs) {
  if (PyTuple_GET_SIZE(args) == 0) return PyErr_SetString(PyExc_TypeError, "what is called before?"), nullptr;
  PyObject* rest = PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args));
  PyObject* times = rest ? time_guards(o, PyTuple_GET_ITEM(args, 0), rest, kwargs) : nullptr;
  Py_XDECREF(rest);
  return times;
}

PyMethodDef kMethods[] = {
    {"time_guards", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(at_boundary<time_warm_guards>)),
     METH_VARARGS | METH_KEYWORDS, "For benchmarks: nanoseconds that the guards of the last entry take."},
    {"time_guards_after", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(at_boundary<time_guards_after>)),
     METH_VARARGS | METH_KEYWORDS, "The same; the first argument is called before each check."},
    {"entries", at_boundary<entries>, METH_NOARGS, "What was compiled, most recently used first, as dicts."},
    {"measure", at_boundary<measure>, METH_O, "Whether calls of what is compiled also take the time of each step."},
    {"reset", at_boundary<reset>, METH_NOARGS, "Forgets everything compiled."},
    {"tallies", at_boundary<tallies>, METH_NOARGS, "Calls, eager calls, recompiles, why the last call was skipped."},
    {nullptr, nullptr, 0, nullptr},
};
PyMemberDef kMembers[] = {
    {"__wrapped_function__", T_OBJECT, offsetof(Callable, function), READONLY, "the Python function that is compiled"},
    {"__bound_self__", T_OBJECT, offsetof(Callable, self), READONLY, "its first argument"},
    {"__through_call__", T_BOOL, offsetof(Callable, through_call), READONLY,
     "the function is the __call__ of the first argument's class"},
    {nullptr, 0, 0, 0, nullptr},
};
PyGetSetDef kGetSets[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

}  // namespace

bool add_callable_type(PyObject* module) {
  static PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "flashover._C.CompiledCallable";
  type.tp_basicsize = sizeof(Callable);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;
  type.tp_vectorcall_offset = offsetof(Callable, vectorcall);
  type.tp_call = PyVectorcall_Call;
  type.tp_new = at_boundary<make>;
  type.tp_dealloc = destroy;
  type.tp_traverse = traverse;
  type.tp_clear = clear;
  type.tp_descr_get = at_boundary<get>;
  type.tp_repr = at_boundary<repr>;
  type.tp_methods = kMethods;
  type.tp_members = kMembers;
  type.tp_getset = kGetSets;
  type.tp_dictoffset = offsetof(Callable, dict);
  type.tp_weaklistoffset = offsetof(Callable, weakrefs);
  type.tp_getattro = PyObject_GenericGetAttr;
  type.tp_setattro = PyObject_GenericSetAttr;
  type.tp_free = PyObject_GC_Del;
  if (PyType_Ready(&type) < 0 || !add_generator_type()) return false;
  return PyModule_AddObjectRef(module, "CompiledCallable", reinterpret_cast<PyObject*>(&type)) == 0;
}

}  // namespace flashover::entry
