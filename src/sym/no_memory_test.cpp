// Expressions where there is no memory for them: what was not made is made another time.
#include "base/no_memory_for_test.h"

#include <gtest/gtest.h>

#include "sym/sym.h"

namespace flashover::sym {
namespace {

constexpr int kMostAllocations = 10;  // of one expression

// The tables grow now and then: enough new expressions to meet each allocation that makes room.
TEST(NoMemory, AVariableIsMadeWhenThereIsMemoryAgain) {
  for (int i = 0; i < 500; ++i) {
    const std::string name = "a_name_that_is_no_small_string_" + std::to_string(i);
    int allocations = 0;
    while (runs_out_of_memory(allocations, [&] { var(name, {0, 8}, 3); })) ASSERT_LT(++allocations, kMostAllocations);
    const Expr made = var(name, {0, 8}, 3);
    ASSERT_NE(made.node(), nullptr);
    EXPECT_EQ(made.name(), name);
  }
}

TEST(NoMemory, AConstantIsMadeWhenThereIsMemoryAgain) {
  for (int64_t value = 1 << 20; value < (1 << 20) + 500; ++value) {
    int allocations = 0;
    while (runs_out_of_memory(allocations, [&] { Expr made(value); })) ASSERT_LT(++allocations, kMostAllocations);
    EXPECT_EQ(Expr(value), Expr(value));
    EXPECT_EQ(Expr(value).value(), value);
  }
}

}  // namespace
}  // namespace flashover::sym
