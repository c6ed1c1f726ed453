// Looks up the driver's functions by name, once, and says what was missing.
#include "run/cuda/driver.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <array>
#include <atomic>

#include "base/check.h"

namespace flashover::run::cuda {
namespace {

struct Found {
  Driver driver{};
  int (*init)(unsigned) = nullptr;
  int32_t (*stream)(int32_t, void**) = nullptr;
  std::string missing;

  Found() {
    // Already loaded when torch has touched CUDA; else this finds it, or not.
    void* cuda = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!cuda) {
      missing = "there is no CUDA driver (libcuda.so.1)";
      return;
    }
    // A program without Python may not have loaded it yet; it lies beside the library that is linked.
    void* torch = ::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_LOCAL);
    if (!torch) {
      missing = "this torch was built without CUDA";
      return;
    }
    const auto find = [&](auto& function, void* library, const char* name) {
      void* address = ::dlsym(library, name);
      if (!address && missing.empty()) missing = std::string("no function ") + name;
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    };
    find(init, cuda, "cuInit");
    find(driver.error_name, cuda, "cuGetErrorName");
    find(driver.device_get, cuda, "cuDeviceGet");
    find(driver.device_count, cuda, "cuDeviceGetCount");
    find(driver.device_attribute, cuda, "cuDeviceGetAttribute");
    find(driver.total_memory, cuda, "cuDeviceTotalMem_v2");
    find(driver.primary_context, cuda, "cuDevicePrimaryCtxRetain");
    find(driver.current_context, cuda, "cuCtxGetCurrent");
    find(driver.set_current_context, cuda, "cuCtxSetCurrent");
    find(driver.module_load, cuda, "cuModuleLoadData");
    find(driver.module_function, cuda, "cuModuleGetFunction");
    find(driver.function_set, cuda, "cuFuncSetAttribute");
    find(driver.launch, cuda, "cuLaunchKernel");
    find(driver.copy, cuda, "cuMemcpyDtoDAsync_v2");
    find(driver.copy_in, cuda, "cuMemcpyHtoDAsync_v2");
    find(driver.is_capturing, cuda, "cuStreamIsCapturing");
    find(driver.capture_info, cuda, "cuStreamGetCaptureInfo_v3");
    find(driver.exchange_capture_mode, cuda, "cuThreadExchangeStreamCaptureMode");
    find(driver.graph_launch, cuda, "cuGraphLaunch");
    find(driver.graph_create, cuda, "cuGraphCreate");
    find(driver.graph_destroy, cuda, "cuGraphDestroy");
    find(driver.add_kernel, cuda, "cuGraphAddKernelNode_v2");
    find(driver.add_dependencies, cuda, "cuGraphAddDependencies_v2");
    find(driver.instantiate, cuda, "cuGraphInstantiateWithFlags");
    find(driver.exec_destroy, cuda, "cuGraphExecDestroy");
    find(driver.exec_set_kernel, cuda, "cuGraphExecKernelNodeSetParams_v2");
    find(stream, torch, "aoti_torch_get_current_cuda_stream");
    if (!missing.empty()) return;
    if (const int status = init(0)) missing = "the CUDA driver does not start (error " + std::to_string(status) + ")";
  }
};

const Found& found() {
  static const Found* f = new Found;
  return *f;
}

constexpr int kMaxDevices = 64;

Context context_of(int device) {
  static std::array<std::atomic<Context>, kMaxDevices> contexts{};
  FLASHOVER_CHECK(device >= 0 && device < kMaxDevices) << "CUDA device " << device;
  Context context = contexts[device].load(std::memory_order_acquire);
  if (context) return context;
  int handle = 0;
  check(driver()->device_get(&handle, device), "cuDeviceGet");
  check(driver()->primary_context(&context, handle), "cuDevicePrimaryCtxRetain");
  contexts[device].store(context, std::memory_order_release);
  return context;
}

}  // namespace

const Driver* driver() { return found().missing.empty() ? &found().driver : nullptr; }
std::string why_no_driver() { return found().missing; }

void check(int status, const char* what) {
  if (status == 0) [[likely]]
    return;
  const char* name = nullptr;
  found().driver.error_name(status, &name);
  TORCH_CHECK(false, "CUDA driver error: ", what, ": ", name ? name : "unknown error", " (", status, ")");
}

Stream current_stream(int device) {
  void* stream = nullptr;
  if (found().stream(device, &stream) != 0)
    TORCH_CHECK(false, "flashover: torch has no current stream on CUDA device ", device);
  return stream;
}

c10::Allocator* allocator() {
  static c10::Allocator* a = c10::GetAllocator(c10::kCUDA);
  return a;
}

void enter_context(int device) {
  // Right after torch's device guard, so what is current is this device's, or nothing at all.
  Context current = nullptr;
  check(driver()->current_context(&current), "cuCtxGetCurrent");
  const Context target = context_of(device);
  if (current != target) check(driver()->set_current_context(target), "cuCtxSetCurrent");
}

DeviceFacts facts(int device) {
  if (!driver()) throw Declined("cuda: " + why_no_driver());
  int handle = 0;
  if (driver()->device_get(&handle, device) != 0) throw Declined("cuda: no device " + std::to_string(device));
  // Numbers of CUdevice_attribute.
  constexpr int kMajor = 75, kMinor = 76, kProcessors = 16, kSharedOptin = 97, kL2 = 38, kThreads = 39;
  const auto get = [&](int attribute) {
    int value = 0;
    check(driver()->device_attribute(&value, attribute, handle), "cuDeviceGetAttribute");
    return value;
  };
  return {get(kMajor) * 10 + get(kMinor), get(kProcessors), get(kSharedOptin), get(kL2), get(kThreads)};
}

int device_count() {
  int count = 0;
  if (!driver() || driver()->device_count(&count) != 0) return 0;
  return count;
}

int64_t memory_bytes(int device) {
  int handle = 0;
  size_t bytes = 0;
  check(driver()->device_get(&handle, device), "cuDeviceGet");
  check(driver()->total_memory(&bytes, handle), "cuDeviceTotalMem");
  return static_cast<int64_t>(bytes);
}

}  // namespace flashover::run::cuda
