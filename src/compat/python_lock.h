// Taking the interpreter's lock again, in whatever state the process is.
#pragma once
#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace flashover::compat {

// A thread that comes when the interpreter has ended is unwound by CPython before 3.14: it waits for the process to end.
inline void take_lock_again(PyThreadState* saved) {
  try {
    PyEval_RestoreThread(saved);
  } catch (abi::__forced_unwind&) {
    for (;;) ::pause();
  }
}

}  // namespace flashover::compat
