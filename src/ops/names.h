// The names of operators as constants: op::bmm is "aten.bmm.default", prim::add is "prim.add". A misspelled operator
// does not compile.
#pragma once
#include <algorithm>
#include <initializer_list>
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

}  // namespace flashover::op

namespace flashover::prim {

#define POINTWISE(name, ...) inline constexpr char name[] = "prim." #name;
#define PRIM(name, ...) inline constexpr char name[] = "prim." #name;
#include "ops/prims.def"

}  // namespace flashover::prim
