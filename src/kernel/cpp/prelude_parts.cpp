// C++ as text: it is compiled by the user's compiler, with the lanes of the target, not with this file.
#include "kernel/cpp/prelude_parts.h"

namespace flashover::kernel {
namespace {

const Part kParts[] = {
    // ---- types
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
    {"iota", kB4, "inline VI iota(int from) { return from + VI{0, 1, 2, 3}; }\n"},
    {"iota", kS1, "inline VI iota(int from) { return from; }\n"},
    {"iota_l", kAvx512, "inline VL iota_l(long from) { return from + VL{0, 1, 2, 3, 4, 5, 6, 7}; }\n"},
    {"iota_l", kAvx2, "inline VL iota_l(long from) { return from + VL{0, 1, 2, 3}; }\n"},
    {"iota_l", kS1, "inline VL iota_l(long from) { return from; }\n"},
    {"lanes_below", kVector, "inline VM lanes_below(int n) { return iota(0) < n; }\n"},
    {"lanes_below", kS1, "inline VM lanes_below(int n) { return n > 0; }\n"},

    // ---- bits, masks, conversions
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
    {"f_to_i", kVector, "inline VI f_to_i(VF x) { return __builtin_convertvector(x, VI); }\n"},
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
    {"d_to_l", kS1, "inline VL d_to_l(VD x) { return to_long(x); }\n"},
    {"f_to_l", kA8 | kB4 | kS1, "inline VL f_to_l(VF x) { return d_to_l(f_to_d(x)); }\n"},
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
    {"any_lane", kS1, "inline bool any_lane(VM m) { return m; }\n"},
    {"any_wide", kAvx512, "inline bool any_wide(VL m) { return __builtin_ia32_cvtq2mask512(m); }\n"},
    {"any_wide", kAvx2, "inline bool any_wide(VL m) { return __builtin_ia32_movmskpd256((VD)m); }\n"},
    {"any_wide", kS1, "inline bool any_wide(bool m) { return m; }\n"},

    // The two compilers give these builtins different pointer types.
    {"MaskedF MaskedS MaskedC V16C", kAvx512, R"(
typedef char V16C __attribute__((vector_size(16)));
#ifdef __clang__
typedef VF MaskedF;
typedef VS MaskedS;
typedef V16C MaskedC;
#else
typedef float MaskedF;
typedef short MaskedS;
typedef char MaskedC;
#endif
)"},
    // ---- memory: full vectors, and the first n lanes (the others read as zero, nothing beyond is touched)
    {"load_f32 store_f32", kAny, R"(
inline VF load_f32(const float* p) { VF v; __builtin_memcpy(&v, p, sizeof v); return v; }
inline void store_f32(float* p, VF v) { __builtin_memcpy(p, &v, sizeof v); }
)"},
    {"load_f32_n store_f32_n", kA16, R"(
inline VF load_f32_n(const float* p, int n) { return __builtin_ia32_loadups512_mask(p, VF{}, (1u << n) - 1); }
inline void store_f32_n(float* p, VF v, int n) { __builtin_ia32_storeups512_mask(p, v, (1u << n) - 1); }
)"},
    {"load_f32_n store_f32_n", kA8, R"(
inline VF load_f32_n(const float* p, int n) { return __builtin_ia32_loadups256_mask((const MaskedF*)p, VF{}, (1u << n) - 1); }
inline void store_f32_n(float* p, VF v, int n) { __builtin_ia32_storeups256_mask((MaskedF*)p, v, (1u << n) - 1); }
)"},
    {"load_f32_n store_f32_n", kB8, R"(
typedef float MaskF __attribute__((vector_size(32)));
inline VF load_f32_n(const float* p, int n) { return __builtin_ia32_maskloadps256((const MaskF*)p, lanes_below(n)); }
inline void store_f32_n(float* p, VF v, int n) { __builtin_ia32_maskstoreps256((MaskF*)p, lanes_below(n), v); }
)"},
    {"load_f32_n store_f32_n", kB4 | kS1, R"(
inline VF load_f32_n(const float* p, int n) { VF v{}; __builtin_memcpy(&v, p, 4 * n); return v; }
inline void store_f32_n(float* p, VF v, int n) { __builtin_memcpy(p, &v, 4 * n); }
)"},
    {"load_i32 store_i32", kAny, R"(
inline VI load_i32(const int* p) { VI v; __builtin_memcpy(&v, p, sizeof v); return v; }
inline void store_i32(int* p, VI v) { __builtin_memcpy(p, &v, sizeof v); }
)"},
    {"load_i32_n store_i32_n", kAny, R"(
inline VI load_i32_n(const int* p, int n) { return bits(load_f32_n((const float*)p, n)); }
inline void store_i32_n(int* p, VI v, int n) { store_f32_n((float*)p, from_bits(v), n); }
)"},
    {"load_f64 store_f64", kAny, R"(
inline VD load_f64(const double* p) { VD v; __builtin_memcpy(&v, p, sizeof v); return v; }
inline void store_f64(double* p, VD v) { __builtin_memcpy(p, &v, sizeof v); }
)"},
    {"load_f64_n store_f64_n", kAvx512, R"(
inline VD load_f64_n(const double* p, int n) { return __builtin_ia32_loadupd512_mask(p, VD{}, (1u << n) - 1); }
inline void store_f64_n(double* p, VD v, int n) { __builtin_ia32_storeupd512_mask(p, v, (1u << n) - 1); }
)"},
    {"load_f64_n store_f64_n", kAvx2 | kS1, R"(
inline VD load_f64_n(const double* p, int n) { VD v{}; __builtin_memcpy(&v, p, 8 * n); return v; }
inline void store_f64_n(double* p, VD v, int n) { __builtin_memcpy(p, &v, 8 * n); }
)"},
    {"load_i64 store_i64", kAny, R"(
inline VL load_i64(const long* p) { VL v; __builtin_memcpy(&v, p, sizeof v); return v; }
inline void store_i64(long* p, VL v) { __builtin_memcpy(p, &v, sizeof v); }
)"},
    {"load_i64_n store_i64_n", kAny, R"(
inline VL load_i64_n(const long* p, int n) { return bits_d(load_f64_n((const double*)p, n)); }
inline void store_i64_n(long* p, VL v, int n) { store_f64_n((double*)p, from_bits_d(v), n); }
)"},
    // 16-bit lanes as they lie in memory
    {"load_16 store_16", kVector, R"(
inline VUS load_16(const unsigned short* p) { VUS v; __builtin_memcpy(&v, p, sizeof v); return v; }
inline void store_16(unsigned short* p, VUS v) { __builtin_memcpy(p, &v, sizeof v); }
)"},
    {"load_16_n store_16_n", kA16, R"(
inline VUS load_16_n(const unsigned short* p, int n) { return (VUS)__builtin_ia32_loaddquhi256_mask((const MaskedS*)p, VS{}, (1u << n) - 1); }
inline void store_16_n(unsigned short* p, VUS v, int n) { __builtin_ia32_storedquhi256_mask((MaskedS*)p, (VS)v, (1u << n) - 1); }
)"},
    {"load_16_n store_16_n", kA8, R"(
inline VUS load_16_n(const unsigned short* p, int n) { return (VUS)__builtin_ia32_loaddquhi128_mask((const MaskedS*)p, VS{}, (1u << n) - 1); }
inline void store_16_n(unsigned short* p, VUS v, int n) { __builtin_ia32_storedquhi128_mask((MaskedS*)p, (VS)v, (1u << n) - 1); }
)"},
    {"load_16_n store_16_n", kAvx2, R"(
inline VUS load_16_n(const unsigned short* p, int n) { VUS v{}; __builtin_memcpy(&v, p, 2 * n); return v; }
inline void store_16_n(unsigned short* p, VUS v, int n) { __builtin_memcpy(p, &v, 2 * n); }
)"},
    {"load_8 store_8", kVector, R"(
inline VC load_8(const signed char* p) { VC v; __builtin_memcpy(&v, p, sizeof v); return v; }
inline void store_8(signed char* p, VC v) { __builtin_memcpy(p, &v, sizeof v); }
)"},
    {"load_8_n store_8_n", kA16, R"(
inline VC load_8_n(const signed char* p, int n) { return (VC)__builtin_ia32_loaddquqi128_mask((const MaskedC*)p, V16C{}, (1u << n) - 1); }
inline void store_8_n(signed char* p, VC v, int n) { __builtin_ia32_storedquqi128_mask((MaskedC*)p, (V16C)v, (1u << n) - 1); }
)"},
    {"load_8_n store_8_n", kA8 | kAvx2, R"(
inline VC load_8_n(const signed char* p, int n) { VC v{}; __builtin_memcpy(&v, p, n); return v; }
inline void store_8_n(signed char* p, VC v, int n) { __builtin_memcpy(p, &v, n); }
)"},
    // bf16: round to nearest even, NaN quiet, as torch's scalar conversion
    {"bf16_to_f f_to_bf16", kVector & ~kA16, R"(
inline VF bf16_to_f(VUS h) { return (VF)(__builtin_convertvector(h, VU) << 16); }
inline VUS f_to_bf16(VF x) {
  VU u = (VU)x;
  VU r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return __builtin_convertvector(x != x ? 0x7fc0u - VU{} : r, VUS);
}
)"},
    // The instruction takes denormals for zero: lanes with such are rounded as elsewhere.
    {"bf16_to_f f_to_bf16", kA16, R"(
inline VF bf16_to_f(VUS h) { return (VF)(__builtin_convertvector(h, VU) << 16); }
inline VUS f_to_bf16(VF x) {
  VU u = (VU)x;
#if defined(__AVX512BF16__) && (!defined(__clang__) || __has_builtin(__builtin_ia32_cvtneps2bf16_512))
  typedef int VInt __attribute__((vector_size(64)));
  if (__builtin_expect(!__builtin_ia32_ucmpd512_mask((VInt)((u & 0x7fffffffu) - 1u), (VInt)(VU{} + 0x7fffffu), 1, -1), 1)) {
#ifdef __clang__
    auto h = __builtin_ia32_cvtneps2bf16_512(x);
#else
    auto h = __builtin_ia32_cvtneps2bf16_v16sf(x);
#endif
    return __builtin_bit_cast(VUS, h);
  }
#endif
  VU r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return __builtin_convertvector(x != x ? 0x7fc0u - VU{} : r, VUS);
}
)"},
    {"f16_to_f f_to_f16", kA16, R"(
inline VF f16_to_f(VUS h) { return __builtin_ia32_vcvtph2ps512_mask((VS)h, VF{}, -1, 4); }
inline VUS f_to_f16(VF x) { return (VUS)__builtin_ia32_vcvtps2ph512_mask(x, 0, VS{}, -1); }
)"},
    {"f16_to_f f_to_f16", kA8 | kB8, R"(
inline VF f16_to_f(VUS h) { return __builtin_ia32_vcvtph2ps256((VS)h); }
inline VUS f_to_f16(VF x) { return (VUS)__builtin_ia32_vcvtps2ph256(x, 0); }
)"},
    {"f16_to_f f_to_f16", kB4, R"(
typedef short V8S __attribute__((vector_size(16)));
inline VF f16_to_f(VUS h) { return __builtin_ia32_vcvtph2ps(V8S{(short)h[0], (short)h[1], (short)h[2], (short)h[3]}); }
inline VUS f_to_f16(VF x) { V8S r = (V8S)__builtin_ia32_vcvtps2ph(x, 0); VUS v; __builtin_memcpy(&v, &r, sizeof v); return v; }
)"},
    // One bf16 or f16 value, in integers.
    {"bf16_to_float float_to_bf16", kAny, R"(
inline float bf16_to_float(unsigned short h) { return __builtin_bit_cast(float, (unsigned)h << 16); }
inline unsigned short float_to_bf16(float x) {
  unsigned u = __builtin_bit_cast(unsigned, x);
  return x != x ? 0x7fc0 : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}
)"},
    {"f16_to_float float_to_f16", kAny, R"(
inline float f16_to_float(unsigned short h) {
  unsigned sign = (unsigned)(h & 0x8000) << 16, rest = h & 0x7fff;
  float f = rest >= 0x7c00 ? __builtin_bit_cast(float, 0x7f800000u | (rest << 13))
                           : __builtin_bit_cast(float, rest << 13) * 0x1p112f;  // also right for denormals
  return __builtin_bit_cast(float, __builtin_bit_cast(unsigned, f) | sign);
}
inline unsigned short float_to_f16(float x) {
  unsigned u = __builtin_bit_cast(unsigned, x), sign = (u >> 16) & 0x8000;
  u &= 0x7fffffff;
  if (u >= 0x47800000) return sign | (u > 0x7f800000 ? 0x7e00 | ((u >> 13) & 0x3ff) : 0x7c00);
  if (u < 0x38800000) {  // denormal result: let an addition do the rounding
    float f = __builtin_bit_cast(float, u) + 0.5f;
    return sign | (__builtin_bit_cast(unsigned, f) - 0x3f000000);
  }
  return sign | ((u - 0x38000000 + 0xfff + ((u >> 13) & 1)) >> 13);
}
)"},
    {"load_bf16 store_bf16 load_bf16_n store_bf16_n", kVector, R"(
inline VF load_bf16(const unsigned short* p) { return bf16_to_f(load_16(p)); }
inline void store_bf16(unsigned short* p, VF v) { store_16(p, f_to_bf16(v)); }
inline VF load_bf16_n(const unsigned short* p, int n) { return bf16_to_f(load_16_n(p, n)); }
inline void store_bf16_n(unsigned short* p, VF v, int n) { store_16_n(p, f_to_bf16(v), n); }
)"},
    {"load_f16 store_f16 load_f16_n store_f16_n", kVector, R"(
inline VF load_f16(const unsigned short* p) { return f16_to_f(load_16(p)); }
inline void store_f16(unsigned short* p, VF v) { store_16(p, f_to_f16(v)); }
inline VF load_f16_n(const unsigned short* p, int n) { return f16_to_f(load_16_n(p, n)); }
inline void store_f16_n(unsigned short* p, VF v, int n) { store_16_n(p, f_to_f16(v), n); }
)"},
    {"load_bf16 store_bf16", kS1, R"(
inline VF load_bf16(const unsigned short* p) { return bf16_to_float(*p); }
inline void store_bf16(unsigned short* p, VF v) { *p = float_to_bf16(v); }
)"},
    {"load_f16 store_f16", kS1, R"(
inline VF load_f16(const unsigned short* p) { return f16_to_float(*p); }
inline void store_f16(unsigned short* p, VF v) { *p = float_to_f16(v); }
)"},
    // Rounding of an f32 value to bf16 or f16 precision, kept as f32.
    {"round_bf16", kVector, "inline VF round_bf16(VF x) { return bf16_to_f(f_to_bf16(x)); }\n"},
    {"round_bf16", kS1, "inline VF round_bf16(VF x) { return bf16_to_float(float_to_bf16(x)); }\n"},
    {"round_f16", kVector, "inline VF round_f16(VF x) { return f16_to_f(f_to_f16(x)); }\n"},
    {"round_f16", kS1, "inline VF round_f16(VF x) { return f16_to_float(float_to_f16(x)); }\n"},
    {"load_i16 store_i16 load_i16_n store_i16_n", kVector, R"(
inline VI load_i16(const short* p) { return __builtin_convertvector((VS)load_16((const unsigned short*)p), VI); }
inline void store_i16(short* p, VI v) { store_16((unsigned short*)p, __builtin_convertvector(v, VUS)); }
inline VI load_i16_n(const short* p, int n) { return __builtin_convertvector((VS)load_16_n((const unsigned short*)p, n), VI); }
inline void store_i16_n(short* p, VI v, int n) { store_16_n((unsigned short*)p, __builtin_convertvector(v, VUS), n); }
)"},
    {"load_i8 store_i8 load_i8_n store_i8_n", kVector, R"(
inline VI load_i8(const signed char* p) { return __builtin_convertvector(load_8(p), VI); }
inline void store_i8(signed char* p, VI v) { store_8(p, __builtin_convertvector(v, VC)); }
inline VI load_i8_n(const signed char* p, int n) { return __builtin_convertvector(load_8_n(p, n), VI); }
inline void store_i8_n(signed char* p, VI v, int n) { store_8_n(p, __builtin_convertvector(v, VC), n); }
)"},
    {"load_u8 store_u8 load_u8_n store_u8_n", kVector, R"(
inline VI load_u8(const unsigned char* p) { return __builtin_convertvector((VUC)load_8((const signed char*)p), VI); }
inline void store_u8(unsigned char* p, VI v) { store_8((signed char*)p, __builtin_convertvector(v, VC)); }
inline VI load_u8_n(const unsigned char* p, int n) { return __builtin_convertvector((VUC)load_8_n((const signed char*)p, n), VI); }
inline void store_u8_n(unsigned char* p, VI v, int n) { store_8_n((signed char*)p, __builtin_convertvector(v, VC), n); }
)"},
    {"load_b8 store_b8 load_b8_n store_b8_n", kVector, R"(
inline VM load_b8(const bool* p) { return __builtin_convertvector(load_8((const signed char*)p), VI) != 0; }
inline void store_b8(bool* p, VM v) { store_8((signed char*)p, __builtin_convertvector(v & 1, VC)); }
inline VM load_b8_n(const bool* p, int n) { return __builtin_convertvector(load_8_n((const signed char*)p, n), VI) != 0; }
inline void store_b8_n(bool* p, VM v, int n) { store_8_n((signed char*)p, __builtin_convertvector(v & 1, VC), n); }
)"},
    {"load_i16 store_i16 load_i8 store_i8 load_u8 store_u8 load_b8 store_b8", kS1, R"(
inline VI load_i16(const short* p) { return *p; }
inline void store_i16(short* p, VI v) { *p = (short)v; }
inline VI load_i8(const signed char* p) { return *p; }
inline void store_i8(signed char* p, VI v) { *p = (signed char)v; }
inline VI load_u8(const unsigned char* p) { return *p; }
inline void store_u8(unsigned char* p, VI v) { *p = (unsigned char)v; }
inline VM load_b8(const bool* p) { return *(const unsigned char*)p != 0; }
inline void store_b8(bool* p, VM v) { *p = v; }
)"},
    // Values of lanes kept below their width: what a store and a load would make of them.
    {"wrap_i8", kAny, "inline VI wrap_i8(VI x) { return (VI)((VU)x << 24) >> 24; }\n"},
    {"wrap_u8", kAny, "inline VI wrap_u8(VI x) { return x & 0xff; }\n"},
    {"wrap_i16", kAny, "inline VI wrap_i16(VI x) { return (VI)((VU)x << 16) >> 16; }\n"},

    // Lanes l with from <= l < to.
    {"lanes_in", kVector, R"(
inline VM lanes_in(long from, long to) {
  int a = from < -W ? -W : from > W ? W : (int)from, b = to < -W ? -W : to > W ? W : (int)to;
  return (iota(0) >= a) & (iota(0) < b);
}
)"},
    // Lanes where the mask is set; the others read as zero and are not touched.
    {"load_f32_m store_f32_m", kA16, R"(
inline VF load_f32_m(const float* p, VM m) { return __builtin_ia32_loadups512_mask(p, VF{}, __builtin_ia32_cvtd2mask512(m)); }
inline void store_f32_m(float* p, VF v, VM m) { __builtin_ia32_storeups512_mask(p, v, __builtin_ia32_cvtd2mask512(m)); }
)"},
    {"load_f32_m store_f32_m", kA8, R"(
inline VF load_f32_m(const float* p, VM m) { return __builtin_ia32_loadups256_mask((const MaskedF*)p, VF{}, __builtin_ia32_movmskps256((VF)m)); }
inline void store_f32_m(float* p, VF v, VM m) { __builtin_ia32_storeups256_mask((MaskedF*)p, v, __builtin_ia32_movmskps256((VF)m)); }
)"},
    {"load_f32_m store_f32_m", kB8, R"(
inline VF load_f32_m(const float* p, VM m) { return __builtin_ia32_maskloadps256((const MaskF*)p, m); }
inline void store_f32_m(float* p, VF v, VM m) { __builtin_ia32_maskstoreps256((MaskF*)p, m, v); }
)"},
    {"load_f32_m store_f32_m", kB4, R"(
inline VF load_f32_m(const float* p, VM m) { VF v{}; for (int l = 0; l < W; ++l) if (m[l]) v[l] = p[l]; return v; }
inline void store_f32_m(float* p, VF v, VM m) { for (int l = 0; l < W; ++l) if (m[l]) p[l] = v[l]; }
)"},
    {"load_i32_m store_i32_m", kVector, R"(
inline VI load_i32_m(const int* p, VM m) { return bits(load_f32_m((const float*)p, m)); }
inline void store_i32_m(int* p, VI v, VM m) { store_f32_m((float*)p, from_bits(v), m); }
)"},
    {"load_16_m", kA16, R"(
inline VUS load_16_m(const unsigned short* p, VM m) { return (VUS)__builtin_ia32_loaddquhi256_mask((const MaskedS*)p, VS{}, __builtin_ia32_cvtd2mask512(m)); }
)"},
    {"load_16_m", kVector & ~kA16, R"(
inline VUS load_16_m(const unsigned short* p, VM m) { VUS v{}; for (int l = 0; l < W; ++l) if (m[l]) v[l] = p[l]; return v; }
)"},
    {"store_16_m", kVector, R"(
inline void store_16_m(unsigned short* p, VUS v, VM m) { for (int l = 0; l < W; ++l) if (m[l]) p[l] = v[l]; }
)"},
    {"load_bf16_m store_bf16_m", kVector, R"(
inline VF load_bf16_m(const unsigned short* p, VM m) { return bf16_to_f(load_16_m(p, m)); }
inline void store_bf16_m(unsigned short* p, VF v, VM m) { store_16_m(p, f_to_bf16(v), m); }
)"},
    {"load_f16_m store_f16_m", kVector, R"(
inline VF load_f16_m(const unsigned short* p, VM m) { return f16_to_f(load_16_m(p, m)); }
inline void store_f16_m(unsigned short* p, VF v, VM m) { store_16_m(p, f_to_f16(v), m); }
)"},
    // Every stride-th element from p: p[0], p[stride] ... ; every second one by shuffling two loads that stay inside.
    {"load_f32_2", kA16, R"(
inline VF load_f32_2(const float* p) {
  return __builtin_shufflevector(load_f32(p), load_f32(p + 15), 0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31);
}
)"},
    {"load_f32_2", kA8 | kB8, R"(
inline VF load_f32_2(const float* p) { return __builtin_shufflevector(load_f32(p), load_f32(p + 7), 0, 2, 4, 6, 9, 11, 13, 15); }
)"},
    {"load_f32_2", kB4, R"(
inline VF load_f32_2(const float* p) { return VF{p[0], p[2], p[4], p[6]}; }
)"},
    {"gather_f32", kA16, R"(
inline VF gather_f32(const float* p, VI at, VM m) { return __builtin_ia32_gathersiv16sf(VF{}, p, at, __builtin_ia32_cvtd2mask512(m), 4); }
)"},
    {"gather_f32", kA8, R"(
inline VF gather_f32(const float* p, VI at, VM m) { return __builtin_ia32_gather3siv8sf(VF{}, p, at, __builtin_ia32_movmskps256((VF)m), 4); }
)"},
    {"gather_f32", kB8, R"(
#ifdef __clang__
inline VF gather_f32(const float* p, VI at, VM m) { return __builtin_ia32_gatherd_ps256(VF{}, p, at, (VF)m, 4); }
#else
inline VF gather_f32(const float* p, VI at, VM m) { return __builtin_ia32_gathersiv8sf(VF{}, p, at, (VF)m, 4); }
#endif
)"},
    {"gather_f32", kB4, R"(
inline VF gather_f32(const float* p, VI at, VM m) { VF v{}; for (int l = 0; l < W; ++l) if (m[l]) v[l] = p[at[l]]; return v; }
)"},
    {"all_lanes", kVector, "inline bool all_lanes(VM m) { return !any_lane(~m); }\n"},
    // Unsigned types that only scalar code handles.
    {"load_u16 store_u16 load_u32 store_u32 wrap_u16 wrap_u32", kS1, R"(
inline int load_u16(const unsigned short* p) { return *p; }
inline void store_u16(unsigned short* p, int v) { *p = (unsigned short)v; }
inline long load_u32(const unsigned* p) { return *p; }
inline void store_u32(unsigned* p, long v) { *p = (unsigned)v; }
inline int wrap_u16(int v) { return v & 0xffff; }
inline long wrap_u32(long v) { return v & 0xffffffff; }
)"},
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
inline long index_div(long a, long b) { long q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0)); }
inline long index_mod(long a, long b) { long r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
)"},

    // ---- arithmetic with instructions of its own
    {"v_fma", kA16, "inline VF v_fma(VF a, VF b, VF c) { return __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4); }\n"},
    {"v_fma", kA8 | kB8, "inline VF v_fma(VF a, VF b, VF c) { return __builtin_ia32_vfmaddps256(a, b, c); }\n"},
    {"v_fma", kB4, "inline VF v_fma(VF a, VF b, VF c) { return __builtin_ia32_vfmaddps(a, b, c); }\n"},
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
    {"v_relu", kAny, "inline VF v_relu(VF x) { return splat(0.f) > x ? splat(0.f) : x; }\n"},
    {"d_relu", kAny, "inline VD d_relu(VD x) { return splat_d(0.0) > x ? splat_d(0.0) : x; }\n"},
    {"v_sign", kAny,
     "inline VF v_sign(VF x) { return x > 0.f ? splat(1.f) : (x < 0.f ? splat(-1.f) : splat(0.f)); }\n"},
    {"d_sign", kAny,
     "inline VD d_sign(VD x) { return x > 0.0 ? splat_d(1.0) : (x < 0.0 ? splat_d(-1.0) : splat_d(0.0)); }\n"},
    {"v_isinf", kAny, "inline VM v_isinf(VF x) { return (bits(x) & 0x7fffffff) == 0x7f800000; }\n"},
    {"d_isinf", kWide | kS1,
     "inline VM d_isinf(VD x) { return m_from_wide((bits_d(x) & 0x7fffffffffffffff) == 0x7ff0000000000000); }\n"},

    // ---- elementary functions, f32
    {"v_ldexp", kA16, "inline VF v_ldexp(VF p, VF n) { return __builtin_ia32_scalefps512_mask(p, n, p, -1, 4); }\n"},
    {"v_ldexp", kA8, "inline VF v_ldexp(VF p, VF n) { return __builtin_ia32_scalefps256_mask(p, n, p, -1); }\n"},
    // Two factors, so that results down to the smallest denormal are rounded once. |n| < 250.
    {"v_ldexp", kAvx2 | kS1, R"(
inline VF v_ldexp(VF p, VF n) {
  VI i = f_to_i(n), h = i >> 1;
  return p * from_bits((h + 127) << 23) * from_bits((i - h + 127) << 23);
}
)"},
    {"d_ldexp", kAvx512, "inline VD d_ldexp(VD p, VD n) { return __builtin_ia32_scalefpd512_mask(p, n, p, -1, 4); }\n"},
    {"d_ldexp", kAvx2 | kS1, R"(
inline VD d_ldexp(VD p, VD n) {
  VL i = bits_d(n + 0x1.8p52) - 0x4338000000000000, h = i >> 1;
  return p * from_bits_d((h + 1023) << 52) * from_bits_d((i - h + 1023) << 52);
}
)"},
    // exp(r) - 1 - r over |r| <= ln2 / 2, divided by r^2
    {"exp_tail", kAny, R"(
inline VF exp_tail(VF r) {
  VF p = splat(1.9875691500e-4f);
  p = v_fma(p, r, splat(1.3981999507e-3f));
  p = v_fma(p, r, splat(8.3334519073e-3f));
  p = v_fma(p, r, splat(4.1665795894e-2f));
  p = v_fma(p, r, splat(1.6666665459e-1f));
  return v_fma(p, r, splat(5.0000001201e-1f));
}
)"},
    // x = n ln2 + r; NaN stays in r
    {"exp_reduce", kAny, R"(
inline VF exp_reduce(VF x, VF& n) {
  n = v_fma(x, splat(1.44269504f), splat(12582912.f)) - 12582912.f;
  return v_fma(n, splat(2.12194440e-4f), v_fma(n, splat(-0.693359375f), x));
}
)"},
    // exp without care for the ends: -104 <= x <= 90 (or NaN)
    {"exp_inside", kAny, R"(
inline VF exp_inside(VF x) {
  VF n, r = exp_reduce(x, n);
  VF p = splat(1.38431834e-3f);
  p = v_fma(p, r, splat(8.37455969e-3f));
  p = v_fma(p, r, splat(4.16680276e-2f));
  p = v_fma(p, r, splat(0.166664273f));
  p = v_fma(p, r, splat(0.49999994f));
  p = v_fma(p, r, splat(1.f));
  return v_ldexp(v_fma(p, r, splat(1.f)), n);
}
)"},
    {"v_exp", kAny, R"(
inline VF v_exp(VF x) {
  VM none = x < -103.98f;  // 0, and by no way through denormals: -inf in attention masks is common, a denormal costs 150 cycles
  VF y = exp_inside(v_min2(splat(90.f), none ? splat(0.f) : x));
  return none ? splat(0.f) : y;
}
)"},
    // 1 / d for 2^-125 < |d| < 2^125, within 1 ulp: a divider is five times as slow
    {"v_recip", kA16, R"(
inline VF v_recip(VF d) {
  VF r = __builtin_ia32_rcp14ps512_mask(d, d, -1);
  return v_fma(r, v_fma(-d, r, splat(1.f)), r);
}
)"},
    {"v_recip", kA8, R"(
inline VF v_recip(VF d) {
  VF r = __builtin_ia32_rcp14ps256_mask(d, d, -1);
  return v_fma(r, v_fma(-d, r, splat(1.f)), r);
}
)"},
    {"v_recip", kAvx2, "inline VF v_recip(VF d) { return 1.f / d; }\n"},
    // As one lane of the vectors beside it: a value has the same bits wherever it is computed.
    {"v_recip", kS1, R"(
#ifdef __AVX512VL__
inline VF v_recip(VF d) {
  typedef float F4 __attribute__((vector_size(16)));
  F4 x = {d, d, d, d};
  VF r = __builtin_ia32_rcp14ps128_mask(x, x, -1)[0];
  return v_fma(r, v_fma(-d, r, splat(1.f)), r);
}
#else
inline VF v_recip(VF d) { return 1.f / d; }
#endif
)"},
    // x / s for one s and many x: the quotient by r = 1 / s (0: s is too large or small), corrected by its remainder
    {"div_by", kAny, R"(
inline float div_by(float s) { float a = __builtin_fabsf(s); return (a > 0x1p-120f) & (a < 0x1p120f) ? 1.f / s : 0.f; }
)"},
    {"v_div_by", kVector, R"(
inline VF v_div_by(VF x, float s, float r) {
  if (__builtin_expect(r == 0.f, 0)) return x / s;
  VF q = x * r, c = v_fma(v_fma(q, splat(s), -x), splat(-r), q);  // -0 / s stays -0
  return c == c ? c : q;
}
)"},
    {"v_exp2", kAny, R"(
inline VF v_exp2(VF x) {
  VM none = x < -150.f;
  VF c = v_min2(splat(130.f), none ? splat(0.f) : x);
  VF n = (c + 12582912.f) - 12582912.f, f = c - n;
  VF p = splat(1.535336188319500e-4f);
  p = v_fma(p, f, splat(1.339887440266574e-3f));
  p = v_fma(p, f, splat(9.618437357674640e-3f));
  p = v_fma(p, f, splat(5.550332471162809e-2f));
  p = v_fma(p, f, splat(2.402264791363012e-1f));
  p = v_fma(p, f, splat(6.931472028550421e-1f));
  VF y = v_ldexp(v_fma(p, f, splat(1.f)), n);
  return none ? splat(0.f) : y;
}
)"},
    {"v_expm1", kAny, R"(
inline VF v_expm1(VF x) {
  VF n, r = exp_reduce(v_min2(splat(90.f), v_max2(splat(-30.f), x)), n);
  VF p = v_fma(exp_tail(r), r * r, r);
  VF small = v_ldexp(splat(1.f), n);
  VF y = x > 40.f ? v_ldexp(p + 1.f, n) : v_fma(p, small, small - 1.f);
  return x == 0.f ? x : y;
}
)"},
    // log of a positive finite number: exponent in e, mantissa - 1 in f, and log(1 + f) - f
    {"log_split", kAny, R"(
inline VF log_split(VF x, VF& e, VF& f) {
  VM tiny = x < 1.17549435e-38f;
  VI i = bits(tiny ? x * 8388608.f : x) - 0x3f2aaaab;
  e = i_to_f(i >> 23) - (tiny ? splat(23.f) : splat(0.f));
  f = from_bits((i & 0x7fffff) + 0x3f2aaaab) - 1.f;
  VF s = f * f;
  VF r = splat(-0.130310059f), t = splat(0.140869141f);
  r = v_fma(r, s, splat(-0.121483207f));
  t = v_fma(t, s, splat(0.139814854f));
  r = v_fma(r, s, splat(-0.166846141f));
  t = v_fma(t, s, splat(0.200120345f));
  r = v_fma(r, s, splat(-0.249996200f));
  r = v_fma(t, f, r);
  r = v_fma(r, f, splat(0.333331972f));
  r = v_fma(r, f, splat(-0.5f));
  return r * s;
}
)"},
    // What log gives outside the positive finite numbers.
    {"log_ends", kAny, R"(
inline VF log_ends(VF x, VF y) {
  y = x == __builtin_inff() ? x : y;
  y = x == 0.f ? splat(-__builtin_inff()) : y;
  return x >= 0.f ? y : splat(__builtin_nanf(""));
}
)"},
    {"v_log", kAny, R"(
inline VF v_log(VF x) {
  VF e, f, t = log_split(x, e, f);
  VF y = v_fma(e, splat(0.693147182f), v_fma(e, splat(-1.90465421e-9f), t) + f);
  return log_ends(x, y);
}
)"},
    // (f + t) * c for a constant c = hi + lo, rounded once
    {"log_times", kAny, R"(
inline VF log_times(VF e, VF f, VF t, float hi, float lo) {
  VF s = f + t, low = t - (s - f);
  VF p = s * hi;
  VF q = v_fma(s, splat(hi), -p) + v_fma(low, splat(hi), s * lo);
  VF r = e + p;
  return r + ((e - r) + p + q);
}
)"},
    {"v_log2", kAny, R"(
inline VF v_log2(VF x) {
  VF e, f, t = log_split(x, e, f);
  return log_ends(x, log_times(e, f, t, 1.44269502f, 1.92596303e-8f));
}
)"},
    {"v_log10", kAny, R"(
inline VF v_log10(VF x) {
  VF e, f, t = log_split(x, e, f);
  VF h = e * 0.301025391f;  // exact: the constant has 12 bits
  return log_ends(x, log_times(h, f, t, 0.434294492f, -1.01004449e-8f) + e * 4.60503903e-6f);
}
)"},
    {"v_log1p", kAny, R"(
inline VF v_log1p(VF x) {
  VF u = 1.f + x;
  VF e, f, t = log_split(u, e, f);
  VF c = (x - (u - 1.f)) / u;  // what the sum dropped
  VF y = v_fma(e, splat(0.693147182f), f + (t + v_fma(e, splat(-1.90465421e-9f), c)));
  y = log_ends(u, y);
  return v_abs(x) < 1e-7f ? x : y;
}
)"},
    // Below -64 the 1 is lost in the sum: e^-32 is taken out, so that v_recip never meets what it flushes to zero.
    {"v_sigmoid", kAny, R"(
inline VF v_sigmoid(VF x) {
  VM low = x < -64.f, none = x < -104.f;
  VF z = v_max2(splat(-80.f), -x);
  VF y = v_recip(1.f + exp_inside(v_min2(splat(87.f), low ? z - 32.f : z)));
  return low ? y * (none ? splat(0.f) : splat(1.26641655e-14f)) : y;
}
)"},
    {"v_tanh", kAny, R"(
inline VF v_tanh(VF x) {
  VF z = v_abs(x), s = x * x;
  VF p = splat(-5.70498872745e-3f);
  p = v_fma(p, s, splat(2.06390887954e-2f));
  p = v_fma(p, s, splat(-5.37397155531e-2f));
  p = v_fma(p, s, splat(1.33314422036e-1f));
  p = v_fma(p, s, splat(-3.33332819422e-1f));
  VF e = exp_inside(v_min2(splat(20.f), z + z)), y = 1.f - 2.f * v_recip(e + 1.f);
  return v_copysign(z < 0.625f ? v_fma(p * s, z, z) : y, x);
}
)"},
    // tanh as a quotient of polynomials, 5 ulp: for 1 + tanh(x), where only the absolute error counts
    {"v_tanh_fast", kAny, R"(
inline VF v_tanh_fast(VF x) {
  VF c = v_min2(splat(7.90531110763549805f), v_max2(splat(-7.90531110763549805f), x)), s = c * c;
  VF p = splat(-2.76076847742355e-16f);
  p = v_fma(p, s, splat(2.00018790482477e-13f));
  p = v_fma(p, s, splat(-8.60467152213735e-11f));
  p = v_fma(p, s, splat(5.12229709037114e-08f));
  p = v_fma(p, s, splat(1.48572235717979e-05f));
  p = v_fma(p, s, splat(6.37261928875436e-04f));
  p = v_fma(p, s, splat(4.89352455891786e-03f));
  VF q = splat(1.19825839466702e-06f);
  q = v_fma(q, s, splat(1.18534705686654e-04f));
  q = v_fma(q, s, splat(2.26843463243900e-03f));
  q = v_fma(q, s, splat(4.89352518554385e-03f));
  // exactly 1 at the end: gelu multiplies what is left of 1 + tanh(x) by x
  return v_abs(x) > 7.9f ? v_copysign(splat(1.f), x) : c * p * v_recip(q);
}
)"},
    {"v_erf", kAny, R"(
inline VF v_erf(VF x) {
  VF t = v_min2(splat(4.f), v_abs(x)), s = t * t;
  VF r = v_fma(splat(-1.72853470e-5f), t, splat(3.83197126e-4f));
  VF u = v_fma(splat(-3.88396438e-3f), t, splat(2.42546219e-2f));
  r = v_fma(r, s, u);
  r = v_fma(r, t, splat(-1.06777877e-1f));
  r = v_fma(r, t, splat(-6.34846687e-1f));
  r = v_fma(r, t, splat(-1.28717512e-1f));
  VF big = 1.f - exp_inside(v_fma(r, t, -t));
  VF p = splat(-5.96761703e-4f);
  p = v_fma(p, s, splat(4.99119423e-3f));
  p = v_fma(p, s, splat(-2.67681349e-2f));
  p = v_fma(p, s, splat(1.12819925e-1f));
  p = v_fma(p, s, splat(-3.76125336e-1f));
  p = v_fma(p, s, splat(1.28379166e-1f));
  VF y = t > 0.927734375f ? big : v_fma(p, t, t);
  return v_copysign(t == 4.f ? splat(1.f) : y, x);
}
)"},
    // erf as a quotient of polynomials, for 1 + erf(x)
    {"v_erf_fast", kAny, R"(
inline VF v_erf_fast(VF x) {
  VF c = v_min2(splat(4.f), v_max2(splat(-4.f), x)), s = c * c;
  VF p = splat(-2.72614225801306e-10f);
  p = v_fma(p, s, splat(2.77068142495902e-08f));
  p = v_fma(p, s, splat(-2.10102402082508e-06f));
  p = v_fma(p, s, splat(-5.69250639462346e-05f));
  p = v_fma(p, s, splat(-7.34990630326855e-04f));
  p = v_fma(p, s, splat(-2.95459980854025e-03f));
  p = v_fma(p, s, splat(-1.60960333262415e-02f));
  VF q = splat(-1.45660718464996e-05f);
  q = v_fma(q, s, splat(-2.13374055278905e-04f));
  q = v_fma(q, s, splat(-1.68282697438203e-03f));
  q = v_fma(q, s, splat(-7.37332916720468e-03f));
  q = v_fma(q, s, splat(-1.42647390514189e-02f));
  return c * p * v_recip(q);
}
)"},
    // sin and cos share the reduction to [-pi/4, pi/4] in three parts, good to |x| = 1e5; beyond, libm lane by lane.
    {"trig_reduce", kAny, R"(
inline VF trig_reduce(VF x, VI& quadrant) {
  VF j = v_fma(x, splat(0.636619747f), splat(12582912.f));
  quadrant = bits(j);
  j = j - 12582912.f;
  VF r = v_fma(j, splat(-1.57079601e+0f), x);
  r = v_fma(j, splat(-3.13916473e-7f), r);
  return v_fma(j, splat(-5.39030253e-15f), r);
}
)"},
    {"sin_part", kAny, R"(
inline VF sin_part(VF x, VF s) {
  VF r = splat(2.86567956e-6f);
  r = v_fma(r, s, splat(-1.98559923e-4f));
  r = v_fma(r, s, splat(8.33338592e-3f));
  r = v_fma(r, s, splat(-1.66666672e-1f));
  return v_fma(r, x * s, x);
}
)"},
    {"cos_part", kAny, R"(
inline VF cos_part(VF s) {
  VF r = splat(2.44677067e-5f);
  r = v_fma(r, s, splat(-1.38877297e-3f));
  r = v_fma(r, s, splat(4.16666567e-2f));
  r = v_fma(r, s, splat(-0.5f));
  return v_fma(r, s, splat(1.f));
}
)"},
    {"v_sin", kAny, R"(
inline VF v_sin(VF x) {
  VI q;
  VF r = trig_reduce(x, q), s = r * r;
  VF y = (q & 1) != 0 ? cos_part(s) : sin_part(r, s);
  y = x == 0.f ? x : from_bits(bits(y) ^ (q & 2) << 30);
  VM far = v_abs(x) > 1e5f;
  if (__builtin_expect(any_lane(far), 0)) y = far ? lanes_sinf(x) : y;
  return y;
}
)"},
    {"v_cos", kAny, R"(
inline VF v_cos(VF x) {
  VI q;
  VF r = trig_reduce(x, q), s = r * r;
  VF y = (q & 1) != 0 ? sin_part(r, s) : cos_part(s);
  y = from_bits(bits(y) ^ ((q + 1) & 2) << 30);
  VM far = v_abs(x) > 1e5f;
  if (__builtin_expect(any_lane(far), 0)) y = far ? lanes_cosf(x) : y;
  return y;
}
)"},
    {"v_atan", kAny, R"(
inline VF v_atan(VF x) {
  VF z = v_abs(x);
  VF a = z > 1.f ? 1.f / z : z, s = a * a;
  VF p = splat(2.78569828e-3f);
  p = v_fma(p, s, splat(-1.58660226e-2f));
  p = v_fma(p, s, splat(4.24722321e-2f));
  p = v_fma(p, s, splat(-7.49753043e-2f));
  p = v_fma(p, s, splat(1.06448799e-1f));
  p = v_fma(p, s, splat(-1.42070308e-1f));
  p = v_fma(p, s, splat(1.99934542e-1f));
  p = v_fma(p, s, splat(-3.33331466e-1f));
  VF y = v_fma(p * s, a, a);
  y = z > 1.f ? v_fma(splat(0x1.ddcb02p-1f), splat(0x1.aee9d6p+0f), -y) : y;  // pi/2 to 48 bits
  return v_copysign(y, x);
}
)"},
    // x^y through double for positive finite x and finite y, the rest by libm.
    {"pow_part", kAny, R"(
inline VD pow_part(VD x, VD y) {
  VL i = bits_d(x) - 0x3fe6a09e667f3bcd;
  VD e = l_to_d(i >> 52);
  VD m = from_bits_d((i & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd) - 1.0;
  VD s = m / (m + 2.0), z = s * s;
  VD p = splat_d(1.479819860511658591e-01);
  p = d_fma(p, z, splat_d(1.531383769920937332e-01));
  p = d_fma(p, z, splat_d(1.818357216161805012e-01));
  p = d_fma(p, z, splat_d(2.222219843214978396e-01));
  p = d_fma(p, z, splat_d(2.857142874366239149e-01));
  p = d_fma(p, z, splat_d(3.999999999940941908e-01));
  p = d_fma(p, z, splat_d(6.666666666666735130e-01));
  VD log2 = d_fma(d_fma(p, z, splat_d(2.0)), s * 1.4426950408889634, e);
  VD t = y * log2;
  t = t > 200.0 ? splat_d(200.0) : (t < -200.0 ? splat_d(-200.0) : t);
  VD n = (t + 0x1.8p52) - 0x1.8p52, r = (t - n) * 0.6931471805599453;
  VD q = splat_d(2.505210838544172e-8);
  q = d_fma(q, r, splat_d(2.7557319223985893e-7));
  q = d_fma(q, r, splat_d(2.7557319223985893e-6));
  q = d_fma(q, r, splat_d(2.48015873015873e-5));
  q = d_fma(q, r, splat_d(1.984126984126984e-4));
  q = d_fma(q, r, splat_d(1.388888888888889e-3));
  q = d_fma(q, r, splat_d(8.333333333333333e-3));
  q = d_fma(q, r, splat_d(4.1666666666666664e-2));
  q = d_fma(q, r, splat_d(0.16666666666666666));
  q = d_fma(q, r, splat_d(0.5));
  q = d_fma(q, r, splat_d(1.0));
  return d_ldexp(d_fma(q, r, splat_d(1.0)), n);
}
)"},
    {"each_double", kA16 | kB8, R"(
typedef float HF __attribute__((vector_size(2 * W)));
template <class F> inline VF each_double(F f, VF x, VF y) {
  HF a, b, c, d;
  __builtin_memcpy(&a, &x, sizeof a); __builtin_memcpy(&b, (char*)&x + sizeof a, sizeof b);
  __builtin_memcpy(&c, &y, sizeof a); __builtin_memcpy(&d, (char*)&y + sizeof a, sizeof b);
  HF low = __builtin_convertvector(f(__builtin_convertvector(a, VD), __builtin_convertvector(c, VD)), HF);
  HF high = __builtin_convertvector(f(__builtin_convertvector(b, VD), __builtin_convertvector(d, VD)), HF);
  VF r;
  __builtin_memcpy(&r, &low, sizeof low); __builtin_memcpy((char*)&r + sizeof low, &high, sizeof high);
  return r;
}
)"},
    {"each_double", kA8 | kB4 | kS1, R"(
template <class F> inline VF each_double(F f, VF x, VF y) { return d_to_f(f(f_to_d(x), f_to_d(y))); }
)"},
    {"v_pow", kAny, R"(
inline VF v_pow(VF x, VF y) {
  VM own = (x > 0.f) & (x < __builtin_inff()) & (v_abs(y) < __builtin_inff());
  VF r = each_double([](VD a, VD b) { return pow_part(a, b); }, x, y);
  if (__builtin_expect(any_lane(m_not(own)), 0)) r = own ? r : lanes_powf(x, y);  // no lane's bits depend on the others
  return r;
}
)"},

    // ---- elementary functions, f64
    {"d_exp", kAny, R"(
inline VD d_exp(VD x) {
  auto none = x < -745.2;
  VD c = x > 710.0 ? splat_d(710.0) : (none ? splat_d(0.0) : x);
  VD n = d_round(c * 1.4426950408889634);
  VD r = d_fma(n, splat_d(-1.90821492927058770002e-10), d_fma(n, splat_d(-6.93147180369123816490e-01), c));
  VD p = splat_d(1.6059043836821613e-10);
  p = d_fma(p, r, splat_d(2.08767569878681e-9));
  p = d_fma(p, r, splat_d(2.505210838544172e-8));
  p = d_fma(p, r, splat_d(2.755731922398589e-7));
  p = d_fma(p, r, splat_d(2.7557319223985893e-6));
  p = d_fma(p, r, splat_d(2.48015873015873e-5));
  p = d_fma(p, r, splat_d(1.984126984126984e-4));
  p = d_fma(p, r, splat_d(1.388888888888889e-3));
  p = d_fma(p, r, splat_d(8.333333333333333e-3));
  p = d_fma(p, r, splat_d(4.1666666666666664e-2));
  p = d_fma(p, r, splat_d(0.16666666666666666));
  p = d_fma(p, r, splat_d(0.5));
  VD y = d_ldexp(d_fma(p, r * r, r) + 1.0, n);
  return none ? splat_d(0.0) : y;
}
)"},
    {"d_sigmoid", kAny, "inline VD d_sigmoid(VD x) { return 1.0 / (1.0 + d_exp(-x)); }\n"},

// ---- by libm, lane by lane
#define LANES1(f)                                                                                                \
  {"lanes_" #f "f", kVector,                                                                                     \
   "extern \"C\" float " #f "f(float);\ninline VF lanes_" #f "f(VF x) { for (int i = 0; i < W; ++i) x[i] = " #f  \
   "f(x[i]); return x; }\n"},                                                                                    \
      {"lanes_" #f "f", kS1,                                                                                     \
       "extern \"C\" float " #f "f(float);\ninline VF lanes_" #f "f(VF x) { return " #f "f(x); }\n"},            \
      {"d_" #f, kVector,                                                                                         \
       "extern \"C\" double " #f "(double);\ninline VD d_" #f "(VD x) { for (int i = 0; i < WD; ++i) x[i] = " #f \
       "(x[i]); return x; }\n"},                                                                                 \
  {                                                                                                              \
    "d_" #f, kS1, "extern \"C\" double " #f "(double);\ninline VD d_" #f "(VD x) { return " #f "(x); }\n"        \
  }
    LANES1(exp2),
    LANES1(expm1),
    LANES1(log),
    LANES1(log2),
    LANES1(log10),
    LANES1(log1p),
    LANES1(sin),
    LANES1(cos),
    LANES1(tan),
    LANES1(asin),
    LANES1(acos),
    LANES1(atan),
    LANES1(sinh),
    LANES1(cosh),
    LANES1(tanh),
    LANES1(asinh),
    LANES1(acosh),
    LANES1(atanh),
    LANES1(erf),
    LANES1(erfc),
    LANES1(lgamma),
#undef LANES1
#define BARE(f) \
  { "v_" #f, kAny, "inline VF v_" #f "(VF x) { return lanes_" #f "f(x); }\n" }
    BARE(tan),
    BARE(asin),
    BARE(acos),
    BARE(sinh),
    BARE(cosh),
    BARE(asinh),
    BARE(acosh),
    BARE(atanh),
    BARE(erfc),
    BARE(lgamma),
#undef BARE
#define LANES2(f)                                                                                                     \
  {"lanes_" #f "f", kVector,                                                                                          \
   "extern \"C\" float " #f "f(float, float);\ninline VF lanes_" #f                                                   \
   "f(VF x, VF y) { for (int i = 0; i < W; ++i) x[i] = " #f "f(x[i], y[i]); return x; }\n"},                          \
      {"lanes_" #f "f", kS1,                                                                                          \
       "extern \"C\" float " #f "f(float, float);\ninline VF lanes_" #f "f(VF x, VF y) { return " #f "f(x, y); }\n"}, \
      {"d_" #f, kVector,                                                                                              \
       "extern \"C\" double " #f "(double, double);\ninline VD d_" #f                                                 \
       "(VD x, VD y) { for (int i = 0; i < WD; ++i) x[i] = " #f "(x[i], y[i]); return x; }\n"},                       \
  {                                                                                                                   \
    "d_" #f, kS1,                                                                                                     \
        "extern \"C\" double " #f "(double, double);\ninline VD d_" #f "(VD x, VD y) { return " #f "(x, y); }\n"      \
  }
    LANES2(pow),
    LANES2(atan2),
    LANES2(hypot),
    LANES2(nextafter),
    LANES2(fmod),
#undef LANES2
#define BARE(f) \
  { "v_" #f, kAny, "inline VF v_" #f "(VF x, VF y) { return lanes_" #f "f(x, y); }\n" }
    BARE(atan2),
    BARE(hypot),
    BARE(nextafter),
    BARE(fmod),
#undef BARE
    // Inverse error function: a rational start (Giles) and two Newton steps, in double. Giles made it for floats, where
    // w <= 16. Beyond, where Newton steps on erfc creep, they are taken on its logarithm, from the first term of erfc.
    {"erfinv_one", kAny, R"(
extern "C" double log(double); extern "C" double log1p(double); extern "C" double exp(double);
extern "C" double erf(double); extern "C" double erfc(double);
inline double erfinv_one(double y) {
  double a = __builtin_fabs(y);
  if (!(a < 1.0)) return a == 1.0 ? __builtin_copysign(__builtin_inf(), y) : __builtin_nan("");
  double w = -log1p(-a * a), p;
  if (w > 16.0) {
    double below = log(1.0 - a), x = __builtin_sqrt(-below - 0.5 * log(-3.14159265358979323846 * below));
    for (int i = 0; i < 3; ++i) {
      double rest = erfc(x);
      x += (log(rest) - below) * rest / (1.1283791670955126 * exp(-x * x));
    }
    return __builtin_copysign(x, y);
  }
  if (w < 5.0) {
    w -= 2.5;
    p = 2.81022636e-08;
    p = 3.43273939e-07 + p * w; p = -3.5233877e-06 + p * w; p = -4.39150654e-06 + p * w; p = 0.00021858087 + p * w;
    p = -0.00125372503 + p * w; p = -0.00417768164 + p * w; p = 0.246640727 + p * w; p = 1.50140941 + p * w;
  } else {
    w = __builtin_sqrt(w) - 3.0;
    p = -0.000200214257;
    p = 0.000100950558 + p * w; p = 0.00134934322 + p * w; p = -0.00367342844 + p * w; p = 0.00573950773 + p * w;
    p = -0.0076224613 + p * w; p = 0.00943887047 + p * w; p = 1.00167406 + p * w; p = 2.83297682 + p * w;
  }
  double x = p * a;
  for (int i = 0; i < 2; ++i) {
    double slope = 1.1283791670955126 * exp(-x * x);
    if (slope > 0) x += (a < 0.5 ? a - erf(x) : erfc(x) - (1.0 - a)) / slope;
  }
  return __builtin_copysign(x, y);
}
)"},
    // Digamma: reflection, recurrence up to 10, asymptotic series.
    {"digamma_one", kAny, R"(
extern "C" double log(double); extern "C" double tan(double);
inline double digamma_one(double x) {
  if (x == 0.0) return __builtin_copysign(__builtin_inf(), -x);
  double r = 0.0;
  if (x < 0.0) {
    double whole = __builtin_trunc(x);
    if (x == whole) return __builtin_nan("");
    r = -3.14159265358979323846 / tan(3.14159265358979323846 * (x - whole));
    x = 1.0 - x;
  }
  while (x < 10.0) { r -= 1.0 / x; x += 1.0; }
  double s = 1.0 / (x * x);
  double y = s * (8.33333333333333333e-2 - s * (8.33333333333333333e-3 - s * (3.96825396825396825e-3 - s * (4.16666666666666667e-3 -
             s * (7.57575757575757576e-3 - s * (2.10927960927960928e-2 - s * 8.33333333333333333e-2))))));
  return r + (x < 1e17 ? log(x) - 0.5 / x - y : log(x));
}
)"},
#define ONE(f)                                                                                              \
  {"v_" #f, kVector,                                                                                        \
   "inline VF v_" #f "(VF x) { for (int i = 0; i < W; ++i) x[i] = (float)" #f "_one(x[i]); return x; }\n"}, \
      {"d_" #f, kVector,                                                                                    \
       "inline VD d_" #f "(VD x) { for (int i = 0; i < WD; ++i) x[i] = " #f "_one(x[i]); return x; }\n"},   \
      {"v_" #f, kS1, "inline VF v_" #f "(VF x) { return (float)" #f "_one(x); }\n"}, {                      \
    "d_" #f, kS1, "inline VD d_" #f "(VD x) { return " #f "_one(x); }\n"                                    \
  }
    ONE(erfinv),
    ONE(digamma),
#undef ONE
    // Python's %: the sign of b.
    {"v_remainder", kAny,
     "inline VF v_remainder(VF a, VF b) { VF r = v_fmod(a, b); return (r != 0.f) & ((b < 0.f) != (r < 0.f)) ? r + b : "
     "r; }\n"},
    {"d_remainder", kAny,
     "inline VD d_remainder(VD a, VD b) { VD r = d_fmod(a, b); return (r != 0.0) & ((b < 0.0) != (r < 0.0)) ? r + b : "
     "r; }\n"},
    // floor(a / b) as torch computes it: from the remainder, so that results are exact multiples
    {"v_floordiv", kAny, R"(
inline VF v_floordiv(VF a, VF b) {
  VF r = v_fmod(a, b), q = (a - r) / b;
  q = (r != 0.f) & ((b < 0.f) != (r < 0.f)) ? q - 1.f : q;
  VF f = v_floor(q);
  f = q - f > 0.5f ? f + 1.f : f;
  f = q == 0.f ? v_copysign(splat(0.f), a / b) : f;
  return b == 0.f ? a / b : f;
}
)"},
    {"d_floordiv", kAny, R"(
inline VD d_floordiv(VD a, VD b) {
  VD r = d_fmod(a, b), q = (a - r) / b;
  q = (r != 0.0) & ((b < 0.0) != (r < 0.0)) ? q - 1.0 : q;
  VD f = d_floor(q);
  f = q - f > 0.5 ? f + 1.0 : f;
  f = q == 0.0 ? d_copysign(splat_d(0.0), a / b) : f;
  return b == 0.0 ? a / b : f;
}
)"},
    // ---- integer division; a zero divisor is the caller's business (it gives 0 here and never traps), -2^n / -1 wraps
    {"div_one mod_one", kAny, R"(
template <class T, class U> inline T div_one(T a, T b) { return b == 0 ? 0 : b == -1 ? (T)(U(0) - U(a)) : a / b; }
template <class T> inline T mod_one(T a, T b) { return b == 0 || b == -1 ? 0 : a % b; }
)"},
#define INT_DIV(s, V, T, U, n)                                                                                         \
  {"truncdiv_" s " fmod_" s " floordiv_" s " remainder_" s, kVector,                                                   \
   "inline " V " truncdiv_" s "(" V " a, " V " b) { " V " q; for (int i = 0; i < " n "; ++i) q[i] = div_one<" T ", " U \
   ">(a[i], b[i]); return q; }\n"                                                                                      \
   "inline " V " fmod_" s "(" V " a, " V " b) { " V " r; for (int i = 0; i < " n "; ++i) r[i] = mod_one<" T            \
   ">(a[i], b[i]); return r; }\n"                                                                                      \
   "inline " V " floordiv_" s "(" V " a, " V " b) { " V " r = fmod_" s "(a, b); return truncdiv_" s                    \
   "(a, b) + ((r != 0) & ((r ^ b) < 0)); }\n"                                                                          \
   "inline " V " remainder_" s "(" V " a, " V " b) { " V " r = fmod_" s                                                \
   "(a, b); return r + (((r != 0) & ((r ^ b) < 0)) & b); }\n"},                                                        \
  {                                                                                                                    \
    "truncdiv_" s " fmod_" s " floordiv_" s " remainder_" s, kS1,                                                      \
        "inline " T " truncdiv_" s "(" T " a, " T " b) { return div_one<" T ", " U                                     \
        ">(a, b); }\n"                                                                                                 \
        "inline " T " fmod_" s "(" T " a, " T " b) { return mod_one<" T                                                \
        ">(a, b); }\n"                                                                                                 \
        "inline " T " floordiv_" s "(" T " a, " T " b) { " T " r = fmod_" s "(a, b); return truncdiv_" s               \
        "(a, b) - ((r != 0) & ((r ^ b) < 0)); }\n"                                                                     \
        "inline " T " remainder_" s "(" T " a, " T " b) { " T " r = fmod_" s                                           \
        "(a, b); return (r != 0) & ((r ^ b) < 0) ? r + b : r; }\n"                                                     \
  }
    INT_DIV("i", "VI", "int", "unsigned", "W"),
    INT_DIV("l", "VL", "long", "unsigned long", "WD"),
#undef INT_DIV
    {"pow_one", kAny, R"(
template <class T, class U> inline T pow_one(T a, T b) {
  if (b < 0) return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
  U r = 1, x = (U)a;
  for (; b; b >>= 1) { if (b & 1) r *= x; x *= x; }
  return (T)r;
}
)"},
    {"pow_i", kVector,
     "inline VI pow_i(VI a, VI b) { for (int i = 0; i < W; ++i) a[i] = pow_one<int, unsigned>(a[i], b[i]); return a; "
     "}\n"},
    {"pow_l", kVector,
     "inline VL pow_l(VL a, VL b) { for (int i = 0; i < WD; ++i) a[i] = pow_one<long, unsigned long>(a[i], b[i]); "
     "return a; }\n"},
    {"pow_i pow_l", kS1,
     "inline int pow_i(int a, int b) { return pow_one<int, unsigned>(a, b); }\ninline long pow_l(long a, long b) { "
     "return pow_one<long, unsigned long>(a, b); }\n"},

    // ---- 16x16 (or 8x8) transpose in registers: log2(W) rounds of two-input shuffles
    {"transpose_tile", kA16, R"(
inline void transpose_tile(VF* r) {
  VF t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
    t[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  }
  for (int b = 0; b < 16; b += 4)
    for (int i = b; i < b + 2; ++i) {
      r[i] = __builtin_shufflevector(t[i], t[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
      r[i + 2] = __builtin_shufflevector(t[i], t[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
  for (int b = 0; b < 16; b += 8)
    for (int i = b; i < b + 4; ++i) {
      t[i] = __builtin_shufflevector(r[i], r[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
      t[i + 4] = __builtin_shufflevector(r[i], r[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    }
  for (int i = 0; i < 8; ++i) {
    r[i] = __builtin_shufflevector(t[i], t[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    r[i + 8] = __builtin_shufflevector(t[i], t[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  }
}
)"},
    {"transpose_tile", kA8 | kB8, R"(
inline void transpose_tile(VF* r) {
  VF t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    t[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int b = 0; b < 8; b += 4)
    for (int i = b; i < b + 2; ++i) {
      r[i] = __builtin_shufflevector(t[i], t[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      r[i + 2] = __builtin_shufflevector(t[i], t[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  for (int i = 0; i < 4; ++i) t[i] = r[i], t[i + 4] = r[i + 4];
  for (int i = 0; i < 4; ++i) {
    r[i] = __builtin_shufflevector(t[i], t[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    r[i + 4] = __builtin_shufflevector(t[i], t[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}
)"},

    // ---- threads: the OpenMP runtime that torch has loaded; absent (a plain test process), run alone
    {"GOMP_parallel omp_get_max_threads omp_get_thread_num omp_get_num_threads omp_in_parallel", kAny, R"(
extern "C" void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned) __attribute__((weak));
extern "C" int omp_get_max_threads() __attribute__((weak));
extern "C" int omp_get_thread_num() __attribute__((weak));
extern "C" int omp_get_num_threads() __attribute__((weak));
)"},
    {"run_parallel", kAny, R"(
// Calls body(job, begin, end) over [0, n) in equal chunks, one per thread of the team that really started.
typedef void (*Body)(void* job, long begin, long end);
struct Team { Body body; void* job; long n; long grain; };
static void run_chunk(void* data) {
  Team* t = (Team*)data;
  long threads = omp_get_num_threads(), me = omp_get_thread_num();
  long blocks = (t->n + t->grain - 1) / t->grain;
  long begin = blocks * me / threads * t->grain, end = blocks * (me + 1) / threads * t->grain;
  if (end > t->n) end = t->n;
  if (begin < end) t->body(t->job, begin, end);
}
static void run_parallel(Body body, void* job, long n, long grain) {
  if (GOMP_parallel && n > grain) {
    long threads = omp_get_max_threads(), blocks = (n + grain - 1) / grain;
    if (threads > blocks) threads = blocks;
    if (threads > 1) {
      Team t{body, job, n, grain};
      GOMP_parallel(run_chunk, &t, (unsigned)threads, 0);
      return;
    }
  }
  body(job, 0, n);
}
)"},
};

}  // namespace

std::span<const Part> parts() { return kParts; }

}  // namespace flashover::kernel
