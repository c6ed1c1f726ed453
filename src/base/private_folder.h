// A folder of our own for temporary files, gone with this object.
//
//   In        $TMPDIR, /tmp, /var/tmp, /dev/shm: the first where nobody else could exchange our folder
//   Out       an open descriptor; files are made and read through it, never through a path
//   Promises  mode 0700 and our user's; a lock that the kernel releases says that it is in use: what processes that
//             were killed left behind is removed by the next one that makes such a folder; links are never followed
//   Declines  no place for it, a file that cannot be written or read: PassingFailure. A TMPDIR that is not safe is passed over, with a notice
#pragma once
#include <sys/types.h>

#include <string>
#include <string_view>

namespace flashover {

class PrivateFolder {
 public:
  PrivateFolder();
  ~PrivateFolder();
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  void write(const std::string& name, std::string_view text) const;  // a new file, 0600; throws PassingFailure
  // A regular file of at most so many bytes; empty if it is anything else. Throws PassingFailure.
  std::string read(const std::string& name, size_t limit) const;

 private:
  [[noreturn]] void fail(const char* act, const std::string& name) const;  // of errno
  bool make_in(const std::string& base, std::string& why);
  std::string path_, name_;
  int base_ = -1, fd_ = -1;
  pid_t owner_;  // a forked child leaves it alone
};

// A new file with a name that nobody could foresee, in the same places; its path, or "" where it could not be made.
std::string write_new_file(const std::string& prefix, const std::string& suffix, std::string_view text);

}  // namespace flashover
