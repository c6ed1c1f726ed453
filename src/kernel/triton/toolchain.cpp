#include "kernel/triton/toolchain.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "base/check.h"
#include "base/decimal.h"

extern char** environ;

namespace flashover::kernel::triton {
namespace {

constexpr int kSilence = 60'000;  // milliseconds without a word from the server that has work

std::string quoted(std::string_view s) {
  std::string out = "\"";
  for (char c : s) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (u < 0x20) {
      out += "\\u" + hexadecimal(u, 4);
    } else {
      out += c;
    }
  }
  return out + '"';
}
std::string request(const Source& s, const Gpu& gpu, uint32_t id) {
  std::string json = "{\"id\": " + std::to_string(id) + ", \"name\": " + quoted(s.name) +
                     ", \"text\": " + quoted(s.text) + ", \"signature\": [";
  for (size_t i = 0; i < s.signature.size(); ++i) json += (i ? ", " : "") + quoted(s.signature[i]);
  json += "], \"warps\": " + std::to_string(s.warps) + ", \"stages\": " + std::to_string(s.stages) +
          ", \"asserts\": " + (s.asserts ? "true" : "false") + ", \"arch\": " + std::to_string(gpu.arch) + "}";
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
  std::vector<Cubin> build(std::span<const Source> sources, const Gpu& gpu) {
    std::lock_guard lock(mutex_);
    std::vector<Cubin> out(sources.size());
    std::string asks;
    for (size_t i = 0; i < sources.size(); ++i) asks += request(sources[i], gpu, static_cast<uint32_t>(i));
    start();
    try {
      exchange(asks, out);
    } catch (const EnvironmentFailure&) {
      stop();
      throw;
    }
    return out;
  }
  int32_t pid() {
    std::lock_guard lock(mutex_);
    return owner_ == getpid() ? pid_ : 0;
  }

 private:
  void start() {
    if (pid_ > 0 && owner_ == getpid()) {
      if (waitpid(pid_, nullptr, WNOHANG) == 0) return;
      pid_ = 0;
      close_pipes();
    } else if (pid_ > 0) {  // the parent's, before a fork
      close_pipes();
      pid_ = 0;
    }
    const Command& c = command();
    if (c.python.empty()) throw EnvironmentFailure("Triton's compiler is not set up");
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0)
      throw EnvironmentFailure(std::string("no pipe for Triton's compiler: ") + std::strerror(errno));
    if (pipe2(out, O_CLOEXEC) != 0) {
      close(in[0]), close(in[1]);
      throw EnvironmentFailure(std::string("no pipe for Triton's compiler: ") + std::strerror(errno));
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none, usual;
    sigemptyset(&none);
    sigfillset(&usual);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &usual);
    posix_spawnattr_setpgroup(&attributes, 0);  // an interrupt in the terminal is ours
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    std::string python = c.python, script = c.script;
    char* argv[] = {python.data(), script.data(), nullptr};
    const int error = posix_spawn(&pid_, python.c_str(), &actions, &attributes, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close(in[0]), close(out[1]);
    to_ = in[1], from_ = out[0];
    owner_ = getpid();
    if (error != 0) {
      pid_ = 0;
      close_pipes();
      throw EnvironmentFailure("cannot start " + python + ": " + std::strerror(error));
    }
    fcntl(to_, F_SETFL, O_NONBLOCK);
  }
  void close_pipes() {
    if (to_ >= 0) close(to_);
    if (from_ >= 0) close(from_);
    to_ = from_ = -1;
  }
  void stop() {
    close_pipes();
    if (pid_ > 0 && owner_ == getpid()) {
      kill(-pid_, SIGKILL);  // its own group: the workers too
      waitpid(pid_, nullptr, 0);
    }
    pid_ = 0;
  }

  // Writes what is to be asked while reading answers: neither side may wait for the other with a full pipe.
  void exchange(std::string_view asks, std::vector<Cubin>& out) {
    size_t answered = 0;
    std::string got;
    while (answered < out.size()) {
      pollfd fds[] = {{from_, POLLIN, 0}, {to_, POLLOUT, 0}};
      const int n = poll(fds, asks.empty() ? 1 : 2, kSilence);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) throw EnvironmentFailure("Triton's compiler does not answer");
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

  std::mutex mutex_;
  pid_t pid_ = 0, owner_ = 0;
  int to_ = -1, from_ = -1;
};

Server& server() {
  static auto* s = new Server;  // never destroyed: the end of the process closes the pipes, and that ends the server
  return *s;
}
Command& the_command() {
  static auto* c = new Command;
  return *c;
}

}  // namespace

void set_command(Command c) { the_command() = std::move(c); }
const Command& command() { return the_command(); }

std::vector<Cubin> build(std::span<const Source> sources, const Gpu& gpu) {
  if (sources.empty()) return {};
  return server().build(sources, gpu);
}

int32_t server_pid() { return server().pid(); }

}  // namespace flashover::kernel::triton
