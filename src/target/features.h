// The instruction sets of this machine, as far as FLASHOVER_ISA lets the process use them (base/isa_limit.h). One file for
// each architecture asks the processor, and nobody else does.
#pragma once
#include <string>
#include <string_view>

namespace flashover::target {

#if defined(__aarch64__)
inline constexpr std::string_view kArchitecture = "aarch64";
#else
inline constexpr std::string_view kArchitecture = "x86-64";
#endif

// A level that kernels are generated for ("scalar", "avx2", "avx512", "neon"), or a single instruction set named as in
// /proc/cpuinfo; false for other words.
bool has_feature(std::string_view name);
// The first word of `target` (Plan::target) that this machine lacks or that is unknown; empty if it has all.
std::string missing_feature(std::string_view target);
// This processor's model and all of its instruction sets: libraries lay out weights alike where it is the same.
std::string processor();
// What tells this processor from others, whatever the process may use of it: for keys of caches.
std::string identity();

}  // namespace flashover::target
