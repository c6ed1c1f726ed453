// Each function of the library against long double, over the whole range, for every lane count of this machine.
#include "kernel/cpp/prelude.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>

#include "kernel/load_for_test.h"
#include "kernel/toolchain.h"

namespace flashover::kernel {
namespace {

std::vector<Lanes> configurations() {
  std::vector<Lanes> out;
  unsetenv("FLASHOVER_ISA");
  for (const Isa isa : isas_of_host()) {
    const Lanes whole{isa, register_width(isa)};
    out.push_back(whole);
    if (whole.width != whole.wide_width()) out.push_back({isa, whole.wide_width()});
  }
  return out;
}
std::string str(Lanes l) { return str(Target{l.isa}) + " " + std::to_string(l.width); }

std::string wrap(const std::string& code, Lanes l) {
  return "#define inline inline __attribute__((always_inline))\nnamespace v {\n" + prelude(code, l) + code + "}\n";
}

Loaded build(const std::string& code, Lanes l) {
  std::vector<std::string> sources = {wrap(code, l)};
  return Loaded(compile_sources(sources, Target{l.isa})[0]);
}

// Distance in units of the last place of the true value rounded to T.
template <typename T>
double ulps(T got, long double want) {
  const T w = static_cast<T>(want);
  if (std::isnan(w) || std::isnan(got)) return std::isnan(w) && std::isnan(got) ? 0 : INFINITY;
  if (got == w) return std::signbit(got) == std::signbit(w) || w != 0 ? 0 : INFINITY;
  if (std::isinf(w) || std::isinf(got)) {
    // one step off the edge of the range counts as one ulp
    const T edge = std::copysign(std::numeric_limits<T>::max(), w);
    return (std::isinf(w) ? got : w) == edge ? 1 : INFINITY;
  }
  int e;
  std::frexp(w, &e);
  e = std::max(e, std::numeric_limits<T>::min_exponent);
  return static_cast<double>(std::fabs(static_cast<long double>(got) - want) /
                             std::ldexp(1.0L, e - std::numeric_limits<T>::digits));
}

std::vector<float> sweep() {
  std::vector<float> xs;
  for (uint64_t u = 0; u < (1ull << 32); u += 65521)
    xs.push_back(std::bit_cast<float>(static_cast<uint32_t>(u)));  // all magnitudes
  std::mt19937 rng(7);
  for (float r : {0.01f, 1.f, 3.f, 12.f, 110.f, 5000.f}) {
    std::uniform_real_distribution<float> d(-r, r);
    for (int i = 0; i < 20000; ++i) xs.push_back(d(rng));
  }
  for (int i = -2000; i < 2000; ++i) xs.push_back(1.f + static_cast<float>(i) * 0x1p-22f);
  const float inf = INFINITY, nan = NAN, big = std::numeric_limits<float>::max(),
              tiny = std::numeric_limits<float>::denorm_min();
  for (float x : {0.f, 1.f, inf, big, tiny, tiny * 3, 0x1p-126f, 0.5f, 2.f, 10.f, 100.f, 88.72283f, 88.72284f, 103.97f,
                  104.f, 89.f, 3.1415927f})
    xs.insert(xs.end(), {x, -x});
  xs.push_back(nan);
  while (xs.size() % 16) xs.push_back(0.25f);
  return xs;
}

struct Unary {
  const char* name;
  long double (*truth)(long double);
  double bound;
};
long double sigmoid(long double x) { return 1 / (1 + std::exp(-x)); }
const Unary kUnary[] = {
    {"v_exp", std::exp, 1.2},     {"v_exp2", std::exp2, 1.2},     {"v_expm1", std::expm1, 2},
    {"v_log", std::log, 1.2},     {"v_log2", std::log2, 1.5},     {"v_log10", std::log10, 1.7},
    {"v_log1p", std::log1p, 2},   {"v_sigmoid", sigmoid, 3.1},    {"v_tanh", std::tanh, 2},
    {"v_erf", std::erf, 1.2},     {"v_sin", std::sin, 1.7},       {"v_cos", std::cos, 1.7},
    {"v_atan", std::atan, 1.6},   {"v_tan", std::tan, 1.2},       {"v_asin", std::asin, 1.2},
    {"v_acosh", std::acosh, 3},   {"v_sqrt", std::sqrt, 0.51},    {"v_erfc", std::erfc, 6},
    {"v_lgamma", std::lgamma, 5}, {"v_round", std::nearbyint, 0}, {"v_floor", std::floor, 0},
    {"v_ceil", std::ceil, 0},     {"v_trunc", std::trunc, 0},
};

TEST(Prelude, ElementaryFunctionsF32) {
  const std::vector<float> xs = sweep();
  for (Lanes l : configurations()) {
    std::string code;
    for (const Unary& f : kUnary)
      code += std::string("extern \"C\" __attribute__((visibility(\"default\"))) void t") + f.name +
              "(const float* x, float* y, long n) { for (long i = 0; i < n; i += W) store_f32(y + i, " + f.name +
              "(load_f32(x + i))); }\n";
    Loaded lib = build(code, l);
    std::vector<float> ys(xs.size());
    for (const Unary& f : kUnary) {
      lib.symbol<void(const float*, float*, long)>(std::string("t") + f.name)(xs.data(), ys.data(),
                                                                              static_cast<long>(xs.size()));
      double worst = 0;
      float at = 0;
      for (size_t i = 0; i < xs.size(); ++i) {
        double u = ulps(ys[i], f.truth(xs[i]));
        if (u > worst) worst = u, at = xs[i];
      }
      if (l.isa != Isa::kAvx2) printf("%-22s %-10s %.2f ulp at %a\n", str(l).c_str(), f.name, worst, at);
      EXPECT_LE(worst, f.bound) << str(l) << " " << f.name << " at " << at;
    }
  }
}

TEST(Prelude, QuotientsInsideGelu) {
  for (Lanes l : configurations()) {
    Loaded lib = build(
        "extern \"C\" __attribute__((visibility(\"default\"))) void te(const float* x, float* y, long n) { for (long i "
        "= 0; i < n; i += W) store_f32(y + i, v_erf_fast(load_f32(x + i))); }\n"
        "extern \"C\" __attribute__((visibility(\"default\"))) void tt(const float* x, float* y, long n) { for (long i "
        "= 0; i < n; i += W) store_f32(y + i, v_tanh_fast(load_f32(x + i))); }\n",
        l);
    std::vector<float> xs = sweep(), ys(xs.size());
    auto check = [&](const char* name, long double (*truth)(long double)) {
      lib.symbol<void(const float*, float*, long)>(name)(xs.data(), ys.data(), static_cast<long>(xs.size()));
      double worst = 0;
      for (size_t i = 0; i < xs.size(); ++i) {
        if (std::isnan(xs[i])) {
          EXPECT_TRUE(std::isnan(ys[i]));
          continue;
        }
        worst = std::max(worst, static_cast<double>(std::fabs(ys[i] - truth(xs[i]))));
        EXPECT_LE(std::fabs(ys[i]), 1) << str(l) << name << " at " << xs[i];
      }
      EXPECT_LE(worst, 4.5e-7) << str(l) << name;
    };
    check("te", std::erf);
    check("tt", std::tanh);
  }
}

TEST(Prelude, Pow) {
  std::vector<float> xs, ys;
  std::mt19937 rng(3);
  const float inf = INFINITY;
  const std::vector<float> special = {0.f,  -0.f, 1.f,  -1.f, inf,   -inf,   NAN,  2.f,
                                      -2.f, 3.f,  -3.f, 0.5f, -0.5f, 1e-40f, 1e38f};
  for (float a : special)
    for (float b : special) xs.push_back(a), ys.push_back(b);
  std::uniform_real_distribution<float> d(0, 1);
  for (int i = 0; i < 100000; ++i) xs.push_back(std::exp(60 * d(rng) - 30)), ys.push_back(6 * d(rng) - 3);
  for (int i = 0; i < 100000; ++i) xs.push_back(1 + 0.01f * (d(rng) - .5f)), ys.push_back(20000 * (d(rng) - .5f));
  while (xs.size() % 16) xs.push_back(1), ys.push_back(1);
  for (Lanes l : configurations()) {
    Loaded lib = build(
        "extern \"C\" __attribute__((visibility(\"default\"))) void t(const float* x, const float* y, float* z, long "
        "n) { for (long i = 0; i < n; i += W) store_f32(z + i, v_pow(load_f32(x + i), load_f32(y + i))); }\n",
        l);
    std::vector<float> zs(xs.size());
    lib.symbol<void(const float*, const float*, float*, long)>("t")(xs.data(), ys.data(), zs.data(),
                                                                    static_cast<long>(xs.size()));
    for (size_t i = 0; i < xs.size(); ++i)
      ASSERT_LE(ulps(zs[i], std::pow(static_cast<long double>(xs[i]), static_cast<long double>(ys[i]))), 1.0)
          << str(l) << " " << xs[i] << "^" << ys[i];
  }
}

TEST(Prelude, ElementaryFunctionsF64) {
  std::vector<double> xs;
  std::mt19937_64 rng(5);
  for (int i = 0; i < 100000; ++i) xs.push_back(std::bit_cast<double>(rng()));
  std::uniform_real_distribution<double> d(-750, 750), e(-2, 2);
  for (int i = 0; i < 100000; ++i) xs.push_back(d(rng)), xs.push_back(e(rng));
  for (double x : {0.0, double{INFINITY}, 709.7, 709.79, 745.1, 745.2, 1.0, 5e-324}) xs.push_back(x), xs.push_back(-x);
  xs.push_back(NAN);
  while (xs.size() % 8) xs.push_back(0.25);
  const Unary fs[] = {{"d_exp", std::exp, 1.2},   {"d_sigmoid", sigmoid, 2.6},    {"d_log", std::log, 1},
                      {"d_tanh", std::tanh, 2.5}, {"d_round", std::nearbyint, 0}, {"d_sqrt", std::sqrt, 0.51}};
  for (Lanes l : configurations()) {
    std::string code;
    for (const Unary& f : fs)
      code += std::string("extern \"C\" __attribute__((visibility(\"default\"))) void t") + f.name +
              "(const double* x, double* y, long n) { for (long i = 0; i < n; i += WD) store_f64(y + i, " + f.name +
              "(load_f64(x + i))); }\n";
    Loaded lib = build(code, l);
    std::vector<double> ys(xs.size());
    for (const Unary& f : fs) {
      lib.symbol<void(const double*, double*, long)>(std::string("t") + f.name)(xs.data(), ys.data(),
                                                                                static_cast<long>(xs.size()));
      double worst = 0, at = 0;
      for (size_t i = 0; i < xs.size(); ++i) {
        // 1 / (1 + inf) is 0 where the true value is a denormal; eager computes the same formula
        if (f.truth == sigmoid && xs[i] < -709) continue;
        double u = ulps(ys[i], f.truth(xs[i]));
        if (u > worst) worst = u, at = xs[i];
      }
      EXPECT_LE(worst, f.bound) << str(l) << " " << f.name << " at " << at;
    }
  }
}

// Every 16-bit pattern both ways, and rounding of f32 against the definition.
TEST(Prelude, HalfPrecision) {
  auto half_truth = [](uint16_t h) {
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? std::ldexp(1024 + m, e - 25) : std::ldexp(m, -24);
    return static_cast<float>(h & 0x8000 ? -v : v);
  };
  auto nearest = [](float x, int digits, int min_exponent,
                    double limit) -> float {  // round to nearest even with that many bits
    if (std::isnan(x) || std::isinf(x) || x == 0) return x;
    int e;
    std::frexp(x, &e);
    int shift = std::max(e, min_exponent) - digits;
    double r = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(x), -shift)), shift);
    return std::fabs(r) > limit ? std::copysign(INFINITY, x) : static_cast<float>(r);
  };
  std::vector<uint16_t> hs(65536);
  for (int i = 0; i < 65536; ++i) hs[static_cast<size_t>(i)] = static_cast<uint16_t>(i);
  std::vector<float> xs;
  for (uint64_t u = 0; u < (1ull << 32); u += 8191) xs.push_back(std::bit_cast<float>(static_cast<uint32_t>(u)));
  for (int i = 0; i < 65536; ++i)  // ties and their neighbours
    for (int d = -1; d <= 1; ++d) {
      xs.push_back(std::bit_cast<float>((static_cast<uint32_t>(i) << 16 | 0x8000) + static_cast<uint32_t>(d)));
      float h = half_truth(static_cast<uint16_t>(i));
      if (std::isfinite(h))
        xs.push_back(std::bit_cast<float>((std::bit_cast<uint32_t>(h) | 0x1000) + static_cast<uint32_t>(d)));
    }
  while (xs.size() % 16) xs.push_back(0.25f);
  for (Lanes l : configurations()) {
    std::string code;
    for (const char* t : {"bf16", "f16"})
      code += std::string("extern \"C\" __attribute__((visibility(\"default\"))) void to_") + t +
              "(const float* x, unsigned short* y, long n) { for (long i = 0; i < n; i += W) store_" + t +
              "(y + i, load_f32(x + i)); }\nextern \"C\" __attribute__((visibility(\"default\"))) void from_" + t +
              "(const unsigned short* x, float* y, long n) { for (long i = 0; i < n; i += W) store_f32(y + i, load_" +
              t + "(x + i)); }\n";
    Loaded lib = build(code, l);
    std::vector<float> back(65536);
    std::vector<uint16_t> out(xs.size());
    for (std::string t : {"bf16", "f16"}) {
      const bool bf = t == "bf16";
      lib.symbol<void(const uint16_t*, float*, long)>("from_" + t)(hs.data(), back.data(), 65536);
      for (size_t i = 0; i < 65536; ++i) {
        float want = bf ? std::bit_cast<float>(static_cast<uint32_t>(i) << 16) : half_truth(static_cast<uint16_t>(i));
        ASSERT_TRUE(std::isnan(want) ? std::isnan(back[i])
                                     : std::bit_cast<uint32_t>(want) == std::bit_cast<uint32_t>(back[i]))
            << str(l) << t << i;
      }
      lib.symbol<void(const float*, uint16_t*, long)>("to_" + t)(xs.data(), out.data(), static_cast<long>(xs.size()));
      for (size_t i = 0; i < xs.size(); ++i) {
        float want = bf ? nearest(xs[i], 8, -125, 0x1.fep127) : nearest(xs[i], 11, -13, 65504);
        float got = bf ? std::bit_cast<float>(static_cast<uint32_t>(out[i]) << 16) : half_truth(out[i]);
        ASSERT_TRUE(std::isnan(want) ? std::isnan(got) : std::bit_cast<uint32_t>(want) == std::bit_cast<uint32_t>(got))
            << str(l) << " " << t << " " << xs[i] << " want " << want << " got " << got;
      }
    }
  }
}

// Everything in the library compiles for every configuration, with whatever compilers are there.
TEST(Prelude, WholeLibraryCompiles) {
  for (const char* cxx : {"g++", "clang++"}) {
    setenv("CXX", cxx, 1);
    try {
      find_compiler();
    } catch (const Declined&) {
      continue;
    }
    for (Lanes l : configurations()) {
      std::string all = "/*";
      for (const std::string& n : prelude_names(l)) all += " " + n;
      std::vector<std::string> sources = {"namespace v {\n" + prelude(all, l) + "}\n"};
      EXPECT_NO_THROW(compile_sources(sources, Target{l.isa})) << cxx << " " << str(l);
    }
  }
  unsetenv("CXX");
}

}  // namespace
}  // namespace flashover::kernel
