// The list of rewrites; see rewrites.h.
#include "planner/rewrites.h"

namespace flashover::planner {

std::span<const Rewrite> rewrites() {
  using enum Rewrite::On;
  static constexpr Rewrite kList[] = {
      {"hoist_checks", hoist_checks, kCpu, "what may raise unforeseen decides where inputs may be written"},
      {"drop_clones", drop_clones, kAll, "what is left are temporaries of one name: before others look at them"},
      {"write_inputs_in_place", write_inputs_in_place, kAll, "before others move the writes that it looks for"},
      {"delay_input_writes", delay_input_writes, kCpu, "behind all that adds or drops writes of inputs"},
      {"mark_frozen_inputs", mark_frozen_inputs, kAll, "the readers of inputs are known"},
      {"fuse_products", fuse_products, kAll, "a fused step drops temporaries: before these get memory"},
      {"write_over_operands", write_over_operands, kAll, "lengthens lives: before memory is shared by lives"},
      {"own_results", own_results, kCpu,
       "temporaries get memory after it; the rewrites before it know operators as emitted"},
      {"reuse_in_place", reuse_in_place, kAll, "the order of steps is final"},
      {"fit_memory", fit_memory, kGpu, "what shares memory is known"},
      {"split_convolutions", split_convolutions, kGpu, "what is left beside them follows from fit_memory"},
      {"allocate_apart", allocate_apart, kCpu, "what shares memory is known"},
      {"assign_arena_offsets", assign_arena_offsets, kAll, "what is not in the arena is known"},
      {"insert_releases", insert_releases, kAll, "by the last readers in the final order"},
      {"share_kernels", share_kernels, kAll, "the rewrites before it look into the kernels of single steps"},
      {"substitute_operators", substitute_operators, kCpu, "the rewrites before it know operators by ATen's names"},
  };
  return kList;
}

const Rewrite* find_rewrite(std::string_view name) {
  for (const Rewrite& r : rewrites())
    if (name == r.name) return &r;
  return nullptr;
}

void fuse_products(Schedule& s, const Options& o) {
  if (o.fuse_products) o.fuse_products(s.plan, s.kernels);
}

}  // namespace flashover::planner
