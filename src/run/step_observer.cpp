// Opens and closes a profiler's ranges around steps, or notes the time of each.
#include "run/step_observer.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace flashover::run {

std::string name_of(const plan::Plan& p, const plan::Step& s) {
  switch (s.kind) {
    case plan::StepKind::kCall:
      return s.op;
    case plan::StepKind::kCopy:
      return "copy";
    case plan::StepKind::kRelease:
      return "release";
    case plan::StepKind::kLaunch:
      break;
  }
  const plan::Kernel& k = p.kernels[static_cast<size_t>(s.kernel)];
  if (k.cuda.threads > 0) return k.symbol;  // Triton's functions say what they do
  const std::string what = s.label.substr(0, s.label.find(' '));
  return what.empty() ? k.symbol : what + " " + k.symbol;
}

std::vector<std::string> modules_of(std::string_view label) {
  std::vector<std::string> out;
  const size_t in = label.rfind(" in ");
  if (in == std::string_view::npos) return out;
  const std::string_view path = label.substr(in + 4);
  for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1))
    if (dot > 0) out.emplace_back(path.substr(0, dot));
  if (!path.empty()) out.emplace_back(path);
  return out;
}

void Times::add(const std::vector<double>& seconds) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < least_.size() && i < seconds.size(); ++i)
    if (seconds[i] >= 0) least_[i] = least_[i] < 0 ? seconds[i] : std::min(least_[i], seconds[i]);
}
std::vector<double> Times::get() const {
  const std::lock_guard lock(mutex_);
  return least_;
}

StepObserver::StepObserver(const plan::Plan& p, bool profiled, Times* times, int device)
    : plan_(p), profiled_(profiled), times_(times), device_(device) {
  if (times_) seconds_.assign(p.steps.size(), -1);
  if (times_ && device_ >= 0) events_.reserve(p.steps.size() + 1);
}

StepObserver::~StepObserver() {
  kernel_.reset();
  while (!modules_.empty()) modules_.pop_back();  // the innermost first
}

void StepObserver::record() {
  const c10::Device where(c10::kCUDA, static_cast<c10::DeviceIndex>(device_));
  events_.emplace_back(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  events_.back().record(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(where));
}

void StepObserver::begin(size_t step) {
  const plan::Step& s = plan_.steps[step];
  if (profiled_ && s.kind != plan::StepKind::kRelease) {
    const std::vector<std::string> modules = modules_of(s.label);
    const auto same = static_cast<size_t>(
        std::mismatch(names_.begin(), names_.end(), modules.begin(), modules.end()).first - names_.begin());
    while (modules_.size() > same) modules_.pop_back();
    names_.resize(same);
    for (size_t i = same; i < modules.size(); ++i) {
      names_.push_back(modules[i]);
      modules_.emplace_back(at::RecordScope::USER_SCOPE).before(modules[i]);
    }
    if (s.kind != plan::StepKind::kCall) kernel_.emplace(at::RecordScope::FUNCTION).before(name_of(plan_, s));
  }
  if (!times_) return;
  if (device_ < 0)
    start_ = std::chrono::steady_clock::now();
  else if (events_.empty())
    record();
}

void StepObserver::end(size_t step) {
  if (times_) {
    if (device_ < 0)
      seconds_[step] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    else
      record();
  }
  kernel_.reset();
}

void StepObserver::finish() {
  if (!times_) return;
  if (device_ >= 0 && !events_.empty()) {
    events_.back().synchronize();
    for (size_t i = 0; i < seconds_.size() && i + 1 < events_.size(); ++i)
      seconds_[i] = events_[i].elapsedTime(events_[i + 1]) / 1e3;
  }
  times_->add(seconds_);
}

}  // namespace flashover::run
