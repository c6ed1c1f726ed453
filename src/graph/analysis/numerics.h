// What a compiled graph gives up of eager's numerics, operator by operator, found in what came out of the passes and not
// in what they meant to do: explain(...).numerics.
//
// Whose bits are promised follows from the options: eager's (strict_numerics), a row's own in batches of any size
// (batch_invariant), or nobody's; then all that may differ from eager's is listed.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "target/providers.h"

namespace flashover::graph {

struct OriginNumerics {
  bool exact = true;     // it means one computation only (decompose/eagers_bits.h)
  bool reduced = false;  // its results are floats of 16 bits
};
// Of a functional graph, before anything is rewritten: by the number of the operator (origin.h).
using OriginTable = std::map<int32_t, OriginNumerics>;
OriginTable origin_numerics(const Graph& functional);

struct GivenUp {
  std::string op, where, reason;
  int64_t count = 1;
};
struct NumericsCertificate {
  std::string promise;  // "eager's bits", "a row's bits in any batch", "none"
  int64_t kept = 0;     // operators that are as promised
  std::vector<GivenUp> given_up;
};
NumericsCertificate certify_numerics(const Graph& core, const OriginTable& origins, const target::Providers& providers);
// A line for the promise and the number, then one for each entry, parts with tabs between.
std::string print(const NumericsCertificate& c);

}  // namespace flashover::graph
