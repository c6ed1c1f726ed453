// What a joint graph (forward and backward in one trace) means beyond its nodes.
//
// The graph's outputs are the call's results, then gradients; its kTangent inputs are the gradients of some results,
// and what the backward finds in some inputs' memory (late). The partitioner (partition/partition.h) cuts it in two.
#pragma once
#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace flashover::graph {

struct Joint {
  struct Result {  // of output i
    bool requires_grad = false;
    int32_t tangent = -1;         // its gradient comes in through that tangent (index into `tangents`)
    int32_t view_of_input = -1;   // requires grad as a view of that input: autograd follows it by itself
    bool one_of_several = false;  // a view that chunk, split or unbind made: autograd forbids to write it
    bool saved = false;  // eager's backward keeps this very memory: writing it after the call is an error there
    // Results, by number, that its gradient passes on the way to the inputs, none behind another.
    std::vector<int32_t> follows;
  };
  bool present = false;
  std::vector<Result> results;  // the call's, then `extra.size()` more that the caller does not see
  // Of each extra result: the input whose new content it is, because autograd must see that input written (the runner
  // copies it there, the graph leaves the input alone); -1: memory that results are parts of.
  std::vector<int32_t> extra;
  std::vector<int32_t> tangents;              // input numbers
  std::vector<int32_t> gradients;             // output results.size() + i is the gradient of this input
  std::vector<std::vector<int32_t>> depends;  // gradient i: the tangents that it depends on; others leave it undefined
  std::vector<bool> saved_inputs;             // as Result::saved
  // Values that the backward reads from the memory of an input when it runs, as eager's does (passes/late_reads.h).
  struct Late {
    int32_t number, input;  // a kTangent input, and the one whose memory it is
  };
  std::vector<Late> late;
  // Autograd saw all of the forward as its operators tell it: none took what requires grad while gradients were off, or a
  // detached twin of it.
  bool followed = false;
  // A backward of the program's own got zeros for the results that lead nowhere: so it does where tangents do not come.
  bool zeros = false;
};

}  // namespace flashover::graph
