// Runs plans over plain memory, without torch: kernels, copies, and those hand-written operators that need none.
//
//   In        a plan for this machine's CPU; the addresses of its inputs
//   Out       the memory of its outputs; written inputs written
//   Promises  what run/ computes, bit for bit with as many threads; safe from several threads at once
//   Declines  plans that call operators of torch's libraries or are for another machine: why_not() says so. A kernel's failed index check is
//             a UserError
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "plan/sizes.h"
#include "run/library.h"

namespace flashover::bare {

// Memory with a tensor in it.
struct Array {
  std::shared_ptr<char> memory;
  char* data = nullptr;  // of the first element
  DType dtype = DType::kUndefined;
  std::vector<int64_t> sizes, strides;
};
std::shared_ptr<char> make_memory(int64_t bytes);  // aligned to 64
// The tensor's elements from the first to the last in memory of its own, in the same strides.
Array copy_of(const Array& a);
// The same elements in other strides.
Array in_strides(const Array& a, std::vector<int64_t> strides);

// What an entry computes of its weights alone, for one set of them.
struct FrozenMemory {
  std::shared_ptr<char> memory;
  std::vector<char*> tensors;  // by tensor of the plan; null for others
};

// What of the plan needs torch or another machine, in words; empty: it can be run.
std::string why_not(const plan::Plan& plan);

class Executor {
 public:
  explicit Executor(plan::Plan plan);  // for which why_not() is empty
  const plan::Plan& plan() const { return plan_; }
  // inputs: by input of the plan, in its strides. Those that the frozen part does not read may be null.
  FrozenMemory compute_frozen(std::span<char* const> inputs) const;
  // The same out of tensors that lie in a package: (tensor, bytes). Nothing where some are missing or of another size.
  std::optional<FrozenMemory> take_frozen(std::shared_ptr<char> memory,
                                          const std::vector<std::pair<plan::TensorId, std::span<char>>>& tensors) const;
  // sizes: by input of the plan.
  std::vector<Array> run(std::span<char* const> inputs, std::span<const std::vector<int64_t>> sizes,
                         const FrozenMemory& frozen) const;

 private:
  // The plan for one size: numbers for all expressions.
  struct Sized;
  using KernelFn = int32_t (*)(void* const* pointers, const int64_t* sizes,
                               void (*share)(void (*)(void*, int64_t, int64_t), void*, int64_t, int64_t));
  struct Memory {
    std::span<char* const> inputs;
    char* arena = nullptr;
    std::span<const std::shared_ptr<char>> outputs;
    std::span<char* const> frozen;
  };
  std::shared_ptr<const Sized> sized(std::span<const int64_t> values) const;
  std::shared_ptr<const Sized> some_size() const;
  void walk(const Sized& s, const std::vector<plan::Step>& steps, const Memory& memory) const;

  plan::Plan plan_;
  std::vector<plan::SizeSource> sources_;
  std::vector<std::shared_ptr<run::Library>> libraries_;
  std::vector<KernelFn> kernels_;
  mutable std::mutex mutex_;
  mutable std::map<std::vector<int64_t>, std::shared_ptr<const Sized>> sized_;
};

}  // namespace flashover::bare
