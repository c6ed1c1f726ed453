// Text and binary forms that round-trip, broken rules by name, and hostile bytes.
#include "plan/plan.h"

#include <gtest/gtest.h>

#include <random>

#include "base/check.h"
#include "plan/lifetimes.h"
#include "plan/sizes.h"

namespace flashover::plan {
namespace {

constexpr const char* kSample = R"(plan "x86-64 avx512f" {
  arena 1024
  input 0 : f32[2,3] user
  input 1 : f32[3] param frozen
  input 2 : i64[4] buffer
  binary b0 000000000000000a000000000000000b  # 0 bytes
  kernel k0 = "add_relu" in b0
  kernel k1 = "gather" in b0 errors ["index out of range in self", "say \"no\"\\"]
  t0 : f32[2,3] = input 0
  t1 : f32[3] = input 1
  t2 : i64[4] = input 2
  t3 : f32[3] = frozen
  t4 : f32[2,3]opaque = frozen
  t5 : f32[2,3]{1,2} = arena 0
  t6 : f32[2] = arena 512
  t7 : f32[2,2] = output 0
  t8 : f32[3]{2}+1 = view t5
  t9 : bf16[2,3] = extern
  frozen launch k0(t1 -> t3)
  frozen call mkldnn._reorder_linear_weight.default(t1, none, 7) -> t4
  launch k0(t0, t3 -> t5) sizes [2, 3] "add+relu model.py:31"
  launch k1(t8, t2 -> t6) bounds [t2 -3 2]
  call out aten.mm.out(t5, t5) -> t7
  call aten.to_bf16.default(t5, tensors[t8, _], [1, -2], floats[1.5, -inf], bools[true, false], -3, 1e+30, -0.0, nan, true, complex[1.0, 2.5], "a\x0ab", dtype.bf16, device.cuda:1, layout.strided, format.channels_last) -> t9, _
  call aten.print.default(t4) -> 
  call aten.take.default(t0, t2) -> t6 bounds [t2 0 5] "take"
  release t9
  copy t6 -> t0
  return t7 : f32[2,2]
  return alias input 0 : f32[3]{2}+1
  return alias output 0 : f32[2]
}
)";

TEST(Plan, TextRoundTrips) {
  const Plan p = parse(kSample);
  verify(p);
  EXPECT_EQ(print(p), kSample);
}

// It reads its operand in the background.
TEST(Lifetimes, OperandsOfCollectivesLiveUntilSomebodyWaits) {
  const Plan p = parse(R"(plan "x86-64" {
  arena 64
  input 0 : f32[2] user
  t0 : f32[2] = input 0
  t1 : f32[2] = arena 0
  t2 : f32[4] = extern
  t3 : f32[4] = extern
  t4 : f32[2] = extern
  call out aten.neg.out(t0) -> t1
  call _c10d_functional.all_gather_into_tensor.default(t1, 2, "0") -> t2
  call aten.neg.default(t0) -> t4
  call _c10d_functional.wait_tensor.default(t2) -> t3
  call aten.print.default(t4) -> 
}
)");
  const std::vector<Lifetime> life = lifetimes(p);
  EXPECT_EQ(life[1].last, 3);
  EXPECT_EQ(life[0].last, 2);
}

TEST(Plan, BinaryRoundTrips) {
  Plan p = parse(kSample);
  p.binaries[0].bytes = std::string(
      "\x7f"
      "ELF\0\1",
      6);
  const std::string bytes = serialize(p);
  const Plan q = deserialize(bytes);
  EXPECT_EQ(print(q), print(p));
  EXPECT_EQ(q.binaries[0].bytes, p.binaries[0].bytes);
  EXPECT_EQ(q.binaries[0].key, p.binaries[0].key);
  EXPECT_EQ(serialize(q), bytes);
}

constexpr const char* kCudaSample = R"(plan "sm_90" {
  device cuda:0
  input 0 : f32[2,3]@cuda:0 user
  input 1 : f32[] user
  binary b0 000000000000000a000000000000000b  # 0 bytes
  kernel k0 = "add" in b0 cuda grid [(n0 + 127) // 128, 1, 1] threads 128 shared 16 params [pointer, pointer, pointer, i32, scratch, profile]
  kernel k1 = "gather" in b0 errors ["out of range"] cuda grid [7, 2, 1] threads 1024 shared 0 scratch 128 params [pointer, i64, scratch, profile]
  t0 : f32[2,3]@cuda:0 = input 0
  t1 : f32[] = input 1
  t2 : f32[]@cuda:0 = extern
  t3 : f32[2,3]@cuda:0 = output 0
  call aten.to.device(t1) -> t2
  launch k0(t0, t2 -> t3) sizes [6]
  launch k1( -> t3) sizes [6]
  return t3 : f32[2,3]@cuda:0
}
)";

TEST(Plan, CudaLaunchesRoundTrip) {
  sym::var("n0", {1, sym::Range::kInf}, 16);
  const Plan p = parse(kCudaSample);
  verify(p);
  EXPECT_EQ(print(p), kCudaSample);
  const Plan q = deserialize(serialize(p));
  EXPECT_EQ(print(q), kCudaSample);
  Plan broken = p;
  broken.kernels[0].cuda.params.pop_back();
  broken.kernels[0].cuda.params.erase(broken.kernels[0].cuda.params.begin());
  EXPECT_THROW(verify(broken), InternalError);
  broken = p;
  broken.kernels[0].cuda.threads = 100;
  EXPECT_THROW(verify(broken), InternalError);
  broken = p;
  broken.device = {};
  EXPECT_THROW(verify(broken), InternalError);
  broken = p;
  broken.kernels[0].cuda.grid[1] = sym::var("n1", {1, sym::Range::kInf}, 16);
  EXPECT_THROW(verify(broken), InternalError);
}

TEST(Plan, BinaryKeepsSizeVariables) {
  const sym::Expr s = sym::var("plan_test_s0", {1, 100}, 7);
  Plan p;
  p.target = "x";
  p.inputs.push_back({TensorType{DType::kF32, {}, {s, 3}, {3, 1}}, 0, false});
  p.arena_bytes = sym::ceildiv(s * 12, 64) * 64;
  const Plan q = deserialize(serialize(p));
  EXPECT_EQ(q.inputs[0].type.sizes[0], s);
  EXPECT_EQ(q.arena_bytes, p.arena_bytes);
}

TEST(Plan, SizeSymbolsRoundTripByName) {
  const char* const text = R"(plan "x" {
  arena 64*((3*s5 + 15) // 16)
  input 0 : f32[s5,3] user
  t0 : f32[s5,3] = input 0
  t1 : f32[s5,3] = output 0
  t2 : f32[3]+(3*s5 - 3) = view t0
  t3 : f32[3] = output 1
  copy t0 -> t1
  call aten.mul.Tensor(t2, (s5 + 1)) -> t3
  return t1 : f32[s5,3]
  return t3 : f32[3]
}
)";
  const Plan p = parse(text);
  EXPECT_EQ(print(p), text);
  const std::string bytes = serialize(p);
  const Plan q = deserialize(bytes);
  EXPECT_EQ(print(q), text);
  EXPECT_EQ(q.inputs[0].type.sizes[0], sym::size_symbol(5));
}

TEST(Plan, SyntaxErrorsNameTheLine) {
  struct {
    const char *text, *message;
  } const rows[] = {
      {"plan \"\" {\n  bogus 1\n}", "line 2: unknown line 'bogus'"},
      {"plan \"\" {\n t1 : f32[2] = arena 0\n}", "line 2: number 0 expected here"},
      {"plan \"\" {\n t0 : q32[2] = arena 0\n}", "line 2: unknown dtype 'q32'"},
      {"plan \"\" {\n t0 : f32[2] = moon\n}", "line 2: unknown storage 'moon'"},
      {"plan \"x", "line 1: string without end"},
      {"plan \"\" { call a.b(1 -> t0", "line 1: "},
      {"plan \"\" {} x", "line 1: text after the plan"},
  };
  for (const auto& row : rows) {
    try {
      parse(row.text);
      ADD_FAILURE() << row.text;
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find(row.message), std::string::npos) << e.what();
    }
  }
}

TEST(Plan, VerifyNamesTheBrokenRule) {
  struct {
    const char *body, *message;
  } const rows[] = {
      {"t0 : f32[4] = arena 0\n", "reaches over the end of the arena"},
      {"arena 64\n t0 : f32[4] = arena 8\n", "multiple of 64"},
      {"t0 : f32[4] = input 0\n", "no such input"},
      {"t0 : f32[4] = output 0\n", "no such output"},
      {"t0 : f32[4]+1 = extern\n", "only a view has an offset"},
      {"t0 : f32[4] = view t0\n", "the base of a view comes before it"},
      {"t0 : f32[4] = frozen\n t1 : f32[4]+1 = view t0\n", "reaches outside its base"},
      {"t0 : f32[4]opaque = extern\n t1 : f32[4] = view t0\n", "no view of an opaque tensor"},
      {"arena 64\n t0 : f32[4]opaque = arena 0\n", "only extern calls make opaque tensors"},
      {"t0 : f32[281474976710657] = extern\n", "size out of range"},
      {"t0 : f32[1000000000,1000000000]{1000000000,1} = extern\n", "too large"},
      {"kernel k0 = \"f\" in b0\n", "no such binary"},
      {"launch k0(-> )\n", "no such kernel"},
      {"t0 : f32[4] = extern\n copy t0 -> t0\n", "reads a tensor that no step wrote"},
      {"t0 : f32[4] = extern\n call a.b.default() -> t0\n release t0\n call a.c.default(t0) -> _\n", "released"},
      {"t0 : f32[4] = extern\n call a.b.default(t7) -> t0\n", "no such tensor"},
      {"t0 : f32[4] = extern\n call out a.b.out() -> t0\n", "out variants write existing memory"},
      {"t0 : f32[4] = frozen\n call a.b.default() -> t0\n", "only frozen steps write"},
      {"t0 : f32[4] = extern\n frozen call a.b.default() -> t0\n", "frozen steps write frozen tensors"},
      {"input 0 : f32[4] user\n t0 : f32[4] = input 0\n t1 : f32[4] = frozen\n frozen call a.b.default(t0) -> t1\n",
       "frozen steps read no user input"},
      {"input 0 : f32[4] param frozen\n t0 : f32[4] = input 0\n call a.b.default(t0) -> \n", "said to be frozen"},
      {"t0 : f32[4] = extern\n call a.b.default() -> t0\n return t0 : f32[5]\n", "reaches outside its tensor"},
      {"t0 : f32[4] = extern\n return t0 : f32[4]\n", "no step wrote it"},
      {"return alias output 0 : f32[4]\n", "an output that owns its memory"},
      {"return alias input 0 : f32[4]\n", "no such input"},
      {"arena 128\n t0 : f32[4] = arena 0\n t1 : f32[4] = arena 0\n call a.b.default() -> t0, t1\n",
       "overlaps another live"},
      {"arena 128\n t0 : f32[4] = arena 0\n t1 : f32[4] = arena 0\n call a.b.default() -> t0\n call a.c.default(t0) -> "
       "t1\n",
       "overlaps another live"},
      {"arena 128\n binary b0 00000000000000000000000000000000\n kernel k0 = \"f\" in b0\n t0 : f32[32] = arena 0\n"
       " t1 : f32[4] = arena 64\n launch k0( -> t0)\n launch k0(t0 -> t1)\n",
       "overlaps another live"},
  };
  for (const auto& row : rows) {
    const Plan p = parse(std::string("plan \"\" {\n ") + row.body + "}");
    try {
      verify(p);
      ADD_FAILURE() << "accepted: " << row.body;
    } catch (const InternalError& e) {
      EXPECT_NE(std::string(e.what()).find(row.message), std::string::npos) << row.body << e.what();
    }
    EXPECT_THROW(deserialize(serialize(p)), UserError);
  }
}

TEST(Plan, ArenaMemoryIsReused) {
  verify(parse(R"(plan "" {
    arena 128
    binary b0 00000000000000000000000000000000
    kernel k0 = "f" in b0
    t0 : f32[4] = arena 0
    t1 : f32[4] = arena 0
    t2 : f32[4] = arena 64
    t3 : f32[4] = arena 0
    launch k0( -> t0)
    launch k0(t0 -> t1)    # in place, at the same offset
    launch k0(t1 -> t2)
    call a.b.default(t2) -> t3
  })"));
}

// While the size of some tensor is a symbol, the offsets of all are numbers of blocks: t0 is larger than 64 bytes, and t1
// lies in another block all the same.
TEST(Plan, BlocksOfAnArenaWithoutSizes) {
  const char* const text = R"(plan "" {
    arena 64*((s0 + 15) // 16) + 128
    input 0 : f32[s0] user
    t0 : f32[32] = arena 0
    t1 : f32[s0] = arena %d
    t2 : f32[s0] = input 0
    call a.b.default(t2) -> t0
    call a.c.default(t0) -> t1
    call a.d.default(t0, t1) -> 
  })";
  const auto with_block = [&](const char* offset) {
    return std::string(text).replace(std::string(text).find("%d"), 2, offset);
  };
  verify(parse(with_block("64")));
  EXPECT_THROW(verify(parse(with_block("0"))), InternalError);
}

// Every mutation of the payload either reads back as some verified plan or is a UserError; run under asan by `./x test
// asan`.
TEST(Plan, NumbersOfManySizes) {
  const sym::Expr s = sym::size_symbol(0), t = sym::size_symbol(1);
  NumberTable table;
  EXPECT_EQ(table.add(7), 0u);
  EXPECT_EQ(table.add(s * t), 1u);
  EXPECT_EQ(table.add(sym::ceildiv(s, 4)), 2u);
  EXPECT_EQ(table.add(s * t), 3u);
  const std::vector<SizeSource> sources = {{0, 0, 0}, {1, 0, 1}};
  EXPECT_EQ(table.numbers(sources, std::vector<int64_t>{5, 6}), (std::vector<int64_t>{7, 30, 2, 30}));
  EXPECT_EQ(table.numbers(sources, std::vector<int64_t>{9, 2}), (std::vector<int64_t>{7, 18, 3, 18}));
  EXPECT_THROW(table.numbers({}, {}), InternalError) << "a symbol without a value";
  EXPECT_EQ(with_sizes("dimension 0 with size 2*s0", sources, std::vector<int64_t>{9, 2}), "dimension 0 with size 18");
}

TEST(Plan, MutatedBytesNeverCrash) {
  Plan sample = parse(kSample);
  sample.binaries[0].bytes = "ELF";
  const std::string whole = serialize(sample);
  const std::string payload = whole.substr(36);
  ASSERT_EQ(print(deserialize_payload(payload)), print(deserialize(whole)));
  std::mt19937 random(7);
  const auto pick = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  size_t accepted = 0;
  for (int round = 0; round < 30000; ++round) {
    std::string bytes = payload;
    for (size_t edits = 1 + pick(4); edits > 0; --edits) {
      switch (pick(6)) {
        case 0:
          bytes[pick(bytes.size())] ^= static_cast<char>(1 << pick(8));
          break;
        case 1:
          bytes[pick(bytes.size())] = static_cast<char>(pick(256));
          break;
        case 2:
          bytes[pick(bytes.size())] = '\xff';
          break;
        case 3:
          bytes.resize(1 + pick(bytes.size()));
          break;
        case 4:
          bytes.insert(pick(bytes.size()), bytes.substr(pick(bytes.size()), pick(16)));
          break;
        case 5:
          bytes.erase(pick(bytes.size()), pick(8));
          if (bytes.empty()) bytes = "x";
          break;
      }
    }
    try {
      verify(deserialize_payload(bytes));
      ++accepted;
    } catch (const UserError&) {
    }
  }
  EXPECT_GT(accepted, 0u);  // labels and names may change freely
}

TEST(Plan, DamagedFilesAreRefused) {
  const std::string bytes = serialize(parse(kSample));
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_THROW(deserialize(bytes.substr(0, n)), UserError) << n;
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string bad = bytes;
    bad[i] ^= 0x20;
    EXPECT_THROW(deserialize(bad), UserError) << i;
  }
  EXPECT_THROW(deserialize(bytes + "x"), UserError);
}

}  // namespace
}  // namespace flashover::plan
