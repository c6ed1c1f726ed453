// Sizes that are expressions, as plain Python data: what flashover/fx_graph.py makes nodes of (size_value).
#pragma once
#include <Python.h>

#include "sym/sym.h"

namespace flashover::frame {

// A number, or a pair of a kind and its operands: ("var", "s0"), ("+", [...]), "*", "//", "%", "min", "max". New
// reference; null with an error set.
PyObject* size_expression(sym::Expr e);

}  // namespace flashover::frame
