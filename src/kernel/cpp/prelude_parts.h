// The parts of the kernel library as data; each defines `names` and is used where `when` says.
#pragma once
#include <span>

namespace flashover::kernel {

// Configurations: scalar, AVX2 with 8 or 4 lanes, AVX-512 with 16 or 8 lanes.
enum Config : unsigned { kS1 = 1, kB8 = 2, kB4 = 4, kA16 = 8, kA8 = 16 };
constexpr unsigned kAvx2 = kB8 | kB4, kAvx512 = kA16 | kA8, kVector = kAvx2 | kAvx512, kAny = kVector | kS1,
                   kWide = kB4 | kA8;  // as many 64-bit lanes as 32-bit ones

struct Part {
  const char* names;  // separated by spaces
  unsigned when;
  const char* text;
};

std::span<const Part> parts();

}  // namespace flashover::kernel
