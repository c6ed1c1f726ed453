// Libraries for the CPU, modules for a device.
#include "run/code.h"

#include "run/cuda/module.h"

namespace flashover::run {

std::shared_ptr<const Code> load_code(const plan::Plan& plan, int device) {
  auto code = std::make_shared<Code>();
  if (device < 0) {
    for (const plan::Binary& b : plan.binaries) code->libraries.push_back(Library::load(b.bytes));
    for (const plan::Kernel& k : plan.kernels)
      code->kernels.push_back(reinterpret_cast<KernelFn>(code->libraries[k.binary]->symbol(k.symbol)));
  } else {
    std::vector<cuda::CuModule> modules;
    for (const plan::Binary& b : plan.binaries) modules.push_back(cuda::load_module(b.bytes, device));
    for (const plan::Kernel& k : plan.kernels)
      code->functions.push_back(cuda::find_function(modules[k.binary], k.symbol, k.cuda.shared, device));
  }
  return code;
}

}  // namespace flashover::run
