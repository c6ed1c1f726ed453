// A program has rows of its own, along y of its tiles, and goes over all others, along x: queries over keys, or (for
// gradients of keys and values) keys over queries. Sums are f32. Products of f32 operands are made of three products of
// tensor cores, whose error is f32's.
#include "kernel/triton/attention.h"

#include <algorithm>
#include <utility>

#include "kernel/triton/stage.h"

namespace flashover::kernel::triton {
namespace {

using loops::FlexAttention;
using loops::FlexOperand;
using sym::Expr;

constexpr int64_t kLeast = 16;  // rows, columns and depth of a product

int64_t widest(const FlexAttention& a) {
  int64_t w = a.value_width;
  for (const FlexAttention::Score& s : a.scores) w = std::max(w, s.width);
  return w;
}
bool is_columns(const FlexAttention& a) { return a.result == FlexAttention::Result::kColumns; }
bool is_single(const loops::Kernel& k) { return k.params[k.attention->values.slot].dtype == DType::kF32; }

// The largest power of two up to `most` that divides a block.
int64_t part_of(int64_t block, int64_t most) {
  while (block % most) most /= 2;
  return most;
}

std::string indented(const std::string& text, const std::string& by) {
  std::string out;
  for (size_t from = 0, to; (to = text.find('\n', from)) != std::string::npos; from = to + 1)
    out += by + text.substr(from, to - from) + "\n";
  return out;
}

class AttentionText {
 public:
  explicit AttentionText(Emission& e) : e_(e), k_(e.k), a_(*e.k.attention) {}

  void write() {
    e_.wide |= has_wide_offsets();
    name_axes();
    begin_program();
    const std::string begin = std::exchange(e_.out, "");
    if (columns() && a_.group != 1) {
      put("for i1 in range(kh * " + num(a_.group) + ", (kh + 1) * " + num(a_.group) + "):");
      inside_ = "    ";
    }
    if (a_.query_block == 0) {
      put("for begin in range(0, " + size(columns() ? queries() : keys()) + ", " + num(e_.tile.x) + "):");
      tile(true);
    } else {
      blocks(a_.partial, true);
      if (a_.full.counts.given()) blocks(a_.full, false);
    }
    inside_ = "";
    const std::string loops = std::exchange(e_.out, "");
    e_.out = begin + e_.hoisted + loops;
    finish();
  }

 private:
  Expr batch() const { return k_.outer[0].extent; }
  Expr heads() const { return k_.outer[1].extent; }
  Expr queries() const { return k_.outer[2].extent; }
  Expr keys() const { return k_.stages[0].loops[0].extent; }
  bool columns() const { return is_columns(a_); }
  bool weighs() const { return a_.result == FlexAttention::Result::kSoftmax; }
  // The operands of a score whose rows are the program's, and those that it goes over.
  const FlexOperand& own(const FlexAttention::Score& s) const { return columns() ? s.right : s.left; }
  const FlexOperand& other(const FlexAttention::Score& s) const { return columns() ? s.left : s.right; }
  std::string own_row() const { return columns() ? "j0" : "i2"; }
  std::string other_row() const { return columns() ? "i2" : "j0"; }
  std::string own_head() const { return columns() ? key_head() : "i1"; }
  std::string other_head() const { return columns() ? "i1" : key_head(); }
  void put(const std::string& text) { line(e_, inside_ + text); }
  std::string size(Expr e) const { return text(e_.at, e); }
  int64_t padded(int64_t width) const { return std::max(kLeast, power_of_2(width)); }

  // Offsets of the last elements that a program may compute.
  bool has_wide_offsets() const {
    if (!k_.sizes.empty()) return true;
    const auto far = [&](const FlexOperand& o, Expr rows, int64_t width) {
      if (!o.given()) return false;
      const Expr sizes[] = {batch(), heads(), rows, width};
      Expr last = o.offset;
      for (size_t d = 0; d < o.strides.size(); ++d) last += sizes[d] * o.strides[d];
      return !last.is_const() || last.value() > INT32_MAX;
    };
    const int64_t tile = std::max(e_.tile.y, e_.tile.x);
    const Expr most_queries = queries() + tile, most_keys = keys() + tile;
    bool wide = far(a_.values, columns() ? most_queries : most_keys, padded(a_.value_width)) ||
                far(a_.out, columns() ? most_keys : most_queries, padded(a_.value_width));
    for (const FlexAttention::Score& s : a_.scores)
      wide = wide || far(s.left, most_queries, padded(s.width)) || far(s.right, most_keys, padded(s.width));
    return wide;
  }

  std::string at(const FlexOperand& o, const std::vector<std::string>& where) {
    std::string out = "p" + num(o.slot) + (o.offset.is_const(0) ? "" : " + " + divisor(e_.at, o.offset));
    for (size_t d = 0; d < where.size(); ++d) {
      const Expr stride = o.strides[d];
      const bool scalar = where[d] != "i2" && where[d] != "j0" && where[d] != "row";  // (others make the tile's shape)
      if (scalar && stride.is_const(0)) continue;
      out += " + " + where[d] + (stride.is_const(1) ? "" : " * " + divisor(e_.at, stride));
    }
    return out;
  }
  std::string key_head() const { return a_.group == 1 ? "i1" : "kh"; }
  // A row of numbers of which `width` exist; along columns if `turned`.
  std::string elements(const char* name, int64_t width, bool turned) {
    put(std::string(name) + " = tl.arange(0, " + num(padded(width)) + ")" + (turned ? "[:, None]" : "[None, :]"));
    return padded(width) == width ? "" : std::string("(") + name + " < " + num(width) + ")";
  }
  static std::string loaded(const std::string& address, const std::string& mask) {
    return "tl.load(" + address + (mask.empty() ? ")" : ", " + mask + ", 0)");
  }

  void name_axes() {
    e_.at.names[k_.outer[0].var.node()] = {"i0", 0};
    e_.at.names[k_.outer[1].var.node()] = {"i1", 0};
    e_.at.names[k_.outer[2].var.node()] = {"i2", columns() ? kX : kY};
    e_.at.names[k_.stages[0].loops[0].var.node()] = {"j0", columns() ? kY : kX};
    if (!sym::known_divisible(columns() ? keys() : queries(), e_.tile.y)) e_.y_mask = "ym";
    if (!sym::known_divisible(columns() ? queries() : keys(), e_.tile.x)) e_.x_mask = "xm";
  }
  // Which part of which head a program computes.
  void part(Expr parts, Expr heads, const std::string& head) {
    e_.grid = parts * heads * batch();
    put("pid = tl.program_id(0)");
    put("part = pid % " + divisor(e_.at, parts));
    put("head = pid // " + divisor(e_.at, parts));
    put(head + " = (head % " + divisor(e_.at, heads) + ")" + wide_cast(e_));
    put("i0 = (head // " + divisor(e_.at, heads) + ")" + wide_cast(e_));
  }
  void own_rows() {
    put(own_row() + " = part * " + num(e_.tile.y) + " + tl.arange(0, " + num(e_.tile.y) + ")[:, None]" + wide_cast(e_));
    if (!e_.y_mask.empty()) put("ym = " + own_row() + " < " + size(columns() ? keys() : queries()));
  }
  // `row` is the same along y: of values, whose sum a product makes.
  void other_rows() {
    const std::string range = "begin + tl.arange(0, " + num(e_.tile.x) + ")";
    put(other_row() + " = " + range + "[None, :]" + wide_cast(e_));
    put("row = " + range + "[:, None]" + wide_cast(e_));
    if (e_.x_mask.empty()) return;
    const std::string all = size(columns() ? queries() : keys());
    put("xm = " + other_row() + " < " + all);
    put("rm = row < " + all);
  }
  void widths() {
    for (size_t i = 0; i < a_.scores.size(); ++i) {
      own_masks_.push_back(elements(("d" + num(i)).c_str(), a_.scores[i].width, false));
      other_masks_.push_back(elements(("c" + num(i)).c_str(), a_.scores[i].width, true));
    }
    value_mask_ = elements("dv", a_.value_width, false);
    put("acc = tl.zeros([" + num(e_.tile.y) + ", " + num(padded(a_.value_width)) + "], tl.float32)");
  }
  void load_own() {
    for (size_t i = 0; i < a_.scores.size(); ++i)
      put("own" + num(i) + " = " +
          loaded(at(own(a_.scores[i]), {"i0", own_head(), own_row(), "d" + num(i)}),
                 conjunction(e_.y_mask, own_masks_[i])));
  }
  void load_others() {
    for (size_t i = 0; i < a_.scores.size(); ++i)
      put("other" + num(i) + " = " +
          loaded(at(other(a_.scores[i]), {"i0", other_head(), other_row(), "c" + num(i)}),
                 conjunction(e_.x_mask, other_masks_[i])));
  }

  void begin_program() {
    const Tile& t = e_.tile;
    if (columns()) {
      part(sym::ceildiv(keys(), t.y), sym::floordiv(heads(), a_.group), key_head());
    } else {
      part(sym::ceildiv(queries(), t.y), heads(), "i1");
      if (a_.group != 1) put("kh = i1 // " + num(a_.group));
    }
    own_rows();
    if (a_.query_block > 0) put("block = part // " + num((columns() ? a_.key_block : a_.query_block) / t.y));
    widths();
    load_own();
    if (!weighs()) return;
    put("most = tl.full([" + num(t.y) + ", 1], float(\"-inf\"), tl.float32)");
    put("total = tl.zeros([" + num(t.y) + ", 1], tl.float32)");
  }

  void blocks(const FlexAttention::Blocks& b, bool masked) {
    const int64_t listed = columns() ? a_.query_block : a_.key_block, whose = columns() ? a_.key_block : a_.query_block;
    const Expr all = columns() ? queries() : keys(), mine = columns() ? keys() : queries();
    const std::string parts = num(listed / e_.tile.x), last = size(sym::ceildiv(all, listed) - 1);
    // (Lists are data: none is read beyond its end, and they name blocks that exist.)
    const bool all_rows = sym::known_le(sym::ceildiv(mine, whose), b.rows);
    put("count = " + loaded(at(b.counts, {"i0", "i1", "block"}), all_rows ? "" : "block < " + size(b.rows)));
    put("list = " + at(b.indices, {"i0", "i1", "block"}));
    put("for n in range(0, tl.minimum(count, " + size(b.most) + ") * " + parts + "):");
    const std::string stride = b.indices.strides[3].is_const(1) ? "" : " * " + divisor(e_.at, b.indices.strides[3]);
    put("    nth = tl.load(list + n // " + parts + stride + ")");
    put("    begin = tl.maximum(tl.minimum(nth, " + last + "), 0) * " + num(listed) + " + n % " + parts + " * " +
        num(e_.tile.x));
    tile(masked);
  }

  // The program's rows against others, from `begin` on.
  void tile(bool masked) {
    const std::string outside = inside_;
    inside_ += "    ";
    other_rows();
    load_others();
    e_.scratch.clear();
    std::erase_if(e_.available, [&](const Available& v) { return columns() || v.value.axes & kX; });
    if (columns()) e_.memo.clear();
    for (size_t i = 0; i < a_.scores.size(); ++i) {
      const FlexAttention::Score& s = a_.scores[i];
      const std::string n = num(i);
      const bool single = k_.params[s.left.slot].dtype == DType::kF32;
      put("s" + n + " = tl.dot(own" + n + ", other" + n + (single ? ", input_precision=\"tf32x3\"" : "") + ") * " +
          constant(DType::kF32, s.scale, 0));
      set_score(static_cast<int32_t>(i), "s" + n);
    }
    run_stage(0);
    if (masked && k_.stages.size() > 1) run_stage(1);
    if (!e_.x_mask.empty()) put("s0 = tl.where(" + e_.x_mask + ", s0, " + (weighs() ? "float(\"-inf\")" : "0.0") + ")");
    const std::string precise = is_single(k_) ? ", input_precision=\"tf32x3\"" : "";
    const std::string row_mask = e_.x_mask.empty() ? "" : "rm";
    if (weighs()) online_softmax();
    put("values = " + loaded(at(a_.values, {"i0", other_head(), "row", "dv"}), conjunction(row_mask, value_mask_)));
    const std::string weights = weighs() ? "weights" : "s0";
    put("acc = tl.dot(" + weights + ".to(values.dtype), values, acc" + (weighs() ? " * shrink" : "") + precise + ")");
    inside_ = outside;
  }
  void online_softmax() {
    put("now = tl.maximum(most, tl.max(s0, 1, keep_dims=True), propagate_nan=tl.PropagateNan.ALL)");
    put("shift = tl.where((now == float(\"-inf\")) | (now == float(\"inf\")), 0.0, now)");
    put("weights = tl.exp(s0 - shift)");
    put("shrink = tl.exp(most - shift)");
    put("total = total * shrink + tl.sum(weights, 1, keep_dims=True)");
    put("most = now");
  }

  void set_score(int32_t slot, const std::string& name) {
    const Expr at = keys().is_const(1) ? Expr(0) : k_.stages[0].loops[0].var;
    std::erase_if(e_.scratch, [&](const Available& v) { return v.slot == slot; });
    e_.scratch.push_back({slot, at, -1, {name, kX | kY, DType::kF32}});
  }

  // A stage as lines of the loop. What does not depend on the keys stands before it.
  void run_stage(size_t number) {
    const std::string before = std::exchange(e_.out, "");
    stage(e_, number);
    const std::string body = std::exchange(e_.out, before);
    e_.out += indented(body, inside_);
    const EmittedValue made = e_.scratch.back().value;  // the stage's last instruction stores the score
    put("s0 = " + broadcast(e_, made, kX | kY));
    set_score(0, "s0");
  }

  void finish() {
    const DType written = k_.params[a_.out.slot].dtype;
    const std::string mask = conjunction(e_.y_mask, value_mask_);
    const std::string out = at(a_.out, {"i0", own_head(), own_row(), "dv"});
    if (weighs()) put("acc = acc / tl.where(total == 0.0, 1.0, total)");
    put("tl.store(" + out + ", acc.to(" + type_name(written) + ")" + (mask.empty() ? ")" : ", " + mask + ")"));
    if (!weighs()) return;
    const std::string rows = e_.y_mask.empty() ? ")" : ", " + e_.y_mask + ")";
    if (a_.log_sum.given()) {
      put("base = tl.where(most == float(\"inf\"), 0.0, most)");
      put("tl.store(" + at(a_.log_sum, {"i0", "i1", "i2"}) +
          ", tl.where(total == 0.0, float(\"-inf\"), base + tl.log(total))" + rows);
    }
    if (a_.largest.given()) put("tl.store(" + at(a_.largest, {"i0", "i1", "i2"}) + ", most" + rows);
  }

  Emission& e_;
  const loops::Kernel& k_;
  const FlexAttention& a_;
  std::vector<std::string> own_masks_, other_masks_;
  std::string inside_;  // the loops that lines stand in
  std::string value_mask_;
};

}  // namespace

Tile attention_tile(const loops::Kernel& k) {
  const FlexAttention& a = *k.attention;
  const bool single = is_single(k);
  const int64_t width = widest(a);
  Tile t;
  t.points = k.outer;
  t.scatter = true;  // (stages have loops that are no axis of their own)
  const bool forward = a.result == FlexAttention::Result::kSoftmax;
  // Four warps make 64 rows of a product at once: more of them would share fewer rows, and wait for each other.
  t.y = single || width > 128 || (!forward && width <= 64) ? 64 : 128;
  t.x = single || (!forward && width > 128) ? 32 : 64;
  t.warps = width > 64 && (t.y == 128 || (!forward && single)) ? 8 : 4;
  const auto fit = [](int64_t& part, Expr rows, int64_t block) {
    if (rows.is_const()) part = std::min(part, std::max(kLeast, power_of_2(rows.value())));
    if (block > 0) part = part_of(block, part);
  };
  const bool columns = is_columns(a);
  fit(columns ? t.x : t.y, k.outer[2].extent, a.query_block);
  fit(columns ? t.y : t.x, k.stages[0].loops[0].extent, a.key_block);
  if (t.y <= 32) t.warps = std::min(t.warps, 4);
  return t;
}

int attention_stages(const loops::Kernel& k) {
  // What is loaded for each pair of query and key waits in shared memory, too.
  constexpr int64_t kShared = 160 * 1024;
  const FlexAttention& a = *k.attention;
  const Tile t = attention_tile(k);
  const Expr query = k.outer[2].var, key = k.stages[0].loops[0].var;
  int64_t bytes = t.x * power_of_2(a.value_width) * info(k.params[a.values.slot].dtype).bytes;
  for (const FlexAttention::Score& s : a.scores)
    bytes += t.x * power_of_2(s.width) * info(k.params[(is_columns(a) ? s.left : s.right).slot].dtype).bytes;
  for (const loops::Stage& s : k.stages)
    for (const loops::Instr& in : s.body) {
      if (in.op != loops::Op::k_load) continue;
      std::vector<Expr> vars;
      sym::collect_vars(in.index, vars);
      const auto over = [&](Expr v) { return std::find(vars.begin(), vars.end(), v) != vars.end(); };
      if (has_indirect(in.index) || (over(query) && over(key)))
        bytes += t.y * t.x * info(k.params[in.slot].dtype).bytes;
    }
  if (is_single(k) || widest(a) > 128) return 1;
  int stages = 3;
  while (stages > 1 && bytes * stages > kShared) --stages;
  return stages;
}

void attention(Emission& e) { AttentionText(e).write(); }

}  // namespace flashover::kernel::triton
