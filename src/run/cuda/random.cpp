// Finds the generator's function in libtorch_cuda by its symbol: nothing here needs CUDA's headers.
#include "run/cuda/random.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <dlfcn.h>

#include <mutex>
#include <type_traits>

#include "run/cuda/driver.h"

namespace flashover::run::cuda {
namespace {

// at::PhiloxCudaState: numbers, or where they lie while torch records a graph. (Nothing here needs CUDA's headers.)
struct PhiloxState {
  uint64_t seed, offset;  // or addresses of numbers on the device
  uint64_t within;        // recording: to be added to what lies there
  bool recording;
};
static_assert(std::is_trivially_copyable_v<PhiloxState> && sizeof(PhiloxState) == 32);

using Draw = PhiloxState (*)(c10::GeneratorImpl* generator, uint64_t increment);
Draw find_draw() {
  void* torch = ::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  // at::CUDAGeneratorImpl::philox_cuda_state(unsigned long)
  return torch ? reinterpret_cast<Draw>(::dlsym(torch, "_ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm")) : nullptr;
}
Draw draw() {
  static const Draw found = find_draw();
  return found;
}

}  // namespace

bool reaches_generator() { return draw() != nullptr; }

at::Tensor philox_state(int64_t increment, c10::Device device) {
  TORCH_CHECK(device.is_cuda() && reaches_generator(), "flashover: no CUDA generator");
  at::Generator generator = at::globalContext().defaultGenerator(device);
  PhiloxState state{};
  {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    state = draw()(generator.unsafeGetGeneratorImpl(), static_cast<uint64_t>(increment));
  }
  at::Tensor out = at::empty({2}, at::TensorOptions(device).dtype(at::kLong));
  const auto to = reinterpret_cast<DevicePointer>(out.data_ptr());
  const Stream stream = current_stream(device.index());
  if (!state.recording) {
    // Few enough bytes that the driver has read them when it returns.
    const uint64_t numbers[2] = {state.seed, state.offset};
    check(driver()->copy_in(to, numbers, sizeof numbers, stream), "cuMemcpyHtoDAsync");
    return out;
  }
  check(driver()->copy(to, state.seed, 8, stream), "cuMemcpyDtoDAsync");
  check(driver()->copy(to + 8, state.offset, 8, stream), "cuMemcpyDtoDAsync");
  if (state.within) out.select(0, 1).add_(static_cast<int64_t>(state.within));
  return out;
}

}  // namespace flashover::run::cuda
