// Decides at load what must be kept, and keeps it before the first step.
#include "run/undo.h"

#include <ATen/Context.h>

#include <algorithm>
#include <mutex>

#include "run/tensor_memory.h"

namespace flashover::run {

using plan::StepKind;
using plan::StorageKind;
using plan::TensorId;

Undo::Undo(const Program& p, bool proven) : program_(p), proven_(proven) { plan_guards(); }

// The first call may fail anywhere. Later ones keep what is written before steps that may raise, if that is little, and
// of any size where indices are out of range, which is seen before the first step.
void Undo::plan_guards() {
  const plan::Plan& plan = program_.plan;
  size_t last_call = 0, last_risk = 0;  // one behind
  std::vector<size_t> unforeseen, foreseen;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const plan::Step& s = plan.steps[i];
    const bool checks = s.kind == StepKind::kLaunch && !plan.kernels[s.kernel].errors.empty();
    const bool calls = s.kind == StepKind::kCall && program_.instructions[i].makes < 0;
    if (checks || calls) last_call = i + 1;
    if (!checks && !(calls && plan::may_raise(s.op))) continue;
    last_risk = i + 1;
    (s.foreseen ? foreseen : unforeseen).push_back(i);
  }
  first_ = guard(last_call);
  if (last_risk == 0 || program_.device >= 0)
    return;  // (On CUDA a kernel cannot say that it failed; operators rarely do.)
  const int64_t little = little_bytes();
  for (size_t i : unforeseen) {
    Guarded g = guard(i + 1);
    if (kept_bytes(g) > little) break;
    later_ = std::move(g);
  }
  later_.needed = program_.random || !later_.kept.empty();
  failing_ = guard(last_risk);
  for (size_t i : foreseen)
    if (i >= program_.first_write && i >= later_.end)
      for (const plan::Bounds& b : plan.steps[i].bounds) add_range(b);
}

Undo::Guarded Undo::guard(size_t end) const {
  Guarded g{.end = end};
  for (size_t i = program_.first_write; i < end; ++i)
    plan::for_each_write(program_.plan.steps[i], [&](TensorId t) {
      const plan::Tensor& base = program_.root_tensor(t);
      if (base.storage == StorageKind::kInput && std::find(g.kept.begin(), g.kept.end(), base.index) == g.kept.end())
        g.kept.push_back(base.index);
    });
  g.needed = program_.random || !g.kept.empty();
  return g;
}

int64_t Undo::kept_bytes(const Guarded& g) const {
  int64_t bytes = 0;
  for (int32_t i : g.kept) bytes += program_.input_bytes[i];
  return bytes;
}

// Copies of so much are not felt beside what the steps write anyway. (Of inputs they may read or write small parts.)
int64_t Undo::little_bytes() const {
  constexpr int64_t kLeast = 256 << 10, kShare = 32;
  int64_t written = 0;
  for (const plan::Step& s : program_.plan.steps)
    plan::for_each_write(s, [&](TensorId t) {
      const TensorType& type = program_.plan.tensors[t].type;
      if (program_.root_tensor(t).storage != StorageKind::kInput && !type.opaque) written += program_.tensor_bytes[t];
    });
  return std::max(kLeast, written / kShare);
}

void Undo::add_range(const plan::Bounds& b) {
  const plan::Tensor& t = program_.plan.tensors[b.tensor];
  const Range range{t.index, t.type.dtype == DType::kI64, program_.tensor_bytes[b.tensor] / info(t.type.dtype).bytes,
                    b.lo, b.hi};
  for (Range& r : ranges_)
    if (r.input == range.input) {
      r.lo = std::max(r.lo, b.lo), r.hi = std::min(r.hi, b.hi);
      return;
    }
  ranges_.push_back(range);
}

template <typename Int>
static bool any_outside(const Int* p, int64_t count, int64_t lo, int64_t hi) {
  bool any = false;
  for (int64_t i = 0; i < count; ++i) any |= p[i] < lo || p[i] > hi;
  return any;
}

// An index check is going to fail, as far as can be seen. (Checks of elements that the program hides behind a condition
// do not: then it is no use looking.)
bool Undo::will_fail(c10::TensorImpl* const* inputs) const {
  constexpr int kMostFalseAlarms = 4;
  for (const Range& r : ranges_) {
    const void* data = data_of(inputs[r.input]);
    if (r.wide ? any_outside(static_cast<const int64_t*>(data), r.count, r.lo, r.hi)
               : any_outside(static_cast<const int32_t*>(data), r.count, r.lo, r.hi))
      return false_alarms_.load(std::memory_order_relaxed) < kMostFalseAlarms;
  }
  return false;
}

at::Generator Undo::generator() const {
  const int device = program_.device;
  return at::globalContext().defaultGenerator(
      device < 0 ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
}

void Undo::remember(Kept& kept, c10::TensorImpl* const* inputs) const {
  if (program_.random) {
    at::Generator g = generator();
    const std::lock_guard<std::mutex> lock(g.mutex());
    kept.generator = g.get_state();
  }
  for (int32_t i : kept.guarded->kept)
    kept.contents.push_back({i, borrow(inputs[i]), flat(program_, i, inputs[i]).clone()});
}

void Undo::restore(const Kept& kept) const {
  for (const Content& c : kept.contents) flat(program_, c.index, c.input.unsafeGetTensorImpl()).copy_(c.bytes);
  if (!kept.generator.defined()) return;
  at::Generator g = generator();
  const std::lock_guard<std::mutex> lock(g.mutex());
  g.set_state(kept.generator);
}

bool Undo::undo(const Kept& kept, size_t at) const {
  const bool acted = at >= program_.first_effect && at < SIZE_MAX;  // not to be done again
  const bool unwritten = at < program_.first_write && at < SIZE_MAX;
  if (acted || !(at < kept.guarded->end || (unwritten && (kept.guarded->needed || !program_.random)))) return false;
  restore(kept);
  return true;
}

void Undo::undo(const Kept& kept, Mismatch& m) const {
  if (kept.first) restore(kept);
  m.clean = m.clean || kept.first || m.step < program_.first_write;
}

}  // namespace flashover::run
