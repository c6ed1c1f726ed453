// One entry of a package: whether a call fits it, and the call.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "aot/manifest.h"
#include "run/run.h"

namespace flashover::aot {

class LoadedEntry {
 public:
  // manifest, entry: outlive it. The plan was checked to fit them.
  LoadedEntry(const Manifest& manifest, const PackagedEntry& entry, plan::Plan plan);
  const plan::Plan& plan() const { return executable_->plan(); }
  bool writes_weight(size_t weight) const;
  // The plan may have been made for its values.
  bool counts_on_weight(size_t weight) const;
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& weights, std::span<const at::Tensor> arguments) const;
  // Calls with these weights find these tensors of the plan's frozen part, by tensor of the plan; undefined ones are
  // computed.
  void supply(const std::vector<at::Tensor>& weights, std::vector<at::Tensor> tensors);

 private:
  struct Size {
    sym::Expr expression;
    int64_t number = -1;  // of a constant
    int32_t slot = -1;    // of a symbol
  };
  struct Input {
    std::vector<Size> sizes, strides;
    bool written = false, constant = false;
  };
  bool any_input_of(size_t weight, bool Input::*property) const;
  using Values = std::vector<int64_t>;  // by slot
  Size size_of(sym::Expr e);
  int64_t value_of(const Size& s, const Values& values) const;
  int64_t value_of(sym::Expr e, const Values& values) const;
  [[noreturn]] void refuse(size_t input, const at::Tensor& given, const std::string& why) const;
  void read_sizes(size_t input, const at::Tensor& given, Values& values) const;
  void check_sizes(size_t input, const at::Tensor& given, const Values& values) const;
  at::Tensor laid_out(size_t input, const at::Tensor& given, const Values& values) const;
  void check_shared(const std::vector<at::Tensor>& inputs) const;

  const Manifest& manifest_;
  const PackagedEntry& entry_;
  std::vector<int32_t> position_;  // by PackagedEntry::arguments: among those that are tensors, or -1
  size_t tensors_ = 0;
  std::vector<sym::Expr> symbols_;  // by slot
  std::vector<Input> inputs_;
  std::vector<TensorType> types_;  // of the plan's inputs
  bool writes_ = false;
  std::shared_ptr<run::Executable> executable_;
};

// What the plan's frozen part makes of these weights, by tensor of the plan; empty: nothing can be said without a call.
// Throws Declined for a plan for another machine.
std::vector<at::Tensor> frozen_tensors(plan::Plan plan, const PackagedEntry& entry,
                                       const std::vector<at::Tensor>& weights);

}  // namespace flashover::aot
