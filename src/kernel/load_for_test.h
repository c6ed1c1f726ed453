// Loads compiled kernels into a test process. The product's loader lives in run/.
#pragma once
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/check.h"
#include "kernel/toolchain.h"

namespace flashover::kernel {

// Those that this machine can run.
inline std::vector<Isa> isas_of_host() {
  const Isa best = host_target().isa;
  std::vector<Isa> out = {Isa::kScalar};
  if (best == Isa::kNeon) out.push_back(best);
  if (best == Isa::kAvx2 || best == Isa::kAvx512) out.push_back(Isa::kAvx2);
  if (best == Isa::kAvx512) out.push_back(best);
  return out;
}

class Loaded {
 public:
  explicit Loaded(const std::string& elf) {
    // The descriptor stays open: dlopen tells libraries apart by name, and a reused number would be the same name.
    fd_ = ::memfd_create("kernel", MFD_CLOEXEC);
    FLASHOVER_CHECK(fd_ >= 0 && ::write(fd_, elf.data(), elf.size()) == static_cast<ssize_t>(elf.size()));
    handle_ = ::dlopen(("/proc/self/fd/" + std::to_string(fd_)).c_str(), RTLD_LAZY | RTLD_LOCAL);
    FLASHOVER_CHECK(handle_) << ::dlerror();
  }
  ~Loaded() {
    if (handle_) ::dlclose(handle_);
    if (fd_ >= 0) ::close(fd_);
  }
  Loaded(Loaded&& o) noexcept : handle_(o.handle_), fd_(o.fd_) {
    o.handle_ = nullptr;
    o.fd_ = -1;
  }
  template <typename F>
  F* symbol(const std::string& name) const {
    void* p = ::dlsym(handle_, name.c_str());
    FLASHOVER_CHECK(p) << "no symbol " << name;
    return reinterpret_cast<F*>(p);
  }

 private:
  void* handle_ = nullptr;
  int fd_ = -1;
};

}  // namespace flashover::kernel
