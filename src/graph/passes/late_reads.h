// What eager's backward reads from memory when it runs: the statistics of a norm that does not update them.
//
// Torch counts no write of running statistics (run/writes.h). So a training-mode forward may come between a forward in
// evaluation mode and its backward, and no check of autograd's sees it: the norm's own formula then reads the new
// statistics, and all that eager kept by value follows from the old ones. In a functional graph both are one value.
// Here they become two: formulas of the backward read inputs of their own, which partition() hands them by reference.
//
//   In        a joint graph in functional form, before anything is merged
//   Out       the same with further kTangent inputs, listed in Joint::late
//   Promises  left as they are: statistics that the graph itself writes, constants (nothing writes them), and what a
//             checkpoint reads (its second run in eager's backward reads memory, too)
#pragma once
#include "graph/joint.h"

namespace flashover::graph {

Graph late_reads(Graph g, Joint& facts);

}  // namespace flashover::graph
