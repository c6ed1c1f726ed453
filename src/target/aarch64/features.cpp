// aarch64: what the kernel says of the processor. NEON is part of the architecture, so it is there wherever torch runs.
#include "target/features.h"

#include <asm/hwcap.h>
#include <sys/auxv.h>

#include <cstdio>
#include <string>

#include "base/isa_limit.h"

namespace flashover::target {
namespace {

struct Feature {
  const char* name;
  IsaLimit limit;  // the lowest that it can be used under
  unsigned long capability;
};
constexpr Feature kFeatures[] = {
    {"aarch64", IsaLimit::kScalar, 0},
    {"scalar", IsaLimit::kScalar, 0},
    // The level that kernels are generated for: FLASHOVER_ISA=scalar does without, its other levels are x86's.
    {"neon", IsaLimit::kAvx2, HWCAP_ASIMD},
};

}  // namespace

bool has_feature(std::string_view name) {
  static const unsigned long capabilities = getauxval(AT_HWCAP);
  for (const Feature& f : kFeatures)
    if (name == f.name) return f.limit <= isa_limit() && (capabilities & f.capability) == f.capability;
  return false;
}

std::string processor() {
  std::string text = "capabilities " + identity();
  for (const Feature& f : kFeatures)
    if (has_feature(f.name)) text += std::string(" ") + f.name;
  return text;
}

std::string identity() {
  static const std::string made = [] {
    char model[32] = "";  // (where the system does not tell, what it can has to do)
    if (std::FILE* file = std::fopen("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1", "re")) {
      model[std::fread(model, 1, sizeof model - 1, file)] = 0;
      std::fclose(file);
    }
    return std::string(model) + "." + std::to_string(getauxval(AT_HWCAP)) + "." + std::to_string(getauxval(AT_HWCAP2)) +
           ".";
  }();
  return made;
}

}  // namespace flashover::target
