// Whole files at once. A file that is written must be this user's own, and is never reached through a link.
#include "base/text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace flashover {

// Names of such files can be foreseen: no link is followed, and a file that is there already must be our user's, with
// no other name elsewhere. (Not blocking: it might be a pipe.)
std::string write_text_file(const std::string& path, std::string_view text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
  if (fd < 0) return std::strerror(errno);
  std::string failure;
  struct stat s;
  if (::fstat(fd, &s) != 0 || !S_ISREG(s.st_mode) || s.st_uid != ::geteuid() || s.st_nlink != 1)
    failure = "it is not a file of this user alone";
  else if (::ftruncate(fd, 0) != 0)
    failure = std::strerror(errno);
  while (failure.empty() && !text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n > 0)
      text.remove_prefix(static_cast<size_t>(n));
    else if (errno != EINTR)
      failure = std::strerror(errno);
  }
  if (::close(fd) != 0 && failure.empty()) failure = std::strerror(errno);
  return failure;
}

bool read_text_file(const std::string& path, std::string& text) {
  text.clear();
  std::FILE* f = std::fopen(path.c_str(), "rb");
  if (!f) return false;
  char block[1 << 16];
  size_t n;
  while ((n = std::fread(block, 1, sizeof block, f)) > 0) text.append(block, n);
  bool ok = !std::ferror(f);
  std::fclose(f);
  return ok;
}

}  // namespace flashover
