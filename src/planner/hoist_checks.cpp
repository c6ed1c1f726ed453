// Follows indices back through a kernel's body to the inputs' elements that they are made of.
#include "planner/rewrites.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "ops/args.h"
#include "ops/names.h"

namespace flashover::planner {
namespace {

using loops::Id;
using loops::Instr;
using loops::Kernel;
using loops::Op;
using loops::Stage;
using plan::Step;
using plan::StepKind;
using plan::StorageKind;
using plan::TensorId;

bool is_integer(DType d) { return d == DType::kI64 || d == DType::kI32; }

constexpr int64_t kMost = INT64_MAX;  // no bound

// Adds that the elements of t are in [lo, hi]. False: what t holds is not known before the first step, or no value
// could be in the bounds.
bool bound(const plan::Plan& p, TensorId t, int64_t lo, int64_t hi, std::vector<plan::Bounds>& all) {
  const plan::Tensor& tensor = p.tensors[t];
  if (!is_integer(tensor.type.dtype) || tensor.storage != StorageKind::kInput ||
      !ops::is_dense(tensor.type.sizes, tensor.type.strides))
    return false;
  if (lo == -kMost && hi == kMost) return true;
  auto bounds = std::find_if(all.begin(), all.end(), [&](const plan::Bounds& b) { return b.tensor == t; });
  if (bounds == all.end()) bounds = all.insert(all.end(), {t, -kMost, kMost});
  bounds->lo = std::max(bounds->lo, lo);
  bounds->hi = std::min(bounds->hi, hi);
  return bounds->lo <= bounds->hi;
}

// What inputs' elements must be so that values of a body are within given bounds.
class Bounding {
 public:
  Bounding(const Stage& stage, const plan::Plan& p, const std::vector<TensorId>& reads, std::vector<plan::Bounds>& out)
      : body_(stage.body), p_(p), reads_(reads), out_(out) {}

  // False: that cannot be told.
  bool within(Id id, int64_t lo, int64_t hi) {
    const Instr& in = body_[id];
    switch (in.op) {
      case Op::k_const:
        return is_integer(in.dtype) && lo <= in.integer && in.integer <= hi;
      case Op::k_index:
        return in.index.range().lo >= lo && in.index.range().hi <= hi;
      case Op::k_convert:
        if (!is_integer(in.dtype) || !is_integer(body_[in.args[0]].dtype)) return false;
        if (in.dtype == DType::kI64) return within(in.args[0], lo, hi);
        return within(in.args[0], std::max<int64_t>(lo, INT32_MIN), std::min<int64_t>(hi, INT32_MAX));
      case Op::k_add:
        if (const auto c = constant(in.args[1])) return within(in.args[0], shift(lo, -*c), shift(hi, -*c));
        if (const auto c = constant(in.args[0])) return within(in.args[1], shift(lo, -*c), shift(hi, -*c));
        return false;
      case Op::k_sub:
        if (const auto c = constant(in.args[1])) return within(in.args[0], shift(lo, *c), shift(hi, *c));
        return false;
      case Op::k_minimum:
        if (const auto c = constant(in.args[1]); c && *c >= lo) return within(in.args[0], lo, *c <= hi ? kMost : hi);
        return within(in.args[0], lo, hi) && within(in.args[1], lo, hi);
      case Op::k_maximum:
        if (const auto c = constant(in.args[1]); c && *c <= hi) return within(in.args[0], *c >= lo ? -kMost : lo, hi);
        return within(in.args[0], lo, hi) && within(in.args[1], lo, hi);
      case Op::k_load:
        return load(in, lo, hi);
      default:
        return false;
    }
  }

 private:
  static int64_t shift(int64_t bound, int64_t by) { return bound == kMost || bound == -kMost ? bound : bound + by; }
  std::optional<int64_t> constant(Id id) const {
    constexpr int64_t kLarge = int64_t{1} << 32;
    const Instr& in = body_[id];
    if (in.op != Op::k_const || !is_integer(in.dtype) || std::abs(in.integer) > kLarge) return std::nullopt;
    return in.integer;
  }
  bool load(const Instr& in, int64_t lo, int64_t hi) {
    if (in.slot >= static_cast<int32_t>(reads_.size())) return false;  // written too
    return bound(p_, reads_[in.slot], lo, hi, out_);
  }

  const std::vector<Instr>& body_;
  const plan::Plan& p_;
  const std::vector<TensorId>& reads_;
  std::vector<plan::Bounds>& out_;
};

// Sets foreseen and bounds of a launch of k.
void hoist(const Kernel& k, const plan::Plan& p, Step& launch) {
  bool all = !k.errors.empty();
  std::vector<plan::Bounds> bounds;
  for (const Stage& s : k.stages)
    for (const Instr& in : s.body) {
      if (in.op != Op::k_indirect || in.slot < 0) continue;
      Bounding f(s, p, launch.reads, bounds);
      all = all && in.hi.is_const() && f.within(in.args[0], in.wrap ? -in.hi.value() : 0, in.hi.value() - 1);
    }
  launch.foreseen = all;
  if (all) launch.bounds = std::move(bounds);
}

// The same of calls of index_copy and index_put.
void hoist(const plan::Plan& p, Step& call) {
  std::vector<plan::Bounds> bounds;
  const auto within = [&](TensorId index, const TensorType& t, int64_t dim, bool wraps) {
    if (dim < 0) dim += static_cast<int64_t>(t.rank());
    if (dim < 0 || dim >= static_cast<int64_t>(t.rank()) || !t.sizes[dim].is_const()) return false;
    const int64_t size = t.sizes[dim].value();
    return bound(p, index, wraps ? -size : 0, size - 1, bounds);
  };
  const auto type = [&]() -> const TensorType& { return p.tensors[ops::as_value(call.args[0])].type; };
  if (call.op == op::index_copy) {
    call.foreseen = within(ops::as_value(call.args[2]), type(), ops::as_int(call.args[1]), false);
  } else if (call.op == op::index_put) {
    call.foreseen = true;
    const RefList list = ops::as_values(call.args[1]);
    for (size_t d = 0; d < list.size(); ++d)
      if (list[d].id != kNoValue)
        call.foreseen = call.foreseen && within(list[d].id, type(), static_cast<int64_t>(d), true);
  }
  if (call.foreseen) call.bounds = std::move(bounds);
}

}  // namespace

void hoist_checks(Schedule& s, const Options& /*o*/) {
  for (Step& step : s.plan.steps) {
    if (step.kind == StepKind::kLaunch) hoist(s.kernels[step.kernel], s.plan, step);
    if (step.kind == StepKind::kCall) hoist(s.plan, step);
  }
}

}  // namespace flashover::planner
