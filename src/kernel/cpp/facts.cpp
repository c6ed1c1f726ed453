// Lanes first: whether a stage holds 64-bit vectors decides how many there are, and that in turn which loads are tiles.
#include "kernel/cpp/facts.h"

#include <algorithm>

#include "kernel/cpp/scalar.h"

namespace flashover::kernel::cpp {
namespace {

using loops::Id;
using loops::Instr;
using loops::kNone;
using loops::Op;
using loops::Reduce;
using sym::Expr;

bool has_lanes(const KernelFacts& f, const loops::Stage& s) {
  if (f.outer()) return true;
  return f.inner() && !s.ordered && !s.loops.empty();
}

// How `e` moves with the lanes of a stage, given which of its instructions vary.
LaneStep step_in(const loops::Stage& s, Expr e, const LaneLoop& lanes, const std::vector<char>& varying) {
  return lane_step(e, lanes, [&](Expr v) {
    for (size_t i = 0; i < varying.size(); ++i)
      if (s.body[i].op == Op::k_indirect && s.body[i].index == v) return varying[i] != 0;
    return false;
  });
}

// The instructions whose value differs from lane to lane.
std::vector<char> varying_values(const KernelFacts& f, const loops::Stage& s, const LaneLoop& lanes) {
  std::vector<char> v(s.body.size(), 0);
  for (size_t i = 0; i < s.body.size(); ++i) {
    const Instr& in = s.body[i];
    bool any = false;
    for (Id a : in.args) any |= a != kNone && v[a];
    if (in.mask != kNone) any |= v[in.mask] != 0;
    switch (in.op) {
      case Op::k_index:
      case Op::k_load:
        any |= !step_in(s, in.index, lanes, v).uniform();
        break;
      case Op::k_in_range:
        if (tests_whole_vectors(in, lanes)) break;
        for (Expr e : {in.index, in.lo, in.hi}) any |= !step_in(s, e, lanes, v).uniform();
        break;
      case Op::k_load_scratch:
        any |= f.outer() || !step_in(s, in.index, lanes, v).uniform();
        break;
      case Op::k_acc:
      case Op::k_scan:
        any |= f.outer();
        break;
      default:
        break;
    }
    v[i] = any ? 1 : 0;
  }
  return v;
}

struct VectorNeeds {
  bool wide = false;        // vectors of 64-bit values
  bool expressible = true;  // as vectors at all
};

void add_needs(const loops::Kernel& k, const KernelFacts& f, const loops::Stage& s, const StageFacts& facts,
               VectorNeeds& needs) {
  const LaneLoop lanes = lane_loop_of(k, f, s);
  const std::vector<char> varying = varying_values(f, s, lanes);
  auto holds = [&](DType d) {
    RegisterClass c = class_of(d);
    needs.wide |= c == RegisterClass::kD || c == RegisterClass::kL;
  };
  for (size_t i = 0; i < s.body.size(); ++i) {
    const Instr& in = s.body[i];
    if (in.op == Op::k_indirect) {
      if (varying[i] && !facts.ranges[in.args[0]]) needs.wide = true;
      continue;
    }
    if (varying[i] && in.dtype != DType::kUndefined) holds(narrowed(facts, s, static_cast<Id>(i)));
    // A narrow value beside a number of 64 bits is widened.
    if (varying[i] && loops::is_scalar_op(in.op))
      for (Id a : in.args)
        if (a != kNone) holds(narrowed(facts, s, a));
    if (is_memory_store(in.op)) holds(narrowed(facts, s, in.args[0]));
    // A narrow value stored as i64 needs wide lanes.
    if (in.op == Op::k_store) holds(k.params[in.slot].dtype);
    if (in.op == Op::k_store_scratch) holds(k.scratch[in.slot].dtype);
    if (is_fold(in.op)) {
      holds(k.accs[in.slot].dtype);
      if (k.accs[in.slot].kind >= Reduce::kArgMax && !facts.ranges[in.args[1]]) needs.wide = true;
    }
    if (f.outer() && in.op == Op::k_acc) holds(in.dtype);
    if (f.outer() && (in.op == Op::k_load_scratch || in.op == Op::k_store_scratch) &&
        !step_in(s, in.index, lanes, varying).uniform())
      needs.expressible = false;
  }
}

// The kernel's own wish, unless the machine or a dtype has no vectors.
loops::Vector possible_mode(const loops::Kernel& k, const Target& target) {
  loops::Vector mode = target.isa == Isa::kScalar ? loops::Vector::kNone : k.vector;
  auto check = [&](DType d) {
    class_of(d);  // declines
    if (d == DType::kU16 || d == DType::kU32) mode = loops::Vector::kNone;
  };
  for (const loops::Param& p : k.params) check(p.dtype);
  for (const loops::Stage& s : k.stages)
    for (const Instr& in : s.body)
      if (in.dtype != DType::kUndefined) check(in.dtype);
  return mode;
}

void choose_lanes(const loops::Kernel& k, const Target& target, KernelFacts& f) {
  f.mode = possible_mode(k, target);
  for (;;) {
    const bool vectors = f.mode != loops::Vector::kNone;
    f.lanes = vectors ? Lanes{target.isa, register_width(target.isa)} : Lanes{};
    f.stages.clear();
    VectorNeeds needs;
    for (const loops::Stage& s : k.stages) {
      StageFacts facts{loops::depths(s), narrow_ranges(s), vectors && has_lanes(f, s)};
      if (facts.vector) add_needs(k, f, s, facts, needs);
      f.stages.push_back(std::move(facts));
    }
    if (needs.expressible) {
      if (needs.wide && f.lanes.width > 1) f.lanes.width = f.lanes.wide_width();
      return;
    }
    f.mode = loops::Vector::kNone;
  }
}

// For one stage without loops; elsewhere such loads go lane by lane.
void find_tiles(const loops::Kernel& k, KernelFacts& f) {
  if (!f.outer() || k.transpose < 0 || k.transpose + 1 >= static_cast<int32_t>(k.outer.size()) ||
      k.stages.size() != 1 || !k.stages[0].loops.empty() || !f.lanes.has_tiles())
    return;
  const LaneLoop across{k.outer[k.transpose].var, f.lanes.width}, along{k.outer.back().var, f.lanes.width};
  for (size_t i = 0; i < k.stages[0].body.size(); ++i) {
    const Instr& in = k.stages[0].body[i];
    if (in.op == Op::k_indirect) {
      f.tiles.clear();
      return;
    }
    if (in.op != Op::k_load || in.mask != kNone) continue;
    const DType d = k.params[in.slot].dtype;
    if (d != DType::kF32 && d != DType::kBF16 && d != DType::kF16 && d != DType::kI32) continue;
    const LaneStep l = lane_step(in.index, along);
    if (lane_step(in.index, across).contiguous() && (l.kind == LaneStep::kVarying || l.stride > 1))
      f.tiles.push_back(static_cast<Id>(i));
  }
}

// As long as enough work is left to share among threads.
void find_repeats(const loops::Kernel& k, KernelFacts& f) {
  if (f.tiles.empty()) return;
  int64_t steps = 1;
  for (size_t i = 0; i + 1 < k.outer.size(); ++i) {
    auto n = k.outer[i].extent.as_const();
    if (!n) return;
    steps *= static_cast<int32_t>(i) == k.transpose ? (*n + f.lanes.width - 1) / f.lanes.width : *n;
  }
  for (size_t i = 0; i + 1 < k.outer.size(); ++i) {
    if (static_cast<int32_t>(i) == k.transpose) continue;
    bool used = false;
    for (Id t : f.tiles) {
      std::vector<Expr> vars;
      sym::collect_vars(k.stages[0].body[t].index, vars);
      used |= std::find(vars.begin(), vars.end(), k.outer[i].var) != vars.end();
    }
    const int64_t n = k.outer[i].extent.value();
    if (used || n <= 1 || steps / n < 8) continue;
    f.repeats.push_back(i);
    steps /= n;
  }
}

bool is_affine(Expr e) {
  switch (e.kind()) {
    case sym::Kind::kConst:
    case sym::Kind::kVar:
      return true;
    case sym::Kind::kAdd:
    case sym::Kind::kMul:
      return std::all_of(e.operands().begin(), e.operands().end(), is_affine);
    default:
      return false;
  }
}

// Pointwise kernels over affine indices. (Rows keep their sizes as constants, which makes their loops and tails
// shorter.)
bool can_share(const loops::Kernel& k, const KernelFacts& f) {
  if (!f.outer() || !f.tiles.empty() || k.stages.size() != 1 || !k.stages[0].loops.empty() || !k.sizes.empty() ||
      !k.scratch.empty())
    return false;
  const std::vector<Instr>& body = k.stages[0].body;
  return std::all_of(k.outer.begin(), k.outer.end(), [](const loops::Loop& l) { return l.extent.is_const(); }) &&
         std::all_of(body.begin(), body.end(), [](const Instr& in) {
           return in.op != Op::k_in_range && in.op != Op::k_indirect && is_affine(in.index);
         });
}

}  // namespace

bool KernelFacts::is_repeat(size_t loop) const {
  return std::find(repeats.begin(), repeats.end(), loop) != repeats.end();
}

LaneLoop lane_loop_of(const loops::Kernel& k, const KernelFacts& facts, const loops::Stage& stage) {
  return {facts.outer() ? k.outer.back().var : stage.loops.back().var, facts.lanes.width};
}

KernelFacts facts_of(const loops::Kernel& k, const Target& target) {
  KernelFacts f;
  choose_lanes(k, target, f);
  find_tiles(k, f);
  find_repeats(k, f);
  f.shared = can_share(k, f);
  return f;
}

}  // namespace flashover::kernel::cpp
