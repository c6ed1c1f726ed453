// Tensors that only decide between going on and raising: the program is taken to go on, and the graph checks it.
#include "compat/opcodes.h"

#include <unordered_set>
#include <vector>

#include "frame/interpret/interpreter.h"
#include "trace/assume.h"

namespace flashover::frame {
namespace {

// Code that does nothing but make an exception and raise it, out of the frame, whichever way it goes.
bool only_raises(const DecodedCode& code, int pc) {
  constexpr size_t kMost = 400;
  std::vector<int> open = {pc};
  std::unordered_set<int> seen;
  while (!open.empty()) {
    pc = open.back();
    open.pop_back();
    if (pc < 0 || pc >= static_cast<int>(code.instructions.size()) || seen.size() > kMost) return false;
    if (!seen.insert(pc).second) continue;
    const BytecodeInstruction& in = code.instructions[static_cast<size_t>(pc)];
    if (handler_at(code, pc) != nullptr) return false;
    if (in.op == RAISE_VARARGS && in.arg > 0) continue;
    const Flow flow = flow_of(in, pc);
    if ((!flow.falls_through && flow.target < 0) || (flow.target >= 0 && flow.target <= pc)) return false;
    if (flow.falls_through) open.push_back(pc + 1 + in.skip);
    if (flow.target >= 0) open.push_back(flow.target);
  }
  return true;
}

}  // namespace

// `assert t.max().item() <= n`: the number that the running call gives is compared with one, or asked for its truth,
// and the program goes on or raises.
bool Interpreter::is_only_checked(bool floating, bool* compared) {
  if (!assumes || top_ == nullptr) return false;
  const DecodedCode& code = *decode(code_of(top_->frame));
  const auto count = static_cast<int>(code.instructions.size());
  int pc = top_->next;
  if (pc >= count) return false;
  const auto at = [&code](int i) -> const BytecodeInstruction& { return code.instructions[static_cast<size_t>(i)]; };
  *compared = at(pc).op == LOAD_CONST || at(pc).op == LOAD_FAST || at(pc).op == LOAD_SMALL_INT;
  if (*compared) {
    const auto index = static_cast<int>(at(pc).arg);
    PyObject* other = at(pc).op == LOAD_CONST  ? PyTuple_GET_ITEM(code_of(top_->frame)->co_consts, index)
                      : at(pc).op == LOAD_FAST ? compat::local_of(top_->frame, index)
                                               : nullptr;
    // A whole number and a fraction would be compared as float32.
    if (at(pc).op != LOAD_SMALL_INT &&
        (other == nullptr ||
         !((PyLong_CheckExact(other) && _PyLong_NumBits(other) < 53) || (floating && PyFloat_CheckExact(other)))))
      return false;
    pc += 1 + at(pc).skip;
    if (pc >= count || at(pc).op != COMPARE_OP) return false;
    pc += 1 + at(pc).skip;
    if (pc >= count) return false;
  }
  if (at(pc).op == TO_BOOL) {
    pc += 1 + at(pc).skip;
    if (pc >= count) return false;
  }
  switch (const int op = at(pc).op; op) {
    case POP_JUMP_FORWARD_IF_FALSE:
    case POP_JUMP_FORWARD_IF_TRUE:
    case POP_JUMP_IF_FALSE:
    case POP_JUMP_IF_TRUE:
      return only_raises(code, pc + 1 + at(pc).skip) || only_raises(code, flow_of(at(pc), pc).target);
    default:
      return false;
  }
}

// What is stored now is next an argument of torch._assert_scalar or its operator: `ok = n >= 2; assert_scalar(ok, text)`,
// as exported programs have it.
static bool goes_to_assertion(const DecodedCode& code, PyObject* names, int next) {
  const BytecodeInstruction& store = code.instructions[static_cast<size_t>(next)];
  if (store.op != STORE_FAST) return false;
  bool asserts = false;
  for (int pc = next + 1 + store.skip; pc < static_cast<int>(code.instructions.size());) {
    const BytecodeInstruction& in = code.instructions[static_cast<size_t>(pc)];
    if (in.op == LOAD_FAST) return asserts && in.arg == store.arg;
    if (in.op != LOAD_GLOBAL && in.op != LOAD_ATTR && in.op != LOAD_METHOD && in.op != PUSH_NULL) return false;
    const auto name = in.op == LOAD_ATTR ? compat::attribute_name_of(in.arg) : in.arg;
    if (in.op == LOAD_ATTR || in.op == LOAD_METHOD)
      asserts = asserts || PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, name), "_assert_scalar") == 0;
    pc += 1 + in.skip;
  }
  return false;
}

static bool is_check(PyObject* called) {
  static PyObject* const assert_scalar = of_module("torch", "_assert_scalar");
  return called != nullptr &&
         ((PyFunction_Check(called) && called == of_module("torch", "_check")) || called == assert_scalar);
}

// A comparison that is an argument of a check of torch's (what lies under its operands), or that only decides between
// going on and raising.
int Interpreter::expected_truth(PyObject* called, const DecodedCode& code, int next) {
  if (is_check(called)) return 1;
  const auto count = static_cast<int>(code.instructions.size());
  if (next < count && goes_to_assertion(code, code_of(top_->frame)->co_names, next)) return 1;
  if (next < count && code.instructions[static_cast<size_t>(next)].op == TO_BOOL)
    next += 1 + code.instructions[static_cast<size_t>(next)].skip;
  if (next >= count) return -1;
  const BytecodeInstruction& in = code.instructions[static_cast<size_t>(next)];
  bool jumps_when = false;
  switch (const int op = in.op; op) {
    case POP_JUMP_FORWARD_IF_FALSE:
    case POP_JUMP_IF_FALSE:
      break;
    case POP_JUMP_FORWARD_IF_TRUE:
    case POP_JUMP_IF_TRUE:
      jumps_when = true;
      break;
    default:
      return -1;
  }
  if (only_raises(code, next + 1 + in.skip)) return jumps_when ? 1 : 0;
  if (only_raises(code, flow_of(in, next).target)) return jumps_when ? 0 : 1;
  return -1;
}

// The truth of what a conditional jump takes. Where a tensor decides between going on and raising, the program is taken
// to go on.
int Interpreter::truth_for_jump(PyObject* o, const DecodedCode& code, int next, int target, bool jumps_when) {
  if (plain || session == nullptr || !assumes || !session->is_trace_tensor(o)) return truth(o);
  if (only_raises(code, next)) {
    trace::assumption().truth = jumps_when ? 1 : 0;
  } else if (only_raises(code, target)) {
    trace::assumption().truth = jumps_when ? 0 : 1;
  }
  const int result = truth(o);
  trace::assumption().truth = -1;
  return result;
}

// What a jump at `next` decides by, if there is one.
int Interpreter::truth_before(PyObject* o, const DecodedCode& code, int next) {
  if (next >= static_cast<int>(code.instructions.size())) return truth(o);
  const BytecodeInstruction& in = code.instructions[static_cast<size_t>(next)];
  if (in.op != POP_JUMP_IF_FALSE && in.op != POP_JUMP_IF_TRUE) return truth(o);
  return truth_for_jump(o, code, next + 1 + in.skip, flow_of(in, next).target, in.op == POP_JUMP_IF_TRUE);
}

}  // namespace flashover::frame
