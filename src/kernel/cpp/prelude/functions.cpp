// Elementary functions of f32 as polynomials, within 2 ulp; powers go through f64.
#include "kernel/cpp/prelude/snippets.h"

namespace flashover::kernel::snippets {
namespace {

const Snippet kFunctions[] = {
    {"v_ldexp", kA16, "inline VF v_ldexp(VF p, VF n) { return __builtin_ia32_scalefps512_mask(p, n, p, -1, 4); }\n"},
    {"v_ldexp", kA8, "inline VF v_ldexp(VF p, VF n) { return __builtin_ia32_scalefps256_mask(p, n, p, -1); }\n"},
    // Two factors, so that results down to the smallest denormal are rounded once. |n| < 250.
    {"v_ldexp", kAvx2 | kNeon | kS1, R"(
inline VF v_ldexp(VF p, VF n) {
  VI i = f_to_i(n), h = i >> 1;
  return p * from_bits((h + 127) << 23) * from_bits((i - h + 127) << 23);
}
)"},
    {"d_ldexp", kAvx512, "inline VD d_ldexp(VD p, VD n) { return __builtin_ia32_scalefpd512_mask(p, n, p, -1, 4); }\n"},
    {"d_ldexp", kAvx2 | kNeon | kS1, R"(
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
    {"v_recip", kAvx2 | kNeon, "inline VF v_recip(VF d) { return 1.f / d; }\n"},
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
  if (s < 0.f) x = -x, s = -s, r = -r;
  VF q = x * r, c = v_fma(v_fma(q, splat(s), -x), splat(-r), q);  // with s above 0, -0 / s stays -0
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
  return v_abs(x) > 7.9f ? v_copysign(splat(1.f), x) : v_min2(splat(1.f), v_max2(splat(-1.f), c * p * v_recip(q)));
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
    // erf as a quotient of polynomials, for 1 + erf(x). It stays within [-1, 1]: what follows may take a root.
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
  return v_min2(splat(1.f), v_max2(splat(-1.f), c * p * v_recip(q)));
}
)"},
    // sin and cos share the reduction to [-pi/4, pi/4] with pi/4 as a sum of three floats, good to |x| = 1e5; beyond, libm lane by lane.
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
    {"each_double", kA16 | kB8 | kN4, R"(
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
    {"each_double", kWide | kS1, R"(
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
};

}  // namespace

Snippets functions() { return kFunctions; }

}  // namespace flashover::kernel::snippets
