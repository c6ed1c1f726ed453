// Folders opened so that other users of the machine cannot put theirs in the place of ours.
#pragma once
#include <string>
#include <utility>

#include <unistd.h>

namespace flashover {

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  operator int() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_;
};

// What a folder must be: kOurs: our user's, written by nobody else (it holds code that we run). kShared: one where our
// user may make folders and nobody else can exchange them (as /tmp: the sticky bit).
enum class FolderUse { kOurs, kShared };

// Opens the folder, looking at every step of the way without following links; kOurs makes what is missing. Returns -1
// and the reason, as the end of the sentence "the folder X ...".
int open_safely(const std::string& path, FolderUse use, std::string& why);

}  // namespace flashover
