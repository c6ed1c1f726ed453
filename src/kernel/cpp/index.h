// Index expressions as C++ text over `long`.
#pragma once
#include "kernel/cpp/emission.h"

namespace flashover::kernel::cpp {

LaneStep step_of(const Scope& s, sym::Expr index);
std::optional<sym::Expr> symbolic_step_of(const Scope& s, sym::Expr index);
std::string variable(const Emission& e, sym::Expr v);
// A number of the kernel's geometry: in place, or read from the job by a shared body.
std::string geometry(Emission& e, int64_t v);
// Outside of any stage.
std::string index(Emission& e, sym::Expr x);
// The same, in parentheses where it is a product.
std::string divisor(Emission& e, sym::Expr x);
// The same for all lanes, or that of the first lane.
std::string index(Emission& e, const Scope& s, sym::Expr x);
// The index of a copy's first lane.
std::string index_of_copy(Emission& e, const Scope& s, sym::Expr x, int copy);
// The index of a copy's lane `l`, a variable of the text.
std::string index_of_lane(Emission& e, const Scope& s, sym::Expr x, int copy);
// With any text for the lane variable.
std::string index_at(Emission& e, const Scope& s, sym::Expr x, const std::string& lane);

}  // namespace flashover::kernel::cpp
