// A library to preload: the n-th allocation, or the n-th call that reaches the file system, fails. A test arms it by
// ctypes; what fails is counted over all threads of the process. It is built by tests/fuzz/failing_calls.py.
//
//   kind 1  operator new alone (std::bad_alloc)
//   kind 2  malloc, calloc, realloc and posix_memalign too: what CPython and torch allocate without C++
//   kind 3  calls of the file system, with the error number given
// A call belongs to a site: the k innermost return addresses that lie in one library, with or without those between and
// beneath. A table of the sites that a run came to tells how often it came to each; then the first call at a site, or a
// later one, fails.
// The stack of the failing call can be read afterwards, as addresses: it says whose allocation it was. Where the
// process dies of it, so can the stack of its death, the stack of the last call that failed, and the place in it that
// the exception had reached: that frame let an exception out that may let none out.
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <unwind.h>

#include <atomic>
#include <exception>
#include <initializer_list>
#include <mutex>
#include <new>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
}

namespace {

enum Kind { kNone, kNew, kMalloc, kFiles };
constexpr int kMostFrames = 64;

std::atomic<int> kind{kNone};
std::atomic<long> seen{0}, wanted{0};
std::atomic<int> error{0}, persistent{0};
constexpr int kWords = kMostFrames + 1;  // of a stack: how many frames, and they
enum Stack { kFirst, kDeath, kLast, kStacks };
// The stacks, where an exception was seen last, and the number of the first call that failed.
uint64_t* shared = nullptr;
constexpr int kExceptionAt = kStacks * kWords, kFailedAt = kExceptionAt + 1;
thread_local bool inside = false;  // backtrace() may allocate

// What is known of a site. The table is shared with the process that forked this one; a site lies at its hash or
// behind.
constexpr int kSiteFrames = 48;
struct Site {
  uint64_t hash;   // 0: nothing is here
  uint64_t first;  // the first call there is the n-th of its run
  uint64_t count;  // so many calls
  uint64_t depth;  // so many frames
  uint64_t frames[kSiteFrames];
};
struct Range {
  uint64_t low, high;
  bool holds(uint64_t address) const { return low <= address && address < high; }
};
Site* table = nullptr;
uint64_t table_size = 0;
std::atomic<bool> recording{false}, reached{false};
std::atomic<uint64_t> wanted_site{0}, occurrence{0};
Range own{}, anchor{};  // this library; the one whose frames are counted
uint64_t anchored = 0;  // so many of them belong to a site
bool beneath = false;   // as do those between and beneath
std::mutex table_guard;

std::terminate_handler terminate_before = nullptr;
std::atomic<bool> terminates{false};

void write_stack(Stack which) {
  if (shared == nullptr) return;
  uint64_t* const to = shared + which * kWords;
  if (which != kLast && to[0] != 0) return;
  inside = true;
  void* frames[kMostFrames];
  const int depth = backtrace(frames, kMostFrames);
  for (int i = 0; i < depth; ++i) to[i + 1] = reinterpret_cast<uint64_t>(frames[i]);
  to[0] = static_cast<uint64_t>(depth);
  inside = false;
}

// The handler before it throws the exception again, to say what it was.
void on_terminate() {
  terminates = true;
  terminate_before();
}

void on_death(int number) {
  kind = kNone;
  write_stack(kDeath);
  signal(number, SIG_DFL);
  raise(number);
}

struct Walk {
  uint64_t left = anchored, depth = 0, last = 0;  // last: how deep the frames go that were counted
  uint64_t frames[kSiteFrames];
};
_Unwind_Reason_Code take_frame(_Unwind_Context* context, void* to) {
  Walk& walk = *static_cast<Walk*>(to);
  const uint64_t at = _Unwind_GetIP(context);
  if (own.holds(at)) return _URC_NO_REASON;
  if (at == 0 || walk.depth == kSiteFrames) return _URC_END_OF_STACK;
  walk.frames[walk.depth++] = at;
  if (!anchor.holds(at)) return _URC_NO_REASON;
  walk.last = walk.depth;
  return --walk.left == 0 ? _URC_END_OF_STACK : _URC_NO_REASON;
}
struct Here : Walk {
  uint64_t hash = 14695981039346656037u;
};
Here walk_here() {
  inside = true;
  Here here;
  _Unwind_Backtrace(take_frame, static_cast<Walk*>(&here));
  inside = false;
  if (here.last != 0) here.depth = here.last;  // what is outside of them is not the call's
  for (uint64_t i = 0; i < here.depth; ++i) {
    if (here.last != 0 && !beneath && !anchor.holds(here.frames[i])) continue;
    here.hash = (here.hash ^ here.frames[i]) * 1099511628211u;
    here.hash ^= here.hash >> 29;
  }
  here.hash |= here.hash == 0;
  return here;
}

// The n-th call is at the site that is here.
void record(uint64_t n) {
  const Here walk = walk_here();
  const std::lock_guard lock(table_guard);
  for (uint64_t i = 0; i < table_size; ++i) {
    Site& site = table[(walk.hash + i) % table_size];
    if (site.hash == walk.hash) return void(++site.count);
    if (site.hash != 0) continue;
    site.first = n, site.count = 1, site.depth = walk.depth;
    for (uint64_t k = 0; k < walk.depth; ++k) site.frames[k] = walk.frames[k];
    site.hash = walk.hash;
    return;
  }
  abort();  // what does not fit would be missed in silence
}

// Is the n-th call, at the site that is here, to fail? The calls before the `wanted`th are not looked at.
bool fails_here(long n) {
  if (n < wanted) return false;
  if (reached) return persistent != 0;
  return walk_here().hash == wanted_site && --occurrence == 0 && !reached.exchange(true);
}

// Is this call the one that fails?
bool fails(int of) {
  if (kind != of || inside) return false;
  const long n = ++seen;
  if (recording) return record(static_cast<uint64_t>(n)), false;
  if (wanted_site != 0) {
    if (!fails_here(n)) return false;
  } else if (const long w = wanted; w <= 0 || (persistent ? n < w : n != w)) {
    return false;
  }
  if (shared != nullptr && shared[kFailedAt] == 0) shared[kFailedAt] = static_cast<uint64_t>(n);
  write_stack(kFirst);
  write_stack(kLast);
  return true;
}

void* fail_with(int number) {
  errno = number;
  return nullptr;
}

void* allocate(size_t n) {
  if (fails(kNew) || fails(kMalloc)) return nullptr;
  return __libc_malloc(n > 0 ? n : 1);
}
void* allocate_aligned(size_t n, std::align_val_t alignment) {
  if (fails(kNew) || fails(kMalloc)) return nullptr;
  return __libc_memalign(static_cast<size_t>(alignment), n > 0 ? n : 1);
}
void* or_throw(void* p) {
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

template <typename F>
F next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}
// The mode of an open() that may create a file.
mode_t mode_of(int flags, va_list list) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; }

}  // namespace

extern "C" {

// From here on the n-th call of this kind fails (0: none, they are only counted), and all after it if `all`.
void failing_arm(int of, long n, int number, int all) {
  seen = 0;
  wanted = n;
  error = number;
  persistent = all;
  recording = false;
  wanted_site = 0;
  kind = of;
}
// From here on the k-th call at this site fails, among those from the n-th on; and all after it if `all`.
void failing_arm_site(int of, uint64_t hash, long n, uint64_t k, int number, int all) {
  failing_arm(kNone, n, number, all);
  reached = false;
  wanted_site = hash;
  occurrence = k;
  kind = of;
}
// From here on the sites of calls of this kind are put into the table.
void failing_record(int of) {
  failing_arm(kNone, 0, 0, 0);
  recording = true;
  kind = of;
}
// How many there were.
long failing_disarm() {
  kind = kNone;
  return seen;
}
// The table of sites (all zero), and what makes a site: so many frames within the library at low..high, and `all` that
// are beneath them.
void failing_sites(void* at, uint64_t size, uint64_t low, uint64_t high, uint64_t frames, uint64_t all,
                   uint64_t own_low, uint64_t own_high) {
  table = static_cast<Site*>(at);
  table_size = size;
  anchor = {low, high};
  anchored = frames;
  beneath = all != 0;
  own = {own_low, own_high};
}
// Where the stack of the first that failed is to be written, the one of the process's death, that of the last that
// failed (each: its length, then addresses, innermost first), the place that an exception reached last, and which call
// was the first that failed.
void failing_share(uint64_t* words) {
  void* frame;
  backtrace(&frame, 1);  // it loads what it needs
  if (shared != nullptr) return void(shared = words);
  shared = words;
  terminate_before = std::set_terminate(on_terminate);
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) signal(number, on_death);
}

// What the unwinder asks of each frame that an exception comes to, whichever library the frame is of.
_Unwind_Reason_Code __gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class exception_class,
                                         _Unwind_Exception* exception, _Unwind_Context* context) {
  static const auto real = [] {
    inside = true;
    const auto found = next<decltype(&__gxx_personality_v0)>("__gxx_personality_v0");
    inside = false;
    return found;
  }();
  if (kind != kNone && shared != nullptr && !terminates) shared[kExceptionAt] = _Unwind_GetIP(context);
  return real(version, actions, exception_class, exception, context);
}

void* malloc(size_t n) { return fails(kMalloc) ? fail_with(ENOMEM) : __libc_malloc(n); }
void* calloc(size_t count, size_t n) { return fails(kMalloc) ? fail_with(ENOMEM) : __libc_calloc(count, n); }
void* realloc(void* p, size_t n) { return fails(kMalloc) ? fail_with(ENOMEM) : __libc_realloc(p, n); }
void* memalign(size_t alignment, size_t n) {
  return fails(kMalloc) ? fail_with(ENOMEM) : __libc_memalign(alignment, n);
}
void* aligned_alloc(size_t alignment, size_t n) {
  return fails(kMalloc) ? fail_with(ENOMEM) : __libc_memalign(alignment, n);
}
int posix_memalign(void** out, size_t alignment, size_t n) {
  if (fails(kMalloc)) return ENOMEM;
  void* p = __libc_memalign(alignment, n);
  if (p == nullptr) return ENOMEM;
  *out = p;
  return 0;
}

int open(const char* path, int flags, ...) {
  static const auto real = next<int (*)(const char*, int, ...)>("open");
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  if (fails(kFiles)) return errno = error, -1;
  return real(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  static const auto real = next<int (*)(const char*, int, ...)>("open64");
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  if (fails(kFiles)) return errno = error, -1;
  return real(path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  static const auto real = next<int (*)(int, const char*, int, ...)>("openat");
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  if (fails(kFiles)) return errno = error, -1;
  return real(folder, path, flags, mode);
}
int openat64(int folder, const char* path, int flags, ...) {
  static const auto real = next<int (*)(int, const char*, int, ...)>("openat64");
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  if (fails(kFiles)) return errno = error, -1;
  return real(folder, path, flags, mode);
}
#define FAILING(result, name, declared, passed, failed)       \
  result name declared {                                      \
    static const auto real = next<result(*) declared>(#name); \
    if (fails(kFiles)) return errno = error, failed;          \
    return real passed;                                       \
  }
FAILING(FILE*, fopen, (const char* path, const char* mode), (path, mode), nullptr)
FAILING(FILE*, fopen64, (const char* path, const char* mode), (path, mode), nullptr)
FAILING(ssize_t, read, (int file, void* to, size_t n), (file, to, n), -1)
FAILING(ssize_t, pread, (int file, void* to, size_t n, off_t at), (file, to, n, at), -1)
FAILING(ssize_t, write, (int file, const void* from, size_t n), (file, from, n), -1)
FAILING(int, rename, (const char* from, const char* to), (from, to), -1)
FAILING(int, renameat, (int a, const char* from, int b, const char* to), (a, from, b, to), -1)
FAILING(int, linkat, (int a, const char* from, int b, const char* to, int flags), (a, from, b, to, flags), -1)
FAILING(int, unlink, (const char* path), (path), -1)
FAILING(int, unlinkat, (int folder, const char* path, int flags), (folder, path, flags), -1)
FAILING(int, mkdir, (const char* path, mode_t mode), (path, mode), -1)
FAILING(int, mkdirat, (int folder, const char* path, mode_t mode), (folder, path, mode), -1)
FAILING(char*, mkdtemp, (char* name), (name), nullptr)
FAILING(int, mkstemp, (char* name), (name), -1)
FAILING(int, ftruncate, (int file, off_t size), (file, size), -1)
FAILING(int, fsync, (int file), (file), -1)
FAILING(int, pipe2, (int* ends, int flags), (ends, flags), -1)
FAILING(int, memfd_create, (const char* name, unsigned flags), (name, flags), -1)
FAILING(void*, mmap, (void* at, size_t n, int access, int flags, int file, off_t from),
        (at, n, access, flags, file, from), MAP_FAILED)

}  // extern "C"

void* operator new(size_t n) { return or_throw(allocate(n)); }
void* operator new[](size_t n) { return or_throw(allocate(n)); }
void* operator new(size_t n, const std::nothrow_t&) noexcept { return allocate(n); }
void* operator new[](size_t n, const std::nothrow_t&) noexcept { return allocate(n); }
void* operator new(size_t n, std::align_val_t a) { return or_throw(allocate_aligned(n, a)); }
void* operator new[](size_t n, std::align_val_t a) { return or_throw(allocate_aligned(n, a)); }
void operator delete(void* p) noexcept { free(p); }
void operator delete[](void* p) noexcept { free(p); }
void operator delete(void* p, size_t) noexcept { free(p); }
void operator delete[](void* p, size_t) noexcept { free(p); }
void operator delete(void* p, std::align_val_t) noexcept { free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { free(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { free(p); }
