// Replaces constants of a kernel by size arguments where nothing depends on their values, and joins kernels that became
// equal.
#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "planner/rewrites.h"

namespace flashover::planner {
namespace {

using loops::Accumulator;
using loops::Id;
using loops::Instr;
using loops::Kernel;
using loops::Loop;
using loops::loop_var;
using loops::Op;
using loops::Param;
using loops::Scratch;
using loops::Stage;
using loops::Vector;

// Walks a kernel and visits its constants in a fixed order. Open constants are those that may become size arguments.
// Reading collects them and spells everything else into `skeleton`; writing puts given expressions in their place.
class Walk {
 public:
  Walk(const Kernel& k, bool frozen) : k_(k), frozen_(frozen) {
    if (k.vector == Vector::kOuter) lanes_ = k.outer.back().var;
  }

  // values == nullptr: reading.
  Kernel run(const std::vector<sym::Expr>* values) {
    values_ = values;
    next_ = 0;
    renamed_.clear();
    Kernel out = k_;
    for (size_t i = 0; i < out.params.size(); ++i) {
      Param& p = out.params[i];
      spell(info(p.dtype).name);
      spell(p.read ? "r" : "");
      spell(p.written ? "w" : "");
      spell(p.number ? "n" : "");
      p.numel = constant(p.numel, true);
    }
    of_params = constants.size();
    loops(out.outer, 'i', true);
    spell("vector", static_cast<int64_t>(k_.vector));
    spell("transpose", k_.transpose);
    spell("serial", k_.serial);
    for (const Accumulator& a : out.accs) spell(info(a.dtype).name, static_cast<int64_t>(a.kind));
    for (Scratch& s : out.scratch) {
      spell(info(s.dtype).name);
      s.size = constant(s.size, frozen_);
    }
    spell("errors", static_cast<int64_t>(out.errors.size()));
    for (Stage& s : out.stages) {
      const size_t outer_names = renamed_.size();
      spell("stage", s.ordered);
      loops(s.loops, 'j', frozen_);
      for (Instr& in : s.body) instr(in);
      renamed_.resize(outer_names);
    }
    return out;
  }

  std::string skeleton;
  std::vector<int64_t> constants;
  size_t of_params = 0;  // the first so many constants are sizes of parameters

 private:
  void spell(std::string_view text, int64_t value = 0) {
    if (values_) return;
    skeleton += text;
    skeleton += ',';
    if (value) skeleton += std::to_string(value);
    skeleton += ';';
  }
  sym::Expr constant(sym::Expr e, bool open) {
    if (!e.is_const() || !open || e.value() <= 0) {
      spell(e.str());
      return e;
    }
    if (values_) return (*values_)[next_++];
    spell("#");
    constants.push_back(e.value());
    return e;
  }
  void loops(std::vector<Loop>& list, char letter, bool open) {
    for (size_t i = 0; i < list.size(); ++i) {
      spell("loop");
      const sym::Expr extent = constant(list[i].extent, open);
      const sym::Expr var = loop_var(letter, static_cast<int>(i), extent);
      renamed_.emplace_back(list[i].var, var);
      list[i] = {var, extent};
    }
  }
  sym::Expr variable(sym::Expr v) {
    for (size_t i = renamed_.size(); i-- > 0;)
      if (renamed_[i].first == v) {
        spell("v", static_cast<int64_t>(i));
        return renamed_[i].second;
      }
    spell(v.name());
    return v;
  }
  bool is_lane(sym::Expr v) const { return v == lanes_; }
  bool is_inner(sym::Expr v) const {
    return std::none_of(k_.outer.begin(), k_.outer.end(), [&](const Loop& l) { return l.var == v; });
  }
  // An address: constants may be open in its affine part.
  sym::Expr address(sym::Expr e) {
    if (e.kind() != sym::Kind::kAdd) return term(e);
    spell("sum", static_cast<int64_t>(e.operands().size()));
    sym::Expr out = 0;
    for (sym::Expr t : e.operands()) out += term(t);
    return out;
  }
  sym::Expr term(sym::Expr t) {
    if (t.is_const()) return constant(t, true);
    const auto ops = t.operands();
    if (t.kind() == sym::Kind::kMul && ops.size() == 2 && ops[0].is_const() && ops[1].kind() == sym::Kind::kVar) {
      const bool open = !is_lane(ops[1]) && (frozen_ || !is_inner(ops[1]));
      spell("*");
      const sym::Expr coef = constant(ops[0], open);
      return coef * variable(ops[1]);
    }
    return closed(t);
  }
  // An expression whose constants stay.
  sym::Expr closed(sym::Expr e) {
    if (e.is_const()) {
      spell("c", e.value());
      return e;
    }
    if (e.kind() == sym::Kind::kVar) return variable(e);
    spell("k", static_cast<int64_t>(e.kind()));
    spell("n", static_cast<int64_t>(e.operands().size()));
    std::vector<sym::Expr> ops;
    for (sym::Expr o : e.operands()) ops.push_back(closed(o));
    sym::Expr r = ops[0];
    for (size_t i = 1; i < ops.size(); ++i) {
      switch (e.kind()) {
        case sym::Kind::kAdd:
          r += ops[i];
          break;
        case sym::Kind::kMul:
          r *= ops[i];
          break;
        case sym::Kind::kFloorDiv:
          r = sym::floordiv(r, ops[i]);
          break;
        case sym::Kind::kMod:
          r = sym::mod(r, ops[i]);
          break;
        case sym::Kind::kMin:
          r = sym::min(r, ops[i]);
          break;
        default:
          r = sym::max(r, ops[i]);
      }
    }
    return r;
  }
  void instr(Instr& in) {
    spell(info(in.op).name);
    spell(info(in.dtype).name);
    for (Id a : in.args) spell("a", a);
    spell("m", in.mask);
    spell("s", in.slot);
    spell("w", in.wrap);
    spell("mode", static_cast<int64_t>(in.mode));
    spell(info(in.narrow).name);
    if (in.op == Op::k_const)
      spell("const", static_cast<int64_t>(std::bit_cast<uint64_t>(in.number) ^ static_cast<uint64_t>(in.integer)));
    if (is_random(in.op)) spell("width", in.integer);
    const bool memory = in.op == Op::k_load || in.op == Op::k_store;
    if (in.op == Op::k_indirect) {
      spell(in.index.name());
      spell(in.hi.str());
      return;
    }
    in.index = memory ? address(in.index) : closed(in.index);
    in.lo = closed(in.lo);
    in.hi = closed(in.hi);
  }

  const Kernel& k_;
  bool frozen_;
  sym::Expr lanes_ = 0;
  const std::vector<sym::Expr>* values_ = nullptr;
  size_t next_ = 0;
  std::vector<std::pair<sym::Expr, sym::Expr>> renamed_;
};

// Where a number is part of a range test or of // and mod, the loops it belongs to keep their extents as well: the
// simplifications that were made rest on them.
bool rests_on_extents(const Kernel& k) {
  auto affine = [](sym::Expr e, auto&& self) -> bool {
    if (e.kind() >= sym::Kind::kFloorDiv) return false;
    for (sym::Expr o : e.operands())
      if (!self(o, self)) return false;
    return true;
  };
  for (const Stage& s : k.stages)
    for (const Instr& in : s.body)
      if (in.op == Op::k_in_range || in.op == Op::k_index || is_random(in.op) || !affine(in.index, affine)) return true;
  return false;
}

// Kernels that read alike but for their open constants, in order of the first.
struct Member {
  int32_t kernel;
  std::vector<int64_t> constants;
  size_t of_params;
};
std::vector<std::vector<Member>> kernels_alike(const std::vector<Kernel>& kernels, const std::vector<bool>& running) {
  std::map<std::string, size_t> groups;
  std::vector<std::vector<Member>> out;
  for (size_t i = 0; i < kernels.size(); ++i) {
    const Kernel& k = kernels[i];
    if (!k.sizes.empty() || rests_on_extents(k)) continue;
    Walk walk(k, !running[i]);
    walk.run(nullptr);
    std::string key = (running[i] ? "r" : "f") + std::move(walk.skeleton);
    for (const std::string& e : k.errors) key += e;
    const auto [it, fresh] = groups.try_emplace(std::move(key), out.size());
    if (fresh) out.emplace_back();
    out[it->second].push_back({static_cast<int32_t>(i), std::move(walk.constants), walk.of_params});
  }
  return out;
}

// What stands for each open constant of the members: itself where it is the same in all, else an argument; one for each
// distinct column of constants.
struct Arguments {
  std::vector<sym::Expr> values;              // by open constant
  std::vector<sym::Expr> vars;                // the arguments
  std::vector<std::vector<int64_t>> columns;  // by argument: its value for each member
};
Arguments arguments_of(const std::vector<Member>& members) {
  const Member& first = members[0];
  Arguments out;
  std::map<std::vector<int64_t>, sym::Expr> by_column;
  const bool varies =
      std::any_of(members.begin(), members.end(), [&](const Member& m) { return m.constants != first.constants; });
  for (size_t n = 0; n < first.constants.size(); ++n) {
    std::vector<int64_t> column;
    column.reserve(members.size());
    for (const Member& m : members) column.push_back(m.constants[n]);
    // A part of a tensor and the whole: the loops vary, and the equal size of the parameter would look too small.
    const bool size = n < first.of_params && varies;
    if (!size && std::all_of(column.begin(), column.end(), [&](int64_t v) { return v == column[0]; })) {
      out.values.emplace_back(column[0]);
      continue;
    }
    const auto [it, fresh] = by_column.try_emplace(column, sym::Expr(0));
    if (fresh) {
      it->second = sym::var("n" + std::to_string(out.vars.size()), {1, sym::Range::kInf}, 16);
      out.vars.push_back(it->second);
      out.columns.push_back(std::move(column));
    }
    out.values.push_back(it->second);
  }
  return out;
}

}  // namespace

void share_kernels(Schedule& s, const Options& o) {
  if (!o.share) return;
  std::vector<bool> running(s.kernels.size());
  for (const plan::Step& step : s.plan.steps)
    if (step.kind == plan::StepKind::kLaunch) running[step.kernel] = true;

  std::vector<int32_t> stands_for(s.kernels.size());  // by kernel: the one that is launched instead
  std::iota(stands_for.begin(), stands_for.end(), 0);
  std::vector<std::vector<sym::Expr>> sizes(s.kernels.size());
  for (const std::vector<Member>& members : kernels_alike(s.kernels, running)) {
    if (members.size() < 2) continue;
    const int32_t first = members[0].kernel;
    const Arguments arguments = arguments_of(members);
    Kernel general = Walk(s.kernels[first], !running[first]).run(&arguments.values);
    general.sizes = arguments.vars;
    for (size_t i = 0; i < members.size(); ++i) {
      const int32_t kernel = members[i].kernel;
      general.cost = std::max(general.cost, s.kernels[kernel].cost);
      stands_for[kernel] = first;
      for (const auto& column : arguments.columns) sizes[kernel].emplace_back(column[i]);
    }
    verify(general);
    s.kernels[first] = std::move(general);
  }

  std::vector<int32_t> number(s.kernels.size(), -1);
  std::vector<Kernel> kept;
  for (size_t i = 0; i < s.kernels.size(); ++i) {
    if (stands_for[i] != static_cast<int32_t>(i)) continue;
    number[i] = static_cast<int32_t>(kept.size());
    kept.push_back(std::move(s.kernels[i]));
  }
  for (auto* steps : {&s.plan.frozen_steps, &s.plan.steps})
    for (plan::Step& step : *steps) {
      if (step.kind != plan::StepKind::kLaunch) continue;
      if (step.sizes.empty()) step.sizes = sizes[step.kernel];
      step.kernel = number[stands_for[step.kernel]];
    }
  s.kernels = std::move(kept);
}

}  // namespace flashover::planner
