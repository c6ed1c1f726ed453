// Named tensors, which torch 2.13 no longer has.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

#include "compat/torch_version.h"

namespace flashover::compat {

#if FLASHOVER_TORCH_AT_LEAST(2, 13)
inline bool has_names(const at::Tensor&) { return false; }
inline c10::DispatchKeySet keys_of_names() { return {}; }
#else
inline bool has_names(const at::Tensor& t) { return t.has_names(); }
inline c10::DispatchKeySet keys_of_names() { return c10::DispatchKeySet(c10::DispatchKey::Named); }
#endif

}  // namespace flashover::compat
