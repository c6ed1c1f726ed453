// Version counters as eager leaves them, where no plan sees to it (run/written.h): graphs that run operator by operator
// or by a backend of the user's, and results that are aliases with counters of their own.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "entry/backend.h"
#include "entry/training.h"
#include "graph/graph.h"
#include "ops/version_steps.h"

namespace flashover::entry {

// Numbers of the inputs in whose memory a traced graph writes.
std::vector<int32_t> written_inputs(const graph::Graph& traced);

// As `inner`, and at the end the inputs' counters stand where eager's would.
Step counting_versions(Step inner, VersionSteps steps, std::vector<int32_t> written);
std::unique_ptr<Runner> counting_versions(std::unique_ptr<Runner> inner, VersionSteps steps,
                                          std::vector<int32_t> written);

void give_own_counters(const std::vector<graph::OwnCounter>& which, const at::Tensor* inputs,
                       std::vector<at::Tensor>& outputs);

}  // namespace flashover::entry
