// Cuts the list of steps, and hands the tensors that cross a cut on as outputs and inputs.
#include "plan/split.h"

#include <algorithm>
#include <map>
#include <set>

#include "plan/arena.h"

namespace flashover::plan {
namespace {

class Splitter {
 public:
  Splitter(const Plan& p, const std::vector<size_t>& ends) : p_(p), ends_(ends) {
    for (size_t i = 0; i < p.tensors.size(); ++i) roots_.push_back(root(p, static_cast<TensorId>(i)));
    made_.assign(p.tensors.size(), -1);
    written_.assign(p.tensors.size(), -1);
    touched_.resize(p.tensors.size());
    number_.assign(p.tensors.size(), -1);
  }

  std::optional<PlanPartition> run() {
    for (size_t s = 0, sub_plan = 0; s < p_.steps.size(); ++s) {
      while (s >= ends_[sub_plan]) ++sub_plan;
      const auto n = static_cast<int32_t>(sub_plan);
      const Step& step = p_.steps[s];
      if (step.kind == StepKind::kRelease) continue;
      for_each_read(step, [&](TensorId t) { touched_[roots_[t]].insert(n); });
      for_each_write(step, [&](TensorId t) {
        const TensorId r = roots_[t];
        if (made_[r] < 0) made_[r] = n;
        written_[r] = n;
        touched_[r].insert(n);
      });
    }
    assign_outputs();
    for (size_t t = 0; t < p_.tensors.size(); ++t) {
      if (!is_temporary(static_cast<TensorId>(t)) || touched_[t].size() < 2) continue;
      if (made_[t] < 0 || *touched_[t].begin() < made_[t]) return std::nullopt;
      const TensorType& type = p_.tensors[t].type;
      if (type.opaque || type.wrapped_number) return std::nullopt;
      number_[t] = out_.passed++;
    }
    for (size_t i = 0; i < ends_.size(); ++i) out_.sub_plans.push_back(sub_plan(static_cast<int32_t>(i)));
    return std::move(out_);
  }

 private:
  bool is_temporary(TensorId t) const {
    const StorageKind storage = p_.tensors[t].storage;
    return storage == StorageKind::kArena || storage == StorageKind::kExtern || storage == StorageKind::kOutput;
  }

  // Chooses the sub-plan that hands out each output: the one that makes its memory if the output is that memory, else
  // the one that writes its value.
  void assign_outputs() {
    const auto last = static_cast<int32_t>(ends_.size()) - 1;
    for (size_t o = 0; o < p_.outputs.size(); ++o) {
      const TensorId t = p_.outputs[o].tensor;
      output_sub_plan_.push_back(-1);
      if (t < 0) continue;
      const TensorId r = roots_[t];
      const bool own = p_.tensors[t].storage == StorageKind::kOutput && p_.tensors[t].index == static_cast<int32_t>(o);
      output_sub_plan_[o] = own ? made_[r] : is_temporary(r) ? written_[r] : last;
      if (output_sub_plan_[o] < 0) output_sub_plan_[o] = last;
      touched_[r].insert(output_sub_plan_[o]);
    }
  }

  // A sub-plan while it is made.
  struct Making {
    int32_t number;
    size_t first, end;  // of its steps
    std::vector<bool> need,
        by_steps;  // by tensor of the whole: the sub-plan has it; by root: more than frozen steps need it
    std::vector<const Step*> frozen;  // last first
    std::vector<TensorId> now;        // by tensor of the whole: its number in the sub-plan, or -1
    PlanPartition::SubPlan sub_plan;
  };

  PlanPartition::SubPlan sub_plan(int32_t n) const {
    const auto at = static_cast<size_t>(n);
    Making m{.number = n, .first = n == 0 ? 0 : ends_[at - 1], .end = ends_[at]};
    Plan& plan = m.sub_plan.plan;
    plan.kernels = p_.kernels;
    plan.binaries = p_.binaries;
    plan.target = p_.target;
    plan.device = p_.device;
    find_needed(m);
    add_tensors(m);
    add_steps(m);
    add_outputs(m);
    if (p_.arena_bytes.is_const()) {
      for (const Tensor& t : plan.tensors)
        if (t.storage == StorageKind::kArena) plan.arena_bytes = p_.arena_bytes;
    } else {
      number_blocks(plan);
    }
    return std::move(m.sub_plan);
  }

  // Blocks that are not placed yet (arena.h), without those of other sub-plans.
  static void number_blocks(Plan& plan) {
    std::map<int64_t, int64_t> number;
    for (Tensor& t : plan.tensors) {
      if (t.storage != StorageKind::kArena) continue;
      const auto [known, fresh] = number.try_emplace(t.arena_offset.value() / 64, static_cast<int64_t>(number.size()));
      t.arena_offset = known->second * 64;
    }
    place_blocks(plan);
  }

  // What it needs: tensors, frozen steps behind frozen ones.
  void find_needed(Making& m) const {
    m.need.resize(p_.tensors.size());
    m.by_steps.resize(p_.tensors.size());
    const auto want = [&](TensorId t) {
      for (m.need[t] = true; p_.tensors[t].storage == StorageKind::kView; m.need[t] = true) t = p_.tensors[t].index;
    };
    const auto of_steps = [&](TensorId t) { want(t), m.by_steps[roots_[t]] = true; };
    for (size_t s = m.first; s < m.end; ++s) {
      if (p_.steps[s].kind == StepKind::kRelease) continue;
      for_each_read(p_.steps[s], of_steps);
      for_each_write(p_.steps[s], of_steps);
    }
    for (size_t o = 0; o < p_.outputs.size(); ++o)
      if (output_sub_plan_[o] == m.number) of_steps(p_.outputs[o].tensor);
    for (auto s = p_.frozen_steps.rbegin(); s != p_.frozen_steps.rend(); ++s) {
      bool needed = false;
      for_each_write(*s, [&](TensorId t) { needed |= m.need[roots_[t]]; });
      if (!needed) continue;
      m.frozen.push_back(&*s);
      for_each_read(*s, want);
      for_each_write(*s, want);
    }
  }

  // Bases before views as in the whole.
  void add_tensors(Making& m) const {
    Plan& plan = m.sub_plan.plan;
    m.now.assign(p_.tensors.size(), -1);
    std::vector<int32_t> input_of(p_.inputs.size(), -1);
    for (size_t i = 0; i < p_.tensors.size(); ++i) {
      if (!m.need[i]) continue;
      Tensor t = p_.tensors[i];
      if (t.storage == StorageKind::kView) {
        t.index = m.now[t.index];
      } else if (t.storage == StorageKind::kInput) {
        int32_t& input = input_of[t.index];
        if (input < 0) {
          input = static_cast<int32_t>(plan.inputs.size());
          plan.inputs.push_back(p_.inputs[t.index]);
          plan.inputs.back().frozen = plan.inputs.back().kind != 0;
          m.sub_plan.inputs.push_back(t.index);
        }
        plan.inputs[input].frozen &= !m.by_steps[i];
        t.index = input;
      } else if (number_[i] >= 0 && made_[i] != m.number) {
        t.storage = StorageKind::kInput;
        t.index = static_cast<int32_t>(plan.inputs.size());
        t.arena_offset = 0;
        plan.inputs.push_back({t.type, 0, false});
        m.sub_plan.inputs.push_back(-1 - number_[i]);
      } else if (number_[i] >= 0 && t.storage == StorageKind::kArena) {
        t.storage = StorageKind::kOutput;
        t.arena_offset = 0;
      }
      m.now[i] = static_cast<TensorId>(plan.tensors.size());
      plan.tensors.push_back(std::move(t));
    }
  }

  // A step with the tensors' numbers in the sub-plan.
  static Step renumbered(Step step, const std::vector<TensorId>& now) {
    for (TensorId& t : step.reads) t = t < 0 ? t : now[t];
    for (TensorId& t : step.writes) t = t < 0 ? t : now[t];
    for (Bounds& b : step.bounds) b.tensor = now[b.tensor];
    for (Arg& a : step.args) {
      if (auto* r = std::get_if<Ref>(&a)) {
        if (r->id != kNoValue) r->id = now[r->id];
      } else if (auto* l = std::get_if<RefList>(&a)) {
        for (Ref& r : *l)
          if (r.id != kNoValue) r.id = now[r.id];
      }
    }
    return step;
  }

  void add_steps(Making& m) const {
    Plan& plan = m.sub_plan.plan;
    for (auto s = m.frozen.rbegin(); s != m.frozen.rend(); ++s) plan.frozen_steps.push_back(renumbered(**s, m.now));
    for (size_t s = m.first; s < m.end; ++s) {
      if (p_.steps[s].kind != StepKind::kRelease) {
        plan.steps.push_back(renumbered(p_.steps[s], m.now));
        continue;
      }
      Step release;  // what is passed on, or was another sub-plan's, is not released here
      release.kind = StepKind::kRelease;
      for (TensorId t : p_.steps[s].reads)
        if (m.now[t] >= 0 && number_[t] < 0) release.reads.push_back(m.now[t]);
      if (!release.reads.empty()) plan.steps.push_back(std::move(release));
    }
  }

  // The whole's, and what is passed on where it is not one of those already.
  void add_outputs(Making& m) const {
    Plan& plan = m.sub_plan.plan;
    std::vector<int32_t> handed(p_.tensors.size(), -1);
    for (size_t o = 0; o < p_.outputs.size(); ++o) {
      if (output_sub_plan_[o] != m.number) continue;
      const TensorId t = p_.outputs[o].tensor;
      const bool own = p_.tensors[t].storage == StorageKind::kOutput && p_.tensors[t].index == static_cast<int32_t>(o);
      if (handed[t] < 0 || own) handed[t] = static_cast<int32_t>(m.sub_plan.outputs.size());
      add_output(plan, m.now[t], own);
      m.sub_plan.outputs.push_back({static_cast<int32_t>(o), -1});
    }
    for (size_t i = 0; i < p_.tensors.size(); ++i) {
      if (number_[i] < 0 || made_[i] != m.number) continue;
      if (handed[i] >= 0 && p_.tensors[i].storage != StorageKind::kArena) {
        m.sub_plan.outputs[handed[i]].passed = number_[i];
        continue;
      }
      add_output(plan, m.now[i], plan.tensors[m.now[i]].storage == StorageKind::kOutput);
      m.sub_plan.outputs.push_back({-1, number_[i]});
    }
  }

  // The first output that is this memory owns it.
  static void add_output(Plan& plan, TensorId t, bool owns) {
    if (owns) plan.tensors[t].index = static_cast<int32_t>(plan.outputs.size());
    OutputRef o;
    o.tensor = t;
    o.type = plan.tensors[t].type;
    o.type.offset = 0;
    plan.outputs.push_back(std::move(o));
  }

  const Plan& p_;
  const std::vector<size_t>& ends_;
  PlanPartition out_;
  std::vector<TensorId> roots_;
  std::vector<int32_t> made_, written_;  // by root: the sub-plan that first and last writes it
  std::vector<std::set<int32_t>> touched_;
  std::vector<int32_t> number_;  // by tensor: as what it is passed on, or -1
  std::vector<int32_t> output_sub_plan_;
};

}  // namespace

std::optional<PlanPartition> split(const Plan& whole, const std::vector<size_t>& ends) {
  return Splitter(whole, ends).run();
}

}  // namespace flashover::plan
