// Operations that are an instruction or a few: shifts, loop indices, roundings, minimum and maximum, signs.
#include "kernel/cpp/prelude/snippets.h"

namespace flashover::kernel::snippets {
namespace {

const Snippet kArithmetic[] = {
    {"sign_i sign_l", kVector,
     "inline VI sign_i(VI x) { return (x < 0) - (x > 0); }\ninline VL sign_l(VL x) { return (x < 0) - (x > 0); }\n"},
    {"sign_i sign_l", kS1,
     "inline int sign_i(int x) { return (x > 0) - (x < 0); }\ninline long sign_l(long x) { return (x > 0) - (x < 0); "
     "}\n"},
    // Counts outside [0, bits) shift everything out.
    {"shl_i shl_l", kVector, R"(
inline VI shl_i(VI a, VI b, int bits) { return ((b < 0) | (b >= bits)) ? splat_i(0) : (VI)((VU)a << (VU)(b & 31)); }
inline VL shl_l(VL a, VL b, int bits) { return ((b < 0) | (b >= bits)) ? splat_l(0) : (VL)((VUL)a << (VUL)(b & 63)); }
)"},
    {"shr_i shr_l", kVector, R"(
inline VI shr_i(VI a, VI b, int bits) { return a >> (((b < 0) | (b >= bits)) ? splat_i(bits - 1) : b); }
inline VL shr_l(VL a, VL b, int bits) { return a >> (((b < 0) | (b >= bits)) ? splat_l(bits - 1) : b); }
)"},
    {"shl_i shl_l shr_i shr_l", kS1, R"(
inline int shl_i(int a, int b, int bits) { return b < 0 || b >= bits ? 0 : (int)((unsigned)a << b); }
inline long shl_l(long a, long b, int bits) { return b < 0 || b >= bits ? 0 : (long)((unsigned long)a << b); }
inline int shr_i(int a, int b, int bits) { return a >> (b < 0 || b >= bits ? bits - 1 : b); }
inline long shr_l(long a, long b, int bits) { return a >> (b < 0 || b >= bits ? bits - 1 : b); }
)"},
    // Division of loop indices, rounding down.
    {"index_div index_mod index_min index_max", kAny, R"(
inline long index_min(long a, long b) { return a < b ? a : b; }
inline long index_max(long a, long b) { return a > b ? a : b; }
inline long index_div(long a, long b) { b += b == 0; long q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0)); }
inline long index_mod(long a, long b) { b += b == 0; long r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
)"},

    // With instructions of its own.
    {"v_fma", kA16, "inline VF v_fma(VF a, VF b, VF c) { return __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4); }\n"},
    {"v_fma", kA8 | kB8, "inline VF v_fma(VF a, VF b, VF c) { return __builtin_ia32_vfmaddps256(a, b, c); }\n"},
    {"v_fma", kB4, "inline VF v_fma(VF a, VF b, VF c) { return __builtin_ia32_vfmaddps(a, b, c); }\n"},
// (Clang has not GCC's names of NEON's instructions.)
#define NEON_FMA(name, when, type, mode, lanes)                                                                    \
  {                                                                                                                \
    name, when,                                                                                                    \
        "inline " type " " name "(" type " a, " type " b, " type " c) {\n#ifdef __clang__\n  asm(\"fmla %0." lanes \
        ", %1." lanes ", %2." lanes                                                                                \
        "\" : \"+w\"(c) : \"w\"(a), \"w\"(b));\n  return c;\n#else\n  return __builtin_aarch64_fma" mode           \
        "(a, b, c);\n#endif\n}\n"                                                                                  \
  }
    NEON_FMA("v_fma", kN4, "VF", "v4sf", "4s"),
    NEON_FMA("v_fma", kN2, "VF", "v2sf", "2s"),
    NEON_FMA("d_fma", kNeon, "VD", "v2df", "2d"),
#undef NEON_FMA
    {"v_fma", kS1, "inline VF v_fma(VF a, VF b, VF c) { return __builtin_fmaf(a, b, c); }\n"},
    {"d_fma", kAvx512,
     "inline VD d_fma(VD a, VD b, VD c) { return __builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4); }\n"},
    {"d_fma", kAvx2, "inline VD d_fma(VD a, VD b, VD c) { return __builtin_ia32_vfmaddpd256(a, b, c); }\n"},
    {"d_fma", kS1, "inline VD d_fma(VD a, VD b, VD c) { return __builtin_fma(a, b, c); }\n"},
#define ROUNDINGS(name, mode)                                                                                          \
  {"v_" name, kA16, "inline VF v_" name "(VF x) { return __builtin_ia32_rndscaleps_mask(x, " mode ", x, -1, 4); }\n"}, \
      {"v_" name, kA8 | kB8, "inline VF v_" name "(VF x) { return __builtin_ia32_roundps256(x, " mode "); }\n"},       \
      {"v_" name, kB4, "inline VF v_" name "(VF x) { return __builtin_ia32_roundps(x, " mode "); }\n"},                \
      {"d_" name, kAvx512,                                                                                             \
       "inline VD d_" name "(VD x) { return __builtin_ia32_rndscalepd_mask(x, " mode ", x, -1, 4); }\n"},              \
  {                                                                                                                    \
    "d_" name, kAvx2, "inline VD d_" name "(VD x) { return __builtin_ia32_roundpd256(x, " mode "); }\n"                \
  }
    ROUNDINGS("round", "8"),
    ROUNDINGS("floor", "9"),
    ROUNDINGS("ceil", "10"),
    ROUNDINGS("trunc", "11"),
#undef ROUNDINGS
// Instructions of NEON that the two compilers have different names for.
#define UNARY(name, instruction)                                                                                    \
  {"v_" name, kN4,                                                                                                  \
   "inline VF v_" name "(VF x) { asm(\"" instruction " %0.4s, %1.4s\" : \"=w\"(x) : \"w\"(x)); return x; }\n"},     \
      {"v_" name, kN2,                                                                                              \
       "inline VF v_" name "(VF x) { asm(\"" instruction " %0.2s, %1.2s\" : \"=w\"(x) : \"w\"(x)); return x; }\n"}, \
  {                                                                                                                 \
    "d_" name, kNeon,                                                                                               \
        "inline VD d_" name "(VD x) { asm(\"" instruction " %0.2d, %1.2d\" : \"=w\"(x) : \"w\"(x)); return x; }\n"  \
  }
    UNARY("round", "frintn"),
    UNARY("floor", "frintm"),
    UNARY("ceil", "frintp"),
    UNARY("trunc", "frintz"),
    UNARY("sqrt", "fsqrt"),
#undef UNARY
    {"v_round d_round v_floor d_floor v_ceil d_ceil v_trunc d_trunc", kS1, R"(
inline float v_round(float x) { return __builtin_rintf(x); }
inline double d_round(double x) { return __builtin_rint(x); }
inline float v_floor(float x) { return __builtin_floorf(x); }
inline double d_floor(double x) { return __builtin_floor(x); }
inline float v_ceil(float x) { return __builtin_ceilf(x); }
inline double d_ceil(double x) { return __builtin_ceil(x); }
inline float v_trunc(float x) { return __builtin_truncf(x); }
inline double d_trunc(double x) { return __builtin_trunc(x); }
)"},
    {"v_sqrt", kA16, R"(
#ifdef __clang__
inline VF v_sqrt(VF x) { return __builtin_ia32_sqrtps512(x, 4); }
#else
inline VF v_sqrt(VF x) { return __builtin_ia32_sqrtps512_mask(x, x, -1, 4); }
#endif
)"},
    {"v_sqrt", kA8 | kB8, "inline VF v_sqrt(VF x) { return __builtin_ia32_sqrtps256(x); }\n"},
    {"v_sqrt", kB4, "inline VF v_sqrt(VF x) { return __builtin_ia32_sqrtps(x); }\n"},
    {"v_sqrt", kS1, "inline VF v_sqrt(VF x) { return __builtin_sqrtf(x); }\n"},
    {"d_sqrt", kAvx512, R"(
#ifdef __clang__
inline VD d_sqrt(VD x) { return __builtin_ia32_sqrtpd512(x, 4); }
#else
inline VD d_sqrt(VD x) { return __builtin_ia32_sqrtpd512_mask(x, x, -1, 4); }
#endif
)"},
    {"d_sqrt", kAvx2, "inline VD d_sqrt(VD x) { return __builtin_ia32_sqrtpd256(x); }\n"},
    {"d_sqrt", kS1, "inline VD d_sqrt(VD x) { return __builtin_sqrt(x); }\n"},
    {"v_rsqrt", kAny, "inline VF v_rsqrt(VF x) { return 1.f / v_sqrt(x); }\n"},
    {"d_rsqrt", kAny, "inline VD d_rsqrt(VD x) { return 1.0 / d_sqrt(x); }\n"},
    {"v_abs", kAny, "inline VF v_abs(VF x) { return from_bits(bits(x) & 0x7fffffff); }\n"},
    {"d_abs", kAny, "inline VD d_abs(VD x) { return from_bits_d(bits_d(x) & 0x7fffffffffffffff); }\n"},
    {"v_copysign", kAny,
     "inline VF v_copysign(VF x, VF s) { return from_bits((bits(x) & 0x7fffffff) | (bits(s) & -0x7fffffff - 1)); }\n"},
    {"d_copysign", kAny,
     "inline VD d_copysign(VD x, VD s) { return from_bits_d((bits_d(x) & 0x7fffffffffffffff) | (bits_d(s) & "
     "-0x7fffffffffffffff - 1)); }\n"},
    {"v_max", kAny,
     "inline VF v_max(VF a, VF b) { return (a >= b) | (a != a) ? a : b; }\n"},  // NaN wins, of two zeros the first
    {"v_min", kAny, "inline VF v_min(VF a, VF b) { return (a <= b) | (a != a) ? a : b; }\n"},
    {"d_max", kAny, "inline VD d_max(VD a, VD b) { return (a >= b) | (a != a) ? a : b; }\n"},
    {"d_min", kAny, "inline VD d_min(VD a, VD b) { return (a <= b) | (a != a) ? a : b; }\n"},
    {"v_fmax", kAny, "inline VF v_fmax(VF a, VF b) { return (a >= b) | (b != b) ? a : b; }\n"},  // NaN loses
    {"v_fmin", kAny, "inline VF v_fmin(VF a, VF b) { return (a <= b) | (b != b) ? a : b; }\n"},
    {"d_fmax", kAny, "inline VD d_fmax(VD a, VD b) { return (a >= b) | (b != b) ? a : b; }\n"},
    {"d_fmin", kAny, "inline VD d_fmin(VD a, VD b) { return (a <= b) | (b != b) ? a : b; }\n"},
    // b where the comparison fails, so that NaN in b stays: one instruction
    {"v_max2", kAny, "inline VF v_max2(VF a, VF b) { return a > b ? a : b; }\n"},
    {"v_min2", kAny, "inline VF v_min2(VF a, VF b) { return a < b ? a : b; }\n"},
    // Is any lane of a or b NaN?
    {"unordered", kA16,
     "inline unsigned unordered(VF a, VF b) { return __builtin_ia32_cmpps512_mask(a, b, 3, -1, 4); }\n"},
    {"unordered", kA8, "inline unsigned unordered(VF a, VF b) { return __builtin_ia32_cmpps256_mask(a, b, 3, -1); }\n"},
    {"unordered", kB8,
     "inline unsigned unordered(VF a, VF b) { return __builtin_ia32_movmskps256(__builtin_ia32_cmpps256(a, b, 3)); "
     "}\n"},
    {"unordered", kB4,
     "inline unsigned unordered(VF a, VF b) { return __builtin_ia32_movmskps(__builtin_ia32_cmpps(a, b, 3)); }\n"},
    {"unordered", kNeon, "inline unsigned unordered(VF a, VF b) { return any_lane((a != a) | (b != b)); }\n"},
    {"v_relu", kAny, "inline VF v_relu(VF x) { return splat(0.f) > x ? splat(0.f) : x; }\n"},
    {"d_relu", kAny, "inline VD d_relu(VD x) { return splat_d(0.0) > x ? splat_d(0.0) : x; }\n"},
    {"v_sign", kAny,
     "inline VF v_sign(VF x) { return x > 0.f ? splat(1.f) : (x < 0.f ? splat(-1.f) : splat(0.f)); }\n"},
    {"d_sign", kAny,
     "inline VD d_sign(VD x) { return x > 0.0 ? splat_d(1.0) : (x < 0.0 ? splat_d(-1.0) : splat_d(0.0)); }\n"},
    {"v_isinf", kAny, "inline VM v_isinf(VF x) { return (bits(x) & 0x7fffffff) == 0x7f800000; }\n"},
    {"d_isinf", kWide | kS1,
     "inline VM d_isinf(VD x) { return m_from_wide((bits_d(x) & 0x7fffffffffffffff) == 0x7ff0000000000000); }\n"},
};

}  // namespace

Snippets arithmetic() { return kArithmetic; }

}  // namespace flashover::kernel::snippets
