// Times are compared in threes (compiled, eager, compiled), so that calls may differ in size and machines in mood.
#include "entry/race.h"

#include <algorithm>

#include "base/decimal.h"

namespace flashover::entry {
namespace {

constexpr int kWarm = 2;            // compiled calls before anything counts
constexpr int kSteady = 2;          // compiled calls in a row before an eager one: it pushes data out of the caches
constexpr int kWins = 3;            // eager calls that must be faster
constexpr int kLosses = 2;          // and so many that are not, and it is over
constexpr int kRaces = 3;           // a busy machine may have decided the ones before
constexpr int kRest = 100;          // calls until the second one; four times as many until the next
constexpr double kClear = 0.95;     // of the compiled calls' time: less is a win
constexpr double kHopeless = 2.0;   // times the compiled calls' time: more ...
constexpr int kHopelessTrials = 2;  // ... so often decides at once (one may be a stall of the machine)

double middle_of(std::vector<double> seen) {
  if (seen.empty()) return 0;
  const auto middle = seen.begin() + static_cast<std::ptrdiff_t>(seen.size() / 2);
  std::ranges::nth_element(seen, middle);
  return *middle;
}

}  // namespace

bool Race::rests() {
  if (rest_ == 0) return false;
  rest_--;
  return true;
}

Race::Side Race::next() const {
  if (winner_) return *winner_;
  return !trial_ && steady_ >= kSteady ? Side::kEager : Side::kCompiled;
}

void Race::note(Side side, double seconds) {
  if (winner_) return;
  if (side == Side::kEager) {
    trial_ = seconds;
    eager_.push_back(seconds);
    return;
  }
  if (warm_ < kWarm) {
    warm_++;
    return;
  }
  compiled_.push_back(seconds);
  if (trial_)
    judge(seconds);
  else
    steady_++;
  before_ = seconds;
}

void Race::judge(double after) {
  const double eager = *trial_;
  trial_.reset();
  steady_ = 1;
  trials_++;
  if (eager < kClear * std::min(before_, after))
    wins_++;
  else if (trials_ > 1)
    losses_++;  // (the first one may be slow for what is done once: libraries choose, imports wait)
  if (eager > kHopeless * std::max(before_, after)) hopeless_++;
  if (wins_ >= kWins)
    winner_ = Side::kEager;
  else if (hopeless_ >= kHopelessTrials)
    winner_ = Side::kCompiled;
  else if (losses_ >= kLosses)
    lose_or_rest();
}

void Race::lose_or_rest() {
  if (++races_ == kRaces) {
    winner_ = Side::kCompiled;
    return;
  }
  rest_ = races_ == 1 ? kRest : 4 * kRest;
  warm_ = steady_ = trials_ = wins_ = losses_ = hopeless_ = 0;
}

void Race::spoil() {
  trial_.reset();
  steady_ = 0;
  if (++spoiled_ >= most_spoiled_) winner_ = Side::kCompiled;
}

std::string Race::text() const {
  return fixed_decimal(middle_of(compiled_) * 1e3, 3) + " ms compiled, " + fixed_decimal(middle_of(eager_) * 1e3, 3) +
         " ms as it is written";
}

}  // namespace flashover::entry
