// A program that runs for us and never outlives us.
//
//   In        a command line, an environment, descriptors for its standard streams, a folder to run in
//   Out       its process id and how it ended
//   Promises  it leads a process group of its own, and the whole group is killed with SIGKILL when this object goes,
//             when the thread that started it ends (`dies_with_thread`) or when this process dies in whatever way: a
//             pipe whose other end only this process holds makes the kernel send the signal
//   Declines  it cannot be started: PassingFailure
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace flashover::kernel {

struct CommandLine {
  std::vector<std::string> argv, environment;
  int folder = -1;                  // a descriptor; -1: where we are
  int in = -1, out = -1, err = -1;  // -1: nothing to read, output is dropped
  bool dies_with_thread = true;     // the thread that starts it waits for it
  size_t largest_file = 0;          // that it may write; 0: any
};

class ChildProcess {
 public:
  explicit ChildProcess(CommandLine launch);
  ~ChildProcess() { kill(); }
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;

  pid_t pid() const { return pid_; }
  // Whether the process has ended, and how; -1 where its status was collected elsewhere.
  bool ended(int& status);
  void kill();  // the whole group; waits until it is gone

 private:
  pid_t pid_ = -1, owner_ = -1;
  bool reaped_ = false;
  int lifeline_ = -1;
};

}  // namespace flashover::kernel
