// Fused loop nests into machine code.
//
//   In        loops::Kernel: nests over raw memory with scalar bodies
//   Out       C++ source that includes nothing (one function per kernel), and shared objects built from it
//   Promises  equal kernels give equal text (the cache's key) and one function; results of vector and scalar code agree
//             up to the rounding of sums and the library's 2 ulp; no access outside the parameters; threads only
//             through the caller's function, which is told how much work there is
//   Declines  no usable compiler (see toolchain.h); dtypes without arithmetic here (u64, complex, f8)
//   Sample    extern "C" int k_0123456789abcdef(void* const* pointers, const long* sizes, Share share)
//
// Loading: dlopen tells libraries apart by name, so each binary needs a name of its own while it is loaded (a memfd
// whose descriptor stays open, or a file). Undefined symbols are libm's and libc's.
//
// A kernel's function returns 0, or i + 1 when check i of loops::Kernel::errors failed.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "kernel/toolchain.h"
#include "loops/loops.h"
#include "plan/plan.h"

namespace flashover::kernel {

// One kernel: an entry point and the function that does the work on a range of its outer points. Pointwise kernels that
// differ only in sizes and strides have one body, which reads this geometry from the job.
struct Emitted {
  std::string symbol;     // "k_" and the identity: equal kernels, equal names
  std::string body_name;  // "b_" and a hash of the body's text: equal bodies, equal names
  std::string body, entry;
  Lanes lanes;  // that the texts were written for
};
Emitted emit(const loops::Kernel& k, const Target& target);
// A whole source file: the library snippets that the functions need, then the functions (each once).
std::string source_file(std::span<const Emitted> kernels);

struct Compiled {
  std::vector<plan::Binary> binaries;
  std::vector<plan::Kernel> kernels;  // one per input, in order; equal inputs share symbol and binary
  double seconds = 0;
};
struct Options {
  Target target = host_target();
  CompileOptions compile;
};
Compiled compile(std::span<const loops::Kernel> kernels, const Options& options = {});

}  // namespace flashover::kernel
