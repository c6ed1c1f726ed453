// CPython's internal headers: the one place that includes them.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>
#include <structmember.h>
#undef HAVE_STD_ATOMIC  // the internal headers' stdatomic.h does not compile as C++; the builtin-atomics path does
#undef _PyGC_FINALIZED  // 3.12: a compatibility macro of the public headers collides with the internal function
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#endif
#include <internal/pycore_frame.h>
#include <internal/pycore_genobject.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>

#if PY_VERSION_HEX >= 0x030D0000
#include <internal/pycore_ceval.h>
#endif
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe.h>
#endif

#include "compat/python_version.h"

#if PY_VERSION_HEX >= 0x030C0000
#define _PyEval_RequestCodeExtraIndex PyUnstable_Eval_RequestCodeExtraIndex
#define _PyCode_GetExtra PyUnstable_Code_GetExtra
#define _PyCode_SetExtra PyUnstable_Code_SetExtra
#endif
