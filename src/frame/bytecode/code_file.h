// The file that code was read from: many rules of the stage know a library's functions by it.
#pragma once
#include <Python.h>

#include <string_view>

#include "frame/fetched_error.h"

namespace flashover::frame {

// Empty where the name is no text. An error of Python's that is pending stays: frames that an exception is thrown into
// (a generator that is closed) ask too.
inline std::string_view file_of(const PyCodeObject* code) {
  FetchedError pending;
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(code->co_filename, &size);
  pending.restore();
  return text != nullptr ? std::string_view(text, static_cast<size_t>(size)) : std::string_view();
}

// By which a weak mapping or set forgets what has died.
inline bool is_callback_of_weak(const PyCodeObject* code) {
  if (PyUnicode_CompareWithASCIIString(code->co_name, "remove") != 0 &&
      PyUnicode_CompareWithASCIIString(code->co_name, "_remove") != 0)
    return false;
  const std::string_view file = file_of(code);
  return (code->co_flags & CO_NESTED) != 0 && (file.ends_with("/weakref.py") || file.ends_with("/_weakrefset.py") ||
                                               file.ends_with("-packages/torch/utils/weak.py"));
}

}  // namespace flashover::frame
