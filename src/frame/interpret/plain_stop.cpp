// Which instructions a plain run goes on through.
#include "frame/interpret/plain_stop.h"

#include "compat/opcodes.h"
#include "frame/bytecode/decode.h"

namespace flashover::frame {
namespace {

// Instructions that a plain run goes on through: control flow and arithmetic of numbers is not worth a capture of its
// own, and capturing it would guard on every number that passes.
enum class OpcodeClass : uint8_t { kCapture, kControl, kLoad, kNumbers };

bool jumps_or_leaves(int op) {
  const Flow flow = flow_of({.op = static_cast<int16_t>(op)}, 0);
  return !flow.falls_through || flow.target >= 0;
}

OpcodeClass class_of(int op) {
  switch (op) {
    case NOP:
    case EXTENDED_ARG:
    case RESUME:
    case POP_TOP:
    case STORE_FAST:
    case PUSH_EXC_INFO:
    case POP_EXCEPT:
    case YIELD_VALUE:
    case PRECALL:
    case END_FOR:
    case POP_ITER:
    case STORE_FAST_STORE_FAST:
    case STORE_FAST_LOAD_FAST:
      return OpcodeClass::kControl;
    case LOAD_FAST:
    case LOAD_FAST_LOAD_FAST:
    case LOAD_CONST:
    case LOAD_SMALL_INT:
      return OpcodeClass::kLoad;
    case COMPARE_OP:
    case BINARY_OP:
    case IS_OP:
    case UNARY_NOT:
    case TO_BOOL:
    case UNARY_NEGATIVE:
      return OpcodeClass::kNumbers;
    default:
      return op != RAISE_VARARGS && jumps_or_leaves(op) ? OpcodeClass::kControl : OpcodeClass::kCapture;
  }
}

int arithmetic_operands(int op) { return op == UNARY_NOT || op == UNARY_NEGATIVE || op == TO_BOOL ? 1 : 2; }

bool is_number_like(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  return t == &PyLong_Type || t == &PyFloat_Type || t == &PyBool_Type || t == &PyUnicode_Type || o == Py_None;
}

}  // namespace

bool PlainStop::ends_at(int op, bool has_names, int pc, PyObject** sp) {
  OpcodeClass kind = has_names ? OpcodeClass::kControl : class_of(op);
  if (kind == OpcodeClass::kNumbers)
    for (int i = 1; i <= arithmetic_operands(op); ++i)
      if (!is_number_like(sp[-i])) kind = OpcodeClass::kCapture;
  if (kind == OpcodeClass::kCapture) return true;
  if (kind == OpcodeClass::kLoad) {
    if (mark < 0) {
      mark = pc;
      mark_sp = sp;
    }
  } else if (kind == OpcodeClass::kControl || sp - arithmetic_operands(op) < mark_sp) {
    mark = -1;
  }
  return false;
}

}  // namespace flashover::frame
