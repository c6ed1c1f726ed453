// On the CPU: smaller blocks than asked for, where they make out much of what the plan holds (loops over small
// tensors).
#include "planner/memory_use.h"
#include "planner/rewrites.h"

namespace flashover::planner {

void allocate_apart(Schedule& s, const Options& o) {
  constexpr int64_t kSmallest = int64_t{4} << 10, kFiftieth = 50;
  if (o.apart <= 0) return;
  const MemoryUse use(s, o);
  if (!use.known_sizes()) return;
  const int64_t least = use.peak(kSmallest), much = (least + use.input_bytes()) / kFiftieth;
  int64_t large = o.apart;
  while (large > kSmallest && use.peak(large) > least + much) large /= 2;
  set_apart(s, o, large);
}

}  // namespace flashover::planner
