// What the user should hear once, from layers that cannot warn: the entry turns notices into Python warnings.
#pragma once
#include <string>
#include <vector>

namespace flashover {

void notice(std::string text);
std::vector<std::string> take_notices();

// The text without what differs from run to run (numbers, names of temporary files): equal causes, equal results.
std::string cause_of(const std::string& text);

}  // namespace flashover
