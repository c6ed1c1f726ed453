// A joint graph becomes a forward graph and a backward graph.
//
// Between them stands what is saved. Which values those are is a minimum cut: saving costs the bytes that are written,
// held and read again, computing again costs work (per operator, in bytes moved), views cost nothing, random and extern
// operators are never run twice. What eager's backward keeps by reference (inputs, results) is free to keep here; what
// it does not keep is saved as a copy only, so that a program which writes it after the call is as right as in eager.
// So are the statistics of norms, which torch writes without a version: only eager's own formula reads them by
// reference (late_reads.h), and nothing is computed again from their memory.
//
//   In        a functional or core graph with tangent inputs, and its Joint; parameters that are trained are kUser
//             inputs
//   Out       Partition: two graphs, and the signature of what passes from the forward to the backward
//   Promises  forward computes every result, mutation and effect in the recorded order; backward depends on saved
//             values and tangents only; each gradient is memory of its own unless it is a tangent as it came
//   Declines  a mutation that depends on a tangent, random operators that run in the backward only
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "graph/joint.h"

namespace flashover::graph {

// The inputs and outputs of the two halves, and what each stands for.
struct PartitionSignature {
  // A result of the call. Memory: `kind` as for Output, index of the forward output, the forward input or the *result*
  // whose memory it is.
  struct Result {
    Output::Kind kind = Output::Kind::kValue;
    int32_t index = -1;
    Sizes sizes, strides;
    sym::Expr offset = 0;  // of aliases, from the base
    bool requires_grad = false;
    bool one_of_several = false;  // Joint::Result::one_of_several
    int32_t tangent = -1;
  };
  struct BackwardInput {
    enum class Kind : uint8_t {
      kInput,    // forward input `index` as it is
      kResult,   // result `index` of the call
      kSaved,    // forward output `index`, which only the backward reads
      kTangent,  // tangent `index`
    };
    Kind kind = Kind::kSaved;
    int32_t index = -1;
  };
  struct Gradient {
    int32_t input = -1;    // of this forward input
    int32_t output = -1;   // backward output
    int32_t tangent = -1;  // or: this tangent, as it is
    std::vector<int32_t> depends;
  };
  std::vector<Result> results;
  std::vector<int32_t> extra;  // of the last results: the forward input that takes its content, or -1 (joint.h)
  std::vector<BackwardInput> backward_inputs;  // tangents first, in their order
  std::vector<Gradient> gradients;
  int64_t saved_bytes = 0;  // of kSaved
  size_t tangents() const {
    size_t n = 0;
    while (n < backward_inputs.size() && backward_inputs[n].kind == BackwardInput::Kind::kTangent) ++n;
    return n;
  }
};
struct Partition : PartitionSignature {
  Graph forward{kNewProgram}, backward{kNewProgram};
};

struct PartitionOptions {
  // How much of what would be saved by default may be: below 1, work is done again instead, as far as that is possible.
  double memory_budget = 1;
};
Partition partition(const Graph& joint, const Joint& facts, const PartitionOptions& options = {});

// The signature as integers, for the disk cache. Throws UserError on integers that are no signature.
std::vector<int64_t> encode(const PartitionSignature& p);
void decode(const std::vector<int64_t>& encoded, PartitionSignature& p);

}  // namespace flashover::graph
