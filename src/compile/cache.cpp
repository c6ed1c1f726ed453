// Entries are files with a header and a checksum, written aside and renamed; whatever looks odd is a miss.
#include "compile/cache.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/decimal.h"
#include "base/isa_limit.h"
#include "base/safe_path.h"
#include "base/utf8.h"
#include "target/features.h"

namespace flashover::compile {
namespace {

constexpr char kMagic[8] = {'F', 'L', 'A', 'S', 'H', 'E', 'N', '1'};
constexpr size_t kHeader = sizeof kMagic + 16 + 8 + 16;  // magic, key, size, checksum
constexpr size_t kLargest = size_t{1} << 30;             // of one entry
constexpr const char* kTemporary = ".tmp-";
constexpr time_t kTemporaryAge = 3600;  // older ones were left by a process that died

std::string header_of(std::string_view kind, const Hash128& key, std::string_view bytes) {
  const Hash128 sum = Hasher().text(kind).number(key.lo).number(key.hi).bytes(bytes.data(), bytes.size()).finish();
  std::string h(kMagic, sizeof kMagic);
  for (uint64_t w : {key.lo, key.hi, static_cast<uint64_t>(bytes.size()), sum.lo, sum.hi})
    for (int i = 0; i < 8; ++i) h += static_cast<char>(w >> (8 * i));
  return h;
}

// The key that name_of() wrote as these digits.
std::optional<Hash128> parsed_key(std::string_view digits) {
  Hash128 key;
  const auto part = [&](size_t at, uint64_t& to) {
    const char* end = digits.data() + at + 16;
    return std::from_chars(digits.data() + at, end, to, 16).ptr == end;
  };
  if (digits.size() != 32 || !part(0, key.hi) || !part(16, key.lo)) return std::nullopt;
  return key;
}

std::string name_of(std::string_view kind, const Hash128& key) { return std::string(kind) + "-" + key.hex(); }

// A user may have named a folder that holds other files: those stay.
bool is_entry(const std::string& name) {
  const size_t dash = name.rfind('-');
  return dash != std::string::npos && dash > 0 && name.size() - dash - 1 == 32 &&
         name.find_first_not_of("0123456789abcdef", dash + 1) == std::string::npos;
}

bool read_all(int fd, char* to, size_t size) {
  while (size > 0) {
    const ssize_t n = ::read(fd, to, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}
bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (n == 0) errno = ENOSPC;
      return false;
    }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// A file that only we can have written; -1: there is none.
int open_own(int directory, const std::string& name, struct stat& s) {
  // Not blocking: there may be a pipe.
  Fd fd(::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  const bool own = fd >= 0 && ::fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_uid == ::geteuid() &&
                   s.st_nlink <= 1 && (s.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  return own ? fd.release() : -1;
}

std::string default_directory() {
  if (const char* own = std::getenv("FLASHOVER_CACHE_DIR")) return own;
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg && *xdg == '/') return std::string(xdg) + "/flashover";
  if (const char* home = std::getenv("HOME"); home && *home == '/') return std::string(home) + "/.cache/flashover";
  char buffer[4096];
  passwd entry, *found = nullptr;
  if (::getpwuid_r(::geteuid(), &entry, buffer, sizeof buffer, &found) == 0 && found && found->pw_dir &&
      *found->pw_dir == '/')
    return std::string(found->pw_dir) + "/.cache/flashover";
  return {};
}

size_t default_size() {
  const char* mb = std::getenv("FLASHOVER_CACHE_MB");
  const std::optional<uint64_t> value = mb ? parse_number<uint64_t>(mb) : std::nullopt;
  return value && *value < (1u << 24) ? static_cast<size_t>(*value) << 20 : size_t{2048} << 20;
}

}  // namespace

Cache& Cache::process() {
  static Cache* cache = new Cache(default_directory(), default_size());
  return *cache;
}

Cache& Cache::at(const std::string& directory) {
  if (directory.empty()) return process();
  static std::mutex mutex;
  static auto* caches = new std::map<std::string, std::unique_ptr<Cache>>;
  std::lock_guard lock(mutex);
  auto& cache = (*caches)[directory];
  if (!cache) cache = std::make_unique<Cache>(directory, default_size());
  return *cache;
}

Cache::Cache(std::string directory, size_t max_bytes, size_t max_entries)
    : directory_(std::move(directory)), max_bytes_(max_bytes), max_entries_(max_entries) {}

Cache::~Cache() {
  if (fd_ >= 0) ::close(fd_);
}

void Cache::warn(const std::string& what) {
  std::lock_guard lock(mutex_);
  if (warned_) return;
  warned_ = true;
  warning_ = valid_utf8("flashover: the cache " + directory_ + " " + what);
}

std::string Cache::take_warning() {
  std::lock_guard lock(mutex_);
  return std::exchange(warning_, {});
}

int Cache::open_directory() {
  if (directory_.empty()) return -1;
  std::string why;
  {
    std::lock_guard lock(mutex_);
    if (opened_) {
      // Another process may have removed the whole directory meanwhile; then make it anew.
      struct stat s;
      if (fd_ < 0 || (::fstat(fd_, &s) == 0 && s.st_nlink > 0)) return fd_;
      ::close(fd_);
      fd_ = -1;
    }
    opened_ = true;
    fd_ = open_safely(directory_, FolderUse::kOurs, why);
    if (fd_ >= 0) return fd_;
  }
  warn("is not used: it " + why);
  return -1;
}

std::optional<std::string> Cache::get(std::string_view kind, const Hash128& key) {
  const int directory = open_directory();
  if (directory < 0) return std::nullopt;
  const std::string name = name_of(kind, key);
  struct stat s;
  const Fd fd(open_own(directory, name, s));
  if (fd < 0) return std::nullopt;
  const auto damaged = [&]() -> std::optional<std::string> {
    ::unlinkat(directory, name.c_str(), 0);
    return std::nullopt;
  };
  const auto size = static_cast<size_t>(s.st_size);
  if (size < kHeader || size > kLargest) return damaged();
  char header[kHeader];
  std::string bytes;
  bytes.resize(size - kHeader);
  if (!read_all(fd, header, kHeader) || !read_all(fd, bytes.data(), bytes.size())) return damaged();
  if (std::string_view(header, kHeader) != header_of(kind, key, bytes)) return damaged();
  // The time of last use, for eviction; now and then is enough.
  if (::time(nullptr) - s.st_mtime > 3600) ::futimens(fd, nullptr);
  return bytes;
}

bool Cache::write(int directory, const std::string& name, std::string_view header, std::string_view bytes, int& error) {
  static std::atomic<uint64_t> counter{0};
  const std::string temporary = kTemporary + std::to_string(::getpid()) + "-" + std::to_string(counter++) + "-" + name;
  Fd fd(::openat(directory, temporary.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (fd < 0) {
    error = errno;
    if (error != EEXIST) return false;  // left by a dead process with our number
    ::unlinkat(directory, temporary.c_str(), 0);
    fd.reset(::openat(directory, temporary.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (fd < 0) return error = errno, false;
  }
  // No fsync: after a power cut the checksum tells.
  if (!write_all(fd, header) || !write_all(fd, bytes) || ::close(fd.release()) != 0 ||
      ::renameat(directory, temporary.c_str(), directory, name.c_str()) != 0) {
    error = errno;
    ::unlinkat(directory, temporary.c_str(), 0);
    return false;
  }
  return true;
}

void Cache::put(std::string_view kind, const Hash128& key, std::string_view bytes) {
  if (read_only_.load(std::memory_order_relaxed) || bytes.size() > kLargest - kHeader || bytes.size() > max_bytes_ / 2)
    return;
  const int directory = open_directory();
  if (directory < 0) return;
  const std::string header = header_of(kind, key, bytes), name = name_of(kind, key);
  int error = 0;
  bool done = write(directory, name, header, bytes, error);
  if (!done && error == ENOENT) {  // removed under us
    const int again = open_directory();
    done = again >= 0 && write(again, name, header, bytes, error);
  }
  if (!done && (error == ENOSPC || error == EDQUOT)) {
    evict();
    done = write(directory, name, header, bytes, error);
  }
  if (!done) {
    read_only_ = true;
    warn(std::string("cannot be written: ") + std::strerror(error));
    return;
  }
  // A look at the whole directory pays off only now and then; the first time, for what other processes left.
  const size_t before = written_bytes_.fetch_add(bytes.size() + kHeader), entries = written_entries_.fetch_add(1);
  const size_t step = std::max<size_t>(max_bytes_ / 16, 1);
  if (entries % 256 == 0 || before / step != (before + bytes.size() + kHeader) / step) evict();
}

std::optional<std::string> Cache::read_text(const std::string& name, size_t most) {
  const int directory = open_directory();
  if (directory < 0) return std::nullopt;
  struct stat s;
  const Fd fd(open_own(directory, name, s));
  if (fd < 0 || static_cast<size_t>(s.st_size) > most) return std::nullopt;
  std::string text(static_cast<size_t>(s.st_size), '\0');
  return read_all(fd, text.data(), text.size()) ? std::optional(std::move(text)) : std::nullopt;
}

void Cache::write_text(const std::string& name, std::string_view text) {
  const int directory = read_only_.load(std::memory_order_relaxed) ? -1 : open_directory();
  int error = 0;
  if (directory >= 0) write(directory, name, "", text, error);  // (where it fails, entries fail too, and say so)
}

std::vector<Cache::File> Cache::files(int directory) {
  std::vector<File> out;
  const int copy = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* list = copy >= 0 ? ::fdopendir(copy) : nullptr;
  if (!list) {
    if (copy >= 0) ::close(copy);
    return out;
  }
  const time_t now = ::time(nullptr);
  while (const dirent* d = ::readdir(list)) {
    struct stat s;
    if (::fstatat(directory, d->d_name, &s, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(s.st_mode)) continue;
    if (std::strncmp(d->d_name, kTemporary, std::strlen(kTemporary)) == 0) {
      if (now - s.st_mtime > kTemporaryAge) ::unlinkat(directory, d->d_name, 0);
      continue;
    }
    if (d->d_name[0] == '.' || !std::strchr(d->d_name, '-')) continue;  // not one of ours
    out.push_back({d->d_name, s.st_mtime, static_cast<size_t>(s.st_blocks) * 512});
  }
  ::closedir(list);
  return out;
}

std::map<std::string, Cache::Usage> Cache::contents() {
  std::map<std::string, Usage> out;
  const int directory = open_directory();
  if (directory < 0) return out;
  for (const File& f : files(directory)) {
    Usage& usage = out[f.name.substr(0, f.name.rfind('-'))];
    ++usage.entries;
    usage.bytes += f.bytes;
  }
  return out;
}

std::vector<std::pair<std::string, Hash128>> Cache::entries() {
  std::vector<std::pair<std::string, Hash128>> out;
  const int directory = open_directory();
  if (directory < 0) return out;
  std::vector<File> all = files(directory);
  std::ranges::stable_sort(all, [](const File& a, const File& b) { return a.used > b.used; });
  for (const File& f : all) {
    const size_t dash = f.name.rfind('-');
    if (const auto key = parsed_key(std::string_view(f.name).substr(dash + 1)))
      out.emplace_back(f.name.substr(0, dash), *key);
  }
  return out;
}

size_t Cache::clear(const std::vector<std::string>& texts) {
  const int directory = open_directory();
  if (directory < 0) return 0;
  size_t removed = 0;
  for (const File& f : files(directory)) removed += is_entry(f.name) && ::unlinkat(directory, f.name.c_str(), 0) == 0;
  for (const std::string& name : texts) removed += ::unlinkat(directory, name.c_str(), 0) == 0;
  return removed;
}

void Cache::evict() {
  const int directory = open_directory();
  if (directory < 0) return;
  // One process at a time; one that finds it busy leaves it to the other.
  Fd lock(::openat(directory, ".lock", O_CREAT | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (lock < 0 || ::flock(lock, LOCK_EX | LOCK_NB) != 0) return;
  std::vector<File> entries = files(directory);
  size_t total = 0;
  for (const File& f : entries) total += f.bytes;
  if (total <= max_bytes_ && entries.size() <= max_entries_) return;
  std::sort(entries.begin(), entries.end(), [](const File& a, const File& b) { return a.used < b.used; });
  size_t left = entries.size();
  for (const File& e : entries) {
    if (total <= max_bytes_ / 5 * 4 && left <= max_entries_ / 5 * 4) break;
    if (::unlinkat(directory, e.name.c_str(), 0) != 0) continue;
    total -= e.bytes;
    --left;
  }
}

std::string machine_identity() { return target::identity() + std::to_string(static_cast<int>(isa_limit())); }

std::string program_identity() {
  static const std::string identity = [] {
    Dl_info info;
    struct stat s;
    if (!::dladdr(reinterpret_cast<void*>(&program_identity), &info) || !info.dli_fname ||
        ::stat(info.dli_fname, &s) != 0)
      return std::string("unknown");
    return std::to_string(s.st_size) + "." + std::to_string(s.st_mtim.tv_sec) + "." + std::to_string(s.st_mtim.tv_nsec);
  }();
  return identity + std::to_string(static_cast<int>(isa_limit()));
}

}  // namespace flashover::compile
