// The inputs that a plan writes, and how the others learn of it (writes.h): autograd by the version counters that
// eager's operators would have moved, and by as much; everybody else by the same, or by a report.
#pragma once
#include <cstdint>
#include <vector>

#include "ops/version_steps.h"

namespace c10 {
struct TensorImpl;
}

namespace flashover::run {

class WrittenInputs {
 public:
  // written: numbers of inputs, in order. steps: empty: one for each of these.
  void set(const std::vector<int32_t>& written, const VersionSteps& steps);
  // Those that must outlive the call.
  const std::vector<int32_t>& inputs() const { return inputs_; }

  // Before the call: an inference tensor cannot be written outside inference mode.
  void check(c10::TensorImpl* const* inputs) const;
  // After the call, or when it failed.
  void tell(c10::TensorImpl* const* inputs) const;
  // The call failed, and everything is as it was before.
  void tell_restored(c10::TensorImpl* const* inputs) const;

 private:
  struct Counted {
    int32_t input, steps;
    std::vector<int32_t> sharing;  // inputs whose counter was the same one when the graph was made
  };
  std::vector<Counted> counted_;
  std::vector<int32_t> uncounted_, inputs_;
};

}  // namespace flashover::run
