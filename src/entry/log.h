// FLASHOVER_LOGS=graph,guards,recompiles,breaks,kernels,plan,times (or all) to stderr; FLASHOVER_DUMP=dir: every stage
// as a file.
#pragma once
#include <string>

namespace flashover::entry {

enum class Topic { kGraph, kGuards, kRecompiles, kBreaks, kKernels, kPlan, kTimes };
bool logged(Topic topic);
void log(Topic topic, const std::string& text);  // every line prefixed with the topic
// Throws UserError naming the unknown topic. "" turns everything off.
void set_logs(const std::string& topics);

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
