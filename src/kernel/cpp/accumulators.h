// Accumulators of reductions and scans: one scalar, or a vector per copy whose lanes become one at the end of a row.
#pragma once
#include "kernel/cpp/emission.h"

namespace flashover::kernel::cpp {

std::string acc_name(int32_t acc, bool vector, int copy);
// The neutral element.
std::string identity(const Emission& e, int32_t acc, bool vector);
// `acc` combined with `x`.
std::string folded(const Emission& e, int32_t acc, const std::string& a, const std::string& x, bool vector);
// Do an argmax's positions fit in 32 bits?
bool has_narrow_position(const Emission& e, int32_t acc);

void declare_accumulator(Emission& e, const Scope& s, int32_t acc);
// Lanes and copies of a row's accumulator become one scalar (kInner).
void finish_accumulator(Emission& e, const Scope& s, int32_t acc);
// k_reduce and k_scan.
void fold(Emission& e, Scope& s, loops::Id i);
// k_acc.
void read_accumulator(Emission& e, Scope& s, loops::Id i);

}  // namespace flashover::kernel::cpp
