// First what is large is allocated by itself, then what is less so, then casts of parameters are recomputed.
#include <algorithm>
#include <utility>

#include "planner/memory_use.h"
#include "planner/rewrites.h"

namespace flashover::planner {
namespace {

using plan::Plan;
using plan::Step;
using plan::StorageKind;
using plan::TensorId;

constexpr int64_t kLarge = int64_t{4} << 20, kLess = int64_t{1} << 20;

// A tensor that a frozen step computes from one input, and that nothing but the steps needs.
struct Thawable {
  TensorId tensor;
  int32_t step;  // of the frozen ones
  int64_t bytes;
};

struct Thawables {
  std::vector<Thawable> all;
  int64_t frozen = 0;  // bytes that kernels of the frozen part keep
};

Thawables find_thawables(const Plan& p, const MemoryUse& use) {
  const auto root = [&](TensorId t) { return plan::root(p, t); };
  std::vector<bool> needed(p.tensors.size());  // by other frozen steps, or a result
  for (const Step& s : p.frozen_steps) plan::for_each_read(s, [&](TensorId t) { needed[root(t)] = true; });
  for (const plan::OutputRef& o : p.outputs)
    if (o.tensor >= 0) needed[root(o.tensor)] = true;
  std::vector<bool> written(p.tensors.size());
  for (const Step& s : p.steps) plan::for_each_write(s, [&](TensorId t) { written[root(t)] = true; });
  Thawables out;
  for (size_t i = 0; i < p.frozen_steps.size(); ++i) {
    const Step& s = p.frozen_steps[i];
    if (s.kind != plan::StepKind::kLaunch || s.writes.size() != 1) continue;
    const TensorId t = s.writes[0];
    if (p.tensors[t].storage != StorageKind::kFrozen || use.life(t).first < 0) continue;
    out.frozen += use.bytes(t);
    if (s.reads.size() == 1 && p.tensors[s.reads[0]].storage == StorageKind::kInput && !written[s.reads[0]] &&
        !needed[t] && use.bytes(t) >= kLess)
      out.all.push_back({t, static_cast<int32_t>(i), use.bytes(t)});
  }
  return out;
}

// The smallest that has `excess` bytes, else the largest; the first of equals.
std::vector<Thawable>::iterator best_of(std::vector<Thawable>& candidates, int64_t excess) {
  auto best = candidates.begin();
  for (auto c = best + 1; c != candidates.end(); ++c)
    if (best->bytes >= excess ? c->bytes >= excess && c->bytes < best->bytes : c->bytes > best->bytes) best = c;
  return best;
}

// Those whose going takes `excess` bytes off the peak, or as much of that as it can be.
std::vector<Thawable> choose(const Plan& p, const MemoryUse& use, int64_t large, int64_t excess) {
  Thawables candidates = find_thawables(p, use);
  // Making one is a pass over it and a launch: not for most of them.
  const int64_t most = candidates.frozen / 4;
  std::vector<Thawable> chosen;
  std::vector<TensorId> tensors;
  int64_t taken = 0, before = use.peak(large);
  while (excess > 0 && !candidates.all.empty()) {
    const auto best = best_of(candidates.all, excess);
    const Thawable candidate = *best;
    candidates.all.erase(best);
    if (taken + candidate.bytes > most) continue;
    tensors.push_back(candidate.tensor);
    const int64_t then = use.peak(large, tensors);
    if (before - then < candidate.bytes / 2) {  // it lies in memory at the peak all the same
      tensors.pop_back();
      continue;
    }
    chosen.push_back(candidate);
    taken += candidate.bytes;
    excess -= before - then;
    before = then;
  }
  return chosen;
}

// Recomputes casts of parameters, which would be kept from call to call, where they are first read, until the plan needs
// `excess` bytes less. False: there are none to be had.
bool thaw(Schedule& s, const Options& o, const MemoryUse& use, int64_t large, int64_t excess) {
  Plan& p = s.plan;
  const std::vector<Thawable> chosen = choose(p, use, large, excess);
  if (chosen.empty()) return false;
  std::vector<std::vector<int32_t>> begins(p.steps.size());
  std::vector<bool> gone(p.frozen_steps.size());
  for (const Thawable& c : chosen) {
    begins[use.life(c.tensor).first].push_back(c.step);
    gone[c.step] = true;
    p.tensors[c.tensor].storage = StorageKind::kArena;
  }
  std::vector<Step> steps, frozen;
  for (size_t i = 0; i < p.steps.size(); ++i) {
    for (int32_t f : begins[i]) steps.push_back(std::move(p.frozen_steps[f]));
    steps.push_back(std::move(p.steps[i]));
  }
  for (size_t i = 0; i < gone.size(); ++i)
    if (!gone[i]) frozen.push_back(std::move(p.frozen_steps[i]));
  p.steps = std::move(steps);
  p.frozen_steps = std::move(frozen);
  mark_frozen_inputs(s, o);
  return true;
}

}  // namespace

void fit_memory(Schedule& s, const Options& o) {
  constexpr int64_t kWorth = int64_t{16} << 20;
  const MemoryUse use(s, o);
  if (!use.known_sizes()) return;
  int64_t large = kNoneApart, bytes = use.peak(large);
  // Eager's variables live longer than their last use.
  const int64_t limit = o.memory_limit > 0 ? o.memory_limit + (o.memory_limit + use.input_bytes()) / 1024 : INT64_MAX;
  if (const int64_t then = use.peak(kLarge); then + kWorth <= bytes || (bytes > limit && then < bytes))
    large = kLarge, bytes = then;
  if (const int64_t then = use.peak(kLess); bytes > limit && then < bytes) large = kLess, bytes = then;
  // An arena would have to hold what is thawed; by itself it is there for a while only.
  if (bytes > limit && !thaw(s, o, use, large, bytes - limit) && large == kNoneApart &&
      thaw(s, o, use, kLess, bytes - limit))
    large = kLess;
  if (large != kNoneApart) set_apart(s, o, large);
}

}  // namespace flashover::planner
