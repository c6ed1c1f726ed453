// How the version counters of a call's inputs move.
#pragma once
#include <cstdint>
#include <vector>

namespace flashover {

// By input: by how much its version counter moves in eager. 0: not at all (it is not written, or without a version: an
// inference tensor, `x.data`, statistics of a batch norm). Negative: -1 - an earlier input, whose counter it shares.
using VersionSteps = std::vector<int32_t>;

}  // namespace flashover
