// Where plans are cut.
#include "run/sub_plans.h"

#include <gtest/gtest.h>

namespace flashover::run {
namespace {

plan::Plan of_launches(size_t count) {
  plan::Plan p;
  p.steps.resize(count);
  return p;
}

using Ends = std::vector<size_t>;
using Graphs = std::vector<bool>;

TEST(SubPlans, CutsOfAboutTheSameLength) {
  EXPECT_EQ(even_cuts(of_launches(7), 3).ends, (Ends{2, 4, 7}));
  EXPECT_EQ(even_cuts(of_launches(2), 5).ends, (Ends{1, 2}));
  EXPECT_TRUE(even_cuts(of_launches(0), 5).ends.empty());
}

TEST(SubPlans, GraphsAroundWhatCannotBeRecorded) {
  const std::optional<Cuts> cuts = cuts_around(of_launches(10), {{4, "waits"}});
  ASSERT_TRUE(cuts);
  EXPECT_EQ(cuts->ends, (Ends{4, 5, 10}));
  EXPECT_EQ(cuts->graphs, (Graphs{true, false, true}));
}

TEST(SubPlans, WhatIsNotWorthAGraphIsOnePartWithWhatCannotBeRecorded) {
  const std::optional<Cuts> cuts = cuts_around(of_launches(10), {{1, "waits"}, {5, "waits"}});
  ASSERT_TRUE(cuts);
  EXPECT_EQ(cuts->ends, (Ends{6, 10}));
  EXPECT_EQ(cuts->graphs, (Graphs{false, true}));
}

TEST(SubPlans, StepsThatOnlyLetGoAreNoWork) {
  plan::Plan p = of_launches(6);
  for (size_t i = 2; i < 5; ++i) p.steps[i].kind = plan::StepKind::kRelease;
  EXPECT_FALSE(cuts_around(p, {{5, "waits"}}));
}

}  // namespace
}  // namespace flashover::run
