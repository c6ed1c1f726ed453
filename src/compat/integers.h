// How an int keeps its digits.
#pragma once
#include <algorithm>
#include <cstring>

#include "compat/internals.h"

#if PY_VERSION_HEX >= 0x030D0000
#include <internal/pycore_long.h>
#endif

namespace flashover::compat {

// Another object of the same number. New reference; null without memory.
inline PyObject* copy_of_int(PyObject* number) {
  auto* from = reinterpret_cast<PyLongObject*>(number);
#if PY_VERSION_HEX < 0x030C0000
  const Py_ssize_t digits = std::max<Py_ssize_t>(1, std::abs(Py_SIZE(from)));
  PyLongObject* made = _PyLong_New(digits);
  if (made == nullptr) return nullptr;
  std::memcpy(made->ob_digit, from->ob_digit, sizeof(digit) * static_cast<size_t>(digits));
  Py_SET_SIZE(made, Py_SIZE(from));
#else
  const Py_ssize_t digits = std::max<Py_ssize_t>(1, static_cast<Py_ssize_t>(from->long_value.lv_tag >> 3));
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  PyLongObject* made = _PyLong_New(digits);
#pragma GCC diagnostic pop
  if (made == nullptr) return nullptr;
  std::memcpy(made->long_value.ob_digit, from->long_value.ob_digit, sizeof(digit) * static_cast<size_t>(digits));
  constexpr uintptr_t kOneOfASmallNumber = kPython314 ? 4 : 0;  // those live for good, unlike the copy
  made->long_value.lv_tag = from->long_value.lv_tag & ~kOneOfASmallNumber;
#endif
  return reinterpret_cast<PyObject*>(made);
}

}  // namespace flashover::compat
