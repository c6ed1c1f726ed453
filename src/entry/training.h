// A compiled forward whose results lead into a compiled backward.
//
//   In        two executables and the signature of what passes between them (graph::PartitionSignature)
//   Out       a Runner: results that require grad have one autograd node, which runs the backward
//   Promises  as eager's nodes: saved tensors are SavedVariables (version checks, hooks, freed by the engine), with the
//             values that the forward saw, also of a parameter that got other memory since (`p.data = t`); a second
//             backward without retain_graph raises, gradients that nothing leads to stay undefined, safe from several
//             threads; nothing happens when the backward never runs
//   Declines  create_graph=True where the forward cannot be computed again (replay.h): a RuntimeError from the backward
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "entry/backend.h"
#include "entry/replay.h"
#include "graph/partition/partition.h"
#include "ops/version_steps.h"

namespace flashover::entry {

// May let go of inputs when they are not needed any more.
using Step = std::function<void(std::vector<at::Tensor>&& inputs, std::vector<at::Tensor>& outputs)>;

// The backward without some tangents; `inputs` and `outputs` are numbers of the whole backward's, and so are `left_out`:
// inputs that the backward of those tangents reads.
struct Variant {
  Step run;
  std::vector<int32_t> inputs, outputs, left_out;
};
// For each input of the backward: is it a tangent, is it absent. May throw: then zeros stand for absent tangents.
using Specialize = std::function<Variant(const std::vector<bool>& tangent, const std::vector<bool>& absent)>;

// forward_types, backward_types: what the two take, by input. replay: for gradients of gradients and of results; null:
// there are none of these. version_steps: of the forward's inputs; the runner sees to those that autograd sees written,
// `forward` to all others.
std::unique_ptr<Runner> make_training_runner(graph::PartitionSignature signature,
                                             const std::vector<TensorType>& forward_types,
                                             std::vector<TensorType> backward_types, Step forward, Step backward,
                                             Specialize specialize, VersionSteps version_steps,
                                             std::shared_ptr<const Replay> replay);

}  // namespace flashover::entry
