// Which library is quick at what, here: measured once a machine (some 20 ms), see docs/benchmarks/libraries.md.
//
//   In        nothing
//   Out       target::Providers with what a measurement can tell; what torch was built and configured with is the
//             caller's to add
//   Promises  no change of any setting; decisions with a margin, in coarse steps, so that noise does not turn them
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "target/providers.h"

namespace flashover::run {

target::Providers probe();

// The text form that the cache holds. parse: nothing when the text is not one that write() made.
std::string write(const target::Providers& p);
std::optional<target::Providers> parse_providers(std::string_view text);

}  // namespace flashover::run
