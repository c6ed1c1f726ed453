// Functions of torch that look at the memory of an argument before any operator runs: where its values depend on
// constants only they are given a tensor that holds them.
#include <cstring>

#include "frame/interpret/instructions.h"
#include "frame/interpret/native.h"

namespace flashover::frame {

// Layers over such data are operators that take the lengths as data (trace/recurrent.cpp).
bool Interpreter::steps_are_operators(PyObject* data) {
  if (!session->own_operators || !is_tensor(data)) return false;
  const Ref dtype = Ref::steal(PyObject_GetAttrString(data, "dtype"));
  const Ref device = Ref::steal(PyObject_GetAttrString(data, "device"));
  const Ref type = Ref::steal(device ? PyObject_GetAttrString(device.get(), "type") : nullptr);
  PyErr_Clear();
  return (dtype.get() == of_module("torch", "float32") || dtype.get() == of_module("torch", "float64")) && type &&
         PyUnicode_Check(type.get()) && PyUnicode_CompareWithASCIIString(type.get(), "cpu") == 0;
}

// torch.lstm and its like of a packed sequence: (data, batch_sizes, ...).
PyObject* Interpreter::constant_batch_sizes(const char* name, PyObject* const* args, size_t nargs) {
  if (session == nullptr || nargs < 3 || !is_tensor(args[1])) return nullptr;
  bool known = false;
  for (const char* function : {"lstm", "gru", "rnn_tanh", "rnn_relu"})
    known = known || std::strcmp(name, function) == 0;
  if (!known || !session->is_trace_tensor(args[1])) return nullptr;
  if (steps_are_operators(args[0])) return nullptr;
  Ref dtype = Ref::steal(PyObject_GetAttrString(args[1], "dtype"));
  PyErr_Clear();
  if (dtype.get() != of_module("torch", "int64")) return nullptr;
  Ref values = Ref::steal(constant_list(args[1]));
  stop_if_declined();
  PyObject* make = of_module("flashover._substitutes", "real_int64");
  if (!values || make == nullptr) throw Declined("the lengths of a packed sequence");
  ++uninterpreted;
  PyObject* made = PyObject_CallOneArg(make, values.get());
  --uninterpreted;
  return made;
}

}  // namespace flashover::frame
