// The points where long work can be interrupted.
#include "base/interrupt.h"

#include <chrono>
#include <utility>

namespace flashover {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kInterval = std::chrono::milliseconds(20);
constexpr auto kTurn = std::chrono::milliseconds(1);  // of unattended work, before the host has its own again

// Whether the host is to be asked now.
bool due(Clock::duration interval = kInterval) {
  thread_local Clock::time_point last{};
  const auto now = Clock::now();
  if (held_signals.load(std::memory_order_relaxed) == 0 && now - last < interval) return false;
  last = now;
  return true;
}

thread_local const Unattended* unattended = nullptr;

}  // namespace

void work_unattended(const Unattended* work) { unattended = work; }

HostHooks host_hooks;
std::atomic<uint64_t> held_signals{0};

void check_interrupt() {
  if (unattended) {
    if (!due(kTurn)) return;
    if (unattended->over()) throw Interrupted{};
    const HostReleased pause;
    return;
  }
  if (host_hooks.interrupted && due() && host_hooks.interrupted()) throw Interrupted{};
}

HostReleased::HostReleased() {
  if (!host_hooks.release) return;
  state_ = host_hooks.release();
  released_ = true;
}

HostReleased::~HostReleased() { take_back(); }

void HostReleased::take_back() {
  if (std::exchange(released_, false)) host_hooks.acquire(std::exchange(state_, nullptr));
}

void HostReleased::check() {
  if (unattended) {
    if (!unattended->over()) return;
    take_back();
    throw Interrupted{};
  }
  if (!host_hooks.interrupted || !due()) return;
  take_back();
  if (host_hooks.interrupted()) throw Interrupted{};
  state_ = host_hooks.release();
  released_ = true;
}

}  // namespace flashover
