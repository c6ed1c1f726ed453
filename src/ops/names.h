// Operators as constants: op::bmm is the name "aten.bmm.default", Prim::add the prim "prim.add". A misspelled operator
// does not compile.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace flashover::op {

// "aten.add" of "aten.add.Tensor".
constexpr std::string_view without_overload(std::string_view name) { return name.substr(0, name.rfind('.')); }

// Whether the operator is one of these, in any overload.
constexpr bool is_any_of(std::string_view name, std::initializer_list<std::string_view> operators) {
  return std::any_of(operators.begin(), operators.end(),
                     [&](std::string_view o) { return without_overload(o) == without_overload(name); });
}
// Whether the name says that it writes its first argument: "aten._fused_sgd_.default", not "aten.__and__.Tensor".
constexpr bool looks_in_place(std::string_view name) {
  const std::string_view base = without_overload(name);
  return base.ends_with('_') && !base.ends_with("__");
}
constexpr bool is_aten(std::string_view name) { return name.starts_with("aten."); }

#define ATEN_NAME(constant, text) inline constexpr char constant[] = text;
#include "ops/aten_names.def"
#undef ATEN_NAME

// A number in a tensor as a size: the result has so many elements and no memory. Sizes that are to be as the trace took
// them for.
inline constexpr char size_of_data[] = "flashover.size_of_data.default";
inline constexpr char number[] = "flashover.number.default";
inline constexpr char check_sizes[] = "flashover.check_sizes.default";
// flex_attention (ops/flex.cpp): scores of queries and keys, what weighs values by them, and both with all that lies
// between them as one kernel (loops/attention.h).
inline constexpr char flex_scores[] = "flashover.flex_scores.default";
inline constexpr char flex_attend[] = "flashover.flex_attend.default";
inline constexpr char flex_fused[] = "flashover.flex_fused.default";
// Of its backward: sums over keys, or queries, weighed by what was made of scores.
inline constexpr char flex_rows[] = "flashover.flex_rows.default";
inline constexpr char flex_columns[] = "flashover.flex_columns.default";
inline constexpr char flex_fused_rows[] = "flashover.flex_fused_rows.default";
inline constexpr char flex_fused_columns[] = "flashover.flex_fused_columns.default";
// Steps of recurrent layers (cpu_kernels/recurrent.h).
inline constexpr char rnn_steps[] = "flashover.rnn_steps.default";
inline constexpr char rnn_steps_backward[] = "flashover.rnn_steps_backward.default";
inline constexpr char nms[] = "torchvision.nms.default";

}  // namespace flashover::op

namespace flashover {

// The closed set of operators, by their rows' names; the pointwise ones that are operations on scalars come first.
enum class Prim : uint8_t {
#define POINTWISE(name, ...) name,
#define PRIM(name, ...) name,
#include "ops/prims.def"
  none,  // an operator of another kind
};
constexpr size_t kPrims = static_cast<size_t>(Prim::none);

// "prim.add"
constexpr std::string_view name(Prim prim) {
  constexpr std::string_view kNames[] = {
#define POINTWISE(name, ...) "prim." #name,
#define PRIM(name, ...) "prim." #name,
#include "ops/prims.def"
      ""};
  return kNames[static_cast<size_t>(prim)];
}

constexpr bool is_any_of(Prim prim, std::initializer_list<Prim> prims) {
  return std::find(prims.begin(), prims.end(), prim) != prims.end();
}

// What an operator is called, where prims and others will do: Prim::copy, op::clone.
class OpName {
 public:
  constexpr OpName(Prim prim) : text_(name(prim)), prim_(prim) {}
  constexpr OpName(const char* text) : text_(text) {}
  constexpr OpName(std::string_view text) : text_(text) {}
  OpName(const std::string& text) : text_(text) {}
  constexpr std::string_view text() const { return text_; }
  constexpr Prim prim() const { return prim_; }  // none: the text says it, of a prim too
  friend constexpr bool operator==(OpName a, OpName b) { return a.text_ == b.text_; }

 private:
  std::string_view text_;
  Prim prim_ = Prim::none;
};

}  // namespace flashover
