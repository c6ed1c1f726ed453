// Recording what a call enqueues as a CUDA graph. Torch's own graph object does it (its memory pool, its streams),
// reached through Python when a graph is made; replays need no Python.
#pragma once
#include <memory>
#include <string>

#include "run/cuda/driver.h"

namespace flashover::run::cuda {

// Set by the Python side. All of them throw on failure.
struct CaptureHooks {
  void* (*begin)() = nullptr;  // torch's current stream starts to record into a new graph; returns the graph
  GraphExec (*end)(void* graph) = nullptr;  // it stops; the graph is ready to be launched
  void (*drop)(void* graph) = nullptr;      // also one that was never ended
};
extern CaptureHooks capture_hooks;

// Records while it lives, on a stream of its own.
class Capture {
 public:
  explicit Capture(int device);
  ~Capture();
  Capture(const Capture&) = delete;
  Stream stream() const { return stream_; }
  GraphExec finish(std::shared_ptr<void>& graph);  // `graph` keeps the memory that the graph uses

 private:
  struct State;
  std::unique_ptr<State> state_;
  Stream stream_ = nullptr;
};

bool is_capturing(Stream stream);
// The node of the kernel that was launched last on a stream that records.
Node last_node(Stream stream);

}  // namespace flashover::run::cuda
