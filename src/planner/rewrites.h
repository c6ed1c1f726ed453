// What becomes of a schedule behind build_plan: the one list of rewrites, in their order. Each has a source and a text
// test (test/<name>.ir) of its name, and runs alone on text (compile/run_stage.h).
#pragma once
#include <span>
#include <string_view>

#include "planner/planner.h"

namespace flashover::planner {

// Sets Step::foreseen and Step::bounds where all checks of a step are of inputs' elements, or of what simple arithmetic
// makes of them: indices of kernels, of index_copy and of index_put. A call whose checks fail is then known before the
// first step, and is repeated in eager, for its effects.
void hoist_checks(Schedule& s, const Options& o);

// Operators that write a copy of a value write the value itself where nothing reads it afterwards: a temporary, or an
// input that gets the result anyway.
void drop_clones(Schedule& s, const Options& o);

// A new value of an input is made in the input's memory where nothing looks at the old content any more.
void write_inputs_in_place(Schedule& s, const Options& o);

// Puts steps that write inputs behind those that may raise in a way that is not foreseen, where these do not need them:
// a failure leaves no trace if no input was written before it.
void delay_input_writes(Schedule& s, const Options& o);

// Sets InputSpec::frozen.
void mark_frozen_inputs(Schedule& s, const Options& o);

// Options::fuse_products.
void fuse_products(Schedule& s, const Options& o);

// Operators that can write their result over an operand of its type do so, where nothing reads that afterwards and its
// memory is the plan's own.
void write_over_operands(Schedule& s, const Options& o);

// Operators of ours write their results into memory of the plan's own.
void own_results(Schedule& s, const Options& o);

// A kernel's result is put over an operand that only it still reads: another temporary, or on a GPU what an operator
// returned (its memory is the plan's own). Sets Schedule::over.
void reuse_in_place(Schedule& s, const Options& o);

// Allocates large temporaries and results where they begin, and recomputes casts of parameters that would be kept from
// call to call, until the plan needs no more than Options::memory_limit.
void fit_memory(Schedule& s, const Options& o);

// Convolutions whose working memory would go beyond Options::working_limit take their batch in parts.
void split_convolutions(Schedule& s, const Options& o);

// Allocates temporaries and results from Options::apart bytes on where they begin.
void allocate_apart(Schedule& s, const Options& o);

// Gives each temporary its offset in the arena.
void assign_arena_offsets(Schedule& s, const Options& o);

// A tensor that an operator returned is released when its last reader has run.
void insert_releases(Schedule& s, const Options& o);

// Kernels that differ only in sizes become one that takes the sizes as arguments: compile time is paid per kernel. What
// speed depends on stays written in: strides of lanes, loops inside rows, range tests. Kernels of the frozen part,
// which run once, give up their inner sizes too. On a GPU a kernel takes expressions of symbols as one number each; equal
// ones are compiled once.
void share_kernels(Schedule& s, const Options& o);

// Operators of our own that take ATen's arguments and fall back on it take its place. In the plan, not in the graph: to
// all passes they are ATen's.
void substitute_operators(Schedule& s, const Options& o);

struct Rewrite {
  enum class On : uint8_t { kAll, kCpu, kGpu };
  const char* name;
  void (*run)(Schedule&, const Options&);
  On device;
  const char* why;  // it stands here
};
std::span<const Rewrite> rewrites();
const Rewrite* find_rewrite(std::string_view name);  // null: no such row

}  // namespace flashover::planner
