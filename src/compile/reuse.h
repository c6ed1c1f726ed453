// The pipeline's entries in the disk cache: whole plans by graph, kernel binaries by their text. A changed graph
// misses its plan and still finds most of its kernels.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "compile/cache.h"
#include "compile/compile.h"
#include "kernel/kernel.h"

namespace flashover::compile {

// The hash of everything that the plan depends on: graph with locations (errors name them), options, environment,
// target, compiler, machine, this program. Where no compiler is to be found, the one that filled the cache counts: all
// that it built can still be used.
Hash128 plan_key(const graph::Graph& traced, const Options& options, const CompileTarget& environment, Cache& cache);
std::optional<plan::Plan> find_plan(Cache& cache, const Hash128& key);
// The plan is put into the cache once it is loaded (Report::keep).
void keep_plan(Cache& cache, const Hash128& key, const plan::Plan& plan, const std::string& compiler, Report& report);

// Two plans and their partition's signature.
Hash128 training_key(const Hash128& plan_key, const graph::Joint& facts);
std::optional<Training> find_training(Cache& cache, const Hash128& key);
void keep_training(Cache& cache, const Hash128& key, const Training& training, const std::string& compiler,
                   Report& report);

// As kernel::compile, building only what the cache does not have.
kernel::Compiled compile_kernels(std::span<const loops::Kernel> kernels, Cache& cache,
                                 const kernel::CompileOptions& options, Report& report);

// The same for a GPU, one cubin a kernel. sources: if not null, receives the text of each kernel.
// products: numbered behind the kernels.
kernel::Compiled compile_kernels(std::span<const loops::Kernel> kernels, const kernel::triton::Gpu& gpu, Cache* cache,
                                 int64_t& reused, std::vector<std::pair<std::string, std::string>>* sources,
                                 std::span<const loops::Product> products = {});

}  // namespace flashover::compile
