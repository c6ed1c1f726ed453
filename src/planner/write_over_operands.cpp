// A table of operators, and what must hold of the operand.
#include <algorithm>
#include <string_view>

#include "ops/args.h"
#include "plan/lifetimes.h"
#include "planner/rewrites.h"

namespace flashover::planner {
namespace {

using plan::StorageKind;
using plan::TensorId;

struct Twin {
  std::string_view op;
  size_t operand;
  const char* in_place;
};
constexpr Twin kTwins[] = {
    {"flashover.add_rows.default", 0, "flashover.add_rows_.default"},
};

const Twin* find_twin(const plan::Step& s) {
  if (s.kind != plan::StepKind::kCall || s.out_variant || s.writes.size() != 1 || s.writes[0] < 0) return nullptr;
  const auto* twin = std::ranges::find(kTwins, s.op, &Twin::op);
  return twin == std::end(kTwins) ? nullptr : twin;
}

bool same_type(const TensorType& a, const TensorType& b) {
  return a.dtype == b.dtype && a.device == b.device && !a.opaque && !b.opaque && same_sizes(a.sizes, b.sizes) &&
         same_sizes(a.strides, b.strides);
}

// Whether step n, which makes `out`, is the last that reads `over`, and reads it once.
bool dies_here(const plan::Plan& p, size_t n, TensorId over, const plan::Lifetime& life) {
  int uses = 0;
  plan::for_each_read(p.steps[n], [&](TensorId t) { uses += plan::root(p, t) == over; });
  return uses == 1 && life.first != static_cast<int32_t>(n) && life.last == static_cast<int32_t>(n);
}

}  // namespace

void write_over_operands(Schedule& s, const Options& /*o*/) {
  plan::Plan& p = s.plan;
  std::vector<plan::Lifetime> life = plan::lifetimes(p);
  for (size_t n = 0; n < p.steps.size(); ++n) {
    plan::Step& step = p.steps[n];
    const Twin* twin = find_twin(step);
    if (!twin) continue;
    const TensorId over = ops::as_value(step.args[twin->operand]), out = step.writes[0];
    plan::Tensor &memory = p.tensors[over], &result = p.tensors[out];
    if ((memory.storage != StorageKind::kExtern && memory.storage != StorageKind::kArena) ||
        result.storage != StorageKind::kExtern || over > out || !same_type(memory.type, result.type) ||
        !dies_here(p, n, over, life[over]))
      continue;
    const auto output = std::ranges::find(p.outputs, out, &plan::OutputRef::tensor);
    if (output != p.outputs.end()) {
      output->tensor = over;
      if (memory.storage == StorageKind::kArena)
        memory.storage = StorageKind::kOutput, memory.index = static_cast<int32_t>(output - p.outputs.begin());
    }
    step.op = twin->in_place;
    step.writes = {over};
    result.storage = StorageKind::kView;
    result.index = over;
    life[over].last = life[out].last;
  }
}

}  // namespace flashover::planner
