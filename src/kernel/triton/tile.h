// How a nest is cut into programs: the measured rules for block sizes and warps.
#pragma once
#include <cstdint>
#include <vector>

#include "kernel/triton/triton.h"

namespace flashover::kernel::triton {

struct Tile {
  // Outer loops and, for a scatter, the stage's loops too: all points are alike.
  std::vector<loops::Loop> points;
  int64_t x = 1;  // outer points of a program along the last axis
  int64_t y = 0;  // > 0: a tile of two axes; y points along loop `across`
  int32_t across = -1;
  bool rows = false;       // stages with loops: the tile's second axis is r
  bool persistent = true;  // whole rows in registers; else chunks of r
  int64_t r = 0;           // chunk; persistent: the longest row
  int warps = 4;
  bool scatter = false;
};
Tile choose_tile(const loops::Kernel& k, const Gpu& gpu);

int64_t power_of_2(int64_t n);                             // the next one
int64_t points_of(const std::vector<loops::Loop>& loops);  // by hint

}  // namespace flashover::kernel::triton
