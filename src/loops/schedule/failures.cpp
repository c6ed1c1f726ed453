// Moves writes of inputs behind what may raise, and finds index checks whose answer is known before the first step.
#include "loops/schedule/failures.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "graph/graph.h"
#include "ops/args.h"
#include "ops/names.h"
#include "ops/ops.h"

namespace flashover::loops {
namespace {

using plan::Home;
using plan::Step;
using plan::StepKind;
using plan::TensorId;

bool is_integer(DType d) { return d == DType::kI64 || d == DType::kI32; }

constexpr int64_t kMost = INT64_MAX;  // no bound

// Adds that the elements of t are in [lo, hi]. False: what t holds is not known before the first step, or never there.
bool bound(const plan::Plan& p, TensorId t, int64_t lo, int64_t hi, std::vector<plan::Bounds>& all) {
  const plan::Tensor& tensor = p.tensors[t];
  if (!is_integer(tensor.type.dtype) || tensor.home != Home::kInput ||
      !ops::is_dense(tensor.type.sizes, tensor.type.strides))
    return false;
  if (lo == -kMost && hi == kMost) return true;
  auto known = std::find_if(all.begin(), all.end(), [&](const plan::Bounds& b) { return b.tensor == t; });
  if (known == all.end()) known = all.insert(all.end(), {t, -kMost, kMost});
  known->lo = std::max(known->lo, lo);
  known->hi = std::min(known->hi, hi);
  return known->lo <= known->hi;
}

// What inputs' elements must be so that values of a body are within given bounds.
class Foresight {
 public:
  Foresight(const Stage& stage, const plan::Plan& p, const std::vector<TensorId>& reads, std::vector<plan::Bounds>& out)
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

bool raises(const Step& s, const std::vector<Kernel>& kernels) {
  if (s.kind == StepKind::kLaunch) return !kernels[s.kernel].errors.empty() && !s.foreseen;
  return s.kind == StepKind::kCall && !s.foreseen && !plan::takes_memory(s) && plan::may_raise(s.op);
}

// By step: the earlier ones that must stay before it.
std::vector<std::vector<int32_t>> dependencies(const plan::Plan& p) {
  std::vector<std::vector<int32_t>> needs(p.steps.size());
  struct Access {
    int32_t written = -1;
    std::vector<int32_t> read;  // since then
  };
  std::vector<Access> access(p.tensors.size());
  int32_t last_effect = -1;
  for (size_t i = 0; i < p.steps.size(); ++i) {
    const Step& s = p.steps[i];
    const auto need = [&](int32_t step) {
      if (step >= 0 && step != static_cast<int32_t>(i)) needs[i].push_back(step);
    };
    const auto reads = [&](TensorId t) {
      Access& a = access[plan::root(p, t)];
      need(a.written);
      a.read.push_back(static_cast<int32_t>(i));
    };
    const auto writes = [&](TensorId t) {
      Access& a = access[plan::root(p, t)];
      need(a.written);
      for (int32_t r : a.read) need(r);
      a = {static_cast<int32_t>(i), {}};
    };
    const ops::Op* op = s.kind == StepKind::kCall ? ops::find(s.op) : nullptr;
    plan::for_each_read(s, reads);
    for (size_t k = 0; op && k < s.args.size() && k < 32; ++k)
      if (op->mutates >> k & 1) graph::for_each_ref(s.args[k], writes);
    plan::for_each_write(s, writes);
    if (op && op->once()) {
      need(last_effect);
      last_effect = static_cast<int32_t>(i);
    }
  }
  return needs;
}

}  // namespace

void foresee(const Kernel& k, const plan::Plan& p, Step& launch) {
  bool all = !k.errors.empty();
  std::vector<plan::Bounds> bounds;
  for (const Stage& s : k.stages)
    for (const Instr& in : s.body) {
      if (in.op != Op::k_indirect || in.slot < 0) continue;
      Foresight f(s, p, launch.reads, bounds);
      all = all && in.hi.is_const() && f.within(in.args[0], in.wrap ? -in.hi.value() : 0, in.hi.value() - 1);
    }
  launch.foreseen = all;
  if (all) launch.bounds = std::move(bounds);
}

void foresee(const plan::Plan& p, Step& call) {
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

void write_late(plan::Plan& p, const std::vector<Kernel>& kernels) {
  size_t end = p.steps.size();
  while (end > 0 && !raises(p.steps[end - 1], kernels)) --end;
  const auto writes_input = [&](const Step& s) {
    return std::any_of(s.writes.begin(), s.writes.end(),
                       [&](TensorId t) { return t >= 0 && p.tensors[plan::root(p, t)].home == Home::kInput; });
  };
  const auto stop = p.steps.begin() + static_cast<std::ptrdiff_t>(end);
  if (std::none_of(p.steps.begin(), stop, writes_input)) return;
  const std::vector<std::vector<int32_t>> needs = dependencies(p);
  std::vector<bool> needed(end), late(end);  // for what may raise; because of what is late
  for (size_t i = end; i-- > 0;) {
    needed[i] = needed[i] || raises(p.steps[i], kernels);
    if (needed[i])
      for (int32_t n : needs[i]) needed[n] = true;
  }
  for (size_t i = 0; i < end; ++i)
    late[i] = !needed[i] && (writes_input(p.steps[i]) ||
                             std::any_of(needs[i].begin(), needs[i].end(), [&](int32_t n) { return late[n]; }));
  std::vector<Step> first, then;
  for (size_t i = 0; i < end; ++i) (late[i] ? then : first).push_back(std::move(p.steps[i]));
  first.insert(first.end(), std::make_move_iterator(then.begin()), std::make_move_iterator(then.end()));
  std::move(first.begin(), first.end(), p.steps.begin());
}

}  // namespace flashover::loops
