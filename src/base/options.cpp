#include "base/options.h"

#include <cstdlib>

#include "base/check.h"

namespace flashover {
namespace {
const OptionInfo kOptions[] = {
#define FLASHOVER_OPTION(name, type, default_value, doc) {#name, type, default_value, doc},
#include "base/options.def"
#undef FLASHOVER_OPTION
};
}  // namespace

std::span<const OptionInfo> option_table() { return kOptions; }

const std::string& option(const OptionValues& values, const std::string& name) {
  static const OptionValues defaults = [] {
    OptionValues d;
    for (const OptionInfo& o : kOptions) d[o.name] = o.default_value;
    return d;
  }();
  if (auto it = values.find(name); it != values.end()) return it->second;
  auto it = defaults.find(name);
  FLASHOVER_CHECK(it != defaults.end()) << "no option named " << name;
  return it->second;
}
bool bool_option(const OptionValues& values, const std::string& name) { return option(values, name) == "True"; }
int64_t int_option(const OptionValues& values, const std::string& name) {
  return std::strtoll(option(values, name).c_str(), nullptr, 10);
}

}  // namespace flashover
