// Division and remainder of floats and integers as torch has them, integer powers.
#include "kernel/cpp/prelude/snippets.h"

namespace flashover::kernel::snippets {
namespace {

const Snippet kDivision[] = {
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
    // Of integers. A zero divisor is the caller's business (it gives 0 here and never traps), -2^n / -1 wraps
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
};

}  // namespace

Snippets division() { return kDivision; }

}  // namespace flashover::kernel::snippets
