// Memory that outlives the call that wrote it, seen by calls on other streams.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <mutex>
#include <vector>

#include "run/cuda/driver.h"

namespace flashover::run::cuda {

c10::Stream torch_stream(int device);  // torch's current one

class ReadyPoint {
 public:
  // After everything enqueued so far on torch's current stream of `device`.
  explicit ReadyPoint(int device);
  // Before work of `stream`, torch's current one, uses `tensors`: that work waits, and the memory lives until it is
  // done. The first use on a stream costs something, later ones a compare.
  void enter(Stream stream, const std::vector<at::Tensor>& tensors);

 private:
  const int device_;
  const Stream home_;
  c10::Event event_;
  std::mutex mutex_;
  std::vector<Stream> entered_;
};

}  // namespace flashover::run::cuda
