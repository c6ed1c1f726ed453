// Which CPython the headers are of. Only the files of this folder ask.
#pragma once
#include <Python.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030F0000 || defined(Py_GIL_DISABLED)
#error "Flashover knows CPython 3.11 to 3.14 (with the GIL)"
#endif

namespace flashover::compat {

constexpr bool kPython312 = PY_VERSION_HEX >= 0x030C0000;  // or newer
constexpr bool kPython313 = PY_VERSION_HEX >= 0x030D0000;
constexpr bool kPython314 = PY_VERSION_HEX >= 0x030E0000;

// Copying itertools' objects warns that they will not be copied one day.
constexpr bool kItertoolsWarn = kPython312;

}  // namespace flashover::compat
