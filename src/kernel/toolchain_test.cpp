// Compilers that fail, hang, make nothing or are not there; the real one, and what is left on disk.
#include "kernel/toolchain.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "base/check.h"
#include "base/elf.h"
#include "base/interrupt.h"
#include "kernel/kernel.h"
#include "kernel/load_for_test.h"
#include "target/features.h"

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

double seconds_of(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST_F(Toolchain, AChildThatKeepsThePipeHoldsNobody) {
  setenv("CXX", script("sleep 300 &\nexec g++ \"$@\"").c_str(), 1);
  EXPECT_LT(seconds_of([] { EXPECT_EQ(declined({"int x;"}), "compiled"); }), 20);
}

TEST_F(Toolchain, AnOutputThatIsAFifoIsNoObject) {
  setenv("CXX", script("while [ $# -gt 0 ]; do [ \"$1\" = -o ] && mkfifo \"$2\"; shift; done; exit 0").c_str(), 1);
  EXPECT_NE(declined({"int x;"}).find("made no shared object"), std::string::npos);
}

TEST_F(Toolchain, EndlessWordsAreCutShort) {
  setenv("CXX", script("exec yes 'error: something'").c_str(), 1);
  EXPECT_LT(seconds_of([] { EXPECT_NE(declined({"int x;"}).find("without end"), std::string::npos); }), 20);
}

// One source takes for ever; the compiler is not to blame.
TEST_F(Toolchain, ASlowKernelSaysNothingAboutTheCompiler) {
  setenv("CXX", script("for a; do s=$a; done\ngrep -q slow \"$s\" && exec sleep 300\nexec g++ \"$@\"").c_str(), 1);
  CompileOptions o;
  o.timeout_seconds = 4;
  EXPECT_THROW(compile_sources(std::vector<std::string>{"int slow;"}, host_target(), o), SlowKernel);
  EXPECT_EQ(declined({"int x;"}, o), "compiled");
  EXPECT_EQ(litter(), 0u);
}

TEST_F(Toolchain, AnInterruptKillsTheCompilers) {
  fs::path pid = dir_ / "pid";
  setenv("CXX", script("sleep 300 & echo $! > " + pid.string() + "\nwait").c_str(), 1);
  static int polls = 0;
  host_hooks = {[]() -> void* { return nullptr; }, [](void*) {}, [] { return ++polls > 5; }};
  EXPECT_LT(seconds_of([] {
              EXPECT_THROW(compile_sources(std::vector<std::string>{"int x;", "int y;"}, host_target()), Interrupted);
            }),
            5);
  host_hooks = {};
  EXPECT_EQ(litter(), 0u);
}

// Every cut of an object is seen; the whole one is taken.
TEST_F(Toolchain, CutObjectsAreSeen) {
  const std::string source =
      "extern \"C\" __attribute__((visibility(\"default\"))) int f(int i) { static int t[999]; return t[i]; }";
  const std::string object = compile_sources(std::vector<std::string>{source}, host_target())[0];
  EXPECT_EQ(why_not_shared_object(object), "");
  for (size_t size = 0; size < object.size(); size += 512)
    EXPECT_NE(why_not_shared_object(std::string_view(object).substr(0, size)), "") << size << " of " << object.size();
  EXPECT_NE(why_not_shared_object(std::string_view(object).substr(0, object.size() - 1)), "");
  std::string holes = object;
  std::fill(holes.begin() + 64, holes.end(), '\0');
  EXPECT_NE(why_not_shared_object(holes), "");
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

// (libm's functions, and torch's, are SSE code.)
TEST_F(Toolchain, UpperHalvesOfVectorsAreClearedBeforeACallAndTheReturn) {
#if defined(__x86_64__)
  const std::string source(R"(
typedef float V __attribute__((vector_size(32)));
extern "C" float tanf(float);
extern "C" __attribute__((visibility("default"))) void f(float* p) {
  V x = *(V*)p * 2;
  for (int i = 0; i < 8; ++i) x[i] = tanf(x[i]);
  *(V*)p = x;
})");
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    Target target = host_target();
    target.isa = isa;
    target.bf16 = false;
    const std::string object = compile_sources(std::vector{source}, target).front();
    size_t cleared = 0;
    for (size_t at = 0; (at = object.find("\xC5\xF8\x77", at)) != std::string::npos; ++at) ++cleared;  // vzeroupper
    EXPECT_GE(cleared, 2u);
  }
#endif
}

TEST_F(Toolchain, TargetSaysWhatTheMachineHas) {
  setenv("FLASHOVER_ISA", "scalar", 1);
  EXPECT_EQ(str(host_target()), std::string(target::kArchitecture) + " scalar");
#if defined(__x86_64__)
  setenv("FLASHOVER_ISA", "avx2", 1);
  EXPECT_LE(host_target().isa, Isa::kAvx2);
#endif
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
