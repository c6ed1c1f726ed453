// x86-64: a table of each feature of a target's name, and the bits of CPUID and of the saved registers that it needs.
#include "target/features.h"

#include <cpuid.h>

#include <cstdint>

#include "base/isa_limit.h"

namespace flashover::target {
namespace {

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};
Registers leaf(uint32_t number, uint32_t sub) {
  Registers r;
  __get_cpuid_count(number, sub, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

struct Machine {
  Registers leaf1 = leaf(1, 0), leaf7 = leaf(7, 0), leaf7_1 = leaf7.eax >= 1 ? leaf(7, 1) : Registers{};
  // What the operating system saves at a context switch; an instruction set counts only if its registers are.
  uint64_t saved = 0;
  Machine() {
    if (!(leaf1.ecx & bit_OSXSAVE)) return;
    uint32_t lo, hi;
    __asm__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    saved = (uint64_t{hi} << 32) | lo;
  }
};

constexpr uint64_t kYmm = 0x6, kZmm = 0xe6, kTile = 0x60000;

struct Feature {
  const char* name;
  IsaLimit limit;  // the lowest that it can be used under
  uint64_t saved;
  uint32_t leaf1_ecx, leaf7_ebx, leaf7_ecx, leaf7_edx, leaf7_1_eax;
};
constexpr uint32_t kAvx2 = bit_AVX2 | bit_BMI | bit_BMI2;
constexpr uint32_t kAvx2Leaf1 = bit_AVX | bit_FMA | bit_F16C;
constexpr uint32_t kAvx512 = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL | bit_AVX512CD;
constexpr Feature kFeatures[] = {
    {"x86-64", IsaLimit::kScalar, 0, 0, 0, 0, 0, 0},
    {"scalar", IsaLimit::kScalar, 0, 0, 0, 0, 0, 0},
    // The two levels that kernels are generated for.
    {"avx2", IsaLimit::kAvx2, kYmm, kAvx2Leaf1, kAvx2, 0, 0, 0},
    {"avx512", IsaLimit::kAvx512, kZmm, kAvx2Leaf1, kAvx2 | kAvx512, 0, 0, 0},
    // Single instruction sets, named as in /proc/cpuinfo.
    {"avx512f", IsaLimit::kAvx512, kZmm, 0, bit_AVX512F, 0, 0, 0},
    {"avx512_vnni", IsaLimit::kNone, kZmm, 0, bit_AVX512F, bit_AVX512VNNI, 0, 0},
    {"avx512_fp16", IsaLimit::kNone, kZmm, 0, bit_AVX512F, 0, 1u << 23, 0},
    {"avx512_bf16", IsaLimit::kNone, kZmm, 0, bit_AVX512F, 0, 0, 1u << 5},
    {"avx_vnni", IsaLimit::kNone, kYmm, 0, 0, 0, 0, 1u << 4},
    {"amx_tile", IsaLimit::kNone, kTile, 0, 0, 0, 1u << 24, 0},
    {"amx_bf16", IsaLimit::kNone, kTile, 0, 0, 0, (1u << 22) | (1u << 24), 0},
    {"amx_int8", IsaLimit::kNone, kTile, 0, 0, 0, (1u << 25) | (1u << 24), 0},
};

bool has(const Machine& m, std::string_view name) {
  const auto all = [](uint64_t have, uint64_t need) { return (have & need) == need; };
  for (const Feature& f : kFeatures)
    if (name == f.name)
      return f.limit <= isa_limit() && all(m.saved, f.saved) && all(m.leaf1.ecx, f.leaf1_ecx) &&
             all(m.leaf7.ebx, f.leaf7_ebx) && all(m.leaf7.ecx, f.leaf7_ecx) && all(m.leaf7.edx, f.leaf7_edx) &&
             all(m.leaf7_1.eax, f.leaf7_1_eax);
  return false;
}

}  // namespace

bool has_feature(std::string_view name) {
  static const Machine machine;
  return has(machine, name);
}

std::string processor() {
  std::string text = "model " + std::to_string(leaf(1, 0).eax);
  for (const Feature& f : kFeatures)
    if (has_feature(f.name)) text += std::string(" ") + f.name;
  return text;
}

std::string identity() {
  static const std::string made = [] {
    std::string out;
    const auto add = [&out](uint32_t number, uint32_t sub) {
      Registers r;
      if (!__get_cpuid_count(number, sub, &r.eax, &r.ebx, &r.ecx, &r.edx)) return;
      if (number == 1) r.ebx &= 0xffff;       // not the number of the core we happen to run on
      if (number == 1) r.ecx &= ~(1u << 27);  // nor the operating system's switches
      for (const uint32_t word : {r.eax, r.ebx, r.ecx, r.edx}) out += std::to_string(word) + ".";
    };
    add(0, 0);
    add(1, 0);
    add(7, 0);
    add(7, 1);
    for (uint32_t i = 0x80000002; i <= 0x80000004; ++i) add(i, 0);
    return out;
  }();
  return made;
}

}  // namespace flashover::target
