// What the program is taken to do while it is traced, because the other way leads to an exception.
#pragma once
#include <cstdint>

namespace flashover::trace {

struct Assumption {
  // While 0 or 1: that is the truth of a tensor on the CPU whose value is asked for and unknown. The graph checks it
  // when it runs, and raises.
  int truth = -1;
  bool made = false;  // it came to that
};
Assumption& assumption();  // of this thread

inline constexpr char kDifferentiatedTwice[] = "the steps of a recurrent layer are differentiated twice";
bool own_operators();  // whether the trace of this thread may hold operators of ours (Session::own_operators)
int64_t randomness();  // how many random operators the trace of this thread has recorded; 0 outside of one

// How far the trace of this thread is: nodes and values.
struct Position {
  int64_t nodes = 0, values = 0;
};
Position position();
// Whether operators recorded since then draw random numbers, print or check, or write memory from before: what is there
// twice, or where the program does not come by, is another program.
bool has_effects_since(Position since);

}  // namespace flashover::trace
