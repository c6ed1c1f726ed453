// The reference interpreter of graphs: every node through ATen on real tensors. Slow and plain; the oracle for graph
// passes and the "eager" backend.
//
//   In        a graph in any form, real tensors for its inputs (constants included, in input order)
//   Out       output tensors; written inputs are written
//   Promises  kTraced: the very operator calls of the trace. Functional forms: values never change, outputs have the
//             strides of Output::type, mutations are applied after all values are computed
//   Declines  an operator that torch does not have: Declined
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "graph/graph.h"

namespace flashover::aten {

// Runs under the caller's dispatch state, below autograd and autocast (whose effects are in the graph already).
// `mismatches`, if given, gets a line for each result whose geometry is not what its type says.
std::vector<at::Tensor> eval_graph(const graph::Graph& g, const std::vector<at::Tensor>& inputs,
                                   std::vector<std::string>* mismatches = nullptr);

// Values at which autograd's history ends: what is computed of them starts from leaves of their own.
struct HistoryCuts {
  std::vector<ValueId> values;
  std::vector<at::Tensor> leaves;  // out, by value; undefined where nothing requires grad
};
// The same above autograd, which follows what is computed; autocast's effects are in the graph.
std::vector<at::Tensor> eval_under_autograd(const graph::Graph& g, const std::vector<at::Tensor>& inputs,
                                            HistoryCuts* cuts = nullptr);

// What a functional graph hands out and writes, given the values of its outputs (those that own their memory) and of
// its mutations.
std::vector<at::Tensor> finish_functional(const graph::Graph& g, const std::vector<at::Tensor>& inputs,
                                          const std::vector<at::Tensor>& values,
                                          const std::vector<at::Tensor>& written);

// One prim.* on tensors. `tensor_of` resolves references.
using TensorOf = std::function<at::Tensor(ValueId)>;
std::vector<at::Tensor> eval_prim(const graph::Node& node, const graph::Graph& g, const TensorOf& tensor_of);

}  // namespace flashover::aten
