// What a kernel goes through after its bodies are built: loops merged, names and orders made canonical.
#include <algorithm>

#include "base/check.h"
#include "loops/schedule/build.h"

namespace flashover::loops {
namespace {

bool mentions(sym::Expr e, sym::Expr v) {
  if (e == v) return true;
  for (sym::Expr o : e.operands())
    if (mentions(o, v)) return true;
  return false;
}

template <typename F>
bool all_exprs(Stage& s, F&& f) {
  for (Instr& in : s.body) {
    if (in.op != Op::k_indirect && !f(in.index)) return false;
    if (!f(in.lo) || !f(in.hi)) return false;
  }
  return true;
}

// e with u * (extent of v) + v as w; nullopt where it is not affine in that.
std::optional<sym::Expr> joined(sym::Expr e, sym::Expr u, sym::Expr v, sym::Expr w) {
  const auto cu = sym::coefficient(e, u), cv = sym::coefficient(e, v);
  if (!cu || !cv || !(*cu == *cv * extent_of(v))) return std::nullopt;
  const sym::Expr rest = e - *cu * u - *cv * v;
  if (mentions(rest, u) || mentions(rest, v)) return std::nullopt;
  return rest + *cv * w;
}
// As merge_pair, where the inner extent is no number, which // and mod would not see through.
bool merge_below_symbol(std::vector<Loop>& loops, size_t i, char letter, const std::vector<Stage*>& stages) {
  const sym::Expr u = loops[i].var, v = loops[i + 1].var;
  const sym::Expr w = loop_var(letter, static_cast<int>(i), loops[i].extent * loops[i + 1].extent);
  for (Stage* s : stages)
    if (!all_exprs(*s, [&](sym::Expr& e) { return joined(e, u, v, w).has_value(); })) return false;
  for (Stage* s : stages)
    all_exprs(*s, [&](sym::Expr& e) {
      e = *joined(e, u, v, w);
      return true;
    });
  loops[i] = {w, extent_of(w)};
  loops.erase(loops.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  return true;
}

// Tries to run loops[i] and loops[i+1] as one: every index must stay affine in the joint variable.
bool merge_pair(std::vector<Loop>& loops, size_t i, char letter, const std::vector<Stage*>& stages) {
  if (!loops[i + 1].extent.is_const()) return merge_below_symbol(loops, i, letter, stages);
  const sym::Expr u = loops[i].var, v = loops[i + 1].var;
  const sym::Expr w = loop_var('m', 0, loops[i].extent * loops[i + 1].extent);
  const std::vector<std::pair<sym::Expr, sym::Expr>> map = {{u, sym::floordiv(w, loops[i + 1].extent)},
                                                            {v, sym::mod(w, loops[i + 1].extent)}};
  for (Stage* s : stages)
    if (!all_exprs(*s, [&](sym::Expr& e) {
          return !(mentions(e, u) || mentions(e, v)) || sym::coefficient(replace(e, map), w).has_value();
        }))
      return false;
  // A name of its own per merge: several may be alive at once.
  const sym::Expr fresh = loop_var(letter, static_cast<int>(i), extent_of(w));
  const std::vector<std::pair<sym::Expr, sym::Expr>> final_map = {{u, sym::floordiv(fresh, loops[i + 1].extent)},
                                                                  {v, sym::mod(fresh, loops[i + 1].extent)}};
  for (Stage* s : stages)
    all_exprs(*s, [&](sym::Expr& e) {
      e = replace(e, final_map);
      return true;
    });
  loops[i] = {fresh, extent_of(fresh)};
  loops.erase(loops.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  return true;
}

void rename(std::vector<Loop>& loops, char letter, const std::vector<Stage*>& stages) {
  std::vector<std::pair<sym::Expr, sym::Expr>> map;
  for (size_t i = 0; i < loops.size(); ++i)
    map.emplace_back(loops[i].var, loop_var(letter, static_cast<int>(i), loops[i].extent));
  for (Stage* s : stages)
    all_exprs(*s, [&](sym::Expr& e) {
      e = replace(e, map);
      return true;
    });
  for (size_t i = 0; i < loops.size(); ++i) loops[i].var = map[i].second;
}

// Drops values that nothing uses and renumbers; variables of k_indirect are named after their instruction.
void compact(Stage& s) {
  std::vector<bool> live(s.body.size());
  for (size_t i = s.body.size(); i-- > 0;) {
    const Instr& in = s.body[i];
    bool needed =
        live[i] || !info(in.op).has_result || in.op == Op::k_scan || (in.op == Op::k_indirect && in.slot >= 0);
    if (in.op == Op::k_indirect && !needed)
      for (size_t j = i + 1; j < s.body.size() && !needed; ++j)
        needed = live[j] && (mentions(s.body[j].index, in.index) || mentions(s.body[j].lo, in.index) ||
                             mentions(s.body[j].hi, in.index));
    if (!(live[i] = needed)) continue;
    for (Id a : in.args)
      if (a != kNone) live[a] = true;
    if (in.mask != kNone) live[in.mask] = true;
  }
  std::vector<Id> number(s.body.size(), kNone);
  std::vector<std::pair<sym::Expr, sym::Expr>> map;
  std::vector<Instr> body;
  for (size_t i = 0; i < s.body.size(); ++i) {
    if (!live[i]) continue;
    Instr in = s.body[i];
    for (Id& a : in.args)
      if (a != kNone) a = number[a];
    if (in.mask != kNone) in.mask = number[in.mask];
    in.lo = replace(in.lo, map);
    in.hi = replace(in.hi, map);
    if (in.op == Op::k_indirect) {
      const sym::Expr renamed = loop_var('t', static_cast<int>(body.size()), in.hi);
      map.emplace_back(in.index, renamed);
      in.index = renamed;
    } else {
      in.index = replace(in.index, map);
    }
    number[i] = static_cast<Id>(body.size());
    body.push_back(in);
  }
  s.body = std::move(body);
}

// The size symbols that a kernel depends on, by number.
std::vector<sym::Expr> sizes_of(Kernel& k) {
  std::vector<sym::Expr> vars;
  for (const Param& p : k.params) sym::collect_vars(p.numel, vars);
  for (const Scratch& s : k.scratch) sym::collect_vars(s.size, vars);
  for (const Loop& l : k.outer) sym::collect_vars(l.extent, vars);
  for (Stage& s : k.stages) {
    for (const Loop& l : s.loops) sym::collect_vars(l.extent, vars);
    for (const Instr& in : s.body)
      for (sym::Expr e : {in.index, in.lo, in.hi}) sym::collect_vars(e, vars);
  }
  std::erase_if(vars, [](sym::Expr v) { return !sym::size_symbol_index(v); });
  std::ranges::sort(vars, {}, [](sym::Expr v) { return *sym::size_symbol_index(v); });
  return vars;
}

}  // namespace

void merge_loops(Kernel& k, bool registers) {
  std::vector<Stage*> all;
  for (Stage& s : k.stages) all.push_back(&s);
  for (size_t i = k.outer.size(); i-- > 1;)
    if (merge_pair(k.outer, i - 1, 'w', all) && k.transpose >= static_cast<int32_t>(i)) --k.transpose;
  const auto touches_scratch = [](const Stage& s) {
    return std::any_of(s.body.begin(), s.body.end(),
                       [](const Instr& in) { return in.op == Op::k_load_scratch || in.op == Op::k_store_scratch; });
  };
  // What stays in registers is read at the lane that wrote it: stages that hand it on keep the same loops.
  std::vector<bool> done(k.stages.size());
  for (size_t s = 0; s < k.stages.size(); ++s) {
    if (done[s]) continue;
    std::vector<Stage*> together = {&k.stages[s]};
    for (size_t t = s + 1; t < k.stages.size() && registers && touches_scratch(k.stages[s]); ++t) {
      const auto same = [](const Loop& a, const Loop& b) { return a.var == b.var; };
      const auto &a = k.stages[s].loops, &b = k.stages[t].loops;
      if (!touches_scratch(k.stages[t]) || !std::equal(a.begin(), a.end(), b.begin(), b.end(), same)) continue;
      together.push_back(&k.stages[t]);
      done[t] = true;
    }
    for (size_t i = k.stages[s].loops.size(); i-- > 1;) merge_pair(k.stages[s].loops, i - 1, 'y', together);
    for (Stage* t : together) t->loops = k.stages[s].loops;
  }
}

void canonicalise(Kernel& k, std::vector<ValueId>& params) {
  std::vector<Stage*> all;
  for (Stage& s : k.stages) all.push_back(&s);
  rename(k.outer, 'i', all);
  for (Stage& s : k.stages) {
    rename(s.loops, 'j', {&s});
    compact(s);
  }
  std::erase_if(k.stages, [](const Stage& s) { return s.body.empty(); });
  all.clear();
  // Parameters: read-only ones in order of first use, then written ones.
  for (Param& p : k.params) p.read = p.written = false;
  std::vector<int32_t> first_use;
  for (const Stage& s : k.stages)
    for (const Instr& in : s.body) {
      if (in.op != Op::k_load && in.op != Op::k_store) continue;
      (in.op == Op::k_load ? k.params[in.slot].read : k.params[in.slot].written) = true;
      if (in.op == Op::k_store && in.mode != StoreMode::kSet) k.params[in.slot].read = true;
      if (std::find(first_use.begin(), first_use.end(), in.slot) == first_use.end()) first_use.push_back(in.slot);
    }
  std::stable_partition(first_use.begin(), first_use.end(), [&](int32_t slot) { return !k.params[slot].written; });
  std::vector<int32_t> number(k.params.size(), -1);
  std::vector<Param> new_params;
  std::vector<ValueId> new_values;
  for (int32_t slot : first_use) {
    number[slot] = static_cast<int32_t>(new_params.size());
    new_params.push_back(k.params[slot]);
    new_values.push_back(params[slot]);
  }
  k.params = std::move(new_params);
  params = std::move(new_values);
  for (Stage& s : k.stages)
    for (Instr& in : s.body)
      if (in.op == Op::k_load || in.op == Op::k_store) in.slot = number[in.slot];
  k.sizes = sizes_of(k);
}

}  // namespace flashover::loops
