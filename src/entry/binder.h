// Call arguments onto the parameters of a Python function, as the interpreter would, without running Python.
#pragma once
#include <Python.h>

#include <vector>

namespace flashover::entry {

// The facts about a function that binding needs; made again when its code object changes.
struct Signature {
  PyCodeObject* code = nullptr;  // borrowed
  int positional = 0;            // including positional-only
  int positional_only = 0;
  int keyword_only = 0;
  bool varargs = false, varkw = false;
  int slots = 0;  // positional, keyword-only, *args, **kwargs: localsplus order

  static Signature of(PyFunctionObject* f);
};

// Bound arguments: borrowed from the caller and the function, but for the *args tuple and **kwargs dict it makes.
class Bound {
 public:
  ~Bound() {
    Py_XDECREF(varargs_);
    Py_XDECREF(varkw_);
  }
  Bound() = default;
  Bound(const Bound&) = delete;

  // self: prepended when not null. False (no error set) if the call does not fit the signature: the caller makes the
  // real call, which raises.
  bool bind(const Signature& s, PyFunctionObject* f, PyObject* self, PyObject* const* args, Py_ssize_t count,
            PyObject* kwnames);
  PyObject** slots() { return slots_; }

 private:
  static constexpr int kInline = 32;
  PyObject* inline_[kInline];
  std::vector<PyObject*> heap_;
  PyObject** slots_ = nullptr;
  PyObject* varargs_ = nullptr;
  PyObject* varkw_ = nullptr;
};

}  // namespace flashover::entry
