// Writes that meet what they read, by which eager's result depends on the order of its loop.
#pragma once
#include <ATen/core/Tensor.h>

namespace flashover::trace {

// Whether two views of one memory have a byte in common. True also where that would take long to find out.
bool may_meet(const c10::TensorImpl& a, const c10::TensorImpl& b);

// Whether an element-by-element operator, in the order in which memory lies, reads every element of `read` before it
// writes that memory through `written`: the same steps, further on.
bool is_read_ahead(const c10::TensorImpl& written, const c10::TensorImpl& read);

}  // namespace flashover::trace
