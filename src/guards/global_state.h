// Torch's state outside tensors that changes what a program computes, packed for one compare.
#pragma once
#include <array>
#include <cstdint>
#include <string>

namespace flashover::guards {

struct GlobalState {
  uint64_t included = 0,
           excluded = 0;           // thread-local dispatch keys: autocast, inference mode, functorch, python modes ...
  uint64_t flags = 0;              // one bit each, see global_state.cpp
  std::array<int8_t, 12> types{};  // default dtype, autocast dtypes, matmul precision ...
  bool operator==(const GlobalState&) const = default;

  static GlobalState read();
  bool holds() const;                                    // read() gives the same; quicker
  std::string difference(const GlobalState& now) const;  // in words; "" if equal
};

// A reason why nothing may be compiled or run compiled on this thread now (torch function or dispatch modes, functorch
// transforms, jit tracing); null if there is none.
const char* state_to_avoid();

}  // namespace flashover::guards
