// Operators of torch's libraries by own kernels, for the runtime without torch: convolutions, products and attention in
// f32 that plans leave to oneDNN, MKL and ATen where these are at hand.
//
//   In        calls by name, as plans have them (plain.h)
//   Out       the operator's results, up to rounding: sums are made in another order
//   Promises  what plain.h promises. Packed memory says of what weight it is, and is believed only where it has the size
//             that follows
//   Declines  other dtypes, transposed convolutions; processors without vector_kernels() (missing_without_library() says so)
#pragma once
#include <span>
#include <string_view>

#include "cpu_kernels/plain.h"

namespace flashover::cpu {

std::span<const PlainOperator> library_operators();

// What own kernels need of the processor for the operator of that name, and this one lacks; empty: nothing, or it is
// none of these.
std::string_view missing_without_library(std::string_view op);

}  // namespace flashover::cpu
