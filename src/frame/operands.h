// What the other threads of the program are in the midst of.
//
// A C function that a thread has called may have given up the GIL and go on reading its operands, borrowed from the
// frame's stack: at::Tensor's methods do. Such a frame stands at that instruction, and the operands lie in its stack.
//
//   In        Python objects. GIL held
//   Out       whether an instruction that another thread is at works on one of them
//   Promises  no object of another thread is touched; with one thread it costs nothing, and while no other thread has
//             had the GIL since it was last asked, a look-up
//   Not seen  what only C code holds: elements of containers, but for `f(*args)`, and callables behind others (partial)
// Where C code has called Python again, only methods of tensors and operators count: `Thread.run` has the arguments of
// what it runs as operands for as long as the thread lives.
#pragma once
#include <cstddef>

typedef struct _object PyObject;

namespace flashover::frame {

bool in_use_elsewhere(PyObject* const* objects, size_t count) noexcept;

// Lets the other threads run until that is not so, for at most `seconds`, of which it takes those that it needed. False
// if it is still so.
bool wait_until_unused(PyObject* const* objects, size_t count, double& seconds) noexcept;

// While it lives, this thread waits without the GIL, and the call that it is in reads no tensor.
class AtRest {
 public:
  AtRest() noexcept;
  ~AtRest();
  AtRest(const AtRest&) = delete;
};

}  // namespace flashover::frame
