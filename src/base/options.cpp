// Makes constexpr tables out of options.def, and checks at compile time that the ranges fit the options.
#include "base/options.h"

#include <iterator>
#include <string_view>

#include "base/check.h"
#include "base/decimal.h"

namespace flashover {
namespace {

struct Range {
  const char* name;
  int64_t least, most;
};
constexpr Range kRanges[] = {
#define FLASHOVER_OPTION(name, type, default_value, doc)
#define FLASHOVER_OPTION_RANGE(name, least, most) {#name, least, most},
#define FLASHOVER_OPTION_CHOICES(name, words)
#include "base/options.def"
#undef FLASHOVER_OPTION
#undef FLASHOVER_OPTION_RANGE
#undef FLASHOVER_OPTION_CHOICES
};
struct Choices {
  const char *name, *words;
};
constexpr Choices kChoices[] = {
#define FLASHOVER_OPTION(name, type, default_value, doc)
#define FLASHOVER_OPTION_RANGE(name, least, most)
#define FLASHOVER_OPTION_CHOICES(name, words) {#name, words},
#include "base/options.def"
#undef FLASHOVER_OPTION
#undef FLASHOVER_OPTION_RANGE
#undef FLASHOVER_OPTION_CHOICES
};
constexpr const char* choices_of(std::string_view option) {
  for (const Choices& c : kChoices)
    if (c.name == option) return c.words;
  return "";
}
constexpr Range range_of(std::string_view option) {
  for (const Range& r : kRanges)
    if (r.name == option) return r;
  return {"", 0, -1};
}
constexpr OptionInfo kOptions[] = {
#define FLASHOVER_OPTION(name, type, default_value, doc) \
  {#name, type, default_value, doc, range_of(#name).least, range_of(#name).most, choices_of(#name)},
#define FLASHOVER_OPTION_RANGE(name, least, most)
#define FLASHOVER_OPTION_CHOICES(name, words)
#include "base/options.def"
#undef FLASHOVER_OPTION
#undef FLASHOVER_OPTION_RANGE
#undef FLASHOVER_OPTION_CHOICES
};
// Every int option has a range, and nothing else has.
constexpr bool ranges_fit() {
  size_t integers = 0;
  for (const OptionInfo& o : kOptions) {
    const bool integer = std::string_view(o.type) == "int";
    integers += integer;
    if (integer != (o.least <= o.most)) return false;
  }
  return integers == std::size(kRanges);
}
static_assert(ranges_fit(), "options.def: each int option needs one FLASHOVER_OPTION_RANGE row");

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
  const std::optional<int64_t> value = parse_number<int64_t>(option(values, name));
  const Range range = range_of(name);
  FLASHOVER_CHECK(value && *value >= range.least && *value <= range.most)
      << "option " << name << " is " << option(values, name);
  return *value;
}

}  // namespace flashover
