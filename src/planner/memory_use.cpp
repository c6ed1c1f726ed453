// See memory_use.h.
#include "planner/memory_use.h"

#include <algorithm>
#include <utility>

#include "plan/blocks.h"
#include "planner/value_tensors.h"

namespace flashover::planner {

using plan::StorageKind;
using plan::TensorId;

MemoryUse::MemoryUse(const Schedule& s, const Options& o)
    : p_(s.plan),
      late_outputs_(o.late_outputs || o.apart > 0),
      life_(plan::lifetimes(s.plan)),
      first_of_(s.plan.tensors.size()),
      last_(s.plan.tensors.size(), -1) {
  for (size_t t = 0; t < p_.tensors.size(); ++t) {
    auto first = static_cast<TensorId>(t);
    while (static_cast<size_t>(first) < s.over.size() && s.over[first] >= 0) first = s.over[first];
    first_of_[t] = first;
    last_[first] = std::max(last_[first], life_[t].last);
  }
}

bool MemoryUse::known_sizes() const {
  for (size_t t = 0; t < p_.tensors.size(); ++t) {  // views come behind their bases
    if (first_of_[t] > static_cast<TensorId>(t) || sym::has_size_symbol(plan::span(p_.tensors[t].type))) return false;
    if (p_.tensors[t].storage != StorageKind::kArena && p_.tensors[t].storage != StorageKind::kOutput) continue;
    if (!plan::span(p_.tensors[t].type).is_const()) return false;
  }
  return true;
}

int64_t MemoryUse::input_bytes() const {
  int64_t bytes = 0;
  for (const plan::InputSpec& i : p_.inputs)
    if (!i.type.opaque && i.type.device == p_.device && plan::span(i.type).is_const())
      bytes += plan::bytes(i.type).value();
  return bytes;
}

bool MemoryUse::is_arena_block(size_t t) const {
  return p_.tensors[t].storage == StorageKind::kArena && life_[t].first >= 0 &&
         first_of_[t] == static_cast<TensorId>(t);
}

bool MemoryUse::may_begin_late(size_t t) const {
  return late_outputs_ && p_.tensors[t].storage == StorageKind::kOutput && life_[t].first >= 0 &&
         p_.tensors[t].type.device == p_.device;
}

bool MemoryUse::is_apart(size_t t, int64_t large) const {
  return (is_arena_block(t) || may_begin_late(t)) && bytes(t) >= large;
}

std::vector<int64_t> MemoryUse::over_time(int64_t large, const std::vector<TensorId>& thawed) const {
  const size_t steps = p_.steps.size();
  std::vector<int64_t> change(steps + 2);
  int64_t always = 0;
  std::vector<plan::Block> arena;
  for (size_t t = 0; t < p_.tensors.size(); ++t) {
    const plan::Tensor& tensor = p_.tensors[t];
    const plan::Lifetime life{life_[t].first, std::max(last_[t], life_[t].last)};
    if (tensor.type.opaque || tensor.type.device != p_.device || life.first < 0) continue;
    const bool thaws = std::find(thawed.begin(), thawed.end(), static_cast<TensorId>(t)) != thawed.end();
    const bool apart = is_apart(t, large);
    if ((tensor.storage == StorageKind::kFrozen && !thaws) || (tensor.storage == StorageKind::kOutput && !apart)) {
      always += bytes(t);
    } else if (tensor.storage == StorageKind::kExtern || apart || (thaws && bytes(t) >= large)) {
      change[life.first] += bytes(t);
      change[std::min<size_t>(life.last, steps) + 1] -= bytes(t);
    } else if (is_arena_block(t) || thaws) {
      arena.push_back({bytes(t), life.first, life.last});
    }
  }
  int64_t now = always + plan::assign_offsets(arena);
  for (int64_t& c : change) c = now += c;
  return change;
}

int64_t MemoryUse::peak(int64_t large, const std::vector<TensorId>& thawed) const {
  const std::vector<int64_t> all = over_time(large, thawed);
  return *std::max_element(all.begin(), all.end());
}

void set_apart(Schedule& s, const Options& o, int64_t large) {
  plan::Plan& p = s.plan;
  const MemoryUse use(s, o);
  std::vector<std::vector<TensorId>> begins(p.steps.size());
  std::vector<bool> apart(p.tensors.size());
  for (size_t t = 0; t < p.tensors.size(); ++t) {
    apart[t] = use.is_apart(t, large);
    if (apart[t]) begins[use.life(t).first].push_back(static_cast<TensorId>(t));
  }
  for (size_t t = 0; t < p.tensors.size(); ++t) {
    plan::Tensor& tensor = p.tensors[t];
    const TensorId first = use.first_of(t);
    if (tensor.storage != StorageKind::kArena || first == static_cast<TensorId>(t) || !apart[first]) continue;
    tensor.storage = StorageKind::kView;
    tensor.index = first;
    s.over[t] = -1;
  }
  std::vector<plan::Step> steps;
  for (size_t i = 0; i < p.steps.size(); ++i) {
    for (TensorId t : begins[i]) {
      p.tensors[t].storage = StorageKind::kExtern;
      p.tensors[t].index = -1;
      steps.push_back(allocation(p.tensors[t].type, t));
    }
    steps.push_back(std::move(p.steps[i]));
  }
  p.steps = std::move(steps);
}

}  // namespace flashover::planner
