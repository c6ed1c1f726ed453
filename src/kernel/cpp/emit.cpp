// loops::Kernel -> one C++ function.
//
// The outer points are numbered through and a body function runs a range of them, so that threads are a matter of who
// calls it. Lanes (Kernel::vector) are written as explicit vectors: a value that depends on the lane variable is a
// vector (in `copies` parallel copies where a stage is unrolled), every other value stays a scalar and is computed at
// the loop depth that loops::depths() gives it. What is left after the last full vector is the same body once more with
// the first n lanes.
#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>

#include "base/check.h"
#include "kernel/cpp/scalar.h"
#include "kernel/kernel.h"

namespace flashover::kernel {
namespace {

using loops::Id;
using loops::Instr;
using loops::kNone;
using loops::Op;
using loops::Reduce;
using sym::Expr;

// How an index moves from lane to lane.
struct Step {
  enum Kind { kUniform, kStride, kVarying } kind = kUniform;
  int64_t stride = 0;
};

std::string num(int64_t v) { return std::to_string(v); }

bool is_memory_store(Op op) { return op == Op::k_store || op == Op::k_store_scratch; }
bool is_fold(Op op) { return op == Op::k_reduce || op == Op::k_scan; }

// Values known to fit in 32 bits: index arithmetic that need not halve the number of lanes.
struct Bounds {
  int64_t lo, hi;
  bool narrow() const { return lo >= INT32_MIN && hi <= INT32_MAX; }
};

class Emitter {
 public:
  Emitter(const loops::Kernel& k, const Target& target) : k_(k), target_(target) {}

  Emitted emit() {
    symbol_ = "k_" + loops::identity(k_).hex().substr(0, 16);
    choose_lanes();
    shared_ = can_share();
    Emitted e;
    e.symbol = symbol_;
    e.lanes = lanes_;
    function(e);
    return e;
  }

 private:
  struct Value {
    bool varying = false;
    Class cls = Class::kF;
    DType dtype = DType::kF32;  // after narrowing
    std::string text;           // scalar: its name or literal. varying: name without the copy's suffix
    bool literal = false;
    double number = 0;  // of literals
    int64_t integer = 0;
    std::string name(int copy) const { return varying ? text + "_" + num(copy) : text; }
  };
  struct StageFacts {
    std::vector<int> depth;
    std::vector<std::optional<Bounds>> bounds;
    bool vector = false;  // lanes run through this stage
  };
  // Where in a stage text is being written.
  struct Place {
    const loops::Stage* stage = nullptr;
    const StageFacts* facts = nullptr;
    std::vector<Value> values;
    bool vector = false;
    Expr lane;              // the variable over the lanes
    std::string lane_text;  // its value at lane 0 of copy 0
    int copies = 1;
    std::string n;                                                      // "" all lanes; else how many
    std::map<const sym::Node*, std::pair<std::string, bool>> indirect;  // name, varying
    std::map<Id, std::string> tiles;  // loads that were read across and transposed: the vector of this row
  };

  // ---- facts before emission

  bool inner() const { return mode_ == loops::Vector::kInner; }
  bool outer() const { return mode_ == loops::Vector::kOuter; }

  bool lane_stage(const loops::Stage& s) const {
    if (outer()) return true;
    return inner() && !s.ordered && !s.loops.empty();
  }
  Expr lane_of(const loops::Stage& s) const { return outer() ? k_.outer.back().var : s.loops.back().var; }

  void choose_lanes() {
    mode_ = target_.isa == Isa::kScalar ? loops::Vector::kNone : k_.vector;
    for (const loops::Param& p : k_.params) {
      class_of(p.dtype);
      if (p.dtype == DType::kU16 || p.dtype == DType::kU32) mode_ = loops::Vector::kNone;
    }
    for (const loops::Stage& s : k_.stages)
      for (const Instr& in : s.body) {
        if (in.dtype != DType::kUndefined) class_of(in.dtype);
        if (in.dtype == DType::kU16 || in.dtype == DType::kU32) mode_ = loops::Vector::kNone;
      }
    for (;;) {
      lanes_ = mode_ == loops::Vector::kNone ? Lanes{} : Lanes{target_.isa, target_.isa == Isa::kAvx512 ? 16 : 8};
      facts_.clear();
      bool wide = false, fits = true;
      for (const loops::Stage& s : k_.stages) {
        StageFacts f;
        f.depth = loops::depths(s);
        f.vector = mode_ != loops::Vector::kNone && lane_stage(s);
        f.bounds = bounds(s);
        if (f.vector) look(s, f, wide, fits);
        facts_.push_back(std::move(f));
      }
      if (!fits) {
        mode_ = loops::Vector::kNone;
        continue;
      }
      if (wide && lanes_.width > 1) lanes_.width = lanes_.wide_width();
      break;
    }
    find_tiles();
    find_repeats();
  }

  // Outer loops that no tile depends on (the heads of a rotary embedding) run inside the tile, which is then made once
  // for all of them - as long as enough work is left to share among threads.
  void find_repeats() {
    if (tiles_.empty()) return;
    int64_t steps = 1;
    for (size_t i = 0; i + 1 < k_.outer.size(); ++i) {
      auto n = k_.outer[i].extent.as_const();
      if (!n) return;
      steps *= static_cast<int32_t>(i) == k_.transpose ? (*n + lanes_.width - 1) / lanes_.width : *n;
    }
    for (size_t i = 0; i + 1 < k_.outer.size(); ++i) {
      if (static_cast<int32_t>(i) == k_.transpose) continue;
      bool used = false;
      for (Id t : tiles_) {
        std::vector<Expr> vars;
        sym::collect_vars(k_.stages[0].body[t].index, vars);
        used |= std::find(vars.begin(), vars.end(), k_.outer[i].var) != vars.end();
      }
      const int64_t n = k_.outer[i].extent.value();
      if (used || n <= 1 || steps / n < 8) continue;
      repeats_.push_back(i);
      steps /= n;
    }
  }

  // Loads of a transposing kernel that run along loop `transpose`: read in that direction, W at a time, and turned in
  // registers. For one stage without loops; elsewhere such loads go lane by lane.
  void find_tiles() {
    if (!outer() || k_.transpose < 0 || k_.transpose + 1 >= static_cast<int32_t>(k_.outer.size()) ||
        k_.stages.size() != 1 || !k_.stages[0].loops.empty() || lanes_.width < 8)
      return;
    const Expr across = k_.outer[k_.transpose].var, lane = k_.outer.back().var;
    for (size_t i = 0; i < k_.stages[0].body.size(); ++i) {
      const Instr& in = k_.stages[0].body[i];
      if (in.op == Op::k_indirect) {
        tiles_.clear();
        return;
      }
      if (in.op != Op::k_load || in.mask != kNone) continue;
      const DType d = k_.params[in.slot].dtype;
      if (d != DType::kF32 && d != DType::kBF16 && d != DType::kF16 && d != DType::kI32) continue;
      auto no = [](Expr) { return false; };
      Step a = step_of(in.index, across, no), l = step_of(in.index, lane, no);
      if (a.kind == Step::kStride && a.stride == 1 && (l.kind == Step::kVarying || l.stride > 1))
        tiles_.push_back(static_cast<Id>(i));
    }
  }

  // Which 64-bit integers of a stage provably fit in 32 bits.
  std::vector<std::optional<Bounds>> bounds(const loops::Stage& s) const {
    std::vector<std::optional<Bounds>> b(s.body.size());
    for (size_t i = 0; i < s.body.size(); ++i) {
      const Instr& in = s.body[i];
      if (in.dtype != DType::kI64) continue;
      auto arg = [&](int n) { return in.args[n] == kNone ? std::nullopt : b[in.args[n]]; };
      std::optional<Bounds> r, x = arg(0), y = arg(1);
      auto corners = [](Bounds p, Bounds q, auto f) {
        int64_t v[] = {f(p.lo, q.lo), f(p.lo, q.hi), f(p.hi, q.lo), f(p.hi, q.hi)};
        return Bounds{*std::min_element(v, v + 4), *std::max_element(v, v + 4)};
      };
      switch (in.op) {
        case Op::k_const:
          r = Bounds{in.integer, in.integer};
          break;
        case Op::k_index: {
          sym::Range range = in.index.range();
          r = Bounds{range.lo, range.hi};
          break;
        }
        case Op::k_neg:
          if (x) r = Bounds{-x->hi, -x->lo};
          break;
        case Op::k_add:
          if (x && y) r = Bounds{x->lo + y->lo, x->hi + y->hi};
          break;
        case Op::k_sub:
          if (x && y) r = Bounds{x->lo - y->hi, x->hi - y->lo};
          break;
        case Op::k_mul:
          if (x && y) r = corners(*x, *y, [](int64_t p, int64_t q) { return p * q; });
          break;
        case Op::k_minimum:
          if (x && y) r = Bounds{std::min(x->lo, y->lo), std::min(x->hi, y->hi)};
          break;
        case Op::k_maximum:
          if (x && y) r = Bounds{std::max(x->lo, y->lo), std::max(x->hi, y->hi)};
          break;
        case Op::k_where: {
          auto z = arg(2);
          if (y && z) r = Bounds{std::min(y->lo, z->lo), std::max(y->hi, z->hi)};
          break;
        }
        case Op::k_convert: {
          DType from = s.body[in.args[0]].dtype;
          if (from == DType::kBool) r = Bounds{0, 1};
          if (is_integral(from) && info(from).bytes < 4) r = Bounds{INT16_MIN, UINT16_MAX};
          if (from == DType::kI32) r = Bounds{INT32_MIN, INT32_MAX};
          break;
        }
        default:
          break;
      }
      if (r && r->narrow()) b[i] = r;
    }
    return b;
  }

  DType narrowed(const StageFacts& f, const loops::Stage& s, Id i) const {
    return f.bounds[i] ? DType::kI32 : s.body[i].dtype;
  }

  // Does a stage hold vectors of 64-bit values, and can it be written with vectors at all?
  void look(const loops::Stage& s, const StageFacts& f, bool& wide, bool& fits) const {
    std::vector<char> varying = varying_values(s);
    auto note = [&](DType d) {
      Class c = class_of(d);
      wide |= c == Class::kD || c == Class::kL;
    };
    for (size_t i = 0; i < s.body.size(); ++i) {
      const Instr& in = s.body[i];
      if (in.op == Op::k_indirect) {
        if (varying[i] && !f.bounds[in.args[0]]) wide = true;
        continue;
      }
      if (varying[i] && in.dtype != DType::kUndefined) note(narrowed(f, s, static_cast<Id>(i)));
      if (is_memory_store(in.op)) note(narrowed(f, s, in.args[0]));
      // a narrow value stored as i64 needs wide lanes
      if (in.op == Op::k_store) note(k_.params[in.slot].dtype);
      if (in.op == Op::k_store_scratch) note(k_.scratch[in.slot].dtype);
      if (is_fold(in.op)) {
        note(k_.accs[in.slot].dtype);
        if (k_.accs[in.slot].kind >= Reduce::kArgMax && !f.bounds[in.args[1]]) wide = true;
      }
      if (outer() && in.op == Op::k_acc) note(in.dtype);
      if (outer() && (in.op == Op::k_load_scratch || in.op == Op::k_store_scratch) &&
          step_of(in.index, s, varying).kind != Step::kUniform)
        fits = false;
    }
  }

  std::vector<char> varying_values(const loops::Stage& s) const {
    std::vector<char> v(s.body.size(), 0);
    for (size_t i = 0; i < s.body.size(); ++i) {
      const Instr& in = s.body[i];
      bool any = false;
      for (Id a : in.args) any |= a != kNone && v[a];
      if (in.mask != kNone) any |= v[in.mask] != 0;
      switch (in.op) {
        case Op::k_index:
        case Op::k_load:
          any |= step_of(in.index, s, v).kind != Step::kUniform;
          break;
        case Op::k_in_range:
          if (whole_vectors(in, lane_of(s))) break;
          for (Expr e : {in.index, in.lo, in.hi}) any |= step_of(e, s, v).kind != Step::kUniform;
          break;
        case Op::k_load_scratch:
          any |= outer() || step_of(in.index, s, v).kind != Step::kUniform;
          break;
        case Op::k_acc:
          any |= outer();
          break;
        case Op::k_scan:
          any |= outer();
          break;
        default:
          break;
      }
      v[i] = any ? 1 : 0;
    }
    return v;
  }

  // How `e` moves with the lanes. Indirect variables move if the instruction that defines them does.
  Step step_of(Expr e, const loops::Stage& s, const std::vector<char>& varying) const {
    Expr lane = lane_of(s);
    auto var_varies = [&](Expr v) {
      for (size_t i = 0; i < varying.size(); ++i)
        if (s.body[i].op == Op::k_indirect && s.body[i].index == v) return varying[i] != 0;
      return false;
    };
    return step_of(e, lane, var_varies);
  }
  Step step_of(Expr e, Expr lane, const std::function<bool(Expr)>& var_varies) const {
    switch (e.kind()) {
      case sym::Kind::kConst:
        return {};
      case sym::Kind::kVar:
        if (e == lane) return {Step::kStride, 1};
        return {var_varies(e) ? Step::kVarying : Step::kUniform, 0};
      case sym::Kind::kAdd: {
        Step r;
        for (Expr t : e.operands()) {
          Step x = step_of(t, lane, var_varies);
          if (x.kind == Step::kVarying) return x;
          r.stride += x.stride;
        }
        if (r.stride != 0) r.kind = Step::kStride;
        return r;
      }
      case sym::Kind::kMul: {
        Step r;
        int64_t factor = 1;
        bool constant = true;
        for (Expr t : e.operands()) {
          Step x = step_of(t, lane, var_varies);
          if (x.kind == Step::kUniform) {
            constant &= t.is_const();
            if (t.is_const()) factor *= t.value();
            continue;
          }
          if (x.kind == Step::kVarying || r.kind != Step::kUniform) return {Step::kVarying, 0};
          r = x;
        }
        if (r.kind == Step::kUniform) return r;
        if (!constant) return {Step::kVarying, 0};
        r.stride *= factor;
        return r;
      }
      case sym::Kind::kFloorDiv:
      case sym::Kind::kMod: {
        Step x = step_of(e.operands()[0], lane, var_varies), y = step_of(e.operands()[1], lane, var_varies);
        if (x.kind == Step::kUniform && y.kind == Step::kUniform) return {};
        // Whole vectors stay within one block of the divisor.
        Expr by = e.operands()[1];
        if (x.kind == Step::kStride && x.stride == 1 && by.is_const() && by.value() % lanes_.width == 0 &&
            by.value() > 0 && aligned(e.operands()[0], lane))
          return e.kind() == sym::Kind::kFloorDiv ? Step{} : x;
        return {Step::kVarying, 0};
      }
      default:
        for (Expr t : e.operands())
          if (step_of(t, lane, var_varies).kind != Step::kUniform) return {Step::kVarying, 0};
        return {};
    }
  }
  // Is a range test true or false for all lanes of a vector alike? (cat and rotary halves at round sizes)
  bool whole_vectors(const Instr& in, Expr lane) const {
    auto no = [](Expr) { return false; };
    const Step st = step_of(in.index, lane, no);
    if (st.kind != Step::kStride || st.stride != 1) return false;
    std::vector<Expr> vars;
    for (Expr e : {in.index, in.lo, in.hi}) sym::collect_vars(e, vars);
    for (Expr v : vars)
      if (v.name().starts_with('t')) return false;
    return step_of(in.lo, lane, no).kind == Step::kUniform && step_of(in.hi, lane, no).kind == Step::kUniform &&
           aligned(in.index - in.lo, lane) && aligned(in.index - in.hi, lane);
  }
  // Is `e` a multiple of the vector length wherever the lane variable is?
  bool aligned(Expr e, Expr lane) const {
    const int64_t w = 16;  // also right for fewer lanes
    static const Expr block = sym::var("lane_block", {0, int64_t{1} << 40}, 0);
    Expr at = sym::substitute(e, [&](Expr v) -> std::optional<Expr> {
      if (v == lane) return block * Expr(w);
      return std::nullopt;
    });
    return sym::known_divisible(at, w);
  }

  // ---- text

  void line(const std::string& s) { out_ += std::string(2 * static_cast<size_t>(indent_), ' ') + s + "\n"; }
  void open(const std::string& s) {
    line(s + (s.empty() ? "{" : " {"));
    ++indent_;
  }
  void close(const std::string& tail = "") {
    --indent_;
    line("}" + tail);
  }

  // `lane`: text for the lane variable; `l`: text of a lane number, for indirect variables that differ by lane.
  std::string index(Expr e, const Place& p, const std::string& lane = "", int copy = 0,
                    const std::string& l = "") const {
    auto rec = [&](Expr x) { return index(x, p, lane, copy, l); };
    switch (e.kind()) {
      case sym::Kind::kConst:
        return number(e.value());
      case sym::Kind::kVar: {
        if (p.vector && e == p.lane && !lane.empty()) return lane;
        auto it = p.indirect.find(e.node());
        if (it != p.indirect.end())
          return it->second.second ? it->second.first + "_" + num(copy) + "[" + l + "]" : it->second.first;
        return variable(e);
      }
      case sym::Kind::kAdd: {
        std::string s;
        for (Expr t : e.operands()) {
          if (t.is_const() && t.value() < 0 && !s.empty() && !shared_) {
            s += " - " + num(-t.value());
          } else {
            s += (s.empty() ? "" : " + ") + rec(t);
          }
        }
        return "(" + s + ")";
      }
      case sym::Kind::kMul: {
        std::string s;
        for (Expr t : e.operands()) s += (s.empty() ? "" : " * ") + rec(t);
        return s;
      }
      case sym::Kind::kFloorDiv:
      case sym::Kind::kMod: {
        Expr a = e.operands()[0], b = e.operands()[1];
        bool plain = a.range().lo >= 0 && b.range().lo > 0, div = e.kind() == sym::Kind::kFloorDiv;
        if (plain) return "(" + rec(a) + (div ? " / " : " % ") + rec(b) + ")";
        return ns() + (div ? "index_div(" : "index_mod(") + rec(a) + ", " + rec(b) + ")";
      }
      case sym::Kind::kMin:
      case sym::Kind::kMax: {
        std::string s = rec(e.operands()[0]);
        for (size_t i = 1; i < e.operands().size(); ++i)
          s = ns() + (e.kind() == sym::Kind::kMin ? "index_min(" : "index_max(") + s + ", " + rec(e.operands()[i]) +
              ")";
        return s;
      }
    }
    return "";
  }
  std::string variable(Expr v) const {
    auto it = variables_.find(v.node());
    FLASHOVER_CHECK(it != variables_.end()) << "no variable " << v.str() << " in " << loops::print(k_);
    return it->second;
  }
  // Library names for scalars: their own namespace where the kernel itself is vectors.
  std::string ns() const { return lanes_.width > 1 ? "one::" : ""; }
  std::string plain(Expr e) const { return index(e, Place{}); }

  void function(Emitted& e) {
    name_variables();
    body_function();
    std::string body = std::move(out_);
    out_.clear();
    e.body_name = "b_" + Hasher().text(body).number(static_cast<uint64_t>(lanes_.width)).finish().hex().substr(0, 16);
    indent_ = 0;
    open("static void " + e.body_name + "(void* job_, long begin, long end)");
    out_ += body;
    close();
    e.body = std::move(out_);
    out_.clear();
    in_body_ = false;
    open("extern \"C\" __attribute__((visibility(\"default\"))) int " + symbol_ +
         "(void* const* pointers, const long* sizes)");
    std::string constants;
    for (int64_t v : constants_) constants += (constants.empty() ? "" : ", ") + num(v);
    if (!constants.empty()) line("static const long constants[] = {" + constants + "};");
    line(std::string("Job job = {pointers, sizes, ") + (constants.empty() ? "0" : "constants") + ", 0};");
    for (size_t i = 0; i < k_.sizes.size(); ++i)
      line("const long s" + num(static_cast<int64_t>(i)) + " = sizes[" + num(static_cast<int64_t>(i)) + "];");
    bool single = count_.is_const() && count_.value() <= 1;
    if (k_.serial || single) {
      line("if (" + plain(count_) + " > 0) " + e.body_name + "(&job, 0, " + plain(count_) + ");");
    } else {
      line("run_parallel(" + e.body_name + ", &job, " + plain(count_) + ", " + num(grain_) + ");");
    }
    line("return job.error;");
    close();
    e.entry = std::move(out_);
  }

  // Pointwise kernels over affine indices take every size and stride from the job: a model's many shapes of one
  // operation are then one body. (Rows keep their sizes as constants, which makes their loops and tails shorter.)
  bool can_share() const {
    if (!outer() || !tiles_.empty() || k_.stages.size() != 1 || !k_.stages[0].loops.empty() || !k_.sizes.empty() ||
        !k_.scratch.empty())
      return false;
    for (const loops::Loop& l : k_.outer)
      if (!l.extent.is_const()) return false;
    for (const Instr& in : k_.stages[0].body) {
      if (in.op == Op::k_in_range || in.op == Op::k_indirect || !affine(in.index)) return false;
    }
    return true;
  }
  static bool affine(Expr e) {
    switch (e.kind()) {
      case sym::Kind::kConst:
      case sym::Kind::kVar:
        return true;
      case sym::Kind::kAdd:
      case sym::Kind::kMul:
        return std::all_of(e.operands().begin(), e.operands().end(), [](Expr t) { return affine(t); });
      default:
        return false;
    }
  }
  // A number of the kernel's geometry: in place, or from the job.
  std::string number(int64_t v) const {
    if (!shared_ || !in_body_ || v == 0 || v == 1) return v < 0 ? "(" + num(v) + ")" : num(v);
    constants_.push_back(v);
    return "c" + num(static_cast<int64_t>(constants_.size()) - 1);
  }

  void name_variables() {
    for (size_t i = 0; i < k_.sizes.size(); ++i) variables_[k_.sizes[i].node()] = "s" + num(static_cast<int64_t>(i));
    for (size_t i = 0; i < k_.outer.size(); ++i)
      variables_[k_.outer[i].var.node()] = "i" + num(static_cast<int64_t>(i));
  }

  // How many of the innermost outer loop's points one step of the numbering covers (kOuter).
  void choose_block() {
    unroll_ = 1;
    block_ = 1;
    if (!outer()) return;
    const int64_t w = lanes_.width;
    bool loops = false, folds = false;
    int vectors = 0;
    for (const loops::Stage& s : k_.stages) {
      loops |= !s.loops.empty();
      for (const Instr& in : s.body) {
        folds |= is_fold(in.op);
        vectors += in.op != Op::k_const && in.op != Op::k_index;
      }
    }
    if (loops) {
      if (folds) unroll_ = vectors <= 8 ? 4 : vectors <= 16 ? 2 : 1;
      // Few columns: rather more blocks for the threads than more vectors in each.
      if (auto n = k_.outer.back().extent.as_const())
        while (unroll_ > 1 && *n < unroll_ * w) unroll_ /= 2;
      block_ = unroll_ * w;
      return;
    }
    auto n = k_.outer.back().extent.as_const();
    if (!tiles_.empty()) {
      block_ = n && *n <= 512 ? (*n + w - 1) / w * w : 256;
      return;
    }
    block_ = n && *n <= 8192 ? (*n + w - 1) / w * w : 4096;
  }

  bool is_across(size_t loop) const { return !tiles_.empty() && static_cast<int32_t>(loop) == k_.transpose; }
  // How many steps the numbering makes of an outer loop (but the last under kOuter).
  Expr numbered(size_t loop) const {
    if (std::find(repeats_.begin(), repeats_.end(), loop) != repeats_.end()) return 1;
    return is_across(loop) ? sym::ceildiv(k_.outer[loop].extent, Expr(lanes_.width)) : k_.outer[loop].extent;
  }

  void body_function() {
    choose_block();
    indent_ = 1;
    line("Job* job = (Job*)job_;");
    const size_t constants_at = out_.size();
    for (size_t i = 0; i < k_.params.size(); ++i) {
      const loops::Param& p = k_.params[i];
      std::string type = std::string(p.written ? "" : "const ") + memory_type(p.dtype) + "*";
      line(type + " p" + num(static_cast<int64_t>(i)) + " = (" + type + ")job->p[" + num(static_cast<int64_t>(i)) +
           "];");
    }
    for (size_t i = 0; i < k_.sizes.size(); ++i)
      line("const long s" + num(static_cast<int64_t>(i)) + " = job->s[" + num(static_cast<int64_t>(i)) + "];");
    std::vector<std::string> heap;
    for (size_t i = 0; i < k_.scratch.size(); ++i) {
      const loops::Scratch& s = k_.scratch[i];
      const std::string name = "r" + num(static_cast<int64_t>(i));
      const std::string type = outer() ? type_name(class_of(s.dtype), true) : memory_type(s.dtype);
      const int64_t each = outer() ? int64_t{64} * unroll_ : info(s.dtype).bytes;
      const std::string size = plain(s.size) + (outer() ? " * " + num(unroll_) : "");
      if (s.size.is_const() && s.size.value() * each <= int64_t{64} * 1024) {
        line("alignas(64) " + type + " " + name + "[" + size + "];");
      } else {
        line(type + "* " + name + " = (" + type + "*)aligned_alloc(64, (" + size + ") * sizeof(" + type +
             ") / 64 * 64 + 64);");
        heap.push_back(name);
      }
    }
    count_ = 1;
    const size_t flat = k_.outer.size() - (outer() ? 1 : 0);
    for (size_t i = 0; i < flat; ++i) count_ = count_ * numbered(i);
    int64_t points = 1;
    if (!tiles_.empty()) points = lanes_.width;
    for (size_t r : repeats_) points *= k_.outer[r].extent.value();
    Expr blocks = 1;
    if (outer()) {
      blocks = sym::ceildiv(k_.outer.back().extent, Expr(block_));
      count_ = count_ * blocks;
      auto n = k_.outer.back().extent.as_const();
      points *= n ? std::min(block_, *n) : block_;
    }
    // A unit of cost takes about 0.02 ns in vectors and 0.3 ns alone; threads pay off from about 3 us.
    const double per_step = static_cast<double>(std::max<int64_t>(k_.cost, 1)) *
                            static_cast<double>(std::max<int64_t>(points, 1)) * (lanes_.width > 1 ? 0.02 : 0.3);
    grain_ = std::max<int64_t>(1, static_cast<int64_t>(3000 / per_step));

    if (by_rows()) {
      all_by_rows();
    } else {
      each_block(blocks, flat);
    }
    for (const std::string& name : heap) line("free(" + name + ");");
    std::string declarations;
    for (size_t i = 0; i < constants_.size(); ++i)
      declarations +=
          "  const long c" + num(static_cast<int64_t>(i)) + " = job->c[" + num(static_cast<int64_t>(i)) + "];\n";
    out_.insert(constants_at, declarations);
  }

  void each_block(Expr blocks, size_t flat) {
    open("for (long o = begin; o < end; ++o)");
    std::string rest = "o";
    auto take = [&](const std::string& name, Expr extent, bool last) {
      if (extent.is_const(1)) {
        line("const long " + name + " = 0;");
      } else if (last) {
        line("const long " + name + " = " + rest + ";");
      } else {
        const std::string n = plain(extent);
        line("const long " + name + " = " + rest + " % " + n + ", " + name + "r = " + rest + " / " + n + ";");
        rest = name + "r";
      }
    };
    if (outer()) take("block", blocks, flat == 0);
    for (size_t i = flat; i-- > 0;) {
      bool last = true;
      for (size_t j = 0; j < i; ++j) last &= numbered(j).is_const(1);
      if (std::find(repeats_.begin(), repeats_.end(), i) != repeats_.end()) continue;
      take(is_across(i) ? "across" : "i" + num(static_cast<int64_t>(i)), numbered(i), last);
    }
    if (outer()) {
      outer_lanes();
    } else {
      for (size_t i = 0; i < k_.stages.size(); ++i) stage(i, 1, "");
    }
    close();
  }

  // Folds down the rows of a large matrix: one block of columns after the other would read a little of every row, again
  // and again, and memory answers whole pages. So a few rows at a time are read from end to end; the accumulators of
  // all columns wait in an array meanwhile.
  static constexpr int64_t kRows = 8;         // in registers
  static constexpr int64_t kColumns = 4096;   // whose accumulators are in the array
  static constexpr int64_t kWorth = 1 << 16;  // elements: what fits the cache is read as well in any order
  bool by_rows() const {
    if (!outer() || k_.outer.size() != 1 || !tiles_.empty() || !k_.scratch.empty() || shared_) return false;
    const auto columns = k_.outer[0].extent.as_const();
    if (!columns || *columns <= block_ || k_.accs.empty()) return false;
    for (const loops::Accumulator& a : k_.accs)
      if (a.dtype != DType::kF32 || a.kind > Reduce::kMin) return false;
    bool large = false;
    for (size_t i = 0; i < k_.stages.size(); ++i) {
      const loops::Stage& s = k_.stages[i];
      if (s.ordered || !facts_[i].vector) return false;
      std::vector<bool> written(k_.params.size());
      for (const Instr& in : s.body)
        if (in.op == Op::k_store) written[in.slot] = true;
      for (size_t b = 0; b < s.body.size(); ++b) {
        const Op op = s.body[b].op;
        if (op == Op::k_scan || op == Op::k_indirect) return false;
        // What does not depend on the row is done again for each few rows.
        if (!s.loops.empty() && facts_[i].depth[b] == 0 &&
            (op == Op::k_store || (op == Op::k_load && written[s.body[b].slot])))
          return false;
      }
      if (s.loops.empty()) continue;
      const int64_t rows = rows_of(s);
      if (rows < 4 * kRows) return false;
      large |= rows * *columns >= kWorth;
    }
    return large;
  }

  // 0 if unknown.
  static int64_t rows_of(const loops::Stage& s) {
    int64_t rows = 1;
    for (const loops::Loop& l : s.loops) rows *= l.extent.as_const().value_or(0);
    return rows;
  }

  void all_by_rows() {
    const int64_t waiting = kColumns / static_cast<int64_t>(k_.accs.size());
    const int64_t group = std::max<int64_t>(1, waiting / block_), vectors = group * unroll_;
    const std::string all = num(vectors);
    open("for (long ob = begin; ob < end; ob += " + num(group) + ")");
    line("const long oe = ob + " + num(group) + " < end ? ob + " + num(group) + " : end;");
    for (size_t a = 0; a < k_.accs.size(); ++a) {
      const std::string n = num(static_cast<int64_t>(a));
      line("VF m" + n + "[" + all + "], s" + n + "[" + all + "];");
      line("for (int q = 0; q < (oe - ob) * " + num(unroll_) + "; ++q) m" + n + "[q] = s" + n +
           "[q] = " + identity(static_cast<int32_t>(a), true) + ";");
    }
    auto columns = [&](int number) {
      part_ = number;
      open("for (long o = ob; o < oe; ++o)");
      line("const long block = o;");
      outer_lanes();
      close();
      part_ = -1;
    };
    for (size_t i = 0; i < k_.stages.size(); ++i) {
      const loops::Stage& s = k_.stages[i];
      if (s.loops.empty()) {
        columns(static_cast<int>(i));
        continue;
      }
      const int64_t rows = rows_of(s);
      int64_t chain = 32;  // as choose_blocking() has it
      while (chain * chain < rows) chain *= 2;
      auto pieces = [&](const std::string& v, const std::string& from, const std::string& to, int64_t by) {
        open("for (long " + v + "b = " + from + "; " + v + "b < " + to + "; " + v + "b += " + num(by) + ")");
        line("const long " + v + "e = " + v + "b + " + num(by) + " < " + to + " ? " + v + "b + " + num(by) + " : " +
             to + ";");
      };
      pieces("k", "0", num(rows), chain);
      pieces("j", "kb", "ke", kRows);
      if (s.loops.size() > 1) number_rows(s);
      columns(static_cast<int>(i));
      close();
      std::vector<int32_t> folds;
      for (const Instr& in : s.body)
        if (is_fold(in.op)) folds.push_back(in.slot);
      if (!folds.empty()) {
        open("for (int q = 0; q < (oe - ob) * " + num(unroll_) + "; ++q)");
        for (int32_t a : folds) {
          const std::string m = "m" + num(a) + "[q]", sum = "s" + num(a) + "[q]";
          line(sum + " = " + folded(a, sum, m, true) + ";");
          line(m + " = " + identity(a, true) + ";");
        }
        close();
      }
      close();
    }
    close();
  }

  // The loop variables of rows [jb, je) of a stage that has several loops: row<loop>[].
  void number_rows(const loops::Stage& s) {
    for (size_t d = 0; d < s.loops.size(); ++d) line("long " + row_name(d) + "[" + num(kRows) + "];");
    open("for (long j = jb; j < je; ++j)");
    line("long rest = j;");
    for (size_t d = s.loops.size(); d-- > 0;) {
      const std::string n = num(s.loops[d].extent.value());
      line(row_name(d) + "[j - jb] = rest % " + n + ";");
      if (d > 0) line("rest /= " + n + ";");
    }
    close();
  }
  static std::string row_name(size_t loop) { return "row" + num(static_cast<int64_t>(loop)); }

  // One stage of all_by_rows(), for some vectors of columns.
  void part(int copies, const std::string& count) {
    const std::string at =
        "[(" + variable(k_.outer[0].var) + " - ob * " + num(block_) + ") / " + num(lanes_.width) + " + ";
    const loops::Stage& s = k_.stages[static_cast<size_t>(part_)];
    std::vector<bool> folds(k_.accs.size()), reads(k_.accs.size());
    for (const Instr& in : s.body) {
      if (is_fold(in.op)) folds[in.slot] = true;
      if (in.op == Op::k_acc) reads[in.slot] = true;
    }
    Place p;
    p.vector = true;
    p.copies = copies;
    for (size_t a = 0; a < k_.accs.size(); ++a)
      for (int u = 0; u < copies; ++u) {
        const std::string n = num(static_cast<int64_t>(a));
        const std::string name = acc_name(static_cast<int32_t>(a), p, u);
        if (folds[a])
          line("VF " + name + " = m" + n + at + num(u) + "];");
        else if (reads[a])
          line("const VF " + name + " = s" + n + at + num(u) + "];");
      }
    stage(static_cast<size_t>(part_), copies, count);
    for (size_t a = 0; a < k_.accs.size(); ++a)
      for (int u = 0; u < copies && folds[a]; ++u)
        line("m" + num(static_cast<int64_t>(a)) + at + num(u) + "] = " + acc_name(static_cast<int32_t>(a), p, u) + ";");
  }

  // The vectors of one block of the last outer loop.
  void outer_lanes() {
    const std::string lane = variable(k_.outer.back().var);
    const Expr extent = k_.outer.back().extent;
    const int64_t w = lanes_.width;
    const bool known = !shared_ && extent.is_const();
    const int64_t n = known ? extent.value() : 0;
    auto stages = [&](int copies, const std::string& count) {
      if (!tiles_.empty()) return tile(count);
      if (part_ >= 0) return part(copies, count);
      for (size_t i = 0; i < k_.stages.size(); ++i) stage(i, copies, count);
    };
    const bool one_block = known && n <= block_;
    const std::string block = one_block ? "" : number(block_), size = plain(extent);
    line("long " + lane + " = " + (one_block ? "0" : "block * " + block) + ";");
    if (!one_block)
      line("const long stop = " + lane + " + " + block + " < " + size + " ? " + lane + " + " + block + " : " + size +
           ";");
    const std::string stop = one_block ? size : "stop";
    if (unroll_ > 1 && (!known || n >= unroll_ * w)) {
      open("for (; " + lane + " + " + num(unroll_ * w) + " <= " + stop + "; " + lane + " += " + num(unroll_ * w) + ")");
      stages(unroll_, "");
      close();
    }
    if (!known || (unroll_ > 1 ? n % (unroll_ * w) >= w : n >= w)) {
      open("for (; " + lane + " + " + num(w) + " <= " + stop + "; " + lane + " += " + num(w) + ")");
      stages(1, "");
      close();
    }
    if (!known || n % w) {
      open("if (" + lane + " < " + stop + ")");
      if (known) {
        stages(1, num(n % w));
      } else {
        line("const int n = (int)(" + stop + " - " + lane + ");");
        stages(1, "n");
      }
      close();
    }
  }

  // One tile: W rows of loop `transpose` by W lanes. `n`: lanes that are there, "" for all.
  void tile(const std::string& n) {
    const loops::Loop& across = k_.outer[k_.transpose];
    const std::string row = variable(across.var), lane = variable(k_.outer.back().var), w = num(lanes_.width);
    auto extent = across.extent.as_const();
    const bool whole = extent && *extent % lanes_.width == 0;
    line("const long " + row + "b = across * " + w + ";");
    if (!whole)
      line("const int rows = " + row + "b + " + w + " <= " + plain(across.extent) + " ? " + w + " : (int)(" +
           plain(across.extent) + " - " + row + "b);");
    const std::string rows = whole ? w : "rows";
    tile_names_.clear();
    for (Id i : tiles_) {
      const Instr& in = k_.stages[0].body[i];
      const Memory m = memory(in);
      const std::string name = "tile" + num(i);
      tile_names_[i] = name;
      line("VF " + name + "[W]" + (n.empty() ? "" : " = {}") + ";");
      variables_[across.var.node()] = row + "b";
      const Place at = lane_place();
      std::string address = m.pointer + " + " + index(in.index, at, "(" + lane + " + c)");
      std::string text = "load_" + m.suffix + "(" + address + ")",
                  part = "load_" + m.suffix + "_n(" + address + ", rows)";
      if (m.dtype == DType::kI32) text = "from_bits(" + text + ")", part = "from_bits(" + part + ")";
      line("for (int c = 0; c < " + (n.empty() ? w : n) + "; ++c) " + name +
           "[c] = " + (whole ? text : "rows == W ? " + text + " : " + part) + ";");
      variables_[across.var.node()] = row;
      line("transpose_tile(" + name + ");");
    }
    for (size_t r : repeats_) {
      const std::string v = variable(k_.outer[r].var);
      open("for (long " + v + " = 0; " + v + " < " + plain(k_.outer[r].extent) + "; ++" + v + ")");
    }
    open("for (int row = 0; row < " + rows + "; ++row)");
    line("const long " + row + " = " + row + "b + row;");
    stage(0, 1, n);
    close();
    for (size_t r = 0; r < repeats_.size(); ++r) close();
  }
  Place lane_place() const {
    Place p;
    p.vector = true;
    p.lane = k_.outer.back().var;
    return p;
  }

  static std::string memory_type(DType d) {
    switch (d) {
      case DType::kF32:
        return "float";
      case DType::kF64:
        return "double";
      case DType::kF16:
      case DType::kBF16:
      case DType::kU16:
        return "unsigned short";
      case DType::kBool:
        return "bool";
      case DType::kU8:
        return "unsigned char";
      case DType::kI8:
        return "signed char";
      case DType::kI16:
        return "short";
      case DType::kI32:
        return "int";
      case DType::kU32:
        return "unsigned";
      case DType::kI64:
        return "long";
      default:
        throw Declined(std::string("kernel: no memory access for ") + info(d).name);
    }
  }

  // ---- stages

  // Vectors of this stage that are in flight at once when its inner loop is unrolled (kInner).
  int inner_copies(const loops::Stage& s) const {
    int work = 0;
    bool folds = false, arg = false;
    for (const Instr& in : s.body) {
      if (is_fold(in.op)) {
        folds = true;
        arg |= k_.accs[in.slot].kind >= Reduce::kArgMax;
      }
      std::string_view name = loops::info(in.op).name;
      work += loops::is_scalar_op(in.op) ? (name == "exp" || name == "sigmoid"                 ? 6
                                            : name == "tanh" || name == "erf" || name == "log" ? 12
                                                                                               : 1)
                                         : 1;
    }
    if (!folds || arg) return 1;
    int u = work <= 8 ? 4 : work <= 20 ? 2 : 1;
    if (auto n = s.loops.back().extent.as_const())
      while (u > 1 && *n < int64_t{u} * lanes_.width) u /= 2;
    return u;
  }

  void stage(size_t number, int copies, const std::string& n) {
    const loops::Stage& s = k_.stages[number];
    const StageFacts& f = facts_[number];
    Place p;
    p.stage = &s;
    p.facts = &f;
    p.vector = f.vector;
    p.values.resize(s.body.size());
    if (p.vector) p.lane = lane_of(s);
    for (size_t i = 0; i < s.loops.size(); ++i) variables_[s.loops[i].var.node()] = "j" + num(static_cast<int64_t>(i));
    if (outer()) {
      p.copies = copies;
      p.n = n;
      p.lane_text = variable(p.lane);
      p.tiles = tile_names_;
    }
    std::vector<int32_t> folded;
    for (const Instr& in : s.body)
      if (is_fold(in.op)) folded.push_back(in.slot);
    if (inner() && p.vector) {
      p.copies = inner_copies(s);
      p.lane_text = variable(p.lane);
    }
    // Accumulators outlive their stage, everything else does not.
    if (part_ < 0)
      for (int32_t a : folded) declare_accumulator(a, p);
    const bool braces = !s.body.empty();
    if (braces) open("");
    const Blocking blocking = part_ < 0 ? choose_blocking(s, p, folded) : Blocking{};
    level(0, p, blocking);
    if (braces) close();
    if (inner())
      for (int32_t a : folded) finish_accumulator(a, p);
  }

  // Long sums are folded in two levels: the error of one chain grows with its length.
  struct Blocking {
    std::vector<int32_t> sums;  // accumulators with a second level
    int64_t block = 0;          // > 0: the innermost loop runs in blocks of so many points, each folded at its end
    bool at_end = false;        // folded after each whole run of the innermost loop
  };
  Blocking choose_blocking(const loops::Stage& s, const Place& p, const std::vector<int32_t>& folded) const {
    Blocking b;
    if (s.loops.empty() || s.ordered) return b;
    for (int32_t a : folded)
      if (k_.accs[a].kind == Reduce::kSum && is_floating(k_.accs[a].dtype)) b.sums.push_back(a);
    if (b.sums.empty()) return b;
    const bool lanes_inside = inner() && p.vector;
    const int64_t step = lanes_inside ? lanes_.width * p.copies : 1;
    int64_t chain = lanes_inside ? 64 : 32;
    auto n = s.loops.back().extent.as_const();
    // Both chains, within a block and over the blocks, are shortest when they are alike.
    while (n && chain * chain * step < *n) chain *= 2;
    if (!n || *n > 2 * chain * step) {
      b.block = chain * step;
    } else if (s.loops.size() > 1 && *n >= 4 * step) {
      b.at_end = true;
    } else {
      b.sums.clear();
    }
    return b;
  }

  bool is_vector_acc(const Place& p) const { return p.vector; }
  std::string acc_name(int32_t a, const Place& p, int copy) const {
    return "a" + num(a) + (p.vector ? "_" + num(copy) : "");
  }
  bool arg_index_narrow(int32_t a) const {
    for (size_t n = 0; n < k_.stages.size(); ++n)
      for (const Instr& in : k_.stages[n].body)
        if (in.op == Op::k_reduce && in.slot == a) return facts_[n].bounds[in.args[1]].has_value();
    return false;
  }
  std::string identity(int32_t a, bool vector) const {
    const loops::Accumulator& acc = k_.accs[a];
    const Class c = class_of(acc.dtype);
    const std::string q = vector ? "" : ns();
    const DTypeInfo& t = info(acc.dtype);
    double f = 0;
    int64_t i = 0;
    switch (acc.kind) {
      case Reduce::kSum:
      case Reduce::kAny:
        break;
      case Reduce::kProd:
      case Reduce::kAll:
        f = 1, i = 1;
        break;
      case Reduce::kMax:
      case Reduce::kArgMax:
        f = -__builtin_inf();
        i = t.is_signed ? -(int64_t{1} << (t.bytes * 8 - 2)) * 2 : 0;
        break;
      case Reduce::kMin:
      case Reduce::kArgMin:
        f = __builtin_inf();
        i = acc.dtype == DType::kBool ? 1
            : t.is_signed             ? ((int64_t{1} << (t.bytes * 8 - 2)) - 1) * 2 + 1
                                      : (int64_t{1} << t.bytes * 8) - 1;
        break;
    }
    return constant(c, f, i, vector, q);
  }
  void declare_accumulator(int32_t a, const Place& p) {
    const Class c = class_of(k_.accs[a].dtype);
    const bool arg = k_.accs[a].kind >= Reduce::kArgMax;
    for (int u = 0; u < (p.vector ? p.copies : 1); ++u) {
      line(std::string(type_name(c, p.vector)) + " " + acc_name(a, p, u) + " = " + identity(a, p.vector) + ";");
      if (arg) {
        bool narrow = p.vector && arg_index_narrow(a);
        line(std::string(narrow ? "VI" : type_name(Class::kL, p.vector)) + " " + acc_name(a, p, u) + "i = " +
             constant(narrow ? Class::kI : Class::kL, 0, narrow ? INT32_MAX : INT64_MAX, p.vector,
                      p.vector ? "" : ns()) +
             ";");
      }
    }
    if (tracks_nan(a, p)) line("unsigned a" + num(a) + "_nan = 0;");
  }
  // a = a combined with x
  std::string folded(int32_t a, const std::string& acc, const std::string& x, bool vector) const {
    const loops::Accumulator& k = k_.accs[a];
    Op op = Op::k_add;
    switch (k.kind) {
      case Reduce::kSum:
        op = Op::k_add;
        break;
      case Reduce::kProd:
        op = Op::k_mul;
        break;
      case Reduce::kMax:
        op = Op::k_maximum;
        break;
      case Reduce::kMin:
        op = Op::k_minimum;
        break;
      case Reduce::kAny:
        op = Op::k_bitwise_or;
        break;
      case Reduce::kAll:
        op = Op::k_bitwise_and;
        break;
      default:
        break;
    }
    return operation(op, k.dtype, acc, x, "", vector, vector ? "" : ns());
  }
  // Along a row, max and min run on the one-instruction operation, which loses NaN, and look for NaN two vectors at a
  // time.
  bool tracks_nan(int32_t a, const Place& p) const {
    return inner() && p.vector && k_.accs[a].dtype == DType::kF32 &&
           (k_.accs[a].kind == Reduce::kMax || k_.accs[a].kind == Reduce::kMin);
  }
  // Lanes and copies of a row's accumulator become one scalar.
  void finish_accumulator(int32_t a, const Place& p) {
    if (!p.vector) return;
    const loops::Accumulator& k = k_.accs[a];
    const Class c = class_of(k.dtype);
    std::string x = acc_name(a, p, 0), name = "a" + num(a);
    if (k.kind >= Reduce::kArgMax) {
      line(std::string(type_name(c, false)) + " " + name + " = " + x + "[0];");
      line("long " + name + "i = " + x + "i[0];");
      const char* than = k.kind == Reduce::kArgMax ? ">" : "<";
      line("for (int l = 1; l < W; ++l)");
      line("  if (((" + name + " == " + name + ") & ((" + x + "[l] != " + x + "[l]) | (" + x + "[l] " + than + " " +
           name + "))) |");
      line("      (((" + x + "[l] == " + name + ") | ((" + x + "[l] != " + x + "[l]) & (" + name + " != " + name +
           "))) & (" + x + "i[l] < " + name + "i)))");
      line("    " + name + " = " + x + "[l], " + name + "i = " + x + "i[l];");
      return;
    }
    const bool nan = tracks_nan(a, p);
    for (int u = 1; u < p.copies; ++u)
      x = nan ? quick_extreme(a, x, acc_name(a, p, u)) : "(" + folded(a, x, acc_name(a, p, u), true) + ")";
    const char* suffix = c == Class::kF ? "" : c == Class::kD ? "_d" : c == Class::kI ? "_i" : "_l";
    std::string r;
    if (c == Class::kB) {
      bool any = k.kind == Reduce::kAny || k.kind == Reduce::kSum || k.kind == Reduce::kMax;
      r = any ? "any_lane(" + x + ")" : "!any_lane(m_not(" + x + "))";
    } else {
      const char* f = k.kind == Reduce::kSum    ? "hsum"
                      : k.kind == Reduce::kProd ? "hprod"
                      : k.kind == Reduce::kMax  ? "hmax"
                                                : "hmin";
      r = wrapped(k.dtype, std::string(f) + suffix + "(" + x + ")", ns());
      if (nan) r = name + "_nan ? __builtin_nanf(\"\") : " + r;
    }
    line(std::string("const ") + type_name(c, false) + " " + name + " = " + r + ";");
  }

  std::string quick_extreme(int32_t a, const std::string& x, const std::string& acc) const {
    return std::string(k_.accs[a].kind == Reduce::kMax ? "v_max2(" : "v_min2(") + x + ", " + acc + ")";
  }

  // Everything of the stage that depends on its first `depth` loops, then the next loop.
  void level(size_t depth, Place& p, const Blocking& blocking) {
    const loops::Stage& s = *p.stage;
    for (size_t i = 0; i < s.body.size(); ++i)
      if (p.facts->depth[i] == static_cast<int>(depth)) {
        instruction(static_cast<Id>(i), p);
        const Value& v = p.values[i];
        if (loops::info(s.body[i].op).has_result && divides_row(static_cast<Id>(i), p))
          line("const float v" + num(static_cast<int64_t>(i)) + "r = " + ns() + "div_by(" + v.text + ");");
      }
    if (depth == s.loops.size()) return;
    if (part_ >= 0 && s.loops.size() > 1) {  // one loop over some rows
      if (depth == 0) {
        open("for (long j = jb; j < je; ++j)");
        for (size_t d = 0; d < s.loops.size(); ++d)
          line("const long " + variable(s.loops[d].var) + " = " + row_name(d) + "[j - jb];");
      }
      level(depth + 1, p, blocking);
      if (depth == 0) close();
      return;
    }
    const loops::Loop& loop = s.loops[depth];
    const std::string v = variable(loop.var), extent = plain(loop.extent);
    const bool last = depth + 1 == s.loops.size();
    const bool lanes = last && inner() && p.vector;
    if (!last) {
      open("for (long " + v + " = 0; " + v + " < " + extent + "; ++" + v + ")");
      level(depth + 1, p, blocking);
      close();
      return;
    }
    auto second_level = [&](const char* what) {
      for (int32_t a : blocking.sums)
        for (int u = 0; u < (p.vector ? p.copies : 1); ++u) {
          std::string name = acc_name(a, p, u);
          if (*what == 'o')
            line("const " + std::string(type_name(class_of(k_.accs[a].dtype), p.vector)) + " " + name + "s = " + name +
                 ";");
          if (*what == 'o') line(name + " = " + identity(a, p.vector) + ";");
          if (*what == 'c') line(name + " = " + name + "s + " + name + ";");
        }
    };
    const bool two = blocking.block > 0 || blocking.at_end;
    std::string from = part_ < 0 ? "0" : "jb", to = part_ < 0 ? extent : "je";
    auto n = loop.extent.as_const();
    if (blocking.block > 0) {
      from = v + "b", to = v + "e";
      open("for (long " + from + " = 0; " + from + " < " + extent + "; " + from + " += " + num(blocking.block) + ")");
      line("const long " + to + " = " + from + " + " + num(blocking.block) + " < " + extent + " ? " + from + " + " +
           num(blocking.block) + " : " + extent + ";");
    } else if (two) {
      open("");
    }
    if (two) second_level("open");
    if (!lanes) {
      open("for (long " + v + " = " + from + "; " + v + " < " + to + "; ++" + v + ")");
      level(depth + 1, p, blocking);
      close();
    } else {
      lane_loop(depth, p, blocking, from, to, n);
    }
    if (two) {
      second_level("close");
      close();
    }
  }

  void lane_loop(size_t depth, Place& p, const Blocking& blocking, const std::string& from, const std::string& to,
                 std::optional<int64_t> n) {
    const std::string v = variable(p.lane);
    const int64_t w = lanes_.width;
    const int copies = p.copies;
    line("long " + v + " = " + from + ";");
    const std::vector<Value> before = p.values;
    auto indirect = p.indirect;
    auto run = [&](int u, const std::string& count) {
      p.copies = u;
      p.n = count;
      level(depth + 1, p, blocking);
      p.copies = copies;
      p.n.clear();
      p.values = before;
      p.indirect = indirect;
    };
    if (!n || *n >= copies * w) {
      open("for (; " + v + " + " + num(copies * w) + " <= " + to + "; " + v + " += " + num(copies * w) + ")");
      run(copies, "");
      close();
    }
    if (copies > 1 && (!n || *n % (copies * w) >= w)) {
      open("for (; " + v + " + " + num(w) + " <= " + to + "; " + v + " += " + num(w) + ")");
      run(1, "");
      close();
    }
    if (!n || *n % w) {
      open("if (" + v + " < " + to + ")");
      if (n) {
        run(1, num(*n % w));
      } else {
        line("const int n = (int)(" + to + " - " + v + ");");
        run(1, "n");
      }
      close();
    }
  }

  // ---- instructions

  std::string lane_at(const Place& p, int copy) const {
    return copy == 0 ? p.lane_text : "(" + p.lane_text + " + " + num(int64_t{copy} * lanes_.width) + ")";
  }
  std::string lane_each(const Place& p, int copy) const {
    return "(" + p.lane_text + " + " + (copy ? num(int64_t{copy} * lanes_.width) + " + " : "") + "l)";
  }
  std::string lane_count(const Place& p) const { return p.n.empty() ? "W" : p.n; }

  Step step(Expr e, const Place& p) const {
    if (!p.vector) return {};
    return step_of(e, p.lane, [&](Expr v) {
      auto it = p.indirect.find(v.node());
      return it != p.indirect.end() && it->second.second;
    });
  }

  // Operand `a` as class `want`, as a vector if `vector`.
  std::string operand(Id a, const Place& p, int copy, Class want, bool vector) const {
    const Value& v = p.values[a];
    std::string t = v.name(copy);
    if (v.literal) return constant(want, v.number, v.integer, vector, vector ? "" : ns());
    if (v.cls == Class::kI && want == Class::kL) t = v.varying ? "i_to_l(" + t + ")" : "(long)" + t;
    if (v.cls == Class::kL && want == Class::kI) t = v.varying ? "l_to_i(" + t + ")" : "(int)" + t;  // known to fit
    if (vector && !v.varying) {
      static const char* const splats[] = {"splat", "splat_d", "splat_i", "splat_l", "splat_m"};
      t = std::string(splats[static_cast<size_t>(want)]) + "(" + t + ")";
    }
    return t;
  }

  // Writes "type name = text" for every copy.
  template <typename F>
  void define(Id i, Place& p, bool varying, DType dtype, F&& text) {
    Value& v = p.values[i];
    v.varying = varying;
    v.dtype = dtype;
    v.cls = class_of(dtype);
    v.text = "v" + num(i);
    for (int u = 0; u < (varying ? p.copies : 1); ++u)
      line(std::string("const ") + type_name(v.cls, varying) + " " + v.name(u) + " = " + text(u) + ";");
  }

  void literal(Id i, Place& p, double number, int64_t integer) {
    Value& v = p.values[i];
    v.literal = true;
    v.dtype = narrowed(*p.facts, *p.stage, i);
    v.cls = class_of(v.dtype);
    v.number = v.dtype == DType::kF32 ? static_cast<float>(number) : number;
    v.integer = integer;
    v.text = constant(v.cls, v.number, integer, false, ns());
  }

  bool mask_varies(const Instr& in, const Place& p) const { return in.mask != kNone && p.values[in.mask].varying; }
  std::string mask_text(const Instr& in, const Place& p, int copy) const { return p.values[in.mask].name(copy); }

  void instruction(Id i, Place& p) {
    const Instr& in = p.stage->body[i];
    const StageFacts& f = *p.facts;
    auto varies = [&](Id a) { return a != kNone && p.values[a].varying; };
    if (loops::is_scalar_op(in.op)) {
      const int first = in.op == Op::k_where ? 1 : 0, arity = loops::info(in.op).arity;
      bool varying = false;
      for (Id a : in.args) varying |= varies(a);
      // Index arithmetic stays in 32 bits when every operand and the result fit.
      DType d = p.stage->body[in.args[first]].dtype;
      if (d == DType::kI64) {
        bool narrow = !(in.dtype == DType::kI64 && !f.bounds[i]);
        for (int a = first; a < arity; ++a) narrow &= f.bounds[in.args[a]].has_value();
        if (narrow) d = DType::kI32;
      }
      const Class c = class_of(d);
      const DType result = in.dtype == DType::kI64 && d == DType::kI32 ? DType::kI32 : in.dtype;
      const Op op = quick(i, in.op, p);
      define(i, p, varying, result, [&](int u) {
        std::string t[3];
        for (int a = 0; a < arity; ++a) t[a] = operand(in.args[a], p, u, a < first ? Class::kB : c, varying);
        if (in.op == Op::k_where && varying && !p.values[in.args[0]].varying)
          return "(" + p.values[in.args[0]].name(u) + " ? " + t[1] + " : " + t[2] + ")";
        if (op != in.op) return std::string(in.op == Op::k_tanh ? "v_tanh_fast(" : "v_erf_fast(") + t[0] + ")";
        if (in.op == Op::k_div && varying && c == Class::kF && !p.values[in.args[1]].varying)
          return "v_div_by(" + t[0] + ", " + operand(in.args[1], p, u, c, false) + ", " + reciprocal(in.args[1], p) +
                 ")";
        if (in.op == Op::k_pow)
          if (std::string s = power(in, p, t[0], c, varying); !s.empty()) return s;
        return operation(in.op, d, t[0], t[1], t[2], varying, varying ? "" : ns());
      });
      return;
    }
    switch (in.op) {
      case Op::k_const:
        return literal(i, p, in.number, in.integer);
      case Op::k_convert: {
        if (const Value& c = p.values[in.args[0]]; c.literal) {
          const bool from = is_floating(c.dtype), to = is_floating(in.dtype);
          if (in.dtype == DType::kBool) return literal(i, p, 0, from ? c.number != 0 : c.integer != 0);
          if (to) return literal(i, p, from ? c.number : static_cast<double>(c.integer), 0);
          if (!from && info(in.dtype).bytes == 8) return literal(i, p, 0, c.integer);
        }
        const bool varying = varies(in.args[0]);
        DType from = p.stage->body[in.args[0]].dtype;
        if (from == DType::kI64 && f.bounds[in.args[0]]) from = DType::kI32;
        DType to = narrowed(f, *p.stage, i);
        define(i, p, varying, to, [&](int u) {
          return conversion(from, to, operand(in.args[0], p, u, class_of(from), varying), varying, varying ? "" : ns());
        });
        return;
      }
      case Op::k_round_to: {
        const Id from = unrounded(in.args[0], p, in.narrow);
        const bool varying = varies(from);
        define(i, p, varying, DType::kF32, [&](int u) {
          return (varying ? "" : ns()) + (in.narrow == DType::kBF16 ? "round_bf16(" : "round_f16(") +
                 operand(from, p, u, Class::kF, varying) + ")";
        });
        return;
      }
      case Op::k_index: {
        Step st = step(in.index, p);
        DType d = narrowed(f, *p.stage, i);
        const bool narrow = d == DType::kI32;
        if (st.kind == Step::kUniform) {
          define(i, p, false, d, [&](int) { return (narrow ? "(int)" : "") + index(in.index, p, p.lane_text); });
        } else if (st.kind == Step::kStride) {
          define(i, p, true, d, [&](int u) {
            std::string base = index(in.index, p, lane_at(p, u));
            std::string at = narrow ? "(int)" + base : base, suffix = narrow ? "" : "_l";
            if (st.stride == 1) return "iota" + suffix + "(" + at + ")";
            return std::string(narrow ? "splat_i(" : "splat_l(") + at + ") + iota" + suffix + "(0) * " +
                   (narrow ? "splat_i(" : "splat_l(") + num(st.stride) + ")";
          });
        } else {
          by_lane(i, p, d, [&](int u) { return index(in.index, p, lane_each(p, u), u, "l"); });
        }
        return;
      }
      case Op::k_in_range:
        return in_range(i, p);
      case Op::k_uniform:
      case Op::k_normal:
        throw Declined("the CUDA generator's numbers on a CPU");
      case Op::k_indirect:
        return indirect(i, p);
      case Op::k_load:
      case Op::k_load_scratch:
        return load(i, p);
      case Op::k_acc: {
        const bool varying = outer() && p.vector;
        const bool arg = k_.accs[in.slot].kind >= Reduce::kArgMax;
        Value& v = p.values[i];
        v.varying = varying;
        v.dtype = arg ? (varying && arg_index_narrow(in.slot) ? DType::kI32 : DType::kI64) : in.dtype;
        v.cls = class_of(v.dtype);
        if (arg) {  // the name carries the copy before the letter
          v.text = "v" + num(i);
          for (int u = 0; u < (varying ? p.copies : 1); ++u)
            line(std::string("const ") + type_name(v.cls, varying) + " " + v.name(u) + " = a" + num(in.slot) +
                 (varying ? "_" + num(u) : "") + "i;");
        } else {
          v.text = "a" + num(in.slot);
        }
        return;
      }
      case Op::k_store:
      case Op::k_store_scratch:
        return store(i, p);
      case Op::k_reduce:
      case Op::k_scan:
        return fold(i, p);
      default:
        FLASHOVER_CHECK(false) << "cannot emit " << loops::info(in.op).name;
    }
  }

  // Inside 1 + tanh(x) and 1 + erf(x) (gelu), and where the result is rounded to 16 bits at once, 5 ulp are as good.
  Op quick(Id i, Op op, const Place& p) const {
    if (k_.exact || (op != Op::k_tanh && op != Op::k_erf) || lanes_.width == 1 || p.stage->body[i].dtype != DType::kF32)
      return op;
    bool varying = p.values[p.stage->body[i].args[0]].varying, used = false;
    if (!varying) return op;
    for (const Instr& user : p.stage->body) {
      if (std::find(user.args.begin(), user.args.end(), i) == user.args.end()) continue;
      used = true;
      if (user.op == Op::k_round_to) continue;
      if (user.op == Op::k_store && is_reduced(k_.params[user.slot].dtype)) continue;
      if (user.op == Op::k_add) {
        Id other = user.args[0] == i ? user.args[1] : user.args[0];
        if (p.values[other].literal && p.values[other].number == 1) continue;
        // a converted 1 that stands further down has no value yet
        const Instr& o = p.stage->body[other];
        const Instr& c = o.op == Op::k_convert ? p.stage->body[o.args[0]] : o;
        if (c.op == Op::k_const && is_floating(c.dtype) && c.number == 1) continue;
      }
      return op;
    }
    return used ? Op::k_convert : op;  // anything but op
  }

  // 1 / value for divisions of a whole row; written once, beside the value.
  std::string reciprocal(Id i, const Place& p) const {
    const Value& v = p.values[i];
    return v.literal ? ns() + "div_by(" + v.text + ")" : "v" + num(i) + "r";
  }
  bool divides_row(Id i, const Place& p) const {
    if (!p.vector || p.stage->body[i].dtype != DType::kF32 || p.values[i].literal || p.values[i].varying) return false;
    for (size_t u = 0; u < p.stage->body.size(); ++u)
      if (p.stage->body[u].op == Op::k_div && p.stage->body[u].args[1] == i) return true;
    return false;
  }

  // Powers that eager computes by other means, too.
  std::string power(const Instr& in, const Place& p, const std::string& x, Class c, bool vector) const {
    const Value& e = p.values[in.args[1]];
    if (!e.literal || (c != Class::kF && c != Class::kD)) return "";
    const std::string q = (vector ? "" : ns()) + (c == Class::kF ? "v_" : "d_");
    const std::string one = constant(c, 1, 1, vector, vector ? "" : ns());
    if (e.number == 2) return x + " * " + x;
    if (e.number == 3) return x + " * " + x + " * " + x;
    if (e.number == 0.5) return q + "sqrt(" + x + ")";
    if (e.number == -0.5) return q + "rsqrt(" + x + ")";
    if (e.number == -1) return one + " / " + x;
    if (e.number == -2) return one + " / (" + x + " * " + x + ")";
    return "";
  }

  // A vector computed one lane after the other.
  template <typename F>
  void by_lane(Id i, Place& p, DType dtype, F&& text, const std::function<std::string(int)>& condition = nullptr) {
    Value& v = p.values[i];
    v.varying = true;
    v.dtype = dtype;
    v.cls = class_of(dtype);
    v.text = "v" + num(i);
    for (int u = 0; u < p.copies; ++u) {
      line(std::string(type_name(v.cls, true)) + " " + v.name(u) + "{};");
      std::string test = condition ? "if (" + condition(u) + ") " : "";
      std::string value = text(u);
      if (v.cls == Class::kB) value = "-(int)(" + value + ")";
      line("for (int l = 0; l < " + lane_count(p) + "; ++l) " + test + v.name(u) + "[l] = " + value + ";");
    }
  }

  void in_range(Id i, Place& p) {
    const Instr& in = p.stage->body[i];
    Step st = step(in.index, p), lo = step(in.lo, p), hi = step(in.hi, p);
    auto test = [&](const std::string& lane, int u) {
      std::string x = index(in.index, p, lane, u, "l");
      return "(" + x + " >= " + index(in.lo, p, lane, u, "l") + ") & (" + x + " < " + index(in.hi, p, lane, u, "l") +
             ")";
    };
    if (p.vector && whole_vectors(in, p.lane)) {
      if (p.copies == 1) {
        define(i, p, false, DType::kBool, [&](int) { return test(p.lane_text, 0); });
      } else {  // alike within each copy
        define(i, p, true, DType::kBool, [&](int u) { return "splat_m(" + test(lane_at(p, u), u) + ")"; });
      }
    } else if (st.kind == Step::kUniform && lo.kind == Step::kUniform && hi.kind == Step::kUniform) {
      define(i, p, false, DType::kBool, [&](int) { return test(p.lane_text, 0); });
    } else if (st.kind == Step::kStride && st.stride == 1 && lo.kind == Step::kUniform && hi.kind == Step::kUniform) {
      define(i, p, true, DType::kBool, [&](int u) {
        std::string x = index(in.index, p, lane_at(p, u));
        return "lanes_in(" + index(in.lo, p, p.lane_text) + " - " + x + ", " + index(in.hi, p, p.lane_text) + " - " +
               x + ")";
      });
    } else {
      by_lane(i, p, DType::kBool, [&](int u) { return "(" + test(lane_each(p, u), u) + ")"; });
    }
  }

  void indirect(Id i, Place& p) {
    const Instr& in = p.stage->body[i];
    const bool varying = p.values[in.args[0]].varying || mask_varies(in, p);
    const std::string name = "t" + num(i), size = plain(in.hi);
    p.indirect[in.index.node()] = {name, varying};
    auto body = [&](const std::string& target, const std::string& value, const std::string& mask) {
      std::string s = "{ long t = " + value + ";";
      if (in.wrap) s += " if (t < 0) t += " + size + ";";
      if (in.slot >= 0)
        s += " if ((unsigned long)t >= (unsigned long)" + size + ") { __atomic_store_n(&job->error, " +
             num(in.slot + 1) + ", __ATOMIC_RELAXED); t = 0; }";
      return (mask.empty() ? "" : "if (" + mask + ") ") + s + " " + target + " = t; }";
    };
    if (!varying) {
      line("long " + name + " = 0;");
      line(body(name, operand(in.args[0], p, 0, Class::kL, false), in.mask == kNone ? "" : mask_text(in, p, 0)));
    } else {
      for (int u = 0; u < p.copies; ++u) {
        const Value& v = p.values[in.args[0]];
        const std::string array = name + "_" + num(u);
        line("long " + array + "[W] = {};");
        std::string value = v.varying ? v.name(u) + "[l]" : operand(in.args[0], p, u, Class::kL, false);
        std::string mask = in.mask == kNone ? "" : mask_text(in, p, u) + (mask_varies(in, p) ? "[l]" : "");
        line("for (int l = 0; l < " + lane_count(p) + "; ++l) " + body(array + "[l]", value, mask));
      }
    }
    Value& v = p.values[i];  // the value itself, should anybody want it
    v.varying = varying;
    v.dtype = DType::kI64;
    v.cls = Class::kL;
    v.text = varying ? "v" + num(i) : name;
    if (varying && is_used(i, p)) by_lane(i, p, DType::kI64, [&](int u) { return name + "_" + num(u) + "[l]"; });
  }
  bool is_used(Id i, const Place& p) const {
    for (const Instr& user : p.stage->body)
      if (user.mask == i || std::find(user.args.begin(), user.args.end(), i) != user.args.end()) return true;
    return false;
  }

  struct Memory {
    std::string pointer;
    DType dtype;
    std::string suffix;  // of load_ and store_
  };
  Memory memory(const Instr& in) const {
    const bool scratch = in.op == Op::k_load_scratch || in.op == Op::k_store_scratch;
    DType d = scratch ? k_.scratch[in.slot].dtype : k_.params[in.slot].dtype;
    return {(scratch ? "r" : "p") + num(in.slot), d, info(d).name};
  }
  static bool has_masked_access(DType d) {
    return d == DType::kF32 || d == DType::kI32 || d == DType::kBF16 || d == DType::kF16;
  }
  static bool plain_in_memory(DType d) {
    return d == DType::kF32 || d == DType::kF64 || d == DType::kI32 || d == DType::kI64 || d == DType::kI8 ||
           d == DType::kU8 || d == DType::kI16;
  }
  std::string load_one(const Memory& m, const std::string& at) const {
    return plain_in_memory(m.dtype) ? m.pointer + "[" + at + "]"
                                    : ns() + "load_" + m.suffix + "(" + m.pointer + " + " + at + ")";
  }

  void load(Id i, Place& p) {
    const Instr& in = p.stage->body[i];
    const Memory m = memory(in);
    const DType d = in.dtype;
    const Class c = class_of(d);
    if (in.op == Op::k_load_scratch && outer()) {
      define(i, p, true, d, [&](int u) {
        return m.pointer + "[(" + index(in.index, p, p.lane_text) + ") * " + num(unroll_) + " + " + num(u) + "]";
      });
      return;
    }
    if (auto t = p.tiles.find(i); t != p.tiles.end()) {
      define(i, p, true, d, [&](int) { return c == Class::kI ? "bits(" + t->second + "[row])" : t->second + "[row]"; });
      return;
    }
    const Step st = step(in.index, p);
    const bool mask_moves = mask_varies(in, p);
    const std::string zero = constant(c, 0, 0, false, ns()), zeros = constant(c, 0, 0, true, "");
    if (st.kind == Step::kUniform && !mask_moves) {
      define(i, p, false, d, [&](int) {
        std::string text = load_one(m, index(in.index, p, p.lane_text));
        return in.mask == kNone ? text : mask_text(in, p, 0) + " ? " + text + " : " + zero;
      });
    } else if (st.kind == Step::kStride && st.stride == 1 && (!mask_moves || has_masked_access(m.dtype))) {
      define(i, p, true, d, [&](int u) {
        std::string at = m.pointer + " + " + index(in.index, p, lane_at(p, u));
        if (mask_moves) {
          std::string mask = mask_text(in, p, u);
          if (!p.n.empty()) mask += " & lanes_below(" + p.n + ")";
          return "load_" + m.suffix + "_m(" + at + ", " + mask + ")";
        }
        std::string text =
            p.n.empty() ? "load_" + m.suffix + "(" + at + ")" : "load_" + m.suffix + "_n(" + at + ", " + p.n + ")";
        return in.mask == kNone ? text : mask_text(in, p, u) + " ? " + text + " : " + zeros;
      });
    } else if (m.dtype == DType::kF32 && st.kind == Step::kStride && std::abs(st.stride) < (1 << 24)) {
      define(i, p, true, d, [&](int u) {
        std::string at = m.pointer + " + " + index(in.index, p, lane_at(p, u));
        std::string mask = p.n.empty() ? "" : "lanes_below(" + p.n + ")";
        if (mask_moves) mask = mask.empty() ? mask_text(in, p, u) : "(" + mask_text(in, p, u) + " & " + mask + ")";
        std::string gather = "gather_f32(" + at + ", iota(0) * splat_i(" + num(st.stride) + "), " +
                             (mask.empty() ? "splat_m(true)" : mask) + ")";
        std::string text = gather;
        if (st.stride == 2) {
          std::string fast = "load_f32_2(" + at + ")";
          if (mask.empty())
            text = fast;
          else if (p.n.empty())
            text = "all_lanes(" + mask + ") ? " + fast + " : " + gather;
        }
        return in.mask == kNone || mask_moves ? text : mask_text(in, p, u) + " ? " + text + " : " + zeros;
      });
    } else {
      by_lane(
          i, p, d, [&](int u) { return load_one(m, index(in.index, p, lane_each(p, u), u, "l")); },
          in.mask == kNone ? std::function<std::string(int)>()
                           : [&](int u) { return mask_text(in, p, u) + (mask_moves ? "[l]" : ""); });
    }
  }

  // A value before it is rounded to `narrow`: who rounds it anyway gets the same.
  static Id unrounded(Id i, const Place& p, DType narrow) {
    while (p.stage->body[i].op == Op::k_round_to && p.stage->body[i].narrow == narrow) i = p.stage->body[i].args[0];
    return i;
  }

  void store(Id i, Place& p) {
    Instr in = p.stage->body[i];
    const Memory m = memory(in);
    if (in.op == Op::k_store && in.mode == loops::StoreMode::kSet && is_reduced(m.dtype))
      in.args[0] = unrounded(in.args[0], p, m.dtype);
    const Class c = class_of(m.dtype);
    const bool mask_moves = mask_varies(in, p);
    if (in.op == Op::k_store_scratch && outer()) {
      for (int u = 0; u < p.copies; ++u) {
        std::string at =
            m.pointer + "[(" + index(in.index, p, p.lane_text) + ") * " + num(unroll_) + " + " + num(u) + "]";
        std::string value = operand(in.args[0], p, u, c, true);
        if (in.mask == kNone) {
          line(at + " = " + value + ";");
        } else if (!mask_moves) {
          line("if (" + mask_text(in, p, u) + ") " + at + " = " + value + ";");
        } else {
          line(at + " = " + operation(Op::k_where, m.dtype, mask_text(in, p, u), value, at, true, "") + ";");
        }
      }
      return;
    }
    const Step st = step(in.index, p);
    if (!p.vector) return store_one(in, m, p, 0, index(in.index, p), "", in.mask == kNone ? "" : mask_text(in, p, 0));
    const bool contiguous = st.kind == Step::kStride && st.stride == 1;
    if (contiguous && (!mask_moves || has_masked_access(m.dtype))) {
      for (int u = 0; u < p.copies; ++u) {
        std::string at = m.pointer + " + " + index(in.index, p, lane_at(p, u));
        std::string value = operand(in.args[0], p, u, c, true);
        if (in.mode != loops::StoreMode::kSet) {
          std::string old =
              p.n.empty() ? "load_" + m.suffix + "(" + at + ")" : "load_" + m.suffix + "_n(" + at + ", " + p.n + ")";
          if (mask_moves)
            old = "load_" + m.suffix + "_m(" + at + ", " + mask_text(in, p, u) +
                  (p.n.empty() ? "" : " & lanes_below(" + p.n + ")") + ")";
          value = combined(in.mode, m.dtype, old, value, true);
        }
        std::string text;
        if (mask_moves) {
          text = "store_" + m.suffix + "_m(" + at + ", " + value + ", " + mask_text(in, p, u) +
                 (p.n.empty() ? "" : " & lanes_below(" + p.n + ")") + ");";
        } else {
          text = p.n.empty() ? "store_" + m.suffix + "(" + at + ", " + value + ");"
                             : "store_" + m.suffix + "_n(" + at + ", " + value + ", " + p.n + ");";
          if (in.mask != kNone) text = "if (" + mask_text(in, p, u) + ") " + text;
        }
        line(text);
      }
      return;
    }
    // Lane by lane, in order.
    for (int u = 0; u < p.copies; ++u) {
      open("for (int l = 0; l < " + lane_count(p) + "; ++l)");
      store_one(in, m, p, u, index(in.index, p, lane_each(p, u), u, "l"), "l",
                in.mask == kNone ? "" : mask_text(in, p, u) + (mask_moves ? "[l]" : ""));
      close();
    }
  }
  void store_one(const Instr& in, const Memory& m, const Place& p, int copy, const std::string& at,
                 const std::string& lane, const std::string& mask) {
    const Class c = class_of(m.dtype);
    const Value& v = p.values[in.args[0]];
    std::string value = v.varying ? v.name(copy) + "[" + lane + "]" : operand(in.args[0], p, copy, c, false);
    if (v.varying && c == Class::kB) value = "(" + value + " != 0)";
    if (in.mode != loops::StoreMode::kSet) value = combined(in.mode, m.dtype, load_one(m, at), value, false);
    std::string text = plain_in_memory(m.dtype)
                           ? m.pointer + "[" + at + "] = (" + memory_type(m.dtype) + ")(" + value + ");"
                           : ns() + "store_" + m.suffix + "(" + m.pointer + " + " + at + ", " + value + ");";
    line(mask.empty() ? text : "if (" + mask + ") " + text);
  }
  std::string combined(loops::StoreMode mode, DType d, const std::string& old, const std::string& value,
                       bool vector) const {
    static const Op ops[] = {Op::k_add, Op::k_add, Op::k_mul, Op::k_maximum, Op::k_minimum};
    if (is_reduced(d)) d = DType::kF32;
    return operation(ops[static_cast<size_t>(mode)], d, "(" + old + ")", "(" + value + ")", "", vector,
                     vector ? "" : ns());
  }

  void fold(Id i, Place& p) {
    const Instr& in = p.stage->body[i];
    const loops::Accumulator& k = k_.accs[in.slot];
    const Class c = class_of(k.dtype);
    const bool vector = p.vector;
    const std::string q = vector ? "" : ns();
    if (k.kind >= Reduce::kArgMax) return fold_arg(in, p);
    const bool tail = inner() && vector && !p.n.empty(), nan = tracks_nan(in.slot, p);
    // Of equals (-0 and 0) a scan keeps the last, a reduction the first.
    const bool scan = in.op == Op::k_scan;
    const auto step = [&](const std::string& acc, const std::string& x, bool vectors) {
      return scan ? folded(in.slot, x, acc, vectors) : folded(in.slot, acc, x, vectors);
    };
    std::vector<std::string> seen;
    for (int u = 0; u < (vector ? p.copies : 1); ++u) {
      std::string acc = acc_name(in.slot, p, u), x = operand(in.args[0], p, u, c, vector);
      std::string mask;
      if (in.mask != kNone) mask = operand(in.mask, p, u, Class::kB, vector);
      if (tail) mask = mask.empty() ? "lanes_below(" + p.n + ")" : "(" + mask + " & lanes_below(" + p.n + "))";
      if (in.mask != kNone && !p.values[in.mask].varying && !tail && !nan) {
        line("if (" + mask_text(in, p, u) + ") " + acc + " = " + step(acc, x, false) + ";");
        continue;
      }
      if (!mask.empty()) x = "(" + operation(Op::k_where, k.dtype, mask, x, identity(in.slot, true), true, q) + ")";
      if (nan) {
        line("const VF x" + num(i) + "_" + num(u) + " = " + x + ";");
        seen.push_back("x" + num(i) + "_" + num(u));
        x = seen.back();
      }
      line(acc + " = " + (nan ? quick_extreme(in.slot, x, acc) : step(acc, x, vector)) + ";");
    }
    for (size_t u = 0; u < seen.size(); u += 2)
      line("a" + num(in.slot) + "_nan |= unordered(" + seen[u] + ", " + seen[std::min(u + 1, seen.size() - 1)] + ");");
    if (scan) define(i, p, vector, in.dtype, [&](int u) { return acc_name(in.slot, p, u); });
  }

  // The first NaN wins, else the best, of equals the smallest index.
  void fold_arg(const Instr& in, Place& p) {
    const loops::Accumulator& k = k_.accs[in.slot];
    const Class c = class_of(k.dtype);
    const bool vector = p.vector, narrow = vector && arg_index_narrow(in.slot);
    const Class ic = narrow ? Class::kI : Class::kL;
    const std::string q = vector ? "" : ns();
    const bool tail = inner() && vector && !p.n.empty();
    for (int u = 0; u < (vector ? p.copies : 1); ++u) {
      std::string acc = acc_name(in.slot, p, u);
      open("");
      line(std::string("const ") + type_name(c, vector) + " x = " + operand(in.args[0], p, u, c, vector) + ";");
      line(std::string("const ") + type_name(ic, vector) + " at = " + operand(in.args[1], p, u, ic, vector) + ";");
      auto compare = [&](Op op, DType d, const std::string& a, const std::string& b) {
        return "(" + operation(op, d, a, b, "", vector, q) + ")";
      };
      const DType id = narrow ? DType::kI32 : DType::kI64;
      std::string better = compare(k.kind == Reduce::kArgMax ? Op::k_gt : Op::k_lt, k.dtype, "x", acc);
      std::string equal = compare(Op::k_eq, k.dtype, "x", acc), earlier = compare(Op::k_lt, id, "at", acc + "i");
      std::string take;
      if (is_floating(k.dtype)) {
        std::string new_nan = compare(Op::k_ne, k.dtype, "x", "x"), old_ok = compare(Op::k_eq, k.dtype, acc, acc),
                    old_nan = compare(Op::k_ne, k.dtype, acc, acc);
        take = "(" + old_ok + " & (" + new_nan + " | " + better + ")) | ((" + equal + " | (" + old_nan + " & " +
               new_nan + ")) & " + earlier + ")";
      } else {
        take = better + " | (" + equal + " & " + earlier + ")";
      }
      line(std::string("const ") + type_name(Class::kB, vector) + " take = " + "(" + take + ")" +
           (in.mask == kNone ? "" : " & " + operand(in.mask, p, u, Class::kB, vector)) +
           (tail ? " & lanes_below(" + p.n + ")" : "") + ";");
      line(acc + " = " + operation(Op::k_where, k.dtype, "take", "x", acc, vector, q) + ";");
      line(acc + "i = " + operation(Op::k_where, id, "take", "at", acc + "i", vector, q) + ";");
      close();
    }
  }

  const loops::Kernel& k_;
  Target target_;
  Lanes lanes_;
  loops::Vector mode_ = loops::Vector::kNone;
  std::vector<StageFacts> facts_;
  std::unordered_map<const sym::Node*, std::string> variables_;
  bool shared_ = false, in_body_ = true;
  mutable std::vector<int64_t> constants_;  // what a shared body reads from the job
  std::vector<Id> tiles_;
  std::vector<size_t> repeats_;  // outer loops inside the tile
  std::map<Id, std::string> tile_names_;
  std::string symbol_, out_;
  int indent_ = 0, unroll_ = 1;
  int part_ = -1;  // the stage of all_by_rows() that is being written
  int64_t block_ = 1, grain_ = 1;
  Expr count_ = 1;
};

}  // namespace

Emitted emit(const loops::Kernel& k, const Target& target) { return Emitter(k, target).emit(); }

}  // namespace flashover::kernel
