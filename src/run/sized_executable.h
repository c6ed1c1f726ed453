// Runs a plan with size symbols: calls of each size go to a program made for it.
//
//   In        a plan with size symbols; how an executable is made of a plan of constant sizes
//   Out       an Executable that reads the symbols' values from its inputs, and makes and keeps programs by them
//   Promises  a call of a known size costs one look-up more than a program of its own; the code is loaded once; the least
//             recently used programs go when there are too many; safe from several threads at once
//   Declines  load_sized(): what plan::size_sources() declines. A call: sizes that break the plan's rules (InternalError)
#pragma once
#include <functional>
#include <memory>
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

std::shared_ptr<Executable> load_sized(plan::Plan plan, std::vector<plan::SizeSource> sources,
                                       const LoadOptions& options, SharedResources shared, MakeExecutable make);

}  // namespace flashover::run
