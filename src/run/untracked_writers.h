// Untracked writers are operators that write tensors without bumping their versions: torch's own batch norm in
// training mode and fused optimizers, collectives, custom operators registered without a kernel for ADInplaceOrView.
// From the first frozen tensor on, each of them has such a kernel: one that reports the tensors it wrote (writes.h).
#pragma once
#include <string_view>

namespace flashover::run {

// Cheap when nothing new was registered since the last call.
void intercept_untracked_writers();

// Whether a plan's operator ("aten.mm.default") is one whose schema does not tell of all that it writes or keeps.
bool may_write_untold(std::string_view op);

}  // namespace flashover::run
