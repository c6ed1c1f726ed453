// flex_attention as ATen's operators, on any device: what its recorded operators mean (ops/flex.cpp). Compiled graphs
// hold the kernel or these steps in their place; a graph that is handed to another compiler calls them.
#pragma once
#include <torch/library.h>

namespace flashover::cpu {

void define_flex(torch::Library& library);

}  // namespace flashover::cpu
