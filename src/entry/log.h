// FLASHOVER_LOGS=graph,guards,recompiles,breaks,kernels,plan,times (or all), through Python's logging; FLASHOVER_DUMP=dir: every stage
// as a file.
#pragma once
#include <Python.h>

#include <string>
#include <vector>

namespace flashover::entry {

enum class Topic { kGraph, kGuards, kRecompiles, kBreaks, kKernels, kPlan, kTimes };
bool logged(Topic topic);
// To the sink; without one, or where Python cannot run, to stderr, every line prefixed with the topic. reason, stack: why
// a program cannot be captured there and by which frames it came there, for what the sink adds for people.
void log(Topic topic, const std::string& text, const std::string& reason = "", const std::string& stack = "");
// Throws UserError naming the unknown topic. "" turns everything off.
void set_logs(const std::string& topics);
std::vector<std::string> log_topics();
// A Python function of (topic, text, reason, stack), which is to write it down. Owned from then on; null: none.
void set_log_sink(PyObject* sink);

// What layers below say (base/diagnostics.h), whatever the topics: "flashover: " and the text.
void log_line(const std::string& text) noexcept;

bool dumping();
// Writes <dir>/<serial>_<name>.<stage>; failures are said once and otherwise ignored.
void dump(int serial, const std::string& name, const std::string& stage, const std::string& text);
void set_dump(const std::string& folder);

// While it lives: a line on stderr after two seconds, when that is a terminal.
class Progress {
 public:
  explicit Progress(std::string name);
  ~Progress();

 private:
  struct State;
  State* state_;
};

}  // namespace flashover::entry
