// The arguments of aten.convolution, and what passes that rewrite it ask of one.
#pragma once
#include <cstdint>

#include "graph/rewrite/rewriter.h"
#include "target/providers.h"

namespace flashover::graph {

enum ConvArg : uint8_t { kInput, kWeight, kBias, kStride, kPadding, kDilation, kTransposed, kOutputPadding, kGroups };

sym::Expr points_of(const Sizes& image);  // of [batch, channels, spatial...], all images'

// A kernel of one point, stride 1: a product of all points (rows) with one matrix.
bool is_point(const TensorType& input, const TensorType& weight, const Node& convolution);

// Whether the convolution is computed as a product that takes the weight as it lies, without a copy of it: nobody has
// made it (a parameter), and there is much of it beside the points, so that a step over the result, such as a batch norm
// that is not folded into the weight, is little beside the product; as are, where the kernel has more than one point,
// rows of all that each point of the result reads.
bool reads_weight_as_it_lies(Rewriter& r, const Node& convolution, const target::Providers& providers);

}  // namespace flashover::graph
