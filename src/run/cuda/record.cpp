// Streams and memory pools that recordings share, and the handle of the finished graph.
#include "run/cuda/record.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "run/cuda/stream.h"

namespace flashover::run::cuda {

CaptureHooks capture_hooks;

namespace {

// What graphs that replay on one stream share. Libraries keep workspaces by the stream that records, so those of
// graphs that may run at the same time must differ.
struct Shared {
  c10::Stream side;
  std::weak_ptr<void> pool;
  std::mutex replays;
};
Shared& shared_by_graphs_of(c10::Stream user) {
  static std::mutex mutex;
  static auto* all = new std::map<std::pair<c10::DeviceIndex, c10::StreamId>, std::unique_ptr<Shared>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Shared>& shared = (*all)[{user.device_index(), user.id()}];
  if (!shared) {
    const c10::impl::VirtualGuardImpl impl(c10::kCUDA);
    shared.reset(new Shared{impl.getNewStream(user.device()), {}, {}});
  }
  return *shared;
}

// A stream waits for what another has been given so far.
void wait(c10::Stream stream, c10::Stream other) {
  c10::Event event(c10::kCUDA);
  event.record(other);
  event.block(stream);
}

void drop(void* object) {  // perhaps while this thread records another graph
  const Relaxed relaxed;
  capture_hooks.drop(object);
}

}  // namespace

struct StreamCapture::State {
  std::shared_ptr<void> pool;
  void* graph = nullptr;
  std::optional<c10::StreamGuard> guard;
  c10::Stream user, side;
  State(c10::Stream user, c10::Stream side) : user(user), side(side) {}
};

StreamCapture::StreamCapture(int device, bool own_memory) {
  const c10::Stream user = torch_stream(device);
  Shared& shared = shared_by_graphs_of(user);
  state_ = std::make_unique<State>(user, shared.side);
  wait(state_->side, user);  // what was enqueued so far comes first: the statics were just made
  state_->guard.emplace(state_->side);
  stream_ = current_stream(device);
  if (!own_memory) state_->pool = shared.pool.lock();
  if (!state_->pool) {
    state_->pool = std::shared_ptr<void>(capture_hooks.pool(), drop);
    shared.pool = state_->pool;
  }
  state_->graph = capture_hooks.begin(state_->pool.get());
}

StreamCapture::~StreamCapture() {
  if (!state_->graph) return;
  capture_hooks.abandon(state_->graph);
  drop(state_->graph);
}

GraphExec StreamCapture::finish(std::shared_ptr<void>& graph) {
  const GraphExec exec = capture_hooks.end(state_->graph);
  graph = std::shared_ptr<void>(std::exchange(state_->graph, nullptr), [pool = state_->pool](void* g) { drop(g); });
  wait(state_->user, state_->side);  // torch sets up its random generator for graphs on the stream that records
  return exec;
}

void forget_pinned_pool(std::pair<uint64_t, uint64_t> pool, bool began) {
  at::HostAllocator* pinned = at::getHostAllocator(c10::kCUDA);
  bool counted = began;
  try {
    pinned->end_allocate_to_pool(pool);
    counted = true;
  } catch (const c10::Error&) {  // it had come to its end there
  }
  try {
    if (counted) pinned->release_pool(pool);
  } catch (const std::exception&) {  // or had not begun
  }
}

std::mutex& replays_on_current_stream(int device) { return shared_by_graphs_of(torch_stream(device)).replays; }

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
