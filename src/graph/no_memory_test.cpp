// Copies of what a graph is made of where there is no memory for them.
#include "base/no_memory_for_test.h"

#include <gtest/gtest.h>

#include "graph/graph.h"

namespace flashover {
namespace {

TEST(NoMemory, ACopyOfAnArgumentThrowsAndDestroysNothing) {
  const Arg sizes = Sizes{2, 3}, name = std::string(100, 'x'), flags = std::vector<bool>(100), refs = RefList{{1}, {2}};
  for (const Arg* a : {&sizes, &name, &flags, &refs}) EXPECT_TRUE(runs_out_of_memory(0, [&] { const Arg copy = *a; }));
}

}  // namespace
}  // namespace flashover
