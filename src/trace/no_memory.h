// Whether an exception says that there was no memory. That is nothing about the program: the next call may be compiled, so
// nobody makes of it a reason to decline.
#pragma once
#include <Python.h>

#include <exception>

namespace flashover::trace {

bool says_no_memory(const std::exception& e);  // Python's errors, which C++ throws, too. Takes the GIL for those

// A Python error: MemoryError, or the RuntimeError that torch makes of a failed allocation below one of its functions,
// perhaps one of ours. Needs the GIL.
bool says_no_memory(PyObject* type, PyObject* value);

}  // namespace flashover::trace
