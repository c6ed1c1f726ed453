// The walk down a path that trusts no folder others could have exchanged.
#include "base/safe_path.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace flashover {
namespace {

// One step down the path. The last one is the cache itself; those above only have to keep strangers from exchanging
// what is below them.
std::string why_unsafe(const struct stat& s, bool last, FolderUse use) {
  if (!S_ISDIR(s.st_mode)) return "is not a directory";
  const bool ours = s.st_uid == ::geteuid();
  if (last && use == FolderUse::kShared) {
    if (!ours && s.st_uid != 0) return "belongs to another user";
    if ((s.st_mode & (S_IWGRP | S_IWOTH)) && !(s.st_mode & S_ISVTX))
      return "can be written by others and has no sticky bit (chmod go-w or +t it)";
    return {};
  }
  if (last) {
    if (!ours) return "belongs to another user";
    if (s.st_mode & (S_IWGRP | S_IWOTH)) return "can be written by others (chmod go-w it)";
    return {};
  }
  if (!ours && s.st_uid != 0) return "is in a directory of another user";
  if ((s.st_mode & S_IWOTH) && !(s.st_mode & S_ISVTX)) return "is in a directory that everybody can write";
  return {};
}

}  // namespace

int open_safely(const std::string& path, FolderUse use, std::string& why) {
  if (path.empty() || path[0] != '/') {
    why = "is not an absolute path";
    return -1;
  }
  // Links in the path are resolved first and the result is walked: what the walk accepts, strangers cannot exchange.
  // Missing ends are made.
  std::vector<std::string> missing;
  std::string existing = path;
  while (existing.size() > 1 && existing.back() == '/') existing.pop_back();
  struct stat s;
  if (::lstat(existing.c_str(), &s) == 0 && S_ISLNK(s.st_mode) && s.st_uid != ::geteuid() && s.st_uid != 0) {
    why = "is a link that belongs to another user";
    return -1;
  }
  std::string resolved;
  for (;;) {
    char* real = ::realpath(existing.c_str(), nullptr);
    if (real) {
      resolved = real;
      std::free(real);
      break;
    }
    if (errno != ENOENT || existing == "/" || existing.empty()) {
      why = std::string("cannot be opened: ") + std::strerror(errno);
      return -1;
    }
    if (::lstat(existing.c_str(), &s) == 0) {
      why = "is a link to nowhere";
      return -1;
    }
    const size_t slash = existing.rfind('/');
    const std::string name = existing.substr(slash + 1);
    if (name == "..") {
      why = "has '..' behind a missing directory";
      return -1;
    }
    if (!name.empty() && name != ".") missing.push_back(name);
    existing = slash == 0 ? "/" : existing.substr(0, slash);
  }
  if (use == FolderUse::kShared && !missing.empty()) {
    why = "does not exist";
    return -1;
  }
  std::vector<std::string> steps;
  for (size_t at = 1; at < resolved.size();) {
    const size_t end = std::min(resolved.find('/', at), resolved.size());
    steps.push_back(resolved.substr(at, end - at));
    at = end + 1;
  }
  const size_t present = steps.size();
  steps.insert(steps.end(), missing.rbegin(), missing.rend());

  Fd at(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (size_t i = 0; i <= steps.size(); ++i) {
    const bool last = i == steps.size();
    if (at < 0 || ::fstat(at, &s) != 0) {
      why = std::string("cannot be opened: ") + std::strerror(errno);
      return -1;
    }
    why = why_unsafe(s, last, use);
    if (!why.empty()) return -1;
    if (last) break;
    if (i >= present && ::mkdirat(at, steps[i].c_str(), 0700) != 0 && errno != EEXIST) {
      why = std::string("cannot be opened: ") + std::strerror(errno);
      return -1;
    }
    // O_PATH would do for directories that we may only pass through.
    int next = ::openat(at, steps[i].c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (next < 0 && errno == EACCES)
      next = ::openat(at, steps[i].c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    at.reset(next);
  }
  return at.release();
}

}  // namespace flashover
