// Text that both emitters write alike.
#pragma once
#include <concepts>
#include <string>

namespace flashover::kernel {

template <std::integral T>
std::string num(T v) {
  return std::to_string(v);
}

}  // namespace flashover::kernel
