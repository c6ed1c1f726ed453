// A table of operators that write into memory that they are given. Memory of the plan's own was touched a moment ago and
// lies in large pages; what an operator allocates comes from wherever the allocator has it (MobileNetV3, one thread: 1.3x).
#include <algorithm>
#include <string_view>

#include "planner/rewrites.h"

namespace flashover::planner {
namespace {

using plan::StorageKind;
using plan::TensorId;

struct OutVariant {
  std::string_view op;
  const char* out;
};
constexpr OutVariant kOutVariants[] = {
    {"flashover.panel_linear.default", "flashover.panel_linear.out"},
    {"flashover.packed_linear.default", "flashover.packed_linear.out"},
    {"flashover.depthwise_last.default", "flashover.depthwise_last.out"},
    {"flashover.product.default", "flashover.product.out"},
};

}  // namespace

void own_results(Schedule& s, const Options& /*o*/) {
  plan::Plan& p = s.plan;
  for (plan::Step& step : p.steps) {
    if (step.kind != plan::StepKind::kCall || step.out_variant || step.writes.size() != 1 || step.writes[0] < 0)
      continue;
    const auto* row = std::ranges::find(kOutVariants, std::string_view(step.op), &OutVariant::op);
    const TensorId result = step.writes[0];
    plan::Tensor& memory = p.tensors[result];
    if (row == std::end(kOutVariants) || memory.storage != StorageKind::kExtern || memory.type.opaque) continue;
    const auto returned = [&](const plan::OutputRef& o) { return o.tensor >= 0 && plan::root(p, o.tensor) == result; };
    const auto output = std::ranges::find_if(p.outputs, returned);
    // A caller that gets two views of it, or a part, holds memory that is not one of the plan's results.
    if (output != p.outputs.end() &&
        (output->tensor != result || std::find_if(output + 1, p.outputs.end(), returned) != p.outputs.end()))
      continue;
    step.op = row->out;
    step.out_variant = true;
    memory.storage = output == p.outputs.end() ? StorageKind::kArena : StorageKind::kOutput;
    if (output != p.outputs.end()) memory.index = static_cast<int32_t>(output - p.outputs.begin());
  }
}

}  // namespace flashover::planner
