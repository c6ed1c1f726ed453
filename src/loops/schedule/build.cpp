// Writes the stages of a group: which nodes each computes, what is handed on in accumulators, scratch or memory.
#include "loops/schedule/build.h"
#include "graph/origin.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "loops/schedule/scatter.h"
#include "ops/args.h"

namespace flashover::loops {
namespace {

using Role = GroupVar::Role;

constexpr int64_t kLargestScratch =
    1 << 14;                    // elements: 64 KB of f32, about half of a first-level cache and its neighbour
constexpr int64_t kHeavy = 10;  // scalar operations that are worth a scratch store and load

Reduce reduce_kind(const ops::OpRow* op) {
  switch (op->prim) {
    case Prim::sum:
    case Prim::cumsum:
      return Reduce::kSum;
    case Prim::prod:
    case Prim::cumprod:
      return Reduce::kProd;
    case Prim::amax:
    case Prim::cummax:
      return Reduce::kMax;
    case Prim::amin:
    case Prim::cummin:
      return Reduce::kMin;
    case Prim::any:
      return Reduce::kAny;
    case Prim::all:
      return Reduce::kAll;
    case Prim::argmax:
      return Reduce::kArgMax;
    case Prim::argmin:
      return Reduce::kArgMin;
    default:
      throw Declined("loops: no reduction " + op->name);
  }
}

// For what is decided by cost.
double typical_stride(sym::Expr coefficient) { return static_cast<double>(std::abs(coefficient.hint())); }

class KernelBuilder : public RealisedValues {
 public:
  KernelBuilder(LoopProgram& p, const Group& g, const BuildOptions& options)
      : p_(p), g_(g), gpu_(options.gpu), order_by_dims_(options.order_by_dims) {}

  Built run() {
    for (int32_t i : g_.nodes)
      if (!p_.nodes[i].partial) producer_[p_.nodes[i].value] = i;
    assign_stages();
    choose_order();
    choose_between_stages();
    for (size_t s = 0; s < stage_nodes_.size(); ++s) emit_stage(s);
    Kernel& k = built_.kernel;
    k.label = label();
    built_.operators = operators();
    merge_loops(k, gpu_);
    canonicalise(k, built_.params);
    set_cost();
    return std::move(built_);
  }

 private:
  // Lanes along a row where sums are over their operand's last dim; else whole rows beside each other, or one row alone,
  // which add up in the same order.
  Vector mode_by_dims(bool one_row) const {
    for (int32_t i : g_.nodes)
      if (is_float_sum(p_.nodes[i]) && is_over_last_dim(p_.nodes[i])) return Vector::kInner;
    return one_row ? Vector::kNone : Vector::kOuter;
  }
  bool is_float_sum(const LoopNode& n) const {
    return n.kind == LoopNode::Kind::kReduce && is_floating(p_.graph.type(n.value).dtype);
  }
  bool sums_floats() const {
    return std::any_of(g_.nodes.begin(), g_.nodes.end(), [&](int32_t i) { return is_float_sum(p_.nodes[i]); });
  }
  bool is_over_last_dim(const LoopNode& n) const {
    const graph::Node& node = p_.graph.nodes[static_cast<size_t>(n.graph_node)];
    if (node.op->prim != Prim::sum && node.op->prim != Prim::prod) return false;  // (a window's, in a pool)
    const auto last = static_cast<int64_t>(p_.graph.type(ops::as_value(node.args[0])).rank()) - 1;
    const std::vector<int64_t> dims = ops::as_ints(node.args[1]);
    return std::ranges::find(dims, last) != dims.end();
  }
  bool is_inner(sym::Expr v) const {
    return std::any_of(g_.vars.begin(), g_.vars.end(),
                       [&](const GroupVar& x) { return x.var == v && x.role == Role::kInner; });
  }
  std::vector<sym::Expr> inner_of(const LoopNode& loop_node) const {
    std::vector<sym::Expr> out;
    for (const GroupVar& v : g_.vars) {
      if (v.role != Role::kInner) continue;
      bool mine = std::find(loop_node.vars.begin(), loop_node.vars.end(), v.var) != loop_node.vars.end() ||
                  std::find(loop_node.inner.begin(), loop_node.inner.end(), v.var) != loop_node.inner.end();
      if (mine) out.push_back(v.var);
    }
    return out;
  }

  void assign_stages() {
    stage_of_.assign(p_.nodes.size(), -1);
    for (int32_t i : g_.nodes) {
      const LoopNode& loop_node = p_.nodes[i];
      int first = 0;
      for (const Access& a : loop_node.reads) {
        auto it = producer_.find(a.value);
        if (it == producer_.end() || it->second == i) continue;
        const LoopNode& m = p_.nodes[it->second];
        const Dependence how = dependence_of(g_, m, a);
        FLASHOVER_CHECK(how != Dependence::kElsewhere) << "member of a group reads across rows";
        const bool wait = m.kind == LoopNode::Kind::kReduce || how == Dependence::kSameRow;
        first = std::max(first, stage_of_[it->second] + (wait ? 1 : 0));
      }
      // Scans and scatters run in their own order, which the others of a stage need not suffer.
      const bool ordered = loop_node.kind == LoopNode::Kind::kScan || loop_node.kind == LoopNode::Kind::kScatter;
      const std::vector<sym::Expr> loops = ordered ? loop_node.inner : inner_of(loop_node);
      int s = first;
      while (s < static_cast<int>(stage_vars_.size()) && !(stage_vars_[s] == loops && stage_ordered_[s] == ordered))
        ++s;
      if (s == static_cast<int>(stage_vars_.size())) {
        stage_vars_.push_back(loops);
        stage_ordered_.push_back(ordered);
        stage_nodes_.emplace_back();
      }
      stage_nodes_[s].push_back(i);
      stage_of_[i] = s;
    }
    // Results of reductions go to memory once per row, in a stage without loops.
    for (int32_t i : g_.nodes) {
      if (p_.nodes[i].kind != LoopNode::Kind::kReduce || !p_.nodes[i].stored) continue;
      size_t s = static_cast<size_t>(stage_of_[i]) + 1;
      while (s < stage_vars_.size() && !(stage_vars_[s].empty() && !stage_ordered_[s])) ++s;
      if (s == stage_vars_.size()) {
        stage_vars_.emplace_back();
        stage_ordered_.push_back(false);
        stage_nodes_.emplace_back();
      }
      finish_.emplace_back(s, i);
    }
  }

  // How values get from one stage to later ones: accumulators do it by themselves, cheap maps are computed again,
  // others go through scratch or through memory.
  void choose_between_stages() {
    scratch_of_.assign(p_.nodes.size(), -1);
    for (int32_t i : g_.nodes)
      for (const Access& a : p_.nodes[i].reads) {
        auto it = producer_.find(a.value);
        if (it == producer_.end() || it->second == i) continue;
        const int32_t producer = it->second;
        LoopNode& m = p_.nodes[producer];
        if (m.kind == LoopNode::Kind::kReduce || m.stored || scratch_of_[producer] >= 0 ||
            stage_of_[producer] == stage_of_[i])
          continue;
        const bool must = m.kind != LoopNode::Kind::kMap || dependence_of(g_, m, a) == Dependence::kSameRow;
        if (!must && m.cost < kHeavy) continue;
        sym::Expr size = 1;
        for (sym::Expr v : inner_of(m)) size *= extent_of(v);
        if (inner_of(m).empty() && !must) continue;  // a scalar of the row: computed again, once
        // With lanes over rows each element is a few vectors.
        const int64_t most = built_.kernel.vector == Vector::kOuter ? kLargestScratch / 16 : kLargestScratch;
        const bool fits = gpu_              ? registers(producer)
                          : size.is_const() ? size.value() <= most && (is_block(m, size) || !must)
                                            : built_.kernel.vector == Vector::kInner && met_at_own_element(producer);
        if (fits) {
          scratch_of_[producer] = static_cast<int32_t>(built_.kernel.scratch.size());
          built_.kernel.scratch.push_back({compute_dtype(p_.memory[m.value].dtype), size});
        } else if (must) {
          m.stored = true;
        }
      }
  }
  // f(member, access) of every other member that reads the value, while it returns true.
  template <typename F>
  bool all_reads_of(int32_t producer, F&& f) {
    for (int32_t i : g_.nodes)
      for (const Access& a : p_.nodes[i].reads) {
        const auto it = producer_.find(a.value);
        if (it != producer_.end() && it->second == producer && i != producer && !f(i, a)) return false;
      }
    return true;
  }
  // A row whose length is a symbol is numbered by its loops in scratch: nothing may read it elsewhere.
  bool met_at_own_element(int32_t producer) {
    return all_reads_of(producer, [&](int32_t, const Access& a) {
      return dependence_of(g_, p_.nodes[producer], a) == Dependence::kSameElement;
    });
  }
  // No row of the kernel is longer than registers allow, and the value is read where it was made.
  bool registers(int32_t producer) {
    for (size_t s = 0; s < stage_vars_.size(); ++s) {
      sym::Expr size = 1;
      for (sym::Expr v : stage_vars_[s]) size *= extent_of(v);
      if (!size.is_const() || size.value() > kRegisterRow) return false;
    }
    return read_where_made(producer);
  }
  // Every member that reads the value runs through the same loops and meets it at the same element; so does whoever
  // reads a member that is computed again, out of this value, where it is read.
  bool read_where_made(int32_t producer) {
    const auto [known, fresh] = read_where_made_.try_emplace(producer, true);
    if (!fresh) return known->second;
    const bool all = all_reads_of(producer, [&](int32_t i, const Access& a) {
      const size_t made = static_cast<size_t>(stage_of_[producer]), read = static_cast<size_t>(stage_of_[i]);
      const bool meets = made == read || (stage_vars_[made] == stage_vars_[read] &&
                                          dependence_of(g_, p_.nodes[producer], a) == Dependence::kSameElement);
      return meets && (!computed_again(i) || read_where_made(i));
    });
    return read_where_made_[producer] = all;
  }
  // As choose_between_stages decides: what another stage reads elsewhere in the row is stored, what is dear waits in
  // a register if it can.
  bool computed_again(int32_t i) {
    const LoopNode& m = p_.nodes[i];
    if (m.kind != LoopNode::Kind::kMap || m.stored) return false;
    const bool stays = all_reads_of(i, [&](int32_t reader, const Access& a) {
      return stage_of_[reader] == stage_of_[i] || dependence_of(g_, m, a) != Dependence::kSameRow;
    });
    return stays && (m.cost < kHeavy || !read_where_made(i));
  }
  sym::Expr row_address(sym::Expr address) const {
    for (const GroupVar& v : g_.vars)
      if (v.role != Role::kInner) address = replace(address, {{v.var, 0}});
    return address;
  }
  // Where a node's element is in its scratch: as in memory if the row's part of memory is one block, else numbered by
  // loops.
  sym::Expr scratch_index(const LoopNode& m) const {
    sym::Expr size = 1;
    sym::Expr index = 0;
    for (sym::Expr v : inner_of(m)) {
      index = index * extent_of(v) + v;
      size *= extent_of(v);
    }
    return is_block(m, size) ? row_address(m.write.address) : index;
  }
  bool is_block(const LoopNode& m, sym::Expr size) const {
    const sym::Expr inner = row_address(m.write.address);
    return inner.range().lo == 0 && size.is_const() && inner.range().hi == size.value() - 1;
  }

  // ---- loop order and lanes
  struct Weighted {
    sym::Expr address;
    double bytes;
    bool store;
  };
  // Is u, outside of v, one loop with it in every access? (The points of a kernel of 3 x 3 are nine lanes.)
  static bool run_as_one(const std::vector<Weighted>& accesses, sym::Expr u, sym::Expr v) {
    return !(u == v) && std::all_of(accesses.begin(), accesses.end(), [&](const Weighted& a) {
      const auto outer = sym::coefficient(a.address, u), inner = sym::coefficient(a.address, v);
      return outer && inner && *outer == *inner * extent_of(v);
    });
  }
  void choose_order() {
    std::vector<Weighted> accesses;
    for (int32_t i : g_.nodes) {
      const LoopNode& loop_node = p_.nodes[i];
      auto add = [&](const Access& a, bool store) {
        double points = 1;
        std::vector<sym::Expr> vars;
        sym::collect_vars(a.address, vars);
        for (sym::Expr v : vars) points *= only_sizes(v) ? 1 : typical_extent(v);
        accesses.push_back({a.address, points * info(p_.memory[a.value].dtype).bytes, store});
      };
      for (const Access& a : loop_node.reads)
        if (!producer_.count(a.value) || p_.nodes[producer_[a.value]].stored) add(a, false);
      if (loop_node.stored && loop_node.kind != LoopNode::Kind::kScatter) add(loop_node.write, true);
    }
    std::map<std::string_view, double> unit, key;
    for (const GroupVar& v : g_.vars) {
      double weight = 0;
      for (const Weighted& a : accesses) {
        auto c = sym::coefficient(a.address, v.var);
        if (!c || !only_sizes(*c) || c->is_const(0)) continue;
        const double w = a.bytes * (a.store ? 1.5 : 1);
        // Loads across the lanes are turned round in registers, stores are not.
        if (c->is_const(1)) unit[v.var.name()] += a.store ? 2 * w : w;
        key[v.var.name()] += w * std::log2(1.0 + typical_stride(*c));
        weight += w;
      }
      key[v.var.name()] = weight > 0 ? key[v.var.name()] / weight : 1e9;
    }
    auto sorted = [&](std::vector<sym::Expr>& vars, sym::Expr last) {
      std::stable_sort(vars.begin(), vars.end(), [&](sym::Expr a, sym::Expr b) {
        if (a == last || b == last) return !(a == last) && b == last;
        return key[a.name()] > key[b.name()];
      });
    };
    auto best = [&](const std::vector<sym::Expr>& vars) {
      sym::Expr result = 0;
      double most = -1;
      for (sym::Expr v : vars) {
        // Lanes need company: a contiguous loop of three is worth less than it says, unless another goes on where it ends.
        double extent = typical_extent(v);
        for (sym::Expr u : vars)
          if (run_as_one(accesses, u, v)) extent *= typical_extent(u);
        double score = unit[v.name()] * std::min(1.0, extent / 8);
        if (score > most) most = score, result = v;
      }
      return std::pair(result, most);
    };
    std::vector<sym::Expr> rows, inner;
    for (const GroupVar& v : g_.vars) (v.role == Role::kInner ? inner : rows).push_back(v.var);
    Kernel& k = built_.kernel;
    auto [best_row, row_score] = best(rows);
    auto [best_inner, inner_score] = best(inner);
    k.vector = order_by_dims_ && !inner.empty() && sums_floats()             ? mode_by_dims(rows.empty())
               : inner.empty() && rows.empty()                               ? Vector::kNone
               : inner.empty() || (!rows.empty() && row_score > inner_score) ? Vector::kOuter
                                                                             : Vector::kInner;
    sorted(rows, k.vector == Vector::kOuter ? best_row : sym::Expr(0));
    if (k.vector == Vector::kOuter)  // what runs as one with the last loop stands beside it
      for (size_t end = rows.size(); end-- > 1;) {
        const auto last = rows.begin() + static_cast<std::ptrdiff_t>(end);
        const auto u =
            std::find_if(rows.begin(), last, [&](sym::Expr row) { return run_as_one(accesses, row, *last); });
        if (u == last) break;
        std::rotate(u, u + 1, last);
      }
    for (sym::Expr v : rows) k.outer.push_back({v, extent_of(v)});
    for (size_t s = 0; s < stage_vars_.size(); ++s)
      if (!stage_ordered_[s] && !order_by_dims_)
        sorted(stage_vars_[s], k.vector == Vector::kInner ? best(stage_vars_[s]).first : sym::Expr(0));
    if (k.vector == Vector::kOuter && rows.size() > 1) {
      // Loads that run along another outer loop while stores run along the last one.
      std::map<int32_t, double> across;
      for (const Weighted& a : accesses) {
        if (a.store) continue;
        auto last = sym::coefficient(a.address, rows.back());
        if (!last || last->is_const(0) || last->is_const(1)) continue;
        for (size_t i = 0; i + 1 < rows.size(); ++i) {
          auto c = sym::coefficient(a.address, rows[i]);
          if (c && c->is_const(1)) across[static_cast<int32_t>(i)] += a.bytes;
        }
      }
      double most = 0;
      for (auto& [i, bytes] : across)
        if (bytes > most) most = bytes, k.transpose = i;
    }
  }

  // ---- bodies
  // A number on the CPU that a launch can take along.
  bool is_number(ValueId v) const {
    const TensorType& t = p_.graph.type(v);
    const int bytes = info(t.dtype).bytes;
    return t.device.type == DeviceType::kCPU && t.sizes.empty() && !producer_.contains(v) && t.dtype != DType::kU32 &&
           t.dtype != DType::kU64 && !info(t.dtype).complex && (bytes == 4 || bytes == 8);
  }
  int32_t param(ValueId v) {
    auto [it, fresh] = param_of_.try_emplace(v, static_cast<int32_t>(built_.params.size()));
    if (fresh) {
      built_.params.push_back(v);
      const TensorType& m = p_.memory[v];
      sym::Expr numel = 1;
      for (size_t i = 0; i < m.sizes.size(); ++i) numel += (m.sizes[i] - 1) * m.strides[i];
      built_.kernel.params.push_back({m.dtype, numel});
      built_.kernel.params.back().number = gpu_ && is_number(v);
      built_.kernel.params.back().steady = gpu_ && p_.facts[v].frozen;
    }
    return it->second;
  }
  Id load(Emitter& e, ValueId v, sym::Expr address) { return e.load(param(v), p_.memory[v].dtype, address); }

  std::optional<Id> fetch(Emitter& e, ValueId v, const Index& at) override {
    if (!p_.facts[v].realised) return std::nullopt;
    const sym::Expr address = flatten(at, p_.memory[v].strides);
    auto it = producer_.find(v);
    if (it == producer_.end()) return load(e, v, address);
    const int32_t producer = it->second;
    const LoopNode& m = p_.nodes[producer];
    if (m.kind == LoopNode::Kind::kReduce) {
      const DType d = compute_dtype(p_.memory[v].dtype);
      return e.add({.op = Op::k_acc, .dtype = d, .slot = acc_of_.at(producer)});
    }
    const Access access{v, address, false};
    const Dependence how = dependence_of(g_, m, access);
    FLASHOVER_CHECK(how != Dependence::kElsewhere) << "%" << v << " is read across rows at " << address.str();
    if (stage_of_[producer] == stage_) {
      auto value = forward_.find(producer);
      FLASHOVER_CHECK(value != forward_.end()) << "%" << v << " is read before it is made";
      return value->second;
    }
    if (scratch_of_[producer] >= 0)
      return e.add({.op = Op::k_load_scratch,
                    .dtype = compute_dtype(p_.memory[v].dtype),
                    .slot = scratch_of_[producer],
                    .index = how == Dependence::kSameElement ? scratch_index(m) : row_address(address)});
    if (m.stored) return load(e, v, address);
    return std::nullopt;
  }

  void emit_stage(size_t s) {
    stage_ = static_cast<int>(s);
    forward_.clear();
    Stage& stage = built_.kernel.stages.emplace_back();
    stage.ordered = stage_ordered_[s];
    for (sym::Expr v : stage_vars_[s]) stage.loops.push_back({v, extent_of(v)});
    Emitter e(p_.graph, p_.producers, *this, stage.body, built_.kernel.errors);
    for (int32_t i : stage_nodes_[s]) emit_node(e, i);
    for (auto& [at, i] : finish_) {
      if (at != s) continue;
      const LoopNode& loop_node = p_.nodes[i];
      Id value =
          e.add({.op = Op::k_acc, .dtype = compute_dtype(p_.memory[loop_node.value].dtype), .slot = acc_of_.at(i)});
      store(e, loop_node, value);
    }
  }

  void store(Emitter& e, const LoopNode& loop_node, Id value) {
    if (scratch_of_[&loop_node - p_.nodes.data()] >= 0)
      e.add({.op = Op::k_store_scratch,
             .args = {value, kNone, kNone},
             .slot = scratch_of_[&loop_node - p_.nodes.data()],
             .index = scratch_index(loop_node)});
    if (loop_node.stored)
      e.add({.op = Op::k_store,
             .args = {value, kNone, kNone},
             .slot = param(loop_node.value),
             .index = loop_node.write.address});
  }

  void emit_node(Emitter& e, int32_t i) {
    const LoopNode& loop_node = p_.nodes[i];
    const graph::Node& node = p_.graph.nodes[loop_node.graph_node];
    const DType memory = p_.memory[loop_node.value].dtype;
    switch (loop_node.kind) {
      case LoopNode::Kind::kMap: {
        Id value = loop_node.source == loop_node.value ? e.compute(loop_node.value, loop_node.from)
                                                       : e.read(loop_node.source, loop_node.from);
        value = e.convert(value, memory);
        // A reader of the memory sees the rounded value; a reader of the register must see the same.
        if (loop_node.stored && is_narrow_float(memory))
          value = e.add({.op = Op::k_round_to, .dtype = DType::kF32, .args = {value, kNone, kNone}, .narrow = memory});
        forward_[i] = value;
        store(e, loop_node, value);
        return;
      }
      case LoopNode::Kind::kReduce:
      case LoopNode::Kind::kScan: {
        const Reduce kind = reduce_kind(node.op);
        const bool arg = kind >= Reduce::kArgMax;
        Id value = e.read(ops::as_value(node.args[0]), loop_node.from);
        if (!arg) value = e.convert(value, memory);
        const auto slot = static_cast<int32_t>(built_.kernel.accs.size());
        built_.kernel.accs.push_back({kind, e.dtype(value)});
        acc_of_[i] = slot;
        Instr in{.op = loop_node.kind == LoopNode::Kind::kScan ? Op::k_scan : Op::k_reduce,
                 .args = {value, kNone, kNone},
                 .slot = slot};
        if (arg) in.args[1] = e.index_value(arg_index(node, loop_node));
        if (loop_node.kind == LoopNode::Kind::kScan) {
          in.dtype = e.dtype(value);
          Id running = e.add(in);
          if (loop_node.stored && is_narrow_float(memory))
            running =
                e.add({.op = Op::k_round_to, .dtype = DType::kF32, .args = {running, kNone, kNone}, .narrow = memory});
          forward_[i] = running;
          store(e, loop_node, running);
          return;
        }
        e.add(in);
        return;
      }
      case LoopNode::Kind::kScatter: {
        ScatterPoint point = emit_scatter(e, node, loop_node.from);
        Id value = e.convert(point.value, memory);
        e.add({.op = Op::k_store,
               .args = {value, kNone, kNone},
               .slot = param(loop_node.value),
               .index = flatten(point.at, p_.memory[loop_node.value].strides),
               .mode = point.mode});
        return;
      }
    }
  }
  // The flat index over the reduced dims.
  sym::Expr arg_index(const graph::Node& node, const LoopNode& loop_node) const {
    const Sizes& sizes = p_.graph.type(ops::as_value(node.args[0])).sizes;
    sym::Expr flat = 0;
    for (int64_t d : ops::as_ints(node.args[1])) flat = flat * sizes[d] + loop_node.from[d];
    return flat;
  }

  std::string label() const {
    std::string out;
    int shown = 0;
    std::vector<std::string> lines;
    for (int32_t i : g_.nodes) {
      const graph::Node& n = p_.graph.nodes[p_.nodes[i].graph_node];
      if (n.location >= 0 && static_cast<size_t>(n.location) < p_.graph.facts.locations.size() && lines.size() < 4)
        if (std::string line = graph::without_origin(p_.graph.facts.locations[static_cast<size_t>(n.location)]);
            std::find(lines.begin(), lines.end(), line) == lines.end())
          lines.push_back(std::move(line));
      if (++shown <= 4) out += (out.empty() ? "" : "+") + n.op->name.substr(n.op->name.find('.') + 1);
    }
    if (shown > 4) out += "+" + std::to_string(shown - 4);
    const char* between = " ";
    for (const std::string& l : lines) out += std::exchange(between, ", ") + l;
    return out;
  }

  // The operators of the program that this kernel computes, in the program's order: of its nodes, and of what they
  // compute in place.
  std::string operators() const {
    std::map<int32_t, std::string> found;
    std::vector<bool> seen(p_.graph.nodes.size());
    std::vector<int32_t> open;
    for (int32_t i : g_.nodes) open.push_back(p_.nodes[i].graph_node);
    while (!open.empty()) {
      const auto n = static_cast<size_t>(open.back());
      open.pop_back();
      if (seen[n]) continue;
      seen[n] = true;
      const graph::Node& node = p_.graph.nodes[n];
      if (node.location >= 0 && static_cast<size_t>(node.location) < p_.graph.facts.locations.size())
        if (graph::Origin o = graph::origin_of(p_.graph.facts.locations[static_cast<size_t>(node.location)]);
            o.number >= 0)
          found[o.number] = std::move(o.name);
      for (const Arg& a : node.args)
        graph::for_each_ref(a, [&](ValueId v) {
          const int32_t producer = p_.producers.of[static_cast<size_t>(v)].node;
          if (producer >= 0 && !p_.facts[static_cast<size_t>(v)].realised) open.push_back(producer);
        });
    }
    std::string out;
    for (const auto& [number, name] : found) out += (out.empty() ? "" : "+") + name;
    return out;
  }

  void set_cost() {
    Kernel& k = built_.kernel;
    double cost = 0;
    for (const Stage& s : k.stages) {
      double points = 1, body = 0;
      for (const Loop& l : s.loops) points *= typical_extent(l.var);
      for (const Instr& in : s.body) body += static_cast<double>(info(in.op).cost);
      cost += points * body;
    }
    k.cost = std::max<int64_t>(1, static_cast<int64_t>(cost));
  }

  LoopProgram& p_;
  const Group& g_;
  bool gpu_, order_by_dims_;
  Built built_;
  std::map<ValueId, int32_t> producer_;  // node of a value that may pass between members
  std::vector<std::vector<sym::Expr>> stage_vars_;
  std::vector<bool> stage_ordered_;
  std::vector<std::vector<int32_t>> stage_nodes_;
  std::vector<std::pair<size_t, int32_t>> finish_;  // (stage, reduction whose result it stores)
  std::vector<int> stage_of_;
  std::vector<int32_t> scratch_of_;
  std::unordered_map<int32_t, bool> read_where_made_;
  std::map<int32_t, int32_t> acc_of_;
  std::map<ValueId, int32_t> param_of_;
  std::map<int32_t, Id> forward_;
  int stage_ = 0;
};

}  // namespace

Built build(LoopProgram& program, const Group& group, const BuildOptions& options) {
  return KernelBuilder(program, group, options).run();
}

}  // namespace flashover::loops
