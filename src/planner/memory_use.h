// How many bytes a plan holds at each step, with some temporaries and results allocated by themselves.
//
// The arena is held for the whole call, beside what operators allocate, and so are results. Where these have their
// peaks at different times, large ones are allocated when they begin ("apart"), and temporaries freed when they end:
// the allocator's cache makes that cheap.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/lifetimes.h"
#include "planner/planner.h"

namespace flashover::planner {

constexpr int64_t kNoneApart = INT64_MAX;

class MemoryUse {
 public:
  MemoryUse(const Schedule& s, const Options& o);

  // Whether sizes are known, so that anything can be said at all.
  bool known_sizes() const;
  // The bytes of inputs; opaque tensors and those on another device do not count.
  int64_t input_bytes() const;
  int64_t bytes(size_t t) const { return plan::bytes(p_.tensors[t].type).value(); }
  const plan::Lifetime& life(size_t t) const { return life_[t]; }
  // The first of those that share the arena's memory with t through Schedule::over.
  plan::TensorId first_of(size_t t) const { return first_of_[t]; }

  // A temporary or result that is allocated by itself if what has `large` bytes is.
  bool is_apart(size_t t, int64_t large) const;
  // Bytes at each step if what has `large` bytes is apart and the tensors in `thawed`, now frozen, are temporaries.
  std::vector<int64_t> over_time(int64_t large, const std::vector<plan::TensorId>& thawed = {}) const;
  int64_t peak(int64_t large, const std::vector<plan::TensorId>& thawed = {}) const;

 private:
  bool is_arena_block(size_t t) const;
  bool may_begin_late(size_t t) const;  // a result

  const plan::Plan& p_;
  bool late_outputs_;
  std::vector<plan::Lifetime> life_;
  std::vector<plan::TensorId> first_of_;
  std::vector<int32_t> last_;  // by first_of: of all that share its memory
};

// Allocates what is apart when it begins.
void set_apart(Schedule& s, const Options& o, int64_t large);

}  // namespace flashover::planner
