// What compiled callables do for now: flashover.set_stance, and where that says nothing torch.compiler.set_stance.
#pragma once
#include <string>

namespace flashover::entry {

enum class Stance { kDefault, kForceEager, kEagerOnRecompile, kFailOnRecompile, kEagerThenCompile };
Stance current_stance();  // GIL held
// Throws UserError naming the stances there are.
void set_stance(const std::string& name);
const char* stance_name();  // flashover's own

}  // namespace flashover::entry
