// How this thread's floating-point unit treats denormals, and how it waits in a loop: instructions of the architecture.
#pragma once
#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace flashover::cpu {

#if defined(__aarch64__)
using FloatState = uint64_t;
constexpr FloatState kFlush = FloatState{1} << 24;  // results and operands
inline FloatState float_state() {
  FloatState state;
  __asm__ volatile("mrs %0, fpcr" : "=r"(state));
  return state;
}
inline void set_float_state(FloatState state) { __asm__ volatile("msr fpcr, %0" ::"r"(state)); }
inline void pause_in_loop() { __asm__ volatile("yield"); }
#else
using FloatState = unsigned;
constexpr FloatState kFlush = 0x8040;  // results and operands
inline FloatState float_state() { return _mm_getcsr(); }
inline void set_float_state(FloatState state) { _mm_setcsr(state); }
inline void pause_in_loop() { _mm_pause(); }
#endif

}  // namespace flashover::cpu
