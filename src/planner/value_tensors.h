// Which tensor of the plan stands for each value of the graph, and where its memory is.
#pragma once
#include <map>
#include <vector>

#include "graph/graph.h"
#include "loops/schedule/loop_nodes.h"
#include "plan/plan.h"

namespace flashover::planner {

// How many of a node's last results are clones that a writing operator filled.
size_t clones_of(const graph::Node& n);
// A call that allocates the tensor.
plan::Step allocation(const TensorType& t, plan::TensorId to);

class ValueTensors {
 public:
  // Adds tensors to the plan, and allocations of those that no step makes. Inputs come first.
  ValueTensors(const loops::LoopProgram& program, plan::Plan& plan);

  plan::TensorId of(ValueId v);  // made when it is first asked for
  plan::TensorId add(plan::Tensor t);
  // A temporary of that type, on whatever device.
  plan::TensorId temporary(TensorType type);
  // As memory of its own has it: offset 0, for realised values the strides that kernels write.
  TensorType memory_type(ValueId v) const;

  // Which output the value is allocated for. A value returned twice belongs to the first; the second is a copy.
  int32_t output_of(ValueId v) const { return output_of_.at(v); }
  // Makes the memory of output i, and the tensor in it that is written: `type`, which has the output's strides.
  plan::TensorId make_output(int32_t i, TensorType type);
  plan::TensorId memory_of_output(int32_t i) const { return memory_of_.at(i); }

  // The arena is the plan's device's: what the CPU works on beside it is allocated call by call.
  void allocate_beside(plan::TensorId t);

 private:
  bool is_clone(ValueId v) const;
  bool returned_where_kernels_write(const graph::Output& o, const TensorType& type) const;
  void allocate_empty(plan::TensorId t);

  const loops::LoopProgram& program_;
  const graph::Graph& graph_;
  plan::Plan& plan_;
  std::vector<plan::TensorId> tensor_of_;        // by ValueId, -1: none yet
  std::map<ValueId, int32_t> output_of_;         // values that are allocated for an output
  std::map<int32_t, plan::TensorId> memory_of_;  // by output
};

}  // namespace flashover::planner
