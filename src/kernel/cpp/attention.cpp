// A task lays out keys and values as the products want them, some at a time, for all of its queries.
#include "kernel/cpp/attention.h"

#include <algorithm>

#include "kernel/cpp/index.h"
#include "kernel/cpp/memory.h"
#include "kernel/cpp/stage.h"

namespace flashover::kernel::cpp {
namespace {

using loops::FlexAttention;
using loops::FlexOperand;
using sym::Expr;

constexpr int64_t kMostRows = 128;    // queries of a task: they share what is laid out of the keys
constexpr int64_t kRowsAtOnce = 32;   // queries whose scores are computed at a time
constexpr int64_t kKeysAtOnce = 128;  // keys at a time

int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// How the queries are cut.
struct Cut {
  int64_t block = 0;   // of queries that see the same keys; 0: all do
  int64_t rows = 0;    // of a task
  int64_t tasks = 1;   // of a block
  Expr of_a_head = 1;  // tasks
};
Cut cut_of(const loops::Kernel& k) {
  Cut c;
  const Expr queries = k.outer[2].extent;
  c.block = k.attention->query_block;
  int64_t most = c.block > 0 ? c.block : kMostRows;
  if (queries.is_const()) most = std::min(most, queries.value());
  c.rows = std::min(kMostRows, up(most, 4));
  c.tasks = c.block > 0 ? (std::min(c.block, up(most, 4)) + c.rows - 1) / c.rows : 1;
  c.of_a_head = c.block > 0 ? sym::ceildiv(queries, c.block) * c.tasks : sym::ceildiv(queries, c.rows);
  return c;
}

class AttentionText {
 public:
  explicit AttentionText(Emission& e) : e_(e), k_(e.k), a_(*e.k.attention), cut_(cut_of(e.k)), w_(e.facts.lanes.width) {
    keys_ = a_.query_block > 0 ? std::min(kKeysAtOnce, a_.key_block) : kKeysAtOnce;
    if (keys().is_const()) keys_ = std::min(keys_, up(keys().value(), w_));
    keys_ = up(keys_, w_);
    values_pitch_ = up(a_.value_width, w_);
  }

  void write() {
    buffers();
    e_.out.open("for (long o = begin; o < end; ++o)");
    task();
    lay_queries();
    e_.out.line("for (long i = 0; i < (q1 - q0 + 3) / 4 * 4; ++i) largest[i] = -__builtin_inff(), totals[i] = 0;");
    e_.out.line("for (long i = 0; i < (q1 - q0 + 3) / 4 * 4 * " + num(values_pitch_) + "; ++i) sums[i] = 0;");
    each_block();
    finish();
    e_.out.close();
  }

 private:
  Expr keys() const { return k_.stages[0].loops[0].extent; }
  std::string suffix(const FlexOperand& o) const { return info(k_.params[o.slot].dtype).name; }
  void line(const std::string& text) { e_.out.line(text); }

  // The address of an element, by texts for its coordinates ("" for 0).
  std::string at(const FlexOperand& o, const std::vector<std::string>& where) {
    std::string out = "p" + num(o.slot) + (o.offset.is_const(0) ? "" : " + " + divisor(e_, o.offset));
    for (size_t d = 0; d < where.size(); ++d) {
      const Expr stride = o.strides[d];
      if (where[d].empty() || stride.is_const(0)) continue;
      out += " + " + where[d] + (stride.is_const(1) ? "" : " * " + divisor(e_, stride));
    }
    return out;
  }
  std::string stride(const FlexOperand& o, size_t d) { return index(e_, o.strides[d]); }
  // The head of keys of query head i1.
  std::string key_head() const { return a_.group == 1 ? "i1" : "(i1 / " + num(a_.group) + ")"; }
  // Values that are read where they lie.
  bool values_in_place() const { return k_.params[a_.values.slot].dtype == DType::kF32 && a_.value_width % w_ == 0; }

  void array(const std::string& name, int64_t elements) {
    line("alignas(64) float " + name + "[" + num(elements) + "];");
  }
  void buffers() {
    for (size_t i = 0; i < a_.scores.size(); ++i) {
      array("left" + num(i), cut_.rows * up(a_.scores[i].width, w_));
      array("right" + num(i), a_.scores[i].width * keys_);
      array("score" + num(i), kRowsAtOnce * keys_);
    }
    if (!values_in_place()) array("values", keys_ * values_pitch_);
    array("sums", cut_.rows * values_pitch_);
    array("largest", cut_.rows);
    array("totals", cut_.rows);
  }

  // Batch, head and queries [q0, q1) of a task. Of a causal mask the last tasks of a head take longest: each thread gets
  // some of both ends.
  void task() {
    const std::string tasks = index(e_, cut_.of_a_head), heads = divisor(e_, k_.outer[1].extent);
    line("const long tasks = " + tasks + ", head = o / tasks, nth = o % tasks;");
    line("const long part = nth % 2 ? tasks - 1 - nth / 2 : nth / 2;");
    line("const long i0 = head / " + heads + ", i1 = head % " + heads + ";");
    const std::string all = index(e_, k_.outer[2].extent);
    if (cut_.block > 0) {
      line("const long block = part / " + num(cut_.tasks) + ";");
      line("const long q0 = block * " + num(cut_.block) + " + part % " + num(cut_.tasks) + " * " + num(cut_.rows) +
           ";");
      line("const long last = (block + 1) * " + num(cut_.block) + " < " + all + " ? (block + 1) * " + num(cut_.block) +
           " : " + all + ";");
    } else {
      line("const long q0 = part * " + num(cut_.rows) + ", last = " + all + ";");
    }
    line("const long q1 = q0 + " + num(cut_.rows) + " < last ? q0 + " + num(cut_.rows) + " : last;");
    line("if (q0 >= q1) continue;");
  }

  void lay_queries() {
    for (size_t i = 0; i < a_.scores.size(); ++i) {
      const FlexAttention::Score& s = a_.scores[i];
      line("lay_rows_" + suffix(s.left) + "(" + at(s.left, {"i0", "i1", "q0"}) + ", " + stride(s.left, 2) +
           ", q1 - q0, " + num(s.width) + ", " + e_.constant(RegisterClass::kF, s.scale, 0, false) + ", left" + num(i) +
           ", " + num(up(s.width, w_)) + ");");
    }
  }

  // The keys that the task sees: those of the blocks that are listed in part and then as a whole, or all.
  void each_block() {
    const std::string all = index(e_, keys());
    if (a_.query_block == 0) {
      line("const bool whole = false;");
      e_.out.open("for (long jb = 0; jb < " + all + "; jb += " + num(keys_) + ")");
      line("const long je = jb + " + num(keys_) + " < " + all + " ? jb + " + num(keys_) + " : " + all + ";");
      tile();
      e_.out.close();
      return;
    }
    const bool full = a_.full.counts.given();
    e_.out.open(std::string("for (int whole = 0; whole < ") + (full ? "2" : "1") + "; ++whole)");
    const auto either = [&](const std::string& part, const std::string& whole) {
      return full ? "whole ? " + whole + " : " + part : part;
    };
    // (Lists are data: none is read beyond its end.)
    const auto count = [&](const FlexAttention::Blocks& b) {
      const std::string rows = index(e_, b.rows), most = index(e_, b.most),
                        counted = "(long)*(" + at(b.counts, {"i0", "i1", "block"}) + ")";
      return "(block < " + rows + " ? index_min(" + counted + ", " + most + ") : 0)";
    };
    const auto list = [&](const FlexAttention::Blocks& b) { return at(b.indices, {"i0", "i1", "block"}); };
    line("const long count = " + either(count(a_.partial), count(a_.full)) + ";");
    line("const int* list = " + either(list(a_.partial), list(a_.full)) + ";");
    const std::string step =
        full ? "(whole ? " + stride(a_.full.indices, 3) + " : " + stride(a_.partial.indices, 3) + ")"
             : stride(a_.partial.indices, 3);
    e_.out.open("for (long n = 0; n < count; ++n)");
    line("const long from = (long)list[n * " + step + "] * " + num(a_.key_block) + ", to = from + " +
         num(a_.key_block) + " < " + all + " ? from + " + num(a_.key_block) + " : " + all + ";");
    line("if (from < 0) continue;");
    e_.out.open("for (long jb = from; jb < to; jb += " + num(keys_) + ")");
    line("const long je = jb + " + num(keys_) + " < to ? jb + " + num(keys_) + " : to;");
    tile();
    for (int i = 0; i < 3; ++i) e_.out.close();
  }

  // Keys [jb, je) for all queries of the task.
  void tile() {
    for (size_t i = 0; i < a_.scores.size(); ++i) {
      const FlexAttention::Score& s = a_.scores[i];
      line("lay_columns_" + suffix(s.right) + "(" + at(s.right, {"i0", key_head(), "jb"}) + ", " + stride(s.right, 2) +
           ", je - jb, " + num(s.width) + ", right" + num(i) + ", " + num(keys_) + ");");
    }
    const std::string values = at(a_.values, {"i0", key_head(), "jb"});
    if (values_in_place())
      line("const float* values = " + values + ";");
    else
      line("lay_rows_" + suffix(a_.values) + "(" + values + ", " + stride(a_.values, 2) + ", je - jb, " +
           num(a_.value_width) + ", 1.f, values, " + num(values_pitch_) + ");");
    e_.out.open("for (long q = q0; q < q1; q += " + num(kRowsAtOnce) + ")");
    line("const long rows = q1 - q < " + num(kRowsAtOnce) + " ? q1 - q : " + num(kRowsAtOnce) +
         ", all = (rows + 3) / 4 * 4;");
    for (size_t i = 0; i < a_.scores.size(); ++i) {
      const std::string n = num(i), pitch = num(up(a_.scores[i].width, w_));
      line("add_product(left" + n + " + (q - q0) * " + pitch + ", " + pitch + ", 1, right" + n + ", " + num(keys_) +
           ", " + num(a_.scores[i].width) + ", score" + n + ", " + num(keys_) +
           ", all, (je - jb + W - 1) / W * W, false);");
    }
    e_.out.open("for (long i2 = q; i2 < q + rows; ++i2)");
    row();
    e_.out.close();
    line("add_product(score0, " + num(keys_) + ", 1, values, " +
         (values_in_place() ? stride(a_.values, 2) : num(values_pitch_)) + ", je - jb, sums + (q - q0) * " +
         num(values_pitch_) + ", " + num(values_pitch_) + ", all, " + num(values_pitch_) + ", true);");
    e_.out.close();
  }

  // One query: its scores by the stages, then weights.
  void row() {
    for (size_t i = 0; i < a_.scores.size(); ++i)
      line("float* r" + num(i) + " = score" + num(i) + " + (i2 - q) * " + num(keys_) + " - jb;");
    const loops::Stage& score = k_.stages[0];
    const bool plain =
        score.body.size() == 2 && score.body[0].op == loops::Op::k_load_scratch && score.body[0].slot == 0;
    if (!plain) stage(e_, 0, {}, true);
    if (k_.stages.size() > 1) {
      if (a_.full.counts.given()) e_.out.open("if (!whole)");
      stage(e_, 1, {}, true);
      if (a_.full.counts.given()) e_.out.close();
    }
    line("const float shrink = weigh_row(r0 + jb, je - jb, largest + (i2 - q0), totals + (i2 - q0));");
    line("if (shrink != 1.f) scale_row(sums + (i2 - q0) * " + num(values_pitch_) + ", " + num(values_pitch_) +
         ", shrink);");
  }

  void finish() {
    e_.out.open("for (long i2 = q0; i2 < q1; ++i2)");
    line("const float most = largest[i2 - q0], total = totals[i2 - q0];");
    line("finish_row_" + suffix(a_.out) + "(sums + (i2 - q0) * " + num(values_pitch_) + ", " + num(a_.value_width) +
         ", total == 0.f ? 0.f : 1.f / total, " + at(a_.out, {"i0", "i1", "i2"}) + ");");
    if (a_.log_sum.given())
      line("*(" + at(a_.log_sum, {"i0", "i1", "i2"}) +
           ") = total == 0.f ? -__builtin_inff() : (most == __builtin_inff() ? 0.f : most) + one_log(total);");
    if (a_.largest.given()) line("*(" + at(a_.largest, {"i0", "i1", "i2"}) + ") = most;");
    e_.out.close();
  }

  Emission& e_;
  const loops::Kernel& k_;
  const FlexAttention& a_;
  const Cut cut_;
  const int64_t w_;
  int64_t keys_ = 0, values_pitch_ = 0;
};

}  // namespace

void attention(Emission& e) {
  if (e.k.attention->result != FlexAttention::Result::kSoftmax)
    throw Declined("sums of flex_attention's backward on a CPU");  // (eager has none)
  AttentionText(e).write();
}

Expr attention_tasks(const loops::Kernel& k) { return k.outer[0].extent * k.outer[1].extent * cut_of(k).of_a_head; }

std::string attention_work(Emission& e) {
  constexpr int64_t kPicoseconds = 20;  // of a multiplication and an addition
  int64_t each = e.k.attention->value_width;
  for (const FlexAttention::Score& s : e.k.attention->scores) each += s.width;
  for (const loops::Stage& s : e.k.stages)
    for (const loops::Instr& in : s.body) each += loops::info(in.op).cost;
  Expr pairs = e.k.stages[0].loops[0].extent;
  for (const loops::Loop& l : e.k.outer) pairs *= l.extent;
  return index(e, pairs) + " * " + num(each * kPicoseconds);
}

}  // namespace flashover::kernel::cpp
