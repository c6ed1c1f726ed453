// Which topics are on, where dumps go, and the line that says what is being compiled.
#include "entry/log.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/decimal.h"
#include "base/text.h"
#include "base/utf8.h"
#include "frame/fetched_error.h"
#include "frame/frame.h"

namespace flashover::entry {
namespace {

const std::array<const char*, 7> kTopics = {"graph", "guards", "recompiles", "breaks", "kernels", "plan", "times"};

struct Outputs {
  std::array<bool, kTopics.size()> on{};
  PyObject* sink = nullptr;
  std::string dump_folder;
  bool dump_failed = false;
};
Outputs& outputs() {
  static Outputs o;
  return o;
}

PyObject* words_of(const std::string& text) {
  const std::string utf8 = valid_utf8(text);
  return PyUnicode_FromStringAndSize(utf8.data(), static_cast<Py_ssize_t>(utf8.size()));
}

// False: Python cannot be run now, or the sink failed. A Python error that is set stays.
bool given_to_sink(Topic topic, const std::string& text, const std::string& reason, const std::string& stack) {
  PyObject* sink = outputs().sink;
  if (!sink || !Py_IsInitialized() || !PyGILState_Check() || frame::capturing()) return false;
  frame::FetchedError pending;
  PyObject* done = PyObject_CallFunction(sink, "sNNN", kTopics[static_cast<size_t>(topic)], words_of(text),
                                         words_of(reason), words_of(stack));
  if (!done) PyErr_Clear();
  Py_XDECREF(done);
  pending.restore();
  return done != nullptr;
}

}  // namespace

void set_logs(const std::string& topics) {
  std::array<bool, kTopics.size()> on{};
  for (std::string& word : split(topics, ',')) {
    word.erase(0, word.find_first_not_of(' '));
    word.erase(word.find_last_not_of(' ') + 1);
    bool valid = word.empty() || word == "all";
    for (size_t i = 0; i < kTopics.size(); i++)
      if (word == kTopics[i] || word == "all") on[i] = valid = true;
    if (!valid) {
      std::string all;
      for (const char* t : kTopics) all += std::string(t) + ", ";
      throw UserError("FLASHOVER_LOGS: no topic '" + word + "'; there are " + all + "all");
    }
  }
  outputs().on = on;
}

std::vector<std::string> log_topics() { return {kTopics.begin(), kTopics.end()}; }

void set_log_sink(PyObject* sink) {
  Py_XINCREF(sink);
  Py_XSETREF(outputs().sink, sink);
}

bool logged(Topic topic) { return outputs().on[static_cast<size_t>(topic)]; }

void log(Topic topic, const std::string& text, const std::string& reason, const std::string& stack) {
  if (!logged(topic) || given_to_sink(topic, text, reason, stack)) return;
  std::string out;
  for (const std::string& line : split(text, '\n'))
    out += "[flashover " + std::string(kTopics[static_cast<size_t>(topic)]) + "] " + line + "\n";
  std::fwrite(out.data(), 1, out.size(), stderr);
}

void log_line(const std::string& text) noexcept { std::fprintf(stderr, "flashover: %s\n", text.c_str()); }

void set_dump(const std::string& folder) {
  outputs().dump_folder = folder;
  outputs().dump_failed = false;
}
bool dumping() { return !outputs().dump_folder.empty(); }

void dump(int serial, const std::string& name, const std::string& stage, const std::string& text) {
  if (!dumping() || text.empty()) return;
  std::string safe = name.substr(0, 60);
  for (char& c : safe)
    if (!is_letter_or_digit(c) && c != '_') c = '_';
  const std::string& folder = outputs().dump_folder;
  ::mkdir(folder.c_str(), 0700);  // there already: fine; no use: said below
  std::string failure = write_text_file(folder + "/" + padded(serial, 3) + "_" + safe + "." + stage, text);
  if (!failure.empty() && !outputs().dump_failed) {
    outputs().dump_failed = true;
    log_line("FLASHOVER_DUMP: cannot write to " + folder + ": " + failure);
  }
}

struct Progress::State {
  std::string name;
  std::mutex mutex;
  std::condition_variable done;
  bool over = false;
  std::thread thread;
};

Progress::Progress(std::string name) : state_(nullptr) {
  if (!isatty(STDERR_FILENO)) return;
  state_ = new State;
  state_->name = std::move(name);
  auto show = [s = state_] {
    auto start = std::chrono::steady_clock::now();
    std::unique_lock lock(s->mutex);
    bool shown = false;
    auto wait = std::chrono::milliseconds(2000);
    while (!s->done.wait_for(lock, wait, [s] { return s->over; })) {
      double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      std::fprintf(stderr, "\rflashover: compiling %s ... %s s", s->name.c_str(), fixed_decimal(seconds, 0).c_str());
      shown = true;
      wait = std::chrono::milliseconds(500);
    }
    if (shown) std::fprintf(stderr, "\r\033[K");
  };
  try {
    state_->thread = std::thread(show);
  } catch (const std::exception&) {  // no room for a thread: no line
    delete std::exchange(state_, nullptr);
  }
}

Progress::~Progress() {
  if (!state_) return;
  {
    std::lock_guard lock(state_->mutex);
    state_->over = true;
  }
  state_->done.notify_all();
  state_->thread.join();
  delete state_;
}

}  // namespace flashover::entry
