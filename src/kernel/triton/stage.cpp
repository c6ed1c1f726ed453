// Stages with the same loops share the coordinates of their rows.
#include "kernel/triton/stage.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernel/triton/instructions.h"
#include "ops/floats.h"

namespace flashover::kernel::triton {
namespace {

using loops::Id;
using loops::Instr;
using loops::kNone;
using loops::Loop;
using loops::Op;
using loops::Stage;
using loops::StoreMode;
using sym::Expr;

// Values of which more than 16 bits' worth goes on: to memory, into a reduction, into a choice or an address.
std::vector<bool> exact_values(const loops::Kernel& k, const Stage& s) {
  std::vector<bool> exact(s.body.size(), k.exact);
  for (size_t i = s.body.size(); i-- > 0;) {
    const Instr& in = s.body[i];
    bool passes = exact[i];
    if (in.op == Op::k_store) {
      passes = !is_reduced(k.params[in.slot].dtype) || in.mode != StoreMode::kSet;
    } else if (in.op == Op::k_round_to) {
      passes = is_eight_bit_float(in.narrow);
    } else if (!loops::info(in.op).has_result || in.op == Op::k_scan || in.op == Op::k_indirect ||
               in.dtype == DType::kBool) {
      passes = true;
    }
    for (Id a : in.args)
      if (a != kNone && passes) exact[a] = true;
    if (in.mask != kNone) exact[in.mask] = true;
  }
  return exact;
}

// The linear index of a row's points, and the coordinates of its loops.
void row(Emission& e, const Stage& s) {
  StageState& st = e.stage;
  st.looped = !e.tile.persistent;
  Expr total = 1;
  std::vector<const sym::Node*> key;
  for (const Loop& l : s.loops) {
    total *= l.extent;
    key.push_back(l.var.node());
  }
  e.r = e.tile.persistent ? power_of_2(total.hint()) : e.tile.r;
  const auto [entry, first] = e.rows.try_emplace(key, static_cast<int>(e.rows.size()));
  st.row = entry->second;
  // Coordinates of chunks change in the loop; those of whole rows are written once.
  const auto write = [&, first = first](const std::string& text) {
    if (st.looped) {
      stage_line(e, text);
    } else if (first) {
      line(e, text);
    }
  };
  const std::string r = "r" + num(st.row), arange = "tl.arange(0, " + num(e.r) + ")[None, :]" + wide_cast(e);
  if (st.looped) st.header = "    for start in range(0, " + text(e.at, total) + ", " + num(e.r) + "):\n";
  write(r + " = " + (st.looped ? "start + " : "") + arange);
  const bool fours = e.random && e.r % 4 == 0;
  if (fours)
    write(r + "q = " + (st.looped ? "start + " : "") + "4 * tl.arange(0, " + num(e.r / 4) + ")[None, :]" +
          wide_cast(e));
  if (!sym::known_divisible(total, e.r)) {
    st.r_mask = r + "m";
    write(st.r_mask + " = " + r + " < " + text(e.at, total));
  }
  linearize(e.at, s.loops, 1, r, kR, fours);
  std::vector<NamedLoop> nest;
  for (size_t n = 0; n < s.loops.size(); ++n) nest.push_back({&s.loops[n], "j" + num(n) + "_" + num(st.row)});
  delinearize(e, nest, r, kR, fours, write);
}

// Threads of a program wait for each other before a stage that reads from memory what an earlier one stored, and before
// one that stores over what another thread may still have to read (its own parameter, or one that may lie over it).
void barrier(Emission& e, const Stage& s) {
  if (!e.tile.rows) return;
  const std::vector<loops::Param>& params = e.k.params;
  e.loaded.resize(params.size());
  e.stored.resize(params.size());
  bool wait = false;
  const bool folded = std::any_of(s.body.begin(), s.body.end(), [](const Instr& i) { return i.op == Op::k_acc; });
  for (int32_t slot : e.stage.loads) wait |= e.stored[slot];
  for (const Instr& i : s.body) {
    if (i.op != Op::k_store || (folded && e.tile.persistent)) continue;
    const loops::Param& p = params[i.slot];
    for (size_t other = 0; other < params.size(); ++other)
      wait |= e.loaded[other] && (static_cast<int32_t>(other) == i.slot ||
                                  (params[other].dtype == p.dtype && params[other].numel == p.numel));
  }
  if (wait) {
    line(e, "tl.debug_barrier()");
    e.loaded.assign(params.size(), false);
    e.stored.assign(params.size(), false);
  }
  for (int32_t slot : e.stage.loads) e.loaded[slot] = true;
  for (const Instr& i : s.body)
    if (i.op == Op::k_store) e.stored[i.slot] = true;
}

// The linear index of the stage before (letter 1: see row()).
void forget_rows(Coordinates& c) {
  while (!c.linearized.empty() && c.linearized.back().whole.name().starts_with("f1.")) c.linearized.pop_back();
}

// Loads of what no kernel writes, at places that are known at once: a row of a matrix is on its way while the kernels
// in front end.
void early_loads(Emission& e, const Stage& s, std::vector<bool>& done) {
  for (size_t i = 0; i < s.body.size(); ++i) {
    const Instr& in = s.body[i];
    if (in.op != Op::k_load || in.mask != kNone || !e.k.params[in.slot].steady || has_indirect(in.index)) continue;
    instruction(e, static_cast<Id>(i));
    done[i] = true;
  }
}

}  // namespace

void wait_for_kernels_before(Emission& e) {
  if (e.early && !e.waited) line(e, "lib.wait_for_kernels_before()");
  e.waited = true;
}

void stage(Emission& e, size_t number) {
  const Stage& s = e.k.stages[number];
  e.stage = {};
  e.stage.stage = &s;
  e.stage.values.resize(s.body.size());
  e.stage.exact = exact_values(e.k, s);
  e.stage.ranges = narrow_ranges(s);
  e.stage.in_row = e.tile.rows && !s.loops.empty();
  forget_rows(e.at);
  if (e.stage.in_row) {
    row(e, s);
  } else if (!e.tile.rows && !s.loops.empty() && !e.tile.scatter) {
    throw Declined("triton: a loop without a row");
  }
  std::vector<bool> done(s.body.size());
  if (e.early && !e.waited && e.stage.in_row && !e.stage.looped) {
    early_loads(e, s, done);
    e.out += std::exchange(e.stage.before, "") + std::exchange(e.stage.body, "");
  }
  if (!e.role.operand_of) wait_for_kernels_before(e);
  for (size_t i = 0; i < s.body.size(); ++i)
    if (!done[i]) instruction(e, static_cast<Id>(i));
  barrier(e, s);
  e.out += e.stage.before + e.stage.header + e.stage.body + e.stage.after;
}

}  // namespace flashover::kernel::triton
