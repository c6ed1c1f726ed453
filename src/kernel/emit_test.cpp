// Emitted code against loops::interpret, for every kind of vector code this machine can run and for scalar code.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "base/check.h"
#include "kernel/kernel.h"
#include "kernel/load_for_test.h"
#include "loops/half.h"

namespace flashover::kernel {
namespace {

using KernelFunction = int(void* const*, const int64_t*);

std::vector<Target> targets() {
  std::vector<Target> out;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512})
    if (isa <= host_target().isa) out.push_back({isa});
  return out;
}

struct Memory {
  std::vector<std::vector<uint64_t>> buffers;  // one per parameter, with a guard word behind
  std::vector<void*> pointers;
};

int64_t bytes_of(const loops::Param& p) { return p.numel.value() * info(p.dtype).bytes; }

double value_at(DType d, const void* p, int64_t i) {
  switch (d) {
    case DType::kF32: return static_cast<const float*>(p)[i];
    case DType::kF64: return static_cast<const double*>(p)[i];
    case DType::kBF16: return loops::bf16_to_float(static_cast<const uint16_t*>(p)[i]);
    case DType::kF16: return loops::f16_to_float(static_cast<const uint16_t*>(p)[i]);
    case DType::kI64: return static_cast<double>(static_cast<const int64_t*>(p)[i]);
    case DType::kI32: return static_cast<const int32_t*>(p)[i];
    case DType::kI16: return static_cast<const int16_t*>(p)[i];
    case DType::kI8: return static_cast<const int8_t*>(p)[i];
    default: return static_cast<const uint8_t*>(p)[i];
  }
}

Memory random_memory(const loops::Kernel& k, uint32_t seed, bool specials) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, 1.5f);
  Memory m;
  for (const loops::Param& p : k.params) {
    const int64_t n = p.numel.value();
    auto& b = m.buffers.emplace_back(static_cast<size_t>(bytes_of(p) / 8 + 16), 0x5a5a5a5a5a5a5a5aull);
    for (int64_t i = 0; i < n; ++i) {
      float f = normal(rng);
      if (specials && rng() % 50 == 0) {
        const float odd[] = {NAN, INFINITY, -INFINITY, 0.f, -0.f, 1e-40f, 1e30f};
        f = odd[rng() % 7];
      }
      switch (p.dtype) {
        case DType::kF32: reinterpret_cast<float*>(b.data())[i] = f; break;
        case DType::kF64: reinterpret_cast<double*>(b.data())[i] = f; break;
        case DType::kBF16: reinterpret_cast<uint16_t*>(b.data())[i] = loops::float_to_bf16(f); break;
        case DType::kF16: reinterpret_cast<uint16_t*>(b.data())[i] = loops::float_to_f16(f); break;
        case DType::kI64: reinterpret_cast<int64_t*>(b.data())[i] = static_cast<int64_t>(rng() % 7) - 2; break;
        case DType::kI32: reinterpret_cast<int32_t*>(b.data())[i] = static_cast<int32_t>(rng() % 201) - 100; break;
        case DType::kI16: reinterpret_cast<int16_t*>(b.data())[i] = static_cast<int16_t>(rng() % 201 - 100); break;
        case DType::kBool: reinterpret_cast<uint8_t*>(b.data())[i] = rng() % 2; break;
        default: reinterpret_cast<uint8_t*>(b.data())[i] = static_cast<uint8_t>(rng()); break;
      }
    }
  }
  for (auto& b : m.buffers) m.pointers.push_back(b.data());
  return m;
}

bool close(DType d, double got, double want, double tolerance) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got);
  if (got == want) return true;
  if (std::isinf(want) || std::isinf(got)) return false;
  if (!is_floating(d)) return false;
  double relative = d == DType::kBF16 ? 0x1p-7 : d == DType::kF16 ? 0x1p-10 : tolerance;
  return std::fabs(got - want) <= relative * std::max({std::fabs(want), std::fabs(got), tolerance == 0 ? 0.0 : 1e-2});
}

// Runs every kernel on every target, with and without special values.
void agree(const std::vector<loops::Kernel>& kernels, double tolerance = 2e-5) {
  for (const loops::Kernel& k : kernels) loops::verify(k);
  for (Target t : targets()) {
    Options o;
    o.target = t;
    Compiled c = compile(kernels, o);
    std::vector<Loaded> libs;
    for (const plan::Binary& b : c.binaries) libs.emplace_back(b.bytes);
    for (size_t n = 0; n < kernels.size(); ++n) {
      const loops::Kernel& k = kernels[n];
      auto* f = libs[static_cast<size_t>(c.kernels[n].binary)].symbol<KernelFunction>(c.kernels[n].symbol);
      for (bool specials : {false, true}) {
        Memory want = random_memory(k, 1, specials), got = random_memory(k, 1, specials);
        int expected = loops::interpret(k, want.pointers), result = f(got.pointers.data(), nullptr);
        ASSERT_EQ(result, expected) << str(t) << loops::print(k);
        if (expected) continue;
        for (size_t i = 0; i < k.params.size(); ++i) {
          const loops::Param& p = k.params[i];
          for (int64_t j = 0; j < p.numel.value(); ++j) {
            double a = value_at(p.dtype, got.pointers[i], j), b = value_at(p.dtype, want.pointers[i], j);
            ASSERT_TRUE(close(p.dtype, a, b, tolerance))
                << str(t) << " p" << i << "[" << j << "] = " << a << " and not " << b << (specials ? " (specials)" : "") << "\n" << loops::print(k) << emit(k, t).text;
          }
          const char* tail = reinterpret_cast<const char*>(got.pointers[i]) + bytes_of(p);
          ASSERT_TRUE(std::all_of(tail, reinterpret_cast<const char*>(got.buffers[i].data() + got.buffers[i].size()), [](char x) { return x == 0x5a; }))
              << str(t) << " wrote behind p" << i << "\n" << loops::print(k) << emit(k, t).text;
        }
      }
    }
  }
}

std::string replace_all(std::string s, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = s.find(from, at)) != std::string::npos; at += to.size()) s.replace(at, from.size(), to);
  return s;
}

// $R rows, $C columns, $N their product
std::vector<loops::Kernel> sized(const std::string& text, std::vector<std::pair<int, int>> shapes) {
  std::vector<loops::Kernel> out;
  for (auto [r, c] : shapes) {
    std::string s = replace_all(replace_all(replace_all(text, "$R", std::to_string(r)), "$C", std::to_string(c)), "$N", std::to_string(r * c));
    out.push_back(loops::parse(s));
  }
  return out;
}

const std::vector<std::pair<int, int>> kShapes = {{3, 1}, {2, 5}, {4, 16}, {3, 31}, {2, 64}, {2, 77}, {1, 300}, {5, 1024}};

TEST(Emit, Softmax) {
  agree(sized(R"(kernel "softmax" {
  p0 = f32[$N] read
  p1 = f32[$N] read write
  outer i0.$R
  acc a0 = max f32
  acc a1 = sum f32
  vector inner
  cost 40
  stage j0.$C {
    v0 = load f32 p0[$C*i0.$R + j0.$C]
    v1 = reduce a0 v0
  }
  stage j0.$C {
    v0 = load f32 p0[$C*i0.$R + j0.$C]
    v1 = acc f32 a0
    v2 = sub f32 v0 v1
    v3 = exp f32 v2
    v4 = reduce a1 v3
    v5 = store p1[$C*i0.$R + j0.$C] v3
  }
  stage j0.$C {
    v0 = load f32 p1[$C*i0.$R + j0.$C]
    v1 = acc f32 a1
    v2 = div f32 v0 v1
    v3 = store p1[$C*i0.$R + j0.$C] v2
  }
}
)", {{3, 4}, {3, 16}, {2, 31}, {2, 64}, {2, 77}, {5, 300}, {1, 1024}, {40, 513}}));
}

}  // namespace
}  // namespace flashover::kernel
