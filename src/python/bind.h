// The Python module, one binder a stage: bind_<stage>.cpp defines bind_<stage>(), module.cpp calls it. pybind11 lives
// in this folder only.
#pragma once
#include <pybind11/pybind11.h>

#include "ops/types.h"

namespace flashover {

void bind_aot(pybind11::module_& m);
void bind_cache(pybind11::module_& m);
void bind_compile(pybind11::module_& m);
void bind_errors(pybind11::module_& m);
void bind_frame(pybind11::module_& m);
void bind_guards(pybind11::module_& m);
void bind_ops(pybind11::module_& m);
void bind_trace(pybind11::module_& m);
void bind_triton(pybind11::module_& m);
void bind_run(pybind11::module_& m);
void bind_entry(pybind11::module_& m);

pybind11::object constants(const Sizes& s);  // a list of sizes that are constant
// For tests: ("ref", value), ("dtype", n), ("layout", n), ("format", n), ("device", type, index), else a plain value.
pybind11::object to_python(const Arg& a);

}  // namespace flashover
