#include "frame/marks.h"

#include <unordered_map>

#include "frame/internals.h"

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

Mark mark_of(PyObject* f) {
  if (!table().empty()) {
    auto it = table().find(f);
    if (it != table().end()) return it->second;
  }
  if (!PyFunction_Check(f)) return Mark::kNone;
  PyObject* dict = reinterpret_cast<PyFunctionObject*>(f)->func_dict;
  if (dict != nullptr && PyDict_GET_SIZE(dict) > 0) {
    static PyObject* const disabled = PyUnicode_InternFromString("_torchdynamo_disable");
    static PyObject* const constant = PyUnicode_InternFromString("_dynamo_marked_constant");
    if (PyDict_GetItemWithError(dict, disabled) == Py_True) return Mark::kDisallow;
    if (PyDict_GetItemWithError(dict, constant) == Py_True) return Mark::kConstant;
  }
  return Mark::kNone;
}

}  // namespace flashover::frame
