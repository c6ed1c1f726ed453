// What is decided about a kernel before a line of it is written: which loop runs over the lanes and how many there are,
// which values fit in 32 bits, which loads are transposed in registers.
//
//   In        loops::Kernel and the machine
//   Out       KernelFacts; mode kNone where vectors do not pay or cannot express the kernel
//   Declines  dtypes without arithmetic here (class_of)
#pragma once
#include <vector>

#include "kernel/cpp/lanes.h"
#include "kernel/ranges.h"
#include "kernel/toolchain.h"

namespace flashover::kernel::cpp {

struct StageFacts {
  std::vector<int> depth;  // loops::depths()
  NarrowRanges ranges;
  bool vector = false;  // lanes run through this stage
};

struct KernelFacts {
  loops::Vector mode = loops::Vector::kNone;
  Lanes lanes;
  std::vector<StageFacts> stages;
  // A transposing kernel: the loads that run along its loop `transpose`. They are read in that direction, W at a time,
  // and transposed in registers.
  std::vector<loops::Id> tiles;
  // Outer loops that no tile depends on (the heads of a rotary embedding): they run inside the tile, which is then made
  // once for all of them.
  std::vector<size_t> repeats;
  // The body reads its sizes and strides from the job: a model's many shapes of one operation are then one body.
  bool shared = false;

  bool inner() const { return mode == loops::Vector::kInner; }
  bool outer() const { return mode == loops::Vector::kOuter; }
  bool is_repeat(size_t loop) const;
};

KernelFacts facts_of(const loops::Kernel& k, const Target& target);
LaneLoop lane_loop_of(const loops::Kernel& k, const KernelFacts& facts, const loops::Stage& stage);

inline bool is_memory_store(loops::Op op) { return op == loops::Op::k_store || op == loops::Op::k_store_scratch; }
inline bool is_fold(loops::Op op) { return op == loops::Op::k_reduce || op == loops::Op::k_scan; }
// The dtype that a value is held in: i32 for an i64 value that fits.
inline DType narrowed(const StageFacts& facts, const loops::Stage& stage, loops::Id i) {
  return facts.ranges[i] ? DType::kI32 : stage.body[i].dtype;
}

}  // namespace flashover::kernel::cpp
