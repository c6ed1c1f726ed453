// Builds the network (what may be saved, at which cost), cuts it, and writes the two graphs.
#include "graph/partition/partition.h"

#include <algorithm>
#include <unordered_map>

#include "base/check.h"
#include "graph/analysis/data_sizes.h"
#include "graph/analysis/devices.h"
#include "graph/checkpoint.h"
#include "graph/partition/min_cut.h"
#include "graph/rewrite/rewriter.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

using ops::OpKind;

// Work per byte of the result, compared with moving a byte to memory and back.
int work_per_byte(const ops::OpRow& op) { return op.cost >= 10 ? 16 : op.cost >= 3 ? 5 : 1; }

int64_t hinted_bytes(const TensorType& t) {
  int64_t n = info(t.dtype).bytes;
  for (sym::Expr s : t.sizes) n *= std::max<int64_t>(1, s.hint());
  return n;
}
bool is_extern(const Node& n) { return !n.op->is_prim(); }
bool is_same_kind(const TensorType& a, const TensorType& b) {
  return a.dtype == b.dtype && same_sizes(a.sizes, b.sizes);
}

// A dense layout for what is kept, of the dims in their order: operators' results lie as their operands.
TensorType kept_type(TensorType t) {
  t.offset = 0;
  t.wrapped_number = false;
  if (t.opaque) return t;
  if (!is_writable_layout(t)) {
    t.strides = contiguous_strides(t.sizes);
  } else if (!ops::is_dense(t.sizes, t.strides)) {
    t.strides = ops::dense_like(t.sizes, t.strides);
  }
  return t;
}

class Partitioner {
 public:
  Partitioner(const Graph& g, const Joint& facts, const PartitionOptions& options)
      : g_(g), facts_(facts), options_(options), producer_(g.values.size(), -1) {}

  Partition run() {
    index();
    find_backward();
    find_checkpoints();
    find_stages();
    choose();
    Partition p{{}, Graph(g_.facts), Graph(g_.facts)};
    describe_results(p);
    build_backward(p);  // says what is saved
    build_forward(p);
    return p;
  }

 private:
  size_t results() const { return facts_.results.size(); }
  const Node* def(ValueId v) const { return producer_[v] < 0 ? nullptr : &g_.nodes[producer_[v]]; }
  bool is_random(const Node& n) const { return n.op->nondeterministic || n.op->effectful || n.op->data_sized; }

  void index() {
    input_of_.assign(g_.values.size(), -1);
    for (size_t i = 0; i < g_.inputs.size(); ++i) input_of_[g_.inputs[i].value] = static_cast<int32_t>(i);
    for (size_t i = 0; i < g_.nodes.size(); ++i)
      for (ValueId v : g_.nodes[i].outs)
        if (v != kNoValue) producer_[v] = static_cast<int32_t>(i);
    late_of_.assign(g_.inputs.size(), -1);
    unsteady_.assign(g_.inputs.size(), false);
    for (const Joint::Late& l : facts_.late) {
      late_of_[l.number] = l.input;
      unsteady_[l.input] = true;
    }
    frozen_ = frozen_values(g_);
    find_unsteady();
    mutated_.assign(g_.inputs.size(), false);
    for (const Mutation& m : g_.mutations) mutated_[m.input] = true;
    rewritten_.assign(g_.inputs.size(), false);
    for (int32_t i : facts_.extra)
      if (i >= 0) rewritten_[i] = mutated_[i] = true;
    int32_t next = 0;
    for (const Input& i : g_.inputs) forward_input_.push_back(i.kind == InputKind::kTangent ? -1 : next++);
    tangent_of_.assign(g_.inputs.size(), -1);
    for (size_t t = 0; t < facts_.tangents.size(); ++t) tangent_of_[facts_.tangents[t]] = static_cast<int32_t>(t);
    FLASHOVER_CHECK(g_.outputs.size() == results() + facts_.gradients.size()) << "a joint graph returns gradients";
  }

  // What follows from memory that may be written without a version is computed once, in the forward. It lies in memory
  // there, as all that is frozen.
  void find_unsteady() {
    in_memory_.assign(g_.values.size(), false);
    std::vector<bool> follows(g_.values.size());
    for (size_t i = 0; i < g_.inputs.size(); ++i) follows[g_.inputs[i].value] = unsteady_[i];
    for (const Node& n : g_.nodes) {
      bool any = false;
      for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { any = any || follows[v]; });
      for (ValueId v : n.outs)
        if (v != kNoValue && any && frozen_[v]) follows[v] = in_memory_[v] = true;
    }
    for (size_t v = 0; v < follows.size(); ++v)
      if (follows[v]) frozen_[v] = false;
  }

  // Which nodes depend on tangents, and which values they need that do not.
  void find_backward() {
    backward_.assign(g_.values.size(), false);
    for (const Input& i : g_.inputs) backward_[i.value] = i.kind == InputKind::kTangent;
    node_backward_.assign(g_.nodes.size(), false);
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      bool any = false;
      for (const Arg& a : g_.nodes[i].args) for_each_ref(a, [&](ValueId v) { any = any || backward_[v]; });
      node_backward_[i] = any;
      for (ValueId v : g_.nodes[i].outs)
        if (v != kNoValue) backward_[v] = any;
    }
    for (const Mutation& m : g_.mutations)
      if (backward_[m.value]) throw Declined("training: the backward writes an input");
    for (int32_t i : facts_.extra) FLASHOVER_CHECK(i < 0 || forward_input_[i] >= 0) << "a tangent is written";
    for (size_t i = 0; i < results(); ++i)
      if (g_.outputs[i].value != kNoValue && backward_[g_.outputs[i].value])
        throw Declined("training: a result depends on a gradient");

    // Needed by the backward: what its live nodes read, and gradients that depend on no tangent.
    std::vector<bool> live(g_.values.size());
    for (size_t i = results(); i < g_.outputs.size(); ++i) {
      const ValueId v = g_.outputs[i].value;
      FLASHOVER_CHECK(v != kNoValue && g_.outputs[i].kind == Output::Kind::kValue) << "a gradient is a value";
      live[v] = true;
      if (!backward_[v]) backward_reads_.push_back(v);
    }
    keep_.assign(g_.nodes.size(), false);
    for (size_t i = g_.nodes.size(); i-- > 0;) {
      const Node& n = g_.nodes[i];
      if (!node_backward_[i]) continue;
      const bool effect = is_random(n);
      if (!effect && std::none_of(n.outs.begin(), n.outs.end(), [&](ValueId v) { return v != kNoValue && live[v]; }))
        continue;
      keep_[i] = true;
      for (const Arg& a : n.args)
        for_each_ref(a, [&](ValueId v) {
          live[v] = true;
          if (!backward_[v]) backward_reads_.push_back(v);
        });
    }
    std::sort(backward_reads_.begin(), backward_reads_.end());
    backward_reads_.erase(std::unique(backward_reads_.begin(), backward_reads_.end()), backward_reads_.end());
  }

  // Values of checkpoints are not kept, except those that the rest of the forward reads: another checkpoint starts from
  // them. Random ones are, since nothing runs them twice.
  void find_checkpoints() {
    checkpoint_.assign(g_.values.size(), -1);
    must_save_.assign(g_.values.size(), false);
    handed_on_.assign(g_.values.size(), false);
    const auto& locations = g_.facts.locations;
    if (std::none_of(locations.begin(), locations.end(), [](const Location& l) { return l.checkpoint >= 0; })) return;
    std::vector<bool> live(g_.values.size());
    const auto keep = [&](ValueId v) {
      if (v != kNoValue) live[v] = handed_on_[v] = true;
    };
    for (size_t i = 0; i < results(); ++i) keep(g_.outputs[i].value);
    for (const Mutation& m : g_.mutations) keep(m.value);
    for (size_t i = g_.nodes.size(); i-- > 0;) {
      const Node& n = g_.nodes[i];
      if (node_backward_[i]) continue;
      const int32_t mine = checkpoint_of(g_, n);
      const bool once = is_random(n) || n.op->mutates;
      bool needed = once, opaque = false;  // such an operator knows whether autograd records it
      for (ValueId v : n.outs) opaque = opaque || (v != kNoValue && g_.type(v).opaque);
      for (ValueId v : n.outs) {
        if (v == kNoValue) continue;
        needed = needed || live[v];
        const Selection how = selection_of(g_, n);
        must_save_[v] = how == Selection::kSave && n.op->kind != OpKind::kView && n.op->kind != OpKind::kFactory;
        if (!once && !opaque && !frozen_[v] && how == Selection::kAgain) checkpoint_[v] = mine;
      }
      if (!needed) continue;
      for (const Arg& a : n.args)
        for_each_ref(a, [&](ValueId v) {
          live[v] = true;
          const Node* from = def(v);
          if (from && checkpoint_of(g_, *from) != mine) handed_on_[v] = true;
        });
    }
  }
  bool is_made_again(ValueId v) const { return checkpoint_[v] >= 0 && !handed_on_[v]; }

  int64_t bytes(ValueId v) const { return hinted_bytes(g_.type(v)); }

  // How many products and the like stand between the inputs and a value, at most.
  void find_stages() {
    stage_.assign(g_.values.size(), 0);
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Node& n = g_.nodes[i];
      if (is_random(n)) continue;  // its operands say how large it is
      int32_t stage = 0;
      for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { stage = std::max(stage, stage_[v]); });
      for (ValueId v : n.outs)
        if (v != kNoValue) stage_[v] = stage + is_extern(n);
    }
  }
  // A residual connection: to compute it again takes what an earlier layer made, which takes the layer before it, and
  // so on: the activations of all layers would lie in memory from the start of the backward.
  bool joins_stages(const Node& n, ValueId v) const {
    bool any = false;
    for (const Arg& a : n.args)
      for_each_ref(
          a, [&](ValueId x) { any = any || (stage_[x] > 0 && stage_[x] < stage_[v] && bytes(x) * 4 >= bytes(v)); });
    return any;
  }

  // A view that operators can read where its base lies.
  bool is_window(ValueId v) const {
    for (const Node* n = def(v); n && n->op->kind == OpKind::kView; n = def(v)) {
      const Prim prim = n->op->prim;
      const auto* base = n->args.empty() ? nullptr : std::get_if<Ref>(&n->args[0]);
      if (!base || base->id == kNoValue) return false;
      // (A reshape that is not dense is no copy.)
      if (prim == Prim::reshape ? !is_contiguous(g_.type(base->id)) && is_contiguous(g_.type(v))
                                : prim != Prim::permute && prim != Prim::slice)
        return false;
      v = base->id;
    }
    return true;
  }

  // What kernels on the GPU compute of numbers on the CPU, each for itself: none of them writes it down.
  bool is_number_beside_gpu(ValueId v) const {
    const Node* n = def(v);
    return uses_cuda_ && n && n->op->is_prim() && g_.type(v).sizes.empty() &&
           g_.type(v).device.type == DeviceType::kCPU && !must_save_[v] &&
           (n->op->kind == OpKind::kPointwise || n->op->kind == OpKind::kView || n->op->kind == OpKind::kFactory);
  }

  // In sixteenths of a byte moved; MinCut::kInfinite: never.
  int64_t recompute_cost(const Node& n, ValueId v, bool materialized) const {
    if (frozen_[v] || is_number_beside_gpu(v)) return 0;  // (the first: once, in the backward's own frozen part)
    if (is_made_again(v)) return 0;
    if (checkpoint_[v] >= 0) {
      bool inner = n.op->kind != OpKind::kView && n.op->kind != OpKind::kFactory;
      for (const Arg& a : n.args) for_each_ref(a, [&](ValueId x) { inner = inner || is_made_again(x); });
      if (inner) return MinCut::kInfinite;
    }
    if (is_random(n) || n.op->mutates || is_extern(n) || must_save_[v]) return MinCut::kInfinite;
    int64_t work = 0;
    switch (n.op->kind) {
      case OpKind::kView:
        return materialized && !is_window(v) ? bytes(v) : 0;
      case OpKind::kFactory:
        if (!is_any_of(n.op->prim, {Prim::uniform, Prim::normal})) return 0;
        work = bytes(v) * 16;
        break;
      case OpKind::kPointwise:
        work = bytes(v) * work_per_byte(*n.op);
        if (joins_stages(n, v)) work += bytes(v) * 24;
        break;
      case OpKind::kReduction: {
        int64_t read = bytes(v);
        for (const Arg& a : n.args) for_each_ref(a, [&](ValueId x) { read = std::max(read, bytes(x)); });
        work = read * 16;
        break;
      }
      case OpKind::kIndex:
        if (!n.op->moves) return MinCut::kInfinite;
        work = bytes(v) * 24;
        break;
      case OpKind::kScan:
      case OpKind::kRandom:
      case OpKind::kExtern:
        return MinCut::kInfinite;
    }
    return work + (materialized ? bytes(v) * 32 : 0);
  }
  int64_t save_cost(ValueId v) const {
    if (is_made_again(v) || is_number_beside_gpu(v) || lies_in_base_[v]) return MinCut::kInfinite;
    if (by_reference(v)) return bytes(v) * 4 + 1;
    return bytes(v) * (in_memory_[v] ? 32 : 48) + 1;
  }

  // Kept without a copy: an input or a result that eager keeps too.
  bool by_reference(ValueId v) const { return reference_input(v) >= 0 || reference_result(v) >= 0; }
  int32_t reference_input(ValueId v) const {
    const int32_t i = input_of_[v];
    if (i < 0 || mutated_[i] || unsteady_[i] || g_.inputs[i].kind == InputKind::kTangent) return -1;
    if (g_.inputs[i].kind == InputKind::kConstant || facts_.saved_inputs[i]) return i;
    return -1;
  }
  int32_t reference_result(ValueId v) const {
    for (size_t i = 0; i < results(); ++i)
      if (g_.outputs[i].kind == Output::Kind::kValue && g_.outputs[i].value == v && facts_.results[i].saved &&
          input_of_[v] < 0 && is_same_kind(g_.outputs[i].type, g_.type(v)))
        return static_cast<int32_t>(i);
    return -1;
  }
  // Views with gaps or expanded dims that a library reads in the backward. Saved by themselves they would be dense; made
  // again of the memory they lie as in the forward, which libraries ask for (the padded rows of attention's mask).
  // Products take any rows: for them the memory is saved where it is not much larger.
  void find_windows() {
    lies_in_base_.assign(g_.values.size(), false);
    const auto look = [&](ValueId read, bool any_rows) {
      ValueId base = read;
      while (def(base) && def(base)->op->kind == OpKind::kView) base = std::get<Ref>(def(base)->args[0]).id;
      for (ValueId v = read; v != base; v = std::get<Ref>(def(v)->args[0]).id)
        if (!ops::is_dense(g_.type(v).sizes, g_.type(v).strides) && !must_save_[v] && checkpoint_[v] < 0 &&
            (!any_rows || (is_window(v) && bytes(base) <= 2 * bytes(v))))
          lies_in_base_[v] = true;
    };
    for (size_t i = 0; i < g_.nodes.size(); ++i)
      if (const Node& n = g_.nodes[i]; node_backward_[i] && is_extern(n)) {
        const bool product = op::is_any_of(n.op->name, {op::mm, op::bmm, op::addmm, op::baddbmm});
        for (const Arg& a : n.args)
          for_each_ref(a, [&](ValueId v) {
            if (v != kNoValue) look(v, product);
          });
      }
  }

  void choose() {
    find_windows();
    // What lies in memory anyway: operands and results of extern operators, results of reductions, of the call.
    std::vector<bool> read_whole(g_.values.size());  // by an extern operator of the backward
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Node& n = g_.nodes[i];
      if (!is_extern(n) && n.op->kind != OpKind::kReduction && n.op->kind != OpKind::kScan) continue;
      if (!node_backward_[i])
        for (ValueId v : n.outs)
          if (v != kNoValue) in_memory_[v] = true;
      if (!is_extern(n)) continue;
      for (const Arg& a : n.args)
        for_each_ref(a, [&](ValueId v) {
          if (node_backward_[i])
            read_whole[v] = read_whole[v] || keep_[i];
          else
            in_memory_[v] = true;
        });
    }
    for (size_t i = 0; i < results(); ++i)
      if (g_.outputs[i].value != kNoValue) in_memory_[g_.outputs[i].value] = true;
    for (const Input& i : g_.inputs) in_memory_[i.value] = true;
    // And residual sums, which wait for the next layer.
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Node& n = g_.nodes[i];
      if (node_backward_[i] || n.op->kind != OpKind::kPointwise) continue;
      for (const Arg& a : n.args)
        for_each_ref(a, [&](ValueId v) {
          const Node* made = def(v);
          if (made && made->op->kind == OpKind::kPointwise && stage_[v] < stage_[n.outs[0]] && joins_stages(*made, v))
            in_memory_[v] = true;
        });
    }

    // Everything that the values read by the backward follow from.
    std::vector<int32_t> position(g_.values.size(), -1);
    std::vector<ValueId> all;
    for (ValueId v : backward_reads_)
      if (position[v] < 0) {
        position[v] = static_cast<int32_t>(all.size());
        all.push_back(v);
      }
    for (size_t i = 0; i < all.size(); ++i)
      if (const Node* n = def(all[i]))
        for (const Arg& a : n->args)
          for_each_ref(a, [&](ValueId v) {
            if (position[v] >= 0) return;
            position[v] = static_cast<int32_t>(all.size());
            all.push_back(v);
          });

    auto cut = [&](double patience, int64_t& saved) {
      const auto source = static_cast<int32_t>(2 * all.size()), sink = source + 1;
      MinCut cut(2 * all.size() + 2);
      for (size_t i = 0; i < all.size(); ++i) {
        const ValueId v = all[i];
        const auto in = static_cast<int32_t>(2 * i), out = in + 1;
        const Node* n = def(v);
        // What a library packed for itself is packed again; what it remembers of the forward is kept.
        cut.add_edge(in, out, g_.type(v).opaque && frozen_[v] ? MinCut::kInfinite : save_cost(v));
        int64_t again = MinCut::kInfinite;
        if (n) {
          again = recompute_cost(*n, v, read_whole[v]);
          if (again < MinCut::kInfinite) again = static_cast<int64_t>(static_cast<double>(again) * patience);
          if (again < MinCut::kInfinite)
            for (const Arg& a : n->args)
              for_each_ref(a, [&](ValueId x) { cut.add_edge(2 * position[x] + 1, in, MinCut::kInfinite); });
        }
        if (again > 0) cut.add_edge(source, in, again);
        if (std::binary_search(backward_reads_.begin(), backward_reads_.end(), v))
          cut.add_edge(out, sink, MinCut::kInfinite);
      }
      const std::vector<bool> source_side = cut.source_side(source, sink);
      if (cut.total() >= MinCut::kInfinite) throw Declined("training: a value that the backward needs cannot be kept");
      std::vector<bool> keep(g_.values.size());
      saved = 0;
      for (size_t i = 0; i < all.size(); ++i)
        if (source_side[2 * i] && !source_side[2 * i + 1]) {
          keep[all[i]] = true;
          if (!by_reference(all[i])) saved += bytes(all[i]);
        }
      return keep;
    };
    int64_t saved = 0;
    saved_ = cut(1, saved);
    const auto allowed = static_cast<int64_t>(static_cast<double>(saved) * options_.memory_budget);
    for (double patience = 0.5; saved > allowed && patience > 1e-4; patience /= 4) saved_ = cut(patience, saved);
  }

  void describe_results(Partition& p) {
    for (size_t i = 0; i < results(); ++i) {
      const Output& o = g_.outputs[i];
      const Joint::Result& fact = facts_.results[i];
      PartitionSignature::Result r{.kind = o.kind,
                                   .requires_grad = fact.requires_grad,
                                   .one_of_several = fact.one_of_several,
                                   .tangent = fact.tangent};
      r.sizes = o.type.sizes;
      r.strides = o.type.strides;
      r.offset = o.type.offset;
      if (o.kind == Output::Kind::kInputAlias) {
        r.index = forward_input_[o.base];
        FLASHOVER_CHECK(r.index >= 0) << "a result is memory of a tangent";
        const bool follows_input = fact.requires_grad && fact.tangent < 0;  // else it has this graph's history
        if (follows_input && fact.view_of_input != o.base)
          throw Declined("training: a result shares memory with an input and is not a view of it");
        if (fact.tangent >= 0 && mutated_[o.base])
          throw Declined("training: a Function gives back an input that is written");
        // Views are made by as_strided, whose gradient is another one where elements share memory.
        if (follows_input && !is_writable_layout(g_.type(g_.inputs[o.base].value)))
          throw Declined("training: a result is a view of an input whose elements share memory");
      } else if (fact.view_of_input >= 0) {
        throw Declined("training: a view of an input was copied");
      }
      if (o.kind == Output::Kind::kOutputAlias) r.index = o.base;
      if (o.kind == Output::Kind::kSlice && fact.requires_grad)
        throw Declined("training: results are parts of one memory in a way that autograd does not follow");
      if (o.owns_memory()) {
        r.kind = Output::Kind::kValue;
        r.index = static_cast<int32_t>(p.forward.outputs.size());
        p.forward.outputs.push_back(o);
      }
      p.results.push_back(std::move(r));
    }
    for (int32_t i : facts_.extra) p.extra.push_back(i < 0 ? -1 : forward_input_[i]);
    // Memory that several results share: the one that autograd knows is as large as the memory.
    for (size_t i = 0; i < results(); ++i) {
      const PartitionSignature::Result& r = p.results[i];
      if (r.kind != Output::Kind::kOutputAlias) continue;
      const PartitionSignature::Result& base = p.results[r.index];
      if (r.tangent >= 0 && (base.tangent >= 0 || r.offset != 0 || r.sizes != base.sizes || r.strides != base.strides))
        throw Declined("training: two results share memory and both lead into the backward");
    }
  }

  bool is_late(ValueId v) const { return input_of_[v] >= 0 && late_of_[input_of_[v]] >= 0; }

  // The backward as it grows: what each value of the joint graph is called there.
  struct Backward {
    Partition& p;
    std::vector<ValueId> to;

    void add_input(ValueId v, TensorType type, InputKind kind, const std::string& name,
                   PartitionSignature::BackwardInput::Kind from, int32_t index) {
      to[v] = p.backward.add_input(std::move(type), kind, name);
      p.backward_inputs.push_back({from, index});
    }
  };

  // `v` comes in from the forward: an input of it, one of its results, or one more result that is kept.
  void save(Backward& b, ValueId v) const {
    using Kind = PartitionSignature::BackwardInput::Kind;
    const int32_t input = is_late(v) ? late_of_[input_of_[v]] : reference_input(v);
    if (input >= 0) {
      const Input& in = g_.inputs[input];
      return b.add_input(v, g_.type(v), in.kind, in.name, Kind::kInput, forward_input_[input]);
    }
    if (const int32_t r = reference_result(v); r >= 0) {
      TensorType type = g_.outputs[r].type;
      type.offset = 0;
      return b.add_input(v, std::move(type), InputKind::kUser, "result" + std::to_string(r), Kind::kResult, r);
    }
    const auto output = static_cast<int32_t>(b.p.forward.outputs.size());
    TensorType type = kept_type(g_.type(v));
    b.p.forward.outputs.push_back({.value = v, .type = type});
    b.p.saved_bytes += bytes(v);
    b.add_input(v, std::move(type), InputKind::kUser, "saved" + std::to_string(b.p.backward_inputs.size()),
                Kind::kSaved, output);
  }

  void copy_node(Backward& b, const Node& n) const {
    Node copy = n;
    for (Arg& a : copy.args) {
      if (auto* r = std::get_if<Ref>(&a); r && r->id != kNoValue) r->id = b.to[r->id];
      if (auto* l = std::get_if<RefList>(&a))
        for (Ref& r : *l)
          if (r.id != kNoValue) r.id = b.to[r.id];
    }
    for (ValueId& v : copy.outs) {
      if (v == kNoValue) continue;
      const ValueId made = b.p.backward.add_value(g_.type(v));
      // Of an operator with several results one may be saved, and is not needed twice.
      if (b.to[v] == kNoValue) b.to[v] = made;
      v = made;
    }
    b.p.backward.nodes.push_back(std::move(copy));
  }

  // Values computed again stand right before their first reader, so they live as briefly as can be.
  void need(Backward& b, ValueId root) const {
    std::vector<ValueId> stack = {root};
    while (!stack.empty()) {
      const ValueId v = stack.back();
      if (b.to[v] == kNoValue && (saved_[v] || is_late(v))) save(b, v);
      if (b.to[v] != kNoValue) {
        stack.pop_back();
        continue;
      }
      const Node* n = def(v);
      FLASHOVER_CHECK(n && !is_random(*n)) << "%" << v << " is neither saved nor computed again";
      const size_t before = stack.size();
      for (const Arg& a : n->args)
        for_each_ref(a, [&](ValueId x) {
          if (b.to[x] == kNoValue) stack.push_back(x);
        });
      if (stack.size() != before) continue;
      copy_node(b, *n);
      stack.pop_back();
    }
  }

  void build_backward(Partition& p) const {
    Backward b{p, std::vector<ValueId>(g_.values.size(), kNoValue)};
    // In order of first use, saved values come in as the walk below meets them; tangents first.
    for (size_t t = 0; t < facts_.tangents.size(); ++t) {
      const Input& in = g_.inputs[facts_.tangents[t]];
      b.add_input(in.value, g_.type(in.value), InputKind::kUser, in.name,
                  PartitionSignature::BackwardInput::Kind::kTangent, static_cast<int32_t>(t));
    }
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      if (!node_backward_[i] || !keep_[i]) continue;
      for (const Arg& a : g_.nodes[i].args) for_each_ref(a, [&](ValueId v) { need(b, v); });
      copy_node(b, g_.nodes[i]);
    }
    add_gradients(b);
    save_data_sizes(b);
  }

  // The sizes that follow from data are those of what is saved; where nothing has such a size, what found it is.
  void save_data_sizes(Backward& b) const {
    for (const auto& [size, value] : untold_data_sizes(b.p.backward, g_)) {
      if (value == kNoValue || b.to[value] != kNoValue)
        throw Declined("training: nothing tells the backward the size " + size.str());
      save(b, value);
    }
  }

  void add_gradients(Backward& b) const {
    std::vector<Output>& outputs = b.p.backward.outputs;
    std::unordered_map<ValueId, int32_t> output_of;
    for (size_t i = 0; i < facts_.gradients.size(); ++i) {
      const Output& o = g_.outputs[results() + i];
      PartitionSignature::Gradient grad{.input = forward_input_[facts_.gradients[i]], .depends = facts_.depends[i]};
      const int32_t in = input_of_[o.value];
      if (in >= 0 && tangent_of_[in] >= 0) {
        grad.tangent = tangent_of_[in];
      } else {
        need(b, o.value);
        // The same tensor for several inputs, as in eager: the engine, which accumulates it, sees that it is shared.
        const auto [it, fresh] = output_of.try_emplace(o.value, static_cast<int32_t>(outputs.size()));
        if (fresh) {
          Output out = o;
          out.value = b.to[o.value];
          outputs.push_back(std::move(out));
        }
        grad.output = it->second;
      }
      b.p.gradients.push_back(std::move(grad));
    }
  }

  void build_forward(Partition& p) {
    Graph& f = p.forward;
    std::vector<bool> live(g_.values.size());
    for (const Output& o : f.outputs) live[o.value] = true;
    for (const Mutation& m : g_.mutations)
      if (!rewritten_[m.input]) live[m.value] = true;
    std::vector<bool> keep(g_.nodes.size());
    for (size_t i = g_.nodes.size(); i-- > 0;) {
      const Node& n = g_.nodes[i];
      if (node_backward_[i]) continue;
      bool needed = is_random(n) || n.op->mutates || n.outs.empty();
      for (ValueId v : n.outs) needed = needed || (v != kNoValue && live[v]);
      if (!needed) continue;
      keep[i] = true;
      for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { live[v] = true; });
    }
    std::vector<ValueId> to(g_.values.size(), kNoValue);
    for (const Input& in : g_.inputs) {
      if (in.kind == InputKind::kTangent) continue;
      to[in.value] = f.add_input(g_.type(in.value), in.kind, in.name);
      f.inputs.back().requires_grad = in.requires_grad;
    }
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      if (!keep[i]) continue;
      Node n = g_.nodes[i];
      for (Arg& a : n.args) {
        if (auto* r = std::get_if<Ref>(&a); r && r->id != kNoValue) r->id = to[r->id];
        if (auto* l = std::get_if<RefList>(&a))
          for (Ref& r : *l)
            if (r.id != kNoValue) r.id = to[r.id];
      }
      for (ValueId& v : n.outs) {
        if (v == kNoValue) continue;
        to[v] = f.add_value(g_.type(v));
        v = to[v];
      }
      f.nodes.push_back(std::move(n));
    }
    for (Output& o : f.outputs) o.value = to[o.value];
    for (const Mutation& m : g_.mutations)
      if (!rewritten_[m.input]) f.mutations.push_back({forward_input_[m.input], to[m.value]});
  }

  const Graph& g_;
  const Joint& facts_;
  const PartitionOptions options_;
  std::vector<int32_t> producer_, input_of_, forward_input_, tangent_of_;
  std::vector<int32_t> late_of_;     // of inputs: the one whose memory the backward reads here, or -1
  std::vector<bool> unsteady_;       // of inputs: may be written without a version
  std::vector<int32_t> checkpoint_;  // that made the value and could again, or -1
  std::vector<bool> handed_on_;      // read outside of its checkpoint
  std::vector<bool> must_save_;      // so the program's policy says
  bool uses_cuda_ = uses_cuda(g_);
  std::vector<bool> lies_in_base_;  // windows that are saved as the memory they are of
  std::vector<int32_t> stage_;
  std::vector<bool> frozen_, backward_, node_backward_, keep_, mutated_, rewritten_, in_memory_, saved_;
  std::vector<ValueId> backward_reads_;  // sorted; values without tangents that the backward reads
};

// Sizes that the backward computes with, and that are none of what it is given (a pooled size says little of the one
// before): those of saved values without elements, two each, so that no stride is a product of many. So are sizes from
// data that only results which are memory of an input have: where the program gives no tangent for one, nothing else
// tells how large the zeros in its place are.
void save_sizes(Partition& p) {
  std::vector<sym::Expr> missing;
  const auto collect = [&](const Sizes& sizes) {
    for (sym::Expr e : sizes)
      if (!e.is_const()) sym::collect_vars(e, missing);
  };
  const auto collect_data = [&](const Sizes& sizes) {
    for (sym::Expr e : sizes)
      if (sym::has_data_size(e)) collect({e});
  };
  for (const PartitionSignature::Result& r : p.results) {
    collect_data(r.sizes);
    collect_data(r.strides);
    collect_data({r.offset});
  }
  for (const Value& v : p.backward.values) {
    collect(v.type.sizes);
    collect(v.type.strides);
    collect({v.type.offset});
  }
  for (const Output& o : p.backward.outputs) collect(o.type.sizes);
  for (const Node& n : p.backward.nodes)
    for (const Arg& a : n.args) {
      if (const auto* e = std::get_if<sym::Expr>(&a)) collect({*e});
      if (const auto* l = std::get_if<Sizes>(&a)) collect(*l);
    }
  for (size_t i = 0; i < p.backward.inputs.size(); ++i) {
    const bool is_tangent = p.backward_inputs[i].kind == PartitionSignature::BackwardInput::Kind::kTangent;
    for (sym::Expr e : p.backward.type(p.backward.inputs[i].value).sizes)
      if (!is_tangent || !sym::has_data_size(e)) std::erase(missing, e);
  }
  for (const PartitionSignature::Result& r : p.results)
    if (r.kind == Output::Kind::kValue)
      for (sym::Expr e : r.sizes)
        if (sym::has_data_size(e)) std::erase(missing, e);
  if (missing.empty() || p.forward.inputs.empty()) return;
  for (size_t i = 0; i < missing.size(); i += 2) {
    TensorType type;
    type.dtype = DType::kU8;
    type.device = p.forward.type(p.forward.inputs.front().value).device;
    type.sizes = {0, missing[i]};
    if (i + 1 < missing.size()) type.sizes.push_back(missing[i + 1]);
    type.strides = contiguous_strides(type.sizes);
    const ValueId made =
        p.forward.add_node(ops::find(Prim::full), {type.sizes, sym::Expr(0), type.dtype, type.device}, {type}).outs[0];
    p.backward_inputs.push_back(
        {PartitionSignature::BackwardInput::Kind::kSaved, static_cast<int32_t>(p.forward.outputs.size())});
    p.forward.outputs.push_back({.value = made, .type = type});
    p.backward.add_input(std::move(type), InputKind::kUser, "sizes");
  }
}

class Reader {
 public:
  explicit Reader(const std::vector<int64_t>& encoded) : encoded_(encoded) {}
  int64_t next() {
    if (at_ >= encoded_.size()) throw UserError("partition: too few integers");
    return encoded_[at_++];
  }
  int32_t small() {
    const int64_t n = next();
    if (n < -1 || n > INT32_MAX) throw UserError("partition: a bad index");
    return static_cast<int32_t>(n);
  }
  sym::Expr expression() {  // the text of one over sizes (empty: a number), and its value or hint
    std::string text(count(), ' ');
    for (char& c : text) c = static_cast<char>(next());
    const int64_t number = next();
    return text.empty() ? sym::Expr(number) : sym::parse(text);
  }
  size_t count() {
    const int64_t n = next();
    if (n < 0 || static_cast<size_t>(n) > encoded_.size()) throw UserError("partition: a bad count");
    return static_cast<size_t>(n);
  }
  template <typename T>
  T kind(T last) {
    const int64_t n = next();
    if (n < 0 || n > static_cast<int64_t>(last)) throw UserError("partition: a bad kind");
    return static_cast<T>(n);
  }
  bool at_end() const { return at_ == encoded_.size(); }

 private:
  const std::vector<int64_t>& encoded_;
  size_t at_ = 0;
};

}  // namespace

Partition partition(const Graph& joint, const Joint& facts, const PartitionOptions& options) {
  Partition p = Partitioner(joint, facts, options).run();
  save_sizes(p);
  return p;
}

std::vector<int64_t> encode(const PartitionSignature& p) {
  std::vector<int64_t> out;
  const auto list = [&](const auto& l) {
    out.push_back(static_cast<int64_t>(l.size()));
    out.insert(out.end(), l.begin(), l.end());
  };
  const auto expression = [&](sym::Expr e) { list(e.is_const() ? std::string() : e.str()), out.push_back(e.hint()); };
  out.push_back(static_cast<int64_t>(p.results.size()));
  for (const PartitionSignature::Result& r : p.results) {
    out.insert(out.end(), {static_cast<int64_t>(r.kind), r.index, r.requires_grad, r.one_of_several, r.tangent});
    expression(r.offset);
    for (const Sizes* part : {&r.sizes, &r.strides}) {
      out.push_back(static_cast<int64_t>(part->size()));
      for (sym::Expr e : *part) expression(e);
    }
  }
  list(p.extra);
  out.push_back(static_cast<int64_t>(p.backward_inputs.size()));
  for (const PartitionSignature::BackwardInput& i : p.backward_inputs)
    out.insert(out.end(), {static_cast<int64_t>(i.kind), i.index});
  out.push_back(static_cast<int64_t>(p.gradients.size()));
  for (const PartitionSignature::Gradient& g : p.gradients) {
    out.insert(out.end(), {g.input, g.output, g.tangent});
    list(g.depends);
  }
  out.push_back(p.saved_bytes);
  return out;
}

void decode(const std::vector<int64_t>& encoded, PartitionSignature& p) {
  Reader in(encoded);
  p.results.resize(in.count());
  for (PartitionSignature::Result& r : p.results) {
    r.kind = in.kind(Output::Kind::kOutputAlias);
    r.index = in.small();
    r.requires_grad = in.next() != 0;
    r.one_of_several = in.next() != 0;
    r.tangent = in.small();
    r.offset = in.expression();
    for (Sizes* part : {&r.sizes, &r.strides}) {
      part->resize(in.count());
      for (sym::Expr& e : *part) e = in.expression();
    }
  }
  p.extra.resize(in.count());
  for (int32_t& i : p.extra) i = in.small();
  p.backward_inputs.resize(in.count());
  for (PartitionSignature::BackwardInput& i : p.backward_inputs) {
    i.kind = in.kind(PartitionSignature::BackwardInput::Kind::kTangent);
    i.index = in.small();
  }
  p.gradients.resize(in.count());
  for (PartitionSignature::Gradient& g : p.gradients) {
    g.input = in.small();
    g.output = in.small();
    g.tangent = in.small();
    g.depends.resize(in.count());
    for (int32_t& d : g.depends) d = in.small();
  }
  p.saved_bytes = in.next();
  if (!in.at_end()) throw UserError("partition: too many integers");
}

}  // namespace flashover::graph
