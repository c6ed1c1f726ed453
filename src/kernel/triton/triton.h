// Loop nests into Triton source for NVIDIA GPUs.
//
//   In        loops::Kernel, as loops::build makes them for a GPU
//   Out       Python text of one @triton.jit function, the types of its parameters, and how to launch it
//   Promises  equal kernels give equal text but for the name and the comment; what is computed is what loops::interpret
//             computes, up to the rounding of sums and of the functions; no access outside the parameters: an index out
//             of range is a device-side assert; int32 index arithmetic wherever the ranges prove that it suffices;
//             masks only where a tile sticks out
//   Declines  what Triton cannot express: unsigned 16..64-bit numbers, atomics that the GPU does not have, rows with
//             scratch that do not fit in registers
//   Sample    emit_test.cpp
//
// One program computes a tile of outer points: `x` is their linear index, and coordinates i0, i1, ... come out of it by
// // and %. Where stages have loops the tile has a second axis `r` over a stage's points, whole (a row in
// registers) or in a loop over chunks with one accumulator per element of the tile. Kernels that read along one axis
// and write along another (loops::Kernel::transpose) have a tile of two outer axes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "loops/loops.h"
#include "loops/product.h"
#include "plan/plan.h"

namespace flashover::kernel::triton {

struct Gpu {
  int arch = 90;         // sm_90
  int processors = 132;  // streaming multiprocessors: how many programs fill the machine
  bool operator==(const Gpu&) const = default;
};
std::string str(const Gpu& gpu);  // "sm_90"

struct TritonSource {
  std::string name;                    // of the function: what profilers show
  std::string text;                    // readable as it is; imports _triton_lib (python/flashover/_triton_lib.py)
  std::vector<std::string> signature;  // "*fp32", "*bf16", "i32", ... by parameter; pointers are multiples of 16
  int warps = 4;
  int stages = 2;           // of loads in flight in loops over products
  bool asserts = false;     // compile with device-side asserts
  bool contracts = true;    // a product and a sum of it may be rounded once (an fma)
  plan::CudaLaunch launch;  // all but shared and scratch, which the compiler knows
};
// The identity of the code: everything but name and comment.
Hash128 key(const TritonSource& s);

TritonSource emit(const loops::Kernel& k, const Gpu& gpu);
TritonSource emit(const loops::Product& p, const Gpu& gpu);
// Tiles worth measuring for a product of this shape.
std::vector<loops::ProductTile> tiles_for(const loops::Product& p);

}  // namespace flashover::kernel::triton
