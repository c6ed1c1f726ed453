// Preloaded by tools/tsan.py: tells ThreadSanitizer what a parallel region orders, since libgomp, which is not
// instrumented, says nothing: what was done before the region comes before all of it, and all of it before what
// follows.
#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <cstring>

extern "C" {
void __tsan_acquire(void*);
void __tsan_release(void*);
}

namespace {

using Body = void (*)(void*);
using Parallel = void (*)(Body, void*, unsigned, unsigned);

// Of the runtime that is loaded, whichever folder it is from.
Parallel find_real() {
  void* found = nullptr;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        if (!std::strstr(info->dlpi_name, "libgomp")) return 0;
        if (void* library = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD))
          *static_cast<void**>(out) = dlsym(library, "GOMP_parallel");
        return 1;
      },
      &found);
  return reinterpret_cast<Parallel>(found);
}

struct Region {
  Body body;
  void* data;
  char begin = 0, end = 0;  // what the orders are told by
};

void run(void* p) {
  Region& region = *static_cast<Region*>(p);
  __tsan_acquire(&region.begin);
  region.body(region.data);
  __tsan_release(&region.end);
}

}  // namespace

extern "C" void GOMP_parallel(Body body, void* data, unsigned threads, unsigned flags) {
  static const Parallel real = find_real();
  if (!real) std::abort();
  Region region{body, data};
  __tsan_release(&region.begin);
  real(run, &region, threads, flags);
  __tsan_acquire(&region.end);
}
