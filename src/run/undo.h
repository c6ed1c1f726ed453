// What calls keep of their inputs, so that a step that raises leaves no trace: the caller may then run the call in
// eager, and gets eager's own error.
//
//   In        a program; the inputs of each call before its first step; how the call ended
//   Out       what was written put back where that was promised, and the random generator with it
//   Promises  the first call can be undone wherever it fails (a plan that fails at once was made wrong); later calls if
//             no input was written yet, if what is written before the step that may raise is little, or if an index is
//             out of range from the start, which is seen before the first step. What operators did beside memory
//             (printing) is never done twice
//   Declines  later calls that fail behind large writes in a way that cannot be seen before: undo() says no
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>

#include <atomic>
#include <vector>

#include "run/program.h"

namespace flashover::run {

class Undo {
 public:
  // proven: calls of the plan at other sizes went through.
  explicit Undo(const Program& p, bool proven = false);

  // Failures of steps before `end` can be undone, beside those before the first write.
  struct Guarded {
    size_t end = 0;
    std::vector<int32_t> kept;  // the inputs that are written by then
    bool needed = false;        // contents, or the random generator's state, must be kept
  };
  struct Content {
    int32_t index;     // among the inputs
    at::Tensor input;  // owned: calls may consume their inputs before they fail
    at::Tensor bytes;  // what was in it
  };
  // Of one call.
  struct Kept {
    const Guarded* guarded = nullptr;
    bool first = false;  // no call went through so far
    std::vector<Content> contents;
    at::Tensor generator;  // state of the random generator
  };

  Kept keep(c10::TensorImpl* const* inputs) const {
    Kept kept;
    kept.first = !proven_.load(std::memory_order_relaxed);
    kept.guarded = kept.first ? &first_ : !ranges_.empty() && will_fail(inputs) ? &failing_ : &later_;
    if (kept.guarded->needed) remember(kept, inputs);
    return kept;
  }
  void succeeded(const Kept& kept) {
    if (kept.first) proven_.store(true, std::memory_order_relaxed);
    if (kept.guarded == &failing_) false_alarms_.fetch_add(1, std::memory_order_relaxed);
  }
  // Step `at` raised (SIZE_MAX: not known). True: everything is as before the call.
  bool undo(const Kept& kept, size_t at) const;
  // An operator returned something else than the plan says. Sets m.clean.
  void undo(const Kept& kept, Mismatch& m) const;

 private:
  struct Range {  // that all elements of an input must be in
    int32_t input;
    bool wide;  // i64
    int64_t count, lo, hi;
  };
  void plan_guards();
  Guarded guard(size_t end) const;
  int64_t kept_bytes(const Guarded& g) const;
  int64_t little_bytes() const;
  void add_range(const plan::Bounds& b);
  bool will_fail(c10::TensorImpl* const* inputs) const;
  at::Generator generator() const;
  void remember(Kept& kept, c10::TensorImpl* const* inputs) const;
  void restore(const Kept& kept) const;

  const Program& program_;
  Guarded first_, later_, failing_;  // the first call, later ones, those that are going to fail
  std::vector<Range> ranges_;
  // Written by calls, of any thread.
  std::atomic<int> false_alarms_{0};
  std::atomic<bool> proven_{false};  // a call went through
};

}  // namespace flashover::run
