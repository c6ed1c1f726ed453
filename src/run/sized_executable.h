// Runs a plan with size symbols: calls of each size go to a program made for it.
//
//   In        a plan with size symbols, where their values are read, how an executable for one size is made
//   Out       an Executable that reads the symbols' values from its inputs, and makes and keeps programs by them
//   Promises  a call of a known size costs one look-up more than a program of its own; the code is loaded once; the least
//             recently used programs go when there are too many; safe from several threads at once
//   Declines  nothing. A call: sizes that lead outside of memory (InternalError)
#pragma once
#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "plan/sizes.h"
#include "run/frozen.h"
#include "run/run.h"

namespace flashover::run {

constexpr size_t kMaxPrograms = 256;
constexpr size_t kMaxRecorded = 16;  // where CUDA graphs are recorded: each keeps memory of its own

// What the executables of one plan share.
struct SharedResources {
  std::shared_ptr<FrozenCache> frozen;
  bool proven = false;  // calls of another size went through
};
struct SizedPlan {
  std::shared_ptr<const plan::Plan> plan;
  std::vector<plan::SizeSource> sources;
  bool records_graphs = false;
  std::shared_ptr<FrozenCache> frozen;
};
// values: by entry of SizedPlan::sources. proven: calls of another size went through.
using MakeExecutable = std::function<std::shared_ptr<Executable>(std::span<const int64_t> values, bool proven)>;

// The programs of one plan, by the values of its symbols. Safe from several threads at once.
class Programs {
 public:
  using Values = std::vector<int64_t>;  // by entry of the sources
  Programs(SizedPlan plan, MakeExecutable make) : sized_(std::move(plan)), make_(std::move(make)) {}

  const plan::Plan& plan() const { return *sized_.plan; }  // without its binaries
  const std::vector<plan::SizeSource>& sources() const { return sized_.sources; }
  FrozenCache& frozen() const { return *sized_.frozen; }
  std::shared_ptr<Executable> of(const Values& values);
  void went_through() { proven_.store(true, std::memory_order_relaxed); }  // a call of one of them
  bool heavy() const { return heavy_.load(std::memory_order_relaxed); }
  Counters counters() const;
  void measure(bool on);
  std::vector<double> times() const;  // of the size that came last
  Values last_values() const;         // that size; empty: none came

 private:
  struct Entry {
    Values values;
    std::shared_ptr<Executable> program;
  };
  struct HashValues {
    size_t operator()(const Values& v) const noexcept;
  };
  std::shared_ptr<Executable> look_up(const Values& values);
  std::shared_ptr<Executable> make(Values values);

  const SizedPlan sized_;
  const MakeExecutable make_;
  std::atomic<bool> heavy_{true}, proven_{false};
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
  std::unordered_map<Values, std::list<Entry>::iterator, HashValues> by_values_;
  Counters gone_;  // of programs that went
  bool measured_ = false;
};

std::shared_ptr<Executable> load_sized(std::unique_ptr<Programs> programs);

}  // namespace flashover::run
