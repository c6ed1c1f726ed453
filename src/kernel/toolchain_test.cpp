#include "kernel/toolchain.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "kernel/kernel.h"
#include "kernel/load_for_test.h"

namespace flashover::kernel {
namespace {

namespace fs = std::filesystem;

class Toolchain : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(::testing::TempDir()) / ("toolchain_test_" + std::to_string(::getpid()));
    fs::create_directories(dir_);
    setenv("TMPDIR", dir_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("CXX");
    unsetenv("TMPDIR");
    fs::remove_all(dir_);
  }
  std::string script(const std::string& text) {
    fs::path p = dir_ / "fake c++";  // a space: never a shell
    std::ofstream(p) << "#!/bin/sh\n" << text << "\n";
    fs::permissions(p, fs::perms::owner_all);
    fs::path link = dir_ / "fakecxx";
    fs::remove(link);
    fs::create_symlink(p, link);
    return link;
  }
  static std::string declined(const std::vector<std::string>& sources, CompileOptions o = {}) {
    try {
      compile_sources(sources, host_target(), o);
    } catch (const Declined& d) {
      return d.reason;
    }
    return "compiled";
  }
  // What is left in the temporary directory but our own script.
  size_t litter() const {
    size_t n = 0;
    for (const auto& e : fs::directory_iterator(dir_))
      n += e.path().filename().string().starts_with("flashover-") &&
           !e.path().filename().string().starts_with("flashover-failed");
    return n;
  }
  fs::path dir_;
};

TEST_F(Toolchain, CompilesInOrderAndLeavesNothing) {
  std::vector<std::string> sources;
  for (int i = 0; i < 5; ++i)
    sources.push_back("extern \"C\" __attribute__((visibility(\"default\"))) int f() { return " + std::to_string(i) +
                      "; }");
  std::vector<std::string> objects = compile_sources(sources, host_target());
  std::vector<Loaded> libs;
  for (const std::string& o : objects) libs.emplace_back(o);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(libs[static_cast<size_t>(i)].symbol<int()>("f")(), i);
  EXPECT_EQ(litter(), 0u);
}

TEST_F(Toolchain, CompileErrorsNameTheMessageAndKeepTheSource) {
  std::string reason = declined({"int x = 1;", "int broken("});
  EXPECT_NE(reason.find("expected"), std::string::npos) << reason;
  size_t at = reason.find("[source: ");
  ASSERT_NE(at, std::string::npos) << reason;
  std::string path = reason.substr(at + 9, reason.size() - at - 10);
  EXPECT_TRUE(fs::exists(path)) << path;
  EXPECT_EQ(litter(), 0u);
}

TEST_F(Toolchain, MissingCompilerIsDeclined) {
  setenv("CXX", "/nowhere/c++", 1);
  EXPECT_NE(declined({"int x;"}).find("not there: /nowhere/c++"), std::string::npos);
}

TEST_F(Toolchain, CompilerThatMakesNothingIsDeclined) {
  setenv("CXX", script("exit 0").c_str(), 1);
  EXPECT_NE(declined({"int x;"}).find("made no shared object"), std::string::npos);
}

TEST_F(Toolchain, CompilerThatCannotRunIsDeclined) {
  std::string path = script("exit 0");
  std::ofstream(dir_ / "fake c++", std::ios::trunc) << "not a program";
  setenv("CXX", path.c_str(), 1);
  EXPECT_NE(declined({"int x;"}), "compiled");
}

TEST_F(Toolchain, HangingCompilerAndItsChildrenAreKilled) {
  fs::path pid = dir_ / "pid";
  setenv("CXX", script("sleep 300 & echo $! > " + pid.string() + "\nwait").c_str(), 1);
  CompileOptions o;
  o.timeout_seconds = 0.5;
  auto start = std::chrono::steady_clock::now();
  EXPECT_NE(declined({"int x;", "int y;"}, o).find("did not finish"), std::string::npos);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 20);
  start = std::chrono::steady_clock::now();
  o.timeout_seconds = 60;
  EXPECT_NE(declined({"int z;"}, o).find("not asked again"), std::string::npos);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 20);
  int child = 0;
  std::ifstream(pid) >> child;
  ASSERT_GT(child, 0);
  bool gone = false;
  for (int i = 0; i < 200 && !gone; ++i) {  // it belongs to init now; wait until it is reaped or a zombie
    std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
    std::string a, b, state;
    gone = !(stat >> a >> b >> state) || state == "Z";
    if (!gone) ::usleep(10000);
  }
  EXPECT_TRUE(gone);
  EXPECT_EQ(litter(), 0u);
}

TEST_F(Toolchain, ChattyCompilerDoesNotBlock) {
  setenv("CXX",
         script("i=0; while [ $i -lt 3000 ]; do echo 'warning: a long line of words to fill the pipe with until it is "
                "full'; i=$((i+1)); done; exit 3")
             .c_str(),
         1);
  EXPECT_NE(declined({"int x;"}).find("a long line"), std::string::npos);
}

TEST_F(Toolchain, MissingTemporaryFolderIsReplaced) {
  setenv("TMPDIR", "/nowhere/at/all", 1);
  EXPECT_EQ(declined({"int x;"}), "compiled");
}

TEST_F(Toolchain, TargetSaysWhatTheMachineHas) {
  setenv("FLASHOVER_ISA", "scalar", 1);
  EXPECT_EQ(str(host_target()), "x86-64 scalar");
  setenv("FLASHOVER_ISA", "avx2", 1);
  EXPECT_LE(host_target().isa, Isa::kAvx2);
  setenv("FLASHOVER_ISA", "avx512", 1);
  EXPECT_FALSE(host_target().bf16);
  setenv("FLASHOVER_ISA", "avx1024", 1);
  EXPECT_THROW(host_target(), UserError);
  unsetenv("FLASHOVER_ISA");
#if defined(__x86_64__)
  EXPECT_EQ(host_target().isa == Isa::kAvx512,
            __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
#endif
}

}  // namespace
}  // namespace flashover::kernel
