// Loads and stores of every dtype: full vectors, the first n lanes (the others read as zero, nothing beyond is
// touched), lanes under a mask, every stride-th element.
#include "kernel/cpp/prelude/snippets.h"

namespace flashover::kernel::snippets {
namespace {

const Snippet kMemory[] = {
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
    {"load_f32_n store_f32_n", kB4 | kNeon | kS1, R"(
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
    {"load_f64_n store_f64_n", kAvx2 | kNeon | kS1, R"(
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
    {"load_16_n store_16_n", kAvx2 | kNeon, R"(
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
    {"load_8_n store_8_n", kA8 | kAvx2 | kNeon, R"(
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
    {"f16_to_f f_to_f16", kNeon, R"(
typedef __fp16 VH __attribute__((vector_size(2 * W)));
inline VF f16_to_f(VUS h) { return __builtin_convertvector((VH)h, VF); }
inline VUS f_to_f16(VF x) { return (VUS)__builtin_convertvector(x, VH); }
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
    // (GCC takes __builtin_convertvector from 8 to 32 bits in one step as a step for each lane.)
    {"widen_i8 widen_u8", kA16, R"(
#ifdef __clang__
inline VI widen_i8(VC x) { return __builtin_convertvector(x, VI); }
inline VI widen_u8(VUC x) { return __builtin_convertvector(x, VI); }
#else
inline VI widen_i8(VC x) { return (VI)__builtin_ia32_pmovsxbd512_mask((V16C)x, VI{}, -1); }
inline VI widen_u8(VUC x) { return (VI)__builtin_ia32_pmovzxbd512_mask((V16C)x, VI{}, -1); }
#endif
)"},
    {"widen_i8 widen_u8", kA8 | kAvx2 | kNeon, R"(
inline VI widen_i8(VC x) { return __builtin_convertvector(__builtin_convertvector(x, VS), VI); }
inline VI widen_u8(VUC x) { return __builtin_convertvector(__builtin_convertvector(x, VUS), VI); }
)"},
    {"load_i8 store_i8 load_i8_n store_i8_n", kVector, R"(
inline VI load_i8(const signed char* p) { return widen_i8(load_8(p)); }
inline void store_i8(signed char* p, VI v) { store_8(p, __builtin_convertvector(v, VC)); }
inline VI load_i8_n(const signed char* p, int n) { return widen_i8(load_8_n(p, n)); }
inline void store_i8_n(signed char* p, VI v, int n) { store_8_n(p, __builtin_convertvector(v, VC), n); }
)"},
    {"load_u8 store_u8 load_u8_n store_u8_n", kVector, R"(
inline VI load_u8(const unsigned char* p) { return widen_u8((VUC)load_8((const signed char*)p)); }
inline void store_u8(unsigned char* p, VI v) { store_8((signed char*)p, __builtin_convertvector(v, VC)); }
inline VI load_u8_n(const unsigned char* p, int n) { return widen_u8((VUC)load_8_n((const signed char*)p, n)); }
inline void store_u8_n(unsigned char* p, VI v, int n) { store_8_n((signed char*)p, __builtin_convertvector(v, VC), n); }
)"},
    {"load_b8 store_b8 load_b8_n store_b8_n", kVector, R"(
inline VM load_b8(const bool* p) { return widen_i8(load_8((const signed char*)p)) != 0; }
inline void store_b8(bool* p, VM v) { store_8((signed char*)p, __builtin_convertvector(v & 1, VC)); }
inline VM load_b8_n(const bool* p, int n) { return widen_i8(load_8_n((const signed char*)p, n)) != 0; }
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
    {"load_f32_m store_f32_m", kB4 | kNeon, R"(
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
    {"load_f32_2", kN4, R"(
inline VF load_f32_2(const float* p) { return __builtin_shufflevector(load_f32(p), load_f32(p + 3), 0, 2, 5, 7); }
)"},
    {"load_f32_2", kN2, R"(
inline VF load_f32_2(const float* p) { return VF{p[0], p[2]}; }
)"},
    {"load_16_2", kA16, R"(
inline VUS load_16_2(const unsigned short* p) {
  return __builtin_shufflevector(load_16(p), load_16(p + 15), 0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31);
}
)"},
    {"load_16_2", kA8 | kB8, R"(
inline VUS load_16_2(const unsigned short* p) { return __builtin_shufflevector(load_16(p), load_16(p + 7), 0, 2, 4, 6, 9, 11, 13, 15); }
)"},
    {"load_16_2", kB4, R"(
inline VUS load_16_2(const unsigned short* p) { return VUS{p[0], p[2], p[4], p[6]}; }
)"},
    {"load_16_2", kN4, R"(
inline VUS load_16_2(const unsigned short* p) { return __builtin_shufflevector(load_16(p), load_16(p + 3), 0, 2, 5, 7); }
)"},
    {"load_16_2", kN2, R"(
inline VUS load_16_2(const unsigned short* p) { return VUS{p[0], p[2]}; }
)"},
    {"load_bf16_2", kVector, "inline VF load_bf16_2(const unsigned short* p) { return bf16_to_f(load_16_2(p)); }\n"},
    {"load_f16_2", kVector, "inline VF load_f16_2(const unsigned short* p) { return f16_to_f(load_16_2(p)); }\n"},
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
    {"gather_f32", kB4 | kNeon, R"(
inline VF gather_f32(const float* p, VI at, VM m) { VF v{}; for (int l = 0; l < W; ++l) if (m[l]) v[l] = p[at[l]]; return v; }
)"},
    {"gather_by_f32", kVector, R"(
inline VF gather_by_f32(const float* p, long stride, VM m) {
  if (stride < (1 << 24) && stride > -(1 << 24)) return gather_f32(p, iota(0) * splat_i((int)stride), m);
  VF v{};
  for (int l = 0; l < W; ++l) if (m[l]) v[l] = p[l * stride];
  return v;
}
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
};

}  // namespace

Snippets memory() { return kMemory; }

}  // namespace flashover::kernel::snippets
