// Copies with the layout that the plan expects.
#include "run/cuda/aligned_inputs.h"

#include <ATen/ops/copy.h>

#include <algorithm>

#include "run/tensor_memory.h"

namespace flashover::run::cuda {

bool aligned_enough(const Program& p, int32_t i, c10::TensorImpl* impl) {
  return p.plan.inputs[i].type.device.type == DeviceType::kCPU ||
         reinterpret_cast<uintptr_t>(data_of(impl)) % static_cast<uintptr_t>(kCudaAlignment) == 0;
}

AlignedInputs::AlignedInputs(const Program& p, c10::TensorImpl* const* given, const std::vector<Patch>& patches)
    : program_(p), given_(given), inputs_(given) {
  int32_t last = -1;
  for (const Patch& patch : patches) {
    if (patch.index == last) continue;
    last = patch.index;
    if (!aligned_enough(p, last, given[last])) replace(last);
  }
  if (!replaced_.empty()) inputs_ = replaced_.data();
}

void AlignedInputs::replace(int32_t i) {
  if (replaced_.empty()) replaced_.assign(given_, given_ + program_.plan.inputs.size());
  const at::Tensor copy = flat(program_, i, given_[i]).clone();
  const Shape& shape = program_.input_shapes[i];
  copies_.emplace_back(i, view_of(copy, shape.dtype, shape.sizes, shape.strides, 0));
  replaced_[i] = copies_.back().second.unsafeGetTensorImpl();
}

void AlignedInputs::copy_back() {
  for (auto& [i, copy] : copies_)
    if (std::binary_search(program_.mutated.begin(), program_.mutated.end(), i))
      flat(program_, i, given_[i]).copy_(flat(program_, i, copy.unsafeGetTensorImpl()));
}

}  // namespace flashover::run::cuda
