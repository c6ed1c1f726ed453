// What compiled callables do for now: flashover.set_stance.
#pragma once
#include <string>

namespace flashover::entry {

enum class Stance { kDefault, kForceEager, kEagerOnRecompile, kFailOnRecompile, kEagerThenCompile };
Stance current_stance();
// Throws UserError naming the stances there are.
void set_stance(const std::string& name);
const char* stance_name();

}  // namespace flashover::entry
