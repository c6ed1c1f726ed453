// Inputs of a graph that nothing reads: through them the parts of a gradient that is of a class with __torch_dispatch__
// find what makes the gradient of them (frame::WrappedInput).
#pragma once
#include <Python.h>
#include <c10/util/SmallVector.h>

#include <vector>

#include "entry/entry.h"

namespace flashover::entry {

// All other inputs are there. `forms`: gets a new list for each gradient, for the reconstruction; null: for looking at
// types alone. Throws python_error. GIL held.
void make_wrapped_inputs(const Entry& e, PyObject* const* objects, at::Tensor* inputs, std::vector<PyObject*>* forms);

}  // namespace flashover::entry
