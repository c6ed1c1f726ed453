// What torch_cpu exports of mkldnn tensors; its own header needs ideep's, which wheels do not have.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace at::native {

TORCH_API int64_t nbytes_from_mkldnn(const Tensor& mkldnn_tensor);
TORCH_API void* data_ptr_from_mkldnn(const Tensor& mkldnn_tensor);
// Over memory that stays; metadata: what mkldnn::_get_mkldnn_serialized_md says of such a tensor.
TORCH_API Tensor mkldnn_tensor_from_data_ptr(void* data, IntArrayRef dims, ScalarType dtype, Device device,
                                             const uint8_t* metadata, int64_t metadata_bytes);

}  // namespace at::native
