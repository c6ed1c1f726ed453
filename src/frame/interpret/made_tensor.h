// Calls that make tensors of Python values, as calls that the trace records. Null without an error: another call.
#pragma once
#include "frame/interpret/interpreter.h"

namespace flashover::frame {

// torch.tensor(number) and torch.as_tensor(number), also of lists of them.
PyObject* tensor_of_number(Interpreter& in, PyObject* f, PyObject* const* args, PyObject* kwnames);
// torch.LongTensor([1, 2]) and its like: torch.tensor of their dtype on their device; these and torch.Tensor of an array
// of numpy: torch.as_tensor. (Sizes make a tensor that nobody has written; they stay torch's own.)
PyObject* call_tensor_type(Interpreter& in, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames);
// tensor.new_tensor(data): torch.tensor(data) of its dtype on its device. (Torch's own wants to know the backend's
// key.)
PyObject* call_new_tensor(Interpreter& in, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames);
// tensor.new(2, 3) and tensor.new(other.shape): torch.empty of its dtype on its device. (Of data it stays torch's own.)
PyObject* call_new_of_sizes(Interpreter& in, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames);
// torch.tensor([x.sum(), 1, ...]): lists of tensors without dimensions, stacked. (Torch's own asks for their numbers.)
PyObject* call_tensor_of_tensors(Interpreter& in, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames);
// torch.full(sizes, tensor), full_like and new_full: made of nothing and filled with the tensor.
PyObject* call_full_of_tensor(Interpreter& in, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames);

}  // namespace flashover::frame
