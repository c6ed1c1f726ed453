// Looks at each write back of a temporary: can the step that makes the temporary write the input itself?
#include <algorithm>
#include <optional>
#include <utility>

#include "ops/args.h"
#include "ops/ops.h"
#include "planner/build_plan.h"
#include "planner/overlay.h"
#include "planner/rewrites.h"

namespace flashover::planner {
namespace {

using plan::Plan;
using plan::Step;
using plan::StepKind;
using plan::StorageKind;
using plan::TensorId;

bool types_alike(const TensorType& a, const TensorType& b) {
  return !a.opaque && a.dtype == b.dtype && same_sizes(a.sizes, b.sizes) && same_sizes(a.strides, b.strides) &&
         ops::is_dense(b.sizes, b.strides);
}

// The first step that writes `from`, and the last that reads `to`, beside the write back; nothing if some other step
// writes `to`, or either is known under another name.
struct Uses {
  int32_t first_write = -1, last_read = -1;
};
std::optional<Uses> uses(const Plan& p, size_t write_back, TensorId from, TensorId to) {
  Uses u;
  for (size_t i = 0; i < p.steps.size(); ++i) {
    if (i == write_back) continue;
    bool written = false;  // by a call that mutates it, or another write back
    plan::for_each_read(p.steps[i], [&](TensorId t) {
      if (plan::root(p, t) == to) u.last_read = static_cast<int32_t>(i);
    });
    plan::for_each_write(p.steps[i], [&](TensorId t) {
      written |= plan::root(p, t) == to;
      if (plan::root(p, t) == from && u.first_write < 0) u.first_write = static_cast<int32_t>(i);
    });
    if (written) return std::nullopt;
  }
  for (size_t t = 0; t < p.tensors.size(); ++t)  // views have addresses of their own
    if (p.tensors[t].storage == StorageKind::kView && plan::root(p, static_cast<TensorId>(t)) == to)
      return std::nullopt;
  for (const plan::OutputRef& o : p.outputs)
    if (o.tensor >= 0 && plan::root(p, o.tensor) == from) return std::nullopt;
  if (u.first_write < 0 || u.last_read > u.first_write) return std::nullopt;
  return u;
}

// The operator on the CPU that changes its operand `to` where this one returns a changed copy of it (rows put into a
// large cache), or null.
const ops::OpRow* in_place_twin(const Plan& p, const Step& call, TensorId to) {
  constexpr int64_t kLarge = int64_t{1} << 20;
  if (call.kind != StepKind::kCall || call.out_variant || call.writes.size() != 1 || call.args.empty() ||
      p.device.type != DeviceType::kCPU)
    return nullptr;
  const auto* self = std::get_if<Ref>(&call.args[0]);
  int64_t seen = 0;  // more than once: it reads what it would write
  plan::for_each_read(call, [&](TensorId t) { seen += plan::root(p, t) == to; });
  if (!self || self->id != to || seen != 1) return nullptr;
  const size_t dot = call.op.rfind('.');
  const ops::OpRow* twin = ops::find_existing(call.op.substr(0, dot) + "_" + call.op.substr(dot));
  if (!twin || !twin->functional || twin->functional->name != call.op || twin->mutates != 1 || twin->drops_mutated ||
      twin->nondeterministic)
    return nullptr;
  // Where it may raise, that would have to be undone (delay_input_writes).
  if (plan::may_raise(call.op) && !call.foreseen && plan::bytes(p.tensors[to].type).as_const().value_or(0) < kLarge)
    return nullptr;
  return twin;
}

// Whether a launch that reads `to` may write `from` over it.
bool may_lie_over(const Step& launch, const loops::Kernel& k, TensorId from, TensorId to) {
  const auto in = std::find(launch.reads.begin(), launch.reads.end(), to) - launch.reads.begin();
  const auto out = std::find(launch.writes.begin(), launch.writes.end(), from) - launch.writes.begin();
  const auto out_param = static_cast<int32_t>(launch.reads.size()) + static_cast<int32_t>(out);
  return std::count(launch.reads.begin(), launch.reads.end(), to) == 1 &&
         overlay(k, static_cast<int32_t>(in), out_param);
}

bool only_copies(const loops::Kernel& k) {
  using loops::Op;
  if (k.params.size() != 2 || k.stages.size() != 1 || k.params[0].dtype != k.params[1].dtype) return false;
  const std::vector<loops::Instr>& body = k.stages[0].body;
  const bool rounds = body.size() == 3 && body[1].op == Op::k_round_to && body[1].narrow == k.params[0].dtype;
  return body.front().op == Op::k_load && body.back().op == Op::k_store && (body.size() == 2 || rounds);
}

void rewrite(Schedule& s, size_t write_back) {
  Plan& p = s.plan;
  const TensorId from = p.steps[write_back].reads[0], to = p.steps[write_back].writes[0];
  const plan::Tensor& made = p.tensors[from];
  if ((made.storage != StorageKind::kArena && made.storage != StorageKind::kExtern) ||
      !types_alike(made.type, p.tensors[to].type))
    return;
  const std::optional<Uses> u = uses(p, write_back, from, to);
  if (!u) return;
  Step& producer = p.steps[u->first_write];
  bool needless = false;  // it would copy the input onto itself
  if (made.storage == StorageKind::kExtern) {
    const ops::OpRow* twin = in_place_twin(p, producer, to);
    if (!twin) return;
    producer.op = twin->name;
    producer.writes = {to};
  } else if (producer.kind != StepKind::kLaunch) {
    return;
  } else if (u->last_read == u->first_write) {
    const loops::Kernel& k = s.kernels[producer.kernel];
    if (!may_lie_over(producer, k, from, to)) return;
    needless = only_copies(k);
  }
  p.tensors[from].storage = StorageKind::kView;
  p.tensors[from].index = to;
  p.steps.erase(p.steps.begin() + static_cast<std::ptrdiff_t>(write_back));
  if (needless) p.steps.erase(p.steps.begin() + u->first_write);
}

}  // namespace

void write_inputs_in_place(Schedule& s, const Options& /*o*/) {
  std::vector<Step>& steps = s.plan.steps;
  for (size_t n = steps.size(); n-- > 0; n = std::min(n, steps.size()))  // two may go at once
    if (steps[n].kind == StepKind::kCopy && steps[n].label == kWriteBack) rewrite(s, n);
}

}  // namespace flashover::planner
