// The profiler hook of a run: ranges for a profiler, the time of each step for explain().
//
//   In        the steps of a plan as they begin and end
//   Out       record_function ranges: one per kernel, by name, within one per module of the program ("self.layers.0");
//             or, while measured, the least time that each step took
//   Promises  costs one flag per call when nothing observes
#pragma once
#include <ATen/record_function.h>
#include <c10/core/Event.h>

#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace flashover::run {

// Whether a profiler listens on this thread.
inline bool profiled() { return at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value(); }

// A kernel's name for people: on CPU the symbol says nothing of what it does.
std::string name_of(const plan::Plan& p, const plan::Step& s);

// The module that a label names ("... model.py:31 in self.layers.0"), from the outermost on: "self", "self.layers", ...
std::vector<std::string> modules_of(std::string_view label);

// The seconds of each step of a plan.
class Times {
 public:
  explicit Times(size_t steps) : least_(steps, -1) {}
  void add(const std::vector<double>& seconds);  // negative: not known
  std::vector<double> get() const;

 private:
  mutable std::mutex mutex_;
  std::vector<double> least_;
};

// Observes one call, on one thread.
class StepObserver {
 public:
  // times: null unless measured. device: a CUDA device, or -1
  StepObserver(const plan::Plan& p, bool profiled, Times* times, int device);
  ~StepObserver();
  StepObserver(const StepObserver&) = delete;
  void begin(size_t step);
  void end(size_t step);
  void finish();  // the call went through: hands the times over. CUDA: waits for the device

 private:
  void record();
  const plan::Plan& plan_;
  const bool profiled_;
  Times* times_;
  const int device_;
  std::deque<at::RecordFunction> modules_;  // open, the outermost first
  std::vector<std::string> names_;          // of these
  std::optional<at::RecordFunction> kernel_;
  std::chrono::steady_clock::time_point start_;
  std::vector<double> seconds_;
  std::vector<c10::Event> events_;  // before and after each step
};

}  // namespace flashover::run
