// Functions of the lanes of a vector, for any instruction set: included, once for each, where Vec and its arithmetic
// (lanes.h, lanes_avx2.h) stand. least() and most() give their second operand where one is NaN.

// NaN passes.
static inline Vec within(Vec x, float low, float high) { return least(spread(high), most(spread(low), x)); }

// 1 ulp. Never a denormal (they cost a hundred times a normal number): exp(-87) stands for all below.
static inline Vec lane_exp(Vec x) {
  x = within(x, -87.f, 100.f);
  const Vec n = nearest(x * spread(1.442695041f));
  Vec r = fnma(n, spread(0.693359375f), x);
  r = fnma(n, spread(-2.12194440e-4f), r);
  Vec p = spread(1.9875691500e-4f);
  p = fma(p, r, spread(1.3981999507e-3f));
  p = fma(p, r, spread(8.3334519073e-3f));
  p = fma(p, r, spread(4.1665795894e-2f));
  p = fma(p, r, spread(1.6666665459e-1f));
  p = fma(p, r, spread(5.0000001201e-1f));
  p = fma(p * r, r, r + spread(1.f));
  return times_power_of_two(p, n);
}

static inline Vec lane_sigmoid(Vec x) { return divide(spread(1.f), spread(1.f) + lane_exp(spread(0.f) - x)); }

// 1 - 2 / (exp(2x) + 1), and below 0.625 x and a polynomial: there the difference has few digits. 2 ulp.
static inline Vec lane_tanh(Vec x) {
  const Vec c = within(x, -0.625f, 0.625f), s = c * c, wide = within(x, -10.f, 10.f);
  Vec p = spread(-5.70498872745e-3f);
  p = fma(p, s, spread(2.06390887954e-2f));
  p = fma(p, s, spread(-5.37397155531e-2f));
  p = fma(p, s, spread(1.33314422036e-1f));
  p = fma(p, s, spread(-3.33332819422e-1f));
  const Vec far = fnma(spread(2.f), divide(spread(1.f), lane_exp(wide + wide) + spread(1.f)), spread(1.f));
  return where_size_is(0.625f, c, far, fma(p * s, c, c));
}

// x / (1 + exp(-x))
static inline Vec lane_silu(Vec x) { return divide(x, spread(1.f) + lane_exp(spread(0.f) - x)); }

// x (1 + erf(x / sqrt(2))) / 2, erf as a quotient of polynomials: 1.1e-6 at most (ATen's: 1.2e-6). What goes through
// exp waits three times as long, for itself.
static inline Vec lane_gelu(Vec x) {
  const Vec c = within(x * spread(0.70710678f), -4.f, 4.f), s = c * c;
  Vec p = spread(-2.72614225801306e-10f), q = spread(-1.45660718464996e-05f);
  p = fma(p, s, spread(2.77068142495902e-08f));
  q = fma(q, s, spread(-2.13374052778905e-04f));
  p = fma(p, s, spread(-2.10102402082508e-06f));
  q = fma(q, s, spread(-1.68282697438203e-03f));
  p = fma(p, s, spread(-5.69250639462346e-05f));
  q = fma(q, s, spread(-7.37332916720468e-03f));
  p = fma(p, s, spread(-7.34990630326855e-04f));
  q = fma(q, s, spread(-1.42647390514189e-02f));
  p = fma(p, s, spread(-2.95459980854025e-03f));
  p = fma(p, s, spread(-1.60960333262415e-02f));
  // Exactly -1 and 1 at the ends: what is left of 1 is multiplied by x.
  const Vec erf = where_size_is(4.f, c, c * spread(0.25f), quotient(c * p, q));
  const Vec half = x * spread(0.5f);
  return fma(half, erf, half);
}

// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x sigmoid(2 sqrt(2/pi) (...))
static inline Vec lane_gelu_tanh(Vec x) {
  const Vec u = fma(x * x * x, spread(0.044715f), x);
  return divide(x, spread(1.f) + lane_exp(u * spread(-1.5957691216f)));
}

static inline Vec lane_same(Vec x) { return x; }
static inline Vec lane_relu(Vec x) { return most(spread(0.f), x); }  // NaN stays
static inline Vec lane_hardswish(Vec x) { return x * within(x + spread(3.f), 0.f, 6.f) * spread(1.f / 6); }
