// The header-free C++ library that generated kernels carry inline: vector types, loads and stores of every dtype,
// elementary functions, reductions across lanes. A kernel gets only the snippets it mentions (and what they need):
// compiling only what is called makes one kernel cost 20 ms instead of 1 s.
//
//   In        the text of kernels that call the library, and for which machine and lane count it is meant
//   Out       the text that must stand before them
//   Promises  one source for g++ and clang++; f32 functions within 2 ulp of the true value over the whole range
//             (prelude_test measures them), NaN, inf, -0 and denormals as in libm; no multiply-add contraction but
//             where v_fma is written
//   Sample    prelude("... v_exp(x) ...", {Isa::kAvx512, 16})
//
// One text serves every lane count W: VF/VI/VM are W floats/int32/masks, VD/VL are the doubles/int64 of one register
// (WD lanes; a kernel that holds f64 or i64 values runs with W == WD). With W = 1 they are float, int, bool, double,
// long.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flashover::kernel {

enum class Isa : uint8_t { kScalar, kAvx2, kAvx512, kNeon };

// 32-bit lanes of a register.
constexpr int register_width(Isa isa) {
  constexpr int kWidths[] = {1, 8, 16, 4};
  return kWidths[static_cast<int>(isa)];
}

struct Lanes {
  Isa isa = Isa::kScalar;
  int width = 1;                                                                        // W
  int wide_width() const { return isa == Isa::kScalar ? 1 : register_width(isa) / 2; }  // WD
  bool has_tiles() const { return width >= (isa == Isa::kNeon ? 4 : 8); }               // transpose_tile
  bool operator==(const Lanes&) const = default;
};

// `scope` empty: the names that stand unqualified in the code; else those written "scope::name".
std::string prelude(std::string_view code, Lanes lanes, std::string_view scope = "");
// Every name the library defines for these lanes (for tests).
std::vector<std::string> prelude_names(Lanes lanes);

}  // namespace flashover::kernel
