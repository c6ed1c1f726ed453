// Scalar operations as Triton expressions.
#pragma once
#include <span>
#include <string>

#include "loops/loops.h"

namespace flashover::kernel::triton {

const char* type_name(DType d);       // "tl.float32"; throws Declined for dtypes that kernels do not compute with
const char* signature_name(DType d);  // "fp32"
// A literal, or tl.full((), ...) where a Python number would not have the dtype.
std::string constant(DType d, double number, int64_t integer);
// A tensor of one element: where Triton takes no Python number.
std::string scalar_tensor(const std::string& text, DType d);
// `fast`: results end up in 16-bit floats, approximations of the hardware will do.
std::string scalar(loops::Op op, DType operand, std::span<const std::string> args, bool fast);
std::string convert(DType from, DType to, const std::string& value);
// Floats that are narrower in memory than the f32 that kernels compute in, as ATen converts them.
std::string from_memory(DType from, const std::string& value);
std::string to_memory(DType to, const std::string& value);

// Reductions: the neutral element, and the name of the combining function in _triton_lib.
std::string identity(loops::Reduce kind, DType d);
const char* combine(loops::Reduce kind, DType d);

}  // namespace flashover::kernel::triton
