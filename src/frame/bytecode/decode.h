// A code object's instructions, decoded once: clean opcodes (neither quickened nor instrumented), EXTENDED_ARG folded
// in, inline caches skipped. Indexed by code unit, so that jump arithmetic and the exception table work as CPython's.
#pragma once
#include <cstdint>
#include <vector>

#include "frame/internals.h"

namespace flashover::frame {

struct BytecodeInstruction {
  int16_t op = 0;
  uint8_t skip = 0;  // inline cache entries that follow
  uint32_t arg = 0;
};

struct Handler {  // one row of the exception table, in code units
  int32_t start, end, target, depth;
  bool lasti;
};

struct DecodedCode {
  std::vector<BytecodeInstruction> instructions;
  std::vector<Handler> handlers;
  std::vector<int32_t> lines;  // per code unit, filled by line_of()
  bool generator = false, coroutine = false;
  signed char stands_alone = -1;  // may a call of it be compiled by itself (hook.cpp)? -1: not asked yet
};

// Cached on the code object; null with a Python error set when memory is out.
DecodedCode* decode(PyCodeObject* code);
int line_of(PyCodeObject* code, DecodedCode* decoded, int unit);
const Handler* handler_at(const DecodedCode& code, int unit);

// Where an instruction at code unit `pc` can go: to the next one, to `target` (-1: nowhere else).
struct Flow {
  bool falls_through = true;
  int target = -1;
};
Flow flow_of(const BytecodeInstruction& in, int pc);
enum class LocalUse : uint8_t { kNone, kReads, kWrites };
LocalUse local_use(const BytecodeInstruction& in, int local);
bool is_library(PyCodeObject* code);        // of Python, torch (but for torch.nn) or numpy and its like
bool reads_its_locals(PyCodeObject* code);  // locals(), exec() ...: every local counts

}  // namespace flashover::frame
