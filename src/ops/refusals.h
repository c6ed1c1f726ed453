// Which of torch's operators refuse some contents of their operands on the CPU: an index past the end, a zero divisor.
// (plan/may_raise.h asks the opposite of operators that are called: which surely take all numbers.)
#pragma once
#include <string_view>

namespace flashover::ops {

enum class Refuses : unsigned char {
  kNothing,      // takes all contents, or nobody knows better
  kZeroDivisor,  // where the result is of whole numbers: zeros in argument 1
  kContents,     // some contents, which its kernel finds
};
Refuses refuses(std::string_view name);  // of the functional form

}  // namespace flashover::ops

namespace flashover::op {

// Takes any tensors and does nothing: what makes them is computed although nobody reads it (graph/passes/keep_errors).
inline constexpr char computed[] = "flashover.computed.default";

}  // namespace flashover::op
