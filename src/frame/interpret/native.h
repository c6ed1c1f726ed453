// What is known of C callables: which may run natively inside a capture, what they read of their arguments, what they
// write.
#pragma once
#include <cstdint>
#include "frame/interpret/interpreter.h"

namespace flashover::frame {

struct NativeCall {
  Interpreter& in;
  PyObject* f;            // the callable object
  PyObject* self;         // bound receiver, or the first argument of an unbound method; null for functions
  PyObject* const* args;  // without self
  size_t nargs;           // positional, without self
  PyObject* kwnames;
  PyObject* const* all;  // as called: what a plain vectorcall of `f` gets
  size_t all_nargs;
  PyObject* run() const;  // the plain native call
};

struct Native {
  enum Flag : uint8_t {
    kReads = 1,      // reads its arguments' contents, whole
    kReadsSelf = 2,  // reads the receiver's contents, whole
    kWrites = 4,     // changes the receiver
    kShares = 8,     // may return an object that others hold too (an element, an argument, a singleton)
    kCalls = 16,     // calls its first callable argument from C
    kTensors = 32,   // a torch operator: lists, tuples and slices among the arguments are read
    kHandsOn = 64,   // numbers among the arguments only go on to Python code
  };
  uint8_t flags = 0;
  PyObject* (*handler)(const NativeCall&) = nullptr;
};

// While a class is being made its metaclass, __set_name__ and __init_subclass__ get to see it
// (Interpreter::run_frame).
class MakesClass {
 public:
  explicit MakesClass(Interpreter& in, bool makes = true) : in_(in), makes_(makes) {
    in_.making_classes += makes_;
    if (makes) in_.note_class();
  }
  ~MakesClass() { in_.making_classes -= makes_; }
  MakesClass(const MakesClass&) = delete;
  MakesClass& operator=(const MakesClass&) = delete;

 private:
  Interpreter& in_;
  const int makes_;
};

const Native* native_function(PyObject* f);        // builtin functions and bound C methods
const Native* native_method(PyMethodDef* method);  // unbound methods of builtin types
const Native* native_type(PyTypeObject* type);     // constructors written in C
bool is_tensor_method_allowed(const char* name);
std::string callable_name(PyObject* f);
PyObject* constant_list(
    PyObject* tensor,
    Numbers* numbers = nullptr);     // tensor.tolist(); throws Declined where the trace does not know the values
const char* name_of_c(PyObject* f);  // of a C function, or a method descriptor; "" of others
// Whether it is the __setitem__ of dicts or lists: it looks at a key, and only holds the value.
bool stores_items(const PyWrapperDescrObject* method);

}  // namespace flashover::frame
