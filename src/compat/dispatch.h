// The order of the dispatcher's keys.
#pragma once
#include <c10/core/DispatchKey.h>

namespace flashover::compat {

// From torch 2.13 on an operator on a tensor of a class with __torch_dispatch__ reaches the class, or a dispatch mode,
// before what records calls; up to 2.12 what records hands it on.
constexpr bool kClassesFirst = c10::DispatchKey::Python > c10::DispatchKey::Fake;

}  // namespace flashover::compat
