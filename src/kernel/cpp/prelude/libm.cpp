// Elementary functions of f64, and what libm computes lane by lane.
#include "kernel/cpp/prelude/snippets.h"

namespace flashover::kernel::snippets {
namespace {

const Snippet kLibm[] = {
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

// By libm, lane by lane.
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
    // I0: the power series up to 20, then the asymptotic one.
    {"i0_one", kAny, R"(
extern "C" double exp(double);
inline double i0_one(double x) {
  x = __builtin_fabs(x);
  if (x > 800.0) return __builtin_inf();
  double sum = 1.0, term = 1.0;
  if (x < 20.0) {
    for (int k = 1; term > sum * 1e-17; ++k) { term *= x * x / (4.0 * k * k); sum += term; }
    return sum;
  }
  for (int k = 1; term > 1e-17; ++k) { term *= (2 * k - 1) * (2 * k - 1) / (8.0 * k * x); sum += term; }
  return exp(x / 2) * (sum / __builtin_sqrt(6.28318530717958648 * x)) * exp(x / 2);
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
    ONE(i0),
#undef ONE
};

}  // namespace

Snippets libm() { return kLibm; }

}  // namespace flashover::kernel::snippets
