// Measured rules for blocks, unrolling and the work that is worth a thread.
#include "kernel/cpp/iteration.h"

#include <algorithm>

namespace flashover::kernel::cpp {
namespace {

using loops::Op;
using sym::Expr;

int64_t whole_vectors(int64_t points, int64_t width) { return (points + width - 1) / width * width; }

// How many of the last outer loop's points one linear index covers (kOuter).
void choose_block(const loops::Kernel& k, const KernelFacts& f, Iteration& it) {
  if (!f.outer()) return;
  const int64_t w = f.lanes.width;
  bool loops = false, folds = false;
  int vectors = 0;
  for (const loops::Stage& s : k.stages) {
    loops |= !s.loops.empty();
    for (const loops::Instr& in : s.body) {
      folds |= is_fold(in.op);
      vectors += in.op != Op::k_const && in.op != Op::k_index;
    }
  }
  const auto n = k.outer.back().extent.as_const();
  if (loops) {
    if (folds) it.unroll = vectors <= 8 ? 4 : vectors <= 16 ? 2 : 1;
    // Few columns: rather more blocks for the threads than more vectors in each.
    while (n && it.unroll > 1 && *n < it.unroll * w) it.unroll /= 2;
    it.block = it.unroll * w;
  } else if (!f.tiles.empty()) {
    it.block = n && *n <= 512 ? whole_vectors(*n, w) : 256;
  } else {
    it.block = n && *n <= 8192 ? whole_vectors(*n, w) : 4096;
  }
}

// Of an outer point, in units of cost.
Expr cost_of_point(const loops::Kernel& k) {
  Expr cost = 0;
  for (const loops::Stage& s : k.stages) {
    Expr points = 1;
    for (const loops::Loop& l : s.loops) points *= l.extent;
    int64_t body = 0;
    for (const loops::Instr& in : s.body) body += loops::info(in.op).cost;
    cost += points * body;
  }
  return cost;
}

}  // namespace

size_t linearized_loops(const loops::Kernel& k, const KernelFacts& facts) {
  return k.outer.size() - (facts.outer() ? 1 : 0);
}

bool is_across(const loops::Kernel& k, const KernelFacts& facts, size_t loop) {
  return !facts.tiles.empty() && static_cast<int32_t>(loop) == k.transpose;
}

Expr steps_of(const loops::Kernel& k, const KernelFacts& facts, size_t loop) {
  if (facts.is_repeat(loop)) return 1;
  const Expr extent = k.outer[loop].extent;
  return is_across(k, facts, loop) ? sym::ceildiv(extent, Expr(facts.lanes.width)) : extent;
}

Iteration iteration_of(const loops::Kernel& k, const KernelFacts& facts) {
  Iteration it;
  choose_block(k, facts, it);
  for (size_t i = 0; i < linearized_loops(k, facts); ++i) it.count = it.count * steps_of(k, facts, i);
  int64_t points = 1;  // of one linear index
  if (!facts.tiles.empty()) points = facts.lanes.width;
  for (size_t r : facts.repeats) points *= k.outer[r].extent.value();
  if (facts.outer()) {
    it.blocks = sym::ceildiv(k.outer.back().extent, Expr(it.block));
    it.count = it.count * it.blocks;
    auto n = k.outer.back().extent.as_const();
    points *= n ? std::min(it.block, *n) : it.block;
  }
  // A unit of cost takes about 0.02 ns in vectors and 0.3 ns alone.
  it.unit = std::max<int64_t>(points, 1) * (facts.lanes.width > 1 ? 20 : 300);
  const Expr cost = cost_of_point(k);
  it.cost = cost.is_const() ? Expr(std::max<int64_t>(k.cost, 1)) : cost;
  return it;
}

}  // namespace flashover::kernel::cpp
