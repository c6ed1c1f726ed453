// A machine in words, as text tests and tools name it: "onednn_bf16 random_threads=2048".
#pragma once
#include <string_view>

#include "target/providers.h"

namespace flashover::target {

// Providers' defaults and what the words add, separated by spaces: onednn_bf16, slow_bf16, own_f32, own_bf16, split_f32,
// panels, quick_panels, strict, eagers_bits, batch_invariant, wrong_strided_points, random_threads=N, pack_budget=N.
// Throws UserError for another word.
Providers parse_machine(std::string_view words);

}  // namespace flashover::target
