// Runs a plan with size symbols: calls of each size go to a program made for it.
//
//   In        a plan with size symbols; how an executable is made of a plan of constant sizes
//   Out       an Executable that reads the symbols' values from its inputs, and makes and keeps programs by them
//   Promises  a call of a known size costs one look-up more than a program of its own; the code is loaded once; the least
//             recently used programs go when there are too many; safe from several threads at once
//   Declines  load_sized(): what plan::size_sources() declines. A call: sizes that break the plan's rules (InternalError)
#pragma once
#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "plan/sizes.h"
#include "run/code.h"
#include "run/frozen.h"
#include "run/run.h"

namespace flashover::run {

constexpr size_t kMaxPrograms = 256;
constexpr size_t kMaxRecorded = 16;  // where CUDA graphs are recorded: each keeps memory of its own

// What the programs of one plan share.
struct SharedResources {
  std::shared_ptr<const Code> code;
  std::shared_ptr<FrozenCache> frozen;
  bool proven = false;  // calls of another size went through
};
using MakeExecutable =
    std::function<std::shared_ptr<Executable>(plan::Plan, const LoadOptions& options, const SharedResources& shared)>;

std::shared_ptr<FrozenCache> frozen_cache(std::vector<int32_t> inputs);  // that it depends on

// The programs of one plan, by the values of its symbols. Safe from several threads at once.
class Programs {
 public:
  using Values = std::vector<int64_t>;  // by entry of the sources
  Programs(plan::Plan plan, std::vector<plan::SizeSource> sources, const LoadOptions& options, SharedResources shared,
           MakeExecutable make);

  const plan::Plan& plan() const { return plan_; }  // without its binaries
  const std::vector<plan::SizeSource>& sources() const { return sources_; }
  std::shared_ptr<Executable> of(const Values& values);
  void went_through() { proven_.store(true, std::memory_order_relaxed); }  // a call of one of them
  bool heavy() const { return heavy_.load(std::memory_order_relaxed); }
  Counters counters() const;
  void measure(bool on);
  std::vector<double> times() const;  // of the size that came last

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

  plan::Plan plan_;
  const std::vector<plan::SizeSource> sources_;
  const LoadOptions options_;
  const SharedResources shared_;
  const MakeExecutable make_;
  std::atomic<bool> heavy_{true}, proven_{false};
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
  std::unordered_map<Values, std::list<Entry>::iterator, HashValues> by_values_;
  Counters gone_;  // of programs that went
  bool measured_ = false;
};

std::shared_ptr<Executable> load_sized(plan::Plan plan, std::vector<plan::SizeSource> sources,
                                       const LoadOptions& options, SharedResources shared, MakeExecutable make);

}  // namespace flashover::run
