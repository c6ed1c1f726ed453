// Looks at each convolution beside what the plan holds when it runs.
#include "graph/eager_memory.h"
#include "ops/args.h"
#include "ops/names.h"
#include "planner/memory_use.h"
#include "planner/rewrites.h"

namespace flashover::planner {

void split_convolutions(Schedule& s, const Options& o) {
  constexpr int64_t kParts = 4, kWorth = int64_t{8} << 20;
  plan::Plan& p = s.plan;
  const MemoryUse use(s, o);
  if (o.working_limit <= 0 || !use.known_sizes()) return;
  const int64_t limit = o.working_limit + (o.working_limit + use.input_bytes()) / 1024;
  const std::vector<int64_t> held = use.over_time(kNoneApart);
  for (size_t i = 0; i < p.steps.size(); ++i) {
    plan::Step& step = p.steps[i];
    if (step.kind != plan::StepKind::kCall || step.op != op::convolution || step.writes.size() != 1 ||
        step.writes[0] < 0 || !is_none(step.args[2]))
      continue;
    const TensorType& input = p.tensors[ops::as_value(step.args[0])].type;
    const TensorType& weight = p.tensors[ops::as_value(step.args[1])].type;
    const int64_t own = graph::working_bytes(step.op, step.args, input, weight, p.tensors[step.writes[0]].type);
    int64_t parts = 1;
    while (parts < kParts && held[i] + own / parts > limit && own / parts >= kWorth) parts *= 2;
    if (parts == 1 || input.sizes[0].value() < parts) continue;
    step.op = "flashover.convolution_in_parts.default";
    step.args = {step.args[0], step.args[1], step.args[3], step.args[4], step.args[5], step.args[8], sym::Expr(parts)};
  }
}

}  // namespace flashover::planner
