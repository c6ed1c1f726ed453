// The depth of the value stack before each instruction, by following every jump.
#include "frame/bytecode/depth.h"

#include <memory>

#include "compat/opcodes.h"

namespace flashover::frame {
namespace {

int effect_of(const BytecodeInstruction& in, bool jumps) {
  const int arg = static_cast<int>(in.arg);
  if (in.op == RETURN_GENERATOR) return 1;  // what is sent first
  if (in.op == BINARY_SUBSCR) return -1;    // (3.14 has it as a BINARY_OP)
  if (compat::kTwoHalvesOfCalls) {
    if (in.op == PRECALL) return 0;
    if (in.op == CALL) return -1 - arg;
  }
  return PyCompile_OpcodeStackEffectWithJump(in.op, in.op >= HAVE_ARGUMENT ? arg : 0, jumps ? 1 : 0);
}

std::vector<int32_t> count_depths(const DecodedCode& code) {
  const auto units = static_cast<int32_t>(code.instructions.size());
  std::vector<int32_t> depths(code.instructions.size(), -1), todo;
  bool agree = true;
  const auto reach = [&](int unit, int depth) {
    if (unit < 0 || unit >= units) return;
    int32_t& known = depths[static_cast<size_t>(unit)];
    agree = agree && depth >= 0 && (known < 0 || known == depth);
    if (known >= 0 || depth < 0) return;
    known = depth;
    todo.push_back(unit);
  };
  reach(0, 0);
  while (!todo.empty()) {
    const int unit = todo.back();
    todo.pop_back();
    const BytecodeInstruction& in = code.instructions[static_cast<size_t>(unit)];
    const int depth = depths[static_cast<size_t>(unit)];
    if (const Handler* h = handler_at(code, unit)) reach(h->target, h->depth + h->lasti + 1);
    const Flow flow = flow_of(in, unit);
    if (flow.falls_through) reach(unit + 1 + in.skip, depth + effect_of(in, false));
    if (flow.target >= 0) reach(flow.target, depth + effect_of(in, true));
  }
  return agree ? depths : std::vector<int32_t>{};
}

void free_depths(void* p) { delete static_cast<std::vector<int32_t>*>(p); }

}  // namespace

const std::vector<int32_t>* stack_depths(PyCodeObject* code) {
  static const Py_ssize_t index = _PyEval_RequestCodeExtraIndex(free_depths);
  auto* object = reinterpret_cast<PyObject*>(code);
  void* known = nullptr;
  if (_PyCode_GetExtra(object, index, &known) < 0) return nullptr;
  if (known != nullptr) return static_cast<std::vector<int32_t>*>(known);
  const DecodedCode* decoded = decode(code);
  if (decoded == nullptr) return nullptr;
  auto counted = std::make_unique<std::vector<int32_t>>(count_depths(*decoded));
  if (_PyCode_SetExtra(object, index, counted.get()) < 0) return nullptr;
  return counted.release();
}

namespace {

// Whether what the handler finds on the stack still lies there before the instruction `unit`.
bool lies_there(const DecodedCode& code, const Handler& handler, int unit) {
  std::vector<std::pair<int, int>> open = {{handler.target, handler.depth + 2}};
  std::vector<bool> seen(code.instructions.size());
  while (!open.empty()) {
    const auto [at, depth] = open.back();
    open.pop_back();
    const auto index = static_cast<size_t>(at);
    if (at < 0 || index >= seen.size() || seen[index] || depth <= handler.depth) continue;
    if (at == unit) return true;
    seen[index] = true;
    const BytecodeInstruction& in = code.instructions[index];
    const Flow flow = flow_of(in, at);
    if (flow.falls_through) open.emplace_back(at + 1 + in.skip, depth + effect_of(in, false));
    if (flow.target >= 0) open.emplace_back(flow.target, depth + effect_of(in, true));
  }
  return false;
}

}  // namespace

void tag_instructions(_PyInterpreterFrame* frame, const DecodedCode& code, int unit) {
  if (!compat::kTagsInstructions) return;
  for (const Handler& h : code.handlers) {
    const int at = code_of(frame)->co_nlocalsplus + h.depth;
    if (!h.lasti || at >= compat::depth_of(frame)) continue;
    compat::Slot& slot = frame->localsplus[at];
    PyObject* o = compat::is_instruction(slot) ? nullptr : compat::object_in(slot);
    if (o == nullptr || !PyLong_CheckExact(o) || !lies_there(code, h, unit)) continue;
    Py_DECREF(
        compat::taken_from(std::exchange(slot, compat::slot_with_instruction(static_cast<int>(PyLong_AsLong(o))))));
  }
}

int operands_of(const BytecodeInstruction& in) {
  const int arg = static_cast<int>(in.arg);
  switch (const int op = in.op; op) {
    case PRECALL:
    case CALL:
      return arg + 2;
    case CALL_KW:
      return arg + 3;
    case CALL_FUNCTION_EX:
      return compat::spreads_keywords(arg) ? 4 : 3;
    case STORE_SUBSCR:
    case BINARY_SLICE:
    case LOAD_SUPER_ATTR:
      return 3;
    case STORE_SLICE:
      return 4;
    case BINARY_OP:
    case BINARY_SUBSCR:
    case DELETE_SUBSCR:
    case COMPARE_OP:
    case CONTAINS_OP:
    case STORE_ATTR:
    case FORMAT_WITH_SPEC:
    case SET_FUNCTION_ATTRIBUTE:
      return 2;
    case FORMAT_VALUE:
      return (arg & 4) != 0 ? 2 : 1;
    case UNARY_NEGATIVE:
    case UNARY_INVERT:
    case UNARY_NOT:
    case LOAD_ATTR:
    case DELETE_ATTR:
    case GET_ITER:
    case FOR_ITER:
    case UNPACK_SEQUENCE:
    case UNPACK_EX:
    case LIST_EXTEND:
    case SET_UPDATE:
    case UNARY_POSITIVE:
    case LOAD_METHOD:
    case POP_JUMP_FORWARD_IF_FALSE:
    case POP_JUMP_FORWARD_IF_TRUE:
    case POP_JUMP_BACKWARD_IF_FALSE:
    case POP_JUMP_BACKWARD_IF_TRUE:
    case JUMP_IF_FALSE_OR_POP:
    case JUMP_IF_TRUE_OR_POP:
    case POP_JUMP_IF_FALSE:
    case POP_JUMP_IF_TRUE:
    case TO_BOOL:
    case CONVERT_VALUE:
    case FORMAT_SIMPLE:
      return 1;
    default:
      return 0;
  }
}

}  // namespace flashover::frame
