// One listener for the process.
#include "base/diagnostics.h"

#include <atomic>

namespace flashover {

static std::atomic<Listener> current_listener{nullptr};

void set_listener(Listener listener) { current_listener.store(listener, std::memory_order_release); }

void say(const std::string& text) noexcept {
  if (const Listener listener = current_listener.load(std::memory_order_acquire)) listener(text);
}

}  // namespace flashover
