// Describes an entry for explain(), as Python data.
#pragma once
#include <Python.h>

#include "entry/entry.h"

namespace flashover::entry {

PyObject* describe(const Entry& e);  // a dict

}  // namespace flashover::entry
