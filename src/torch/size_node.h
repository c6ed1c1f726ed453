// A size that is an expression, as torch carries it: c10::SymInt over sym::Expr.
//
//   In        expressions, and the environment of the trace that they belong to
//   Out       SymInts that torch's C++ code computes with; expressions back out of them
//   Promises  arithmetic stays symbolic; a comparison is decided by the environment, which notes it; whoever asks for
//             the number gets this call's, and the environment notes that it is always that (Environment::specialize)
//   Declines  nothing
#pragma once
#include <ATen/core/ivalue.h>
#include <c10/core/SymInt.h>

#include <memory>
#include <optional>

#include "sym/environment.h"

namespace flashover::aten {

// While it lives, on its thread, a question that C++ may leave open (guard_or_false) is answered as for larger sizes
// where it depends on a size of 1. For code that does the same either way: autograd's checks of gradients.
class OpenQuestions {
 public:
  OpenQuestions();
  ~OpenQuestions();
  OpenQuestions(const OpenQuestions&) = delete;
};

c10::SymInt to_symint(const std::shared_ptr<sym::Environment>& environment, sym::Expr e);
// What a SymInt stands for: a number, or one of the above. nullopt: a symbol of somebody else's.
std::optional<sym::Expr> expr_of(const c10::SymInt& value);
std::optional<sym::Expr> expr_of(const c10::IValue& value);  // of an int or a SymInt
bool is_size(const c10::IValue& value);                      // a SymInt made by to_symint, and no number

// A float that torch's C++ code computed of sizes, as a formula over them.
struct FloatOfSizes {
  enum class Kind : uint8_t { kConstant, kSize, kAdd, kSub, kMul, kDiv };
  Kind kind = Kind::kConstant;
  double constant = 0;
  sym::Expr size;
  std::shared_ptr<const FloatOfSizes> a, b;
};
// Null: none, or the numbers of sizes were asked for already.
std::shared_ptr<const FloatOfSizes> float_of_sizes(const c10::IValue& value);

}  // namespace flashover::aten
