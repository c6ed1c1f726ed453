// Temporary folders: made through descriptors, locked while in use, swept when their process is gone.
#include "base/private_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/notice.h"
#include "base/passing_failure.h"
#include "base/safe_path.h"

namespace flashover {
namespace {

constexpr const char* kPrefix = "flashover-build-";
constexpr int kMostLooked = 50000;  // entries of a crowded /tmp

// Where temporary files may go, best first.
std::vector<std::string> temporary_folders() {
  const char* wish = std::getenv("TMPDIR");
  std::vector<std::string> out{"/tmp", "/var/tmp", "/dev/shm"};
  if (wish && *wish) out.insert(out.begin(), wish);
  return out;
}

std::string random_name(const std::string& prefix) {
  static constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
  unsigned char bytes[12] = {};
  if (::getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) return {};
  std::string name = prefix;
  for (unsigned char b : bytes) name += kLetters[b % 36];
  return name;
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// Takes what lies in an open folder, then the folder. Tools may have made folders in there.
void remove_folder(int base, const std::string& name, int fd, int depth = 0) {
  const int copy = ::openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // By hand: libtorch exports an own copy of parts of std::filesystem, and calls into it crash.
  if (DIR* list = copy >= 0 ? ::fdopendir(copy) : nullptr) {
    while (const dirent* entry = ::readdir(list)) {
      const std::string inner = entry->d_name;
      if (inner == "." || inner == ".." || ::unlinkat(fd, inner.c_str(), 0) == 0 || depth >= 8) continue;
      const Fd folder(::openat(fd, inner.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (folder >= 0) remove_folder(fd, inner, folder, depth + 1);
    }
    ::closedir(list);
  } else if (copy >= 0) {
    ::close(copy);
  }
  ::unlinkat(base, name.c_str(), AT_REMOVEDIR);
}

bool is_ours(const struct stat& s) {
  return S_ISDIR(s.st_mode) && s.st_uid == ::geteuid() && (s.st_mode & 07777) == 0700;
}

// Removes the folders of processes that are gone: those whose lock is free.
void sweep(int base) {
  const int copy = ::openat(base, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* list = copy >= 0 ? ::fdopendir(copy) : nullptr;
  if (!list) {
    if (copy >= 0) ::close(copy);
    return;
  }
  std::vector<std::string> names;
  for (int looked = 0; looked < kMostLooked; ++looked) {
    const dirent* entry = ::readdir(list);
    if (!entry) break;
    if (std::strncmp(entry->d_name, kPrefix, std::strlen(kPrefix)) == 0) names.emplace_back(entry->d_name);
  }
  ::closedir(list);
  for (const std::string& name : names) {
    const Fd fd(::openat(base, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    struct stat s;
    if (fd < 0 || ::fstat(fd, &s) != 0 || !is_ours(s) || ::flock(fd, LOCK_EX | LOCK_NB) != 0) continue;
    remove_folder(base, name, fd);
  }
}

}  // namespace

bool PrivateFolder::make_in(const std::string& base, std::string& why) {
  Fd there(open_safely(base, FolderUse::kShared, why));
  if (there < 0) return false;
  // Once per process and place; a forked child looks again, since its parent may have been killed.
  static std::atomic<pid_t> swept_by{0};
  if (swept_by.exchange(::getpid()) != ::getpid()) sweep(there);
  for (int tries = 0; tries < 100; ++tries) {
    const std::string name = random_name(kPrefix);
    if (name.empty() || ::mkdirat(there, name.c_str(), 0700) != 0) {
      if (errno == EEXIST) continue;
      why = std::string("cannot be written: ") + std::strerror(errno);
      return false;
    }
    Fd fd(::openat(there, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat s;
    // Between making and locking it another process may take it for a dead one's: then it is gone, and we try again.
    if (fd < 0 || ::flock(fd, LOCK_EX) != 0 || ::fchmod(fd, 0700) != 0 || ::fstat(fd, &s) != 0 || s.st_nlink == 0)
      continue;
    if (!is_ours(s)) {
      why = "changes what is made in it";
      return false;
    }
    name_ = name;
    path_ = base + "/" + name;
    fd_ = fd.release();
    base_ = there.release();
    return true;
  }
  why = "does not keep what is made in it";
  return false;
}

PrivateFolder::PrivateFolder() : owner_(::getpid()) {
  const std::vector<std::string> bases = temporary_folders();
  std::string first, why;
  for (const std::string& base : bases) {
    why.clear();
    if (make_in(base, why)) {
      if (first.find("others") != std::string::npos || first.find("belongs") != std::string::npos)
        notice("flashover: temporary files do not go to " + bases[0] + ", which " + first + ", but to " + base);
      return;
    }
    if (first.empty()) first = why;
  }
  throw PassingFailure("toolchain: no directory for temporary files: " + bases[0] + " " + first);
}

PrivateFolder::~PrivateFolder() {
  if (owner_ == ::getpid()) remove_folder(base_, name_, fd_);
  ::close(fd_);
  ::close(base_);
}

void PrivateFolder::write(const std::string& name, std::string_view text) const {
  Fd fd(::openat(fd_, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (fd < 0 || !write_all(fd, text) || ::close(fd.release()) != 0) fail("write", name);
}

void PrivateFolder::fail(const char* act, const std::string& name) const {
  const int error = errno;
  throw PassingFailure(std::string("toolchain: cannot ") + act + " " + path_ + "/" + name + ": " +
                       std::strerror(error));
}

std::string PrivateFolder::read(const std::string& name, size_t limit) const {
  // Not blocking: a fifo must not hold us.
  const Fd fd(::openat(fd_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (fd < 0 && errno != ENOENT && errno != ELOOP) fail("read", name);
  struct stat s;
  if (fd < 0 || ::fstat(fd, &s) != 0 || !S_ISREG(s.st_mode) || static_cast<uint64_t>(s.st_size) > limit) return {};
  std::string text(static_cast<size_t>(s.st_size), '\0');
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::read(fd, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read", name);
    if (n == 0) return {};
    at += static_cast<size_t>(n);
  }
  return text;
}

std::string write_new_file(const std::string& prefix, const std::string& suffix, std::string_view text) {
  for (const std::string& base : temporary_folders()) {
    std::string why;
    const Fd there(open_safely(base, FolderUse::kShared, why));
    if (there < 0) continue;
    const std::string name = random_name(prefix) + suffix;
    const Fd fd(::openat(there, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (fd < 0) continue;
    if (write_all(fd, text)) return base + "/" + name;
    ::unlinkat(there, name.c_str(), 0);
  }
  return {};
}

}  // namespace flashover
