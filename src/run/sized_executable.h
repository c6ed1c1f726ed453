// Runs a plan with size symbols: calls of each size go to a program made for it.
//
//   In        a plan with size symbols, where their values are read, how an executable for one size is made
//   Out       an Executable that reads the symbols' values from its inputs, and makes and keeps programs by them
//   Promises  a call of a known size costs one look-up more than a program of its own; the code is loaded once; the least
//             recently used programs go when there are too many; safe from several threads at once
//   Declines  nothing. A call: sizes that lead outside of memory (InternalError)
#pragma once
#include <functional>
#include <memory>
#include <span>
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
  std::shared_ptr<const FrozenCache> frozen;
};
// values: by entry of SizedPlan::sources. proven: calls of another size went through.
using MakeExecutable = std::function<std::shared_ptr<Executable>(std::span<const int64_t> values, bool proven)>;

std::shared_ptr<Executable> load_sized(SizedPlan plan, MakeExecutable make);

}  // namespace flashover::run
