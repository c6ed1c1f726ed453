// By their names.
#include <iterator>

#include "cpu_kernels/linear.h"

namespace flashover::cpu {

std::optional<Activation> activation_named(std::string_view name) {
  constexpr std::string_view kNames[] = {"none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish"};
  for (size_t i = 0; i < std::size(kNames); ++i)
    if (kNames[i] == name) return static_cast<Activation>(i);
  return std::nullopt;
}

}  // namespace flashover::cpu
