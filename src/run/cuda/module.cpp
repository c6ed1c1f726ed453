// Loads cubins, finds functions, and raises the limit of shared memory where a kernel needs it.
#include "run/cuda/module.h"

#include <c10/core/DeviceGuard.h>
#include <elf.h>

#include <cstring>
#include <mutex>
#include <unordered_map>

#include "base/check.h"
#include "base/hash.h"

namespace flashover::run::cuda {
namespace {

void need(int status, const std::string& what) {
  if (status == 0) return;
  const char* name = nullptr;
  driver()->error_name(status, &name);
  throw Declined("cuda: " + what + ": " + (name ? name : "error " + std::to_string(status)));
}

}  // namespace

bool is_cubin(std::string_view bytes) {
  constexpr uint16_t kCuda = 190;  // EM_CUDA
  Elf64_Ehdr header;
  if (bytes.size() < sizeof header) return false;
  std::memcpy(&header, bytes.data(), sizeof header);
  return std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_machine == kCuda;
}

CuModule load_module(std::string_view cubin, int device) {
  if (!driver()) throw Declined("cuda: " + why_no_driver());
  if (!is_cubin(cubin)) throw Declined("cuda: a kernel binary is not a cubin");
  static std::mutex mutex;
  static auto* loaded = new std::unordered_map<Hash128, CuModule>;
  const Hash128 key = Hasher().bytes(cubin.data(), cubin.size()).text(std::to_string(device)).finish();
  std::lock_guard lock(mutex);
  if (auto it = loaded->find(key); it != loaded->end()) return it->second;
  const c10::DeviceGuard guard(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
  enter_context(device);
  CuModule module = nullptr;
  need(driver()->module_load(&module, cubin.data()), "cuModuleLoadData");
  loaded->emplace(key, module);
  return module;
}

Function find_function(CuModule module, const std::string& name, int shared, int device) {
  const c10::DeviceGuard guard(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
  enter_context(device);
  Function function = nullptr;
  need(driver()->module_function(&function, module, name.c_str()), "no kernel " + name);
  constexpr int kMaxDynamicShared = 8, kUnasked = 48 << 10;
  if (shared > kUnasked) need(driver()->function_set(function, kMaxDynamicShared, shared), "shared memory for " + name);
  return function;
}

}  // namespace flashover::run::cuda
