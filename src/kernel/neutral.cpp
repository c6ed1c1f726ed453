// The least and the greatest number of a dtype, where a reduction looks for an extreme.
#include "kernel/neutral.h"

#include <limits>

namespace flashover::kernel {

using loops::Reduce;

Neutral neutral(Reduce kind, DType d) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const DTypeInfo& t = info(d);
  const int bits = d == DType::kBool ? 1 : t.bytes * 8;
  const uint64_t highest = UINT64_MAX >> (64 - (t.is_signed ? bits - 1 : bits));
  switch (kind) {
    case Reduce::kSum:
    case Reduce::kAny:
      return {};
    case Reduce::kProd:
    case Reduce::kAll:
      return {1, 1};
    case Reduce::kMax:
    case Reduce::kArgMax:
      return {-kInf, t.is_signed ? -static_cast<int64_t>(highest) - 1 : 0};
    case Reduce::kMin:
    case Reduce::kArgMin:
      return {kInf, static_cast<int64_t>(highest)};
  }
  return {};
}

}  // namespace flashover::kernel
