// New memory where torch.use_deterministic_algorithms is on: torch fills it with what shows (NaN, the largest number)
// unless torch.utils.deterministic.fill_uninitialized_memory is off. The guard on the state tells both.
#include <ATen/Context.h>

#include <limits>

#include "base/check.h"
#include "ops/names.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

at::Scalar most_visible(at::ScalarType type) {
  if (at::isFloatingType(type) || at::isComplexType(type)) return std::numeric_limits<double>::quiet_NaN();
  switch (type) {
    case at::kBool:
      return true;
    case at::kByte:
      return std::numeric_limits<uint8_t>::max();
    case at::kChar:
      return std::numeric_limits<int8_t>::max();
    case at::kShort:
      return std::numeric_limits<int16_t>::max();
    case at::kInt:
      return std::numeric_limits<int32_t>::max();
    case at::kLong:
      return std::numeric_limits<int64_t>::max();
    default:
      throw Declined("new memory of a rare dtype, filled for determinism");
  }
}

}  // namespace

bool is_uninitialized(std::string_view name) {
  return op::is_any_of(name, {op::empty_memory_format, op::empty_like, op::empty_strided, op::empty_permuted,
                              op::new_empty, op::new_empty_strided});
}

bool fills_new_memory() {
  const at::Context& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory();
}

void fill_new_memory(const at::Tensor& made) { made.fill_(most_visible(made.scalar_type())); }

}  // namespace flashover::trace
