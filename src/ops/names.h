// The names of operators as constants: op::bmm is "aten.bmm.default", prim::add is "prim.add". A misspelled operator
// does not compile.
#pragma once

namespace flashover::op {

#define ATEN_NAME(constant, text) inline constexpr char constant[] = text;
#include "ops/aten_names.def"
#undef ATEN_NAME

}  // namespace flashover::op

namespace flashover::prim {

#define POINTWISE(name, ...) inline constexpr char name[] = "prim." #name;
#define PRIM(name, ...) inline constexpr char name[] = "prim." #name;
#include "ops/prims.def"

}  // namespace flashover::prim
