// Where in torch's dispatcher plans call operators.
//
//   In        nothing
//   Out       the keys that are left out while a plan runs
//   Promises  autocast has acted in the trace, and autograd does not take part
//   Declines  nothing
#pragma once
#include <ATen/core/LegacyTypeDispatch.h>

namespace flashover::run {

inline constexpr c10::DispatchKeySet kBelowAutograd =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

}  // namespace flashover::run
