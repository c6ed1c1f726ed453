// The memory of one CUDA call; freed when its kernels are enqueued, since later work of the stream comes after them.
//
//   In        a number of bytes; 0 is no memory
//   Out       memory of torch's caching allocator, on the current stream
//   Promises  freed when it goes out of scope
//   Declines  no memory left: c10::OutOfMemoryError
#pragma once
#include <c10/core/Allocator.h>

#include "run/cuda/driver.h"

namespace flashover::run::cuda {

struct CallMemory {
  c10::DataPtr data;
  explicit CallMemory(size_t bytes) {
    if (bytes) data = allocator()->allocate(bytes);
  }
  char* get() const { return static_cast<char*>(data.get()); }
};

}  // namespace flashover::run::cuda
