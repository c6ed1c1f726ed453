// The table of marked callables, and reading of the marks that torch.compiler's functions leave.
#include "frame/marks.h"

#include <cstring>
#include <unordered_map>

#include "frame/observe.h"

namespace flashover::frame {
namespace {

std::unordered_map<PyObject*, Mark>& table() {
  static auto* t = new std::unordered_map<PyObject*, Mark>;  // outlives the interpreter
  return *t;
}

}  // namespace

void mark(PyObject* callable, Mark m) {
  auto [it, added] = table().insert_or_assign(callable, m);
  if (added) Py_INCREF(callable);
}

namespace {

// torch.compiler.allow_in_graph keeps a set of addresses.
bool is_in_set(const char* name, PyObject* f) {
  PyObject* ids = of_module("torch._dynamo.trace_rules", name);
  if (ids == nullptr) return false;
  PyObject** dict = _PyObject_GetDictPtr(ids);
  static PyObject* const key = PyUnicode_InternFromString("function_ids");
  PyObject* set = dict != nullptr && *dict != nullptr ? PyDict_GetItemWithError(*dict, key) : nullptr;
  if (set == nullptr || !PyAnySet_Check(set) || PySet_GET_SIZE(set) == 0) return false;
  Ref id = Ref::steal(PyLong_FromVoidPtr(f));
  const int found = id ? PySet_Contains(set, id.get()) : -1;
  if (found < 0) PyErr_Clear();
  return found == 1;
}

PyObject* attribute(PyObject* f, const char* name) {
  PyObject* dict = PyFunction_Check(f) ? reinterpret_cast<PyFunctionObject*>(f)->func_dict : nullptr;
  return dict != nullptr && PyDict_GET_SIZE(dict) > 0 ? PyDict_GetItemString(dict, name) : nullptr;
}

// What torch keeps away from its own tracer is no mark of the user's, and no reason for us: parts of torch.optim, from
// the first use of torch.compile in a process on (_init_group, _fused_adam ...), and what torch._disable_dynamo
// decorates, from its first call on (but for the insides of checkpoints). The function behind it.
PyObject* behind_torch_patch(PyObject* f) {
  if (!PyFunction_Check(f)) return nullptr;
  if (PyObject* inner = attribute(f, "_torchdynamo_orig_callable");
      inner != nullptr && PyFunction_Check(inner) && attribute(inner, "__dynamo_disable") == f) {
    PyObject* module = reinterpret_cast<PyFunctionObject*>(inner)->func_module;
    const char* name = module != nullptr && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : nullptr;
    if (name == nullptr || std::strcmp(name, "torch.utils.checkpoint") == 0) return nullptr;
    return std::strncmp(name, "torch.", 6) == 0 ? inner : nullptr;
  }
  PyObject* module = reinterpret_cast<PyFunctionObject*>(f)->func_module;
  const char* name = module != nullptr && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : nullptr;
  if (name == nullptr || std::strncmp(name, "torch.optim.", 12) != 0) return nullptr;
  PyObject* original = attribute(f, "_torchdynamo_orig_callable");
  return original != nullptr && PyFunction_Check(original) && attribute(f, "_torchdynamo_disable") == Py_True ? original
                                                                                                              : nullptr;
}

}  // namespace

bool disables_callees(PyObject* f) {
  if (mark_of(f) != Mark::kDisallow) return false;
  return attribute(f, "_torchdynamo_disable_recursive") == Py_True;
}

namespace {
PyObject* substitutes() {  // qualname -> {module: replacement}
  static PyObject* const table = PyDict_New();
  return table;
}
}  // namespace

void substitute(PyObject* module, PyObject* qualname, PyObject* replacement) {
  Ref modules = Ref::borrow(PyDict_GetItemWithError(substitutes(), qualname));
  if (!modules) {
    modules = Ref::steal(PyDict_New());
    PyDict_SetItem(substitutes(), qualname, modules.get());
  }
  PyDict_SetItem(modules.get(), module, replacement);
}

PyObject* substitute_of(PyObject* f) {
  if (PyObject* original = behind_torch_patch(f)) return original;
  auto* function = reinterpret_cast<PyFunctionObject*>(f);
  PyObject* modules = PyDict_GetItemWithError(substitutes(), function->func_qualname);
  if (modules == nullptr || function->func_module == nullptr) return nullptr;
  PyObject* found = PyDict_GetItemWithError(modules, function->func_module);
  if (found == nullptr) PyErr_Clear();  // a module name that cannot be hashed
  return found;
}

namespace {
std::unordered_map<PyObject*, PyObject*>& own_polyfills() {  // both are kept alive
  static std::unordered_map<PyObject*, PyObject*> table;
  return table;
}
}  // namespace

void put_in_place(PyObject* callable, PyObject* function) {
  if (own_polyfills().emplace(callable, function).second) {
    Py_INCREF(callable);
    Py_INCREF(function);
  }
}

// torch's table has its own polyfills as well, which serve its tracer.
PyObject* polyfill_of(PyObject* f) {
  static PyObject* table = nullptr;  // owned
  if (const auto own = own_polyfills().find(f); own != own_polyfills().end()) return own->second;
  if (!PyFunction_Check(f) && !PyCFunction_Check(f) && !PyType_Check(f)) return nullptr;
  if (table == nullptr) {
    PyObject* kind = of_module("torch._dynamo.variables.functions", "PolyfilledFunctionVariable");
    if (kind == nullptr) return nullptr;
    table = PyObject_CallMethod(kind, "_get_polyfill_handlers", nullptr);
    if (table == nullptr) {
      PyErr_Clear();
      return nullptr;
    }
  }
  PyObject* wrapped = PyDict_Check(table) ? PyDict_GetItemWithError(table, f) : nullptr;
  if (wrapped == nullptr) {
    PyErr_Clear();  // a class whose metaclass has no hash
    return nullptr;
  }
  PyObject* polyfill = attribute(wrapped, "__torch_dynamo_polyfill__");
  if (polyfill == nullptr || !PyFunction_Check(polyfill)) return nullptr;
  PyObject* module = reinterpret_cast<PyFunctionObject*>(polyfill)->func_module;
  const char* name = module != nullptr && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : nullptr;
  PyErr_Clear();
  return name != nullptr && std::strncmp(name, "torch.", 6) == 0 ? nullptr : polyfill;
}

Mark mark_of(PyObject* f) {
  if (!table().empty()) {
    auto it = table().find(f);
    if (it != table().end()) return it->second;
  }
  static PyObject* const rules = PyUnicode_InternFromString("torch._dynamo.trace_rules");
  if (PyCFunction_Check(f) && PyDict_GetItemWithError(PyImport_GetModuleDict(), rules) != nullptr &&
      is_in_set("_disallowed_callable_ids", f))
    return Mark::kDisallow;
  if (!PyFunction_Check(f)) return Mark::kNone;
  PyObject* dict = reinterpret_cast<PyFunctionObject*>(f)->func_dict;
  if (dict != nullptr && PyDict_GET_SIZE(dict) > 0) {
    static PyObject* const disabled = PyUnicode_InternFromString("_torchdynamo_disable");
    static PyObject* const constant = PyUnicode_InternFromString("_dynamo_marked_constant");
    if (PyDict_GetItemWithError(dict, disabled) == Py_True)
      return behind_torch_patch(f) != nullptr ? Mark::kNone : Mark::kDisallow;
    if (PyDict_GetItemWithError(dict, constant) == Py_True) return Mark::kConstant;
    static PyObject* const forbidden = PyUnicode_InternFromString("_dynamo_forbidden");
    if (PyDict_GetItemWithError(dict, forbidden) == Py_True) return Mark::kDisallow;
  }
  if (PyDict_GetItemWithError(PyImport_GetModuleDict(), rules) != nullptr) {
    if (is_in_set("_allowed_callable_ids", f)) return Mark::kAllow;
    if (is_in_set("_disallowed_callable_ids", f)) return Mark::kDisallow;
    if (f == of_module("torch._dynamo.decorators", "graph_break")) return Mark::kDisallow;
  }
  return Mark::kNone;
}

}  // namespace flashover::frame
