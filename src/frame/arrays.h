// What flashover/_arrays.py asks of the capture that runs.
#pragma once
#include <string>

typedef struct _object PyObject;

namespace flashover::frame {

// New reference: what stands for an array of numpy from before the trace; None: it is not one. Null with a Python error
// set.
PyObject* lift_array(PyObject* array);
bool may_write_array(PyObject* array);            // the trace takes nothing for granted of what it holds
void decline_capture(const std::string& reason);  // a Python error is set

}  // namespace flashover::frame
