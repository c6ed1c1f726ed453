// Whether a call fits an entry of a package, and what follows from its sizes.
//
//   In        an entry with its plan; what a call's tensors are (not what they hold)
//   Out       the values of the size symbols, and by input the strides that the program counts on
//   Promises  what passes check() has the types, sizes and relations of sizes that the plan was made for
//   Declines  any other call (UserError, which names the argument)
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "package/manifest.h"

namespace flashover::aot {

struct GivenTensor {
  bool strided = false;  // a tensor, and of memory with strides
  bool plain = true;     // its elements are what lies in memory (no lazy conjugate)
  DType dtype = DType::kUndefined;
  Device device;
  std::span<const int64_t> sizes, strides;
  int64_t storage_offset = 0;
};

class EntrySignature {
 public:
  // entry: outlives it. The plan was checked to fit it.
  EntrySignature(const PackagedEntry& entry, const plan::Plan& plan);
  using Values = std::vector<int64_t>;  // of the size symbols, by slot
  // given: the arguments that are tensors, in order.
  Values check(std::span<const GivenTensor> given) const;
  // Where the tensor that a binding means is among them.
  size_t position(const Binding& argument) const {
    return static_cast<size_t>(position_[static_cast<size_t>(argument.index)]);
  }
  // The strides in which it has to be copied; nothing where it lies as it must.
  std::optional<std::vector<int64_t>> other_strides(size_t input, const GivenTensor& given, const Values& values) const;
  void refuse_shared_memory() const;  // throws: a written argument shares memory with another one

  bool writes() const { return writes_; }  // some input
  bool writes(size_t input) const { return inputs_[input].written; }
  bool writes_weight(size_t weight) const { return any_input_of(weight, &Input::written); }
  // The plan may have been made for its values.
  bool counts_on_weight(size_t weight) const { return any_input_of(weight, &Input::constant); }

 private:
  struct Size {
    sym::Expr expression;
    int64_t number = -1;  // of a constant
    int32_t slot = -1;    // of a symbol
  };
  struct Input {
    TensorType type;
    std::vector<Size> sizes, strides;
    bool written = false, constant = false;
  };
  bool any_input_of(size_t weight, bool Input::*property) const;
  Size size_of(sym::Expr e);
  int64_t value_of(const Size& s, const Values& values) const;
  int64_t value_of(sym::Expr e, const Values& values) const;
  [[noreturn]] void refuse(size_t input, const GivenTensor& given, const std::string& why) const;
  void read_sizes(size_t input, const GivenTensor& given, Values& values) const;
  void check_sizes(size_t input, const GivenTensor& given, const Values& values) const;
  void check_relations(const Values& values) const;

  const PackagedEntry& entry_;
  std::vector<int32_t> position_;  // by PackagedEntry::arguments: among those that are tensors, or -1
  size_t tensors_ = 0;
  std::vector<sym::Expr> symbols_;  // by slot
  std::vector<Input> inputs_;
  bool writes_ = false;
};

}  // namespace flashover::aot
