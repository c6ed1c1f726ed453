// Races between made-up times.
#include "entry/race.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace flashover::entry {
namespace {

struct Calls {
  std::string ways;  // of the calls: c and e
  Race race;
};

// Calls until it is over, or 1000 of them. Those between two races leave no letter.
Calls race_of(const std::function<double(int)>& compiled, const std::function<double(int)>& eager) {
  Calls r;
  for (int i = 0; i < 1000 && !r.race.over(); i++) {
    if (r.race.rests()) continue;
    const Race::Side side = r.race.next();
    r.ways += side == Race::Side::kEager ? 'e' : 'c';
    r.race.note(side, side == Race::Side::kEager ? eager(i) : compiled(i));
  }
  return r;
}
std::function<double(int)> always(double seconds) {
  return [seconds](int) { return seconds; };
}

TEST(Race, CodeThatIsTwiceAsFastCostsTwoEagerCalls) {
  const Calls r = race_of(always(1.0), always(2.1));
  EXPECT_EQ(r.race.winner(), Race::Side::kCompiled);
  EXPECT_EQ(r.ways, "cccceccec");
}

TEST(Race, SlowCodeLosesAfterThreeEagerCalls) {
  const Calls r = race_of(always(0.004), always(0.003));
  EXPECT_EQ(r.race.winner(), Race::Side::kEager);
  EXPECT_EQ(r.ways, "ccccecceccec");
  EXPECT_EQ(r.race.text(), "4.000 ms compiled, 3.000 ms as it is written");
  EXPECT_EQ(r.race.next(), Race::Side::kEager);
}

TEST(Race, ADrawIsTheCompiledCodes) {
  EXPECT_EQ(race_of(always(1.0), always(0.97)).race.winner(), Race::Side::kCompiled);
  EXPECT_EQ(race_of(always(1.0), always(1.3)).ways,
            "ccccecceccec"
            "ccccecceccec"
            "ccccecceccec");
}

TEST(Race, ASlowFirstEagerCallDecidesNothing) {
  const Calls r = race_of(always(1.0), [](int i) { return i < 5 ? 50.0 : 0.5; });
  EXPECT_EQ(r.race.winner(), Race::Side::kEager);
}

TEST(Race, ColdCompiledCallsDoNotCount) {
  EXPECT_EQ(race_of([](int i) { return i < 2 ? 100.0 : 1.0; }, always(1.2)).race.winner(), Race::Side::kCompiled);
}

TEST(Race, SizesThatGrowAreComparedWithTheirNeighbours) {
  EXPECT_EQ(race_of([](int i) { return 1.0 + i; }, [](int i) { return 1.2 * (1.0 + i); }).race.winner(),
            Race::Side::kCompiled);
  EXPECT_EQ(race_of([](int i) { return 1.0 + i; }, [](int i) { return 0.6 * (1.0 + i); }).race.winner(),
            Race::Side::kEager);
}

TEST(Race, OneStallOfTheMachineDecidesNothing) {
  EXPECT_EQ(race_of([](int i) { return i == 5 ? 50.0 : 1.0; }, always(1.2)).race.winner(), Race::Side::kCompiled);
  for (const double stall : {1.5, 50.0})
    EXPECT_EQ(race_of(always(1.0), [=](int i) { return i == 7 ? stall : 0.5; }).race.winner(), Race::Side::kEager);
}

TEST(Race, ABusyMachineGivesAnotherChance) {
  const Calls r = race_of(always(1.0), [](int i) { return i < 100 ? 1.4 : 0.8; });
  EXPECT_EQ(r.race.winner(), Race::Side::kEager);
}

TEST(Race, WhatIsSpoiledIsMeasuredAgain) {
  Race race;
  for (int i = 0; i < 4; i++) race.note(Race::Side::kCompiled, 1.0);
  EXPECT_EQ(race.next(), Race::Side::kEager);
  race.note(Race::Side::kEager, 5.0);
  race.spoil();
  EXPECT_EQ(race.next(), Race::Side::kCompiled);
  EXPECT_FALSE(race.over());
  for (int i = 0; i < 200; i++) race.spoil();
  EXPECT_EQ(race.winner(), Race::Side::kCompiled);
}

}  // namespace
}  // namespace flashover::entry
