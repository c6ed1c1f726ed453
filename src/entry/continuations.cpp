// A continuation is keyed by code, instruction and shape of the stack; the modules in its slots tell apart entries of
// code that many modules run.
#include "entry/continuations.h"

#include <optional>

#include "base/options.h"
#include "entry/background.h"
#include "entry/capture_lock.h"
#include "entry/log.h"
#include "entry/lookup.h"
#include "entry/stance.h"
#include "entry/torch_config.h"
#include "frame/signals.h"

namespace flashover::entry {
namespace {

constexpr size_t kMaxContinuations = 4096;  // modules that come and go leave theirs behind
constexpr int kMaxBarren = 4;
constexpr int kMaxFruitless = 8;

const std::string kNowhere;

std::string line_of(const frame::CaptureRequest& resumption, PyObject* code) {
  const int line = PyCode_Addr2Line(reinterpret_cast<PyCodeObject*>(code), resumption.next * 2);
  const char* file = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(code)->co_filename);
  PyErr_Clear();
  return std::string(file ? file : "?") + ":" + std::to_string(line);
}

std::string site_key(const frame::CaptureRequest& resumption, PyObject* code) {
  std::string k(reinterpret_cast<const char*>(&code), sizeof code);
  k.append(reinterpret_cast<const char*>(&resumption.next), sizeof resumption.next);
  for (size_t i = 0; i < resumption.count; i++) k += resumption.slots[i] ? '1' : '0';
  return k;
}

}  // namespace

bool CompiledContinuations::accepts(PyObject* function) {
  auto it = s_.barren.find(PyFunction_GET_CODE(function));
  if (it == s_.barren.end() || it->second.times < kMaxBarren) return true;
  static const std::string kReason = "it could not be compiled before";
  if (it->second.eager)
    s_.eager.note(s_.settings, {.frame = true, .quiet = true, .reason = kReason, .where = kNowhere});
  return false;
}

CompiledContinuations::Outcome CompiledContinuations::resume(const frame::CaptureRequest& resumption, PyObject* code,
                                                             PyObject** result,
                                                             std::vector<frame::FrameState>& frames) {
  frame::TakeCallees no_callees(nullptr);
  eager_ = false;
  if (fruitless_ >= kMaxFruitless && reinterpret_cast<PyObject*>(s_.signature.code) != code &&
      !deals_with_tensors(resumption.slots, resumption.count))
    return leave(resumption, code, EagerCause::kDeclined, "many parts of the call before it had nothing to compile",
                 line_of(resumption, code));
  computes_ = false;
  const Outcome outcome = enter(resumption, code, result, frames);
  fruitless_ = computes_ ? 0 : fruitless_ + 1;
  if (resumption.next == 0 || (reinterpret_cast<PyCodeObject*>(code)->co_flags & CO_GENERATOR)) {  // what was called
    auto [it, added] = s_.barren.try_emplace(code);
    if (added) Py_INCREF(code);
    it->second.times = outcome == Outcome::kNotTaken ? it->second.times + 1 : 0;
    it->second.eager = eager_;
  }
  return outcome;
}

bool CompiledContinuations::gives_up(const frame::CaptureRequest& resumption, PyObject* code, const char* reason) {
  frame::TakeCallees no_callees(nullptr);
  return leave(resumption, code, EagerCause::kDeclined, reason, line_of(resumption, code)) != Outcome::kRaised;
}

CompiledContinuations::Outcome CompiledContinuations::leave(const frame::CaptureRequest& resumption, PyObject* code,
                                                            EagerCause cause, const std::string& reason,
                                                            const std::string& where) {
  eager_ = true;
  const bool own = reinterpret_cast<PyObject*>(s_.signature.code) == code;
  const bool quiet = !own && !deals_with_tensors(resumption.slots, resumption.count);
  const EagerLog::Event event{.cause = cause, .frame = true, .quiet = quiet, .reason = reason, .where = where};
  return s_.eager.note(s_.settings, event) ? Outcome::kNotTaken : Outcome::kRaised;
}
CompiledContinuations::Outcome CompiledContinuations::enter(const frame::CaptureRequest& resumption, PyObject* code,
                                                            PyObject** result, std::vector<frame::FrameState>& frames) {
  EagerCause cause;
  if (const char* reason = reason_not_to_compile(code, cause))
    return leave(resumption, code, cause, reason, line_of(resumption, code));
  if (current_stance() == Stance::kForceEager)
    return leave(resumption, code, EagerCause::kRequested, "the stance is force_eager", line_of(resumption, code));
  const std::string site = site_key(resumption, code);
  std::shared_ptr<PerCallIdentity>& of_site = s_.per_call_by_site[site];
  if (!of_site) of_site = std::make_shared<PerCallIdentity>();
  const std::shared_ptr<PerCallIdentity> held = of_site;
  PerCallIdentity& per_call = *held;
  auto found = s_.continuations.find(site + modules_among(resumption.slots, resumption.count, per_call));
  std::shared_ptr<Continuation> here = found == s_.continuations.end() ? nullptr : found->second;
  if (!here || here->gone()) {
    find_per_call_modules(site, resumption, per_call);
    if (s_.continuations.size() >= kMaxContinuations)
      return leave(resumption, code, EagerCause::kDeclined, "there are too many places that go on after graph breaks",
                   line_of(resumption, code));
    found = s_.continuations.find(site + modules_among(resumption.slots, resumption.count, per_call));
    here = found != s_.continuations.end() ? found->second : begin(site, resumption, code, per_call);
  }
  here->last_call = s_.calls;
  SourceObjects objects;
  EntryPtr entry = find_entry(here->entries, resumption.slots, objects);
  if (entry && drop_stale(here->entries, entry, here->sizes, here->settings)) entry = nullptr;
  if (!entry) {
    Outcome failed = Outcome::kNotTaken;
    entry = make(*here, resumption, code, per_call, objects, failed);
    if (!entry) return failed;
  }
  if (entry->kind == Entry::Kind::kEager)
    return entry->trivial ? Outcome::kNotTaken : leave(resumption, code, entry->cause, entry->reason, entry->where);
  for (DataCase seen;;) {
    entry->hits++;
    computes_ = computes_ || entry->ops > 0;
    Repeat repeat;
    *result = run_entry(entry, here->settings, objects.data(), frames, repeat);
    if (*result) return Outcome::kReturned;
    if (PyErr_Occurred()) return Outcome::kRaised;
    if (!repeat.needed) return Outcome::kBroke;
    if (repeat.unexpected_size) note_unexpected(entry, here->entries, here->may_assume);
    const bool other = repeat.unexpected_size && seen.note(entry, repeat.fact);
    entry = other ? other_case(*here, resumption, code, per_call, objects, seen) : nullptr;
    if (PyErr_Occurred()) return Outcome::kRaised;
    if (!entry) return leave(resumption, code, repeat.cause, repeat.reason, line_of(resumption, code));
  }
}

std::string CompiledContinuations::name_at(const std::string& where) const {
  return s_.settings.name + " after the graph break before " + where;
}

frame::CaptureRequest CompiledContinuations::request_of(const Continuation& here,
                                                        const frame::CaptureRequest& resumption,
                                                        const PerCallIdentity& per_call,
                                                        const std::optional<frame::VaryingSizes>& sizes) {
  frame::CaptureRequest request = resumption;
  request.may_assume = here.may_assume;
  request.varying_numbers = &here.varying_numbers;
  request.varying_sizes = sizes ? &*sizes : nullptr;
  request.per_call_paths = &per_call.paths;
  return request;
}

EntryPtr CompiledContinuations::other_case(Continuation& here, const frame::CaptureRequest& resumption, PyObject* code,
                                           const PerCallIdentity& per_call, SourceObjects& objects,
                                           const DataCase& seen) {
  return find_case(here.entries, resumption.slots, objects, seen, [&]() -> EntryPtr {
    if (here.entries.size() >= s_.limit || !may_compile_again()) return nullptr;
    const std::optional<frame::VaryingSizes> sizes = here.sizes.wanted(here.settings);
    frame::CaptureRequest request = request_of(here, resumption, per_call, sizes);
    request.refuted = &seen.refuted(true);
    const std::string where = line_of(resumption, code);
    const frame::NamesModules named(s_.root);
    EntryPtr made = make_entry(s_, here.settings, name_at(where), request, seen.why(), here.made);
    if (made) made->continues = where;
    return made;
  });
}

std::shared_ptr<Continuation> CompiledContinuations::begin(const std::string& site,
                                                           const frame::CaptureRequest& resumption, PyObject* code,
                                                           const PerCallIdentity& per_call) {
  auto here = std::make_shared<Continuation>();
  here->code = Py_NewRef(code);
  here->settings = s_.settings;
  here->settings.fullgraph = false;
  here->first_call = s_.calls;
  for (size_t i = 0; i < resumption.count; i++)
    if (PyObject* module = module_in(resumption.slots[i]); module && !per_call.slots.contains(i)) {
      if (PyObject* weak = PyWeakref_NewRef(module, nullptr)) here->modules.emplace_back(i, weak);
      PyErr_Clear();
    }
  s_.continuations[site + modules_among(resumption.slots, resumption.count, per_call)] = here;
  return here;
}

void CompiledContinuations::find_per_call_modules(const std::string& site, const frame::CaptureRequest& resumption,
                                                  PerCallIdentity& per_call) {
  std::vector<std::shared_ptr<Continuation>> gone;
  for (auto it = s_.continuations.begin(); it != s_.continuations.end();) {
    const std::shared_ptr<Continuation>& c = it->second;
    bool dead = false;
    if (it->first.starts_with(site))
      for (const auto& [slot, weak] : c->modules) {
        if (PyWeakref_GET_OBJECT(weak) != Py_None) continue;
        dead = true;
        if (c->first_call == c->last_call) per_call.slots.insert(slot);
      }
    if (dead) gone.push_back(c);
    it = dead ? s_.continuations.erase(it) : std::next(it);
  }
  if (!per_call.slots.empty())
    for (const auto& c : gone) note_per_call_identity(c->entries, resumption.slots, true, per_call.paths);
}

EntryPtr CompiledContinuations::make(Continuation& here, const frame::CaptureRequest& resumption, PyObject* code,
                                     PerCallIdentity& per_call, SourceObjects& objects, Outcome& failed_how) {
  std::optional<frame::HeldSignals> held(std::in_place);  // as in a call that misses (dispatch.cpp)
  look_up_limit(s_);
  const Stance stance = current_stance();
  const char* const forbidden_by = here.entries.empty() ? nullptr : what_forbids_recompiling();
  const bool fails = forbidden_by != nullptr;
  const auto leaves = [&](EagerCause cause, const std::string& reason) {
    failed_how = leave(resumption, code, cause, reason, line_of(resumption, code));
    return nullptr;
  };
  if (stance == Stance::kEagerOnRecompile) return leaves(EagerCause::kRequested, "the stance is eager_on_recompile");
  if (torch_only_runs()) return leaves(EagerCause::kRequested, "torch._dynamo.run compiles nothing");
  if (torch_compiles_nothing()) return leaves(EagerCause::kRequested, "torch._dynamo.config.disable is set");
  const bool full = here.entries.size() >= s_.limit;
  const bool last = full && here.sizes.general_is_missing(here.entries, resumption.slots, here.settings);
  if (here.over_limit && full && !last && !fails) return leaves(EagerCause::kLimit, *here.over_limit);
  Recompile why = why_recompile(here.entries, resumption.slots, here.settings);
  const std::string failed = why.last();
  here.sizes.learn(here.entries, resumption.slots, here.settings, here.varying_numbers, code, s_.root, resumption.next);
  note_per_call_identity(here.entries, resumption.slots, !per_call.slots.empty(), per_call.paths);
  held.reset();
  if (frame::run_signal_handlers()) {
    failed_how = Outcome::kRaised;
    return nullptr;
  }
  if (fails) {
    raise_would_recompile(s_.settings, failed, forbidden_by);
    failed_how = Outcome::kRaised;
    return nullptr;
  }
  const std::string where = line_of(resumption, code), name = name_at(where);
  if (full && !last) {
    here.over_limit = limit_text(name, s_.limit, failed);
    log(Topic::kRecompiles, *here.over_limit);
    return leaves(EagerCause::kLimit, *here.over_limit);
  }
  EntryPtr made;
  {
    const bool waits = !compiles_in_background(here.settings);
    CaptureLock lock(waits ? CaptureLock::IfHeld::kWait : CaptureLock::IfHeld::kLeave);
    if (lock.busy() && !waits) return leaves(EagerCause::kRequested, kBusy);
    if (lock.interrupted()) {
      failed_how = Outcome::kRaised;
      return nullptr;
    }
    if (EntryPtr found = find_entry(here.entries, resumption.slots, objects)) return found;  // by another thread
    const std::optional<frame::VaryingSizes> sizes = here.sizes.wanted(here.settings, last);
    frame::CaptureRequest request = request_of(here, resumption, per_call, sizes);
    request.steady_values = !why.by_values;
    const frame::NamesModules named(s_.root);
    made = make_entry(s_, here.settings, name, request, std::move(why), here.made);
    if (!made) {
      failed_how = Outcome::kRaised;
      return nullptr;
    }
    made->general = last;
    here.sizes.note(*made, here.settings);
    made->continues = where;
    if (!made->transient) here.entries.insert(here.entries.begin(), made);
  }
  if (made->kind == Entry::Kind::kEager || objects.match(*made, resumption.slots)) return made;
  return leaves(EagerCause::kDeclined, kChangedMeanwhile);
}
}  // namespace flashover::entry
