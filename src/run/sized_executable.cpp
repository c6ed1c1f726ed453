// The table is a list in order of use, with a hash map into it.
#include "run/sized_executable.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace flashover::run {
namespace {

void add_counters(Counters& sum, const Counters& c) {
  sum.calls += c.calls;
  sum.graph_replays += c.graph_replays;
}

}  // namespace

size_t Programs::HashValues::operator()(const Values& v) const noexcept {
  size_t h = v.size();
  for (int64_t x : v) h = (h ^ static_cast<size_t>(x)) * 0x9E3779B97F4A7C15ull;
  return h ^ (h >> 32);
}

std::shared_ptr<Executable> Programs::of(const Values& values) {
  {
    const std::lock_guard lock(mutex_);
    if (std::shared_ptr<Executable> known = look_up(values)) return known;
  }
  return make(values);
}

// Under the lock.
std::shared_ptr<Executable> Programs::look_up(const Values& values) {
  if (!entries_.empty() && entries_.front().values == values) return entries_.front().program;
  const auto it = by_values_.find(values);
  if (it == by_values_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, it->second);
  heavy_.store(it->second->program->heavy(), std::memory_order_relaxed);
  return it->second->program;
}

// Without the lock: another thread may make the same program meanwhile; the first one stays.
std::shared_ptr<Executable> Programs::make(Values values) {
  for (size_t i = 0; i < sized_.sources.size(); ++i)
    if (values[i] < sym::size_symbol(sized_.sources[i].symbol).range().lo)
      throw InternalError("run: size " + std::to_string(values[i]) + " for symbol " +
                          sym::size_symbol(sized_.sources[i].symbol).str());
  std::shared_ptr<Executable> made = make_(values, proven_.load(std::memory_order_relaxed));
  std::shared_ptr<Executable> oldest;  // goes when the lock is free
  const std::lock_guard lock(mutex_);
  if (std::shared_ptr<Executable> known = look_up(values)) return known;
  if (measured_) made->measure(true);
  entries_.push_front({values, made});
  by_values_.emplace(std::move(values), entries_.begin());
  heavy_.store(made->heavy(), std::memory_order_relaxed);
  if (entries_.size() > (sized_.records_graphs ? kMaxRecorded : kMaxPrograms)) {
    oldest = std::move(entries_.back().program);
    add_counters(gone_, oldest->counters());
    by_values_.erase(entries_.back().values);
    entries_.pop_back();
  }
  return made;
}

Counters Programs::counters() const {
  const std::lock_guard lock(mutex_);
  Counters sum = gone_;
  for (const Entry& e : entries_) add_counters(sum, e.program->counters());
  sum.frozen_runs = sized_.frozen->runs();
  sum.content_checks = sized_.frozen->content_checks();
  return sum;
}

void Programs::measure(bool on) {
  const std::lock_guard lock(mutex_);
  measured_ = on;
  for (const Entry& e : entries_) e.program->measure(on);
}

std::vector<double> Programs::times() const {
  const std::lock_guard lock(mutex_);
  return entries_.empty() ? std::vector<double>(sized_.plan->steps.size(), -1.0) : entries_.front().program->times();
}

Programs::Values Programs::last_values() const {
  const std::lock_guard lock(mutex_);
  return entries_.empty() ? Values() : entries_.front().values;
}

namespace {

class SizedExecutable final : public Executable {
 public:
  explicit SizedExecutable(std::unique_ptr<Programs> programs) : programs_(std::move(programs)) {}

  const plan::Plan& plan() const override { return programs_->plan(); }
  bool heavy() const override { return programs_->heavy(); }
  Counters counters() const override { return programs_->counters(); }
  void measure(bool on) override { programs_->measure(on); }
  std::vector<double> times() const override { return programs_->times(); }
  std::vector<int64_t> sizes() const override { return programs_->last_values(); }

  // (They are the same for all sizes: any will do.)
  std::vector<at::Tensor> frozen_tensors(c10::TensorImpl* const* inputs) override {
    constexpr int64_t kSome = 2;
    Programs::Values values;
    for (const plan::SizeSource& s : programs_->sources())
      values.push_back(std::max(kSome, sym::size_symbol(s.symbol).range().lo));
    return programs_->of(values)->frozen_tensors(inputs);
  }
  bool supply_frozen(c10::TensorImpl* const* inputs, std::vector<at::Tensor> tensors) override {
    if (plan().device.type != DeviceType::kCPU) return false;
    programs_->frozen().supply(inputs, std::move(tensors));
    return true;
  }

  void run(c10::TensorImpl* const* inputs, size_t count, std::vector<at::Tensor>& outputs) override {
    const std::shared_ptr<Executable> program = program_for(inputs, count);
    program->run(inputs, count, outputs);
    programs_->went_through();
  }
  void run_consuming(std::vector<at::Tensor>&& inputs, std::vector<at::Tensor>& outputs) override {
    std::vector<c10::TensorImpl*> pointers;
    for (const at::Tensor& t : inputs) pointers.push_back(t.unsafeGetTensorImpl());
    const std::shared_ptr<Executable> program = program_for(pointers.data(), pointers.size());
    program->run_consuming(std::move(inputs), outputs);
    programs_->went_through();
  }

 private:
  std::shared_ptr<Executable> program_for(c10::TensorImpl* const* inputs, size_t count) {
    if (count != plan().inputs.size())
      throw InternalError("run: " + std::to_string(count) + " inputs for a plan of " +
                          std::to_string(plan().inputs.size()));
    thread_local Programs::Values values;
    values.clear();
    for (const plan::SizeSource& s : programs_->sources()) {
      const auto parts = s.stride ? inputs[s.input]->strides() : inputs[s.input]->sizes();
      if (static_cast<size_t>(s.dim) >= parts.size()) throw InternalError("run: an input has too few dimensions");
      values.push_back(parts[static_cast<size_t>(s.dim)]);
    }
    return programs_->of(values);
  }

  const std::unique_ptr<Programs> programs_;
};

}  // namespace

std::shared_ptr<Executable> load_sized(std::unique_ptr<Programs> programs) {
  return std::make_shared<SizedExecutable>(std::move(programs));
}

}  // namespace flashover::run
