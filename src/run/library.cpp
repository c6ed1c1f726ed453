// dlopen of kernels: through a memory file, whose content cannot be exchanged after the check.
#include "run/library.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <unordered_map>

#include "base/check.h"
#include "base/elf.h"
#include "base/hash.h"
#include "base/private_folder.h"

namespace flashover::run {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<Hash128, std::weak_ptr<Library>> by_content;
  uint32_t loads = 0;
};
Registry& registry() {
  static Registry* r = new Registry;  // libraries may be released while static objects are destroyed
  return *r;
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// The dynamic linker takes two paths that are spelled alike for the same library, and descriptor numbers come back: so
// the number of the load is spelled into the path, one bit as "/./" or "///".
std::string path_of(int fd, uint32_t load) {
  std::string path = "/proc/self/fd";
  for (; load != 0; load >>= 1) path += (load & 1) ? "/./" : "///";
  return path + "/" + std::to_string(fd);
}

void* open_memory(std::string_view elf, uint32_t load, std::string& error) {
  const int fd = ::memfd_create("flashover", MFD_CLOEXEC);
  if (fd < 0) {
    error = std::string("memfd_create: ") + std::strerror(errno);
    return nullptr;
  }
  void* handle = nullptr;
  if (!write_all(fd, elf)) {
    error = std::string("memfd: ") + std::strerror(errno);
  } else if (!(handle = ::dlopen(path_of(fd, load).c_str(), RTLD_NOW | RTLD_LOCAL))) {
    const char* e = ::dlerror();
    error = e ? e : "dlopen failed";
  }
  ::close(fd);
  return handle;
}

// Where memory files may not be executed: a file in a folder of our own, gone when loaded.
void* open_file(std::string_view elf, uint32_t load, std::string& error) {
  void* handle = nullptr;
  try {
    const PrivateFolder folder;
    const std::string name = "/kernel" + std::to_string(load) + ".so";  // descriptor numbers come back
    folder.write(name.substr(1), elf);
    // Through the descriptor; by its path only where /proc is not mounted.
    for (const std::string& way : {"/proc/self/fd/" + std::to_string(folder.fd()), folder.path()}) {
      if ((handle = ::dlopen((way + name).c_str(), RTLD_NOW | RTLD_LOCAL))) break;
      const char* e = ::dlerror();
      error += std::string("; ") + (e ? e : "dlopen failed");
    }
  } catch (const EnvironmentFailure& e) {
    error += "; " + e.reason;
  }
  return handle;
}

}  // namespace

std::shared_ptr<Library> Library::load(std::string_view elf) {
  if (const std::string why = why_not_shared_object(elf); !why.empty())
    throw EnvironmentFailure("kernel binary: " + why);
  const Hash128 key = Hasher().bytes(elf.data(), elf.size()).finish();
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  if (auto loaded = r.by_content[key].lock()) return loaded;
  std::string error;
  void* handle = open_memory(elf, ++r.loads, error);
  if (!handle) handle = open_file(elf, r.loads, error);
  if (!handle) throw EnvironmentFailure("kernel binary: " + error);
  std::shared_ptr<Library> library(new Library(handle));
  r.by_content[key] = library;
  if (r.by_content.size() > 4096) std::erase_if(r.by_content, [](const auto& e) { return e.second.expired(); });
  return library;
}

Library::~Library() { ::dlclose(handle_); }

void* Library::symbol(const std::string& name) const {
  void* address = ::dlsym(handle_, name.c_str());
  if (!address) throw EnvironmentFailure("kernel binary: no symbol " + name);
  return address;
}

}  // namespace flashover::run
