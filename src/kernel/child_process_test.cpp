// Real processes: how they end, that their groups die with the object and with this process.
#include "kernel/child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <thread>

#include "base/check.h"

namespace flashover::kernel {
namespace {

// Whether the writing end of the pipe is closed: all processes of a group that got it as output are gone then.
bool closes(int end, int milliseconds) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(end, &set);
  timeval limit{milliseconds / 1000, milliseconds % 1000 * 1000};
  char c;
  return ::select(end + 1, &set, nullptr, nullptr, &limit) == 1 && ::read(end, &c, 1) == 0;
}

struct Pipe {
  int ends[2] = {-1, -1};
  Pipe() { EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0); }
  ~Pipe() {
    ::close(ends[0]);
    close_writer();
  }
  void close_writer() {
    if (ends[1] >= 0) ::close(ends[1]);
    ends[1] = -1;
  }
};

CommandLine shell(const std::string& text, int out) {
  CommandLine l;
  l.argv = {"/bin/sh", "-c", text};
  l.environment = {"PATH=/usr/bin:/bin"};
  l.out = out;
  return l;
}

int wait_for(ChildProcess& p) {
  int status = 0;
  while (!p.ended(status)) ::usleep(1000);
  return status;
}

TEST(ChildProcess, TellsHowItEnded) {
  ChildProcess three(shell("exit 3", -1)), killed(shell("kill -9 $$", -1));
  const int a = wait_for(three), b = wait_for(killed);
  EXPECT_TRUE(WIFEXITED(a) && WEXITSTATUS(a) == 3);
  EXPECT_TRUE(WIFSIGNALED(b) && WTERMSIG(b) == SIGKILL);
}

TEST(ChildProcess, WhatCannotBeStartedIsDeclined) {
  CommandLine l;
  l.argv = {"/nowhere/program"};
  EXPECT_THROW(ChildProcess{l}, EnvironmentFailure);
}

TEST(ChildProcess, ItsGroupGoesWithTheObject) {
  Pipe pipe;
  std::optional<ChildProcess> p(shell("sleep 300 & sleep 300", pipe.ends[1]));
  pipe.close_writer();
  EXPECT_FALSE(closes(pipe.ends[0], 100));
  p.reset();
  EXPECT_TRUE(closes(pipe.ends[0], 0));  // also what the leader started: no file of theirs comes any more
}

TEST(ChildProcess, ItsGroupGoesWithTheProcess) {
  for (const bool forks : {false, true}) {
    Pipe pipe;
    const pid_t pid = ::fork();
    if (pid == 0) {
      std::thread([&] {
        CommandLine l = shell("sleep 300 & sleep 300", pipe.ends[1]);
        l.dies_with_thread = false;
        ChildProcess p(l);
        if (forks && ::fork() == 0) {  // lives on, and must not hold the lifeline
          pipe.close_writer();
          ::sleep(3);
          ::_exit(0);
        }
        ::usleep(50000);
        ::kill(::getpid(), SIGKILL);
      }).join();
      ::_exit(1);
    }
    pipe.close_writer();
    ::waitpid(pid, nullptr, 0);
    EXPECT_TRUE(closes(pipe.ends[0], 2000)) << forks;
  }
}

TEST(ChildProcess, DiesWithItsThread) {
  Pipe pipe;
  std::optional<ChildProcess> p;
  std::thread([&] { p.emplace(shell("exec sleep 300", pipe.ends[1])); }).join();
  pipe.close_writer();
  EXPECT_TRUE(closes(pipe.ends[0], 2000));
}

TEST(ChildProcess, HandlersAndMasksAreNotInherited) {
  ::signal(SIGTERM, SIG_IGN);
  sigset_t term, before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &term, &before);
  ChildProcess p(shell("kill -TERM $$; exit 0", -1));
  const int status = wait_for(p);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  ::signal(SIGTERM, SIG_DFL);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace
}  // namespace flashover::kernel
