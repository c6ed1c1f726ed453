// Types of one value per lane; constants, lane numbers, bits, masks and conversions.
#include "kernel/cpp/prelude/snippets.h"

namespace flashover::kernel::snippets {
namespace {

const Snippet kValues[] = {
    // Types.
    {"VF VI VU VD VL VUL VM VS VUS VC VUC", kVector, R"(
typedef float VF __attribute__((vector_size(4 * W)));
typedef int VI __attribute__((vector_size(4 * W)));
typedef unsigned VU __attribute__((vector_size(4 * W)));
typedef short VS __attribute__((vector_size(2 * W)));
typedef unsigned short VUS __attribute__((vector_size(2 * W)));
typedef signed char VC __attribute__((vector_size(W)));
typedef unsigned char VUC __attribute__((vector_size(W)));
typedef double VD __attribute__((vector_size(8 * WD)));
typedef long long VL __attribute__((vector_size(8 * WD)));
typedef unsigned long long VUL __attribute__((vector_size(8 * WD)));
typedef VI VM;
)"},
    {"VF VI VU VD VL VUL VM", kS1, R"(
typedef float VF;
typedef int VI;
typedef unsigned VU;
typedef double VD;
typedef long VL;
typedef unsigned long VUL;
typedef bool VM;
)"},
    {"splat", kVector, "inline VF splat(float x) { return x - VF{}; }\n"},
    {"splat_i", kVector, "inline VI splat_i(int x) { return x - VI{}; }\n"},
    {"splat_d", kVector, "inline VD splat_d(double x) { return x - VD{}; }\n"},
    {"splat_l", kVector, "inline VL splat_l(long x) { return x - VL{}; }\n"},
    {"splat", kS1, "inline VF splat(float x) { return x; }\n"},
    {"splat_i", kS1, "inline VI splat_i(int x) { return x; }\n"},
    {"splat_d", kS1, "inline VD splat_d(double x) { return x; }\n"},
    {"splat_l", kS1, "inline VL splat_l(long x) { return x; }\n"},
    {"splat_m", kVector, "inline VM splat_m(bool x) { return (x ? -1 : 0) - VI{}; }\n"},
    {"splat_m", kS1, "inline VM splat_m(bool x) { return x; }\n"},
    // Lane numbers from `from`.
    {"iota", kA16,
     "inline VI iota(int from) { return from + VI{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }\n"},
    {"iota", kA8 | kB8, "inline VI iota(int from) { return from + VI{0, 1, 2, 3, 4, 5, 6, 7}; }\n"},
    {"iota", kB4 | kN4, "inline VI iota(int from) { return from + VI{0, 1, 2, 3}; }\n"},
    {"iota", kN2, "inline VI iota(int from) { return from + VI{0, 1}; }\n"},
    {"iota", kS1, "inline VI iota(int from) { return from; }\n"},
    {"iota_l", kAvx512, "inline VL iota_l(long from) { return from + VL{0, 1, 2, 3, 4, 5, 6, 7}; }\n"},
    {"iota_l", kAvx2, "inline VL iota_l(long from) { return from + VL{0, 1, 2, 3}; }\n"},
    {"iota_l", kNeon, "inline VL iota_l(long from) { return from + VL{0, 1}; }\n"},
    {"iota_l", kS1, "inline VL iota_l(long from) { return from; }\n"},
    {"lanes_below", kVector, "inline VM lanes_below(int n) { return iota(0) < n; }\n"},
    {"lanes_below", kS1, "inline VM lanes_below(int n) { return n > 0; }\n"},

    // Bits, masks, conversions.
    {"bits from_bits", kVector, R"(
inline VI bits(VF x) { return (VI)x; }
inline VF from_bits(VI x) { return (VF)x; }
)"},
    {"bits from_bits", kS1, R"(
inline VI bits(VF x) { return __builtin_bit_cast(int, x); }
inline VF from_bits(VI x) { return __builtin_bit_cast(float, x); }
)"},
    {"bits_d from_bits_d", kVector, R"(
inline VL bits_d(VD x) { return (VL)x; }
inline VD from_bits_d(VL x) { return (VD)x; }
)"},
    {"bits_d from_bits_d", kS1, R"(
inline VL bits_d(VD x) { return __builtin_bit_cast(long, x); }
inline VD from_bits_d(VL x) { return __builtin_bit_cast(double, x); }
)"},
    {"i_to_f", kVector, "inline VF i_to_f(VI x) { return __builtin_convertvector(x, VF); }\n"},
    {"i_to_f", kS1, "inline VF i_to_f(VI x) { return (VF)x; }\n"},
    {"f_to_i", kVector & ~kNeon, "inline VI f_to_i(VF x) { return __builtin_convertvector(x, VI); }\n"},
    // (NEON's instruction stops at the ends, where the others give INT_MIN.)
    {"f_to_i", kNeon, R"(
inline VI f_to_i(VF x) {
  return (x >= 2147483648.f) | (x != x) ? splat_i(-2147483647 - 1) : __builtin_convertvector(x, VI);
}
)"},
    {"f_to_i", kS1,
     "inline VI f_to_i(VF x) { return x >= 2147483648.f || !(x >= -2147483648.f) ? -2147483647 - 1 : (int)x; }\n"},
    {"f_to_d", kWide, "inline VD f_to_d(VF x) { return __builtin_convertvector(x, VD); }\n"},
    {"f_to_d", kS1, "inline VD f_to_d(VF x) { return x; }\n"},
    {"d_to_f", kWide, "inline VF d_to_f(VD x) { return __builtin_convertvector(x, VF); }\n"},
    {"d_to_f", kS1, "inline VF d_to_f(VD x) { return (VF)x; }\n"},
    {"i_to_l", kWide, "inline VL i_to_l(VI x) { return __builtin_convertvector(x, VL); }\n"},
    {"i_to_l", kS1, "inline VL i_to_l(VI x) { return x; }\n"},
    {"l_to_i", kWide, "inline VI l_to_i(VL x) { return __builtin_convertvector(x, VI); }\n"},
    {"l_to_i", kS1, "inline VI l_to_i(VL x) { return (VI)x; }\n"},
    {"i_to_d", kWide, "inline VD i_to_d(VI x) { return __builtin_convertvector(x, VD); }\n"},
    {"i_to_d", kS1, "inline VD i_to_d(VI x) { return x; }\n"},
    {"d_to_i", kWide, "inline VI d_to_i(VD x) { return __builtin_convertvector(d_to_l(x), VI); }\n"},
    {"d_to_i", kS1, "inline VI d_to_i(VD x) { return (VI)d_to_l(x); }\n"},
    {"l_to_d", kVector, "inline VD l_to_d(VL x) { return __builtin_convertvector(x, VD); }\n"},
    {"l_to_d", kS1, "inline VD l_to_d(VL x) { return (VD)x; }\n"},
    {"l_to_f", kWide, "inline VF l_to_f(VL x) { return __builtin_convertvector(x, VF); }\n"},
    {"l_to_f", kS1, "inline VF l_to_f(VL x) { return (VF)x; }\n"},
    // Out of range gives INT64_MIN, as the scalar instruction does.
    {"to_long", kAny,
     "inline long to_long(double x) { return x >= 9223372036854775808.0 || !(x >= -9223372036854775808.0) ? "
     "-9223372036854775807L - 1 : (long)x; }\n"},
    {"d_to_l", kAvx512, "inline VL d_to_l(VD x) { return (VL)__builtin_ia32_cvttpd2qq512_mask(x, VL{}, -1, 4); }\n"},
    {"d_to_l", kAvx2,
     "inline VL d_to_l(VD x) { return VL{to_long(x[0]), to_long(x[1]), to_long(x[2]), to_long(x[3])}; }\n"},
    {"d_to_l", kNeon, "inline VL d_to_l(VD x) { return VL{to_long(x[0]), to_long(x[1])}; }\n"},
    {"d_to_l", kS1, "inline VL d_to_l(VD x) { return to_long(x); }\n"},
    {"f_to_l", kWide | kS1, "inline VL f_to_l(VF x) { return d_to_l(f_to_d(x)); }\n"},
    // Masks of 32-bit lanes to and from masks of 64-bit lanes.
    {"m_to_wide", kWide, "inline VL m_to_wide(VM m) { return __builtin_convertvector(m, VL); }\n"},
    {"m_from_wide", kWide, "inline VM m_from_wide(VL m) { return __builtin_convertvector(m, VM); }\n"},
    {"m_to_wide m_from_wide", kS1,
     "inline bool m_to_wide(bool m) { return m; }\ninline bool m_from_wide(bool m) { return m; }\n"},
    {"m_not", kVector, "inline VM m_not(VM m) { return ~m; }\n"},
    {"m_not", kS1, "inline VM m_not(VM m) { return !m; }\n"},
    {"m_to_i", kVector, "inline VI m_to_i(VM m) { return m & 1; }\n"},
    {"m_to_i", kS1, "inline VI m_to_i(VM m) { return m; }\n"},
    {"any_lane", kA16, "inline bool any_lane(VM m) { return __builtin_ia32_cvtd2mask512(m); }\n"},
    {"any_lane", kA8 | kB8, "inline bool any_lane(VM m) { return __builtin_ia32_movmskps256((VF)m); }\n"},
    {"any_lane", kB4, "inline bool any_lane(VM m) { return __builtin_ia32_movmskps((VF)m); }\n"},
    {"any_lane", kN4, R"(
inline bool any_lane(VM m) {
  typedef long long Halves __attribute__((vector_size(16)));
  return (((Halves)m)[0] | ((Halves)m)[1]) != 0;
}
)"},
    {"any_lane", kN2, "inline bool any_lane(VM m) { return (m[0] | m[1]) != 0; }\n"},
    {"any_lane", kS1, "inline bool any_lane(VM m) { return m; }\n"},
    {"any_wide", kAvx512, "inline bool any_wide(VL m) { return __builtin_ia32_cvtq2mask512(m); }\n"},
    {"any_wide", kAvx2, "inline bool any_wide(VL m) { return __builtin_ia32_movmskpd256((VD)m); }\n"},
    {"any_wide", kNeon, "inline bool any_wide(VL m) { return (m[0] | m[1]) != 0; }\n"},
    {"any_wide", kS1, "inline bool any_wide(bool m) { return m; }\n"},
};

}  // namespace

Snippets values() { return kValues; }

}  // namespace flashover::kernel::snippets
