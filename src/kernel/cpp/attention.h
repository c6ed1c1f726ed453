// A kernel with an attention (loops/attention.h): blocks of queries pass over blocks of keys, whose scores stay in the
// cache. The stages run over a row of them; products and the softmax are the library's (prelude/attention.cpp).
#pragma once
#include "kernel/cpp/emission.h"

namespace flashover::kernel::cpp {

// What the body function does for each linear index, which is a task: some queries of one head.
void attention(Emission& e);
// How many tasks there are, and how many picoseconds all of them take on one thread, as expressions of the entry.
sym::Expr attention_tasks(const loops::Kernel& k);
std::string attention_work(Emission& e);

}  // namespace flashover::kernel::cpp
