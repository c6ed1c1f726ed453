// The calls of one version while it races (race.h), and the clock that is held to them.
//
// Without gradients a call is timed by itself; with them from its start to the start of the next one, so that the
// backward is in it. On a GPU the device is waited for at both ends, which the few calls of a race can afford.
#pragma once
#include <cstdint>

#include "entry/race.h"

namespace flashover::entry {

struct Entry;
struct Settings;

// Whether the calls of a version are to be timed against the program.
bool may_race(const Settings& settings, const Entry& entry);

class RaceClock {
 public:
  explicit RaceClock(int most_spoiled = Race::kMostSpoiled) : race_(most_spoiled) {}
  // A call starts, the callable's number `call`. Which way it goes; the race may be over with that.
  Race::Side start(int64_t call);
  void stop();
  const Race& race() const { return race_; }

 private:
  struct Moment {
    double seconds;
    uint64_t thread;
    int64_t graphs;  // that were compiled in the process
    bool usable;
  };
  static Moment now();
  void measure(const Moment& end);

  Race race_;
  Race::Side side_ = Race::Side::kCompiled;
  Moment start_{};
  int64_t call_ = 0;
  int running_ = 0;    // calls, one in the other
  bool open_ = false;  // the last call is measured at the start of the next one
  bool resting_ = false;
  bool nested_ = false;  // the call that runs had others in it, or beside it
};

}  // namespace flashover::entry
