// torch's CUDA generator for kernels that draw for themselves: flashover.philox_state(increment, device) gives its seed
// and offset as i64[2] on the device and moves it on, as eager's operators do. While a graph is recorded the numbers
// are read where torch puts them before each replay.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace flashover::run::cuda {

bool reaches_generator();  // this torch has one, with the function we ask
at::Tensor philox_state(int64_t increment, c10::Device device);

}  // namespace flashover::run::cuda
