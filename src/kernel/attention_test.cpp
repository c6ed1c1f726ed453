// A kernel with an attention: its text, and emitted code for each kind of vectors against loops::interpret.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernel/kernel.h"
#include "kernel/load_for_test.h"
#include "loops/half.h"

namespace flashover::kernel {
namespace {

// Two heads of queries share one of keys. The mask is causal, after a soft cap.
constexpr const char* kCausal = R"(kernel "flex_attention" {
  p0 = f32[320] read
  p1 = bf16[296] read
  p2 = bf16[444] read
  p3 = i32[2] read
  p4 = i32[6] read
  p5 = i32[2] read
  p6 = i32[6] read
  p7 = f32[480] write
  p8 = f32[40] write
  p9 = f32[40] write
  outer i0.1 i1.2 i2.20
  scratch r0 = f32[37]
  attention softmax group 2 values p2[0][0][12][1] width 12
  score p0[0][160][8][1] p1[0][0][8][1] width 8 scale 0.5
  blocks 16 16
  partial p3[0][0][1]
  partial_indices p4[0][0][3][1]
  full p5[0][0][1]
  full_indices p6[0][0][3][1]
  out p7[0][240][12][1]
  log_sum p8[0][20][1]
  largest p9[0][20][1]
  most_partial [2] [3]
  most_full [2] [3]
  vector inner
  cost 100
  stage j0.37 {
    v0 = load_scratch f32 r0[j0.37]
    v1 = tanh f32 v0
    v2 = store_scratch r0[j0.37] v1
  }
  stage j0.37 {
    v0 = index i64 [i2.20]
    v1 = index i64 [j0.37]
    v2 = ge b8 v0 v1
    v3 = load_scratch f32 r0[j0.37]
    v4 = const f32 -inf
    v5 = where f32 v2 v3 v4
    v6 = store_scratch r0[j0.37] v5
  }
}
)";

TEST(AttentionKernel, TextRoundTrips) {
  const loops::Kernel k = loops::parse(kCausal);
  loops::verify(k);
  EXPECT_EQ(loops::print(k), kCausal);
}

struct Call {
  std::vector<float> q = std::vector<float>(320), out = std::vector<float>(480), log_sum = std::vector<float>(40),
                     largest = std::vector<float>(40);
  std::vector<uint16_t> keys = std::vector<uint16_t>(296), values = std::vector<uint16_t>(444);
  std::vector<int32_t> partial, partial_indices, full, full_indices;
  std::vector<void*> pointers() {
    return {q.data(),    keys.data(),         values.data(), partial.data(), partial_indices.data(),
            full.data(), full_indices.data(), out.data(),    log_sum.data(), largest.data()};
  }
};

Call make(bool lists_lie) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  Call r;
  for (float& x : r.q) x = normal(rng);
  for (uint16_t& x : r.keys) x = loops::float_to_bf16(normal(rng));
  for (uint16_t& x : r.values) x = loops::float_to_bf16(normal(rng));
  r.partial = {1, lists_lie ? 9 : 1};  // (more than there are)
  r.partial_indices = {0, 1, 2, 1, 2, lists_lie ? 7 : 0};
  r.full = {0, lists_lie ? 0 : 1};
  r.full_indices = {0, 1, 2, 0, 1, 2};
  return r;
}

TEST(AttentionKernel, AgreesWithTheInterpreter) {
  const loops::Kernel k = loops::parse(kCausal);
  for (bool lists_lie : {false, true}) {
    Call want = make(lists_lie);
    ASSERT_EQ(loops::interpret(k, want.pointers()), 0);
    for (const Isa isa : isas_of_host()) {
      const Compiled c = compile(std::span(&k, 1), {.target = {isa}});
      const Loaded library(c.binaries.at(0).bytes);
      Call got = make(lists_lie);
      auto* f = library.symbol<int(void* const*, const int64_t*, void*)>(c.kernels.at(0).symbol);
      ASSERT_EQ(f(got.pointers().data(), nullptr, nullptr), 0);
      const auto near = [](const std::vector<float>& a, const std::vector<float>& b) {
        for (size_t i = 0; i < a.size(); ++i)
          ASSERT_TRUE(a[i] == b[i] || std::abs(a[i] - b[i]) < 3e-6f) << i << ": " << a[i] << " and " << b[i];
      };
      near(got.out, want.out);
      near(got.log_sum, want.log_sum);
      near(got.largest, want.largest);
    }
  }
}

// A mask by lengths: positions fit in 32 bits, the lengths may not. It once compiled for scalars only.
TEST(AttentionKernel, PositionsBesideALengthHaveWideLanes) {
  const loops::Kernel k = loops::parse(R"(kernel {
  p0 = i64[8] read
  p1 = b8[512] write
  outer i0.8
  vector inner
  cost 2
  stage j0.64 {
    v0 = index i64 [j0.64]
    v1 = load i64 p0[i0.8]
    v2 = lt b8 v0 v1
    v3 = store p1[64*i0.8 + j0.64] v2
  }
}
)");
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kNeon}) {
    const Lanes lanes = emit(k, {isa}).lanes;
    EXPECT_EQ(lanes.isa, isa);
    EXPECT_EQ(lanes.width, lanes.wide_width());
  }
}

}  // namespace
}  // namespace flashover::kernel
