// Finds the compiler, runs it on sources in a folder of our own, and judges what comes back.
#include "kernel/toolchain.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <unordered_map>

#include "base/check.h"
#include "base/decimal.h"
#include "base/elf.h"
#include "base/hash.h"
#include "base/interrupt.h"
#include "base/passing_failure.h"
#include "base/private_folder.h"
#include "base/text.h"
#include "base/utf8.h"
#include "kernel/child_process.h"
#include "target/features.h"

extern char** environ;

namespace flashover::kernel {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLargestObject = size_t{512} << 20;  // that a compiler may write
constexpr size_t kLargestOutput = size_t{64} << 20;   // of messages: more is a compiler that never ends
constexpr size_t kKeptWords = 100000;                 // of them
constexpr const char* kTrivial = "int flashover_trivial;\n";

// One running compiler with its messages on a pipe.
struct Job {
  size_t source = 0;
  ChildProcess process;
  int fd = -1;  // its messages
  size_t output_bytes = 0;
  std::string messages;
  Clock::time_point started;
};

class Jobs {
 public:
  Jobs(const Compiler& compiler, std::vector<std::string> flags, const PrivateFolder& folder, size_t count)
      : compiler_(compiler), flags_(std::move(flags)), folder_(folder), failures_(count) {
    for (char** e = environ; *e; ++e)
      if (std::strncmp(*e, "TMPDIR=", 7) != 0 && std::strncmp(*e, "LC_ALL=", 7) != 0) environment_.push_back(*e);
    // The compiler runs in our folder and names no path: no other process can replace the folder meanwhile.
    environment_.push_back("TMPDIR=.");
    environment_.push_back("LC_ALL=C");
  }
  ~Jobs() {
    for (Job& j : running_)
      if (j.fd >= 0) ::close(j.fd);
  }
  Jobs(const Jobs&) = delete;
  size_t running() const { return running_.size(); }
  bool is_running(size_t source) const {
    return std::any_of(running_.begin(), running_.end(), [&](const Job& j) { return j.source == source; });
  }
  double longest() const {  // seconds that the oldest job has run
    double most = 0;
    for (const Job& j : running_)
      most = std::max(most, std::chrono::duration<double>(Clock::now() - j.started).count());
    return most;
  }
  const std::string& failure(size_t source) const { return failures_[source]; }

  void start(size_t source, std::string_view text) {
    folder_.write(file(source, ".cpp"), text);
    CommandLine launch;
    launch.argv = compiler_.argv;
    launch.argv.insert(launch.argv.end(), flags_.begin(), flags_.end());
    launch.argv.insert(launch.argv.end(), {"-o", file(source, ".so"), file(source, ".cpp")});
    launch.environment = environment_;
    launch.folder = folder_.fd();
    launch.largest_file = kLargestObject;
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw PassingFailure(std::string("toolchain: no pipe: ") + std::strerror(errno));
    launch.out = launch.err = ends[1];
    try {
      running_.push_back({source, ChildProcess(std::move(launch)), ends[0], 0, {}, Clock::now()});
    } catch (...) {
      ::close(ends[0]), ::close(ends[1]);
      throw;
    }
    ::close(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }

  // Waits a little and collects jobs that ended: those whose process did, even where a child of it keeps the pipe.
  void wait() {
    std::vector<pollfd> fds;
    bool closed = false;
    for (const Job& j : running_) {
      fds.push_back({j.fd, POLLIN, 0});
      closed |= j.fd < 0;
    }
    // A job whose pipe is closed is about to exit: look again soon.
    ::poll(fds.data(), fds.size(), closed ? 1 : 20);
    for (size_t i = 0; i < running_.size();) {
      Job& j = running_[i];
      drain(j);
      int status = 0;
      if (j.output_bytes > kLargestOutput) {
        failures_[j.source] = "the compiler writes without end";
      } else if (!j.process.ended(status)) {
        ++i;
        continue;
      } else if (status != -1 && !(WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
        drain(j);
        failures_[j.source] = WIFSIGNALED(status)
                                  ? "the compiler was ended by signal " + std::to_string(WTERMSIG(status))
                                  : "the compiler failed: " + valid_utf8(j.messages.substr(0, 2000));
      }  // -1: the output file tells
      if (j.fd >= 0) ::close(j.fd);
      running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
    }
  }

  static std::string file(size_t source, const char* suffix) { return "k" + std::to_string(source) + suffix; }

 private:
  static void drain(Job& j) {
    char buffer[1 << 14];
    for (int reads = 0; j.fd >= 0 && reads < 64; ++reads) {  // a fast writer must not hold us
      const ssize_t n = ::read(j.fd, buffer, sizeof buffer);
      if (n > 0) {
        j.output_bytes += static_cast<size_t>(n);
        if (j.messages.size() < kKeptWords) j.messages.append(buffer, static_cast<size_t>(n));
        continue;
      }
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      ::close(j.fd);
      j.fd = -1;
    }
  }

  const Compiler& compiler_;
  std::vector<std::string> flags_, environment_;
  const PrivateFolder& folder_;
  std::vector<std::string> failures_;
  std::vector<Job> running_;
};

// Compilers that did not finish in time: the program does not wait for them again.
class HungCompilers {
 public:
  static HungCompilers& of_process() {
    static HungCompilers all;
    return all;
  }
  static std::string message(const Compiler& c) {
    return "toolchain: the compiler did not finish in time (" + c.argv[0] + "); it is not asked again";
  }
  bool contains(const Compiler& c) {
    std::lock_guard lock(mutex_);
    return identities_.count(c.identity) != 0;
  }
  void add(const Compiler& c) {
    std::lock_guard lock(mutex_);
    identities_.insert(c.identity);
  }

 private:
  std::mutex mutex_;
  std::set<std::string> identities_;
};

}  // namespace

Target host_target() {
  if (target::has_feature("neon")) return {Isa::kNeon};
  if (target::has_feature("avx512")) return {Isa::kAvx512, target::has_feature("avx512_bf16")};
  return {target::has_feature("avx2") ? Isa::kAvx2 : Isa::kScalar};
}

std::string str(const Target& t) {
  constexpr const char* kLevels[] = {"scalar", "avx2", "avx512", "neon"};
  return std::string(target::kArchitecture) + " " + kLevels[static_cast<int>(t.isa)] + (t.bf16 ? " avx512_bf16" : "");
}

int usable_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1l, ::sysconf(_SC_NPROCESSORS_ONLN)));
}

Compiler find_compiler(const std::string& wish) {
  auto on_path = [](const std::string& name) -> std::string {
    if (name.find('/') != std::string::npos) return ::access(name.c_str(), X_OK) == 0 ? name : "";
    const char* path = std::getenv("PATH");
    for (const std::string& dir : split(path ? path : "/usr/bin:/bin", ':')) {
      std::string full = (dir.empty() ? "." : dir) + "/" + name;
      struct stat s;
      if (::stat(full.c_str(), &s) == 0 && S_ISREG(s.st_mode) && ::access(full.c_str(), X_OK) == 0) return full;
    }
    return "";
  };
  // It runs in another folder.
  auto absolute = [](const std::string& path) -> std::string {
    if (path.empty() || path[0] == '/') return path;
    char here[4096];
    return ::getcwd(here, sizeof here) ? std::string(here) + "/" + path : "";
  };
  Compiler c;
  const char* named = std::getenv("CXX");
  const std::string asked_by = wish.empty() ? "CXX" : "the option compiler";
  if (!wish.empty() || (named && *named)) {
    for (std::string& word : split(wish.empty() ? named : wish, ' '))
      if (!word.empty()) c.argv.push_back(std::move(word));
    if (c.argv.empty()) throw EnvironmentFailure("toolchain: " + asked_by + " is blank");
    // A compiler cache in front of the compiler only costs time here: sources are new by construction.
    if (c.argv.size() > 1 && (c.argv[0].ends_with("ccache") || c.argv[0].ends_with("sccache")))
      c.argv.erase(c.argv.begin());
    std::string full = on_path(c.argv[0]);
    full = absolute(full);
    if (full.empty())
      throw EnvironmentFailure("toolchain: " + asked_by + " names a program that is not there: " + c.argv[0]);
    c.argv[0] = full;
  } else {
    for (const char* name : {"g++", "clang++", "c++"}) {
      std::string full = on_path(name);
      if (full.empty()) continue;
      c.argv = {absolute(full)};
      break;
    }
    if (c.argv.empty()) throw EnvironmentFailure("toolchain: no C++ compiler (g++ or clang++) on PATH");
  }
  struct stat s {};
  ::stat(c.argv[0].c_str(), &s);
  char* resolved = ::realpath(c.argv[0].c_str(), nullptr);
  c.identity = resolved ? resolved : c.argv[0];
  std::free(resolved);
  for (size_t i = 1; i < c.argv.size(); ++i) c.identity += " " + c.argv[i];
  c.identity += " " + std::to_string(s.st_size) + " " + std::to_string(s.st_mtime);
  return c;
}

std::vector<std::string> compiler_flags(const Target& t) {
  // -O1: the vectors are written out, so -O2 gains nothing measurable and costs 30 % more time to compile.
  // Contraction is off so that a*b+c rounds as eager does; the library writes its multiply-adds out. No -ffast-math
  // member: NaN, inf and -0 keep their meaning. -nostdlib saves 24 ms of linking.
  // -fexpensive-optimizations: without it GCC does not clear the upper halves of vector registers before calls (of libm)
  // and returns, and SSE code waits for them at each instruction: hypotf took 130 ns instead of 5 on a Zen 4.
  std::vector<std::string> f = {"-std=c++20",
                                "-O1",
                                "-ffp-contract=off",
                                "-fexpensive-optimizations",
                                "-fno-math-errno",
                                "-fno-trapping-math",
                                "-fwrapv",
                                "-fno-strict-aliasing",
                                "-fno-exceptions",
                                "-fno-rtti",
                                "-fno-asynchronous-unwind-tables",
                                "-fno-stack-protector",
                                "-fPIC",
                                "-fvisibility=hidden",
                                "-w",
                                "-nostdlib",
                                "-shared"};
  // (NEON is part of aarch64: no flags.)
  if (t.isa == Isa::kAvx2 || t.isa == Isa::kAvx512) f.insert(f.end(), {"-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2"});
  if (t.isa == Isa::kAvx512)
    f.insert(f.end(),
             {"-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512cd", "-mprefer-vector-width=512"});
  if (t.bf16) f.push_back("-mavx512bf16");
  return f;
}

std::string keep_source(const std::string& text) {
  static auto* kept = new std::unordered_map<Hash128, std::string>;  // one file for one text, few in all
  static auto* mutex = new std::mutex;
  constexpr size_t kMost = 8;
  const std::lock_guard lock(*mutex);
  const Hash128 key = Hasher().text(text).finish();
  if (const auto found = kept->find(key); found != kept->end()) return found->second;
  if (kept->size() >= kMost) return "(not kept)";
  std::string path = write_new_file("flashover-failed-", ".cpp", text);
  return path.empty() ? "(not kept)" : kept->emplace(key, std::move(path)).first->second;
}

namespace {

// Builds all sources, a few at a time. A job that takes long is no proof against the compiler: a trivial program beside
// it tells whether the compiler works at all. Throws SlowKernel for a job that is late, EnvironmentFailure for a
// compiler that hangs.
void run_jobs(Jobs& jobs, std::span<const std::string> sources, const Compiler& compiler, const CompileOptions& o) {
  const size_t limit = static_cast<size_t>(o.jobs > 0 ? o.jobs : usable_cores()), trivial = sources.size();
  const double suspicious = std::min(10.0, o.timeout_seconds / 4), patience = std::min(15.0, o.timeout_seconds / 4);
  bool asked = false, hangs = false;
  Clock::time_point asked_at;
  {
    HostReleased host;
    for (size_t next = 0; next < sources.size() || jobs.running();) {
      if (next < sources.size() && jobs.running() < limit + asked) {
        jobs.start(next, sources[next]);
        ++next;
        continue;
      }
      jobs.wait();
      host.check();
      const double longest = jobs.longest();
      if (!asked && longest > suspicious) {
        asked = true;
        asked_at = Clock::now();
        jobs.start(trivial, kTrivial);
      }
      hangs = asked && jobs.is_running(trivial) && Clock::now() - asked_at > std::chrono::duration<double>(patience);
      if (hangs || longest > o.timeout_seconds) break;
    }
  }
  if (hangs) {
    HungCompilers::of_process().add(compiler);
    throw EnvironmentFailure(HungCompilers::message(compiler));
  }
  if (jobs.running()) {
    throw SlowKernel("toolchain: a kernel takes the compiler more than " + fixed_decimal(o.timeout_seconds, 0) +
                     " s (" + compiler.argv[0] + ")");
  }
}

}  // namespace

std::vector<std::string> try_compile_sources(std::span<const std::string> sources, const Target& t,
                                             const CompileOptions& o, std::vector<std::string>& failures) {
  failures.assign(sources.size(), "");
  if (sources.empty()) return {};
  const Compiler compiler = find_compiler(o.compiler);
  if (HungCompilers::of_process().contains(compiler)) throw EnvironmentFailure(HungCompilers::message(compiler));
  const PrivateFolder folder;
  Jobs jobs(compiler, compiler_flags(t), folder, sources.size() + 1);
  run_jobs(jobs, sources, compiler, o);
  std::vector<std::string> out;
  for (size_t i = 0; i < sources.size(); ++i) {
    failures[i] = jobs.failure(i);
    out.push_back(failures[i].empty() ? folder.read(Jobs::file(i, ".so"), kLargestObject) : "");
    if (failures[i].empty())
      if (const std::string why = why_not_shared_object(out.back()); !why.empty())
        failures[i] = compiler.argv[0] + " made no shared object" + (out.back().empty() ? "" : " (" + why + ")");
    if (!failures[i].empty()) out.back().clear();
  }
  return out;
}

std::vector<std::string> compile_sources(std::span<const std::string> sources, const Target& t,
                                         const CompileOptions& o) {
  std::vector<std::string> failures, out = try_compile_sources(sources, t, o, failures);
  for (size_t i = 0; i < sources.size(); ++i)
    if (!failures[i].empty())
      throw EnvironmentFailure("toolchain: " + failures[i] + " [source: " + keep_source(sources[i]) + "]");
  return out;
}

}  // namespace flashover::kernel
