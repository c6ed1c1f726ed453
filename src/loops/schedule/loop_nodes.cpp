// Decides which values are realised, counts what computing a value again would cost, and notes what each node reads.
#include "loops/schedule/loop_nodes.h"

#include <algorithm>
#include <ranges>
#include <span>
#include <unordered_map>

#include "base/check.h"
#include "graph/analysis/symbolic.h"
#include "graph/analysis/unpacking.h"
#include "loops/schedule/scatter.h"
#include "ops/args.h"
#include "ops/names.h"
#include "sym/quotient.h"

namespace flashover::loops {
namespace {

using graph::Node;

bool is_view(const ops::OpRow* op) { return op->is_prim() && op->kind == ops::OpKind::kView; }

// Elements; of sizes that are symbols a typical number, for what is decided by cost. 0 where there are none for sure.
int64_t count(const TensorType& t) {
  double n = 1;
  for (sym::Expr s : t.sizes) n *= static_cast<double>(s.hint());
  if (n == 0 && !t.numel().is_const(0)) return 1;
  return static_cast<int64_t>(std::min(n, 1e18));
}

bool is_called(const Node& n) { return !n.op->is_prim() && !n.op->generated; }

struct LoopRole {
  LoopNode::Kind kind = LoopNode::Kind::kMap;
  bool own_loops = false;  // cannot be computed in place
};
LoopRole loop_role_of(const Node& n) {
  if (n.op->kind == ops::OpKind::kReduction) return {LoopNode::Kind::kReduce, true};
  if (n.op->kind == ops::OpKind::kScan) return {LoopNode::Kind::kScan, true};
  if (is_scatter(n.op)) return {LoopNode::Kind::kScatter, true};
  return {};
}

struct Use {
  ValueId root;
  double points;
};

bool is_window(const Node& n) { return n.op->prim == Prim::max_pool || n.op->prim == Prim::avg_pool; }

constexpr int64_t kMostSteps = 192;  // of what is computed in place

// What computing an element of its result takes, beside its operands.
int64_t steps_of(const Node& n) {
  constexpr int64_t kEachPlace = 4;  // of a window: an index, a mask, a load, what it is put together by
  return is_window(n) ? kEachPlace * window_size(n) : std::max<int64_t>(1, n.op->cost);
}

// 16-bit numbers that lie in memory, made wide: a kernel reads half as much as it would of the wide ones, which would lie
// beside them.
bool widens_memory(const graph::Graph& g, const Node& n) {
  return n.op->prim == Prim::convert && is_reduced(g.type(ops::as_value(n.args[0])).dtype) &&
         g.type(n.outs[0]).dtype == DType::kF32;
}

// Weights of 8 and 4 bits: what is unpacked of them takes twice their memory or more, and as much longer to read; and a
// step or two are not worth a second copy. (On a CPU unpacking them costs more than reading.)
bool is_unpacked(const graph::Graph& g, const std::vector<int64_t>& numel, const std::vector<ValueId>& loads,
                 const Node& n, double cost) {
  const ValueId v = n.outs[0];
  const auto bytes_of = [&](ValueId x) {
    return static_cast<double>(numel[static_cast<size_t>(x)]) * info(g.type(x).dtype).bytes;
  };
  if (g.type(v).device.type == DeviceType::kCPU) return false;
  double all = 0, narrow = 0;
  for (ValueId l : loads) {
    all += bytes_of(l);
    if (const DType d = g.type(l).dtype; info(d).bytes == 1 && d != DType::kBool) narrow += bytes_of(l);
  }
  // (Scales take some: a hundredth of it with one for a row.)
  return 2 * narrow > all && bytes_of(v) >= (cost <= 2 ? 0.95 : 1.9) * all;
}

// Reading memory at places that were read from memory goes lane by lane: not again for each row of a larger tensor (a
// table of positions' biases, added to the scores of each window).
bool looked_up_again(const TensorType& t, int64_t numel, double times) {
  constexpr int64_t kLeast = 256;
  return t.device.type == DeviceType::kCPU && numel >= kLeast && times >= 4;
}

// How many elements a scatter stores.
double stored_points(const graph::Graph& g, const Node& scatter) {
  double points = 1;
  for (sym::Expr size : scatter_domain(g, scatter).sizes) points *= static_cast<double>(size.hint());
  return points;
}

// GPU: what is made of a reduction's results, one of each, is made where they are, if it is a vector that each row of a
// later reduction reads as a whole (a product of one row). loads: what it is made of in memory.
bool finishes_sum(const LoopProgram& p, std::span<const int64_t> numel, std::span<const ValueId> loads, ValueId v,
                  std::span<const Use> uses) {
  if (p.graph.type(v).device.type != DeviceType::kCUDA || numel[v] < 2) return false;
  const auto reduction = [&](ValueId of) -> const Node* {
    const int32_t node = p.producers.of[of].node;
    const Node* n = node < 0 ? nullptr : &p.graph.nodes[node];
    return n && n->op->is_prim() && loop_role_of(*n).kind == LoopNode::Kind::kReduce ? n : nullptr;
  };
  const auto by_all_rows = [&](const Use& u) {
    const Node* n = reduction(u.root);
    return n && numel[u.root] > 1 && numel[ops::as_value(n->args[0])] == numel[u.root] * numel[v];
  };
  return std::ranges::any_of(loads, [&](ValueId l) { return numel[l] == numel[v] && reduction(l); }) &&
         std::ranges::any_of(uses, by_all_rows);
}

void leave_out_unpacked(LoopProgram& p) {
  std::vector<bool> frozen(p.facts.size());
  for (size_t v = 0; v < frozen.size(); ++v) frozen[v] = p.facts[v].frozen;
  const std::vector<bool> again = graph::unpacked_in_each_call(p.graph, frozen);
  for (size_t v = 0; v < again.size(); ++v) p.facts[v].frozen = frozen[v] && !again[v];
}

class LoopNodeBuilder {
 public:
  explicit LoopNodeBuilder(const graph::Graph& g) : p_(g), g_(g) {}

  LoopProgram run() {
    p_.facts.resize(g_.values.size());
    p_.memory.resize(g_.values.size());
    p_.views.resize(g_.values.size());
    numel_.resize(g_.values.size());
    for (size_t v = 0; v < g_.values.size(); ++v) numel_[v] = g_.values[v].type.opaque ? 0 : count(g_.values[v].type);
    find_frozen();
    find_required();
    weigh();
    decide();
    for (size_t n = 0; n < g_.nodes.size(); ++n) {
      const Node& node = g_.nodes[n];
      if (!node.op->is_prim()) {
        p_.extern_nodes.push_back(static_cast<int32_t>(n));
      } else if (p_.facts[node.outs[0]].realised) {
        make(static_cast<int32_t>(n), node.outs[0]);
      }
    }
    return std::move(p_);
  }

 private:
  ValueFacts& fact(ValueId v) { return p_.facts[v]; }
  const TensorType& type(ValueId v) const { return g_.values[v].type; }

  void realise(ValueId v, bool keep_strides) {
    fact(v).realised = true;
    TensorType& m = p_.memory[v] = type(v);
    m.offset = 0;
    if (!keep_strides && !ops::is_dense(m.sizes, m.strides)) m.strides = ops::dense_like(m.sizes, m.strides);
  }

  void find_frozen() {
    std::vector<bool> mutated(g_.inputs.size());
    for (const graph::Mutation& m : g_.mutations) mutated[m.input] = true;
    for (size_t i = 0; i < g_.inputs.size(); ++i) {
      const graph::Input& in = g_.inputs[i];
      fact(in.value).frozen = in.kind != graph::InputKind::kUser && !mutated[i];
      realise(in.value, true);
    }
    // What leaves the call is made by the call, and so is what is made of it.
    std::vector<bool> leaves(g_.values.size());
    for (const graph::Output& o : g_.outputs)
      if (o.owns_memory()) leaves[o.value] = true;
    for (const graph::Mutation& m : g_.mutations) leaves[m.value] = true;
    // (Operators that find sizes run between the parts of a plan, which hand their tensors on.)
    std::vector<bool> handed(g_.values.size());
    for (const Node& n : g_.nodes | std::views::reverse) {
      const bool views = is_view(n.op) && handed[n.outs[0]];
      for (const Arg& a : n.args)
        graph::for_each_ref(a, [&](ValueId u) { handed[u] = handed[u] || views || n.op->data_sized; });
    }
    for (size_t v = 0; v < handed.size(); ++v) leaves[v] = leaves[v] || handed[v];
    for (const Node& n : g_.nodes) {
      bool frozen = !n.op->once() && !n.op->on_clones && !graph::is_symbolic(g_, n), has_operand = false;
      for (const Arg& a : n.args)
        graph::for_each_ref(a, [&](ValueId u) {
          frozen = frozen && fact(u).frozen;
          has_operand = true;
        });
      // An extern without operands (an allocation, a random number) says nothing about when it may run again.
      if (!n.op->is_prim() && !has_operand) frozen = false;
      for (ValueId v : n.outs)
        if (v != kNoValue && leaves[v]) frozen = false;
      for (ValueId v : n.outs)
        if (v != kNoValue) fact(v).frozen = frozen;
      if (n.op->is_prim())
        for (ValueId v : n.outs)
          if (v != kNoValue && info(type(v).dtype).complex) throw Declined("complex numbers in " + n.op->name);
    }
    leave_out_unpacked(p_);
  }

  void require(ValueId v) {
    fact(v).required = true;
    p_.views[v] = {};  // it has its own memory
    if (!fact(v).realised) realise(v, false);
  }

  // v as a strided window onto the memory of a value that is not a view, or of a view that is (or may as well be)
  // copied as a whole; empty when it is not one with v's own strides.
  Strided strided_view(ValueId v) {
    std::vector<ValueId> bases;  // the nearest first
    for (ValueId b = v; p_.producers.of[b].node >= 0 && is_view(node_of(b).op);)
      bases.push_back(b = ops::as_value(node_of(b).args[0]));
    for (size_t i = bases.size(); i-- > 0;) {
      const bool last = i + 1 == bases.size();
      if (!last && !fact(bases[i]).required && !sym::known_eq(type(bases[i]).numel(), type(v).numel())) continue;
      if (!last && p_.views[bases[i]].base != kNoValue) continue;
      if (Strided s = window_of(bases[i], v); s.base != kNoValue) return s;
    }
    return {};
  }
  Strided window_of(ValueId base, ValueId v) {
    Strided s;
    if (type(base).opaque) return s;
    Index at;
    const Sizes& sizes = type(v).sizes;
    for (size_t i = 0; i < sizes.size(); ++i)
      at.push_back(sizes[i].is_const(1) ? sym::Expr(0) : loop_var('v', static_cast<int>(i), sizes[i]));
    // Only views lie between v and base, so the body is the one load of base.
    struct BaseSource : RealisedValues {
      ValueId base;
      Index found;
      std::optional<Id> fetch(Emitter& e, ValueId v, const Index& at) override {
        if (v != base) return std::nullopt;
        found = at;
        return e.constant(DType::kI64, int64_t{0});
      }
    } source;
    source.base = base;
    std::vector<Instr> body;
    std::vector<std::string> errors;
    Emitter e(g_, p_.producers, source, body, errors);
    e.compute(v, at);
    TensorType memory = fact(base).realised ? p_.memory[base] : type(base);
    if (!fact(base).realised && !ops::is_dense(memory.sizes, memory.strides))
      memory.strides = ops::dense_like(memory.sizes, memory.strides);
    sym::Expr address = flatten(source.found, memory.strides), rest = address;
    for (size_t i = 0; i < sizes.size(); ++i) {
      sym::Expr stride = type(v).strides[i];
      if (!sizes[i].is_const(1)) {
        auto c = sym::coefficient(address, at[i]);
        if (!c || !sym::known_eq(*c, stride)) return {};
        rest = rest - *c * at[i];
      }
      s.strides.push_back(stride);
    }
    if (!only_sizes(rest)) return {};
    s.base = base;
    s.offset = rest;
    return s;
  }
  // An output that is a view of what an extern call returned needs no copy, unless another output is in that memory
  // too.
  bool view_of_extern(const graph::Output& o) {
    if (p_.producers.of[o.value].node < 0 || fact(o.value).realised ||
        !same_sizes(written_strides(o), type(o.value).strides))
      return false;
    Strided s = strided_view(o.value);
    if (s.base == kNoValue || p_.producers.of[s.base].node < 0 || !is_called(node_of(s.base)) || fact(s.base).frozen)
      return false;
    if (!sym::known_eq(s.offset, o.kind == graph::Output::Kind::kSlice ? sym::Expr(0) : o.type.offset)) return false;
    for (const graph::Output& other : g_.outputs)
      if (&other != &o && other.owns_memory() && (other.value == s.base || p_.views[other.value].base == s.base))
        return false;
    p_.views[o.value] = s;
    fact(s.base).used = true;
    return true;
  }
  const Node& node_of(ValueId v) const { return g_.nodes[p_.producers.of[v].node]; }

  void find_required() {
    for (const Node& n : g_.nodes) {
      if (n.op->is_prim()) continue;
      for (ValueId v : n.outs)
        if (v != kNoValue) {
          realise(v, true);
          if (n.op->data_sized) fact(v).used = true;  // its sizes are
        }
    }
    // Outputs first: views for extern operands are cut out of the memory as it lies in the end.
    for (const graph::Output& o : g_.outputs) {
      if (!o.owns_memory()) continue;
      fact(o.value).used = true;
      if (view_of_extern(o)) continue;
      if (p_.producers.of[o.value].node >= 0 && !is_called(node_of(o.value))) {
        require(o.value);
        // Of several the first is written, also if it could have been a view but for this one.
        const auto first = std::find_if(g_.outputs.begin(), g_.outputs.end(), [&](const graph::Output& other) {
          return other.owns_memory() && other.value == o.value;
        });
        p_.memory[o.value].strides = written_strides(*first);
      }
    }
    for (const Node& n : g_.nodes) {
      if (n.op->is_prim()) continue;
      for (const Arg& a : n.args)
        graph::for_each_ref(a, [&](ValueId u) {
          fact(u).used = true;
          if (fact(u).realised || p_.views[u].base != kNoValue) {
            if (p_.views[u].base == kNoValue) fact(u).required = true;
            return;
          }
          Strided s = strided_view(u);
          if (s.base == kNoValue) {
            require(u);
          } else {
            p_.views[u] = s;
            fact(s.base).used = true;
            require(s.base);
          }
        });
    }
    for (const graph::Mutation& m : g_.mutations) {
      fact(m.value).used = true;
      if (!fact(m.value).realised) require(m.value);
    }
    for (const Node& n : g_.nodes)
      if (n.op->is_prim() && loop_role_of(n).own_loops && !fact(n.outs[0]).realised) realise(n.outs[0], false);
  }

  // Forward: what it costs to compute an element in place, and from how many values of full size.
  void weigh() {
    cost_.resize(g_.values.size());
    loads_.resize(g_.values.size());
    looks_up_.resize(g_.values.size());
    steps_.resize(g_.values.size());
    seen_.assign(g_.values.size(), kNoValue);
    for (size_t v = 0; v < g_.values.size(); ++v)
      if (fact(static_cast<ValueId>(v)).realised) loads_[v] = {static_cast<ValueId>(v)};
    for (const Node& n : g_.nodes) {
      if (!n.op->is_prim()) continue;
      const ValueId v = n.outs[0];
      if (is_window(n)) realise_for_window(n);
      double cost = n.op->cost;
      if (!is_none(Arg(n.args[0])) && is_window(n)) cost = static_cast<double>(window_size(n)) * 2;
      std::vector<ValueId> loads;
      bool looks_up = n.op->prim == Prim::index || n.op->prim == Prim::gather;
      for (const Arg& a : n.args)
        graph::for_each_ref(a, [&](ValueId u) {
          looks_up |= looks_up_[u] && !fact(u).realised;
          if (!fact(u).realised)
            cost += cost_[u] * std::min(1.0, static_cast<double>(numel_[u]) /
                                                 static_cast<double>(std::max<int64_t>(numel_[v], 1)));
          for (ValueId l : loads_[u])
            if (loads.size() < 16 && std::find(loads.begin(), loads.end(), l) == loads.end()) loads.push_back(l);
        });
      cost_[v] = std::min(cost, 1e6);
      looks_up_[v] = looks_up;
      if (!fact(v).realised && !too_many_steps(n, v)) {
        loads_[v] = std::move(loads);
      } else if (!fact(v).realised) {
        realise(v, false);
        loads_[v] = {v};
      }
    }
  }

  // What computing v in place takes, in scalar operations by their cost, equal ones once. A body of thousands takes the
  // compiler minutes (g++ 12: 0.1 s for 200 additions with a load each, 8 s for 1600), and reading it recurses as deep
  // as it is long: its middle is realised, from where the fuser may make several kernels of it. Views and widened
  // values only when it must be: what they are made of is smaller, or as good.
  bool too_many_steps(const Node& n, ValueId v) {
    int64_t steps = steps_of(n);
    for (const Arg& a : n.args) graph::for_each_ref(a, [&](ValueId u) { steps += fact(u).realised ? 0 : steps_[u]; });
    if (steps > kMostSteps) steps = distinct_steps(v);  // the sum counts twice what two operands share
    steps_[v] = steps;
    if (p_.views[v].base != kNoValue) return false;  // a window onto memory, as externs take it
    return steps > (is_view(n.op) || widens(n, v) ? 2 * kMostSteps : kMostSteps);
  }
  // A window's body holds what it reads once for each of its places.
  void realise_for_window(const Node& n) {
    const ValueId x = ops::as_value(n.args[0]);
    if (fact(x).realised || steps_[x] * window_size(n) <= kMostSteps) return;
    realise(x, false);
    loads_[x] = {x};
  }
  int64_t distinct_steps(ValueId root) {
    int64_t steps = 0;
    std::vector<ValueId> stack = {root};
    seen_[root] = root;
    while (!stack.empty() && steps <= 2 * kMostSteps) {
      const ValueId v = stack.back();
      stack.pop_back();
      if (p_.producers.of[v].node < 0) continue;
      steps += steps_of(node_of(v));
      for (const Arg& a : node_of(v).args)
        graph::for_each_ref(a, [&](ValueId u) {
          if (fact(u).realised || seen_[u] == root) return;
          seen_[u] = root;
          stack.push_back(u);
        });
    }
    return steps;
  }

  // Backward: which values that could be computed in place are realised all the same.
  void decide() {
    std::vector<std::vector<Use>> uses(g_.values.size());
    for (size_t i = g_.nodes.size(); i-- > 0;) {
      const Node& n = g_.nodes[i];
      if (!n.op->is_prim()) continue;
      const ValueId v = n.outs[0];
      if (!fact(v).used) {
        fact(v).realised = false;
        continue;
      }
      if (!fact(v).realised && !widens(n, v) && worth_realising(n, v, uses[v])) realise(v, false);
      std::vector<Use> mine;
      if (fact(v).realised) {
        double points = static_cast<double>(numel_[v]);
        if (loop_role_of(n).kind == LoopNode::Kind::kReduce)
          points = static_cast<double>(numel_[ops::as_value(n.args[0])]);
        if (is_scatter(n.op)) points = stored_points(g_, n);
        mine = {{v, points}};
      } else {
        mine = uses[v];
      }
      const double times = is_window(n) ? static_cast<double>(window_size(n)) : 1;
      for (const Arg& a : n.args)
        graph::for_each_ref(a, [&](ValueId u) {
          fact(u).used = true;
          if (fact(u).realised) return;  // decided; thousands may read it
          for (const Use& use : mine) {
            auto it = std::find_if(uses[u].begin(), uses[u].end(), [&](const Use& x) { return x.root == use.root; });
            if (it == uses[u].end()) {
              uses[u].push_back({use.root, use.points * times});
            } else {
              it->points += use.points * times;
            }
          }
        });
    }
  }

  // What it widens takes less memory, and is as good.
  bool widens(const Node& n, ValueId v) const {
    if (n.op->prim != Prim::convert) return false;
    const ValueId from = ops::as_value(n.args[0]);
    return info(type(from).dtype).bytes < info(type(v).dtype).bytes && p_.producers.of[from].node >= 0 &&
           node_of(from).op->is_prim();
  }

  bool worth_realising(const Node& n, ValueId v, const std::vector<Use>& uses) {
    const double size = static_cast<double>(std::max<int64_t>(numel_[v], 1));
    double own = is_window(n) ? cost_[v] : n.op->cost, points = 0, load_size = 0;
    int big = 0;
    bool leaves_frozen = false;
    for (const Use& u : uses) {
      points = std::max(points, u.points);
      leaves_frozen |= fact(v).frozen && !fact(u.root).frozen;
    }
    for (ValueId l : loads_[v]) {
      big += static_cast<double>(numel_[l]) * 2 >= size;
      load_size += static_cast<double>(numel_[l]);
    }
    if (leaves_frozen && own > 0) {
      if (loads_[v].empty()) return cost_[v] >= 6;
      const bool widens = loads_[v].size() == 1 && widens_memory(g_, n), once = points <= 2 * size;
      if (uses.size() == 1 && (widens || (once && is_unpacked(g_, numel_, loads_[v], n, cost_[v])))) return false;
      return size <= std::max(2 * load_size, 65536.0);
    }
    if (looks_up_[v] && looked_up_again(type(v), numel_[v], points / size)) return true;
    if (own == 0) return false;  // views and constants are free
    if (finishes_sum(p_, numel_, loads_[v], v, uses)) return true;
    if (cost_[v] <= 4 && big <= 1) return false;  // cheaper than writing and reading it
    if (uses.size() > 1) return true;
    const double amplified = points / size;
    return amplified >= 2 && (cost_[v] >= 10 || big >= 3);
  }

  // ---- nodes
  struct AnalysisSource : RealisedValues {
    const LoopProgram& p;
    explicit AnalysisSource(const LoopProgram& program) : p(program) {}
    std::optional<Id> fetch(Emitter& e, ValueId v, const Index& at) override {
      if (!p.facts[v].realised) return std::nullopt;
      return e.load(v, p.memory[v].dtype, flatten(at, p.memory[v].strides));
    }
  };

  Index coordinates(const Sizes& sizes, std::vector<sym::Expr>& vars) {
    Index at;
    for (sym::Expr s : sizes) {
      if (s.is_const(1)) {
        at.push_back(0);
      } else {
        vars.push_back(p_.fresh(s));
        at.push_back(vars.back());
      }
    }
    return at;
  }

  // Emits the node's body to see what it reads.
  void analyse(LoopNode& loop_node) {
    AnalysisSource source(p_);
    constexpr int kRounds = 32;  // a variable may be split again and again where many reshapes follow each other
    for (int round = 0; round <= kRounds; ++round) {
      std::vector<Instr> body;
      std::vector<std::string> errors;
      Emitter e(g_, p_.producers, source, body, errors);
      const Node& node = g_.nodes[loop_node.graph_node];
      if (loop_node.kind == LoopNode::Kind::kMap) {
        if (loop_node.source == loop_node.value) {
          e.compute(loop_node.value, loop_node.from);
        } else {
          e.read(loop_node.source, loop_node.from);
        }
      } else if (loop_node.kind == LoopNode::Kind::kScatter) {
        emit_scatter(e, node, loop_node.from);
      } else {
        e.read(ops::as_value(node.args[0]), loop_node.from);
      }
      loop_node.reads.clear();
      std::vector<sym::Expr> exprs;
      loop_node.cost = 1;
      for (const Instr& in : body) {
        const bool computes = in.op == Op::k_load || is_scalar_op(in.op) || is_random(in.op);
        loop_node.cost += computes ? info(in.op).cost : 0;
        if (in.op == Op::k_index || in.op == Op::k_in_range || is_random(in.op)) exprs.push_back(in.index);
        if (in.op != Op::k_load) continue;
        if (is_narrow_float(p_.memory[in.slot].dtype))
          loop_node.cost += 4;  // widening again costs more than a scratch's load
        exprs.push_back(in.index);
        Access a{in.slot, in.index, in.mask != kNone};
        const bool listed = std::any_of(loop_node.reads.begin(), loop_node.reads.end(),
                                        [&](const Access& o) { return o.value == a.value && o.address == a.address; });
        if (!listed) loop_node.reads.push_back(a);
      }
      loop_node.write = {loop_node.value,
                         loop_node.kind == LoopNode::Kind::kScatter
                             ? sym::Expr(0)
                             : flatten(loop_node.at, p_.memory[loop_node.value].strides),
                         false};
      if (round == kRounds || !split_vars(loop_node, exprs)) break;
    }
  }
  // A variable that appears as v // k or v mod k (k dividing its extent) becomes two variables, after which the index
  // is affine.
  bool split_vars(LoopNode& loop_node, const std::vector<sym::Expr>& exprs) {
    std::vector<std::pair<sym::Expr, sym::Expr>> splits;
    for (sym::Expr e : exprs) find_splits(e, splits);
    std::vector<std::pair<sym::Expr, sym::Expr>> map;
    for (auto& [v, by] : splits) {
      const sym::Expr split = v, k = by;  // clang 14 captures no structured bindings
      if (std::any_of(map.begin(), map.end(), [&](auto& m) { return m.first == split; })) continue;
      for (std::vector<sym::Expr>* list : {&loop_node.vars, &loop_node.inner}) {
        auto it = std::find(list->begin(), list->end(), v);
        if (it == list->end()) continue;
        const sym::Expr hi = p_.fresh(sym::quotient(extent_of(v), k)), lo = p_.fresh(k);
        map.emplace_back(v, hi * k + lo);
        *it = hi;
        list->insert(it + 1, lo);
        break;
      }
    }
    if (map.empty()) return false;
    for (Index* index : {&loop_node.at, &loop_node.from})
      for (sym::Expr& e : *index) e = replace(e, map);
    return true;
  }
  void find_splits(sym::Expr e, std::vector<std::pair<sym::Expr, sym::Expr>>& out) {
    if (e.kind() == sym::Kind::kFloorDiv || e.kind() == sym::Kind::kMod) {
      const sym::Expr x = e.operands()[0], k = e.operands()[1];
      if (x.kind() == sym::Kind::kVar && x.name()[0] == 'x' && only_sizes(k) && divides(k, extent_of(x)))
        out.emplace_back(x, k);
    }
    for (sym::Expr o : e.operands()) find_splits(o, out);
  }

  LoopNode start(LoopNode::Kind kind, int32_t n, ValueId v) const {
    LoopNode loop_node;
    loop_node.kind = kind;
    loop_node.graph_node = n;
    loop_node.value = loop_node.source = v;
    loop_node.frozen = p_.facts[v].frozen;
    return loop_node;
  }
  void finish(LoopNode loop_node) {
    analyse(loop_node);
    p_.nodes.push_back(std::move(loop_node));
  }
  // The operand x as it is, under what the node then stores elsewhere.
  LoopNode start_base(int32_t n, ValueId v, ValueId x) {
    LoopNode base = start(LoopNode::Kind::kMap, n, v);
    base.source = x;
    base.partial = base.alone = true;
    base.from = base.at = coordinates(type(v).sizes, base.vars);
    return base;
  }

  void make(int32_t n, ValueId v) {
    const Node& node = g_.nodes[n];
    if (numel_[v] == 0) return;  // nothing to compute; the plan still allocates it
    const LoopRole role = loop_role_of(node);
    if (role.kind == LoopNode::Kind::kMap && node.op->prim == Prim::cat) return make_operands_of_cat(n, v);
    if (role.kind == LoopNode::Kind::kMap && node.op->prim == Prim::slice_scatter &&
        goes_back(v, ops::as_value(node.args[0])))
      return make_stored_slice(n, v);
    LoopNode loop_node = start(role.kind, n, v);
    switch (role.kind) {
      case LoopNode::Kind::kMap:
        loop_node.from = loop_node.at = coordinates(type(v).sizes, loop_node.vars);
        break;
      case LoopNode::Kind::kReduce:
        fold_loops(loop_node, node);
        break;
      case LoopNode::Kind::kScan:
        loop_node.from = loop_node.at = coordinates(type(v).sizes, loop_node.vars);
        run_along(loop_node, node);
        break;
      case LoopNode::Kind::kScatter:
        finish(start_base(n, v, ops::as_value(node.args[0])));
        loop_node.partial = true;
        if (!scatter_loops(loop_node, node)) return;
        break;
    }
    finish(std::move(loop_node));
  }

  void make_operands_of_cat(int32_t n, ValueId v) {
    const Node& node = g_.nodes[n];
    const auto dim = static_cast<size_t>(ops::as_int(node.args[1]));
    sym::Expr begin = 0;
    for (const Ref& r : ops::as_values(node.args[0])) {
      if (numel_[r.id] == 0) continue;
      LoopNode loop_node = start(LoopNode::Kind::kMap, n, v);
      loop_node.source = r.id;
      loop_node.partial = true;
      loop_node.from = loop_node.at = coordinates(type(r.id).sizes, loop_node.vars);
      loop_node.at[dim] += begin;
      begin += type(r.id).sizes[dim];
      analyse_operand(loop_node, dim, begin - type(r.id).sizes[dim]);
      loop_node.alone = is_large_result(r.id);
      p_.nodes.push_back(std::move(loop_node));
    }
  }

  void make_stored_slice(int32_t n, ValueId v) {
    const Node& node = g_.nodes[n];
    const ValueId src = ops::as_value(node.args[1]);
    const Sizes starts = ops::as_sizes(node.args[2]), steps = ops::as_sizes(node.args[4]);
    finish(start_base(n, v, ops::as_value(node.args[0])));
    if (numel_[src] == 0) return;
    LoopNode part = start(LoopNode::Kind::kMap, n, v);
    part.partial = part.alone = true;
    part.source = src;
    part.from = coordinates(type(src).sizes, part.vars);
    for (size_t i = 0; i < part.from.size(); ++i) part.at.push_back(starts[i] + part.from[i] * steps[i]);
    finish(std::move(part));
  }

  // A loop over so many points; none where there is one. Inner loops are folded, or run in order.
  sym::Expr add_loop(LoopNode& loop_node, sym::Expr size, bool inner) {
    if (size.is_const(1)) return 0;
    const sym::Expr c = p_.fresh(size);
    (inner ? loop_node.inner : loop_node.vars).push_back(c);
    return c;
  }
  void fold_loops(LoopNode& loop_node, const Node& node) {
    const TensorType& x = type(ops::as_value(node.args[0]));
    const std::vector<int64_t> dims = ops::as_ints(node.args[1]);
    for (size_t i = 0; i < x.rank(); ++i) {
      const bool reduced = std::find(dims.begin(), dims.end(), static_cast<int64_t>(i)) != dims.end();
      loop_node.from.push_back(add_loop(loop_node, x.sizes[i], reduced));
      if (!reduced) loop_node.at.push_back(loop_node.from.back());
    }
  }
  void run_along(LoopNode& loop_node, const Node& node) {
    const auto dim = static_cast<size_t>(ops::as_int(node.args[1]));
    const auto it = std::find(loop_node.vars.begin(), loop_node.vars.end(),
                              loop_node.at.empty() ? sym::Expr(0) : loop_node.at[dim]);
    if (it == loop_node.vars.end()) return;
    loop_node.inner.push_back(*it);
    loop_node.vars.erase(it);
  }
  // False: nothing is stored.
  bool scatter_loops(LoopNode& loop_node, const Node& node) {
    const ScatterDomain domain = scatter_domain(g_, node);
    for (size_t i = 0; i < domain.sizes.size(); ++i) {
      loop_node.from.push_back(add_loop(loop_node, domain.sizes[i], domain.ordered[i]));
      if (domain.sizes[i].is_const(0)) return false;
    }
    return true;
  }

  // Of an operator on a GPU, seen through views: its memory is to be let go soon.
  bool is_large_result(ValueId v) const {
    constexpr int64_t kLarge = int64_t{4} << 20;
    if (type(v).device.type != DeviceType::kCUDA || numel_[v] < kLarge) return false;
    while (p_.producers.of[v].node >= 0 && is_view(node_of(v).op)) v = ops::as_value(node_of(v).args[0]);
    return p_.producers.of[v].node >= 0 && !node_of(v).op->is_prim();
  }
  // v is the new content of the input x: then only what differs needs to be stored.
  bool goes_back(ValueId v, ValueId x) const {
    for (const graph::Mutation& m : g_.mutations)
      if (m.value == v && g_.inputs[m.input].value == x) return true;
    return false;
  }
  // analyse() for an operand of a cat: the stored coordinate is shifted after splits were made on the unshifted one.
  void analyse_operand(LoopNode& loop_node, size_t dim, sym::Expr begin) {
    loop_node.at = loop_node.from;
    loop_node.at[dim] += begin;
    analyse(loop_node);
  }

  LoopProgram p_;
  const graph::Graph& g_;
  std::vector<int64_t> numel_;
  std::vector<double> cost_;
  std::vector<char> looks_up_;  // an element's place in memory is read from memory
  std::vector<std::vector<ValueId>> loads_;
  std::vector<int64_t> steps_;  // by value computed in place: what that takes
  std::vector<ValueId> seen_;   // by value: the last root that distinct_steps() met it from
};

}  // namespace

bool is_step(sym::Expr e) { return !e.is_const(0) && sym::known_le(0, e); }
bool divides(sym::Expr k, sym::Expr n) {
  return is_step(k) && (sym::mod(n, k).is_const(0) || sym::whole_quotient(n, k));
}

bool only_sizes(sym::Expr e) {
  if (e.kind() == sym::Kind::kVar) return sym::size_symbol_index(e).has_value();
  return std::all_of(e.operands().begin(), e.operands().end(), only_sizes);
}

sym::Expr replace(sym::Expr e, const std::vector<std::pair<sym::Expr, sym::Expr>>& map) {
  return sym::substitute(e, [&](sym::Expr v) -> std::optional<sym::Expr> {
    for (auto& [from, to] : map)
      if (from == v) return to;
    return std::nullopt;
  });
}

LoopProgram make_loop_nodes(const graph::Graph& expanded) { return LoopNodeBuilder(expanded).run(); }

std::string print(const LoopProgram& p) {
  static const char* const kKinds[] = {"map", "reduce", "scan", "scatter"};
  std::string out;
  for (size_t i = 0; i < p.nodes.size(); ++i) {
    const LoopNode& it = p.nodes[i];
    out += "node " + std::to_string(i) + (it.frozen ? " frozen " : " ") + kKinds[static_cast<int>(it.kind)] + " %" +
           std::to_string(it.value) + " " + p.graph.nodes[it.graph_node].op->name + " [" + it.write.address.str() + "]";
    for (sym::Expr v : it.inner) out += " over " + std::string(v.name());
    for (const Access& a : it.reads) out += " reads %" + std::to_string(a.value) + "[" + a.address.str() + "]";
    out += "\n";
  }
  return out;
}

}  // namespace flashover::loops
