// Inputs whose address does not suit kernels are replaced by copies for the time of a call.
//
//   In        a call's inputs; the patches that say which of them kernels read
//   Out       inputs(): the same, or with copies in their place
//   Promises  copies nothing in the usual case; copy_back() brings what the call wrote to where it belongs
//   Declines  nothing
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>

#include <utility>
#include <vector>

#include "run/program.h"

namespace flashover::run::cuda {

bool aligned_enough(const Program& p, int32_t i, c10::TensorImpl* impl);

class AlignedInputs {
 public:
  AlignedInputs(const Program& p, c10::TensorImpl* const* given, const std::vector<Patch>& patches);
  c10::TensorImpl* const* inputs() const { return inputs_; }
  bool any_copies() const { return !copies_.empty(); }
  void copy_back();

 private:
  void replace(int32_t i);
  const Program& program_;
  c10::TensorImpl* const* given_;
  c10::TensorImpl* const* inputs_;
  std::vector<c10::TensorImpl*> replaced_;
  std::vector<std::pair<int32_t, at::Tensor>> copies_;  // by input number
};

}  // namespace flashover::run::cuda
