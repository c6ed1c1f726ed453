// The arguments of aten.convolution, for the passes that rewrite it.
#pragma once
#include <cstdint>

namespace flashover::graph {

enum ConvArg : uint8_t { kInput, kWeight, kBias, kStride, kPadding, kDilation, kTransposed, kOutputPadding, kGroups };

}  // namespace flashover::graph
