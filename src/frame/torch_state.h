// Thread and process state of torch that a traced program may change for a while: grad mode, autocast, default dtype
// ... Everything must be back when the trace ends; a program that leaves it changed is not compiled.
#pragma once
#include <utility>
#include <vector>

#include "frame/frame.h"
#include "frame/internals.h"

namespace flashover::frame {

class TorchState {
 public:
  TorchState();  // takes note
  // What differs from then; null if nothing does. but: a row that does not count.
  const char* changed(const char* but = "") const;
  void restore();
  Ref value_of(const char* getter) const;  // as noted; null if there is no such row
  // What to call so that torch goes from what this noted to how it is now. Throws Declined for what has no switch.
  std::vector<StateChange> changes(bool inference_mode = false) const;

 private:
  static std::vector<Ref> function_modes();  // torch's stack of them, the outermost first
  void restore_function_modes() const;
  bool in_other_transforms() const;
  struct Item {
    const char* name;
    PyObject *get, *set;  // set may be null: cannot be put back
    std::vector<PyObject*> args;
    Ref value;
  };
  std::vector<Item> items_;
  Ref functorch_, depth_;  // torch.func transforms that are entered
  std::vector<Ref> function_modes_;
  long autocast_depth_ = 0, vmap_depth_ = 0;
};

// torch.compiler.is_compiling() is true while one lives.
class Compiling {
 public:
  Compiling();
  ~Compiling();
  Compiling(const Compiling&) = delete;
  Compiling& operator=(const Compiling&) = delete;

 private:
  PyObject* dict_ = nullptr;
  Ref before_;
};

}  // namespace flashover::frame
