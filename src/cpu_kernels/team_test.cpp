// Work is shared out whole, once, and to as many threads as pay off, in regions and by teams that stand by.
#include "cpu_kernels/team.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace flashover::cpu {
namespace {

constexpr int64_t kMuch = 1'000'000'000;  // a millisecond

class WithSevenThreads : public testing::Test {
 protected:
  WithSevenThreads() : before_(at::get_num_threads()) { at::set_num_threads(7); }
  ~WithSevenThreads() override { at::set_num_threads(before_); }

 private:
  int before_;
};
class Team : public WithSevenThreads {};

// How often each index was met, and by how many threads all were.
struct Met {
  explicit Met(int64_t n) : count(static_cast<size_t>(n)), by(static_cast<size_t>(n)) {}
  std::vector<std::atomic<int>> count;
  std::vector<std::thread::id> by;
  static void meet(void* m, int64_t begin, int64_t end) {
    auto& met = *static_cast<Met*>(m);
    for (int64_t i = begin; i < end; ++i) {
      ++met.count[static_cast<size_t>(i)];
      met.by[static_cast<size_t>(i)] = std::this_thread::get_id();
    }
  }
  size_t threads() const { return std::set<std::thread::id>(by.begin(), by.end()).size(); }
};

size_t threads_that_share(int64_t n, int64_t work) {
  Met met(n);
  share(&Met::meet, &met, n, work);
  for (const auto& c : met.count) EXPECT_EQ(c.load(), 1);
  return met.threads();
}

TEST_F(Team, RangesAreSharedWhole) {
  const auto all = [] {
    for (int64_t n : {0, 1, 2, 6, 7, 8, 1000, 1001}) {
      EXPECT_EQ(threads_that_share(n, kMuch), static_cast<size_t>(std::min<int64_t>(n, 7)));
      EXPECT_EQ(threads_that_share(n, 1000), static_cast<size_t>(std::min<int64_t>(n, 1)));
    }
  };
  all();
  with_team(all);
}

TEST_F(Team, TasksRunOnceAndFailuresAreThrown) {
  const auto all = [] {
    std::vector<std::atomic<int>> ran(100);
    in_parallel(100, [&](int64_t i) { ++ran[static_cast<size_t>(i)]; });
    for (const auto& r : ran) EXPECT_EQ(r.load(), 1);
    EXPECT_THROW(in_parallel(50, [](int64_t i) { i == 30 ? throw std::out_of_range("30") : void(); }),
                 std::out_of_range);
  };
  all();
  with_team(all);
  EXPECT_THROW(with_team([] { throw std::domain_error("alone"); }), std::domain_error);
  EXPECT_THROW(with_team([] { in_parallel(9, [](int64_t) { throw std::domain_error("all"); }); }), std::domain_error);
  with_team(all);
}

TEST_F(Team, WhatIsSharedInPartsRunsInTheirThreads) {
  const auto nested = [] {
    std::atomic<int> wrong{0};
    in_parallel(14, [&](int64_t) {
      Met met(100);
      share(&Met::meet, &met, 100, kMuch);
      wrong += met.by[0] != std::this_thread::get_id() || met.threads() != 1 || team_size() != 1;
      with_team([&] { in_parallel(3, [&](int64_t) { wrong += team_size() != 1; }); });
    });
    EXPECT_EQ(wrong.load(), 0);
    EXPECT_EQ(team_size(), 7);
  };
  nested();
  with_team(nested);
}

TEST_F(Team, ManyRounds) {
  int64_t sum = 0;
  with_team([&] {
    for (int64_t i = 0; i < 20000; ++i) {
      std::atomic<int64_t> part{0};
      share([](void* p, int64_t a, int64_t b) { *static_cast<std::atomic<int64_t>*>(p) += b - a; }, &part, 10 + i % 5,
            i % 3 == 0 ? 2'000'000 : kMuch);
      sum += part - (10 + i % 5);
    }
  });
  EXPECT_EQ(sum, 0);
}

TEST_F(Team, ThreadsThatSleepAreWoken) {
  for (int i = 0; i < 5; ++i)
    with_team([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_EQ(threads_that_share(70, kMuch), 7u);
    });
}

TEST_F(Team, EveryThreadFlushes) {
  const auto flushing = [](bool expected) {
    std::atomic<int> wrong{0};
    in_parallel(70, [&](int64_t) { wrong += ((float_state() & kFlush) == kFlush) != expected; });
    EXPECT_EQ(wrong.load(), 0);
  };
  const auto all = [&] {
    flushing(false);
    {
      const FlushedTeam flushed;
      flushing(true);
    }
    flushing(false);
  };
  all();
  with_team(all);
}

TEST_F(Team, ManyCallersHaveTeamsOfTheirOwn) {
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&wrong] {
      at::set_num_threads(3);
      for (int i = 0; i < 200; ++i)
        with_team([&] {
          Met met(60);
          for (int j = 0; j < 3; ++j) share(&Met::meet, &met, 60, kMuch);
          for (const auto& m : met.count) wrong += m != 3;
        });
    });
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST_F(Team, OneThreadNeedsNoTeam) {
  at::set_num_threads(1);
  saved_by_team();
  EXPECT_EQ(threads_that_share(100, kMuch), 1u);
  with_team([] { EXPECT_EQ(threads_that_share(100, kMuch), 1u); });
  EXPECT_LE(saved_by_team(), 0);
}

TEST_F(Team, WhatATeamSaves) {
  saved_by_team();
  EXPECT_LT(saved_by_team(), 0);  // its start
  for (int i = 0; i < 100; ++i) threads_that_share(1000, kMuch);
  EXPECT_GT(saved_by_team(), 0);
}

}  // namespace
}  // namespace flashover::cpu
