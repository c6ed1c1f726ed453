// Reads of torch's configuration modules. They are modules with a __getattr__ in Python.
#include "entry/torch_config.h"

#include "entry/entry.h"
#include "frame/signals.h"

namespace flashover::entry {
namespace {

constexpr const char* kDynamo = "torch._dynamo.config";

// A new reference, or null. Reading runs Python code, whose errors only say that there is no such option: so the
// program's signal handlers run behind it.
PyObject* torch_option(const char* module_name, const char* name) {
  const frame::HeldSignals held;
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), module_name);
  PyObject* value = module ? PyObject_GetAttrString(module, name) : nullptr;
  PyErr_Clear();
  return value;
}

bool torch_option_is(const char* name, PyObject* wanted) {
  PyObject* value = torch_option(kDynamo, name);
  Py_XDECREF(value);
  return value == wanted;
}

}  // namespace

std::optional<size_t> torchs_recompile_limit() {
  std::optional<size_t> least;
  for (const char* name : {"recompile_limit", "accumulated_recompile_limit"}) {
    PyObject* limit = torch_option(kDynamo, name);
    const long value = limit && PyLong_CheckExact(limit) ? PyLong_AsLong(limit) : -1;
    PyErr_Clear();
    Py_XDECREF(limit);
    if (value >= 0) least = std::min(least.value_or(static_cast<size_t>(value)), static_cast<size_t>(value));
  }
  return least;
}

bool torch_fixes_parameters() { return !torch_option_is("force_parameter_static_shapes", Py_False); }
bool torch_fixes_ints() { return torch_option_is("specialize_int", Py_True); }
bool recompiling_is_an_error() { return torch_option_is("error_on_recompile", Py_True); }
bool recompile_limit_is_an_error() { return torch_option_is("fail_on_recompile_limit_hit", Py_True); }
bool backends_may_fail() { return torch_option_is("suppress_errors", Py_True); }
bool torch_compiles_nothing() { return torch_option_is("disable", Py_True); }

std::string torchs_sources(const char* name) {
  PyObject* value = torch_option("torch.compiler.config", name);
  const char* text = value && PyUnicode_Check(value) ? PyUnicode_AsUTF8(value) : nullptr;
  std::string out = text ? text : "";
  PyErr_Clear();
  Py_XDECREF(value);
  return out;
}

std::optional<bool> dynamic_of(const Settings& settings) {
  if (settings.dynamic) return settings.dynamic;
  if (torch_option_is("assume_static_by_default", Py_False)) return true;
  if (torch_option_is("automatic_dynamic_shapes", Py_False)) return false;
  return std::nullopt;
}

}  // namespace flashover::entry
