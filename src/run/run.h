// Runs a Plan.
//
//   In        a Plan, input tensors
//   Out       output tensors; mutated inputs written
//   Promises  no Python, no allocation per step beyond the slab, outputs and what extern operators return; follows
//             torch.set_num_threads; outputs own their memory and have eager's strides; safe from several threads at once
//   Declines  load(): a plan for another machine, a binary that does not load (Declined, the caller rebuilds or runs eager)
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "plan/plan.h"

namespace at {
class Tensor;
}

namespace flashover::run {

class Executable {
 public:
  virtual ~Executable() = default;
  // inputs: in Plan::inputs order, types already guarded. Outputs replace the contents of `outputs`.
  // Exceptions of extern operators (c10::Error) pass through.
  virtual void run(const at::Tensor* inputs, size_t count, std::vector<at::Tensor>& outputs) = 0;
  virtual const plan::Plan& plan() const = 0;
};

std::shared_ptr<Executable> load(plan::Plan plan);

}  // namespace flashover::run
