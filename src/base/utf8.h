// Text from outside, made safe for Python.
#pragma once
#include <string>

namespace flashover {

// The text with every byte that is not UTF-8 replaced by '?': what other programs and file names say may be anything,
// and Python raises on it.
std::string valid_utf8(std::string text);

}  // namespace flashover
