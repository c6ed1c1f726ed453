#include "kernel/toolchain.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/check.h"
#include "base/hash.h"
#include "base/isa_limit.h"
#include "base/text.h"
#include "base/utf8.h"

extern char** environ;

namespace flashover::kernel {
namespace {

using Clock = std::chrono::steady_clock;

Target detect() {
  Target t;
#if defined(__x86_64__)
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return t;
  const bool osxsave = c & bit_OSXSAVE, fma = c & bit_FMA, f16c = c & bit_F16C, avx = c & bit_AVX;
  if (!osxsave || !fma || !f16c || !avx) return t;
  unsigned lo, hi;
  __asm__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  if ((lo & 6) != 6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return t;
  if (!(b & bit_AVX2) || !(b & bit_BMI) || !(b & bit_BMI2)) return t;
  constexpr unsigned need = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL | bit_AVX512CD;
  t.isa = (lo & 0xe6) == 0xe6 && (b & need) == need ? Isa::kAvx512 : Isa::kAvx2;
  if (t.isa == Isa::kAvx512 && a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) t.bf16 = a & (1u << 5);
#endif
  return t;
}

std::string error_text(int code) { return std::strerror(code); }

// Where temporary files may go, best first.
std::vector<std::string> temporary_folders() {
  const char* wish = std::getenv("TMPDIR");
  std::vector<std::string> out{"/tmp", "/var/tmp", "/dev/shm"};
  if (wish && *wish) out.insert(out.begin(), wish);
  return out;
}

// A private directory that disappears with everything in it.
class TempDir {
 public:
  TempDir() {
    const std::vector<std::string> bases = temporary_folders();
    int first = 0;
    for (const std::string& base : bases) {
      path_ = base + "/flashover-XXXXXX";
      if (::mkdtemp(path_.data())) return;
      if (first == 0) first = errno;
    }
    throw EnvironmentFailure("toolchain: no directory for temporary files (" + bases[0] + "): " + error_text(first));
  }
  ~TempDir() {
    // By hand: libtorch exports an own copy of parts of std::filesystem, and calls into it crash. We make no folders in
    // here.
    if (DIR* dir = ::opendir(path_.c_str())) {
      while (const dirent* entry = ::readdir(dir)) ::unlinkat(::dirfd(dir), entry->d_name, 0);
      ::closedir(dir);
    }
    ::rmdir(path_.c_str());
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void write_file(const std::string& path, std::string_view text) {
  int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) throw EnvironmentFailure("toolchain: cannot write " + path + ": " + error_text(errno));
  while (!text.empty()) {
    ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      int code = errno;
      ::close(fd);
      throw EnvironmentFailure("toolchain: cannot write " + path + ": " + error_text(code));
    }
    text.remove_prefix(static_cast<size_t>(n));
  }
  if (::close(fd) != 0) throw EnvironmentFailure("toolchain: cannot write " + path + ": " + error_text(errno));
}

std::string read_file(const std::string& path) {
  std::string text;
  read_text_file(path, text);
  return text;
}

bool is_elf(const std::string& bytes) {
  return bytes.size() > 64 && bytes.compare(0, 4,
                                            "\x7f"
                                            "ELF") == 0;
}

// One running compiler with its messages on a pipe. The child leads its own process group.
struct Job {
  size_t source = 0;
  pid_t pid = -1;
  int fd = -1;
  std::string messages;
  Clock::time_point deadline;
};

class Jobs {
 public:
  Jobs(const Compiler& compiler, std::vector<std::string> flags, const std::string& dir, size_t count)
      : compiler_(compiler), flags_(std::move(flags)), dir_(dir), failures_(count) {
    for (char** e = environ; *e; ++e)
      if (std::strncmp(*e, "TMPDIR=", 7) != 0 && std::strncmp(*e, "LC_ALL=", 7) != 0) environment_.push_back(*e);
    environment_.push_back("TMPDIR=" + dir);  // the compiler's own temporary files go where ours go
    environment_.push_back("LC_ALL=C");
  }
  ~Jobs() {
    for (Job& j : running_) stop(j);
  }
  size_t running() const { return running_.size(); }
  const std::string& failure(size_t source) const { return failures_[source]; }
  bool all_late() const { return late_ == failures_.size(); }

  void start(size_t source, double timeout) {
    std::vector<std::string> args = compiler_.argv;
    args.insert(args.end(), flags_.begin(), flags_.end());
    args.insert(args.end(), {"-o", file(source, ".so"), file(source, ".cpp")});
    std::vector<char*> argv = pointers(args), env = pointers(environment_);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw EnvironmentFailure("toolchain: no pipe: " + error_text(errno));
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, ends[1], 1);
    posix_spawn_file_actions_adddup2(&files, ends[1], 2);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&attributes, 0);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    Job job;
    job.source = source;
    int code = ::posix_spawn(&job.pid, argv[0], &files, &attributes, argv.data(), env.data());
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    ::close(ends[1]);
    if (code != 0) {
      ::close(ends[0]);
      throw EnvironmentFailure("toolchain: cannot start " + compiler_.argv[0] + ": " + error_text(code));
    }
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    job.fd = ends[0];
    job.deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout));
    running_.push_back(std::move(job));
  }

  // Waits for something to happen and collects finished jobs. A job is finished when its process is; output is read
  // until then so that a full pipe never blocks it.
  void wait() {
    std::vector<pollfd> fds;
    auto next = Clock::time_point::max();
    bool closed = false;
    for (const Job& j : running_) {
      fds.push_back({j.fd, POLLIN, 0});
      next = std::min(next, j.deadline);
      closed |= j.fd < 0;
    }
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now()).count() + 1;
    // A job whose pipe is closed is about to exit: look again soon.
    ::poll(fds.data(), fds.size(), static_cast<int>(std::clamp<int64_t>(left, 0, closed ? 1 : 1000)));
    for (size_t i = 0; i < running_.size();) {
      Job& j = running_[i];
      drain(j);
      int status = 0;
      pid_t r = j.fd < 0 ? ::waitpid(j.pid, &status, WNOHANG) : 0;
      if (r == 0 && Clock::now() >= j.deadline) {
        stop(j);
        ++late_;
        failures_[j.source] = "the compiler did not finish in time (" + compiler_.argv[0] + ")";
      } else if (r == 0 || (r < 0 && errno == EINTR)) {
        ++i;
        continue;
      } else if (r > 0 && !(WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
        failures_[j.source] = WIFSIGNALED(status)
                                  ? "the compiler was ended by signal " + std::to_string(WTERMSIG(status))
                                  : "the compiler failed: " + valid_utf8(j.messages.substr(0, 2000));
      }  // r < 0: somebody else collected the child (SIGCHLD ignored); the output file tells
      if (j.fd >= 0) ::close(j.fd);
      running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
    }
  }

  std::string file(size_t source, const char* suffix) const { return dir_ + "/k" + std::to_string(source) + suffix; }

 private:
  static std::vector<char*> pointers(std::vector<std::string>& strings) {
    std::vector<char*> out;
    out.reserve(strings.size() + 1);
    for (std::string& s : strings) out.push_back(s.data());
    out.push_back(nullptr);
    return out;
  }
  void drain(Job& j) {
    char buffer[4096];
    while (j.fd >= 0) {
      ssize_t n = ::read(j.fd, buffer, sizeof buffer);
      if (n > 0) {
        if (j.messages.size() < 100000) j.messages.append(buffer, static_cast<size_t>(n));
        continue;
      }
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      ::close(j.fd);
      j.fd = -1;
    }
  }
  static void stop(Job& j) {
    ::kill(-j.pid, SIGKILL);
    ::kill(j.pid, SIGKILL);
    int status;
    while (::waitpid(j.pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (j.fd >= 0) ::close(j.fd);
    j.fd = -1;
  }

  const Compiler& compiler_;
  std::vector<std::string> flags_, environment_;
  std::string dir_;
  std::vector<std::string> failures_;
  size_t late_ = 0;
  std::vector<Job> running_;
};

// Compilers of which nothing came back in time: the program does not wait for them again.
class HungCompilers {
 public:
  static HungCompilers& known() {
    static HungCompilers all;
    return all;
  }
  static std::string words(const Compiler& c) {
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
  static const Target there = detect();
  switch (isa_limit()) {
    case IsaLimit::kScalar:
      return {};
    case IsaLimit::kAvx2:
      return {std::min(there.isa, Isa::kAvx2)};
    case IsaLimit::kAvx512:
      return {there.isa};
    case IsaLimit::kNone:
      break;
  }
  return there;
}

std::string str(const Target& t) {
  return std::string("x86-64 ") +
         (t.isa == Isa::kAvx512 ? "avx512"
          : t.isa == Isa::kAvx2 ? "avx2"
                                : "scalar") +
         (t.bf16 ? " avx512_bf16" : "");
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
  Compiler c;
  const char* named = std::getenv("CXX");
  const std::string who = wish.empty() ? "CXX" : "the option compiler";
  if (!wish.empty() || (named && *named)) {
    for (std::string& word : split(wish.empty() ? named : wish, ' '))
      if (!word.empty()) c.argv.push_back(std::move(word));
    if (c.argv.empty()) throw EnvironmentFailure("toolchain: " + who + " is blank");
    // A compiler cache in front of the compiler only costs time here: sources are new by construction.
    if (c.argv.size() > 1 && (c.argv[0].ends_with("ccache") || c.argv[0].ends_with("sccache")))
      c.argv.erase(c.argv.begin());
    std::string full = on_path(c.argv[0]);
    if (full.empty())
      throw EnvironmentFailure("toolchain: " + who + " names a program that is not there: " + c.argv[0]);
    c.argv[0] = full;
  } else {
    for (const char* name : {"g++", "clang++", "c++"}) {
      std::string full = on_path(name);
      if (full.empty()) continue;
      c.argv = {full};
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
  std::vector<std::string> f = {"-std=c++20",
                                "-O1",
                                "-ffp-contract=off",
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
  if (t.isa >= Isa::kAvx2) f.insert(f.end(), {"-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2"});
  if (t.isa == Isa::kAvx512)
    f.insert(f.end(),
             {"-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512cd", "-mprefer-vector-width=512"});
  if (t.bf16) f.push_back("-mavx512bf16");
  return f;
}

std::string keep_source(const std::string& text) {
  for (const std::string& base : temporary_folders()) {
    std::string path = base + "/flashover-failed-" + Hasher().text(text).finish().hex() + ".cpp";
    try {
      write_file(path, text);
      return path;
    } catch (const Declined&) {
      continue;
    }
  }
  return "(not kept)";
}

std::vector<std::string> try_compile_sources(std::span<const std::string> sources, const Target& t,
                                             const CompileOptions& o, std::vector<std::string>& failures) {
  failures.assign(sources.size(), "");
  if (sources.empty()) return {};
  const Compiler compiler = find_compiler(o.compiler);
  HungCompilers& hung = HungCompilers::known();
  if (hung.contains(compiler)) throw EnvironmentFailure(HungCompilers::words(compiler));
  TempDir dir;
  Jobs jobs(compiler, compiler_flags(t), dir.path(), sources.size());
  const size_t limit = static_cast<size_t>(o.jobs > 0 ? o.jobs : usable_cores());
  for (size_t next = 0; next < sources.size() || jobs.running();) {
    if (next < sources.size() && jobs.running() < limit) {
      write_file(jobs.file(next, ".cpp"), sources[next]);
      jobs.start(next++, o.timeout_seconds);
    } else {
      jobs.wait();
    }
  }
  if (jobs.all_late()) {
    hung.add(compiler);
    throw EnvironmentFailure(HungCompilers::words(compiler));
  }
  std::vector<std::string> out;
  for (size_t i = 0; i < sources.size(); ++i) {
    failures[i] = jobs.failure(i);
    out.push_back(failures[i].empty() ? read_file(jobs.file(i, ".so")) : "");
    if (failures[i].empty() && !is_elf(out.back())) failures[i] = compiler.argv[0] + " made no shared object";
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
