// Text that both emitters write alike.
#pragma once
#include <concepts>
#include <string>

namespace flashover::kernel {

template <std::integral T>
std::string num(T v) {
  return std::to_string(v);
}

// A decimal number that C++ and Python take for a float: "3" becomes "3.0".
inline std::string as_float(std::string decimal) {
  if (decimal.find_first_of(".e") == std::string::npos) decimal += ".0";
  return decimal;
}

}  // namespace flashover::kernel
