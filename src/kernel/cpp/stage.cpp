// Long sums are folded in two levels, because the error of one chain grows with its length.
#include "kernel/cpp/stage.h"

#include "kernel/cpp/accumulators.h"
#include "kernel/cpp/index.h"
#include "kernel/cpp/instructions.h"

namespace flashover::kernel::cpp {
namespace {

using loops::Id;
using loops::Instr;
using loops::Op;
using loops::Reduce;

// Vectors of a row that are in flight at once (kInner). As many whatever lies beside a sum where other kernels compute
// the same one.
int inner_copies(const Emission& e, const loops::Stage& s) {
  int work = 0;
  bool folds = false, position = false;
  for (const Instr& in : s.body) {
    if (is_fold(in.op)) {
      folds = true;
      position |= e.k.accs[in.slot].kind >= Reduce::kArgMax;
    }
    work += in.op == Op::k_exp || in.op == Op::k_sigmoid                      ? 6
            : in.op == Op::k_tanh || in.op == Op::k_erf || in.op == Op::k_log ? 12
                                                                              : 1;
  }
  if (!folds || position) return 1;
  int copies = e.k.exact ? 2 : work <= 8 ? 4 : work <= 20 ? 2 : 1;
  if (auto n = s.loops.back().extent.as_const())
    while (copies > 1 && *n < int64_t{copies} * e.facts.lanes.width) copies /= 2;
  return copies;
}

// The second level of long sums.
struct SumBlocks {
  std::vector<int32_t> sums;  // the accumulators that have one
  int64_t block = 0;          // > 0: the innermost loop runs in blocks of so many points, each folded at its end
  bool at_end = false;        // folded after each whole run of the innermost loop
  bool any() const { return block > 0 || at_end; }
};

SumBlocks choose_sum_blocks(const Emission& e, const Scope& s, const std::vector<int32_t>& folded) {
  SumBlocks b;
  const loops::Stage& stage = *s.stage;
  if (s.row_block || stage.loops.empty() || stage.ordered) return b;
  for (int32_t a : folded)
    if (e.k.accs[a].kind == Reduce::kSum && is_floating(e.k.accs[a].dtype)) b.sums.push_back(a);
  if (b.sums.empty()) return b;
  const bool lanes_inside = e.inner() && s.vector;
  const int64_t step = lanes_inside ? int64_t{e.facts.lanes.width} * s.run.copies : 1;
  int64_t chain = lanes_inside ? 64 : 32;
  auto n = stage.loops.back().extent.as_const();
  // Both chains, within a block and over the blocks, are shortest when they are alike.
  while (n && chain * chain * step < *n) chain *= 2;
  if (!n || *n > 2 * chain * step) {
    b.block = chain * step;
  } else if (stage.loops.size() > 1 && *n >= 4 * step) {
    b.at_end = true;
  } else {
    b.sums.clear();
  }
  return b;
}

void begin_sums(Emission& e, const Scope& s, const SumBlocks& blocks) {
  for (int32_t a : blocks.sums)
    for (int u = 0; u < s.vectors(); ++u) {
      const std::string name = acc_name(a, s.vector, u);
      e.out.line("const " + std::string(type_name(class_of(e.k.accs[a].dtype), s.vector)) + " " + name + "s = " + name +
                 ";");
      e.out.line(name + " = " + identity(e, a, s.vector) + ";");
    }
}
void end_sums(Emission& e, const Scope& s, const SumBlocks& blocks) {
  for (int32_t a : blocks.sums)
    for (int u = 0; u < s.vectors(); ++u) {
      const std::string name = acc_name(a, s.vector, u);
      e.out.line(name + " = " + name + "s + " + name + ";");
    }
}

void level(Emission& e, Scope& s, size_t depth, const SumBlocks& blocks);

// The points [from, to) of a row, `copies` vectors at a time, then one, then the first lanes of one.
void lane_loop(Emission& e, Scope& s, size_t depth, const SumBlocks& blocks, const std::string& from,
               const std::string& to) {
  const std::string v = variable(e, s.lanes.variable);
  const auto n = s.stage->loops[depth].extent.as_const();
  const int64_t w = e.facts.lanes.width;
  const int copies = s.run.copies;
  e.out.line("long " + v + " = " + from + ";");
  const std::vector<EmittedValue> values = s.values;
  const auto indirect = s.indirect;
  auto run = [&](const LaneRun& lanes) {
    const LaneRun whole = s.run;
    s.run = lanes;
    level(e, s, depth + 1, blocks);
    s.run = whole;
    s.values = values;
    s.indirect = indirect;
  };
  auto vectors = [&](int many) {
    const std::string step = num(many * w);
    e.out.open("for (; " + v + " + " + step + " <= " + to + "; " + v + " += " + step + ")");
    run({many, ""});
    e.out.close();
  };
  if (!n || *n >= copies * w) vectors(copies);
  if (copies > 1 && (!n || *n % (copies * w) >= w)) vectors(1);
  if (n && *n % w == 0) return;
  e.out.open("if (" + v + " < " + to + ")");
  if (!n) e.out.line("const int n = (int)(" + to + " - " + v + ");");
  run({1, n ? num(*n % w) : "n"});
  e.out.close();
}

// The innermost loop: in blocks where sums have a second level, over the lanes under kInner.
void innermost_loop(Emission& e, Scope& s, size_t depth, const SumBlocks& blocks) {
  const loops::Loop& loop = s.stage->loops[depth];
  const std::string v = variable(e, loop.var), extent = index(e, loop.extent);
  std::string from = s.row_block ? "jb" : "0", to = s.row_block ? "je" : extent;
  if (blocks.block > 0) {
    const std::string block = num(blocks.block);
    from = v + "b", to = v + "e";
    e.out.open("for (long " + from + " = 0; " + from + " < " + extent + "; " + from + " += " + block + ")");
    e.out.line("const long " + to + " = " + from + " + " + block + " < " + extent + " ? " + from + " + " + block +
               " : " + extent + ";");
  } else if (blocks.at_end) {
    e.out.open();
  }
  if (blocks.any()) begin_sums(e, s, blocks);
  if (e.inner() && s.vector) {
    lane_loop(e, s, depth, blocks, from, to);
  } else {
    e.out.open("for (long " + v + " = " + from + "; " + v + " < " + to + "; ++" + v + ")");
    level(e, s, depth + 1, blocks);
    e.out.close();
  }
  if (!blocks.any()) return;
  end_sums(e, s, blocks);
  e.out.close();
}

// Everything of the stage that depends on its first `depth` loops, then the next loop.
void level(Emission& e, Scope& s, size_t depth, const SumBlocks& blocks) {
  const loops::Stage& stage = *s.stage;
  for (size_t i = 0; i < stage.body.size(); ++i) {
    if (s.facts->depth[i] != static_cast<int>(depth)) continue;
    instruction(e, s, static_cast<Id>(i));
    if (loops::info(stage.body[i].op).has_result && is_row_divisor(s, static_cast<Id>(i)))
      e.out.line("const float v" + num(i) + "r = " + e.ns(false) + "div_by(" + s.values[i].text + ");");
  }
  if (depth == stage.loops.size()) return;
  if (s.row_block && stage.loops.size() > 1) {  // one loop over some rows
    if (depth == 0) {
      e.out.open("for (long j = jb; j < je; ++j)");
      for (size_t d = 0; d < stage.loops.size(); ++d)
        e.out.line("const long " + variable(e, stage.loops[d].var) + " = " + row_name(d) + "[j - jb];");
    }
    level(e, s, depth + 1, blocks);
    if (depth == 0) e.out.close();
  } else if (depth + 1 == stage.loops.size()) {
    innermost_loop(e, s, depth, blocks);
  } else {
    const std::string v = variable(e, stage.loops[depth].var);
    e.out.open("for (long " + v + " = 0; " + v + " < " + index(e, stage.loops[depth].extent) + "; ++" + v + ")");
    level(e, s, depth + 1, blocks);
    e.out.close();
  }
}

}  // namespace

std::string row_name(size_t loop) { return "row" + num(loop); }

std::vector<int32_t> folded_accumulators(const loops::Stage& s) {
  std::vector<int32_t> folded;
  for (const Instr& in : s.body)
    if (is_fold(in.op)) folded.push_back(in.slot);
  return folded;
}

void stage(Emission& e, size_t number, const LaneRun& run, bool row_block) {
  const loops::Stage& stage = e.k.stages[number];
  for (size_t i = 0; i < stage.loops.size(); ++i) e.variables[stage.loops[i].var.node()] = "j" + num(i);
  Scope s;
  s.stage = &stage;
  s.facts = &e.facts.stages[number];
  s.values.resize(stage.body.size());
  s.row_block = row_block;
  s.vector = s.facts->vector;
  if (s.vector) {
    s.lanes = lane_loop_of(e.k, e.facts, stage);
    s.lane_text = variable(e, s.lanes.variable);
    s.run = e.inner() ? LaneRun{inner_copies(e, stage), ""} : run;
  }
  const std::vector<int32_t> folded = folded_accumulators(stage);
  // Accumulators outlive their stage, everything else does not.
  if (!row_block)
    for (int32_t a : folded) declare_accumulator(e, s, a);
  const bool braces = !stage.body.empty();
  if (braces) e.out.open();
  level(e, s, 0, choose_sum_blocks(e, s, folded));
  if (braces) e.out.close();
  if (e.inner())
    for (int32_t a : folded) finish_accumulator(e, s, a);
}

}  // namespace flashover::kernel::cpp
