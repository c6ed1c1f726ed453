// The sizes that follow from data, in the call that is traced: what the graph computes so far is computed for real.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>

#include "graph/graph.h"

namespace flashover::trace {

// Nodes are run once, in order; what they make is kept as long as the trace goes on.
class DataValues {
 public:
  using RealInputs = std::function<std::unordered_map<ValueId, at::Tensor>()>;
  using ValueNow = std::function<int64_t(sym::Expr)>;  // of sizes of inputs
  DataValues(const graph::Graph& g, RealInputs inputs, ValueNow now)
      : graph_(g), inputs_(std::move(inputs)), now_(std::move(now)) {}
  DataValues(const DataValues&) = delete;

  // nullopt, from then on: the graph writes inputs, draws numbers, has effects, or this is no call of the usual case.
  std::optional<int64_t> of(sym::Expr e);

 private:
  bool catch_up();
  bool run(const graph::Node& node);
  int64_t number(sym::Expr e) const;
  bool writes_an_input(const graph::Node& node) const;

  const graph::Graph& graph_;
  const RealInputs inputs_;
  const ValueNow now_;
  std::unordered_map<ValueId, at::Tensor> values_;
  std::unordered_map<sym::Expr, int64_t> sizes_;
  size_t done_ = 0, bytes_ = 0;
  bool failed_ = false;
};

}  // namespace flashover::trace
