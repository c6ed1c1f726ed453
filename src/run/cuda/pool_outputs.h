// Outputs in the memory of a recorded graph's pool, handed out without a copy: only the caller's own plans see
// them, and the graph does not replay while one is alive.
//
//   In        a tensor that a recording owns
//   Out       a tensor object and storage of their own over its memory
//   Promises  the recording's memory lives as long as the tensor; `live` counts the tensors that are out, and falls
//             only when all use of one has been enqueued
//   Declines  nothing
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>

#include <atomic>
#include <memory>

namespace flashover::run::cuda {

at::Tensor pool_output(const at::Tensor& of, const std::shared_ptr<std::atomic<int>>& live);
bool is_pool_output(c10::TensorImpl* impl);

// What the recordings of all plans keep on a device for such outputs, in bytes; this one's while it lives.
class PoolReservation {
 public:
  static int64_t total(int device) { return of(device).load(std::memory_order_relaxed); }
  PoolReservation(int device, int64_t bytes) : device_(device), bytes_(bytes) { of(device_) += bytes_; }
  ~PoolReservation() { of(device_) -= bytes_; }
  PoolReservation(const PoolReservation&) = delete;

 private:
  static std::atomic<int64_t>& of(int device);
  int device_;
  int64_t bytes_;
};

}  // namespace flashover::run::cuda
