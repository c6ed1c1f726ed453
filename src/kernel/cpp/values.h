// Values of a stage's instructions in the text: how they are named, defined and used as operands.
#pragma once
#include <functional>

#include "kernel/cpp/emission.h"

namespace flashover::kernel::cpp {

// Operand `a` as class `cls`, as a vector if `vector`.
std::string operand(const Emission& e, const Scope& s, loops::Id a, int copy, RegisterClass cls, bool vector);

using TextOfCopy = std::function<std::string(int copy)>;
// Writes "const type name = text" for every copy.
void define(Emission& e, Scope& s, loops::Id i, bool varying, DType dtype, const TextOfCopy& text);
// Defines a vector by computing one lane `l` after the other, where `condition` holds if there is one.
void define_by_lane(Emission& e, Scope& s, loops::Id i, DType dtype, const TextOfCopy& text,
                    const TextOfCopy& condition = nullptr);
void set_literal(Emission& e, Scope& s, loops::Id i, double number, int64_t integer);

// A value before it is rounded to `narrow`: rounding it again gives the same.
loops::Id unrounded(const Scope& s, loops::Id i, DType narrow);
bool varies(const Scope& s, loops::Id i);  // false for kNone
std::string mask_text(const Scope& s, const loops::Instr& in, int copy);
std::string lane_count(const Scope& s);

}  // namespace flashover::kernel::cpp
