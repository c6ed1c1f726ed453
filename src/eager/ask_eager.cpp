// Small calls of torch's operators whose results tell one version from another.
#include "eager/ask_eager.h"

#include <ATen/ops/clamp.h>
#include <ATen/ops/full.h>

#include <cmath>
#include <future>
#include <limits>

#include "graph/eager_rules.h"

namespace flashover::aten {

// In a thread of its own: no mode, no autocast, no trace of the caller's is there.
void ask_eager() {
  const auto ask = [] {
    const at::Tensor bounded =
        at::clamp(at::full({1}, 1.0f, at::kFloat), std::nullopt, std::numeric_limits<double>::quiet_NaN());
    graph::eager_rules.lone_nan_bounds = std::isnan(*bounded.const_data_ptr<float>());
  };
  std::async(std::launch::async, ask).get();
}

}  // namespace flashover::aten
