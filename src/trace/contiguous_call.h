// Contract of trace, for frame: Python's Tensor.contiguous over sizes that are symbols.
//   In        a call of that method, of a tensor of a trace
//   Out       the operator aten::contiguous is called, also where the tensor is contiguous
//   Counts on torch's method asking its tensor whether it is contiguous, and no other tensor, before the operator
#pragma once
#include <Python.h>

namespace flashover::trace {

// While it lives, on its thread, until the operator is reached, a tensor whose sizes are symbols says that it is not
// contiguous. Torch's method asks to save the call of the operator; an answer would be a guard, and one that leaves out
// sizes of 1. What the operator does (intercept.cpp) says it without. Where a __torch_function__ is between the method
// and the operator nothing is done.
class ContiguousCall {
 public:
  explicit ContiguousCall(PyObject* tensor);
  ~ContiguousCall();
  ContiguousCall(const ContiguousCall&) = delete;
  static void arrived();  // at the operator

 private:
  bool before_;
};

// The program asks whether two tensors are one object: a copy that eager would not have made answers otherwise.
void tensors_are_compared();

}  // namespace flashover::trace
