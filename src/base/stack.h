// A deeper stack for what compiling takes: threads may have as little as 32 KB, which eager's operators fit in.
#pragma once
#include <cstddef>
#include <functional>

namespace flashover {

// What capture and compilation may need. Threads with less are few, and get another stack for the time.
constexpr size_t kCompileStack = size_t{1} << 20;

// Bytes between here and the end of the stack that the caller runs on.
size_t stack_left();

// Calls f: on the stack at hand where it has that much left, else on the same thread with a stack made for this call
// (thread-local state is unchanged). Exceptions pass through. Without memory for a stack, f runs on the one at hand.
void with_stack(size_t needed, const std::function<void()>& f);

}  // namespace flashover
