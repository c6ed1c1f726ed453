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

using KernelFunction = int(void* const*, const int64_t*, void* share);

std::vector<Target> targets() {
  std::vector<Target> out;
  for (const Isa isa : isas_of_host()) out.push_back({isa});
  if (host_target().bf16) out.push_back(host_target());
  return out;
}

// The OpenMP runtime that torch brings along in the product: with it here, too, kernels run on several threads.
const bool kThreads = ::dlopen("libgomp.so.1", RTLD_NOW | RTLD_GLOBAL) != nullptr;

struct MemoryAccess {
  std::vector<std::vector<uint64_t>> buffers;  // one per parameter, with a guard word behind
  std::vector<void*> pointers;
};

int64_t bytes_of(const loops::Param& p) { return p.numel.value() * info(p.dtype).bytes; }

double value_at(DType d, const void* p, int64_t i) {
  switch (d) {
    case DType::kF32:
      return static_cast<const float*>(p)[i];
    case DType::kF64:
      return static_cast<const double*>(p)[i];
    case DType::kBF16:
      return loops::bf16_to_float(static_cast<const uint16_t*>(p)[i]);
    case DType::kF16:
      return loops::f16_to_float(static_cast<const uint16_t*>(p)[i]);
    case DType::kI64:
      return static_cast<double>(static_cast<const int64_t*>(p)[i]);
    case DType::kI32:
      return static_cast<const int32_t*>(p)[i];
    case DType::kI16:
      return static_cast<const int16_t*>(p)[i];
    case DType::kI8:
      return static_cast<const int8_t*>(p)[i];
    default:
      return static_cast<const uint8_t*>(p)[i];
  }
}

MemoryAccess random_memory(const loops::Kernel& k, uint32_t seed, bool specials) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, 1.5f);
  MemoryAccess m;
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
        case DType::kF32:
          reinterpret_cast<float*>(b.data())[i] = f;
          break;
        case DType::kF64:
          reinterpret_cast<double*>(b.data())[i] = f;
          break;
        case DType::kBF16:
          reinterpret_cast<uint16_t*>(b.data())[i] = loops::float_to_bf16(f);
          break;
        case DType::kF16:
          reinterpret_cast<uint16_t*>(b.data())[i] = loops::float_to_f16(f);
          break;
        case DType::kI64:
          reinterpret_cast<int64_t*>(b.data())[i] = static_cast<int64_t>(rng() % 7) - 2;
          break;
        case DType::kI32:
          reinterpret_cast<int32_t*>(b.data())[i] = static_cast<int32_t>(rng() % 201) - 100;
          break;
        case DType::kI16:
          reinterpret_cast<int16_t*>(b.data())[i] = static_cast<int16_t>(rng() % 201 - 100);
          break;
        case DType::kBool:
          reinterpret_cast<uint8_t*>(b.data())[i] = rng() % 2;
          break;
        default:
          reinterpret_cast<uint8_t*>(b.data())[i] = static_cast<uint8_t>(rng());
          break;
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
        MemoryAccess want = random_memory(k, 1, specials), got = random_memory(k, 1, specials);
        int expected = loops::interpret(k, want.pointers), result = f(got.pointers.data(), nullptr, nullptr);
        ASSERT_EQ(result, expected) << str(t) << loops::print(k);
        if (expected) continue;
        for (size_t i = 0; i < k.params.size(); ++i) {
          const loops::Param& p = k.params[i];
          for (int64_t j = 0; j < p.numel.value(); ++j) {
            double a = value_at(p.dtype, got.pointers[i], j), b = value_at(p.dtype, want.pointers[i], j);
            ASSERT_TRUE(close(p.dtype, a, b, tolerance)) << str(t) << " p" << i << "[" << j << "] = " << a
                                                         << " and not " << b << (specials ? " (specials)" : "") << "\n"
                                                         << loops::print(k) << emit(k, t).body;
          }
          const char* tail = reinterpret_cast<const char*>(got.pointers[i]) + bytes_of(p);
          ASSERT_TRUE(std::all_of(tail, reinterpret_cast<const char*>(got.buffers[i].data() + got.buffers[i].size()),
                                  [](char x) { return x == 0x5a; }))
              << str(t) << " wrote behind p" << i << "\n"
              << loops::print(k) << emit(k, t).body;
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
    std::string s = replace_all(replace_all(replace_all(text, "$R", std::to_string(r)), "$C", std::to_string(c)), "$N",
                                std::to_string(r * c));
    out.push_back(loops::parse(s));
  }
  return out;
}

const std::vector<std::pair<int, int>> kShapes = {{3, 1},  {2, 5},  {4, 16},  {3, 31},
                                                  {2, 64}, {2, 77}, {1, 300}, {5, 1024}};

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
)",
              {{3, 4}, {3, 16}, {2, 31}, {2, 64}, {2, 77}, {5, 300}, {1, 1024}, {40, 513}}));
}

TEST(Emit, RowsWithScalarsBetween) {  // layer norm in bf16, weights per column, a row result stored
  agree(sized(R"(kernel "layer_norm" {
  p0 = bf16[$N] read
  p1 = bf16[$C] read
  p2 = bf16[$N] write
  p3 = f32[$R] write
  outer i0.$R
  acc a0 = sum f32
  acc a1 = sum f32
  scratch r0 = f32[$C]
  vector inner
  cost 40
  stage j0.$C {
    v0 = load f32 p0[$C*i0.$R + j0.$C]
    v1 = reduce a0 v0
    v2 = store_scratch r0[j0.$C] v0
  }
  stage j0.$C {
    v0 = load_scratch f32 r0[j0.$C]
    v1 = acc f32 a0
    v2 = const f32 0.01
    v3 = mul f32 v1 v2
    v4 = sub f32 v0 v3
    v5 = mul f32 v4 v4
    v6 = reduce a1 v5
  }
  stage j0.$C {
    v0 = load_scratch f32 r0[j0.$C]
    v1 = acc f32 a1
    v2 = const f32 1
    v3 = add f32 v1 v2
    v4 = rsqrt f32 v3
    v5 = mul f32 v0 v4
    v6 = load f32 p1[j0.$C]
    v7 = mul f32 v5 v6
    v8 = round_to f32 bf16 v7
    v9 = store p2[$C*i0.$R + j0.$C] v8
  }
  stage {
    v0 = acc f32 a1
    v1 = store p3[i0.$R] v0
  }
}
)",
              kShapes));
}

TEST(Emit, Columns) {  // sums, maxima and arg-maxima down the columns, long enough for two levels
  agree(sized(R"(kernel "columns" {
  p0 = f32[$N] read
  p1 = f32[$C] write
  p2 = f32[$C] write
  p3 = i64[$C] write
  outer i0.$C
  acc a0 = sum f32
  acc a1 = max f32
  acc a2 = argmax f32
  vector outer
  cost 40
  stage j0.$R {
    v0 = load f32 p0[$C*j0.$R + i0.$C]
    v1 = reduce a0 v0
    v2 = reduce a1 v0
    v3 = index i64 [j0.$R]
    v4 = reduce a2 v0 v3
  }
  stage {
    v0 = acc f32 a0
    v1 = store p1[i0.$C] v0
    v2 = acc f32 a1
    v3 = store p2[i0.$C] v2
    v4 = acc i64 a2
    v5 = store p3[i0.$C] v4
  }
}
)",
              {{3, 1}, {7, 16}, {300, 5}, {100, 64}, {130, 77}, {2, 300}}),
        1e-4);
}

// The accumulators are vectors all the same. (compile() would hide text that no compiler takes.)
TEST(Emit, ColumnsUnderAMaskThatIsTheSameForAll) {
  const std::vector<loops::Kernel> kernels = sized(R"(kernel "columns" {
  p0 = f32[$N] read
  p1 = f32[$C] write
  outer i0.$C
  acc a0 = max f32
  vector outer
  cost 10
  stage j0.$R {
    v0 = in_range b8 [j0.$R - 1] [0] [3]
    v1 = load f32 p0[$C*j0.$R + i0.$C] if v0
    v2 = reduce a0 v1 if v0
  }
  stage {
    v0 = acc f32 a0
    v1 = store p1[i0.$C] v0
  }
}
)",
                                                   {{7, 16}, {9, 77}});
  agree(kernels);
  for (Target t : targets())
    for (const loops::Kernel& k : kernels) {
      const Emitted e = emit(k, t);
      const std::vector<std::string> sources = {source_file({&e, 1})};
      EXPECT_NO_THROW(compile_sources(sources, t)) << str(t) << e.body;
    }
}

TEST(Emit, ArgReductionsAlongRows) {
  std::vector<loops::Kernel> all;
  for (const char* kind : {"argmax", "argmin"})
    for (const char* type : {"f32", "f64", "i64", "i32", "u8", "bf16"}) {
      std::string t = R"(kernel "arg" {
  p0 = $T[$N] read
  p1 = i64[$R] write
  p2 = i64[$R] write
  outer i0.$R
  acc a0 = $K $A
  acc a1 = $K $A
  vector inner
  cost 40
  stage j0.$C {
    v0 = load $A p0[$C*i0.$R + j0.$C]
    v1 = index i64 [j0.$C]
    v2 = reduce a0 v0 v1
    v3 = in_range b8 [j0.$C] [0] [9]
    v4 = reduce a1 v0 v1 if v3
  }
  stage {
    v0 = acc i64 a0
    v1 = store p1[i0.$R] v0
    v2 = acc i64 a1
    v3 = store p2[i0.$R] v2
  }
}
)";
      t = replace_all(replace_all(replace_all(t, "$K", kind), "$T", type), "$A",
                      std::string(type) == "bf16" ? "f32" : type);
      for (loops::Kernel& k : sized(t, {{3, 1}, {9, 77}, {2, 300}})) all.push_back(std::move(k));
    }
  agree(all);
}

TEST(Emit, CausalMaskInIndexArithmetic) {
  std::vector<loops::Kernel> ks = sized(R"(kernel "causal" {
  p0 = f32[$N] read
  p1 = f32[$N] write
  outer i0.$R i1.$C
  vector outer
  cost 4
  stage {
    v0 = load f32 p0[$C*i0.$R + i1.$C]
    v1 = index i64 [i0.$R]
    v2 = index i64 [i1.$C]
    v3 = const i64 3
    v4 = add i64 v1 v3
    v5 = le b8 v2 v4
    v6 = const f32 -inf
    v7 = where f32 v5 v0 v6
    v8 = store p1[$C*i0.$R + i1.$C] v7
  }
}
)",
                                        kShapes);
  agree(ks);
  if (host_target().isa == Isa::kAvx512) {
    EXPECT_EQ(emit(ks[4], {Isa::kAvx512}).lanes.width, 16) << "positions fit in 32 bits";
  }
}

TEST(Emit, GatherChecksItsIndices) {
  auto text = [](const char* mode, bool bad) {
    std::string s = R"(kernel "embedding" {
  p0 = i64[$R] read
  p1 = f32[$T] read
  p2 = f32[$N] write
  outer $LOOPS
  error 0 "index out of range in self"
  vector $MODE
  cost 4
  stage $STAGE {
    v0 = load i64 p0[i0.$R]
    v1 = indirect i64 t1.$H [$H] v0 wrap error 0
    v2 = load f32 p1[$C*t1.$H + $J.$C]
    v3 = store p2[$C*i0.$R + $J.$C] v2
  }
}
)";
    bool rows = std::string(mode) == "inner";
    s = replace_all(s, "$LOOPS", rows ? "i0.$R" : "i0.$R i1.$C");
    s = replace_all(s, "$STAGE ", rows ? "j0.$C " : "");
    s = replace_all(replace_all(s, "$J", rows ? "j0" : "i1"), "$MODE", mode);
    return replace_all(s, "$H", bad ? "3" : "5");
  };
  for (const char* mode : {"inner", "outer"})
    for (bool bad : {false, true})
      for (auto [r, c] : std::vector<std::pair<int, int>>{{4, 16}, {40, 77}, {9, 3}}) {
        std::string s = replace_all(text(mode, bad), "$T", std::to_string((bad ? 3 : 5) * c));
        agree(sized(s, {{r, c}}));
      }
}

TEST(Emit, ScatterAddsInOrder) {
  agree(sized(R"(kernel "index_add" {
  p0 = i64[$R] read
  p1 = f32[$N] read
  p2 = f32[385] read write
  outer i0.$C
  vector outer
  cost 40
  stage j0.$R ordered {
    v0 = load i64 p0[j0.$R]
    v1 = indirect i64 t1.5 [5] v0 wrap
    v2 = load f32 p1[$C*j0.$R + i0.$C]
    v3 = store p2[$C*t1.5 + i0.$C] v2 add
  }
}
)",
              {{30, 77}}),
        1e-4);
}

TEST(Emit, ExactKernelsApproximateNothing) {
  const std::string head = "kernel {\n p0 = f32[64] read\n p1 = f32[64] write\n outer i0.64\n vector outer\n";
  const auto stage = [](const std::string& rest) {
    return " cost 1\n stage {\n v0 = load f32 p0[i0.64]\n v1 = tanh f32 v0\n v2 = const f32 1\n v3 = add f32 v1 v2\n" +
           rest + " }\n}\n";
  };
  const std::string body = stage(" v4 = mul f32 v0 v3\n v5 = store p1[i0.64] v4\n");
  const auto code = [](const std::string& text) { return emit(loops::parse(text), {Isa::kAvx2}).body; };
  EXPECT_EQ(code(head + " exact\n" + body).find("v_tanh_fast"), std::string::npos);
  EXPECT_NE(loops::identity(loops::parse(head + body)), loops::identity(loops::parse(head + " exact\n" + body)));
  const std::string halved = " v4 = const f32 0.5\n v5 = mul f32 v3 v4\n";
  const std::string factor = stage(halved + " v6 = mul f32 v5 v0\n v7 = store p1[i0.64] v6\n");
  for (const std::string& s : {body, factor}) EXPECT_NE(code(head + s).find("v_tanh_fast"), std::string::npos);
  for (const char* tail : {" v6 = store p1[i0.64] v5\n", " v6 = log f32 v5\n v7 = store p1[i0.64] v6\n"})
    EXPECT_EQ(code(head + stage(halved + tail)).find("v_tanh_fast"), std::string::npos) << "the last bits count";
}

TEST(Emit, RunsOnTheThreadsThatThereAre) {
  if (!kThreads) GTEST_SKIP() << "no libgomp.so.1 on this machine";
  auto* set_threads = reinterpret_cast<void (*)(int)>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  auto* get_threads = reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  ASSERT_TRUE(set_threads && get_threads);
  const int before = get_threads();
  std::vector<loops::Kernel> ks = sized(R"(kernel "rows" {
  p0 = f32[$N] read
  p1 = f32[$R] write
  outer i0.$R
  acc a0 = max f32
  vector inner
  cost 1000000
  stage j0.$C {
    v0 = load f32 p0[$C*i0.$R + j0.$C]
    v1 = reduce a0 v0
  }
  stage {
    v0 = acc f32 a0
    v1 = store p1[i0.$R] v0
  }
}
)",
                                        {{1, 40}, {2, 40}, {7, 40}, {64, 40}, {1001, 3}});
  for (int n : {1, 2, 5}) {
    set_threads(n);
    agree(ks);
  }
  set_threads(before);
}

TEST(Emit, SizesThatAreKnownAtTheCall) {
  const std::vector<std::string> texts = {R"(kernel "softmax" {
  size rows 1 1000 7
  size columns 1 1000 40
  p0 = f32[40000] read
  p1 = f32[40000] read write
  outer i0.rows[rows]
  acc a0 = max f32
  acc a1 = sum f32
  vector inner
  cost 40000
  stage j0.columns[columns] {
    v0 = load f32 p0[columns*i0.rows + j0.columns]
    v1 = reduce a0 v0
  }
  stage j0.columns[columns] {
    v0 = load f32 p0[columns*i0.rows + j0.columns]
    v1 = acc f32 a0
    v2 = sub f32 v0 v1
    v3 = exp f32 v2
    v4 = reduce a1 v3
    v5 = store p1[columns*i0.rows + j0.columns] v3
  }
  stage j0.columns[columns] {
    v0 = load f32 p1[columns*i0.rows + j0.columns]
    v1 = acc f32 a1
    v2 = div f32 v0 v1
    v3 = store p1[columns*i0.rows + j0.columns] v2
  }
}
)",
                                          R"(kernel "column sums" {
  size rows 1 1000 7
  size columns 1 1000 40
  p0 = f32[40000] read
  p1 = f32[40000] write
  outer i0.columns[columns]
  acc a0 = sum f32
  vector outer
  cost 40000
  stage j0.rows[rows] {
    v0 = load f32 p0[columns*j0.rows + i0.columns]
    v1 = reduce a0 v0
  }
  stage {
    v0 = acc f32 a0
    v1 = store p1[i0.columns] v0
  }
}
)",
                                          R"(kernel "add rows" {
  size rows 1 1000 7
  size columns 1 1000 40
  p0 = f32[40000] read
  p1 = f32[1000] read
  p2 = f32[40000] write
  outer i0.rows[rows] i1.columns[columns]
  vector outer
  cost 3
  stage {
    v0 = load f32 p0[columns*i0.rows + i1.columns]
    v1 = load f32 p1[i1.columns]
    v2 = add f32 v0 v1
    v3 = store p2[columns*i0.rows + i1.columns] v2
  }
}
)"};
  for (Target t : targets()) {
    Options o;
    o.target = t;
    std::vector<loops::Kernel> ks;
    for (const std::string& text : texts) ks.push_back(loops::parse(text));
    Compiled c = compile(ks, o);
    std::vector<Loaded> libs;
    for (const plan::Binary& b : c.binaries) libs.emplace_back(b.bytes);
    for (size_t n = 0; n < ks.size(); ++n)
      for (auto [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 16}, {7, 77}, {300, 130}}) {
        MemoryAccess want = random_memory(ks[n], 1, false), got = random_memory(ks[n], 1, false);
        const int64_t sizes[] = {rows, columns};
        ASSERT_EQ(loops::interpret(ks[n], want.pointers, sizes), 0);
        ASSERT_EQ(libs[static_cast<size_t>(c.kernels[n].binary)].symbol<KernelFunction>(c.kernels[n].symbol)(
                      got.pointers.data(), sizes, nullptr),
                  0);
        for (size_t i = 0; i < ks[n].params.size(); ++i)
          for (int64_t j = 0; j < ks[n].params[i].numel.value(); ++j)
            ASSERT_TRUE(close(DType::kF32, value_at(DType::kF32, got.pointers[i], j),
                              value_at(DType::kF32, want.pointers[i], j), 5e-3))
                << str(t) << " " << rows << "x" << columns << " p" << i << "[" << j << "]\n"
                << emit(ks[n], t).body;
      }
  }
}

TEST(Emit, ScansAndPooling) {
  agree(sized(R"(kernel "cumsum" {
  p0 = f32[$N] read
  p1 = f32[$N] write
  outer i0.$R
  acc a0 = sum f32
  cost 40
  stage j0.$C ordered {
    v0 = load f32 p0[$C*i0.$R + j0.$C]
    v1 = scan f32 a0 v0
    v2 = store p1[$C*i0.$R + j0.$C] v1
  }
}
)",
              {{4, 16}, {9, 77}}),
        1e-4);
  agree(sized(R"(kernel "cummax down" {
  p0 = f32[$N] read
  p1 = f32[$N] write
  outer i0.$C
  acc a0 = max f32
  vector outer
  cost 40
  stage j0.$R ordered {
    v0 = load f32 p0[$C*j0.$R + i0.$C]
    v1 = scan f32 a0 v0
    v2 = store p1[$C*j0.$R + i0.$C] v1
  }
}
)",
              {{4, 16}, {9, 77}}));
  // 3x3 windows with padding, stride 2, over an image of $R by $C
  std::string pool = R"(kernel "max_pool" {
  p0 = f32[$N] read
  p1 = f32[$M] write
  outer i0.$OR i1.$OC
  acc a0 = max f32
  vector outer
  cost 40
  stage j0.3 j1.3 {
    v0 = in_range b8 [2*i0.$OR + j0.3 - 1] [0] [$R]
    v1 = in_range b8 [2*i1.$OC + j1.3 - 1] [0] [$C]
    v2 = bitwise_and b8 v0 v1
    v3 = load f32 p0[$C*(2*i0.$OR + j0.3 - 1) + 2*i1.$OC + j1.3 - 1] if v2
    v4 = reduce a0 v3 if v2
  }
  stage {
    v0 = acc f32 a0
    v1 = store p1[$OC*i0.$OR + i1.$OC] v0
  }
}
)";
  for (auto [r, c] : std::vector<std::pair<int, int>>{{7, 7}, {12, 40}}) {
    int orows = (r - 1) / 2 + 1, ocols = (c - 1) / 2 + 1;
    std::string s = replace_all(pool, "$C*(2*i0.$OR + j0.3 - 1)", std::to_string(2 * c) + "*i0.$OR + $C*j0.3 - $C");
    s = replace_all(replace_all(replace_all(s, "$OR", std::to_string(orows)), "$OC", std::to_string(ocols)), "$M",
                    std::to_string(orows * ocols));
    agree(sized(s, {{r, c}}));
  }
}

TEST(Emit, TransposingCopies) {
  std::vector<loops::Kernel> all;
  for (const char* type : {"f32", "bf16", "i32", "f64", "u8"}) {
    std::string t = R"(kernel "transpose" {
  p0 = $T[$D] read
  p1 = $T[$D] write
  outer i0.2 i1.$R i2.$C
  vector outer
  transpose 1
  cost 4
  stage {
    v0 = load $A p0[$N*i0.2 + i1.$R + $R*i2.$C]
    v1 = add $A v0 v0
    v2 = store p1[$N*i0.2 + $C*i1.$R + i2.$C] v1
  }
}
)";
    t = replace_all(replace_all(t, "$T", type), "$A", std::string(type) == "bf16" ? "f32" : type);
    for (auto [r, c] : std::vector<std::pair<int, int>>{{16, 16}, {5, 33}, {40, 3}, {64, 48}, {17, 600}})
      for (loops::Kernel& k : sized(replace_all(t, "$D", std::to_string(2 * r * c)), {{r, c}}))
        all.push_back(std::move(k));
  }
  agree(all);
}

TEST(Emit, TilesServeEveryHead) {  // rotary: tables stored across, the same for all heads
  const std::string kRotary = R"(kernel "rotary" {
  p0 = f32[$D] read
  p1 = f32[$N] read
  p2 = f32[$D] write
  outer i0.9 i1.$R i2.3 i3.$C
  vector outer
  transpose 1
  cost 13
  stage {
    v0 = load f32 p0[$F*i0.9 + $G*i1.$R + $C*i2.3 + i3.$C]
    v1 = load f32 p1[i1.$R + $R*i3.$C]
    v2 = mul f32 v0 v1
    v3 = in_range b8 [i3.$C] [0] [$H]
    v4 = load f32 p0[$F*i0.9 + $G*i1.$R + $C*i2.3 + i3.$C + $H] if v3
    v5 = neg f32 v4
    v6 = in_range b8 [i3.$C] [$H] [$C]
    v7 = load f32 p0[$F*i0.9 + $G*i1.$R + $C*i2.3 + i3.$C - $H] if v6
    v8 = where f32 v3 v5 v7
    v9 = add f32 v2 v8
    v10 = store p2[$F*i0.9 + $G*i1.$R + $C*i2.3 + i3.$C] v9
  }
}
)";
  std::vector<loops::Kernel> all;
  for (auto [r, c] : std::vector<std::pair<int, int>>{{32, 64}, {19, 32}, {16, 20}}) {
    std::string t = replace_all(kRotary, "$D", std::to_string(9 * r * 3 * c));
    t = replace_all(replace_all(replace_all(t, "$F", std::to_string(r * 3 * c)), "$G", std::to_string(3 * c)), "$H",
                    std::to_string(c / 2));
    for (loops::Kernel& k : sized(t, {{r, c}})) all.push_back(std::move(k));
  }
  agree(all);
}

// Random kernels. A value is `exact` while every target must compute the same bits; only such values may be compared,
// rounded or cut, the others pass through operations that do not magnify an error.
class Generator {
 public:
  explicit Generator(uint32_t seed) : rng_(seed) {}

  loops::Kernel kernel() {
    k_ = {};
    k_.label = "random";
    k_.cost = pick(2) ? 10 : 100000;
    k_.vector = static_cast<loops::Vector>(pick(3));
    const int outers = 1 + pick(2);
    for (int i = 0; i < outers; ++i)
      add_loop(k_.outer, 'i', i,
               i + 1 == outers && k_.vector == loops::Vector::kOuter ? any_of({1, 5, 16, 33, 70, 130})
                                                                     : any_of({1, 2, 3, 5}));
    const int stages = 1 + pick(3);
    for (int s = 0; s < stages; ++s) stage(s);
    // a last stage that stores what was folded
    if (!k_.accs.empty()) {
      loops::Stage last;
      stage_ = &last;
      exact_.clear();
      for (size_t a = 0; a < k_.accs.size(); ++a) {
        Instr in;
        in.op = Op::k_acc;
        in.slot = static_cast<int32_t>(a);
        in.dtype = k_.accs[a].kind >= loops::Reduce::kArgMax ? DType::kI64 : k_.accs[a].dtype;
        store(add(in, false), true);
      }
      k_.stages.push_back(last);
    }
    sort_params();
    return k_;
  }

 private:
  using Instr = loops::Instr;
  using Op = loops::Op;
  using Id = loops::Id;

  int pick(int n) { return static_cast<int>(rng_() % static_cast<uint32_t>(n)); }
  int any_of(std::vector<int> v) { return v[static_cast<size_t>(pick(static_cast<int>(v.size())))]; }

  void add_loop(std::vector<loops::Loop>& loops, char letter, int position, int extent) {
    loops.push_back({loops::loop_var(letter, position, extent), extent});
  }
  Id add(Instr in, bool exact) {
    stage_->body.push_back(in);
    exact_.push_back(exact);
    return static_cast<Id>(stage_->body.size() - 1);
  }
  std::vector<loops::Loop> loops() const {
    std::vector<loops::Loop> l = k_.outer;
    l.insert(l.end(), stage_->loops.begin(), stage_->loops.end());
    return l;
  }
  // A row-major index over the given loops in a random order (mostly as they stand).
  sym::Expr full_index(std::vector<loops::Loop> l, int64_t& numel) {
    if (pick(4) == 0) std::shuffle(l.begin(), l.end(), rng_);
    sym::Expr e = 0;
    numel = 1;
    for (size_t i = l.size(); i-- > 0;) {
      e = e + l[i].var * sym::Expr(numel);
      numel *= l[i].extent.value();
    }
    return e;
  }
  sym::Expr read_index(int64_t& numel) {
    std::vector<loops::Loop> l = loops();
    switch (pick(5)) {
      case 0: {  // broadcast along some loops
        std::vector<loops::Loop> some;
        for (auto& x : l)
          if (pick(2)) some.push_back(x);
        return full_index(some, numel);
      }
      case 1: {  // strided, with an offset
        sym::Expr e = full_index(l, numel) * sym::Expr(2) + sym::Expr(3);
        numel = numel * 2 + 3;
        return e;
      }
      case 2: {  // divisions and remainders
        sym::Expr e = full_index(l, numel);
        int64_t by = any_of({3, 16, 32});
        e = pick(2) ? sym::floordiv(e, by) : sym::mod(e, by);
        numel = std::max<int64_t>(numel, by);
        return e;
      }
      default:
        return full_index(l, numel);
    }
  }
  static DType compute_of(DType d) { return is_reduced(d) ? DType::kF32 : d; }
  DType memory_type() {
    static const DType types[] = {DType::kF32, DType::kF32, DType::kF32, DType::kBF16, DType::kF16, DType::kF64,
                                  DType::kI64, DType::kI32, DType::kI8,  DType::kU8,   DType::kI16, DType::kBool};
    return types[pick(12)];
  }
  Id load(DType d) {
    int64_t numel = 1;
    Instr in;
    in.op = Op::k_load;
    in.index = read_index(numel);
    in.dtype = compute_of(d);
    if (pick(5) == 0) in.mask = value(DType::kBool);
    in.slot = static_cast<int32_t>(k_.params.size());
    k_.params.push_back({d, numel, true, false});
    return add(in, true);
  }
  Id constant(DType d) {
    Instr in;
    in.op = Op::k_const;
    in.dtype = d;
    if (is_floating(d)) {
      in.number = any_of({-3, -1, 1, 2, 5}) * 0.5;
    } else {
      in.integer = d == DType::kBool ? pick(2) : d == DType::kU8 ? any_of({1, 2, 7}) : any_of({-3, -1, 1, 2, 7});
    }
    return add(in, true);
  }
  // Some value of a dtype: one that is there, a load, a constant, an index, a conversion.
  Id value(DType d, bool exact = false) {
    std::vector<Id> there;
    for (size_t i = 0; i < stage_->body.size(); ++i)
      if (loops::info(stage_->body[i].op).has_result && stage_->body[i].dtype == d && (!exact || exact_[i]) &&
          stage_->body[i].op != Op::k_indirect)
        there.push_back(static_cast<Id>(i));
    if (!there.empty() && pick(3)) return there[static_cast<size_t>(pick(static_cast<int>(there.size())))];
    std::vector<loops::Loop> l = loops();
    const sym::Expr v = l[static_cast<size_t>(pick(static_cast<int>(l.size())))].var;
    if (d == DType::kBool && pick(2)) {
      Instr in;
      in.dtype = d;
      if (pick(2)) {
        in.op = Op::k_in_range;
        in.index = v * sym::Expr(pick(3) ? 1 : 2) - sym::Expr(pick(4));
        in.lo = 0;
        in.hi = any_of({1, 9, 20});
      } else {
        DType of = std::vector<DType>{DType::kF32, DType::kI64, DType::kI32, DType::kF64,
                                      DType::kU8}[static_cast<size_t>(pick(5))];
        static const Op ops[] = {Op::k_eq, Op::k_ne, Op::k_lt, Op::k_le, Op::k_gt, Op::k_ge};
        in.op = ops[pick(6)];
        in.args[0] = value(of, true);
        in.args[1] = value(of, true);
      }
      return add(in, true);
    }
    if (d == DType::kI64 && pick(2)) {
      Instr in;
      in.op = Op::k_index;
      in.dtype = d;
      in.index = v * sym::Expr(any_of({1, 1, 3})) + sym::Expr(pick(3));
      return add(in, true);
    }
    if (pick(4) == 0) return constant(d);
    if (pick(4) == 0) {
      DType from = std::vector<DType>{DType::kF32, DType::kI64, DType::kI32, DType::kBool,
                                      DType::kI8}[static_cast<size_t>(pick(5))];
      if (from != d && !(from == DType::kF32 && !is_floating(d))) {  // floats out of range have no defined integer
        Instr in;
        in.op = Op::k_convert;
        in.dtype = d;
        in.args[0] = value(from, true);
        return add(in, true);
      }
    }
    DType memory = d;
    if (d == DType::kF32 && pick(3) == 0) memory = pick(2) ? DType::kBF16 : DType::kF16;
    return load(memory);
  }
  Id operation() {
    Instr in;
    DType d = std::vector<DType>{
        DType::kF32, DType::kF32, DType::kF32, DType::kF64, DType::kI64,
        DType::kI32, DType::kI8,  DType::kU8,  DType::kI16, DType::kBool}[static_cast<size_t>(pick(10))];
    in.dtype = d;
    const char kind = d == DType::kBool ? 'b' : is_floating(d) ? 'f' : 'i';
    static const Op exact_float[] = {Op::k_neg,      Op::k_abs,       Op::k_sign, Op::k_ceil,       Op::k_floor,
                                     Op::k_round,    Op::k_trunc,     Op::k_sqrt, Op::k_reciprocal, Op::k_relu,
                                     Op::k_add,      Op::k_sub,       Op::k_mul,  Op::k_div,        Op::k_minimum,
                                     Op::k_maximum,  Op::k_fmin,      Op::k_fmax, Op::k_where,      Op::k_copysign,
                                     Op::k_floordiv, Op::k_remainder, Op::k_fmod, Op::k_truncdiv};
    static const Op soft_float[] = {Op::k_sigmoid, Op::k_tanh, Op::k_erf,     Op::k_atan,    Op::k_neg,
                                    Op::k_abs,     Op::k_relu, Op::k_minimum, Op::k_maximum, Op::k_where};
    static const Op steep_float[] = {Op::k_exp,   Op::k_log, Op::k_log1p, Op::k_expm1,
                                     Op::k_rsqrt, Op::k_sin, Op::k_cos,   Op::k_pow};
    static const Op integer[] = {Op::k_neg,         Op::k_abs,        Op::k_sign,        Op::k_relu,
                                 Op::k_bitwise_not, Op::k_add,        Op::k_sub,         Op::k_mul,
                                 Op::k_minimum,     Op::k_maximum,    Op::k_bitwise_and, Op::k_bitwise_or,
                                 Op::k_bitwise_xor, Op::k_shift_left, Op::k_shift_right, Op::k_where,
                                 Op::k_floordiv,    Op::k_remainder,  Op::k_truncdiv,    Op::k_fmod};
    static const Op boolean[] = {Op::k_logical_not, Op::k_add, Op::k_mul,  Op::k_minimum, Op::k_maximum,
                                 Op::k_bitwise_xor, Op::k_eq,  Op::k_ne,   Op::k_lt,      Op::k_le,
                                 Op::k_gt,          Op::k_ge,  Op::k_where};
    bool exact = true;
    if (kind == 'f') {
      int family = pick(3);
      in.op = family == 0 ? exact_float[pick(24)] : family == 1 ? soft_float[pick(10)] : steep_float[pick(8)];
      exact = family != 1;
    } else {
      in.op = kind == 'i' ? integer[pick(20)] : boolean[pick(13)];
    }
    const int arity = loops::info(in.op).arity;
    bool result = true;
    for (int a = 0; a < arity; ++a) {
      bool condition = in.op == Op::k_where && a == 0;
      in.args[a] = value(condition ? DType::kBool : d, exact || condition);
      if (kind == 'i' && a == 1 &&
          (in.op == Op::k_floordiv || in.op == Op::k_remainder || in.op == Op::k_truncdiv || in.op == Op::k_fmod)) {
        in.args[a] = constant(d);  // not zero
      }
      if (in.op == Op::k_pow && a == 1) {  // not +-0.5: those are square roots here as in eager, where -inf gives NaN
        in.args[a] = constant(d);
        stage_->body[in.args[a]].number = any_of({-3, 3, 4, 5, 6}) * 0.5;
      }
      result &= exact_[in.args[a]];
    }
    bool approximate = in.op == Op::k_sigmoid || in.op == Op::k_tanh || in.op == Op::k_erf || in.op == Op::k_atan ||
                       std::find(std::begin(steep_float), std::end(steep_float), in.op) != std::end(steep_float);
    return add(in, result && !approximate);
  }
  void store(Id v, bool outer_only = false) {
    int64_t numel = 1;
    Instr in;
    in.op = Op::k_store;
    in.args[0] = v;
    in.index = full_index(outer_only ? k_.outer : loops(), numel);
    if (!outer_only && pick(5) == 0) in.mask = value(DType::kBool);
    DType d = stage_->body[v].dtype;
    if (d == DType::kF32 && pick(3) == 0) d = pick(2) ? DType::kBF16 : DType::kF16;
    in.slot = static_cast<int32_t>(k_.params.size());
    k_.params.push_back({d, numel, false, true});
    add(in, false);
  }
  void stage(int number) {
    loops::Stage s;
    stage_ = &s;
    exact_.clear();
    const int depth = k_.vector == loops::Vector::kInner ? 1 + pick(2) : pick(3);
    for (int j = 0; j < depth; ++j)
      add_loop(s.loops, 'j', j, j + 1 == depth ? any_of({1, 3, 16, 31, 64, 100, 200}) : any_of({1, 2, 3}));
    const int work = 1 + pick(6);
    std::vector<Id> made;
    for (int i = 0; i < work; ++i) made.push_back(operation());
    for (size_t a = 0; a < k_.accs.size(); ++a)
      if (number > 0 && pick(3) == 0 && k_.accs[a].kind < loops::Reduce::kArgMax) {
        Instr in;
        in.op = Op::k_acc;
        in.slot = static_cast<int32_t>(a);
        in.dtype = k_.accs[a].dtype;
        made.push_back(add(in, false));
      }
    const size_t before = k_.accs.size();
    for (int r = pick(3); r-- > 0;) {
      Id v = made[static_cast<size_t>(pick(static_cast<int>(made.size())))];
      DType d = s.body[v].dtype;
      static const loops::Reduce kinds[] = {loops::Reduce::kSum, loops::Reduce::kMax, loops::Reduce::kMin,
                                            loops::Reduce::kArgMax, loops::Reduce::kArgMin};
      loops::Reduce kind =
          d == DType::kBool ? (pick(2) ? loops::Reduce::kAny : loops::Reduce::kAll) : kinds[pick(exact_[v] ? 5 : 3)];
      Instr in;
      in.op = Op::k_reduce;
      in.args[0] = v;
      if (kind >= loops::Reduce::kArgMax) {
        Instr at;
        at.op = Op::k_index;
        at.dtype = DType::kI64;
        int64_t n;
        at.index = 0;
        n = 1;
        for (size_t i = s.loops.size(); i-- > 0;) {
          at.index = at.index + s.loops[i].var * sym::Expr(n);
          n *= s.loops[i].extent.value();
        }
        in.args[1] = add(at, true);
      }
      // (an arg reduction over nothing has no meaning)
      if (kind < loops::Reduce::kArgMax && pick(4) == 0) in.mask = value(DType::kBool);
      in.slot = static_cast<int32_t>(k_.accs.size());
      k_.accs.push_back({kind, d});
      add(in, false);
    }
    if (k_.accs.size() == before || pick(2)) store(made.back());
    k_.stages.push_back(std::move(s));
  }
  void sort_params() {
    for (loops::Param& p : k_.params) p.read = !p.written;
  }

  std::mt19937 rng_;
  loops::Kernel k_;
  loops::Stage* stage_ = nullptr;
  std::vector<char> exact_;
};

TEST(Emit, RandomKernels) {
  const char* wish = std::getenv("FLASHOVER_FUZZ");  // seeds to try
  const uint32_t first = 1000, count = wish ? static_cast<uint32_t>(std::atoi(wish)) : 40;
  for (uint32_t seed = first; seed < first + count; seed += 20) {
    std::vector<loops::Kernel> ks;
    for (uint32_t s = seed; s < std::min(seed + 20, first + count); ++s) {
      ks.push_back(Generator(s).kernel());
      ks.back().label = "seed " + std::to_string(s);
    }
    agree(ks, 1e-3);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace flashover::kernel
