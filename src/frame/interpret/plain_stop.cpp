// Which instructions a plain run goes on through.
#include "frame/interpret/plain_stop.h"

#include <opcode.h>

namespace flashover::frame {
namespace {

// Instructions that a plain run goes on through: control flow and arithmetic of numbers is not worth a capture of its
// own, and capturing it would guard on every number that passes.
enum class OpcodeClass : uint8_t { kCapture, kControl, kLoad, kNumbers };

OpcodeClass class_of(int op) {
  switch (op) {
    case NOP:
    case EXTENDED_ARG:
    case RESUME:
    case POP_TOP:
    case STORE_FAST:
    case JUMP_FORWARD:
    case JUMP_BACKWARD:
    case JUMP_BACKWARD_NO_INTERRUPT:
    case FOR_ITER:
    case RETURN_VALUE:
    case PUSH_EXC_INFO:
    case POP_EXCEPT:
    case RERAISE:
    case SEND:
    case YIELD_VALUE:
#if PY_VERSION_HEX < 0x030C0000
    case PRECALL:
    case POP_JUMP_FORWARD_IF_FALSE:
    case POP_JUMP_FORWARD_IF_TRUE:
    case POP_JUMP_BACKWARD_IF_FALSE:
    case POP_JUMP_BACKWARD_IF_TRUE:
    case POP_JUMP_FORWARD_IF_NONE:
    case POP_JUMP_FORWARD_IF_NOT_NONE:
    case POP_JUMP_BACKWARD_IF_NONE:
    case POP_JUMP_BACKWARD_IF_NOT_NONE:
    case JUMP_IF_FALSE_OR_POP:
    case JUMP_IF_TRUE_OR_POP:
#else
    case POP_JUMP_IF_FALSE:
    case POP_JUMP_IF_TRUE:
    case POP_JUMP_IF_NONE:
    case POP_JUMP_IF_NOT_NONE:
    case RETURN_CONST:
    case END_FOR:
#endif
      return OpcodeClass::kControl;
    case LOAD_FAST:
    case LOAD_CONST:
      return OpcodeClass::kLoad;
    case COMPARE_OP:
    case BINARY_OP:
    case IS_OP:
    case UNARY_NOT:
    case UNARY_NEGATIVE:
      return OpcodeClass::kNumbers;
    default:
      return OpcodeClass::kCapture;
  }
}

int operands_of(int op) { return op == UNARY_NOT || op == UNARY_NEGATIVE ? 1 : 2; }

bool is_number_like(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  return t == &PyLong_Type || t == &PyFloat_Type || t == &PyBool_Type || t == &PyUnicode_Type || o == Py_None;
}

}  // namespace

bool PlainStop::ends_at(int op, bool has_names, int pc, PyObject** sp) {
  OpcodeClass kind = has_names ? OpcodeClass::kControl : class_of(op);
  if (kind == OpcodeClass::kNumbers)
    for (int i = 1; i <= operands_of(op); ++i)
      if (!is_number_like(sp[-i])) kind = OpcodeClass::kCapture;
  if (kind == OpcodeClass::kCapture) return true;
  if (kind == OpcodeClass::kLoad) {
    if (mark < 0) {
      mark = pc;
      mark_sp = sp;
    }
  } else if (kind == OpcodeClass::kControl || sp - operands_of(op) < mark_sp) {
    mark = -1;
  }
  return false;
}

}  // namespace flashover::frame
