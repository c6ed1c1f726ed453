// The stages of planning, in order.
#include "planner/planner.h"

#include "graph/analysis/data_sizes.h"
#include "loops/schedule/expand.h"
#include "planner/build_plan.h"
#include "planner/rewrites.h"

namespace flashover::planner {

Schedule schedule(const graph::Graph& core, const Options& options) {
  const graph::Graph expanded = graph::behind_data_sizes(expand(core, options.loops));
  loops::LoopProgram program = loops::make_loop_nodes(expanded);
  std::string nodes = options.want_text ? print(program) : std::string();
  const loops::Fused fused = fuse(program, options.loops);
  Schedule s = build_plan(program, fused, options);
  for (const Rewrite& r : rewrites())
    if (r.device == Rewrite::On::kAll || (r.device == Rewrite::On::kGpu) == s.on_gpu()) r.run(s, options);
  if (options.want_text) s.text = nodes + print(fused, program);
  return s;
}

}  // namespace flashover::planner
