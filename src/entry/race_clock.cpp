// When calls start and end, and what makes their times useless.
#include "entry/race_clock.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/GradMode.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <thread>

#include "entry/entry.h"
#include "run/cuda/driver.h"
#include "run/cuda/record.h"

namespace flashover::entry {
namespace {

// False: a graph is recorded, and nothing may be waited for.
bool devices_are_done() {
  const auto& hooks = at::detail::getCUDAHooks();
  if (!hooks.hasCUDA()) return true;
  const c10::DeviceIndex device = hooks.getCurrentDevice();
  if (!hooks.hasPrimaryContext(device)) return true;
  if (run::cuda::is_capturing(run::cuda::current_stream(device))) return false;
  hooks.deviceSynchronize(device);
  return true;
}

bool switched_off_for_all() {
  const char* value = std::getenv("FLASHOVER_RETREAT");
  return value != nullptr && std::string_view(value) == "0";
}

}  // namespace

bool may_race(const Settings& settings, const Entry& entry) {
  const std::string which = option(settings.options.values, "retreat");
  if (which == "never" || settings.backend != "flashover" || settings.custom || settings.fullgraph || settings.forced)
    return false;
  // (Eager's bits of a row change with the batch; what a race finds is no choice that a file could keep.)
  if (settings.options.flag("batch_invariant") || !option(settings.options.values, "choices_file").empty())
    return false;
  if (switched_off_for_all() || at::globalContext().deterministicAlgorithms()) return false;
  if (entry.kind == Entry::Kind::kEager)
    return !entry.alone && !entry.trivial && entry.cause == EagerCause::kDeclined && !entry.capture.raised;
  return !entry.capture.yields && (which == "always" || !entry.capture.frames.empty());
}

RaceClock::Moment RaceClock::now() {
  const bool usable = devices_are_done();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  return {seconds, std::hash<std::thread::id>()(std::this_thread::get_id()), counters().graphs, usable};
}

void RaceClock::measure(const Moment& end) {
  if (!nested_ && start_.usable && end.usable && start_.thread == end.thread && start_.graphs == end.graphs)
    race_.note(side_, end.seconds - start_.seconds);
  else
    race_.spoil();
}

Race::Side RaceClock::start(int64_t call) {
  if (running_++ > 0) {
    nested_ = true;
    return Race::Side::kCompiled;
  }
  resting_ = !open_ && race_.rests();
  if (resting_) return Race::Side::kCompiled;
  const Moment moment = now();
  if (open_) {
    if (call != call_ + 1) nested_ = true;  // another version had calls meanwhile
    measure(moment);
  }
  open_ = nested_ = false;
  side_ = race_.next();
  start_ = moment;
  call_ = call;
  return side_;
}

void RaceClock::stop() {
  if (--running_ > 0 || resting_) return;
  if (c10::GradMode::is_enabled())
    open_ = true;
  else
    measure(now());
}

}  // namespace flashover::entry
