// A matrix product with what stands before and behind it in one function: rows m along y, columns n along x, the sum in
// acc.
#pragma once
#include <optional>

#include "kernel/triton/emission.h"

namespace flashover::kernel::triton {

// An emission of the product's epilogue.
Emission emission_of(const loops::Product& p);
// The program's tile and the loop over k, up to the sum. The epilogue's stages follow.
void product(Emission& e);

}  // namespace flashover::kernel::triton
