// Tells of the inputs that a plan wrote (written.h).
#include "run/written.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>

#include "run/writes.h"
#include "torch/versions.h"

namespace flashover::run {

using aten::counter_of;

void WrittenInputs::set(const std::vector<int32_t>& written, const VersionSteps& steps) {
  const auto steps_of = [&](int32_t i) {
    const int32_t own = steps.empty() ? 1 : steps.at(static_cast<size_t>(i));
    return own >= 0 ? own : steps.at(static_cast<size_t>(-1 - own));
  };
  inputs_ = written;
  if (steps.empty())
    for (int32_t i : written) counted_.push_back({i, 1, {}});
  for (size_t i = 0; i < steps.size(); ++i)
    if (steps[i] > 0) counted_.push_back({static_cast<int32_t>(i), steps[i], {}});
  for (size_t i = 0; i < steps.size(); ++i)
    for (Counted& c : counted_)
      if (steps[i] == -1 - c.input) c.sharing.push_back(static_cast<int32_t>(i));
  for (int32_t i : written)
    if (steps_of(i) == 0) uncounted_.push_back(i);
  for (const Counted& c : counted_) {
    inputs_.push_back(c.input);
    inputs_.insert(inputs_.end(), c.sharing.begin(), c.sharing.end());
  }
  std::sort(inputs_.begin(), inputs_.end());
  inputs_.erase(std::unique(inputs_.begin(), inputs_.end()), inputs_.end());
}

void WrittenInputs::check(c10::TensorImpl* const* inputs) const {
  if (c10::InferenceMode::is_enabled()) return;
  for (const Counted& c : counted_)
    if (!inputs[c.input]->version_counter().enabled()) inputs[c.input]->bump_version();  // raises
}

void WrittenInputs::tell(c10::TensorImpl* const* inputs) const {
  const auto bump = [](c10::TensorImpl* tensor, int32_t steps) {
    for (int32_t i = 0; i < steps; ++i) tensor->bump_version();
  };
  for (const Counted& c : counted_) {
    bump(inputs[c.input], c.steps);
    // In this call they may have counters of their own.
    for (int32_t i : c.sharing)
      if (counter_of(inputs[i]) != counter_of(inputs[c.input])) bump(inputs[i], c.steps);
  }
  for (int32_t i : uncounted_) wrote(inputs[i]);
}

void WrittenInputs::tell_restored(c10::TensorImpl* const* inputs) const {
  for (int32_t i : inputs_) wrote(inputs[i]);
}

}  // namespace flashover::run
