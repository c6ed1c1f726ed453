// A table of stages; rewrites have their own.
#include "planner/stages.h"

#include "base/check.h"
#include "graph/analysis/devices.h"
#include "loops/schedule/build.h"
#include "loops/schedule/expand.h"
#include "planner/build_plan.h"
#include "planner/rewrites.h"

namespace flashover::planner {
namespace {

using graph::Graph;

std::string run_expand(const Graph& g, const Options& o) {
  const Graph expanded = expand(g, o.loops);
  verify(expanded, graph::Form::kCore);
  return print(expanded);
}

std::string run_make_loop_nodes(const Graph& g, const Options& /*o*/) { return print(loops::make_loop_nodes(g)); }

std::string run_fuse(const Graph& g, const Options& o) {
  loops::LoopProgram program = loops::make_loop_nodes(g);
  const loops::Fused fused = fuse(program, o.loops);
  return print(fused, program);
}

std::string run_build(const Graph& g, const Options& o) {
  loops::LoopProgram program = loops::make_loop_nodes(g);
  const loops::Fused fused = fuse(program, o.loops);
  std::string out;
  for (const loops::Group& group : fused.groups) {
    const loops::Kernel k =
        build(program, group, {.gpu = o.loops.processors > 0, .order_by_dims = o.loops.order_by_dims}).kernel;
    verify(k);
    out += print(k);
  }
  return out;
}

std::string run_build_plan(const Graph& g, const Options& o) {
  loops::LoopProgram program = loops::make_loop_nodes(g);
  const loops::Fused fused = fuse(program, o.loops);
  return print(build_plan(program, fused, o));
}

struct PlanningStage {
  const char* name;
  std::string (*run)(const Graph&, const Options&);
};
constexpr PlanningStage kStages[] = {{"expand", run_expand},
                                     {"make_loop_nodes", run_make_loop_nodes},
                                     {"fuse", run_fuse},
                                     {"build", run_build},
                                     {"build_plan", run_build_plan}};

}  // namespace

std::vector<std::string> stage_names() {
  std::vector<std::string> out;
  for (const PlanningStage& s : kStages) out.emplace_back(s.name);
  for (const Rewrite& r : rewrites()) out.emplace_back(r.name);
  return out;
}

std::string run_stage(std::string_view name, std::string_view text, Options options) {
  for (const PlanningStage& stage : kStages)
    if (name == stage.name) {
      const Graph g = graph::parse(text);
      verify(g, graph::Form::kCore);
      options.device = graph::device_of(g);
      return stage.run(g, options);
    }
  const Rewrite* rewrite = find_rewrite(name);
  if (!rewrite) throw UserError("no stage named " + std::string(name));
  Schedule s = parse(text);
  rewrite->run(s, options);
  return print(s);
}

}  // namespace flashover::planner
