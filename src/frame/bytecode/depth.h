// How deep a frame's value stack is before each instruction, as CPython's compiler counts it: a frame that runs does
// not say (its `stacktop` is -1), and above the stack lie values that were taken off it.
#pragma once
#include <cstdint>
#include <vector>

#include "frame/bytecode/decode.h"

namespace flashover::frame {

// By code unit; -1 where nothing leads. Counted once a code object, and kept with it; empty where two ways to an
// instruction disagree. Null with a Python error set when memory is out.
const std::vector<int32_t>* stack_depths(PyCodeObject* code);

// The frame is about to go on at `unit` in CPython, with ints where handlers put down the number of an instruction.
void tag_instructions(_PyInterpreterFrame* frame, const DecodedCode& code, int unit);

// How many of the uppermost values the instruction works on while they still lie there: those that the C code of a type
// or a function may read. What only moves values has none.
int operands_of(const BytecodeInstruction& in);

}  // namespace flashover::frame
