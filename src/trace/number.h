// A Python number that differs from call to call, in calls of torch: a torch.SymFloat or SymInt whose node knows the
// graph's input. Torch's argument parser hands it on as it is where a Scalar or a number in a tensor's place is meant;
// whoever needs the value itself asks the node, and the number keeps that value from then on (Session::number_read).
#pragma once
#include <ATen/core/ivalue.h>

#include <optional>

#include "trace/trace.h"

namespace flashover::trace {

// torch.SymFloat / SymInt. New reference.
PyObject* make_symbol(ValueId value, PyObject* number);
// The number's value that a SymFloat / SymInt object stands for; kNoValue for others.
ValueId symbol_value(PyObject* symbol);
// The same for a Scalar argument, and for a wrapped number made of a symbol.
ValueId symbol_value(const c10::IValue& scalar);
ValueId symbol_value(const at::Tensor& wrapped);
// The size that a wrapped number was made of.
std::optional<sym::Expr> wrapped_size(const at::Tensor& wrapped);
bool is_symbol(const c10::IValue& value);
// The number itself, which is read by that.
c10::IValue read_symbol(const c10::IValue& value);
at::Tensor read_symbol(const at::Tensor& wrapped);

// The number in a tensor of one element: f32, f64, i64 or bool on the CPU. New reference; null, without an error:
// others.
PyObject* only_number(const at::Tensor& t);

}  // namespace flashover::trace
