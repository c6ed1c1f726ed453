// One tuple per operation, its operands in a list.
#include "frame/size_expression.h"

#include <string>

namespace flashover::frame {
namespace {

const char* symbol_of(sym::Kind kind) {
  switch (kind) {
    case sym::Kind::kAdd:
      return "+";
    case sym::Kind::kMul:
      return "*";
    case sym::Kind::kFloorDiv:
      return "//";
    case sym::Kind::kMod:
      return "%";
    case sym::Kind::kMin:
      return "min";
    default:
      return "max";
  }
}

}  // namespace

PyObject* size_expression(sym::Expr e) {
  if (e.is_const()) return PyLong_FromLongLong(e.value());
  if (e.kind() == sym::Kind::kVar) return Py_BuildValue("(ss)", "var", std::string(e.name()).c_str());
  PyObject* operands = PyList_New(0);
  for (sym::Expr part : e.operands()) {
    PyObject* made = operands != nullptr ? size_expression(part) : nullptr;
    if (made == nullptr || PyList_Append(operands, made) != 0) {
      Py_XDECREF(made);
      Py_XDECREF(operands);
      return nullptr;
    }
    Py_DECREF(made);
  }
  return operands != nullptr ? Py_BuildValue("(sN)", symbol_of(e.kind()), operands) : nullptr;
}

}  // namespace flashover::frame
