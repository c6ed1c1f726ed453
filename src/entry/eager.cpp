// Counts, says and remembers every call that runs as the program is written (eager.h).
#include "entry/eager.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "base/options.h"
#include "entry/entry.h"
#include "entry/log.h"
#include "entry/recompiles.h"
#include "entry/stance.h"
#include "entry/torch_config.h"
#include "frame/resume.h"
#include "frame/tracers.h"
#include "guards/global_state.h"

namespace flashover::entry {
namespace {

constexpr size_t kMostRecords = 64;
constexpr std::array<const char*, 9> kCauses = {"declined", "limit",     "state", "tracer", "said",
                                                "raises",   "requested", "timed", "slower"};

bool warned_elsewhere(EagerCause cause) {
  return cause == EagerCause::kSaid || cause == EagerCause::kRaises || cause == EagerCause::kRequested ||
         cause == EagerCause::kTimed;
}

bool silenced(const Settings& settings) {
  const char* variable = std::getenv("FLASHOVER_EAGER_WARNING");
  return !bool_option(settings.options.values, "eager_warning") ||
         (variable != nullptr && std::strcmp(variable, "0") == 0);
}

std::string at(const std::string& where) { return where.empty() ? "" : " at " + where; }

// Not flashover's or torch's to be seen by: torch.export says that it wants the program itself.
bool exports() {
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch.compiler");
  PyObject* flag = module != nullptr && PyModule_Check(module)
                       ? PyDict_GetItemString(PyModule_GetDict(module), "_is_exporting_flag")
                       : nullptr;
  return flag == Py_True;
}

bool is_of_interest(PyObject* o, int depth) {
  if (o == nullptr) return false;
  if (PyCell_Check(o)) return is_of_interest(PyCell_GET(o), depth);
  if (THPVariable_Check(o) || frame::is_module(o)) return true;
  if (depth == 0) return false;
  if (PyTuple_Check(o) || PyList_Check(o)) {
    for (Py_ssize_t i = 0; i < std::min<Py_ssize_t>(PySequence_Fast_GET_SIZE(o), 16); ++i)
      if (is_of_interest(PySequence_Fast_GET_ITEM(o, i), depth - 1)) return true;
    return false;
  }
  if (PyMethod_Check(o)) return is_of_interest(PyMethod_GET_SELF(o), depth);
  PyObject* dict = PyDict_Check(o) ? o : nullptr;
  if (dict == nullptr && !PyType_Check(o) && (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE)) {
    PyObject** slot = _PyObject_GetDictPtr(o);
    dict = slot != nullptr ? *slot : nullptr;
  }
  PyObject *key, *value;
  for (Py_ssize_t i = 0; dict != nullptr && PyDict_Next(dict, &i, &key, &value);)
    if (is_of_interest(value, depth - 1)) return true;
  return false;
}

}  // namespace

const std::string EagerLog::kHere = "?";

bool deals_with_tensors(PyObject* const* slots, size_t count) {
  return std::any_of(slots, slots + count, [](PyObject* o) { return is_of_interest(o, 2); });
}

const char* reason_to_skip(PyCodeObject* code, EagerCause& cause) {
  cause = EagerCause::kTracer;
  if (const char* tracer = frame::active_tracer(code)) return tracer;
  cause = EagerCause::kRequested;
  if (fx_is_tracing()) return "torch.fx traces";  // the tracer is to see the program itself
  cause = EagerCause::kState;
  const char* reason = guards::state_to_avoid();
  if (reason != nullptr && exports()) cause = EagerCause::kRequested;
  return reason;
}

void raise(const char* name, const std::string& message, const std::string& reason, const std::string& where,
           const std::string& stack) {
  PyObject* module = PyImport_ImportModule("flashover.exc");
  PyObject* type = module ? PyObject_CallMethod(module, "raised", "ss", name, reason.c_str()) : nullptr;
  Py_XDECREF(module);
  if (!type) return;
  PyObject* e = PyObject_CallFunction(type, "ssss", message.c_str(), reason.c_str(), where.c_str(), stack.c_str());
  if (e) PyErr_SetObject(type, e);
  Py_XDECREF(e);
  Py_DECREF(type);
}

void raise_would_recompile(const Settings& settings, const std::string& failed, const char* forbidden_by) {
  raise("WouldRecompile",
        "flashover: " + settings.name + " needs to be compiled again, and " + forbidden_by + ": " + failed, failed,
        calling_line());
}

bool EagerLog::note(const Settings& settings, const Event& event) {
  if (frame::capturing()) return true;  // C code calls it in the course of a capture, which goes on in it
  (event.frame ? frames_ : calls_)++;
  (event.frame ? counters().eager_frames : counters().eager_calls)++;
  const bool here = &event.where == &kHere;
  auto found = std::find_if(records_.begin(), records_.end(), [&](const EagerRecord& r) {
    return r.cause == event.cause && r.frame == event.frame && r.reason == event.reason &&
           (here || r.where == event.where);
  });
  std::string where;
  if (found != records_.end()) {
    found->count++;
    where = found->where;
  } else {
    where = here ? calling_line() : event.where;
    if (records_.size() < kMostRecords) records_.push_back({event.cause, event.frame, event.reason, where, 1});
    log(Topic::kBreaks,
        settings.name + (event.frame ? ": a part runs eager: " : ": runs eager: ") + event.reason + at(where),
        event.reason);
  }
  if (event.quiet || warned_elsewhere(event.cause)) return true;
  const bool is_error = settings.fullgraph || (event.cause == EagerCause::kLimit && recompile_limit_is_an_error());
  if (is_error && event.cause != EagerCause::kTracer) return raise(settings, event);
  return warn(settings, event, where);
}

bool EagerLog::raise(const Settings& settings, const Event& event) const {
  const std::string where = &event.where == &kHere ? calling_line() : event.where;
  if (event.cause == EagerCause::kLimit)
    entry::raise("RecompileLimitExceeded", event.reason, event.reason, where);
  else
    entry::raise("Unsupported",
                 (where.empty() ? "" : where + ": ") + settings.name + " would run eager: " + event.reason,
                 event.reason, where);
  return false;
}

bool EagerLog::warn(const Settings& settings, const Event& event, const std::string& where) {
  const uint32_t bit = 1U << (static_cast<uint32_t>(event.cause) + (event.frame ? 16 : 0));
  if (said_ & bit) return true;
  said_ |= bit;
  if (silenced(settings)) return true;
  static PyObject* const category = [] {
    PyObject* module = PyImport_ImportModule("flashover.exc");
    PyObject* type = module ? PyObject_GetAttrString(module, "EagerWarning") : nullptr;
    Py_XDECREF(module);
    PyErr_Clear();
    return type ? type : Py_NewRef(PyExc_RuntimeWarning);
  }();
  std::string text = event.reason;
  if (event.cause != EagerCause::kLimit)
    text = std::string("flashover: ") + (event.frame ? "a part of " : "") + settings.name +
           " runs eager: " + event.reason + at(where) +
           ". flashover.explain tells more; the option eager_warning=False silences this.";
  // warnings.warn() asks for the instance, which knows the reason and what helps.
  PyObject* warning = PyObject_CallFunction(category, "sss", text.c_str(), event.reason.c_str(), where.c_str());
  PyObject* module = warning ? PyImport_ImportModule("warnings") : nullptr;
  PyObject* done = module ? PyObject_CallMethod(module, "warn", "OOi", warning, category, 1) : nullptr;
  Py_XDECREF(done);
  Py_XDECREF(module);
  Py_XDECREF(warning);
  return done != nullptr;
}

PyObject* EagerLog::to_python() const {
  PyObject* out = PyList_New(0);
  for (const EagerRecord& r : records_) {
    PyObject* d = Py_BuildValue("{s:s,s:O,s:s,s:s,s:L}", "cause", kCauses[static_cast<size_t>(r.cause)], "frame",
                                r.frame ? Py_True : Py_False, "reason", r.reason.c_str(), "where", r.where.c_str(),
                                "count", static_cast<long long>(r.count));
    if (!out || !d || PyList_Append(out, d) != 0) {
      Py_XDECREF(d);
      Py_XDECREF(out);
      return nullptr;
    }
    Py_DECREF(d);
  }
  return out;
}

}  // namespace flashover::entry
