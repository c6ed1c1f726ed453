// Facts about the machine that scheduling depends on.
#pragma once
#include <cstdint>

namespace flashover::loops {

struct ScheduleOptions {
  int threads = 2;                // how many rows are enough
  int64_t split_numel = 1 << 16;  // a reduction longer than this with fewer rows than threads is split in two steps
  // The order of a sum follows from which dims it is over, and neither from how the operand lies nor from how many rows
  // there are.
  bool order_by_dims = false;
  // > 0: for a GPU with so many processors. Then rows are cut for blocks of threads instead of lanes and caches: long
  // reductions to few elements are split further, scratch is what fits in registers and is read where it was written.
  int processors = 0;
};

}  // namespace flashover::loops
