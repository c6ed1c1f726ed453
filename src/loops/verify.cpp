// The rules of a legal kernel; what breaks one is named with its instruction.
#include <algorithm>

#include "base/check.h"
#include "loops/loops.h"
#include "ops/floats.h"

namespace flashover::loops {
namespace {

class Verifier {
 public:
  explicit Verifier(const Kernel& k) : k_(k) {}

  void run() {
    std::vector<sym::Expr> scope(k_.sizes);
    add_loops(k_.outer, scope);
    reduced_.assign(k_.accs.size(), false);
    scratch_written_.assign(k_.scratch.size(), false);
    if (k_.attention) attention(*k_.attention);
    for (const Scratch& s : k_.scratch) rule(is_compute(s.dtype), "scratch has a compute dtype");
    for (const Accumulator& a : k_.accs) rule(is_compute(a.dtype), "accumulators have a compute dtype");
    rule(k_.vector != Vector::kOuter || !k_.outer.empty(), "vector outer needs an outer loop");
    rule(k_.transpose < static_cast<int32_t>(k_.outer.size()), "transpose names an outer loop");
    for (stage_ = 0; stage_ < k_.stages.size(); ++stage_) stage(k_.stages[stage_], scope);
    std::vector<bool> read(k_.params.size()), written(k_.params.size());
    for (const Stage& s : k_.stages)
      for (const Instr& in : s.body) {
        if (in.op == Op::k_load || (in.op == Op::k_store && in.mode != StoreMode::kSet)) read[in.slot] = true;
        if (in.op == Op::k_store) written[in.slot] = true;
      }
    if (k_.attention)
      each_operand(*k_.attention, [&](const FlexOperand& o, size_t, bool writes) {
        (writes ? written : read)[static_cast<size_t>(o.slot)] = true;
      });
    for (size_t i = 0; i < k_.params.size(); ++i)
      rule(k_.params[i].read == read[i] && k_.params[i].written == written[i],
           "params say whether they are read and written");
  }

 private:
  // f(operand, dims, whether it is written)
  template <typename F>
  static void each_operand(const FlexAttention& a, F&& f) {
    for (const FlexAttention::Score& s : a.scores) f(s.left, size_t{4}, false), f(s.right, size_t{4}, false);
    f(a.values, size_t{4}, false);
    for (const FlexAttention::Blocks* b : {&a.partial, &a.full})
      if (b->counts.given() || b->indices.given()) f(b->counts, size_t{3}, false), f(b->indices, size_t{4}, false);
    f(a.out, size_t{4}, true);
    for (const FlexOperand* o : {&a.log_sum, &a.largest})
      if (o->given()) f(*o, size_t{3}, true);
  }
  void attention(const FlexAttention& a) {
    rule(k_.outer.size() == 3, "attention has a loop over batch, head and query");
    rule(k_.stages.size() == 1 || (k_.stages.size() == 2 && a.result == FlexAttention::Result::kSoftmax),
         "attention has a stage for the score, and one for the mask");
    for (const Stage& s : k_.stages)
      rule(s.loops.size() == 1 && s.loops[0].extent == k_.stages[0].loops[0].extent, "stages go over the keys");
    rule(!a.scores.empty() && a.scores.size() == k_.scratch.size(), "each score has a scratch");
    for (const Scratch& s : k_.scratch) rule(s.dtype == DType::kF32, "scores are f32");
    rule(a.group > 0 && a.value_width > 0, "heads and widths are positive");
    rule((a.query_block > 0) == a.partial.counts.given(), "blocks have lists");
    each_operand(a, [&](const FlexOperand& o, size_t dims, bool) {
      rule(o.slot >= 0 && o.slot < static_cast<int32_t>(k_.params.size()) && o.strides.size() == dims,
           "operands are parameters with a stride for each dim");
    });
    scratch_written_.assign(k_.scratch.size(), true);
  }
  static bool is_compute(DType d) {
    return d == DType::kF32 || d == DType::kF64 || d == DType::kBool || is_integral(d);
  }
  static DType compute_of(DType d) { return is_narrow_float(d) ? DType::kF32 : d; }

  void rule(bool ok, const char* sentence) const {
    FLASHOVER_CHECK(ok) << "loops::verify: " << sentence << "; broken in stage " << stage_ << " at v" << at_ << "\n"
                        << print(k_);
  }
  void add_loops(const std::vector<Loop>& loops, std::vector<sym::Expr>& scope) const {
    for (const Loop& l : loops) {
      rule(std::find(scope.begin(), scope.end(), l.var) == scope.end(), "loop variables are distinct");
      // (That products of differences of symbols are not, nobody may be able to tell.)
      rule(!sym::known_lt(l.extent, 0), "extents are not negative");
      scope.push_back(l.var);
    }
  }
  void in_scope(sym::Expr e, const std::vector<sym::Expr>& scope) const {
    std::vector<sym::Expr> vars;
    sym::collect_vars(e, vars);
    for (sym::Expr v : vars)
      rule(std::find(scope.begin(), scope.end(), v) != scope.end(), "indices use variables in scope");
  }
  static bool affine(sym::Expr e) {
    switch (e.kind()) {
      case sym::Kind::kConst:
      case sym::Kind::kVar:
        return true;
      case sym::Kind::kAdd:
        return std::all_of(e.operands().begin(), e.operands().end(), affine);
      case sym::Kind::kMul:
        return e.operands().size() == 2 && e.operands()[0].is_const() && e.operands()[1].kind() == sym::Kind::kVar;
      default:
        return false;
    }
  }
  bool empty_domain(const Stage& s) const {
    for (const Loop& l : k_.outer)
      if (l.extent.is_const(0)) return true;
    for (const Loop& l : s.loops)
      if (l.extent.is_const(0)) return true;
    return false;
  }
  void address(const Instr& in, sym::Expr size, const Stage& s) const {
    // Where nothing is masked and every variable is free the range is exact.
    if (in.mask != kNone || !affine(in.index) || !size.is_const() || empty_domain(s)) return;
    if (!k_.sizes.empty()) return;  // numbers that several launches share have no ranges of their own
    sym::Range r = in.index.range();
    std::vector<sym::Expr> vars;
    sym::collect_vars(in.index, vars);
    for (sym::Expr v : vars)  // a number that the launch gives, or a loop up to one: its range says nothing
      if (v.range().hi >= sym::Range{}.hi / 2) return;
    rule(r.lo >= 0 && r.hi < size.value(), "unmasked addresses are in range");
  }
  void stage(const Stage& s, std::vector<sym::Expr> scope) {
    add_loops(s.loops, scope);
    reduced_before_ = reduced_;
    for (at_ = 0; at_ < s.body.size(); ++at_) {
      const Instr& in = s.body[at_];
      operands(s, in);
      in_scope(in.index, in.op == Op::k_indirect ? std::vector<sym::Expr>{in.index} : scope);
      in_scope(in.lo, scope);
      in_scope(in.hi, scope);
      if (in.op == Op::k_indirect) {
        rule(in.index.kind() == sym::Kind::kVar && std::find(scope.begin(), scope.end(), in.index) == scope.end(),
             "indirect defines a fresh variable");
        scope.push_back(in.index);
      }
      if (is_scalar_op(in.op))
        scalar(s, in);
      else if (in.op == Op::k_acc || in.op == Op::k_reduce || in.op == Op::k_scan)
        accumulator(s, in);
      else if (info(in.op).has_result && in.op != Op::k_load && in.op != Op::k_load_scratch)
        value(s, in);
      else
        memory(s, in);
    }
  }

  static DType dtype_of(const Stage& s, const Instr& in, int i) { return s.body[in.args[i]].dtype; }
  void slot_in(const Instr& in, size_t count) {
    rule(in.slot >= 0 && in.slot < static_cast<int32_t>(count), "slots exist");
  }
  bool folds_arg(const Instr& in) const { return k_.accs[in.slot].kind >= Reduce::kArgMax; }

  void operands(const Stage& s, const Instr& in) {
    for (Id a : in.args)
      rule(a == kNone || (a >= 0 && a < static_cast<Id>(at_) && info(s.body[a].op).has_result),
           "operands are earlier values");
    int arity = info(in.op).arity;
    if ((in.op == Op::k_reduce || in.op == Op::k_scan) && in.slot >= 0 &&
        in.slot < static_cast<int32_t>(k_.accs.size()) && folds_arg(in))
      ++arity;
    for (int i = 0; i < 3; ++i) rule((in.args[i] != kNone) == (i < arity), "the number of operands fits");
    rule(in.mask == kNone || (in.mask >= 0 && in.mask < static_cast<Id>(at_) && s.body[in.mask].dtype == DType::kBool),
         "masks are earlier bool values");
    rule(!info(in.op).has_result || is_compute(in.dtype), "results have compute dtypes");
  }

  // A row of prims.def.
  void scalar(const Stage& s, const Instr& in) {
    const std::string_view types = info(in.op).flags;
    const int first = in.op == Op::k_where ? 1 : 0;
    if (first) rule(dtype_of(s, in, 0) == DType::kBool, "where's condition is bool");
    const DType operand = dtype_of(s, in, first);
    for (int i = first + 1; i < info(in.op).arity; ++i) rule(dtype_of(s, in, i) == operand, "operands have one dtype");
    rule(in.dtype == (types.ends_with('>') ? DType::kBool : operand), "the result dtype follows from the operands");
    const char kind = operand == DType::kBool ? 'b' : is_floating(operand) ? 'f' : 'i';
    rule(types.find(kind) != std::string_view::npos, "the operation exists for this dtype");
  }

  // What makes a value of other values and of loop variables.
  void value(const Stage& s, const Instr& in) {
    switch (in.op) {
      case Op::k_round_to:
        rule(in.dtype == DType::kF32 && dtype_of(s, in, 0) == DType::kF32 && is_narrow_float(in.narrow),
             "round_to rounds f32 to a narrower float");
        break;
      case Op::k_index:
        rule(in.dtype == DType::kI64, "index values are i64");
        break;
      case Op::k_in_range:
        rule(in.dtype == DType::kBool, "in_range is bool");
        break;
      case Op::k_uniform:
      case Op::k_normal:
        rule(in.dtype == DType::kF32 && dtype_of(s, in, 0) == DType::kI64 && dtype_of(s, in, 1) == DType::kI64,
             "random numbers are f32, from a seed and an offset");
        rule(in.integer == 1 || in.integer == 2 || in.integer == 4 || in.integer == 8,
             "threads draw 1, 2, 4 or 8 neighbours");
        break;
      case Op::k_indirect:
        rule(dtype_of(s, in, 0) == DType::kI64 && in.dtype == DType::kI64, "indirect takes an i64");
        rule(in.slot < static_cast<int32_t>(k_.errors.size()), "errors exist");
        break;
      default:
        break;
    }
  }

  // Loads and stores.
  void memory(const Stage& s, const Instr& in) {
    const bool loads = in.op == Op::k_load || in.op == Op::k_load_scratch;
    const DType moved = loads ? in.dtype : dtype_of(s, in, 0);
    if (in.op == Op::k_load || in.op == Op::k_store) {
      slot_in(in, k_.params.size());
      const Param& p = k_.params[in.slot];
      rule(moved == compute_of(p.dtype), loads ? "loads give the compute dtype" : "stores take the compute dtype");
      address(in, p.numel, s);
    } else {
      slot_in(in, k_.scratch.size());
      rule(!loads || scratch_written_[in.slot], "scratch is written before it is read");
      rule(moved == k_.scratch[in.slot].dtype, "scratch keeps its dtype");
      address(in, k_.scratch[in.slot].size, s);
      if (!loads) scratch_written_[in.slot] = true;
    }
  }

  void accumulator(const Stage& s, const Instr& in) {
    slot_in(in, k_.accs.size());
    const DType dtype = k_.accs[in.slot].dtype;
    if (in.op == Op::k_acc) {
      rule(reduced_before_[in.slot], "accumulators are read in stages after the one that reduces");
      rule(in.dtype == (folds_arg(in) ? DType::kI64 : dtype), "accumulators keep their dtype");
      return;
    }
    rule(!reduced_[in.slot], "an accumulator is reduced into once");
    rule(dtype_of(s, in, 0) == dtype, "accumulators keep their dtype");
    rule(in.op == Op::k_reduce || (s.ordered && in.dtype == dtype), "scans are in ordered stages");
    if (folds_arg(in))
      rule(in.op == Op::k_reduce && dtype_of(s, in, 1) == DType::kI64, "arg reductions take an i64 index");
    reduced_[in.slot] = true;
  }

  const Kernel& k_;
  size_t stage_ = 0, at_ = 0;
  std::vector<bool> reduced_, reduced_before_, scratch_written_;
};

}  // namespace

void verify(const Kernel& k) { Verifier(k).run(); }

}  // namespace flashover::loops
