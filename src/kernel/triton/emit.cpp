// loops::Kernel -> the text of one Triton function. See triton.h for the shape of it.
#include <algorithm>
#include <map>
#include <optional>

#include "base/check.h"
#include "base/decimal.h"
#include "kernel/triton/scalar.h"
#include "kernel/triton/tile.h"
#include "kernel/triton/triton.h"
#include "ops/floats.h"

namespace flashover::kernel::triton {
namespace {

using loops::Id;
using loops::Instr;
using loops::kNone;
using loops::Loop;
using loops::Op;
using loops::Reduce;
using loops::Stage;
using loops::StoreMode;
using sym::Expr;

std::string num(int64_t v) { return std::to_string(v); }

// The axes of the tile that a value differs along.
using Axes = uint8_t;
constexpr Axes kX = 1, kR = 2, kY = 4;

struct Value {
  std::string text;  // a name or a literal
  Axes axes = 0;
  DType dtype = DType::kF32;  // kI32 for an i64 value that provably fits
  bool literal = false;
  std::string rounded;  // its name in the 16-bit type that it was rounded to
  DType rounded_to = DType::kUndefined;
};

struct Bounds {
  int64_t lo, hi;
  bool narrow() const { return lo >= INT32_MIN && hi <= INT32_MAX; }
};

class Emitter {
 public:
  Emitter(const loops::Kernel& k, const Gpu& gpu) : k_(k), tile_(choose_tile(k, gpu)) {}
  explicit Emitter(const loops::Product& p) : k_(p.epilogue), tile_(tile_of(p, p.tile.m, p.tile.n)), product_(&p) {}
  // Of an operand of a product: side 0 or 1.
  Emitter(const loops::Product& p, size_t side)
      : k_(p.prologue[side].kernel),
        tile_(tile_of(p, side ? p.tile.k : p.tile.m, side ? p.tile.n : p.tile.k)),
        operand_(&p),
        side_(side),
        parameter_(side ? "q" : "o"),
        temporary_(side ? "b" : "a") {}

  Source run() {
    wide_ = needs_wide();
    for (size_t i = 0; i < k_.sizes.size(); ++i) names_[k_.sizes[i].node()] = {"n" + num(static_cast<int64_t>(i)), 0};
    for (const Stage& s : k_.stages)
      random_ |= std::any_of(s.body.begin(), s.body.end(),
                             [](const Instr& i) { return loops::is_random(i.op) && i.integer >= 4; });
    fast_ = !k_.exact;
    for (const loops::Param& p : k_.params) fast_ &= !p.written || !is_floating(p.dtype) || is_reduced(p.dtype);
    product_ ? product() : points();
    for (size_t s = 0; s < k_.stages.size(); ++s) stage(s);
    return finish();
  }

 private:
  static Tile tile_of(const loops::Product& p, int32_t rows, int32_t columns) {
    Tile t;
    t.points = p.epilogue.outer;
    t.y = rows;
    t.x = columns;
    t.warps = p.tile.warps;
    return t;
  }

  // ---- a product: rows m along y, columns n along x, the sum in acc
  void product() {
    const loops::Product& p = *product_;
    const loops::ProductTile& t = p.tile;
    const int64_t gm = (p.m + t.m - 1) / t.m, gn = (p.n + t.n - 1) / t.n;
    grid_ = p.batch * gm * gn;
    // Offsets of the last element that a program may compute, masked or not.
    const auto far = [&](int64_t rows, int64_t columns, const std::array<int64_t, 3>& strides) {
      return p.batch * strides[0] + rows * strides[1] + columns * strides[2] > INT32_MAX;
    };
    wide_ |=
        p.batch * gm * t.m * gn * t.n > INT32_MAX || far(gm * t.m, p.k + t.k, p.a) || far(p.k + t.k, gn * t.n, p.b);
    std::array<std::optional<Emitter>, 2> before;
    for (size_t side = 0; side < 2; ++side) {
      if (!p.prologue[side].given()) continue;
      before[side].emplace(p, side);
      wide_ |=
          before[side]->needs_wide() || p.batch * (side ? (p.k + t.k) * gn * t.n : gm * t.m * (p.k + t.k)) > INT32_MAX;
    }
    const std::string wide = wide_ ? ".to(tl.int64)" : "";
    // Programs that run together share rows and columns.
    constexpr int64_t kTogether = 8;
    const std::string width = num(kTogether * gn);
    line("pid = tl.program_id(0)");
    if (p.batch > 1) {
      line("z = (pid // " + num(gm * gn) + ")" + wide);
      line("pid = pid % " + num(gm * gn));
    }
    line("first = pid // " + width + " * " + num(kTogether));
    line("height = tl.minimum(" + num(gm) + " - first, " + num(kTogether) + ")");
    line("m = (first + pid % " + width + " % height) * " + num(t.m) + " + tl.arange(0, " + num(t.m) + ")[:, None]" +
         wide);
    line("n = (pid % " + width + " // height) * " + num(t.n) + " + tl.arange(0, " + num(t.n) + ")[None, :]" + wide);
    if (p.m % t.m) line("ym = m < " + num(p.m)), y_mask_ = "ym";
    if (p.n % t.n) line("xm = n < " + num(p.n)), x_mask_ = "xm";
    line("k = tl.arange(0, " + num(t.k) + ")");
    const auto times = [](const std::string& index, int64_t stride) {
      return stride == 1 ? index : index + " * " + num(stride);
    };
    const auto begin = [&](const char* pointer, const std::array<int64_t, 3>& strides, const std::string& row,
                           const std::string& column) {
      return std::string(pointer) + (p.batch > 1 && strides[0] ? " + " + times("z", strides[0]) : "") + " + " +
             times(row, strides[1]) + " + " + times(column, strides[2]);
    };
    if (!before[0]) line("a_at = " + begin("a", p.a, "m", "k[None, :]"));
    if (!before[1]) line("b_at = " + begin("b", p.b, "k[:, None]", "n"));
    line("acc = tl.zeros(" + shape(kX | kY) + ", tl.float32)");
    line("for start in range(0, " + num(p.k) + ", " + num(t.k) + "):");
    const auto load = [&](const std::string& at, const std::string& outer, const std::string& inner) {
      std::string mask = outer;
      if (p.k % t.k) mask += (mask.empty() ? "(" : " & (") + inner + " < " + num(p.k) + " - start)";
      return "tl.load(" + at + (mask.empty() ? "" : ", " + mask + ", 0") + ")";
    };
    std::array<std::string, 2> operands = {load("a_at", y_mask_, "k[None, :]"), load("b_at", x_mask_, "k[:, None]")};
    for (size_t side = 0; side < 2; ++side)
      if (before[side]) operands[side] = operand(*before[side]);
    line("    acc = tl.dot(" + operands[0] + ", " + operands[1] + ", acc)");
    if (!before[0]) line("    a_at += " + num(t.k * p.a[2]));
    if (!before[1]) line("    b_at += " + num(t.k * p.b[1]));
    if (p.bias != DType::kUndefined)
      line("acc += tl.load(bias + n" + (x_mask_.empty() ? "" : ", " + x_mask_ + ", 0") + ").to(tl.float32)");
    if (p.relu) line("acc = tl.where(acc < 0, 0.0, acc)");
    coordinates(k_.outer, p.batch, {p.m, "m", kY}, {p.n, "n", kX});
  }

  // Puts what an operand's own kernel computes into the loop of the product; the name of the result.
  std::string operand(Emitter& e) {
    const loops::Product& p = *product_;
    e.wide_ = wide_;
    const bool partial = p.k % p.tile.k != 0;
    const std::string wide = wide_ ? ".to(tl.int64)" : "";
    if (e.side_ == 0) {
      line("    ka = start + k[None, :]" + wide);
      if (partial) line("    kam = ka < " + num(p.k)), e.x_mask_ = "kam";
      e.y_mask_ = y_mask_;
    } else {
      line("    kb = start + k[:, None]" + wide);
      if (partial) line("    kbm = kb < " + num(p.k)), e.y_mask_ = "kbm";
      e.x_mask_ = x_mask_;
    }
    e.fast_ = !e.k_.exact;  // the operand has 16 bits
    const Side rows = e.side_ ? Side{p.k, "kb", kY} : Side{p.m, "m", kY};
    const Side columns = e.side_ ? Side{p.n, "n", kX} : Side{p.k, "ka", kX};
    if (p.prologue[e.side_].turned)
      e.coordinates(e.k_.outer, p.batch, columns, rows);
    else
      e.coordinates(e.k_.outer, p.batch, rows, columns);
    e.stage(0);
    for (size_t from = 0, to; (to = e.out_.find('\n', from)) != std::string::npos; from = to + 1)
      out_ += "    " + e.out_.substr(from, to + 1 - from);
    asserts_ |= e.asserts_;
    return e.result_;
  }

  // Loops that go over matrices as they lie in memory, by the numbers of the matrix (z), the row and the column.
  struct Side {
    int64_t extent;
    std::string name;
    Axes axes;
  };
  void coordinates(const std::vector<Loop>& loops, int64_t batch, const Side& slow, const Side& fast) {
    const auto spread = [&](size_t from, size_t to, char letter, const std::string& whole, Axes axes) {
      join({loops.begin() + static_cast<std::ptrdiff_t>(from), loops.begin() + static_cast<std::ptrdiff_t>(to)}, letter,
           whole, axes);
      int64_t below = 1;
      for (size_t i = to; i-- > from; below *= loops[i].extent.value()) {
        std::string c = whole;
        if (below != 1) c += " // " + num(below);
        if (i > from) c = (below == 1 ? c : "(" + c + ")") + " % " + num(loops[i].extent.value());
        const std::string name = c == whole ? whole : temporary_ + "i" + num(static_cast<int64_t>(i));
        if (name != whole) line(name + " = " + c);
        names_[loops[i].var.node()] = {name, axes};
      }
    };
    // The loops that make up exactly so many points, counted from the last one.
    const auto split = [&](size_t end, int64_t points) -> std::optional<size_t> {
      int64_t inside = 1;
      while (end > 0 && inside < points) inside *= loops[--end].extent.value();
      if (inside != points) return std::nullopt;
      while (end > 0 && loops[end - 1].extent.is_const(1)) --end;
      return end;
    };
    const std::optional<size_t> inner = split(loops.size(), fast.extent);
    const std::optional<size_t> middle = inner ? split(*inner, slow.extent) : std::nullopt;
    if (middle) {
      if (batch > 1)
        spread(0, *middle, 5, "z", 0);
      else
        for (size_t i = 0; i < *middle; ++i) names_[loops[i].var.node()] = {"0", 0};
      spread(*middle, *inner, 2, slow.name, slow.axes);
      spread(*inner, loops.size(), 3, fast.name, fast.axes);
    } else {
      const std::string x = temporary_ + "x";
      std::string row = slow.name;
      if (batch > 1) row = "(z * " + num(slow.extent) + " + " + row + ")";
      line(x + " = " + row + " * " + num(fast.extent) + " + " + fast.name);
      spread(0, loops.size(), 4, x, kX | kY);
    }
  }

  struct Name {
    std::string text;
    Axes axes = 0;
  };
  // A place that a value was loaded from or stored to; valid while nothing else is stored to that parameter.
  struct Known {
    int32_t slot;
    Expr index;
    int set;  // number of the stage's loops; -1 where the value does not depend on them
    Value value;
  };

  // ---- index arithmetic
  static bool fits(Expr e) {
    const sym::Range r = e.range();
    if (r.lo < INT32_MIN || r.hi > INT32_MAX) return false;
    return std::all_of(e.operands().begin(), e.operands().end(), fits);
  }
  bool needs_wide() const {
    if (!k_.sizes.empty()) return true;  // nothing is known of their product
    int64_t n = 1;
    for (const Loop& l : tile_.points) n *= l.extent.value();
    if (n > INT32_MAX - (1 << 17)) return true;
    for (const Stage& s : k_.stages) {
      int64_t r = 1;
      for (const Loop& l : s.loops) r *= l.extent.value();
      if (r > INT32_MAX - (1 << 17)) return true;
      for (const Instr& in : s.body) {
        if (in.op == Op::k_indirect && !fits(in.hi)) return true;
        if (in.op != Op::k_indirect && !fits(in.index)) return true;
        if (!fits(in.lo) || !fits(in.hi)) return true;
      }
    }
    return false;
  }
  Axes axes_of(Expr e) const {
    std::vector<Expr> vars;
    sym::collect_vars(e, vars);
    Axes axes = 0;
    for (Expr v : vars) axes |= names_.at(v.node()).axes;
    return axes;
  }
  // Coordinates that only put the number they came from together again.
  Expr joined(Expr e) const {
    for (const auto& join : joins_) {
      const auto& loops = join.first;
      const auto last = sym::coefficient(e, loops.back().var);
      if (!last || !last->is_const() || last->is_const(0)) continue;
      Expr stride = *last;
      bool all = true;
      for (size_t i = loops.size(); i-- > 0 && all;) {
        const auto c = sym::coefficient(e, loops[i].var);
        all = c && sym::known_eq(*c, stride);
        stride *= loops[i].extent;
      }
      if (!all) continue;
      e = sym::substitute(e, [&](Expr v) -> std::optional<Expr> {
        for (const Loop& l : loops)
          if (l.var == v) return Expr(0);
        return std::nullopt;
      });
      e += *last * join.second;
    }
    return e;
  }
  std::string index(Expr e) const { return text(joined(e)); }
  void join(const std::vector<Loop>& loops, char letter, const std::string& name, Axes axes, bool fours = false) {
    if (loops.size() < 2) return;
    Expr total = 1;
    for (const Loop& l : loops) total *= l.extent;
    if (total.range().hi == sym::Range::kInf) return;
    const Expr whole = loops::loop_var('f', letter, total);
    names_[whole.node()] = {name, axes};
    if (fours) fours_[whole.node()] = name + "q";
    joins_.emplace_back(loops, whole);
  }
  std::string atom(Expr e) const {
    std::string s = text(e);
    return e.kind() == sym::Kind::kAdd || (e.is_const() && e.value() < 0) ? "(" + s + ")" : s;
  }
  std::string text(Expr e) const {
    const auto ops = e.operands();
    switch (e.kind()) {
      case sym::Kind::kConst:
        return num(e.value());
      case sym::Kind::kVar:
        if (by_fours_)
          if (auto it = fours_.find(e.node()); it != fours_.end()) return it->second;
        return names_.at(e.node()).text;
      case sym::Kind::kAdd: {
        std::string out;
        for (Expr o : ops) {
          std::string term = text(o);
          if (out.empty()) {
            out = term;
          } else if (term[0] == '-') {
            out += " - " + term.substr(1);
          } else {
            out += " + " + term;
          }
        }
        return out;
      }
      case sym::Kind::kMul: {
        if (ops[0].is_const(-1)) {
          std::string rest;
          for (Expr o : ops.subspan(1)) rest += (rest.empty() ? "" : " * ") + atom(o);
          return "-" + (ops.size() > 2 ? "(" + rest + ")" : rest);
        }
        std::string out;
        for (Expr o : ops) out += out.empty() ? (o.is_const() ? text(o) : atom(o)) : " * " + atom(o);
        return out;
      }
      // Triton divides towards zero.
      case sym::Kind::kFloorDiv:
        if (ops[0].range().lo < 0) return "lib.floor_div(" + text(ops[0]) + ", " + text(ops[1]) + ")";
        return "(" + atom(ops[0]) + " // " + atom(ops[1]) + ")";
      case sym::Kind::kMod:
        if (ops[0].range().lo < 0) return "lib.floor_mod(" + text(ops[0]) + ", " + text(ops[1]) + ")";
        return "(" + atom(ops[0]) + " % " + atom(ops[1]) + ")";
      case sym::Kind::kMin:
      case sym::Kind::kMax: {
        std::string out = text(ops[0]);
        for (Expr o : ops.subspan(1))
          out = (e.kind() == sym::Kind::kMin ? "tl.minimum(" : "tl.maximum(") + out + ", " + text(o) + ")";
        return out;
      }
    }
    return "";
  }

  // ---- shapes
  bool rows() const { return tile_.rows; }
  std::string shape(Axes axes) const {
    if (rows()) return "[" + num(axes & kX ? tile_.x : 1) + ", " + num(axes & kR ? r_ : 1) + "]";
    if (tile_.y) return "[" + num(axes & kY ? tile_.y : 1) + ", " + num(axes & kX ? tile_.x : 1) + "]";
    return "[" + num(tile_.x) + "]";
  }
  Axes all_axes(bool r) const {
    return rows() ? static_cast<Axes>(kX | (r ? kR : 0)) : tile_.y ? static_cast<Axes>(kX | kY) : kX;
  }
  std::string widen(const std::string& index, Axes from, Axes to) const {
    return from == to ? index : index + " + tl.zeros(" + shape(to) + ", tl.int32)";
  }
  // The whole shape, as reductions and scans need it.
  std::string broadcast(const Value& v, Axes to) const {
    if (v.literal || v.axes == 0) return "tl.full(" + shape(to) + ", " + v.text + ", " + type_name(v.dtype) + ")";
    return v.axes == to ? v.text : "tl.broadcast_to(" + v.text + ", " + shape(to) + ")";
  }

  void line(const std::string& text) { out_ += "    " + text + "\n"; }
  void inside(const std::string& text) { body_ += (looped_ ? "        " : "    ") + text + "\n"; }
  void put(Axes axes, const std::string& text) {
    looped_ && !(axes & kR) ? before_ += "    " + text + "\n" : (inside(text), "");
  }
  std::string fresh(const char* prefix) { return temporary_ + prefix + num(next_++); }

  // Behind numbers that indices are made of.
  const char* wide() const { return wide_ ? ".to(tl.int64)" : ""; }

  // ---- the program's points
  void points() {
    std::vector<const Loop*> flat;
    for (size_t i = 0; i < tile_.points.size(); ++i)
      if (!tile_.y || (static_cast<int32_t>(i) != tile_.across && i + 1 < tile_.points.size()))
        flat.push_back(&tile_.points[i]);
    Expr total = 1;
    for (const Loop* l : flat) total *= l->extent;
    const std::string pid = wide_ ? "tl.program_id(0).to(tl.int64)" : "tl.program_id(0)";
    std::string x = "x";
    Axes axes = kX;
    bool fours = false;  // each fourth point, for random numbers
    if (tile_.y) {
      const Loop &a = tile_.points[static_cast<size_t>(tile_.across)], &b = tile_.points.back();
      const Expr na = sym::ceildiv(a.extent, tile_.y), nb = sym::ceildiv(b.extent, tile_.x);
      grid_ = na * nb * total;
      line("pid = " + pid);
      const std::string ia = "i" + num(tile_.across), ib = "i" + num(static_cast<int64_t>(tile_.points.size()) - 1);
      const std::string column = nb.is_const(1)  ? ""
                                 : nb.is_const() ? "pid % " + num(nb.value())
                                                 : "pid % (" + text(nb) + ")";
      const std::string begin = column.empty() ? "" : column + " * " + num(tile_.x) + " + ";
      line(ib + " = " + begin + "tl.arange(0, " + num(tile_.x) + ")[None, :]" + wide());
      if (random_ && tile_.x % 4 == 0) {
        line(ib + "q = " + begin + "4 * tl.arange(0, " + num(tile_.x / 4) + ")[None, :]" + wide());
        fours_[b.var.node()] = ib + "q";
      }
      if (!nb.is_const(1)) line("pid = pid // " + atom(nb));
      const std::string row =
          na.is_const(1) ? "" : (total.is_const(1) ? "pid" : "pid % " + atom(na)) + " * " + num(tile_.y) + " + ";
      line(ia + " = " + row + "tl.arange(0, " + num(tile_.y) + ")[:, None]" + wide());
      names_[b.var.node()] = {ib, kX};
      names_[a.var.node()] = {ia, kY};
      if (!sym::known_divisible(b.extent, tile_.x)) line("xm = " + ib + " < " + text(b.extent)), x_mask_ = "xm";
      if (!sym::known_divisible(a.extent, tile_.y)) line("ym = " + ia + " < " + text(a.extent)), y_mask_ = "ym";
      if (flat.empty()) return;
      line(na.is_const(1) ? "x = pid" : "x = pid // " + atom(na));
      axes = 0;
    } else {
      grid_ = sym::ceildiv(total, tile_.x);
      if (flat.empty() && !rows()) return;  // one point
      const std::string lanes = "tl.arange(0, " + num(tile_.x) + ")" + (rows() ? "[:, None]" : "");
      line("x = " + pid + (tile_.x == 1 && rows() ? "" : " * " + num(tile_.x)) + " + " + lanes);
      fours = random_ && !rows() && tile_.x % 4 == 0;
      if (fours) line("xq = " + pid + " * " + num(tile_.x) + " + 4 * tl.arange(0, " + num(tile_.x / 4) + ")");
      if (!sym::known_divisible(total, tile_.x)) line("xm = x < " + text(total)), x_mask_ = "xm";
    }
    if (!tile_.y) join(tile_.points, 0, "x", kX, fours);
    // Coordinates, the fastest first.
    Expr below = 1;
    for (size_t n = flat.size(); n-- > 0;) {
      const Loop& l = *flat[n];
      std::string c = "x";
      if (!below.is_const(1)) c = "x // " + atom(below);
      if (n > 0) c = (below.is_const(1) ? c : "(" + c + ")") + " % " + atom(l.extent);
      below *= l.extent;
      const auto position = static_cast<int64_t>(&l - tile_.points.data());
      const std::string name = c == "x" ? "x" : "i" + num(position);
      if (name != "x") line(name + " = " + c);
      names_[l.var.node()] = {name, axes};
      if (!fours) continue;
      if (name != "x") line(name + "q = " + c.replace(c.find('x'), 1, "xq"));
      fours_[l.var.node()] = name + "q";
    }
  }

  // ---- stages
  void stage(size_t number) {
    const Stage& s = k_.stages[number];
    stage_ = &s;
    values_.assign(s.body.size(), {});
    exact_ = exact_values(s);
    bounds_ = bounds(s);
    looped_ = false;
    in_row_ = rows() && !s.loops.empty();
    before_.clear();
    body_.clear();
    after_.clear();
    set_ = -1;
    r_mask_.clear();
    while (!joins_.empty() && joins_.back().second.name().starts_with("f1.")) joins_.pop_back();
    if (in_row_) {
      looped_ = !tile_.persistent;
      Expr total = 1;
      std::vector<const sym::Node*> key;
      for (const Loop& l : s.loops) {
        total *= l.extent;
        key.push_back(l.var.node());
      }
      r_ = tile_.persistent ? power_of_2(total.hint()) : tile_.r;
      const auto made = sets_.try_emplace(key, static_cast<int>(sets_.size()));
      const bool first = made.second;
      set_ = made.first->second;
      const std::string r = "r" + num(set_), arange = "tl.arange(0, " + num(r_) + ")[None, :]" + wide();
      const bool partial = !sym::known_divisible(total, r_);
      if (looped_) {
        header_ = "    for start in range(0, " + text(total) + ", " + num(r_) + "):\n        " + r + " = start + " +
                  arange + "\n";
      } else if (first) {
        line(r + " = " + arange);
      }
      auto define = [&](const std::string& text) {
        if (looped_) {
          inside(text);
        } else if (first) {
          line(text);
        }
      };
      const bool fours = random_ && r_ % 4 == 0;
      if (fours)
        define(r + "q = " + (looped_ ? "start + " : "") + "4 * tl.arange(0, " + num(r_ / 4) + ")[None, :]" + wide());
      if (partial) {
        r_mask_ = r + "m";
        define(r_mask_ + " = " + r + " < " + text(total));
      }
      join(s.loops, 1, r, kR, fours);
      Expr below = 1;
      for (size_t n = s.loops.size(); n-- > 0;) {
        const Loop& l = s.loops[n];
        std::string c = r;
        if (!below.is_const(1)) c += " // " + atom(below);
        if (n > 0) c = (below.is_const(1) ? c : "(" + c + ")") + " % " + atom(l.extent);
        below *= l.extent;
        const std::string name = c == r ? r : "j" + num(static_cast<int64_t>(n)) + "_" + num(set_);
        if (name != r) define(name + " = " + c);
        names_[l.var.node()] = {name, kR};
        fours_.erase(l.var.node());
        if (!fours) continue;
        if (name != r) define(name + "q = " + c.replace(c.find(r), r.size(), r + "q"));
        fours_[l.var.node()] = name + "q";
      }
    } else if (!rows() && !s.loops.empty() && !tile_.scatter) {
      throw Declined("triton: a loop without a row");
    }
    inner_memo_.clear();
    for (size_t i = 0; i < s.body.size(); ++i) instr(static_cast<Id>(i));
    barrier(s);
    out_ += before_;
    if (looped_) out_ += header_;
    out_ += body_;
    out_ += after_;
  }

  // Threads of a program wait for each other before a stage that reads from memory what an earlier one stored, and
  // before one that stores over what another thread may still have to read (its own parameter, or one that may lie over
  // it).
  void barrier(const Stage& s) {
    if (!rows()) return;
    loaded_.resize(k_.params.size());
    stored_.resize(k_.params.size());
    bool wait = false;
    const bool folded = std::any_of(s.body.begin(), s.body.end(), [](const Instr& i) { return i.op == Op::k_acc; });
    for (int32_t slot : stage_loads_) wait |= stored_[static_cast<size_t>(slot)];
    for (const Instr& i : s.body) {
      if (i.op != Op::k_store || (folded && tile_.persistent)) continue;
      const loops::Param& p = k_.params[static_cast<size_t>(i.slot)];
      for (size_t other = 0; other < k_.params.size(); ++other)
        wait |= loaded_[other] && (static_cast<int32_t>(other) == i.slot ||
                                   (k_.params[other].dtype == p.dtype && k_.params[other].numel == p.numel));
    }
    if (wait) {
      out_ += "    tl.debug_barrier()\n";
      loaded_.assign(k_.params.size(), false);
      stored_.assign(k_.params.size(), false);
    }
    for (int32_t slot : stage_loads_) loaded_[static_cast<size_t>(slot)] = true;
    for (const Instr& i : s.body)
      if (i.op == Op::k_store) stored_[static_cast<size_t>(i.slot)] = true;
    stage_loads_.clear();
  }

  // Which i64 values of the stage fit in 32 bits.
  std::vector<std::optional<Bounds>> bounds(const Stage& s) const {
    std::vector<std::optional<Bounds>> b(s.body.size());
    for (size_t i = 0; i < s.body.size(); ++i) {
      const Instr& in = s.body[i];
      if (in.dtype != DType::kI64) continue;
      std::optional<Bounds> x, y, r;
      if (in.args[0] != kNone) x = b[static_cast<size_t>(in.args[0])];
      if (in.args[1] != kNone) y = b[static_cast<size_t>(in.args[1])];
      switch (in.op) {
        case Op::k_const:
          r = Bounds{in.integer, in.integer};
          break;
        case Op::k_index:
          if (fits(in.index)) r = Bounds{in.index.range().lo, in.index.range().hi};
          break;
        case Op::k_add:
          if (x && y) r = Bounds{x->lo + y->lo, x->hi + y->hi};
          break;
        case Op::k_sub:
          if (x && y) r = Bounds{x->lo - y->hi, x->hi - y->lo};
          break;
        case Op::k_minimum:
          if (x && y) r = Bounds{std::min(x->lo, y->lo), std::min(x->hi, y->hi)};
          break;
        case Op::k_maximum:
          if (x && y) r = Bounds{std::max(x->lo, y->lo), std::max(x->hi, y->hi)};
          break;
        default:
          break;
      }
      if (r && r->narrow()) b[i] = r;
    }
    return b;
  }

  const Value& arg(const Instr& in, int n) const {
    return values_[static_cast<size_t>(in.args[static_cast<size_t>(n)])];
  }
  // At its full width.
  std::string full(const Value& v, DType d) const {
    return v.dtype == d || v.literal ? v.text : v.text + ".to(" + type_name(d) + ")";
  }
  void define(Id id, Axes axes, const std::string& text, DType d) {
    const bool outer = !looped_ || !(axes & kR);  // stays defined
    const bool pure = text.find("tl.load(") == std::string::npos;
    if (pure)
      for (const auto* memo : {&memo_, &inner_memo_})
        if (auto it = memo->find(text); it != memo->end()) {
          values_[static_cast<size_t>(id)] = it->second;
          return;
        }
    Value v{fresh("v"), axes, d, false, ""};
    put(axes, v.text + " = " + text);
    if (pure) (outer ? memo_ : inner_memo_)[text] = v;
    values_[static_cast<size_t>(id)] = std::move(v);
  }

  std::string tile_mask(Axes axes) const {
    std::string m;
    auto both = [&](const std::string& part) {
      if (!part.empty()) m += (m.empty() ? "" : " & ") + part;
    };
    if (axes & kY) both(y_mask_);
    if (axes & kX) both(x_mask_);
    if (axes & kR) both(r_mask_);
    return m;
  }
  std::string mask(const Instr& in, Axes axes) const {
    std::string m = tile_mask(axes);
    if (in.mask != kNone) m += (m.empty() ? "" : " & ") + values_[static_cast<size_t>(in.mask)].text;
    return m;
  }
  Axes mask_axes(const Instr& in) const {
    return in.mask == kNone ? Axes{0} : values_[static_cast<size_t>(in.mask)].axes;
  }

  static bool has_indirect(Expr e) {
    std::vector<Expr> vars;
    sym::collect_vars(e, vars);
    return std::any_of(vars.begin(), vars.end(), [](Expr v) { return v.name()[0] == 't'; });
  }
  const Value* known(int32_t slot, Expr index, Axes axes) const {
    for (const Known& k : known_)
      if (k.slot == slot && k.index == index && k.set == (axes & kR ? set_ : -1)) return &k.value;
    return nullptr;
  }
  void remember(int32_t slot, Expr index, const Value& v, Axes axes) {
    if (has_indirect(index) || v.axes != axes) return;
    if (looped_ && (axes & kR)) return;
    known_.push_back({slot, index, axes & kR ? set_ : -1, v});
  }

  void instr(Id id) {
    const Instr& in = stage_->body[static_cast<size_t>(id)];
    if (loops::is_scalar_op(in.op)) return scalar_op(id, in);
    switch (in.op) {
      case Op::k_convert: {
        const Value a = arg(in, 0);
        if (a.literal) {
          define(id, 0, convert(a.dtype, in.dtype, "tl.full((), " + a.text + ", " + type_name(a.dtype) + ")"),
                 in.dtype);
        } else {
          define(id, a.axes, convert(a.dtype, in.dtype, a.text), in.dtype);
        }
        return;
      }
      case Op::k_round_to: {
        const Value a = arg(in, 0);
        if ((a.literal && is_reduced(in.narrow)) || a.rounded_to == in.narrow) {  // constants: by whoever stores them
          values_[static_cast<size_t>(id)] = a;
          return;
        }
        define(id, a.axes, to_memory(in.narrow, a.text), in.narrow);
        const std::string rounded = values_[static_cast<size_t>(id)].text;
        define(id, a.axes, from_memory(in.narrow, rounded), DType::kF32);
        values_[static_cast<size_t>(id)].rounded = rounded;
        values_[static_cast<size_t>(id)].rounded_to = in.narrow;
        return;
      }
      case Op::k_const: {
        const std::string text = constant(in.dtype, in.number, in.integer);
        const bool literal = !text.starts_with("tl.");
        if (!literal) return define(id, 0, text, in.dtype);
        values_[static_cast<size_t>(id)] = {text, 0, in.dtype, true};
        return;
      }
      case Op::k_index: {
        const bool narrow = !wide_ && bounds_[static_cast<size_t>(id)].has_value();
        const std::string t = text(in.index);
        if (in.index.is_const()) {
          values_[static_cast<size_t>(id)] = {t, 0, DType::kI64, true};
        } else if (narrow || wide_) {
          define(id, axes_of(in.index), t, narrow ? DType::kI32 : DType::kI64);
        } else {
          define(id, axes_of(in.index), "(" + t + ").to(tl.int64)", DType::kI64);
        }
        return;
      }
      case Op::k_in_range: {
        const std::string e = text(in.index);
        std::string t;
        if (!sym::known_le(in.lo, in.index)) t = "(" + e + " >= " + text(in.lo) + ")";
        if (!sym::known_lt(in.index, in.hi)) t += (t.empty() ? "(" : " & (") + e + " < " + text(in.hi) + ")";
        if (t.empty()) {
          values_[static_cast<size_t>(id)] = {"True", 0, DType::kBool, true};
          return;
        }
        return define(id, axes_of(in.index) | axes_of(in.lo) | axes_of(in.hi), t, DType::kBool);
      }
      case Op::k_uniform:
      case Op::k_normal:
        return random(id, in);
      case Op::k_indirect:
        return indirect(id, in);
      case Op::k_load:
        return load(id, in);
      case Op::k_store:
        return store(in);
      case Op::k_load_scratch: {
        for (const Known& s : scratch_)
          if (s.slot == in.slot && s.index == in.index && s.set == set_) {
            values_[static_cast<size_t>(id)] = s.value;
            return;
          }
        throw Declined("triton: scratch is read at other places than it was written");
      }
      case Op::k_store_scratch:
        if (looped_) throw Declined("triton: scratch of a row that is not in registers");
        scratch_.push_back({in.slot, in.index, set_, arg(in, 0)});
        return;
      case Op::k_acc: {
        const loops::Accumulator& a = k_.accs[static_cast<size_t>(in.slot)];
        const bool is_arg = a.kind >= Reduce::kArgMax;
        values_[static_cast<size_t>(id)] = {(is_arg ? "a" + num(in.slot) + "_at" : "a" + num(in.slot)),
                                            acc_axes_[in.slot], is_arg ? at_types_[in.slot] : in.dtype, false};
        return;
      }
      case Op::k_reduce:
        return reduce(in);
      case Op::k_scan:
        return scan(id, in);
      default:
        FLASHOVER_CHECK(false) << "triton: no instruction " << loops::info(in.op).name;
    }
  }

  // Values of which more than 16 bits' worth goes on: to memory, into a reduction, into a choice or an address.
  std::vector<bool> exact_values(const Stage& s) const {
    std::vector<bool> exact(s.body.size(), k_.exact);
    for (size_t i = s.body.size(); i-- > 0;) {
      const Instr& in = s.body[i];
      const bool ends = in.op == Op::k_store;
      bool passes = exact[i];
      if (ends) {
        const loops::Param& p = k_.params[static_cast<size_t>(in.slot)];
        passes = !is_reduced(p.dtype) || in.mode != StoreMode::kSet;
      } else if (in.op == Op::k_round_to) {
        passes = is_eight_bit_float(in.narrow);
      } else if (!loops::info(in.op).has_result || in.op == Op::k_scan || in.op == Op::k_indirect) {
        passes = true;
      } else if (in.dtype == DType::kBool) {
        passes = true;
      }
      for (Id a : in.args)
        if (a != loops::kNone && passes) exact[static_cast<size_t>(a)] = true;
      if (in.mask != loops::kNone) exact[static_cast<size_t>(in.mask)] = true;
    }
    return exact;
  }

  void scalar_op(Id id, const Instr& in) {
    const int n = loops::info(in.op).arity;
    const int first = in.op == Op::k_where ? 1 : 0;
    DType operand = arg(in, first).dtype;
    const DType declared = stage_->body[static_cast<size_t>(in.args[static_cast<size_t>(first)])].dtype;
    bool narrow = declared == DType::kI64, literals = true;
    for (int i = first; i < n; ++i) {
      const Value& v = arg(in, i);
      if (narrow &&
          !(v.dtype == DType::kI32 || (v.literal && bounds_[static_cast<size_t>(in.args[static_cast<size_t>(i)])])))
        narrow = false;
    }
    // The result must fit as well, unless it is a bool.
    if (narrow && in.dtype == DType::kI64 && !bounds_[static_cast<size_t>(id)]) narrow = false;
    operand = narrow ? DType::kI32 : declared;
    std::vector<std::string> args;
    Axes axes = 0;
    for (int i = 0; i < n; ++i) {
      const Value& v = arg(in, i);
      axes |= v.axes;
      literals &= v.literal || i < first;
      args.push_back(i < first || narrow ? v.text : full(v, declared));
    }
    if (literals)  // Python would compute it, or not know how
      for (int i = first; i < n; ++i)
        args[static_cast<size_t>(i)] = "tl.full((), " + args[static_cast<size_t>(i)] + ", " + type_name(operand) + ")";
    if (first && arg(in, 0).literal) args[0] = "tl.full((), " + args[0] + ", tl.int1)";
    for (std::string& a : args)
      if (a[0] == '-') a = "(" + a + ")";
    define(id, axes, scalar(in.op, operand, args, fast_ || !exact_[static_cast<size_t>(id)]),
           in.dtype == DType::kI64 && narrow ? DType::kI32 : in.dtype);
  }

  // One call gives four numbers. Where four neighbours along the last axis are those of one call it is made once for
  // them, at the first of them, and the numbers are put side by side.
  void random(Id id, const Instr& in) {
    const Expr i = joined(in.index), threads = in.hi, width = in.integer;
    const Axes axes = axes_of(i);
    by_fours_ = neighbours_share(in, axes);
    Expr thread, call, lane;
    if (in.integer == 1) {
      const Expr group = sym::floordiv(i, threads);
      thread = sym::mod(i, threads);
      call = sym::floordiv(group, 4);
      lane = sym::mod(group, 4);
    } else {
      const Expr load = sym::floordiv(i, width), most = std::min<int64_t>(4, in.integer);
      thread = sym::mod(load, threads);
      call = sym::floordiv(load, threads) * std::max<int64_t>(1, in.integer / 4) + sym::floordiv(sym::mod(i, width), 4);
      lane = sym::mod(i, most);
    }
    const auto number = [&](Expr e) {
      const std::string t = text(e);
      return e.is_const() ? "tl.full((), " + t + ", tl.int32)" : t;
    };
    std::string t =
        std::string("lib.") + (in.op == Op::k_uniform ? "uniform" : "normal") + (by_fours_ ? "_fours(" : "(");
    t += full(arg(in, 0), DType::kI64) + ", " + full(arg(in, 1), DType::kI64) + ", " + text(in.lo) + ", " +
         number(call) + ", " + number(thread) + ", ";
    if (by_fours_) {
      const std::string whole = shape(axes);  // its last axis is four times as long as that of the calls
      t += whole.substr(1, whole.size() - 2);
    } else {
      t += text(lane);
    }
    by_fours_ = false;
    define(id, axes, t + ")", DType::kF32);
  }
  bool neighbours_share(const Instr& in, Axes axes) const {
    const Axes last = rows() ? kR : kX;
    if (in.integer < 4 || !(axes & last)) return false;
    const std::vector<Loop>& loops = rows() ? stage_->loops : tile_.points;
    if (loops.empty() || !fours_.contains(loops.back().var.node())) return false;
    const Loop& l = loops.back();
    const auto step = sym::coefficient(in.index, l.var);
    const bool alone = loops.size() == 1 || (!rows() && tile_.y);
    return step && step->is_const(1) && (alone || sym::known_divisible(l.extent, 4)) &&
           sym::known_divisible(in.index - l.var, 4);
  }

  void indirect(Id id, const Instr& in) {
    const Value a = arg(in, 0);
    const Axes axes = a.axes | mask_axes(in);
    const std::string t = fresh("t"), size = text(in.hi);
    std::string v = a.text;
    if (a.literal) v = "tl.full((), " + v + ", tl.int64)";
    if (in.wrap) {
      put(axes, t + " = " + v + " + tl.where(" + v + " < 0, " + size + ", 0)");
      v = t;
    }
    std::string m = in.mask == kNone ? "" : values_[static_cast<size_t>(in.mask)].text;
    if (in.slot >= 0) {
      asserts_ = true;
      const std::string tile = tile_mask(axes), where = tile.empty() ? m : m.empty() ? tile : tile + " & " + m;
      const std::string ok = "(" + v + " >= 0) & (" + v + " < " + size + ")";
      std::string message;
      for (char c : k_.errors[static_cast<size_t>(in.slot)]) message += c == '"' || c == '\\' || c < ' ' ? ' ' : c;
      put(axes,
          "tl.device_assert(" + (where.empty() ? ok : "(" + ok + ") | ~(" + where + ")") + ", \"" + message + "\")");
    }
    std::string final = m.empty() ? v : "tl.where(" + m + ", " + v + ", 0)";
    if (!wide_ && a.dtype != DType::kI32) final = (m.empty() ? v : "(" + final + ")") + ".to(tl.int32)";
    if (final != t) put(axes, t + " = " + final);
    names_[in.index.node()] = {t, axes};
    values_[static_cast<size_t>(id)] = {t, axes, wide_ ? DType::kI64 : DType::kI32, false};
  }

  void load(Id id, const Instr& in) {
    if (product_ && in.slot == product_->slot) {
      values_[static_cast<size_t>(id)] = {"acc", kX | kY, DType::kF32};
      return;
    }
    const loops::Param& p = k_.params[static_cast<size_t>(in.slot)];
    if (p.number) {
      values_[static_cast<size_t>(id)] = {parameter_ + num(in.slot), 0, p.dtype};
      return;
    }
    const Axes own = axes_of(in.index), axes = own | mask_axes(in);
    if (in.mask == kNone)
      if (const Value* v = known(in.slot, in.index, axes)) {
        values_[static_cast<size_t>(id)] = *v;
        return;
      }
    const std::string m = mask(in, axes);
    std::string t = "tl.load(" + parameter_ + num(in.slot);
    if (!in.index.is_const(0) || own != axes)
      t += " + " + (own == axes ? index(in.index) : "(" + widen(index(in.index), own, axes) + ")");
    if (!m.empty()) t += ", " + m + ", 0";
    t += ")";
    if (is_narrow_float(p.dtype)) t = from_memory(p.dtype, t);
    stage_loads_.push_back(in.slot);
    define(id, axes, t, in.dtype);
    if (in.mask == kNone) remember(in.slot, in.index, values_[static_cast<size_t>(id)], axes);
  }

  // An operand of a product, all of its tile.
  void hand_over(const Value& v, const std::string& value, bool as_rounded, DType d) {
    const std::string whole = broadcast({value, v.axes, as_rounded ? d : compute(d), v.literal}, kX | kY);
    result_ = fresh("t");
    const std::string& inner = side_ ? y_mask_ : x_mask_;  // what lies outside adds nothing
    const std::string kept = inner.empty() ? whole : "tl.where(" + inner + ", " + whole + ", 0.0)";
    inside(result_ + " = " + kept + ".to(" + type_name(d) + ")");
  }

  void store(const Instr& in) {
    const loops::Param& p = k_.params[static_cast<size_t>(in.slot)];
    const Value v = arg(in, 0);
    const bool as_rounded = is_narrow_float(p.dtype) && !v.rounded.empty() && v.rounded_to == p.dtype;
    if (operand_) return hand_over(v, as_rounded ? v.rounded : full(v, compute(p.dtype)), as_rounded, p.dtype);
    const Axes own = axes_of(in.index);
    Axes axes = own | mask_axes(in) | v.axes;
    if (in_row_) axes |= kR;
    if (in_row_ && !(own & kR)) throw Declined("triton: a row stores to one place");
    const std::string m = mask(in, axes),
                      address = "p" + num(in.slot) +
                                (in.index.is_const(0) && own == axes
                                     ? ""
                                     : " + " + (own == axes ? index(in.index)
                                                            : "(" + widen(index(in.index), own, axes) + ")"));
    const std::string tail = m.empty() ? ")" : ", " + m + ")";
    std::erase_if(known_, [&](const Known& k) { return k.slot == in.slot; });
    std::string value = as_rounded && in.mode == StoreMode::kSet ? v.rounded : full(v, compute(p.dtype));
    if (is_eight_bit_float(p.dtype)) {
      if (in.mode != StoreMode::kSet) throw Declined("triton: sums of 8-bit floats");
      if (v.literal) value = "tl.full((), " + value + ", tl.float32)";
      if (!as_rounded) value = to_memory(p.dtype, value);
    }
    if (in.mode == StoreMode::kSet) {
      inside("tl.store(" + address + ", " + value + tail);
      if (in.mask == kNone && !v.literal) remember(in.slot, in.index, v, axes);
      return;
    }
    if (stage_->ordered) return atomic(in, p.dtype, address, value, m, axes);
    // Points that never meet: read, combine, write.
    std::string old = fresh("v");
    inside(old + " = tl.load(" + address + tail + (is_reduced(p.dtype) ? ".to(tl.float32)" : ""));
    static constexpr const char* kCombined[] = {"", "$ + ", "$ * ", "lib.maximum($, ", "lib.minimum($, "};
    std::string text = kCombined[static_cast<size_t>(in.mode)];
    if (!is_floating(p.dtype) && in.mode >= StoreMode::kMax) text.replace(0, 3, "tl");
    text.replace(text.find('$'), 1, old);
    text += value + (in.mode >= StoreMode::kMax ? ")" : "");
    inside("tl.store(" + address + ", " + text + tail);
  }
  void atomic(const Instr& in, DType d, const std::string& address, const std::string& value, const std::string& m,
              Axes axes) {
    const char* name = in.mode == StoreMode::kAdd   ? "add"
                       : in.mode == StoreMode::kMax ? "max"
                       : in.mode == StoreMode::kMin ? "min"
                                                    : nullptr;
    const bool sized = d == DType::kI32 || d == DType::kI64;
    if (!name || !(sized || (in.mode == StoreMode::kAdd && is_floating(d))))
      throw Declined(std::string("triton: no atomic for this store to ") + info(d).name);
    std::string v = value;
    if (is_reduced(d) || arg(in, 0).literal || arg(in, 0).axes == 0)
      v = "tl.broadcast_to(" +
          (arg(in, 0).literal ? "tl.full((), " + value + ", " + type_name(compute(d)) + ")" : value) + ", " +
          shape(axes) + ").to(" + type_name(d) + ")";
    inside(std::string("tl.atomic_") + name + "(" + address + ", " + v + (m.empty() ? "" : ", " + m) +
           ", sem=\"relaxed\")");
  }
  static DType compute(DType d) { return is_narrow_float(d) ? DType::kF32 : d; }

  // Accumulators of bool count in i32.
  static DType folded(DType d) { return d == DType::kBool ? DType::kI32 : d; }
  std::string neutral(const loops::Accumulator& a) const {
    if (a.dtype != DType::kBool) return identity(a.kind, a.dtype);
    return a.kind == Reduce::kProd || a.kind == Reduce::kAll || a.kind == Reduce::kMin || a.kind == Reduce::kArgMin
               ? "1"
               : "0";
  }
  static Reduce kind_of(const loops::Accumulator& a) { return a.kind; }
  std::string operand(const Instr& in, int n, DType d, const std::string& otherwise, Axes axes) const {
    Value v = arg(in, n);
    if (v.dtype == DType::kBool && d == DType::kI32 && v.literal) v.text = v.text == "True" ? "1" : "0", v.dtype = d;
    if (v.dtype != d && !v.literal) v.text += std::string(".to(") + type_name(d) + ")";
    v.dtype = d;
    std::string t = broadcast(v, axes);
    const std::string m = mask(in, axes);
    return m.empty() ? t : "tl.where(" + m + ", " + t + ", " + otherwise + ")";
  }
  void define_acc(int32_t slot, const std::string& text) {
    const loops::Accumulator& a = k_.accs[static_cast<size_t>(slot)];
    std::string result = text;
    if (a.dtype == DType::kBool) result += " != 0";
    (looped_ ? after_ : body_) += "    a" + num(slot) + " = " + result + "\n";
  }

  // A fold over one element.
  void take(const Instr& in) {
    const loops::Accumulator& a = k_.accs[static_cast<size_t>(in.slot)];
    const Value& v = arg(in, 0);
    const Axes axes = acc_axes_[in.slot] = v.axes | mask_axes(in);
    std::string t = v.text;
    if (v.literal) t = "tl.full((), " + t + ", " + type_name(a.dtype) + ")";
    if (in.mask != kNone)
      t = "tl.where(" + values_[static_cast<size_t>(in.mask)].text + ", " + t + ", " + identity(a.kind, a.dtype) + ")";
    inside("a" + num(in.slot) + " = " + t);
    if (a.kind < Reduce::kArgMax) return;
    const Value& i = arg(in, 1);
    acc_axes_[in.slot] = axes | i.axes;
    at_types_[in.slot] = DType::kI64;
    inside("a" + num(in.slot) +
           "_at = " + (i.literal ? "tl.full((), " + i.text + ", tl.int64)" : full(i, DType::kI64)));
  }

  void reduce(const Instr& in) {
    const loops::Accumulator& a = k_.accs[static_cast<size_t>(in.slot)];
    const std::string name = "a" + num(in.slot);
    const DType d = folded(a.dtype);
    const Axes axes = all_axes(in_row_);
    acc_axes_[in.slot] = kX;
    if (!in_row_) return take(in);
    const char* fn = combine(a.kind, d);
    if (a.kind >= Reduce::kArgMax) {
      const DType at_type = at_types_[in.slot] = arg(in, 1).dtype == DType::kI32 ? DType::kI32 : DType::kI64;
      const std::string at = name + "_at", last = at_type == DType::kI32 ? "0x7fffffff" : "0x7fffffffffffffff";
      const std::string v = fresh("v"), i = fresh("v");
      inside(v + " = " + operand(in, 0, d, neutral(a), axes));
      inside(i + " = " + operand(in, 1, at_type, last, axes));
      if (looped_) {
        before_ += "    " + name + " = tl.full(" + shape(axes) + ", " + neutral(a) + ", " + type_name(d) + ")\n";
        before_ += "    " + at + " = tl.full(" + shape(axes) + ", " + last + ", " + type_name(at_type) + ")\n";
        // The rows' loops go up: within a lane only a greater value replaces an earlier one. A lane that met nothing
        // but the neutral element has no position; if that is so for a whole row, the answer is its first element.
        const auto range = bounds_[static_cast<size_t>(in.args[1])];
        const bool floats = is_floating(d) && range;
        const std::string step =
            floats ? std::string("lib.next_") + (a.kind == Reduce::kArgMax ? "argmax" : "argmin") : fn;
        inside(name + ", " + at + " = " + step + "(" + name + ", " + at + ", " + v + ", " + i + ")");
        after_ +=
            "    " + name + ", " + at + " = tl.reduce((" + name + ", " + at + "), 1, " + fn + ", keep_dims=True)\n";
        if (floats)
          after_ += "    " + at + " = tl.where(" + at + " == " + last + ", " + num(range->lo) + ", " + at + ")\n";
      } else {
        inside(name + ", " + at + " = tl.reduce((" + v + ", " + i + "), 1, " + fn + ", keep_dims=True)");
      }
      return;
    }
    const std::string v = operand(in, 0, d, neutral(a), axes);
    auto folded_over = [&](const std::string& t) {
      if (a.kind == Reduce::kSum && is_floating(d)) return "tl.sum(" + t + ", 1, keep_dims=True)";
      return "tl.reduce(" + t + ", 1, " + fn + ", keep_dims=True)";
    };
    if (!looped_) return define_acc(in.slot, folded_over(v));
    before_ += "    " + name + " = tl.full(" + shape(axes) + ", " + neutral(a) + ", " + type_name(d) + ")\n";
    inside(name + " = " + (a.kind == Reduce::kSum ? name + " + " + v : std::string(fn) + "(" + name + ", " + v + ")"));
    define_acc(in.slot, folded_over(name));
  }

  void scan(Id id, const Instr& in) {
    const loops::Accumulator& a = k_.accs[static_cast<size_t>(in.slot)];
    acc_axes_[in.slot] = kX;
    if (!in_row_) {
      take(in);
      const Value& v = arg(in, 0);
      values_[static_cast<size_t>(id)] = {"a" + num(in.slot), acc_axes_[in.slot], v.dtype, false};
      return;
    }
    const std::string name = "a" + num(in.slot), v = fresh("v"), running = fresh("v");
    const DType d = folded(a.dtype);
    const Axes axes = all_axes(in_row_);
    const char* fn = combine(a.kind, d);
    inside(v + " = " + operand(in, 0, d, neutral(a), axes));
    inside(running + " = tl.associative_scan(" + v + ", 1, " + fn + ")");
    const std::string total = "tl.reduce(" + v + ", 1, " + std::string(fn) + ", keep_dims=True)";
    if (looped_) {
      before_ += "    " + name + " = tl.full(" + shape(kX) + ", " + neutral(a) + ", " + type_name(d) + ")\n";
      inside(running + " = " + fn + "(" + name + ", " + running + ")");
      inside(name + " = " + fn + "(" + name + ", " + total + ")");
      if (a.dtype == DType::kBool) after_ += "    " + name + " = " + name + " != 0\n";
    } else {
      define_acc(in.slot, total);
    }
    if (a.dtype == DType::kBool) inside(running + " = " + running + " != 0");
    values_[static_cast<size_t>(id)] = {running, axes, a.dtype, false};
  }

  // ---- the whole
  std::string function_name() const {
    std::string name = "k_";
    if (product_) {
      name = product_->bias != DType::kUndefined ? "addmm_" : product_->batch > 1 ? "bmm_" : "mm_";
      if (product_->prologue[0].given() || product_->prologue[1].given()) name = "of_" + name;
    }
    for (char c : k_.label) {
      if (c == ' ' || name.size() > 40) break;  // the location follows
      name += is_letter_or_digit(c) ? c : '_';
    }
    const Hash128 id = product_ ? Hasher().text(loops::text(*product_)).finish() : loops::identity(k_);
    return name + "_" + id.hex().substr(0, 8);
  }
  Source finish() {
    Source s;
    s.name = function_name();
    std::string parameters;
    auto parameter = [&](const std::string& name, const std::string& type, plan::ParamKind kind) {
      parameters += (parameters.empty() ? "" : ", ") + name;
      s.signature.push_back(type);
      s.launch.params.push_back(kind);
    };
    const auto give = [&](const std::string& name, const loops::Param& p) {
      parameter(name, (p.number ? "" : "*") + std::string(signature_name(p.dtype)),
                !p.number                  ? plan::ParamKind::kPointer
                : info(p.dtype).bytes == 4 ? plan::ParamKind::kValue32
                                           : plan::ParamKind::kValue64);
    };
    if (product_) {
      for (size_t side = 0; side < 2; ++side) {
        const loops::Prologue& before = product_->prologue[side];
        if (!before.given())
          parameter(side ? "b" : "a", std::string("*") + signature_name(product_->dtype), plan::ParamKind::kPointer);
        for (size_t i = 0; before.given() && i < before.kernel.params.size(); ++i)
          if (static_cast<int32_t>(i) != before.slot)
            give((side ? "q" : "o") + num(static_cast<int64_t>(i)), before.kernel.params[i]);
      }
      if (product_->bias != DType::kUndefined)
        parameter("bias", std::string("*") + signature_name(product_->bias), plan::ParamKind::kPointer);
    }
    for (size_t i = 0; i < k_.params.size(); ++i)
      if (!product_ || static_cast<int32_t>(i) != product_->slot)
        give("p" + num(static_cast<int64_t>(i)), k_.params[i]);
    for (size_t i = 0; i < k_.sizes.size(); ++i)
      parameter("n" + num(static_cast<int64_t>(i)), "i64", plan::ParamKind::kI64);
    s.launch.params.push_back(plan::ParamKind::kGlobalScratch);
    s.launch.params.push_back(plan::ParamKind::kProfileScratch);
    std::string comment;
    for (char c : k_.label) comment += c == '\n' ? ' ' : c;
    s.text = "import triton\nimport triton.language as tl\nimport _triton_lib as lib\n\n\n";
    if (!comment.empty()) s.text += "# " + comment + "\n";
    s.text += "@triton.jit\ndef " + s.name + "(" + parameters + "):\n" + (out_.empty() ? "    pass\n" : out_);
    s.warps = tile_.warps;
    if (product_) s.stages = product_->tile.stages;
    s.asserts = asserts_;
    // The plan's names for the kernel's sizes.
    std::vector<Expr> own;
    for (size_t i = 0; i < k_.sizes.size(); ++i)
      own.push_back(sym::var("n" + num(static_cast<int64_t>(i)), {1, sym::Range::kInf}, 16));
    s.launch.grid[0] = sym::substitute(grid_, [&](Expr v) -> std::optional<Expr> {
      for (size_t i = 0; i < own.size(); ++i)
        if (k_.sizes[i] == v) return own[i];
      return std::nullopt;
    });
    s.launch.threads = 32 * tile_.warps;
    return s;
  }

  const loops::Kernel& k_;
  const Tile tile_;
  const loops::Product* product_ = nullptr;
  const loops::Product* operand_ = nullptr;  // this is the prologue of its operand `side_`
  size_t side_ = 0;
  std::string parameter_ = "p", temporary_;             // what names begin with
  std::string result_;                                  // an operand's name
  bool wide_ = false, fast_ = false, asserts_ = false;  // fast_: all results have 16 bits
  bool random_ = false, by_fours_ = false;              // neighbours may share a call; text() names every fourth point
  std::map<const sym::Node*, std::string> fours_;       // names of each fourth coordinate along the last axis
  std::vector<bool> exact_;                             // of the current stage
  std::map<const sym::Node*, Name> names_;
  std::string x_mask_, y_mask_, r_mask_;
  Expr grid_ = 1;
  // of the current stage
  const Stage* stage_ = nullptr;
  std::vector<Value> values_;
  std::vector<std::optional<Bounds>> bounds_;
  bool looped_ = false, in_row_ = false;
  int set_ = -1;
  int64_t r_ = 1;
  std::map<std::vector<const sym::Node*>, int> sets_;
  std::vector<Known> known_, scratch_;
  std::map<int32_t, Axes> acc_axes_;
  std::map<int32_t, DType> at_types_;  // of positions that argmax and argmin find
  std::vector<std::pair<std::vector<Loop>, Expr>> joins_;
  std::map<std::string, Value> memo_, inner_memo_;  // by right-hand side
  std::vector<int32_t> stage_loads_;
  std::vector<bool> loaded_, stored_;  // parameters touched by earlier stages, not only in registers
  std::string out_, header_, before_, body_, after_;
  int64_t next_ = 0;
};

}  // namespace

std::string str(const Gpu& gpu) { return "sm_" + std::to_string(gpu.arch); }

Hash128 key(const Source& s) {
  const size_t body = s.text.find("):\n");
  Hasher h;
  h.text(std::string_view(s.text).substr(body == std::string::npos ? 0 : body))
      .number(static_cast<uint64_t>(s.warps))
      .number(static_cast<uint64_t>(s.stages))
      .number(s.asserts);
  for (const std::string& t : s.signature) h.text(t);
  return h.finish();
}

Source emit(const loops::Kernel& k, const Gpu& gpu) {
  if (k.serial) throw Declined("triton: a nest that runs in order");
  return Emitter(k, gpu).run();
}

Source emit(const loops::Product& p, const Gpu&) { return Emitter(p).run(); }

std::vector<loops::ProductTile> tiles_for(const loops::Product& p) {
  static constexpr loops::ProductTile kTiles[] = {
      {128, 256, 64, 8, 3}, {256, 128, 64, 8, 3}, {128, 128, 64, 8, 3}, {128, 128, 64, 4, 4},
      {128, 64, 64, 4, 4},  {64, 128, 64, 4, 4},  {64, 64, 64, 4, 4},   {64, 32, 128, 4, 4},
      {32, 64, 128, 4, 4},  {32, 128, 64, 4, 4},  {16, 64, 128, 4, 5},  {16, 128, 64, 4, 5},
  };
  std::vector<loops::ProductTile> out;
  for (const loops::ProductTile& t : kTiles) {
    // Not more than half of a tile empty, but for the smallest.
    const bool tall = t.m > 16 && t.m / 2 >= p.m, broad = t.n > 64 && t.n / 2 >= p.n;
    const int64_t programs = ((p.m + t.m - 1) / t.m) * ((p.n + t.n - 1) / t.n) * p.batch;
    const bool small = t.m <= 32 && p.m > 512;  // rows are read again by each column of programs
    if (!tall && !broad && !small && programs < INT32_MAX / 16) out.push_back(t);
  }
  return out;
}

}  // namespace flashover::kernel::triton
