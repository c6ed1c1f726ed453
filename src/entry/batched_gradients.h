// Many output gradients at once: `torch.autograd.grad(is_grads_batched=True)`, `torch.func.vmap` over a vector-Jacobian
// product, `gradcheck`. A compiled backward is for one: it runs for each row of the batch.
#pragma once
#include <torch/csrc/autograd/variable.h>

#include <functional>

namespace flashover::entry {

using torch::autograd::variable_list;

// Whether vmap has put a batch dimension, which the program does not see, on one of them. Some may be undefined.
bool are_batched(const variable_list& tangents);

// Runs the backward for each row and gives its gradients with the batch dimension of the same level. last: no row follows.
variable_list for_each_row(const variable_list& tangents,
                           const std::function<variable_list(variable_list&& row, bool last)>& backward);

}  // namespace flashover::entry
