// Functions that only tell about what they are given, which the program names in
// torch._dynamo.config.reorderable_logging_functions: each call of what is compiled calls them behind the graph, in
// their order among each other, and before what else it leaves behind.
#include "frame/interpret/instructions.h"
#include "frame/interpret/native.h"

namespace flashover::frame {

void Interpreter::read_logging_functions() {
  PyObject* config = PyDict_GetItemString(PyImport_GetModuleDict(), "torch._dynamo.config");
  if (config == nullptr) return;
  Ref functions = Ref::steal(PyObject_GetAttrString(config, "reorderable_logging_functions"));
  PyErr_Clear();
  if (functions && PyAnySet_Check(functions.get()) && PySet_GET_SIZE(functions.get()) > 0)
    logging_functions_ = std::move(functions);
}

namespace {

int64_t version_of(PyObject* tensor) {
  Ref version = Ref::steal(PyObject_GetAttrString(tensor, "_version"));
  const int64_t number = version ? PyLong_AsLongLong(version.get()) : -1;
  PyErr_Clear();
  return number;
}

}  // namespace

// A tensor is told about as it was: by the time the graph has run it must not have been written again.
bool Interpreter::call_logged(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  if (!logging_functions_ || session == nullptr || checkpoint_depth_ > 0) return false;
  if (PyCFunction_Check(f) ? native_function(f) != nullptr : !PyFunction_Check(f) && !PyMethod_Check(f)) return false;
  const int named = PySet_Contains(logging_functions_.get(), f);
  PyErr_Clear();
  if (named != 1) return false;
  const size_t count = nargs + keyword_count(kwnames);
  Warning told;
  for (size_t i = 0; i < count; ++i) {
    if (i < nargs && is_tensor(args[i]) && session->is_trace_tensor(args[i]))
      told.versions.emplace_back(Ref::borrow(args[i]), version_of(args[i]));
    else if (!is_atom(args[i]))
      return false;
  }
  note_retry();
  told.function = Ref::borrow(f);
  told.args = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(nargs)));
  told.kwargs = Ref::steal(PyDict_New());
  if (!told.args || !told.kwargs) throw Declined("out of memory");
  for (size_t i = 0; i < nargs; ++i) PyTuple_SET_ITEM(told.args.get(), static_cast<Py_ssize_t>(i), Py_NewRef(args[i]));
  for (size_t i = nargs; i < count; ++i)
    PyDict_SetItem(told.kwargs.get(), PyTuple_GET_ITEM(kwnames, static_cast<Py_ssize_t>(i - nargs)), args[i]);
  context.warnings.said.push_back(std::move(told));
  return true;
}

bool Warning::still_true() const {
  for (const auto& [tensor, version] : versions)
    if (version < 0 || version_of(tensor.get()) != version) return false;
  return true;
}

}  // namespace flashover::frame
