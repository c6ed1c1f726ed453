// The process that compiles Triton kernels, and the talk with it over two pipes.
#include "kernel/triton/toolchain.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>

#include "base/check.h"
#include "base/decimal.h"
#include "base/interrupt.h"
#include "base/passing_failure.h"
#include "base/private_folder.h"
#include "base/quote.h"
#include "kernel/child_process.h"

extern char** environ;

namespace flashover::kernel::triton {
namespace {

constexpr int kSilence = 60'000;  // milliseconds without a word from the server that has work

std::string json_string(std::string_view s) {
  return in_quotes(s, [](unsigned char c) { return c < 0x20 ? "\\u" + hexadecimal(c, 4) : ""; });
}
std::string request(const TritonSource& s, const Gpu& gpu, uint32_t id) {
  std::string json = "{\"id\": " + std::to_string(id) + ", \"name\": " + json_string(s.name) +
                     ", \"text\": " + json_string(s.text) + ", \"signature\": [";
  for (size_t i = 0; i < s.signature.size(); ++i) json += (i ? ", " : "") + json_string(s.signature[i]);
  json += "], \"warps\": " + std::to_string(s.warps) + ", \"stages\": " + std::to_string(s.stages) +
          ", \"asserts\": " + (s.asserts ? "true" : "false") + ", \"contracts\": " + (s.contracts ? "true" : "false") +
          ", \"arch\": " + std::to_string(gpu.arch) + "}";
  const auto size = static_cast<uint32_t>(json.size());
  std::string out(4, '\0');
  std::memcpy(out.data(), &size, 4);
  return out + json;
}

struct Header {
  uint32_t id, status, shared, scratch, warps, size;
};

class Server {
 public:
  // One batch at a time: the workers are busy with it anyway.
  std::vector<Cubin> build(std::span<const TritonSource> sources, const Gpu& gpu) {
    std::vector<Cubin> out(sources.size());
    std::string asks;
    for (size_t i = 0; i < sources.size(); ++i) asks += request(sources[i], gpu, static_cast<uint32_t>(i));
    HostReleased host;
    std::unique_lock lock(mutex_, std::defer_lock);
    while (!lock.try_lock_for(std::chrono::milliseconds(20))) host.check();
    start();
    try {
      exchange(asks, out, host);
    } catch (...) {  // the rest of its answers would be taken for those to the next batch
      stop();
      throw;
    }
    return out;
  }
  int32_t pid() const { return pid_; }
  // The parent's server is not the child's, and the thread that may have held the mutex is not there.
  void after_fork() {
    new (&mutex_) std::timed_mutex;
    stop();
  }

 private:
  void start() {
    int status = 0;
    if (process_ && !process_->ended(status)) return;
    stop();
    const Command& c = command();
    if (c.python.empty()) throw EnvironmentFailure("Triton's compiler is not set up");
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0)
      throw PassingFailure(std::string("no pipe for Triton's compiler: ") + std::strerror(errno));
    if (pipe2(out, O_CLOEXEC) != 0) {
      close(in[0]), close(in[1]);
      throw PassingFailure(std::string("no pipe for Triton's compiler: ") + std::strerror(errno));
    }
    to_ = in[1], from_ = out[0];
    try {
      folder_ = std::make_unique<PrivateFolder>();  // ptxas takes and leaves files by name
      CommandLine launch{.argv = {c.python, c.script}, .in = in[0], .out = out[1]};
      if (fcntl(2, F_GETFD) >= 0) launch.err = 2;
      // Threads come and go, and the server outlives the one that started it.
      launch.dies_with_thread = false;
      for (char** e = environ; *e; ++e)
        if (std::strncmp(*e, "TMPDIR=", 7) != 0) launch.environment.push_back(*e);
      launch.environment.push_back("TMPDIR=" + folder_->path());
      process_.emplace(std::move(launch));
      pid_ = process_->pid();
    } catch (...) {
      close(in[0]), close(out[1]);
      stop();
      throw;
    }
    close(in[0]), close(out[1]);
    fcntl(to_, F_SETFL, O_NONBLOCK);
  }
  void stop() {
    if (to_ >= 0) close(to_);
    if (from_ >= 0) close(from_);
    to_ = from_ = -1;
    pid_ = 0;
    process_.reset();  // its own group: the workers too
    folder_.reset();
  }

  // Writes what is to be asked while reading answers: neither side may wait for the other with a full pipe.
  void exchange(std::string_view asks, std::vector<Cubin>& out, HostReleased& host) {
    size_t answered = 0;
    std::string got;
    auto heard = std::chrono::steady_clock::now();
    while (answered < out.size()) {
      host.check();
      pollfd fds[] = {{from_, POLLIN, 0}, {to_, POLLOUT, 0}};
      const int n = poll(fds, asks.empty() ? 1 : 2, 20);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw EnvironmentFailure(std::string("Triton's compiler: poll: ") + std::strerror(errno));
      if (n == 0) {
        if (std::chrono::steady_clock::now() - heard > std::chrono::milliseconds(kSilence))
          throw EnvironmentFailure("Triton's compiler does not answer");
        continue;
      }
      heard = std::chrono::steady_clock::now();
      if (!asks.empty() && (fds[1].revents & (POLLOUT | POLLERR | POLLHUP))) {
        const ssize_t w = write_quietly(asks);
        if (w < 0 && errno != EAGAIN && errno != EINTR) throw EnvironmentFailure("Triton's compiler ended");
        if (w > 0) asks.remove_prefix(static_cast<size_t>(w));
      }
      if (!(fds[0].revents & (POLLIN | POLLHUP | POLLERR))) continue;
      char buffer[1 << 16];
      const ssize_t r = read(from_, buffer, sizeof buffer);
      if (r < 0 && errno == EINTR) continue;
      if (r <= 0) throw EnvironmentFailure("Triton's compiler ended");
      got.append(buffer, static_cast<size_t>(r));
      for (Header h; got.size() >= sizeof h;) {
        std::memcpy(&h, got.data(), sizeof h);
        if (h.size > (1u << 28) || h.id >= out.size()) throw EnvironmentFailure("Triton's compiler answers nonsense");
        if (got.size() < sizeof h + h.size) break;
        std::string data = got.substr(sizeof h, h.size);
        got.erase(0, sizeof h + h.size);
        if (h.status == 2) throw EnvironmentFailure("Triton does not work here: " + data);
        Cubin& c = out[h.id];
        if (h.status == 0) {
          c = {std::move(data), static_cast<int32_t>(h.shared), static_cast<int64_t>(h.scratch),
               static_cast<int32_t>(h.warps), ""};
        } else {
          c.error = data.empty() ? "no reason given" : std::move(data);
        }
        ++answered;
      }
    }
  }
  // A server that died must not kill us with SIGPIPE, whatever the process does with that signal.
  ssize_t write_quietly(std::string_view s) const {
    sigset_t pipe, before, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigpending(&pending);
    const bool was_pending = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
    const ssize_t w = write(to_, s.data(), s.size());
    const int error = errno;
    if (w < 0 && error == EPIPE && !was_pending) {
      const timespec now{0, 0};
      while (sigtimedwait(&pipe, nullptr, &now) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    errno = error;
    return w;
  }

  std::timed_mutex mutex_;  // waited for in steps, without the host's lock
  std::optional<ChildProcess> process_;
  std::unique_ptr<PrivateFolder> folder_;
  std::atomic<int32_t> pid_{0};
  int to_ = -1, from_ = -1;
};

Server& server() {
  static Server* s = [] {
    pthread_atfork(nullptr, nullptr, [] { server().after_fork(); });
    return new Server;  // never destroyed: the end of the process cuts the lifeline, and that ends the server
  }();
  return *s;
}
Command& the_command() {
  static auto* c = new Command;
  return *c;
}

}  // namespace

void set_command(Command c) { the_command() = std::move(c); }
const Command& command() { return the_command(); }

std::vector<Cubin> build(std::span<const TritonSource> sources, const Gpu& gpu) {
  if (sources.empty()) return {};
  return server().build(sources, gpu);
}

int32_t server_pid() { return server().pid(); }

}  // namespace flashover::kernel::triton
