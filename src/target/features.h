// The instruction sets of this machine, as far as FLASHOVER_ISA lets the process use them (base/isa_limit.h): the one
// reader of CPUID.
#pragma once
#include <string>
#include <string_view>

namespace flashover::target {

// A level that kernels are generated for ("scalar", "avx2", "avx512"), or a single instruction set named as in
// /proc/cpuinfo; false for other words.
bool has_feature(std::string_view name);
// The first word of `target` (Plan::target) that this machine lacks or that is unknown; empty if it has all.
std::string missing_feature(std::string_view target);
// This processor's model and all of its instruction sets: libraries lay out weights alike where it is the same.
std::string processor();

}  // namespace flashover::target
