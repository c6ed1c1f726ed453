// Tensors over arrays of numpy that guards made to look at: they keep the arrays.
#pragma once

namespace flashover::guards {

void let_go_of_arrays();  // those of this thread; GIL held

}  // namespace flashover::guards
