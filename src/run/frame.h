// A frame is the state that one call needs beside the program, kept for the next call when the call ends.
//
//   In        a program; the addresses of a call's arena, inputs, outputs and of what its steps make
//   Out       the pointer table and the kernels' parameters as the launches take them, wrappers of arena memory for
//             operators
//   Promises  at most one call has a frame; between calls a frame holds nothing of the user's. A thread finds the frame
//             that it left behind, unless another one that shares its slot took or replaced it: then a new one is made
//   Declines  nothing
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "run/cuda/kernel_graph.h"
#include "run/frozen.h"
#include "run/program.h"
#include "run/tensor_memory.h"

namespace flashover::run {

struct CallFrame {
  std::vector<void*> table;         // pointer arguments of all launches, one behind the other
  std::vector<at::Tensor> tensors;  // by TensorId: wrappers of arena memory, results of extern calls while they live
  std::vector<uint64_t> values;     // CUDA: numbers that launches take along, as they were at the launch
  std::vector<void*> params;        // CUDA: addresses of the parameters of all launches, one behind the other
  void* scratch = nullptr;          // CUDA: global scratch of the kernels that ask for it
  torch::jit::Stack stack;
  char* arena_base = nullptr;  // what the table and the wrappers were made for
  std::shared_ptr<const Frozen> frozen;
  const Frozen* patched_for = nullptr;
  size_t at = 0;  // the instruction that raised
  struct StretchWalk {
    int threads = 0;  // for which `with_team` is known; 0: it is not
    bool with_team = false;
  };
  std::vector<StretchWalk> stretches;            // how each of Program::stretches is walked
  std::unique_ptr<cuda::SequenceGraphs> graphs;  // CUDA
  int calls = 0;
};

std::unique_ptr<CallFrame> make_frame(const Program& p);

class FramePool {
 public:
  FramePool() = default;
  ~FramePool();
  FramePool(const FramePool&) = delete;

  // A frame for one call; goes back when the call ends.
  class Borrowed {
   public:
    Borrowed(FramePool& pool, const Program& p)
        : pool_(pool), frame_(pool.own_slot().exchange(nullptr, std::memory_order_acquire)) {
      if (!frame_) frame_ = make_frame(p).release();
    }
    ~Borrowed() { delete pool_.own_slot().exchange(frame_, std::memory_order_acq_rel); }
    Borrowed(const Borrowed&) = delete;
    CallFrame& operator*() { return *frame_; }

   private:
    FramePool& pool_;
    CallFrame* frame_;
  };

 private:
  static constexpr size_t kSlots = 8;
  std::atomic<CallFrame*>& own_slot() {
    static std::atomic<size_t> next{0};
    thread_local const size_t mine = next.fetch_add(1, std::memory_order_relaxed) % kSlots;
    return slots_[mine];
  }
  std::array<std::atomic<CallFrame*>, kSlots> slots_{};
};

// At the end of a call its frame lets go of what is the user's.
inline void release_tensors(const Program& p, CallFrame& frame) {
  frame.stack.clear();
  for (plan::TensorId t : p.extern_tensors) frame.tensors[t].reset();
}
struct ReleasesTensors {
  const Program& program;
  CallFrame& frame;
  ~ReleasesTensors() { release_tensors(program, frame); }
};

// Wrappers for the arena tensors that operators see, made when first needed.
at::Tensor& arena_tensor(const Program& p, CallFrame& frame, plan::TensorId t);

// The call's arena lies elsewhere than the last one's.
void rebase_arena(const Program& p, CallFrame& frame, char* base);
void patch_late(const Program& p, CallFrame& frame, plan::TensorId t, const at::Tensor& value);
// patches: sorted by input. (These two are part of every call, however small.)
inline void patch_inputs(CallFrame& frame, c10::TensorImpl* const* inputs, const std::vector<Patch>& patches) {
  int32_t last = -1;
  char* base = nullptr;
  for (const Patch& patch : patches) {
    if (patch.index != last) base = data_of(inputs[last = patch.index]);
    frame.table[patch.slot] = base + patch.bytes;
  }
}
inline void patch_outputs(const Program& p, CallFrame& frame, const std::vector<at::Tensor>& outputs) {
  int32_t last = -1;
  char* base = nullptr;
  for (const Patch& patch : p.output_patches) {
    if (patch.index != last) base = data_of(outputs[last = patch.index].unsafeGetTensorImpl());
    frame.table[patch.slot] = base + patch.bytes;
  }
}

}  // namespace flashover::run
