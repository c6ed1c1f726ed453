// By their names.
#include <iterator>

#include "cpu_kernels/linear.h"

namespace flashover::cpu {

static constexpr std::string_view kNames[kActivations] = {"none", "relu",    "gelu",     "gelu_tanh",
                                                          "silu", "sigmoid", "hardswish"};

std::optional<Activation> activation_named(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i)
    if (kNames[i] == name) return static_cast<Activation>(i);
  return std::nullopt;
}

std::string_view name_of(Activation activation) { return kNames[static_cast<size_t>(activation)]; }

}  // namespace flashover::cpu
