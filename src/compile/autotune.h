// mode="max-autotune" on a CPU: the same program by each way of choosing libraries that makes another plan; the
// fastest. (On a GPU: compile/products.h.)
#pragma once
#include <functional>

#include "compile/compile.h"
#include "compile/pass_runner.h"

namespace flashover::compile {

// The whole way from the traced graph to a plan, with the libraries of that environment.
using MakePlan = std::function<plan::Plan(const CompileTarget&, PassRunner&, Report&)>;

// CompileTarget::measure must be there. A program that calls operators of its own gets the first plan, unmeasured.
// key: of the graph, in a file of choices.
plan::Plan fastest_plan(const MakePlan& make, const Hash128& key, const Options& options,
                        const CompileTarget& environment, PassRunner& passes, Report& report);

// Adds a plan's size to the report.
void add_to_report(Report& report, const plan::Plan& plan);

}  // namespace flashover::compile
