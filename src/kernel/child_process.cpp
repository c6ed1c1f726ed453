// vfork by hand, since posix_spawn can set neither PR_SET_PDEATHSIG nor the owner of a lifeline.
#include "kernel/child_process.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/passing_failure.h"

namespace flashover::kernel {
namespace {

// The ends of lifelines that this process holds, so that forked children can let go of theirs: a lifeline is cut when
// the last holder is gone. Stored plus one; 0: free.
std::array<std::atomic<int>, 1024> lifelines;

void close_lifelines() {
  for (std::atomic<int>& slot : lifelines)
    if (const int fd = slot.exchange(0)) ::close(fd - 1);
}
bool remember_lifeline(int fd) {
  static const int registered = ::pthread_atfork(nullptr, nullptr, close_lifelines);
  if (registered != 0) return false;
  for (std::atomic<int>& slot : lifelines) {
    int free = 0;
    if (slot.compare_exchange_strong(free, fd + 1)) return true;
  }
  return false;
}
void cut_lifeline(int fd) {
  for (std::atomic<int>& slot : lifelines) {
    int held = fd + 1;
    if (slot.compare_exchange_strong(held, 0)) {
      ::close(fd);
      return;
    }
  }
}

struct Prepared {
  char* const* argv;
  char* const* environment;
  const CommandLine& launch;
  int nothing;   // /dev/null
  int lifeline;  // the end that the child keeps
  pid_t parent;
};

constexpr int kAbove = 32;  // descriptors are moved here first, out of the way of the numbers they get
constexpr int kLifelineFd = 3;

// When the last other end of this pipe is closed, the kernel sends SIGKILL to our group. No data ever comes.
void tie(int fd) {
  ::fcntl(fd, F_SETOWN, -::getpid());
  ::fcntl(fd, F_SETSIG, SIGKILL);
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_ASYNC);
}

// In the child, which shares our memory until exec: system calls only. Returns the error.
int become(const Prepared& p) {
  struct sigaction usual;
  std::memset(&usual, 0, sizeof usual);
  usual.sa_handler = SIG_DFL;
  for (int s = 1; s < NSIG; ++s) ::sigaction(s, &usual, nullptr);
  if (::setpgid(0, 0) != 0) return errno;
  if (p.launch.dies_with_thread) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto up = [](int fd, int instead) { return ::fcntl(fd >= 0 ? fd : instead, F_DUPFD_CLOEXEC, kAbove); };
  const int in = up(p.launch.in, p.nothing), out = up(p.launch.out, p.nothing), err = up(p.launch.err, p.nothing);
  const int lifeline = p.lifeline >= 0 ? up(p.lifeline, -1) : -1;
  if (p.launch.folder >= 0 && ::fchdir(p.launch.folder) != 0) return errno;
  if (::dup2(in, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(err, 2) < 0) return errno;
#ifdef SYS_close_range
  ::syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);  // what the program has open is not its business
#endif
  if (lifeline >= 0 && ::dup2(lifeline, kLifelineFd) >= 0) tie(kLifelineFd);
  if (::getppid() != p.parent) return ESRCH;  // a parent that died before now sent no signal
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  if (p.launch.largest_file > 0) {
    rlimit file;
    if (::getrlimit(RLIMIT_FSIZE, &file) == 0 && p.launch.largest_file < file.rlim_cur) {
      file.rlim_cur = p.launch.largest_file;
      ::setrlimit(RLIMIT_FSIZE, &file);
    }
  }
  sigset_t nothing;
  sigemptyset(&nothing);
  ::sigprocmask(SIG_SETMASK, &nothing, nullptr);
  ::execve(p.argv[0], p.argv, p.environment);
  return errno;
}

[[gnu::noinline]] pid_t start(const Prepared& p, volatile int& error) {
  const pid_t pid = ::vfork();
  if (pid == 0) {
    error = become(p);
    ::_exit(127);
  }
  if (pid < 0) error = errno;
  return pid;
}

// The leader's own children (cc1plus, as, ld) are not ours to wait for, but they write files until they are gone. A
// group may hold zombies for good where process 1 collects none: then the time is up.
void wait_for_group(pid_t group) {
  constexpr int kMostWaits = 200;
  constexpr timespec kMillisecond{0, 1'000'000};
  for (int i = 0; i < kMostWaits && ::kill(-group, 0) == 0; ++i) ::nanosleep(&kMillisecond, nullptr);
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

ChildProcess::ChildProcess(CommandLine launch) : owner_(::getpid()) {
  const std::vector<char*> argv = pointers(launch.argv), environment = pointers(launch.environment);
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) == 0) {
    lifeline_ = ends[1];
    if (!remember_lifeline(lifeline_)) ::close(std::exchange(lifeline_, -1));
  }
  // No handler of ours may run in the child, which has our memory.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  volatile int error = 0;
  pid_ = start({argv.data(), environment.data(), launch, nothing, lifeline_ >= 0 ? ends[0] : -1, owner_}, error);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (nothing >= 0) ::close(nothing);
  if (ends[0] >= 0) ::close(ends[0]);
  if (error == 0) return;
  if (pid_ > 0) {
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  if (lifeline_ >= 0) cut_lifeline(lifeline_);
  throw PassingFailure("toolchain: cannot start " + launch.argv[0] + ": " + std::strerror(error));
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      owner_(other.owner_),
      reaped_(other.reaped_),
      lifeline_(std::exchange(other.lifeline_, -1)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this == &other) return *this;
  kill();
  pid_ = std::exchange(other.pid_, -1);
  owner_ = other.owner_;
  reaped_ = other.reaped_;
  lifeline_ = std::exchange(other.lifeline_, -1);
  return *this;
}

bool ChildProcess::ended(int& status) {
  if (reaped_ || pid_ < 0) return true;
  const pid_t r = ::waitpid(pid_, &status, WNOHANG);
  if (r == 0 || (r < 0 && errno == EINTR)) return false;
  if (r < 0) status = -1;  // collected elsewhere (SIGCHLD is ignored)
  reaped_ = true;
  return true;
}

void ChildProcess::kill() {
  if (pid_ > 0 && owner_ == ::getpid()) {
    ::kill(-pid_, SIGKILL);
    while (!reaped_ && ::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    wait_for_group(pid_);
  }
  pid_ = -1;
  if (lifeline_ >= 0) cut_lifeline(std::exchange(lifeline_, -1));
}

}  // namespace flashover::kernel
