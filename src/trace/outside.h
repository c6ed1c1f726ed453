// Derivatives that the program asks for while it is traced: autograd's history of a tensor from before the call is
// not known there, and ends at its input.
#pragma once

typedef struct _object PyObject;

namespace flashover::trace {

// outputs, inputs: tuples of tensors, as torch.autograd.grad hands them to the engine. True: from some output a way
// leads out of the trace, and may lead on to one of the inputs.
bool leads_outside(PyObject* outputs, PyObject* inputs);

}  // namespace flashover::trace
