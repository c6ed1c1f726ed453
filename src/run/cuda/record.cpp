#include "run/cuda/record.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace flashover::run::cuda {

CaptureHooks capture_hooks;

namespace {

// One a device: libraries keep workspaces by stream.
c10::Stream side_stream(int device) {
  static std::mutex mutex;
  static auto* streams = new std::map<int, c10::Stream>;
  std::lock_guard lock(mutex);
  auto it = streams->find(device);
  if (it == streams->end()) {
    const c10::impl::VirtualGuardImpl impl(c10::kCUDA);
    it = streams->emplace(device, impl.getNewStream(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device))))
             .first;
  }
  return it->second;
}

}  // namespace

struct Capture::State {
  void* graph = nullptr;
  std::optional<c10::StreamGuard> guard;
  c10::Stream user;
  explicit State(c10::Stream user) : user(user) {}
};

Capture::Capture(int device) {
  const c10::impl::VirtualGuardImpl impl(c10::kCUDA);
  const c10::Device where(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
  state_ = std::make_unique<State>(impl.getStream(where));
  const c10::Stream side = side_stream(device);
  // What was enqueued so far comes first: the statics were just made.
  c10::Event before(c10::kCUDA);
  before.record(state_->user);
  before.block(side);
  state_->guard.emplace(side);
  stream_ = current_stream(device);
  state_->graph = capture_hooks.begin();
}

Capture::~Capture() {
  if (state_->graph) capture_hooks.drop(state_->graph);
}

GraphExec Capture::finish(std::shared_ptr<void>& graph) {
  const GraphExec exec = capture_hooks.end(state_->graph);
  graph = std::shared_ptr<void>(std::exchange(state_->graph, nullptr), [](void* g) { capture_hooks.drop(g); });
  return exec;
}

bool is_capturing(Stream stream) {
  int status = 0;
  // The legacy default stream cannot record; asking it is an error while another stream does.
  return driver()->is_capturing(stream, &status) == 0 && status != 0;
}

Node last_node(Stream stream) {
  int status = 0;
  unsigned long long id = 0;
  Graph graph = nullptr;
  const Node* nodes = nullptr;
  const void* edges = nullptr;
  size_t count = 0;
  check(driver()->capture_info(stream, &status, &id, &graph, &nodes, &edges, &count), "cuStreamGetCaptureInfo");
  TORCH_CHECK(status == 1 && count == 1, "flashover: a recorded kernel has ", count, " nodes");
  return nodes[0];
}

}  // namespace flashover::run::cuda
