// Recording what a call enqueues as a CUDA graph. Torch's own graph object does it (its memory pool, its streams),
// reached through Python when a graph is made; replays need no Python.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "run/cuda/driver.h"

namespace flashover::run::cuda {

// Set by the Python side. All of them throw on failure, but the last two.
struct CaptureHooks {
  void* (*pool)() = nullptr;             // memory for graphs
  void* (*begin)(void* pool) = nullptr;  // torch's current stream starts to record into a new graph; returns the graph
  GraphExec (*end)(void* graph) = nullptr;  // it stops; the graph is ready to be launched
  void (*replay)(void* graph) = nullptr;    // on torch's current stream, with the generator's next random numbers
  void (*abandon)(void* graph) = nullptr;   // stops one that was never ended
  void (*drop)(void* object) = nullptr;     // a graph or a pool
};
extern CaptureHooks capture_hooks;

// Records while it lives, on a stream of its own. Graphs that replay on the same stream share the memory of what
// operators allocate. So what a graph's operators made is lost when another one replays, even if it is held as a
// tensor: that one may have been recorded when the memory was free. Only a graph with `own_memory` keeps what is held:
// nothing was recorded into its memory before.
class StreamCapture {
 public:
  StreamCapture(int device, bool own_memory);
  ~StreamCapture();
  StreamCapture(const StreamCapture&) = delete;
  Stream stream() const { return stream_; }
  GraphExec finish(std::shared_ptr<void>& graph);  // `graph` keeps the memory that the graph uses

 private:
  struct State;
  std::unique_ptr<State> state_;
  Stream stream_ = nullptr;
};

// After a capture into a pool that failed: torch's allocator of pinned memory records it no longer. began: not at its
// start.
void forget_pinned_pool(std::pair<uint64_t, uint64_t> pool, bool began);
// To be held from a replay on torch's current stream until what the graph made has been used.
std::mutex& replays_on_current_stream(int device);
bool is_capturing(Stream stream);
// The node of the kernel that was launched last on a stream that records.
Node last_node(Stream stream);

}  // namespace flashover::run::cuda
