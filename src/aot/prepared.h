// Tensors that plans compute of weights alone (packed matrices, folded norms), kept in the package.
//
//   In        a plan for this machine and its weights; or what was kept
//   Out       the tensors as bytes with a description; or tensors over these bytes
//   Promises  restore() gives the tensor that prepare() saw, bit for bit
//   Declines  plans for other machines, and what only the library understands that made it: such tensors are left out
//             and computed by the first call
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "package/manifest.h"

namespace flashover::aot {

struct PreparedTensor {
  Prepared about;  // without its place
  at::Tensor tensor;
  std::string_view bytes;  // of `tensor`
};
// weights: by Manifest::weights.
std::vector<PreparedTensor> prepare(const plan::Plan& plan, const PackagedEntry& entry,
                                    const std::vector<at::Tensor>& weights);

// section: of all prepared tensors. What oneDNN laid out does not own its memory: who uses the tensor holds the section.
at::Tensor restore(const Prepared& about, const std::shared_ptr<char>& section);

// Manifest::machine of this process: others may want other layouts.
std::string machine_of_prepared();

}  // namespace flashover::aot
