// Does this machine have what a plan's binaries need? Asked of CPUID, no file is read.
#pragma once
#include <string>
#include <string_view>

namespace flashover::run {

// The first word of `target` (Plan::target) that this machine lacks or that is unknown; empty if it has all.
std::string missing_feature(std::string_view target);

}  // namespace flashover::run
