// FLASHOVER_ISA, read from the environment at each question: tests change it while they run.
#include "base/isa_limit.h"

#include <cstdlib>
#include <string>
#include <string_view>

#include "base/check.h"

namespace flashover {

IsaLimit isa_limit() {
  const char* wish = std::getenv("FLASHOVER_ISA");
  const std::string_view level = wish != nullptr ? wish : "";
  if (level.empty()) return IsaLimit::kNone;
  if (level == "scalar") return IsaLimit::kScalar;
  if (level == "avx2") return IsaLimit::kAvx2;
  if (level == "avx512") return IsaLimit::kAvx512;
  throw UserError("FLASHOVER_ISA=" + std::string(level) + " is no level: there are scalar, avx2 and avx512");
}

}  // namespace flashover
