// Gives what depends on tangents inputs of its own for the statistics that a norm's formula reads.
#include "graph/passes/late_reads.h"

#include <utility>

#include "graph/checkpoint.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

constexpr std::string_view kFormula = op::native_batch_norm_backward;
constexpr size_t kMean = 3, kVariance = 4, kTraining = 7;  // arguments

bool reads_statistics(const Node& n) {
  if (n.op->name != kFormula) return false;
  const auto* training = std::get_if<bool>(&n.args[kTraining]);
  return training && !*training;
}

class LateReads {
 public:
  LateReads(Graph g, Joint& facts)
      : g_(std::move(g)),
        facts_(facts),
        nodes_(std::exchange(g_.nodes, {})),
        producer_(g_.values.size(), -1),
        input_of_(g_.values.size(), -1),
        twin_(g_.values.size(), kNoValue),
        statistics_(g_.inputs.size()) {}

  Graph run() {
    find_statistics();
    std::vector<bool> backward(g_.values.size());
    for (const Input& i : g_.inputs) backward[i.value] = i.kind == InputKind::kTangent;
    for (Node n : nodes_) {
      bool any = false;
      for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { any = any || backward[v]; });
      for (ValueId v : n.outs)
        if (v != kNoValue) backward[v] = any;
      if (any)
        for (Arg& a : n.args) {
          if (auto* r = std::get_if<Ref>(&a)) r->id = late(r->id);
          if (auto* l = std::get_if<RefList>(&a))
            for (Ref& r : *l) r.id = late(r.id);
        }
      g_.nodes.push_back(std::move(n));
    }
    return std::move(g_);
  }

 private:
  void find_statistics() {
    for (size_t i = 0; i < g_.inputs.size(); ++i) input_of_[g_.inputs[i].value] = static_cast<int32_t>(i);
    std::vector<bool> stays(g_.inputs.size());
    for (size_t i = 0; i < g_.inputs.size(); ++i)
      stays[i] = g_.inputs[i].kind == InputKind::kConstant || g_.inputs[i].kind == InputKind::kTangent;
    for (const Mutation& m : g_.mutations) stays[m.input] = true;
    for (int32_t i : facts_.extra)
      if (i >= 0) stays[i] = true;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const Node& n = nodes_[i];
      for (ValueId v : n.outs)
        if (v != kNoValue) producer_[v] = static_cast<int32_t>(i);
      const auto mark = [&](std::vector<bool>& inputs, const Arg& a) {
        for_each_ref(a, [&](ValueId v) {
          if (const int32_t input = input_of_[root(v)]; input >= 0) inputs[input] = true;
        });
      };
      if (checkpoint_of(g_, n) >= 0)
        for (const Arg& a : n.args) mark(stays, a);
      if (reads_statistics(n))
        for (size_t at : {kMean, kVariance}) mark(statistics_, n.args[at]);
    }
    for (size_t i = 0; i < stays.size(); ++i)
      if (stays[i]) statistics_[i] = false;
  }

  // What a view is cut out of, step by step.
  const Node* view(ValueId v) const {
    const Node* n = producer_[v] < 0 ? nullptr : &nodes_[producer_[v]];
    return n && n->op->kind == ops::OpKind::kView && n->outs.size() == 1 && std::holds_alternative<Ref>(n->args[0])
               ? n
               : nullptr;
  }
  ValueId root(ValueId v) const {
    for (const Node* n = view(v); n; n = view(v)) v = std::get<Ref>(n->args[0]).id;
    return v;
  }

  // The same of what the backward finds.
  ValueId late(ValueId v) {
    if (v == kNoValue) return v;
    const int32_t input = input_of_[root(v)];
    if (input < 0 || !statistics_[input]) return v;
    if (twin_[v] != kNoValue) return twin_[v];
    if (const Node* n = view(v)) {
      Node copy = *n;
      copy.args[0] = Ref{late(std::get<Ref>(n->args[0]).id)};
      copy.outs[0] = g_.add_value(g_.type(v));
      g_.nodes.push_back(std::move(copy));
      return twin_[v] = g_.nodes.back().outs[0];
    }
    facts_.late.push_back({static_cast<int32_t>(g_.inputs.size()), input});
    return twin_[v] = g_.add_input(g_.type(v), InputKind::kTangent, std::string(g_.inputs[input].name));
  }

  Graph g_;
  Joint& facts_;
  const std::vector<Node> nodes_;
  std::vector<int32_t> producer_, input_of_;
  std::vector<ValueId> twin_;
  std::vector<bool> statistics_;  // inputs
};

}  // namespace

Graph late_reads(Graph g, Joint& facts) { return LateReads(std::move(g), facts).run(); }

}  // namespace flashover::graph
