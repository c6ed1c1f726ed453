// Which is faster: a version of a callable, or the program as it is written. Some of its first calls run eager instead,
// and each of those is held against the compiled calls before and after it.
//
//   In        how long calls took, in their order, one way or the other
//   Out       which way the next call goes, and in the end who won
//   Promises  who is clearly faster decides after two or three eager calls; a draw is the compiled code's, after it was
//             tried again twice, later; which calls run eager follows from who was faster alone, not from the clock
// The first two compiled calls are not counted (memory is found, libraries choose), nor is the first eager one where it
// loses, for the same reason.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace flashover::entry {

class Race {
 public:
  enum class Side : uint8_t { kCompiled, kEager };
  static constexpr int kMostSpoiled = 100;  // a program that never stands still is not measured
  explicit Race(int most_spoiled = kMostSpoiled) : most_spoiled_(most_spoiled) {}
  // The next call belongs to no race: it is compiled, and its time is of no interest.
  bool rests();
  // Which way the next call goes.
  Side next() const;
  void note(Side side, double seconds);
  // What was measured last is no measure: something else happened meanwhile.
  void spoil();
  bool over() const { return winner_.has_value(); }
  std::optional<Side> winner() const { return winner_; }
  // "12.0 ms compiled, 9.0 ms as it is written": the middle of what was seen.
  std::string text() const;

 private:
  void judge(double after);
  void lose_or_rest();

  int most_spoiled_;
  std::optional<Side> winner_;
  int warm_ = 0, steady_ = 0, trials_ = 0, wins_ = 0, losses_ = 0, hopeless_ = 0, spoiled_ = 0, races_ = 0, rest_ = 0;
  double before_ = 0;
  std::optional<double> trial_;  // an eager call that waits for the compiled one behind it
  std::vector<double> compiled_, eager_;
};

}  // namespace flashover::entry
