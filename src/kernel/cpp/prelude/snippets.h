// The kernel library as data, by subject: C++ as text, which the user's compiler compiles with the lanes of the target,
// not this file's. Each snippet defines `names` and exists in the configurations of `when`.
#pragma once
#include <span>

namespace flashover::kernel::snippets {

// Configurations: scalar, AVX2 with 8 or 4 lanes, AVX-512 with 16 or 8 lanes, NEON with 4 or 2 lanes.
enum Config : unsigned { kS1 = 1, kB8 = 2, kB4 = 4, kA16 = 8, kA8 = 16, kN4 = 32, kN2 = 64 };
constexpr unsigned kAvx2 = kB8 | kB4, kAvx512 = kA16 | kA8, kNeon = kN4 | kN2, kVector = kAvx2 | kAvx512 | kNeon,
                   kAny = kVector | kS1, kWide = kB4 | kA8 | kN2;  // as many 64-bit lanes as 32-bit ones

struct Snippet {
  const char* names;  // separated by spaces
  unsigned when;
  const char* text;
};
using Snippets = std::span<const Snippet>;

Snippets values();
Snippets memory();
Snippets arithmetic();
Snippets functions();
Snippets libm();
Snippets division();
Snippets transpose();
Snippets threads();
Snippets attention();

}  // namespace flashover::kernel::snippets
