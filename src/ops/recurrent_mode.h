// The kinds of recurrent layers, as the operators rnn_steps number them, and what a step of each has.
#pragma once
#include <cstdint>

namespace flashover::ops {

enum class RecurrentMode : uint8_t { kRelu, kTanh, kLstm, kGru };

// In units of a state: what the gates of a step take, and what the backward needs of a step.
constexpr int64_t gates_of(RecurrentMode mode) {
  return mode == RecurrentMode::kGru ? 3 : mode == RecurrentMode::kLstm ? 4 : 1;
}
constexpr int64_t kept_of(RecurrentMode mode) {
  return mode == RecurrentMode::kGru ? 4 : mode == RecurrentMode::kLstm ? 5 : 0;
}

}  // namespace flashover::ops
