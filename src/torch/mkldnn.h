// What torch_cpu exports of mkldnn tensors; its own header needs ideep's, which wheels do not have.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace at::native {

TORCH_API int64_t nbytes_from_mkldnn(const Tensor& mkldnn_tensor);
TORCH_API void* data_ptr_from_mkldnn(const Tensor& mkldnn_tensor);

}  // namespace at::native
