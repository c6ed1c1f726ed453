// Whether bytes are a cubin that may be given to the driver, which takes an address and no size.
//
//   In        bytes that anybody may have written
//   Out       what is wrong with them, or ""
//   Promises  of bytes that pass, every table, section and name lies inside, the code is for the architecture, and each
//             of the symbols is a function of it
#pragma once
#include <set>
#include <string>
#include <string_view>

namespace flashover::aot {

int cubin_architecture(std::string_view target);  // "sm_90" -> 90; 0: no such name
std::string why_no_cubin(std::string_view bytes, int architecture, const std::set<std::string>& symbols);

}  // namespace flashover::aot
