// Times the parts of a launch one by one: driver calls, graphs, guards, allocation.
#include "run/cuda/costs.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>

#include "run/cuda/driver.h"
#include "run/cuda/kernel_graph.h"

namespace flashover::run::cuda {
namespace {

constexpr const char* kNothing = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry nothing(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d) { ret; }
)";

template <typename F>
double least_of(int device, F&& once) {
  using Clock = std::chrono::steady_clock;
  double least = 1e9;
  for (int round = 0; round < 50; ++round) {
    const auto start = Clock::now();
    for (int i = 0; i < 100; ++i) once();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - start).count() * 1e4);
    // The queue must not fill up: that would be timed.
    const c10::impl::VirtualGuardImpl impl(c10::kCUDA);
    impl.synchronizeDevice(static_cast<c10::DeviceIndex>(device));
  }
  return least;
}

}  // namespace

std::vector<std::pair<std::string, double>> launch_costs(int device) {
  const c10::Device here(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
  const c10::DeviceGuard guard(here);
  enter_context(device);
  CuModule module = nullptr;
  Function function = nullptr;
  check(driver()->module_load(&module, kNothing), "cuModuleLoadData");
  check(driver()->module_function(&function, module, "nothing"), "cuModuleGetFunction");
  const Stream stream = current_stream(device);
  void* pointer = nullptr;
  void* params[] = {&pointer, &pointer, &pointer, &pointer};
  const auto launch = [&](Stream on) {
    check(driver()->launch(function, 1, 1, 1, 32, 1, 1, 0, on, params, nullptr), "cuLaunchKernel");
  };
  const auto memory = [&] {
    return at::detail::empty_strided_generic({16}, {1}, allocator(), c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                             at::kFloat);
  };
  std::vector<std::pair<std::string, double>> out;
  const auto take = [&](const char* name, auto&& once) { out.emplace_back(name, least_of(device, once)); };
  take("cuLaunchKernel", [&] { launch(stream); });
  KernelNodeParams node{.function = function,
                        .grid = {1, 1, 1},
                        .block = {32, 1, 1},
                        .shared = 0,
                        .params = params,
                        .extra = nullptr,
                        .kernel = nullptr,
                        .context = nullptr};
  for (const size_t kernels : {1, 10}) {
    KernelGraph graph(std::vector<ChainedKernel>(kernels, {node}));
    if (!graph.usable()) continue;
    graph.launch(stream);
    out.emplace_back("cuGraphLaunch of " + std::to_string(kernels), least_of(device, [&] { graph.launch(stream); }));
    take("parameters of a node", [&] { graph.set(0, node); });
    take("parameters and launch", [&] { graph.set(0, node), graph.launch(stream); });
  }
  take("is it recorded?", [&] {
    int status = 0;
    driver()->is_capturing(stream, &status);
  });
  take("device guard", [&] { const c10::DeviceGuard inner(here); });
  take("context", [&] { enter_context(device); });
  take("stream", [&] { current_stream(device); });
  take("allocator", [&] { allocator()->allocate(64); });
  take("tensor", [&] { memory(); });
  at::Tensor held;  // as a program does: the last result goes when the next is there
  take("all of them", [&] {
    const c10::DeviceGuard inner(here);
    enter_context(device);
    const Stream on = current_stream(device);
    at::Tensor made = memory();
    launch(on);
    held = std::move(made);
  });
  return out;
}

}  // namespace flashover::run::cuda
