// Linear search: a function has a few entries, and the guards of one that does not match mostly fail at the first.
#include "entry/lookup.h"

#include <algorithm>
#include <cstring>

#include "base/decimal.h"
#include "base/options.h"
#include "entry/background.h"
#include "entry/capture_lock.h"
#include "entry/log.h"
#include "entry/stance.h"
#include "entry/torch_config.h"
#include "frame/resume.h"
#include "frame/signals.h"
#include "guards/objects.h"

namespace flashover::entry {

PyObject* module_in(PyObject* slot) {
  if (slot && PyCell_Check(slot)) slot = PyCell_GET(slot);
  return slot && frame::is_module(slot) ? slot : nullptr;
}
std::string modules_among(PyObject* const* slots, size_t count, const PerCallIdentity& per_call) {
  std::string key;
  for (size_t i = 0; i < count; i++)
    if (PyObject* o = module_in(slots[i]); o && !per_call.slots.contains(i))
      key.append(reinterpret_cast<const char*>(&o), sizeof o);
  return key;
}

void note_per_call_identity(const std::vector<EntryPtr>& entries, PyObject* const* slots, bool modules,
                            std::unordered_set<std::string>& out) {
  for (const EntryPtr& e : entries) {
    if (!e->guards) continue;
    for (auto& [path, now] : e->guards->changed_objects(slots))
      if (PyType_Check(now) ? guards::is_local_class(reinterpret_cast<PyTypeObject*>(now))
                            : modules && frame::is_module(now))
        out.insert(std::move(path));
  }
}

void note_per_call_arguments(CallableState& s, PyObject* const* slots, size_t count) {
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
        if (module_in(slots[i]) == now) s.per_call.slots.insert(i);
      s.per_call.paths.insert(std::move(path));
    }
  }
}

void note_modules(Entry& e, PyObject* const* slots, size_t count, const PerCallIdentity& per_call) {
  e.modules = modules_among(slots, count, per_call);
  for (size_t at = 0; at < e.modules.size(); at += sizeof(PyObject*)) {
    PyObject* o;
    std::memcpy(&o, e.modules.data() + at, sizeof o);
    if (PyObject* w = PyWeakref_NewRef(o, nullptr)) e.alive.push_back(w);
  }
  PyErr_Clear();
}

std::vector<EntryPtr> entries_of(std::vector<EntryPtr>& entries, const std::string& modules) {
  std::vector<EntryPtr> gone, same;
  for (EntryPtr& e : entries)
    for (PyObject* w : e->alive)
      if (e && PyWeakref_GET_OBJECT(w) == Py_None) gone.push_back(std::move(e));
  std::erase(entries, nullptr);
  for (const EntryPtr& e : entries)
    if (e->modules == modules) same.push_back(e);
  return same;  // (releasing what is gone may run code of the program: last)
}

namespace {

EntryPtr to_front(std::vector<EntryPtr>& entries, size_t i) {
  const auto at = static_cast<std::ptrdiff_t>(i);
  if (i > 0) std::rotate(entries.begin(), entries.begin() + at, entries.begin() + at + 1);
  return entries.front();
}

}  // namespace

EntryPtr find_entry(std::vector<EntryPtr>& entries, PyObject* const* slots, SourceObjects& objects, uint64_t clock) {
  for (size_t i = 0; i < entries.size(); i++) {
    Entry& e = *entries[i];
    if (!e.guards) continue;                                            // failed before there were any: only counts
    if (e.kind == Entry::Kind::kEager && !e.refuted.empty()) continue;  // says nothing of other cases
    const bool untouched = clock != 0 && e.clock != 0 && clock == e.clock + guards::kDictTick;
    e.clock = 0;
    if (objects.match(e, slots, untouched)) return to_front(entries, i);
  }
  return nullptr;
}

EntryPtr find_case(std::vector<EntryPtr>& entries, PyObject* const* slots, SourceObjects& objects, const DataCase& seen,
                   const std::function<EntryPtr()>& make) {
  CaptureLock lock;
  if (lock.interrupted()) return nullptr;
  for (size_t i = 0; i < entries.size(); i++) {
    Entry& e = *entries[i];
    if (!e.guards || !(seen.is_given_up(e) || seen.may_serve(e)) || !objects.match(e, slots)) continue;
    if (e.kind == Entry::Kind::kEager) return nullptr;
    return seen.is_usual(e) ? to_front(entries, i) : entries[i];
  }
  EntryPtr made = make();
  if (!made || made->transient) return nullptr;
  // What could not be compiled is remembered, behind what serves calls.
  const bool compiled = made->kind == Entry::Kind::kCompiled;
  entries.insert(compiled && seen.is_usual(*made) ? entries.begin() : entries.end(), made);
  return compiled && objects.match(*made, slots) ? made : nullptr;
}

namespace {

// The guard on symbolic sizes that a call which meets all others does not meet.
guards::Failure failing_size(const Entry& e, PyObject* const* slots) {
  if (!e.guards || e.capture.sizes.empty()) return {};
  SourceObjects objects;
  return objects.read(e, slots) ? e.capture.sizes.failure(objects.data()) : guards::Failure{};
}

// Where a size that is guarded by value has another one now: what became of it, or what to do.
std::string advice_on_size(const Entry& e, PyObject* const* slots, const Settings& settings,
                           const std::vector<EntryPtr>& entries) {
  if (!e.guards) return "";
  const auto changed = e.guards->changed_geometry(slots);
  if (changed.empty()) return "";
  const auto& [path, dim] = changed.front();
  const std::string size = part_in_words(path, dim);
  for (const frame::SizeSymbol& s : e.capture.size_symbols)
    if (s.fixed && s.path == path && s.dim == dim)
      return size +
             (s.how == sym::Fixing::kOperator ? " is needed as a number by an operator" : " is taken as a number") +
             (s.where.empty() ? "" : " at " + with_text(s.where)) + ", so each value is compiled for";
  if (!e.static_because.empty()) return "sizes are numbers here: " + e.static_because;
  if (dynamic_of(settings) == false) return "dynamic=False compiles for each size";
  const auto known = [&](const EntryPtr& other) {
    return std::ranges::any_of(other->capture.size_symbols,
                               [&](const frame::SizeSymbol& s) { return s.path == path && s.dim == dim; });
  };
  if (std::ranges::any_of(entries, known)) return "";  // another version says more of it
  if (is_stride_part(dim)) return size + " is a symbol from now on";
  return size + " is a symbol from now on; torch._dynamo.mark_dynamic(" + path + ", " + std::to_string(dim) +
         ") makes it one in the first version";
}

std::string advice_on_size_guard(const guards::Failure& f) {
  if (!f.where.empty()) return "each answer there is a version of its own; ask what all calls answer alike";
  return f.guard.starts_with("2 <= ") ? "smaller sizes have a version of their own" : "";
}

}  // namespace

Recompile why_recompile(const std::vector<EntryPtr>& entries, PyObject* const* slots, const Settings& settings) {
  Recompile why;
  if (entries.empty()) return why;
  why.called = calling_line();
  for (const EntryPtr& e : entries) {
    guards::Failure f = e->guards ? e->guards->failure(slots) : guards::Failure{e->reason, "", e->where};
    std::string advice = f ? advice_on_size(*e, slots, settings, entries) : "";
    if (!f && (f = failing_size(*e, slots))) advice = advice_on_size_guard(f);
    if (!f) {
      f = {"comparisons of numbers go the same way", "another way", ""};
      why.by_values = true;
    }
    why.missed.push_back({e->version, e->hits, std::move(f), std::move(advice)});
  }
  return why;
}

bool drop_stale(std::vector<EntryPtr>& entries, const EntryPtr& entry, SymbolicSizes& sizes, const Settings& settings) {
  if (!entry->again_with_numbers && !(entry->pending && entry->pending->lost())) return false;
  if (entry->again_with_numbers) sizes.note(*entry, settings);
  std::erase(entries, entry);
  return true;
}

EntryPtr make_entry(CallableState& s, const Settings& settings, const std::string& name,
                    const frame::CaptureRequest& request, Recompile why, int64_t& made) {
  const bool again = static_cast<bool>(why);
  const int64_t version = made++;
  if (again) {
    s.recompiles++;
    counters().recompiles++;
    if (logged(Topic::kRecompiles)) log(Topic::kRecompiles, name + ": " + describe(why, version, s.limit));
  }
  EntryPtr entry = compile_call(settings, request, std::move(why));
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

void note_varying_numbers(const std::vector<EntryPtr>& entries, PyObject* const* slots,
                          std::unordered_set<std::string>& out) {
  for (const EntryPtr& e : entries)
    if (e->guards)
      for (std::string& path : e->guards->changed_numbers(slots)) out.insert(std::move(path));
}

bool note_varying_sizes(const std::vector<EntryPtr>& entries, PyObject* const* slots, frame::VaryingSizes& out) {
  bool any = false;
  for (const EntryPtr& e : entries) {
    if (!e->guards) continue;
    any = any || failing_size(*e, slots);
    for (auto& [path, dim] : e->guards->changed_geometry(slots)) {
      out.dims[std::move(path)].insert(dim);
      any = true;
    }
  }
  return any;
}

std::optional<frame::VaryingSizes> SymbolicSizes::wanted(const Settings& settings, bool all) {
  if (!possible(settings)) return std::nullopt;
  frame::VaryingSizes out = varying;
  const std::optional<bool> dynamic = dynamic_of(settings);
  out.all = all || dynamic == true;
  out.marked_only = dynamic == false;
  out.dynamic_sources = option(settings.options.values, "dynamic_sources");
  for (const char* name : {"dynamic_sources", "unbacked_sources"})
    if (const std::string also = torchs_sources(name); !also.empty()) out.dynamic_sources += "," + also;
  out.static_sources = option(settings.options.values, "static_sources");
  if (settings.custom != nullptr) {  // as torch.compile has it
    out.ints = dynamic == true && !torch_fixes_ints();
    out.parameters = !torch_fixes_parameters();
  }
  return out;
}

void SymbolicSizes::note(const Entry& made, const Settings& settings) {
  if (!made.static_because.empty()) {
    none() = true;
    if (site) SizeMemory(settings).forget(*site);
  }
  if (dynamic_of(settings) == false) return;
  for (const frame::SizeSymbol& s : made.capture.size_symbols)
    if (s.marked) varying.dims[s.path].insert(s.dim);
}

void SymbolicSizes::learn(const std::vector<EntryPtr>& entries, PyObject* const* slots, const Settings& settings,
                          std::unordered_set<std::string>& numbers, PyObject* code, PyObject* module, int next) {
  const SizeMemory memory(settings);
  if (memory.on() && !site && code) {
    site = site_of(code, module, next);
    memory.recall(*site, varying, numbers);
  }
  if (entries.empty()) return;
  // Others are told of each number where torch.compile tells them of each.
  if (settings.custom == nullptr || (dynamic_of(settings) != false && !torch_fixes_ints()))
    note_varying_numbers(entries, slots, numbers);
  note_varying_sizes(entries, slots, varying);
  if (site) memory.remember(*site, varying, numbers);
}

bool SymbolicSizes::general_is_missing(const std::vector<EntryPtr>& entries, PyObject* const* slots,
                                       const Settings& settings) {
  if (entries.empty() || dynamic_of(settings) == false || !possible(settings)) return false;
  if (std::ranges::any_of(entries, [](const EntryPtr& e) { return e->general; })) return false;
  return note_varying_sizes(entries, slots, varying);
}

void look_up_limit(CallableState& s) {
  if (s.settings.options.values.contains("recompile_limit")) return;
  if (const std::optional<size_t> limit = torchs_recompile_limit()) s.limit = *limit;
}

const char* what_forbids_recompiling() {
  if (current_stance() == Stance::kFailOnRecompile) return "the stance is fail_on_recompile";
  return recompiling_is_an_error() ? "torch._dynamo.config.error_on_recompile is set" : nullptr;
}

std::string limit_text(const std::string& name, size_t limit, const std::string& failed) {
  return "flashover: " + name + " was compiled " + std::to_string(limit) +
         " times (recompile_limit); other calls run eager. The last guard that failed: " + failed +
         ". FLASHOVER_LOGS=recompiles tells of each.";
}

}  // namespace flashover::entry
