// One entry of a package that is loaded beside torch: the call.
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "package/manifest.h"
#include "package/signature.h"
#include "run/run.h"

namespace flashover::aot {

class LoadedEntry {
 public:
  // entry: outlives it. The plan was checked to fit it. seen: LoadOptions::inputs_seen.
  LoadedEntry(const PackagedEntry& entry, plan::Plan plan, std::shared_ptr<const std::atomic<bool>> seen);
  const plan::Plan& plan() const { return executable_->plan(); }
  const EntrySignature& signature() const { return signature_; }
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& weights, std::span<const at::Tensor> arguments) const;
  // Calls with these weights find these tensors of the plan's frozen part, by tensor of the plan; undefined ones are
  // computed.
  void supply(const std::vector<at::Tensor>& weights, std::vector<at::Tensor> tensors);

 private:
  void check_shared(const std::vector<at::Tensor>& inputs) const;

  const PackagedEntry& entry_;
  EntrySignature signature_;
  std::shared_ptr<run::Executable> executable_;
};

// What the plan's frozen part makes of these weights, by tensor of the plan; empty: nothing can be said without a call.
// Throws Declined for a plan for another machine.
std::vector<at::Tensor> frozen_tensors(plan::Plan plan, const PackagedEntry& entry,
                                       const std::vector<at::Tensor>& weights);

}  // namespace flashover::aot
