// The option guard_filter_fn: a function of the user's says which guards to keep, as torch.compile's does.
//
//   In        what a capture observed, and the sources that calls need
//   Out       less of it
//   Promises  what a compiled call reads is fetched as before: a path to an input, the input's own type, and torch's modes
//             (whether gradients are recorded, autocast) stay checked
//   Declines  nothing; the function's own errors are thrown as python_error
#pragma once
#include <Python.h>

namespace flashover::frame {
struct Capture;
}

namespace flashover::entry {

void filter_guards(frame::Capture& capture, PyObject* filter);

}  // namespace flashover::entry
