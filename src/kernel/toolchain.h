// The system's C++ compiler as a function from source text to shared objects.
//
//   In        source texts that include nothing, and the machine they are for
//   Out       ELF bytes, one per source, in order
//   Promises  no shell; compiles in parallel over the cores we may use; everything happens in one private folder that
//             is gone afterwards; jobs are killed with their process groups when one is late, when the host interrupts
//             (base/interrupt.h) and when this process dies; time and memory are bounded whatever a compiler does
//   Declines  no compiler, a compiler that fails, or hangs (on a trivial program too): EnvironmentFailure with the
//             compiler's own words; of the moment (it cannot be started, no room for temporary files): PassingFailure.
//             One source that takes it too long: SlowKernel, which says nothing about others
//   Sample    compile_sources({"extern \"C\" int one() { return 1; }"}, host_target())
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "kernel/cpp/prelude.h"

namespace flashover::kernel {

// The features of the machine that generated code may use. Part of every cache key.
struct Target {
  Isa isa = Isa::kScalar;
  bool bf16 = false;  // AVX512_BF16: conversion in one instruction
  bool operator==(const Target&) const = default;
};
// This process's CPU by CPUID, or less (base/isa_limit.h).
Target host_target();
std::string str(const Target& t);  // "x86-64 avx512"

struct Compiler {
  std::vector<std::string> argv;  // the program's full path and leading arguments (from CXX)
  std::string identity;           // path, size and time of the program: for cache keys
};
// `wish` (a program, perhaps with arguments), else CXX, else g++, clang++, c++ on PATH. Throws Declined when there is
// none.
Compiler find_compiler(const std::string& wish = "");

struct CompileOptions {
  int jobs = 0;  // 0: the cores of this process
  double timeout_seconds = 60;
  std::string compiler;  // as find_compiler's wish
};
std::vector<std::string> compiler_flags(const Target& t);
std::vector<std::string> compile_sources(std::span<const std::string> sources, const Target& t,
                                         const CompileOptions& o = {});
// The same, but where the compiler runs and fails on a source (its own bugs are known to happen), that object is empty
// and `failures` says why. Everything else still throws.
std::vector<std::string> try_compile_sources(std::span<const std::string> sources, const Target& t,
                                             const CompileOptions& o, std::vector<std::string>& failures);
int usable_cores();
std::string keep_source(const std::string& text);  // where a person can look at it; the path

}  // namespace flashover::kernel
