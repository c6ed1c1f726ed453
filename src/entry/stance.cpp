#include "entry/stance.h"

#include <array>
#include <atomic>

#include "base/check.h"

namespace flashover::entry {
namespace {
const std::array<const char*, 5> kNames = {"default", "force_eager", "eager_on_recompile", "fail_on_recompile",
                                           "eager_then_compile"};
std::atomic<Stance>& stance() {
  static std::atomic<Stance> s{Stance::kDefault};
  return s;
}
}  // namespace

Stance current_stance() { return stance().load(std::memory_order_relaxed); }
const char* stance_name() { return kNames[static_cast<size_t>(current_stance())]; }
void set_stance(const std::string& name) {
  std::string all;
  for (size_t i = 0; i < kNames.size(); i++) {
    if (name == kNames[i]) {
      stance() = static_cast<Stance>(i);
      return;
    }
    all += (i ? ", " : "") + std::string(kNames[i]);
  }
  throw UserError("no stance '" + name + "'; there are " + all);
}

}  // namespace flashover::entry
