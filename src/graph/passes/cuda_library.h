// Products and convolutions on CUDA devices, put so that cuBLAS and cuDNN are quick: convolutions channels last in half
// precision (1x1 ones as products), bias and ReLU inside the library's call where it has one, odd vocabulary sizes
// padded in the weight. Only where the weight is frozen: what is done to it is done once.
#pragma once
#include "graph/graph.h"
#include "target/providers.h"

namespace flashover::graph {

// After fold_batch_norm, before decompose.
Graph cuda_library(Graph g, const target::Providers& providers);

}  // namespace flashover::graph
