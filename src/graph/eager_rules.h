// What eager's operators do in some versions of torch and not in others. Eager itself is asked, when the core is loaded
// (eager/ask_eager.h); as it stands here it is torch 2.11's.
#pragma once

namespace flashover::graph {

struct EagerRules {
  // aten.clamp: one bound alone that is NaN makes NaN of all, as one of two does (torch 2.15); else it bounds nothing.
  bool lone_nan_bounds = false;
};
inline EagerRules eager_rules;

}  // namespace flashover::graph
