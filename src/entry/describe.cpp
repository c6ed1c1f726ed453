// Counts, times, guards and texts of one entry, and its plans step by step.
#include "entry/describe.h"

#include <algorithm>
#include <optional>

#include "plan/sizes.h"
#include "run/run.h"
#include "run/step_observer.h"

namespace flashover::entry {
namespace {

PyObject* strings(const std::vector<std::string>& list) {
  PyObject* out = PyList_New(0);
  for (const std::string& s : list) {
    PyObject* text = PyUnicode_FromStringAndSize(s.data(), static_cast<Py_ssize_t>(s.size()));
    if (text) PyList_Append(out, text);
    Py_XDECREF(text);
  }
  return out;
}

std::vector<std::string> guards_of(const Entry& e) {
  std::vector<std::string> out = e.guards ? e.guards->describe() : std::vector<std::string>{};
  if (e.guards)
    for (std::string& text : e.capture.sizes.describe()) out.push_back(std::move(text));
  return out;
}

PyObject* symbols_of(const Entry& e) {
  PyObject* out = PyList_New(0);
  for (const frame::SizeSymbol& s : e.capture.size_symbols) {
    const std::string size = s.in_words();
    const bool itself = !s.fixed && s.stands_for == size;
    PyObject* most = s.most == sym::Range::kInf ? Py_NewRef(Py_None) : PyLong_FromLongLong(s.most);
    PyObject* value = s.fixed ? PyLong_FromLongLong(s.value) : Py_NewRef(Py_None);
    PyObject* d = Py_BuildValue("{s:s,s:s,s:s,s:N,s:L,s:N,s:s,s:O}", "name", s.name.c_str(), "size", size.c_str(),
                                "equals", itself || s.fixed ? "" : s.stands_for.c_str(), "value", value, "least",
                                static_cast<long long>(s.least), "most", most, "where", s.where.c_str(), "marked",
                                s.marked ? Py_True : Py_False);
    if (out && d) PyList_Append(out, d);
    Py_XDECREF(d);
  }
  return out;
}

const char* state_of(const Entry& e) {
  if (e.pending) return "compiling";
  if (e.kind == Entry::Kind::kCompiled) return e.racing ? "timed" : "compiled";
  return e.cause == EagerCause::kSlower ? "slower" : "eager";
}

// Elements that a stride of 0 repeats count once. A size that is not known (it follows from data): none.
int64_t bytes_of(const TensorType& type) {
  int64_t n = info(type.dtype).bytes;
  for (size_t d = 0; d < type.sizes.size() && n > 0; ++d)
    if (d >= type.strides.size() || !type.strides[d].is_const(0)) n *= type.sizes[d].as_const().value_or(0);
  return n;
}

// `sized`: the plan with the sizes of the last call, where it has symbols.
PyObject* describe_step(const std::string& side, const plan::Plan& p, const plan::Plan& sized, const plan::Step& s,
                        double seconds, bool frozen) {
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
      bytes += bytes_of(sized.tensors[static_cast<size_t>(t)].type);
      PyObject* pair = Py_BuildValue("(is)", static_cast<int>(plan::root(p, t)),
                                     str(p.tensors[static_cast<size_t>(t)].type).c_str());
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
  for (const auto& [side, executable] : e.runner->executables) {
    const plan::Plan& p = executable->plan();
    const std::vector<double> times = executable->times();
    const std::vector<int64_t> sizes = executable->sizes();
    std::optional<plan::Plan> sized;
    if (!sizes.empty()) sized = plan::with_sizes(p, plan::size_sources(p), sizes);
    const auto append = [&](const plan::Step& s, double seconds, bool frozen) {
      // Memory that is taken or given back is no work.
      if (s.kind == plan::StepKind::kRelease || plan::takes_memory(s)) return;
      PyObject* d = describe_step(side, p, sized ? *sized : p, s, seconds, frozen);
      if (d) PyList_Append(out, d);
      Py_XDECREF(d);
    };
    for (const plan::Step& s : p.frozen_steps) append(s, -1, true);
    for (size_t i = 0; i < p.steps.size(); ++i) append(p.steps[i], times[i], false);
  }
  return out;
}

}  // namespace

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
  const plan::Plan* first =
      e.runner && !e.runner->executables.empty() ? &e.runner->executables[0].second->plan() : nullptr;
  if (first) device = first->device.type == DeviceType::kCUDA ? "cuda:" + std::to_string(first->device.index) : "cpu";
  return Py_BuildValue(
      "{s:s,s:d,s:L,s:L,s:s,s:s,s:s,s:N,s:O,s:O,s:L,s:L,s:s,s:O,s:s,s:O,s:s,s:s,s:s,s:N,s:s,s:L,s:L,s:L,s:L,"
      "s:L,s:O,s:s,s:d,s:N,s:N,s:N,s:s,s:n,s:s,s:N,s:N,s:N}",
      "state", state_of(e), "started", e.started, "serial", static_cast<long long>(e.serial), "version",
      static_cast<long long>(e.version), "stack", e.capture.stack.c_str(), "device", device.c_str(), "target",
      first ? first->target.c_str() : "", "steps", steps_of(e), "compiled",
      e.kind == Entry::Kind::kCompiled ? Py_True : Py_False, "training", r.training ? Py_True : Py_False, "saved_bytes",
      static_cast<long long>(r.saved_bytes), "backward_kernels", static_cast<long long>(r.backward_kernels),
      "continues", e.continues.c_str(), "breaks",
      e.kind == Entry::Kind::kCompiled && !e.capture.frames.empty() && !e.capture.yields ? Py_True : Py_False, "stays",
      e.capture.reason_to_stay.c_str(), "trivial", e.trivial ? Py_True : Py_False, "reason",
      (e.reason.empty() ? e.capture.reason : e.reason).c_str(), "where",
      (e.where.empty() ? e.capture.where : e.where).c_str(), "recompiled_for", e.again.last().c_str(), "missed",
      to_python(e.again), "called", e.again.called.c_str(), "hits", static_cast<long long>(e.hits), "ops",
      static_cast<long long>(e.ops), "kernels", static_cast<long long>(r.kernels), "extern_calls",
      static_cast<long long>(r.extern_calls), "arena_bytes", static_cast<long long>(r.arena_bytes), "cache_hit",
      r.cache_hit ? Py_True : Py_False, "cache_note", r.cache_note.c_str(), "seconds", e.total_seconds, "guards",
      strings(guards_of(e)), "symbols", symbols_of(e), "size_guards",
      strings(e.capture.sizes.empty() ? std::vector<std::string>{} : e.capture.sizes.describe()), "static_because",
      e.static_because.c_str(), "guard_instructions", static_cast<Py_ssize_t>(e.guards ? e.guards->size() : 0),
      "guard_parts", (e.guards ? e.guards->composition() : "").c_str(), "stages", stages, "texts", texts,
      "kernel_sources", sources);
}

}  // namespace flashover::entry
