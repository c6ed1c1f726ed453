// What compiled callables do for now: flashover.set_stance, and where that says nothing torch.compiler.set_stance.
#pragma once
#include <string>

typedef struct _object PyObject;

namespace flashover::entry {

enum class Stance {
  kDefault,
  kForceEager,
  kEagerOnRecompile,
  kFailOnRecompile,
  kEagerThenCompile,
  kAotEagerThenCompile  // the first call is captured, and its graph runs operator by operator
};
Stance current_stance();  // GIL held
// Throws UserError naming the stances there are.
void set_stance(const std::string& name);
const char* stance_name();  // flashover's own
const char* name_of(Stance stance);

// The backend that set_stance(force_backend=...) puts in place of every other; borrowed, null: none. GIL held.
PyObject* forced_backend();
PyObject* own_forced_backend();         // set by flashover.set_stance; borrowed, None if there is none
void force_backend(PyObject* backend);  // flashover's own; None: none

bool may_compile_again();  // for what versions there are do not serve
bool torch_only_runs();    // in the course of torch._dynamo.run: nothing new is to be compiled

// Does torch.fx.Tracer trace (in any thread)? Calls then run as they are, its proxies are the program's arguments.
bool fx_is_tracing();  // GIL held

}  // namespace flashover::entry
