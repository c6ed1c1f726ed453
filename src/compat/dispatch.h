// The order of the dispatcher's keys.
#pragma once
#include "compat/torch_version.h"

namespace flashover::compat {

// From torch 2.13 on an operator on a tensor of a class with __torch_dispatch__ reaches the class, or a dispatch mode,
// before what records calls; up to 2.12 what records hands it on. (trace/backward.cpp compares it with the keys, which
// not everybody who asks may include.)
constexpr bool kClassesFirst = FLASHOVER_TORCH_AT_LEAST(2, 13);

}  // namespace flashover::compat
