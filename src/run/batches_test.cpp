// Which launches become one batch, and which must stay apart.
#include "run/batches.h"

#include <gtest/gtest.h>

#include <atomic>

namespace flashover::run {
namespace {

// `n` updates in place of inputs of so many elements, each with a gradient of its own.
std::string updates(const std::vector<int>& sizes, const std::string& more = "") {
  std::string inputs, tensors, steps;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string type = "f32[" + std::to_string(sizes[i]) + "]", p = std::to_string(2 * i),
                      g = std::to_string(2 * i + 1);
    inputs += "  input " + p + " : " + type + " user\n  input " + g + " : " + type + " user\n";
    tensors += "  t" + p + " : " + type + " = input " + p + "\n  t" + g + " : " + type + " = input " + g + "\n";
    steps += "  launch k0(t" + g + " -> t" + p + ")\n";
  }
  return "plan \"x86-64\" {\n" + inputs + "  kernel k0 = \"k\" in b0\n" + tensors + steps + more + "}\n";
}

std::vector<Batch> batches(const std::string& text, int threads = 2) {
  const plan::Plan plan = plan::parse(text);
  std::vector<int64_t> bytes, offsets;
  for (const plan::Tensor& t : plan.tensors) {
    bytes.push_back(plan::bytes(t.type).value());
    offsets.push_back(t.arena_offset.value());
  }
  return find_batches(plan, bytes, offsets, threads);
}

TEST(Batches, IndependentUpdatesAreOne) {
  const auto found = batches(updates({9000, 8000, 9000, 10000, 9000, 9000, 9000, 9000, 9000, 9000}));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].count, 10);
  EXPECT_TRUE(found[0].alone.empty());
  EXPECT_EQ(found[0].shared.front(), 3);  // the largest first
  EXPECT_EQ(found[0].shared.back(), 1);
}

TEST(Batches, ALargeOneStaysAlone) {
  const auto found = batches(updates({1000000, 9000, 9000, 9000}));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].alone, std::vector<int32_t>{0});
  EXPECT_EQ(found[0].shared.size(), 3u);
}

TEST(Batches, WhatIsReadAfterAWriteEndsIt) {
  // The last step reads what the first one wrote.
  const auto found =
      batches(updates({90000, 90000, 90000, 90000, 90000, 90000, 90000, 90000, 90000}, "  launch k0(t0 -> t3)\n"));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].count, 9);
}

TEST(Batches, WhatChecksAndWhatWritesInputsAreApart) {
  const auto found = batches(updates({90000, 90000, 90000, 90000, 90000, 90000, 90000, 90000, 90000},
                                     "  kernel k1 = \"checks\" in b0 errors [\"out of range\"]\n"
                                     "  t18 : f32[9] = arena 0\n  launch k1(t1 -> t18)\n"));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].count, 9);
}

TEST(Batches, LittleWorkAndOneThreadAreLeft) {
  EXPECT_TRUE(batches(updates({10, 10, 10, 10})).empty());
  EXPECT_TRUE(batches(updates({90000, 90000, 90000, 90000, 90000, 90000, 90000, 90000, 90000}), 1).empty());
}

TEST(Batches, EachRunsOnce) {
  Batch b{0, 100, {}, {}};
  for (int32_t i = 0; i < 100; ++i) b.shared.push_back(i);
  std::array<std::atomic<int>, 100> ran{};
  run_shared(b, [&](int32_t s) { ++ran[static_cast<size_t>(s)]; });
  for (auto& r : ran) EXPECT_EQ(r.load(), 1);
}

}  // namespace
}  // namespace flashover::run
