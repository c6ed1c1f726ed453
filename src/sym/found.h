// The numbers that sizes which follow from data are in the call that is traced, where they can be had.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>

#include "sym/sym.h"

namespace flashover::sym {

using FoundInCall = std::function<std::optional<int64_t>(Expr)>;

// Who knows them, on this thread; empty: nobody. What is made of such a number is checked in each call.
void find_by(FoundInCall found);
// Whether it may be asked: it runs what was recorded.
bool& may_be_found();
std::optional<int64_t> found_in_call(Expr e);

}  // namespace flashover::sym
