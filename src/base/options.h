// The options table (options.def) and reading validated values. Values travel as text: "True", "8", "/tmp/x".
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace flashover {

struct OptionInfo {
  const char *name, *type, *default_value, *doc;
  int64_t least, most;  // of an int option
  const char* choices;  // of a str option that takes some words only, with commas between; else ""
};
std::span<const OptionInfo> option_table();

using OptionValues = std::map<std::string, std::string>;
// The value of an option, or its default. Asking for a name that is not in the table is a CHECK.
const std::string& option(const OptionValues& values, const std::string& name);
bool bool_option(const OptionValues& values, const std::string& name);
// A value that is no integer within the option's range is a CHECK: the face says it to the user before.
int64_t int_option(const OptionValues& values, const std::string& name);

}  // namespace flashover
