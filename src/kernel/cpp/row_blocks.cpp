// Arrays m hold the running accumulators of all columns, arrays s the sums of finished chains of rows (the second level
// of stage.cpp).
#include "kernel/cpp/row_blocks.h"

#include <algorithm>

#include "kernel/cpp/accumulators.h"
#include "kernel/cpp/index.h"
#include "kernel/cpp/outer.h"
#include "kernel/cpp/scalar.h"
#include "kernel/cpp/stage.h"

namespace flashover::kernel::cpp {
namespace {

using loops::Instr;
using loops::Op;
using loops::Reduce;

constexpr int64_t kRows = 8;         // in registers
constexpr int64_t kColumns = 4096;   // whose accumulators are in the array
constexpr int64_t kWorth = 1 << 16;  // elements: what fits the cache is read as well in any order

// 0 if unknown.
int64_t rows_of(const loops::Stage& s) {
  int64_t rows = 1;
  for (const loops::Loop& l : s.loops) rows *= l.extent.as_const().value_or(0);
  return rows;
}

// How an accumulator is declared, in registers and in the arrays.
std::string vector_of(const loops::Accumulator& a) { return type_name(class_of(a.dtype), true) + std::string(" "); }

// Blocks of columns whose accumulators are in the arrays.
int64_t column_blocks(const Emission& e) {
  const int64_t columns = kColumns / static_cast<int64_t>(e.k.accs.size());
  return std::max<int64_t>(1, columns / e.iteration.block);
}

bool fits_row_blocks(const Emission& e, const loops::Stage& s, const StageFacts& facts) {
  if (s.ordered || !facts.vector) return false;
  std::vector<bool> written(e.k.params.size());
  for (const Instr& in : s.body)
    if (in.op == Op::k_store) written[in.slot] = true;
  for (size_t i = 0; i < s.body.size(); ++i) {
    const Op op = s.body[i].op;
    if (op == Op::k_scan || op == Op::k_indirect) return false;
    // What does not depend on the row is done again for each block of rows.
    if (!s.loops.empty() && facts.depth[i] == 0 && (op == Op::k_store || (op == Op::k_load && written[s.body[i].slot])))
      return false;
  }
  return s.loops.empty() || rows_of(s) >= 4 * kRows;
}

// "for (v in [from, to) by `by`)": opens a loop over [vb, ve).
void open_blocks(Emission& e, const std::string& v, const std::string& from, const std::string& to, int64_t by) {
  e.out.open("for (long " + v + "b = " + from + "; " + v + "b < " + to + "; " + v + "b += " + num(by) + ")");
  e.out.line("const long " + v + "e = " + v + "b + " + num(by) + " < " + to + " ? " + v + "b + " + num(by) + " : " +
             to + ";");
}

// The loop variables of rows [jb, je) of a stage that has several loops.
void number_rows(Emission& e, const loops::Stage& s) {
  for (size_t d = 0; d < s.loops.size(); ++d) e.out.line("long " + row_name(d) + "[" + num(kRows) + "];");
  e.out.open("for (long j = jb; j < je; ++j)");
  e.out.line("long rest = j;");
  for (size_t d = s.loops.size(); d-- > 0;) {
    const std::string n = num(s.loops[d].extent.value());
    e.out.line(row_name(d) + "[j - jb] = rest % " + n + ";");
    if (d > 0) e.out.line("rest /= " + n + ";");
  }
  e.out.close();
}

// One stage for some vectors of columns: accumulators come out of the arrays and go back.
void stage_of_columns(Emission& e, size_t number, const LaneRun& run) {
  const std::string at = "[(" + variable(e, e.k.outer[0].var) + " - ob * " + num(e.iteration.block) + ") / " +
                         num(e.facts.lanes.width) + " + ";
  std::vector<bool> folds(e.k.accs.size()), reads(e.k.accs.size());
  for (const Instr& in : e.k.stages[number].body) {
    if (is_fold(in.op)) folds[in.slot] = true;
    if (in.op == Op::k_acc) reads[in.slot] = true;
  }
  for (size_t a = 0; a < e.k.accs.size(); ++a)
    for (int u = 0; u < run.copies; ++u) {
      const std::string name = acc_name(static_cast<int32_t>(a), true, u);
      if (folds[a])
        e.out.line(vector_of(e.k.accs[a]) + name + " = m" + num(a) + at + num(u) + "];");
      else if (reads[a])
        e.out.line("const " + vector_of(e.k.accs[a]) + name + " = s" + num(a) + at + num(u) + "];");
    }
  stage(e, number, run, true);
  for (size_t a = 0; a < e.k.accs.size(); ++a)
    for (int u = 0; u < run.copies && folds[a]; ++u)
      e.out.line("m" + num(a) + at + num(u) + "] = " + acc_name(static_cast<int32_t>(a), true, u) + ";");
}

void stage_of_blocks(Emission& e, size_t number) {
  e.out.open("for (long o = ob; o < oe; ++o)");
  e.out.line("const long block = o;");
  lanes_of_block(e, [&](const LaneRun& run) { stage_of_columns(e, number, run); });
  e.out.close();
}

// A stage with loops: chains of rows, a few rows at a time; a chain's accumulators are folded into the sums.
void stage_of_rows(Emission& e, size_t number) {
  const loops::Stage& s = e.k.stages[number];
  const int64_t rows = rows_of(s);
  int64_t chain = 32;  // as choose_sum_blocks() has it
  while (chain * chain < rows) chain *= 2;
  open_blocks(e, "k", "0", num(rows), chain);
  open_blocks(e, "j", "kb", "ke", kRows);
  if (s.loops.size() > 1) number_rows(e, s);
  stage_of_blocks(e, number);
  e.out.close();
  if (const std::vector<int32_t> folds = folded_accumulators(s); !folds.empty()) {
    e.out.open("for (int q = 0; q < (oe - ob) * " + num(e.iteration.unroll) + "; ++q)");
    for (int32_t a : folds) {
      const std::string m = "m" + num(a) + "[q]", sum = "s" + num(a) + "[q]";
      e.out.line(sum + " = " + folded(e, a, sum, m, true) + ";");
      e.out.line(m + " = " + identity(e, a, true) + ";");
    }
    e.out.close();
  }
  e.out.close();
}

}  // namespace

bool is_row_blocked(const Emission& e) {
  const loops::Kernel& k = e.k;
  if (!e.outer() || k.outer.size() != 1 || !e.facts.tiles.empty() || !k.scratch.empty() || e.facts.shared) return false;
  const auto columns = k.outer[0].extent.as_const();
  if (!columns || *columns <= e.iteration.block || k.accs.empty()) return false;
  for (const loops::Accumulator& a : k.accs)
    if ((a.dtype != DType::kF32 && a.dtype != DType::kF64) || a.kind > Reduce::kMin) return false;
  bool large = false;
  for (size_t i = 0; i < k.stages.size(); ++i) {
    if (!fits_row_blocks(e, k.stages[i], e.facts.stages[i])) return false;
    large |= !k.stages[i].loops.empty() && rows_of(k.stages[i]) * *columns >= kWorth;
  }
  return large;
}

void row_blocked_reduction(Emission& e) {
  const std::string together = num(column_blocks(e)), unroll = num(e.iteration.unroll);
  const std::string vectors = num(column_blocks(e) * e.iteration.unroll);
  e.out.open("for (long ob = begin; ob < end; ob += " + together + ")");
  e.out.line("const long oe = ob + " + together + " < end ? ob + " + together + " : end;");
  for (size_t a = 0; a < e.k.accs.size(); ++a) {
    const std::string m = "m" + num(a), sum = "s" + num(a);
    e.out.line(vector_of(e.k.accs[a]) + m + "[" + vectors + "], " + sum + "[" + vectors + "];");
    e.out.line("for (int q = 0; q < (oe - ob) * " + unroll + "; ++q) " + m + "[q] = " + sum +
               "[q] = " + identity(e, static_cast<int32_t>(a), true) + ";");
  }
  for (size_t i = 0; i < e.k.stages.size(); ++i)
    e.k.stages[i].loops.empty() ? stage_of_blocks(e, i) : stage_of_rows(e, i);
  e.out.close();
}

}  // namespace flashover::kernel::cpp
