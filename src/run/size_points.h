// A plan with size points: steps that find sizes which what follows is made for.
//
//   In        a plan; the code of its kernels; how a part's programs are made
//   Out       an Executable: the parts between the size points run like plans with size symbols, one behind the other
//   Promises  a size is read once the operator that finds it has run; a part of known sizes costs one look-up more than
//             a program of its own; a call that raises is undone as far as its parts undo theirs, and what earlier parts
//             wrote to inputs is put back
//   Declines  load_in_parts(): what cannot be handed from one part to the next, a size in what is computed from
//             parameters (Declined)
#pragma once
#include <memory>
#include <vector>

#include "run/code.h"
#include "run/sized_executable.h"

namespace flashover::run {

// sources: of the part's symbols, whose values come with each call of it. code: of the whole plan.
using MakePrograms = std::unique_ptr<Programs> (*)(plan::Plan part, std::vector<plan::SizeSource> sources,
                                                   const LoadOptions& options, std::shared_ptr<const Code> code);

std::shared_ptr<Executable> load_in_parts(plan::Plan plan, const LoadOptions& options, std::shared_ptr<const Code> code,
                                          MakePrograms make);

}  // namespace flashover::run
