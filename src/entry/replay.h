// The results of a training call once more, operator by operator under autograd, for what a compiled backward has not:
// gradients of gradients (create_graph=True), and gradients of one result by another.
//
//   In        the traced graph and its joint; later the call's inputs, unchanged since
//   Out       results that lead back to the inputs, and to each other, as eager's do
//   Promises  the same values, and nothing is written or drawn
//   Declines  impossible(): a forward that is partly hidden from autograd (graph::Joint::followed), random numbers,
//             inputs that the call wrote, results that are memory of inputs
#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "graph/joint.h"

namespace flashover::entry {

class Replay {
 public:
  Replay(graph::Graph traced, graph::Joint joint);

  // Quick, and not the whole of impossible().
  bool may_be_possible() const { return joint_.followed && !writes_followed_inputs() && joint_.late.empty(); }
  // graph::Joint::Result::follows, by result.
  const std::vector<std::vector<size_t>>& follows() const { return follows_; }
  // Why it cannot be done; empty: it can.
  const std::string& impossible() const;
  // Input i of the call: whether the results are computed with it, and whether they depend on what is in it (of a norm's
  // running statistics they do not).
  bool takes(size_t i) const;
  bool depends_on(size_t i) const;
  // Those that require grad, by tangent. `inputs`: of the call; undefined where nothing reads it.
  std::vector<at::Tensor> results(const std::vector<at::Tensor>& inputs) const;
  // The same, but results lead no further back than to those before them.
  struct Apart {
    std::vector<at::Tensor> results;  // by tangent
    std::vector<at::Tensor> leaves;   // by result: what others are computed with instead of it; or undefined
  };
  Apart results_apart(const std::vector<at::Tensor>& inputs) const;
  // How far two ways to compute a gradient may be apart: `of_its_own` of its largest element, or `of_all` of the largest
  // gradient's (some are zero but for rounding: of a bias before a norm).
  struct Tolerance {
    double of_its_own, of_all;
  };
  // None where some of it is in 16 bits: a value that rounds to the other side of a kink has another gradient.
  std::optional<Tolerance> tolerance() const;
  // Inputs a few steps of their precision away.
  static std::vector<at::Tensor> moved(const std::vector<at::Tensor>& inputs);

 private:
  bool writes_followed_inputs() const {
    return std::ranges::any_of(joint_.extra, [](int32_t input) { return input >= 0; });
  }
  // The graph becomes the forward alone when it is first asked for: few programs ask.
  void prepare() const;
  std::string cut() const;  // what impossible() says
  graph::Graph functional() const;
  std::vector<at::Tensor> all_inputs(const std::vector<at::Tensor>& of_call) const;

  std::vector<std::vector<size_t>> follows_;  // by result
  mutable std::once_flag once_;
  mutable graph::Graph graph_;
  mutable graph::Joint joint_;
  mutable std::string impossible_;
  mutable std::vector<bool> takes_, depends_;  // by input of the call
  mutable std::vector<size_t> inputs_;         // of the graph: those that the call has
  mutable std::vector<ValueId> passed_;        // by result: its value, if others follow from it
};

// Whether `other`, gradients by a replay, are those that the compiled backward gave. `nearby`: by a replay of inputs that
// were moved(); how far they are from `other` tells of ill-conditioned ones.
bool are_same_gradients(const std::vector<at::Tensor>& gradients, const std::vector<at::Tensor>& other,
                        Replay::Tolerance tolerance, const std::vector<at::Tensor>& nearby = {});

}  // namespace flashover::entry
