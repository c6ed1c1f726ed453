// Replaces numbers of a kernel by size arguments where nothing depends on their values, and joins kernels that became
// equal. Numbers are constants, and whatever a launch can compute of the sizes of its call: a kernel that is handed
// s0*((s1 + 1) // 2) as one number serves all layers that differ in it. Kernels of a GPU keep their constants, and of
// expressions the factors that are: Triton chooses wide loads by what divides sizes.
#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "planner/rewrites.h"
#include "sym/terms.h"

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

// Does e follow from the sizes of the call alone, and not from where in its loops the kernel is?
bool is_of_sizes(const Kernel& k, sym::Expr e) {
  std::vector<sym::Expr> variables;
  sym::collect_vars(e, variables);
  return std::ranges::all_of(variables, [&](sym::Expr v) { return std::ranges::find(k.sizes, v) != k.sizes.end(); });
}

// Walks a kernel and visits its numbers in a fixed order. Open ones are those that may become size arguments. Reading
// collects them and spells everything else into `skeleton`; writing puts given expressions in their place.
class Walk {
 public:
  Walk(const Kernel& k, bool frozen, bool on_gpu) : k_(k), frozen_(frozen), on_gpu_(on_gpu) {
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
      spell(p.steady ? "s" : "");
      p.numel = number(p.numel, true);
    }
    of_params = numbers.size();
    loops(out.outer, 'i', true);
    spell("vector", static_cast<int64_t>(k_.vector));
    spell("transpose", k_.transpose);
    spell("serial", k_.serial);
    for (const Accumulator& a : out.accs) spell(info(a.dtype).name, static_cast<int64_t>(a.kind));
    for (Scratch& s : out.scratch) {
      spell(info(s.dtype).name);
      s.size = number(s.size, frozen_);
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
  std::vector<sym::Expr> numbers;  // that are open
  size_t of_params = 0;            // the first so many are sizes of parameters

 private:
  void spell(std::string_view text, int64_t value = 0) {
    if (values_) return;
    skeleton += text;
    skeleton += ',';
    if (value) skeleton += std::to_string(value);
    skeleton += ';';
  }
  // A constant, if they are open there, or an expression of sizes: nothing rests on what it is.
  sym::Expr number(sym::Expr e, bool open) {
    if (e.is_const() ? !open || on_gpu_ || e.value() <= 0 : !is_of_sizes(e)) {
      spell(e.str());
      return e;
    }
    const int64_t factor = on_gpu_ ? sym::content(e) : 1;
    if (values_) return sym::Expr(factor) * (*values_)[next_++];
    spell("#", factor);
    numbers.push_back(sym::floordiv(e, factor));
    return e;
  }
  bool is_of_sizes(sym::Expr e) const { return !k_.sizes.empty() && planner::is_of_sizes(k_, e); }
  void loops(std::vector<Loop>& list, char letter, bool open) {
    for (size_t i = 0; i < list.size(); ++i) {
      spell("loop");
      const sym::Expr extent = number(list[i].extent, open);
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
    if (t.is_const() || is_of_sizes(t)) return number(t, true);
    if (t.kind() != sym::Kind::kMul) return closed(t);
    // One loop variable times a number.
    sym::Expr coefficient = 1;
    std::optional<sym::Expr> var;
    for (sym::Expr factor : t.operands()) {
      if (factor.is_const() || is_of_sizes(factor)) {
        coefficient *= factor;
      } else if (factor.kind() == sym::Kind::kVar && !var) {
        var = factor;
      } else {
        return closed(t);
      }
    }
    const bool open = !is_lane(*var) && (frozen_ || !is_inner(*var));
    spell("*");
    const sym::Expr by = number(coefficient, open);
    return by * variable(*var);
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
    const bool is_number = in.op == Op::k_index && is_of_sizes(in.index);
    in.index = memory ? address(in.index) : is_number ? number(in.index, true) : closed(in.index);
    in.lo = closed(in.lo);
    in.hi = closed(in.hi);
  }

  const Kernel& k_;
  bool frozen_, on_gpu_;
  sym::Expr lanes_ = 0;
  const std::vector<sym::Expr>* values_ = nullptr;
  size_t next_ = 0;
  std::vector<std::pair<sym::Expr, sym::Expr>> renamed_;
};

// Where a number is part of a range test or of // and mod, the loops it belongs to keep their extents as well: the
// simplifications that were made rest on them.
bool rests_on_extents(const Kernel& k) {
  auto affine = [&](sym::Expr e, auto&& self) -> bool {
    if (is_of_sizes(k, e)) return true;
    if (e.kind() >= sym::Kind::kFloorDiv) return false;
    for (sym::Expr o : e.operands())
      if (!self(o, self)) return false;
    return true;
  };
  for (const Stage& s : k.stages)
    for (const Instr& in : s.body) {
      if (in.op == Op::k_index && is_of_sizes(k, in.index)) continue;
      if (in.op == Op::k_in_range || in.op == Op::k_index || is_random(in.op) || !affine(in.index, affine)) return true;
    }
  return false;
}

// Kernels that read alike but for their open numbers, in order of the first.
struct Member {
  int32_t kernel;
  std::vector<sym::Expr> numbers;
  size_t of_params;
};
std::vector<std::vector<Member>> kernels_alike(const std::vector<Kernel>& kernels, const std::vector<bool>& running,
                                               bool on_gpu) {
  std::map<std::string, size_t> groups;
  std::vector<std::vector<Member>> out;
  for (size_t i = 0; i < kernels.size(); ++i) {
    const Kernel& k = kernels[i];
    if (k.attention || rests_on_extents(k)) continue;
    Walk walk(k, !running[i], on_gpu);
    walk.run(nullptr);
    std::string key = (running[i] ? "r" : "f") + std::move(walk.skeleton);
    for (const std::string& e : k.errors) key += e;
    if (on_gpu) key = std::to_string(i);  // those of products are numbered behind them; equal texts are compiled once
    const auto [it, fresh] = groups.try_emplace(std::move(key), out.size());
    if (fresh) out.emplace_back();
    out[it->second].push_back({static_cast<int32_t>(i), std::move(walk.numbers), walk.of_params});
  }
  return out;
}

// What stands for each open number of the members: itself where it is the same constant in all, else an argument; one for
// each distinct column of numbers.
struct Arguments {
  std::vector<sym::Expr> values;                // by open number
  std::vector<sym::Expr> vars;                  // the arguments
  std::vector<std::vector<sym::Expr>> columns;  // by argument: its value for each member
};

// A variable's name says its range and its hint, since a name has one of each in a process.
sym::Expr argument(size_t i, const std::vector<sym::Expr>& column, bool on_gpu) {
  int64_t least = 1;
  for (sym::Expr e : column) least = std::min(least, e.range().lo);
  const char* letter = least == 1 ? "n" : least == 0 ? "z" : "w";
  std::string name = letter + std::to_string(i);
  const int64_t hint = on_gpu ? column[0].hint() : 16;  // (blocks are chosen by it there)
  if (on_gpu) name += "_" + std::to_string(hint);
  return sym::var(name, {least >= 0 ? least : -sym::Range::kInf, sym::Range::kInf}, hint);
}

Arguments arguments_of(const std::vector<Member>& members, bool on_gpu) {
  const Member& first = members[0];
  Arguments out;
  std::map<std::vector<const sym::Node*>, sym::Expr> by_column;
  const bool varies =
      std::any_of(members.begin(), members.end(), [&](const Member& m) { return m.numbers != first.numbers; });
  for (size_t n = 0; n < first.numbers.size(); ++n) {
    std::vector<sym::Expr> column;
    std::vector<const sym::Node*> nodes;
    for (const Member& m : members) {
      column.push_back(m.numbers[n]);
      nodes.push_back(m.numbers[n].node());
    }
    // A part of a tensor and the whole: the loops vary, and the equal size of the parameter would look too small.
    const bool size = n < first.of_params && varies;
    if (!size && column[0].is_const() && std::ranges::all_of(column, [&](sym::Expr e) { return e == column[0]; })) {
      out.values.push_back(column[0]);
      continue;
    }
    const auto [it, fresh] = by_column.try_emplace(std::move(nodes), sym::Expr(0));
    if (fresh) {
      it->second = argument(out.vars.size(), column, on_gpu);
      out.vars.push_back(it->second);
      out.columns.push_back(std::move(column));
    }
    out.values.push_back(it->second);
  }
  return out;
}

// The sizes that a kernel still reads by themselves: in order of its arguments.
std::vector<sym::Expr> sizes_left(const Kernel& k) {
  std::vector<sym::Expr> used;
  const auto collect = [&](sym::Expr e) { sym::collect_vars(e, used); };
  for (const Param& p : k.params) collect(p.numel);
  for (const Scratch& s : k.scratch) collect(s.size);
  for (const Loop& l : k.outer) collect(l.extent);
  for (const Stage& stage : k.stages) {
    for (const Loop& l : stage.loops) collect(l.extent);
    for (const Instr& in : stage.body)
      for (sym::Expr e : {in.index, in.lo, in.hi}) collect(e);
  }
  std::vector<sym::Expr> out;
  for (sym::Expr size : k.sizes)
    if (std::ranges::find(used, size) != used.end()) out.push_back(size);
  return out;
}

}  // namespace

void share_kernels(Schedule& s, const Options& o) {
  if (!o.share) return;
  const auto launches = [&](const plan::Step& step) {  // (a GPU's products are numbered behind the kernels)
    return step.kind == plan::StepKind::kLaunch && static_cast<size_t>(step.kernel) < s.kernels.size();
  };
  std::vector<bool> running(s.kernels.size());
  for (const plan::Step& step : s.plan.steps)
    if (launches(step)) running[step.kernel] = true;

  std::vector<int32_t> stands_for(s.kernels.size());  // by kernel: the one that is launched instead
  std::iota(stands_for.begin(), stands_for.end(), 0);
  std::vector<std::vector<sym::Expr>> sizes(s.kernels.size());  // by kernel: what its launches hand over
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = s.kernels[i].sizes;
  for (const std::vector<Member>& members : kernels_alike(s.kernels, running, s.on_gpu())) {
    const Arguments arguments = arguments_of(members, s.on_gpu());
    if (members.size() < 2 && arguments.vars.empty()) continue;
    const int32_t first = members[0].kernel;
    Kernel general = Walk(s.kernels[first], !running[first], s.on_gpu()).run(&arguments.values);
    const std::vector<sym::Expr> left = sizes_left(general);
    general.sizes = arguments.vars;
    general.sizes.insert(general.sizes.end(), left.begin(), left.end());
    for (size_t i = 0; i < members.size(); ++i) {
      const int32_t kernel = members[i].kernel;
      general.cost = std::max(general.cost, s.kernels[kernel].cost);
      stands_for[kernel] = first;
      sizes[kernel].clear();
      for (const auto& column : arguments.columns) sizes[kernel].push_back(column[i]);
      sizes[kernel].insert(sizes[kernel].end(), left.begin(), left.end());
    }
    verify(general);
    s.kernels[first] = std::move(general);
  }

  // What a product took along is launched no more.
  std::vector<bool> launched(s.kernels.size());
  for (const auto* steps : {&s.plan.frozen_steps, &s.plan.steps})
    for (const plan::Step& step : *steps)
      if (launches(step)) launched[stands_for[step.kernel]] = true;
  std::vector<int32_t> number(s.kernels.size(), -1);
  int32_t kept = 0;
  for (size_t i = 0; i < s.kernels.size(); ++i)
    if (launched[i]) number[i] = kept++;
  const int32_t gone = static_cast<int32_t>(s.kernels.size()) - kept;
  for (auto* steps : {&s.plan.frozen_steps, &s.plan.steps})
    for (plan::Step& step : *steps) {
      if (!launches(step)) {
        if (step.kind == plan::StepKind::kLaunch) step.kernel -= gone;
        continue;
      }
      step.sizes = sizes[step.kernel];
      step.kernel = number[stands_for[step.kernel]];
    }
  for (size_t i = 0; i < s.kernels.size(); ++i)
    if (number[i] >= 0 && number[i] != static_cast<int32_t>(i)) s.kernels[number[i]] = std::move(s.kernels[i]);
  s.kernels.resize(static_cast<size_t>(kept));
}

}  // namespace flashover::planner
