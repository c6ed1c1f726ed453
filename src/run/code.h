// The machine code of a plan, in memory and ready to be called.
//
//   In        a plan with the bytes of its binaries
//   Out       by kernel: a function pointer (CPU) or a driver's function (CUDA)
//   Promises  lives as long as it is held; sub-plans share the code of the plan they are parts of
//   Declines  binaries that do not load, symbols that are not there (Declined)
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "cpu_kernels/team.h"
#include "plan/plan.h"
#include "run/cuda/driver.h"
#include "run/library.h"

namespace flashover::run {

using KernelFn = int32_t (*)(void* const* pointers, const int64_t* sizes, decltype(&cpu::share));

struct Code {
  std::vector<std::shared_ptr<Library>> libraries;
  std::vector<KernelFn> kernels;          // by kernel: CPU
  std::vector<cuda::Function> functions;  // by kernel: CUDA
};

// device: a CUDA device, or -1.
std::shared_ptr<const Code> load_code(const plan::Plan& plan, int device);

}  // namespace flashover::run
