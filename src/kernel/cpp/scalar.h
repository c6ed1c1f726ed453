// Texts of scalar operations: which library call or operator does one loops::Op on values of one class.
#pragma once
#include <cstdint>
#include <string>

#include "loops/loops.h"

namespace flashover::kernel {

// How values of a dtype are held in registers: f32, f64, 32-bit integer, 64-bit integer, mask.
enum class RegisterClass : uint8_t { kF, kD, kI, kL, kB };
RegisterClass class_of(DType d);  // throws Declined for dtypes without arithmetic here

const char* type_name(RegisterClass c, bool vector);  // "VF" / "float"
std::string constant(RegisterClass c, double number, int64_t integer, bool vector, const std::string& ns);
// `operand` is the dtype of the operands (of the arms for where); texts are of class class_of(operand), conditions are
// masks. `ns` qualifies library names ("" or "one::").
std::string operation(loops::Op op, DType operand, const std::string& a, const std::string& b, const std::string& c,
                      bool vector, const std::string& ns);
std::string conversion(DType from, DType to, const std::string& a, bool vector, const std::string& ns);
// Cuts an integer result back to its dtype.
std::string wrapped(DType d, const std::string& text, const std::string& ns);

}  // namespace flashover::kernel
