// Temporary folders under attack: links, folders that others can write, what dead processes left, forked children.
#include "base/private_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "base/notice.h"
#include "base/passing_failure.h"

namespace flashover {
namespace {

namespace fs = std::filesystem;

class Folders : public ::testing::Test {
 protected:
  void SetUp() override {
    here_ = fs::temp_directory_path() / ("private_folder_test_" + std::to_string(::getpid()));
    fs::create_directories(here_);
    setenv("TMPDIR", here_.c_str(), 1);
    take_notices();
  }
  void TearDown() override {
    unsetenv("TMPDIR");
    fs::remove_all(here_);
  }
  long entries() const { return std::distance(fs::directory_iterator(here_), fs::directory_iterator()); }
  fs::path here_;
};

TEST_F(Folders, HoldsFilesAndGoesWithThem) {
  {
    PrivateFolder folder;
    folder.write("a", "text");
    EXPECT_EQ(folder.read("a", 100), "text");
    EXPECT_EQ(folder.read("a", 3), "");
    EXPECT_THROW(folder.write("a", "again"), PassingFailure);
    fs::create_directories(fs::path(folder.path()) / "inner/most");
    EXPECT_EQ(entries(), 1);
  }
  EXPECT_EQ(entries(), 0);
}

TEST_F(Folders, ReadsRegularFilesOnly) {
  PrivateFolder folder;
  ASSERT_EQ(::mkfifo((folder.path() + "/fifo").c_str(), 0600), 0);
  fs::create_symlink("/etc/passwd", folder.path() + "/link");
  EXPECT_EQ(folder.read("fifo", 100), "");
  EXPECT_EQ(folder.read("link", 1 << 20), "");
  EXPECT_EQ(folder.read("nothing", 100), "");
}

TEST_F(Folders, AFolderThatOthersCanWriteIsPassedOver) {
  for (const auto mode : {0777, 0770}) {
    ::chmod(here_.c_str(), static_cast<mode_t>(mode));
    PrivateFolder folder;
    EXPECT_EQ(folder.path().find(here_.string()), std::string::npos) << folder.path();
    EXPECT_EQ(take_notices().size(), 1u);
  }
  ::chmod(here_.c_str(), 01777);
  PrivateFolder folder;
  EXPECT_EQ(folder.path().find(here_.string()), 0u) << folder.path();
  EXPECT_TRUE(take_notices().empty());
}

TEST_F(Folders, WhatDeadProcessesLeftIsSweptAndNothingElse) {
  const auto child = [&](bool dies) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      PrivateFolder folder;
      folder.write("k0.cpp", "x");
      EXPECT_EQ(::write(ready[1], "x", 1), 1);
      if (dies) ::raise(SIGKILL);
      ::pause();
    }
    char c;
    EXPECT_EQ(::read(ready[0], &c, 1), 1);
    ::close(ready[0]), ::close(ready[1]);
    return pid;
  };
  const pid_t alive = child(false), dead = child(true);
  ::waitpid(dead, nullptr, 0);
  fs::create_directory(here_ / "flashover-build-with-another-mode");
  fs::permissions(here_ / "flashover-build-with-another-mode", fs::perms::owner_all | fs::perms::group_read);
  fs::create_directory_symlink("/etc", here_ / "flashover-build-link");
  std::ofstream(here_ / "flashover-build-file") << "x";
  EXPECT_EQ(entries(), 5);
  const pid_t sweeper = ::fork();
  if (sweeper == 0) {
    { PrivateFolder folder; }
    ::_exit(0);
  }
  ::waitpid(sweeper, nullptr, 0);
  EXPECT_EQ(entries(), 4);
  EXPECT_TRUE(fs::exists("/etc/passwd"));
  ::kill(alive, SIGKILL);
  ::waitpid(alive, nullptr, 0);
}

TEST_F(Folders, AForkedChildLeavesItAlone) {
  auto folder = std::make_unique<PrivateFolder>();
  const pid_t pid = ::fork();
  if (pid == 0) {
    folder.reset();
    ::_exit(0);
  }
  ::waitpid(pid, nullptr, 0);
  EXPECT_EQ(entries(), 1);
}

TEST_F(Folders, NewFilesHaveNamesThatNobodyForesees) {
  const std::string a = write_new_file("kept-", ".cpp", "1"), b = write_new_file("kept-", ".cpp", "1");
  EXPECT_NE(a, b);
  EXPECT_TRUE(a.starts_with(here_.string())) << a;
  EXPECT_TRUE(b.ends_with(".cpp"));
}

TEST(Notice, CausesAreTheSameWhateverNamesWereDrawn) {
  EXPECT_EQ(cause_of("cannot write /tmp/ccAb12Xy.s: k0.cpp:17:3"),
            cause_of("cannot write /tmp/ccZZZZZZ.s: k12.cpp:8:33"));
  EXPECT_EQ(cause_of("[/x/flashover-failed-abc.cpp]"), cause_of("[/x/flashover-failed-def.cpp]"));
  EXPECT_NE(cause_of("no compiler"), cause_of("no room"));
  EXPECT_NE(cause_of("CXX names /a/one"), cause_of("CXX names /a/two"));
}

}  // namespace
}  // namespace flashover
