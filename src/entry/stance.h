// What compiled callables do for now: flashover.set_stance, and where that says nothing torch.compiler.set_stance.
#pragma once
#include <string>

namespace flashover::entry {

enum class Stance { kDefault, kForceEager, kEagerOnRecompile, kFailOnRecompile, kEagerThenCompile };
Stance current_stance();  // GIL held
// Throws UserError naming the stances there are.
void set_stance(const std::string& name);
const char* stance_name();  // flashover's own

// Does torch.fx.Tracer trace (in any thread)? Calls then run as they are, its proxies are the program's arguments.
bool fx_is_tracing();  // GIL held

}  // namespace flashover::entry
