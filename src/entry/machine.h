// The facts about this machine, for compile::CompileTarget: measured once, kept in the disk cache under the CPU's
// identity.
#pragma once
#include "compile/cache.h"
#include "compile/choices.h"
#include "target/providers.h"

namespace flashover::entry {

// The first call of a process asks the cache, the first of a machine measures (run/probe.h).
const target::Providers& machine_providers(compile::Cache& cache);
// The same with a file of choices, which decides for all that use it.
target::Providers machine_providers(compile::Cache& cache, compile::ChoicesFile* choices);

}  // namespace flashover::entry
