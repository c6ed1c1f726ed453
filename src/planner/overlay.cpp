// See overlay.h.
#include "planner/overlay.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace flashover::planner {

using loops::Instr;
using loops::Loop;
using loops::Op;
using loops::Stage;

namespace {

bool touches(const Instr& i, int32_t in, int32_t out) {
  return (i.op == Op::k_load || i.op == Op::k_store) && (i.slot == in || i.slot == out);
}

// The one address at which both are touched, `out` by plain stores behind all loads of `in`. Stage loops have their own
// variables: the same text in two stages is the same element only if their loops agree.
std::optional<sym::Expr> common_address(const loops::Kernel& k, int32_t in, int32_t out) {
  std::optional<sym::Expr> address;
  bool stored = false;
  for (const Stage& s : k.stages)
    for (const Instr& i : s.body) {
      if (!touches(i, in, out)) continue;
      if (i.slot == in && stored) return std::nullopt;
      if (i.slot == out) {
        if (i.op == Op::k_load || i.mask != loops::kNone || i.mode != loops::StoreMode::kSet) return std::nullopt;
        stored = true;
      }
      if (address && !(*address == i.index)) return std::nullopt;
      address = i.index;
    }
  return stored ? address : std::nullopt;
}

bool same_vars(const std::vector<Loop>& a, const std::vector<Loop>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Loop& x, const Loop& y) { return x.var == y.var; });
}

}  // namespace

bool overlay(const loops::Kernel& k, int32_t in, int32_t out) {
  const std::optional<sym::Expr> address = common_address(k, in, out);
  if (!address) return false;
  // Every point must have its own address, and all stages that touch it the same loops.
  std::vector<sym::Expr> vars;
  sym::collect_vars(*address, vars);
  const auto in_address = [&](const Loop& l) { return std::find(vars.begin(), vars.end(), l.var) != vars.end(); };
  if (!std::all_of(k.outer.begin(), k.outer.end(), in_address)) return false;
  const std::vector<Loop>* loops = nullptr;
  for (const Stage& s : k.stages) {
    if (std::none_of(s.body.begin(), s.body.end(), [&](const Instr& i) { return touches(i, in, out); })) continue;
    if (!std::all_of(s.loops.begin(), s.loops.end(), in_address)) return false;
    if (loops && !same_vars(*loops, s.loops)) return false;
    loops = &s.loops;
  }
  return true;
}

}  // namespace flashover::planner
