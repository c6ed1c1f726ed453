// Triton's compiler as a function from sources to cubins.
//
//   In        sources of triton.h
//   Out       cubins with what the launch needs to know of them, one per source, in order
//   Promises  the compiler runs in processes of its own (python/flashover/_triton_worker.py: a server that forks
//             workers), started at the first compilation, gone when this process is; several threads may compile at
//             once; nothing hangs: a worker that dies fails its source, a server that dies or says nothing for a minute
//             fails the request and is replaced
//   Declines  no Triton, one that does not work, no process: EnvironmentFailure with its own words. A source that it
//             cannot compile: Cubin::error
#pragma once
#include <span>
#include <string>
#include <vector>

#include "kernel/triton/triton.h"

namespace flashover::kernel::triton {

struct Cubin {
  std::string bytes;
  int32_t shared = 0;   // dynamic shared memory of a block
  int64_t scratch = 0;  // global scratch bytes of a program
  int32_t warps = 0;    // as compiled
  std::string error;    // why there are no bytes
};

// The interpreter that runs the server, the server's file, and what the two are worth in a cache key (Triton's
// version). Set once by the Python package; without it everything declines.
struct Command {
  std::string python, script, version;
};
void set_command(Command c);
const Command& command();

// Throws Declined if nothing can be compiled at all.
std::vector<Cubin> build(std::span<const TritonSource> sources, const Gpu& gpu);

int32_t server_pid();  // 0: none runs. For tests

}  // namespace flashover::kernel::triton
