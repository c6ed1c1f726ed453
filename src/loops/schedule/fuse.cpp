// Greedy fusion in program order. A node joins the group of something it reads, or of something that reads the same
// memory, when its loop variables can be expressed in the group's. The correspondence is found through memory: two
// accesses to one buffer agree on the variables that have equal strides in it (a variable that covers several of the
// other's is split). What was found that way is only a proposal; dependence_of() then proves that everything read was
// written by the same row.
#include "loops/schedule/fuse.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <span>

#include "base/check.h"
#include "graph/analysis/data_sizes.h"
#include "ops/names.h"
#include "sym/quotient.h"

namespace flashover::loops {
namespace {

using Role = GroupVar::Role;
using Map = std::vector<std::pair<sym::Expr, sym::Expr>>;

struct Term {
  sym::Expr var;
  sym::Expr coef;
  sym::Expr extent;
};
// Sizes that are symbols are ordered as typical ones: what is proposed may depend on it, not what is proven.
bool smaller(sym::Expr a, sym::Expr b) { return a.hint() < b.hint(); }
// Affine terms with positive coefficients (constant, or expressions over sizes), smallest first; nullopt otherwise.
std::optional<std::vector<Term>> terms_of(sym::Expr e) {
  std::vector<Term> terms;
  auto one = [&](sym::Expr t) {
    if (t.is_const()) return true;
    sym::Expr coef = 1;
    if (t.kind() == sym::Kind::kMul) {
      sym::Expr var = 0;
      for (sym::Expr o : t.operands()) {
        if (only_sizes(o))
          coef *= o;
        else if (var.is_const())
          var = o;
        else
          return false;
      }
      t = var;
    }
    if (t.kind() != sym::Kind::kVar || only_sizes(t)) return false;
    // A coefficient that is a sum, such as s0 - 3, stands in several terms of its variable.
    const auto known = std::ranges::find(terms, t, &Term::var);
    if (known != terms.end()) {
      known->coef += coef;
    } else {
      terms.push_back({t, coef, extent_of(t)});
    }
    return true;
  };
  if (e.kind() == sym::Kind::kAdd) {
    for (sym::Expr t : e.operands())
      if (!one(t)) return std::nullopt;
  } else if (!one(e)) {
    return std::nullopt;
  }
  if (!std::ranges::all_of(terms, is_step, &Term::coef)) return std::nullopt;
  std::sort(terms.begin(), terms.end(), [](const Term& a, const Term& b) { return smaller(a.coef, b.coef); });
  return terms;
}

// The variables of a split variable, the slowest first.
void append_vars(sym::Expr e, std::vector<sym::Expr>& out) {
  auto terms = terms_of(e);
  FLASHOVER_CHECK(terms) << "split variable " << e.str();
  for (size_t i = terms->size(); i-- > 0;) out.push_back((*terms)[i].var);
}

void apply(LoopNode& node, const Map& map) {
  auto in = [&](Index& index) {
    for (sym::Expr& e : index) e = replace(e, map);
  };
  auto vars = [&](std::vector<sym::Expr>& list) {  // an expression over several variables becomes these variables
    std::vector<sym::Expr> out;
    for (sym::Expr v : list) append_vars(replace(v, map), out);
    list = std::move(out);
  };
  in(node.at);
  in(node.from);
  vars(node.vars);
  vars(node.inner);
  for (Access& a : node.reads) a.address = replace(a.address, map);
  node.write.address = replace(node.write.address, map);
}

// One attempt to bring a node into a group. Works on copies; commit() writes them back.
class Match {
 public:
  Match(LoopProgram& p, const Group& group, const LoopNode& node) : p_(p), vars_(group.vars), node_(node) {}

  // Learns from `theirs` (over group variables) and `mine` (over the node's) addressing one buffer.
  void learn(sym::Expr theirs, sym::Expr mine) {
    auto a = terms_of(replace(theirs, group_splits_));
    auto b = terms_of(replace(mine, node_splits_));
    if (!a || !b) return;
    size_t i = 0, j = 0;
    while (i < a->size() && j < b->size()) {
      Term &m = (*a)[i], &n = (*b)[j];
      if (!is_loop(n.var) || mapped(n.var)) {
        ++j;
      } else if (!is_loop(m.var) || taken(m.var)) {
        ++i;
      } else if (smaller(m.coef, n.coef)) {
        ++i;
      } else if (smaller(n.coef, m.coef)) {
        ++j;
      } else if (!(m.coef == n.coef)) {
        ++i, ++j;
      } else if (!allowed(n.var, m.var)) {
        // Equal strides but the one folds what the other keeps apart.
        ++i, ++j;
      } else if (m.extent == n.extent) {
        link_.emplace_back(n.var, m.var);
        ++i, ++j;
      } else if (divides(m.extent, n.extent)) {
        const auto [hi, lo] = split_node(n.var, m.extent);
        link_.emplace_back(lo, m.var);
        n = {hi, n.coef * m.extent, sym::quotient(n.extent, m.extent)};
        ++i;
      } else if (divides(n.extent, m.extent)) {
        const auto [hi, lo] = split_group(m.var, n.extent);
        link_.emplace_back(n.var, lo);
        m = {hi, m.coef * n.extent, sym::quotient(m.extent, n.extent)};
        ++j;
      } else {
        ++i, ++j;
      }
    }
  }

  // Completes the correspondence; false if the domains do not fit.
  bool finish() {
    const bool rows_exist =
        std::any_of(vars_.begin(), vars_.end(), [](const GroupVar& v) { return v.role != Role::kFree; });
    const bool folds = node_.kind == LoopNode::Kind::kReduce || node_.kind == LoopNode::Kind::kScan;
    const bool group_free = !vars_.empty() && !rows_exist;
    for (sym::Expr v : current(node_.inner)) {
      if (sym::Expr* g = mapped(v)) {
        set_role(*g, Role::kInner);
      } else {
        fresh(v, Role::kInner);
      }
    }
    for (sym::Expr v : current(node_.vars)) {
      if (sym::Expr* g = mapped(v)) {
        if (folds) set_role(*g, Role::kRow);
        continue;
      }
      if (folds || group_free || vars_.empty()) return false;  // other points than the group's
      fresh(v, Role::kInner);
    }
    if (folds)
      for (GroupVar& v : vars_)
        if (v.role == Role::kFree) {
          if (!taken(v.var)) return false;
          v.role = Role::kRow;
        }
    for (const GroupVar& v : vars_)
      if (v.role != Role::kInner && !taken(v.var)) return false;  // would run once for each value of v
    return true;
  }

  LoopNode mapped_node() const {
    LoopNode node = node_;
    apply(node, node_splits_);
    apply(node, link_);
    return node;
  }
  const Map& group_splits() const { return group_splits_; }
  const std::vector<GroupVar>& vars() const { return vars_; }

 private:
  // Not an index that was read from memory, which has a variable too.
  static bool is_loop(sym::Expr var) { return var.name()[0] == 'x'; }
  sym::Expr* mapped(sym::Expr node_var) {
    for (auto& [from, to] : link_)
      if (from == node_var) return &to;
    return nullptr;
  }
  bool taken(sym::Expr group_var) const {
    return std::any_of(link_.begin(), link_.end(), [&](auto& l) { return l.second == group_var; });
  }
  std::vector<sym::Expr> current(const std::vector<sym::Expr>& list) const {
    std::vector<sym::Expr> out;
    for (sym::Expr v : list) append_vars(replace(v, node_splits_), out);
    return out;
  }
  bool is_inner(sym::Expr node_var) const {
    auto list = current(node_.inner);
    return std::find(list.begin(), list.end(), node_var) != list.end();
  }
  bool allowed(sym::Expr node_var, sym::Expr group_var) const {
    const bool folds = node_.kind == LoopNode::Kind::kReduce || node_.kind == LoopNode::Kind::kScan;
    for (const GroupVar& v : vars_) {
      if (!(v.var == group_var)) continue;
      if (v.role == Role::kFree) return true;
      if (is_inner(node_var)) return v.role == Role::kInner;
      return !folds || v.role == Role::kRow;
    }
    return false;
  }
  void set_role(sym::Expr group_var, Role role) {
    for (GroupVar& v : vars_)
      if (v.var == group_var) v.role = role;
  }
  void fresh(sym::Expr node_var, Role role) {
    vars_.push_back({node_var, role});
    link_.emplace_back(node_var, node_var);
  }
  static void add_split(Map& splits, sym::Expr v, sym::Expr to) {
    for (auto& [from, expr] : splits) expr = replace(expr, {{v, to}});
    splits.emplace_back(v, to);
  }
  std::pair<sym::Expr, sym::Expr> split_node(sym::Expr v, sym::Expr low) {
    const sym::Expr hi = p_.fresh(sym::quotient(extent_of(v), low)), lo = p_.fresh(low);
    add_split(node_splits_, v, hi * low + lo);
    return {hi, lo};
  }
  std::pair<sym::Expr, sym::Expr> split_group(sym::Expr v, sym::Expr low) {
    const sym::Expr hi = p_.fresh(sym::quotient(extent_of(v), low)), lo = p_.fresh(low);
    add_split(group_splits_, v, hi * low + lo);
    for (size_t i = 0; i < vars_.size(); ++i)
      if (vars_[i].var == v) {
        vars_[i].var = hi;
        vars_.insert(vars_.begin() + static_cast<std::ptrdiff_t>(i) + 1, {lo, vars_[i].role});
        break;
      }
    return {hi, lo};
  }

  LoopProgram& p_;
  std::vector<GroupVar> vars_;
  const LoopNode& node_;
  Map link_;         // node variable -> group variable
  Map node_splits_;  // node variable -> hi*k + lo
  Map group_splits_;
};

bool has_inner(const std::vector<GroupVar>& vars) {
  return std::any_of(vars.begin(), vars.end(), [](const GroupVar& v) { return v.role == Role::kInner; });
}

class Fuser {
 public:
  Fuser(LoopProgram& p, const ScheduleOptions& options) : p_(p), options_(options) {}

  Fused run() {
    group_of_.assign(p_.nodes.size(), -1);
    producers_.resize(p_.graph.values.size());
    readers_.resize(p_.graph.values.size());
    extern_unit_.assign(p_.graph.nodes.size(), -1);
    data_sizes_ = graph::data_sizes_before(p_.graph);
    // Program order: nodes and extern nodes interleaved by node number.
    size_t next_node = 0;
    for (size_t n = 0; n < p_.graph.nodes.size(); ++n) {
      if (!p_.graph.nodes[n].op->is_prim()) add_extern(static_cast<int32_t>(n));
      while (next_node < p_.nodes.size() && p_.nodes[next_node].graph_node <= static_cast<int32_t>(n))
        add_node(static_cast<int32_t>(next_node++));
    }
    absorb_reductions();
    mark_stored();
    Fused f;
    f.groups = std::move(groups_);
    f.order = order(f.groups);
    return f;
  }

 private:
  // Units (groups and externs) with the set of all units that must run before them, and those that follow on them: a
  // chain of thousands of units has millions of pairs, so only the former are a set of bits.
  struct UnitState {
    int32_t group = -1, node = -1;
    std::vector<uint64_t> before;
    std::vector<int32_t> next;
  };
  static bool test(const std::vector<uint64_t>& bits, int32_t i) {
    const auto word = static_cast<size_t>(i) / 64;
    return word < bits.size() && (bits[word] >> (i % 64) & 1);
  }
  static void set(std::vector<uint64_t>& bits, int32_t i) {
    const auto word = static_cast<size_t>(i) / 64;
    if (word >= bits.size()) bits.resize(word + 1);
    bits[word] |= uint64_t{1} << (i % 64);
  }
  // Whether `a` grew.
  static bool unite(std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
    if (b.size() > a.size()) a.resize(b.size());
    uint64_t added = 0;
    for (size_t i = 0; i < b.size(); ++i) {
      added |= b[i] & ~a[i];
      a[i] |= b[i];
    }
    return added != 0;
  }
  void depend(int32_t unit, int32_t on) {
    if (test(units_[unit].before, on)) return;
    std::vector<uint64_t> add = units_[on].before;
    set(add, on);
    units_[on].next.push_back(unit);
    std::vector<int32_t> grown{unit};
    while (!grown.empty()) {
      UnitState& u = units_[grown.back()];
      grown.pop_back();
      if (unite(u.before, add)) grown.insert(grown.end(), u.next.begin(), u.next.end());
    }
  }

  void add_extern(int32_t n) {
    const auto unit = static_cast<int32_t>(units_.size());
    units_.push_back({-1, n});
    extern_unit_[n] = unit;
    const graph::Node& node = p_.graph.nodes[n];
    for (int32_t maker : makers_of_sizes(n)) depend(unit, extern_unit_[maker]);
    for (const Arg& a : node.args)
      graph::for_each_ref(a, [&](ValueId v) {
        const ValueId base = p_.views[v].base != kNoValue ? p_.views[v].base : v;
        for (int32_t producer : producers_[base]) depend(unit, producer);
      });
    // Externs keep their order where it can be seen.
    if (node.op->once()) {
      if (last_effect_ >= 0) depend(unit, last_effect_);
      last_effect_ = unit;
    }
    for (ValueId v : node.outs)
      if (v != kNoValue) producers_[v].push_back(unit);
  }

  void add_node(int32_t id) {
    LoopNode& node = p_.nodes[id];
    int32_t unit = -1;
    for (int32_t candidate : candidates(node)) {
      if (join(candidate, id)) {
        unit = candidate;
        break;
      }
    }
    if (unit < 0) {
      unit = static_cast<int32_t>(units_.size());
      units_.push_back({static_cast<int32_t>(groups_.size()), -1});
      Group& g = groups_.emplace_back();
      g.frozen = node.frozen;
      g.nodes = {id};
      const bool folds = node.kind != LoopNode::Kind::kMap;
      for (sym::Expr v : node.vars) g.vars.push_back({v, folds ? Role::kRow : Role::kFree});
      for (sym::Expr v : node.inner) g.vars.push_back({v, Role::kInner});
    }
    group_of_[id] = unit;
    for (int32_t maker : makers_of_sizes(p_.nodes[id].graph_node)) depend(unit, extern_unit_[maker]);
    for (const Access& a : p_.nodes[id].reads) {
      for (int32_t producer : producers_[a.value])
        if (producer != unit) depend(unit, producer);
      if (std::find(readers_[a.value].begin(), readers_[a.value].end(), unit) == readers_[a.value].end())
        readers_[a.value].push_back(unit);
    }
    auto& producers = producers_[node.value];
    if (p_.nodes[id].kind == LoopNode::Kind::kScatter || p_.nodes[id].alone)
      for (int32_t producer : producers)
        if (producer != unit) depend(unit, producer);
    if (std::find(producers.begin(), producers.end(), unit) == producers.end()) producers.push_back(unit);
  }

  // The operators that found sizes which a node depends on, in whatever it reads.
  std::span<const int32_t> makers_of_sizes(int32_t node) const {
    return data_sizes_.empty() ? std::span<const int32_t>() : data_sizes_[static_cast<size_t>(node)];
  }

  double bytes(ValueId v) const {
    double n = info(p_.memory[v].dtype).bytes;
    for (sym::Expr s : p_.memory[v].sizes) n *= static_cast<double>(s.hint());
    return n;
  }

  // Groups worth trying, best first: those that made what the node reads, then those that read the same.
  std::vector<int32_t> candidates(const LoopNode& node) const {
    if (node.kind == LoopNode::Kind::kScatter || node.alone) return {};
    std::vector<std::pair<double, int32_t>> scored;
    auto add = [&](int32_t unit, double score) {
      if (units_[unit].group < 0 || !has_room(groups_[units_[unit].group], node)) return;
      for (auto& [s, u] : scored)
        if (u == unit) {
          s += score;
          return;
        }
      scored.emplace_back(score, unit);
    };
    double total = bytes(node.value);
    for (const Access& a : node.reads) total += bytes(a.value);
    for (const Access& a : node.reads) {
      for (int32_t producer : producers_[a.value]) add(producer, 4 * bytes(a.value) + 1);
      if (bytes(a.value) * 4 < total) continue;
      // (What each step of a long loop reads, such as weights, has thousands of readers.)
      constexpr size_t kLatest = 64;
      const std::vector<int32_t>& readers = readers_[a.value];
      for (size_t i = readers.size() - std::min(readers.size(), kLatest); i < readers.size(); ++i)
        add(readers[i], bytes(a.value));
    }
    if (node.partial)
      for (int32_t producer : producers_[node.value]) add(producer, bytes(node.value));
    if (small_sum(node))  // what one kernel left of several sums in parts
      for (const Access& a : node.reads)
        for (int32_t producer : producers_[a.value]) {
          if (units_[producer].group < 0) continue;
          for (int32_t made : groups_[units_[producer].group].nodes)
            if (is_sibling(p_.nodes[made].value, a.value))
              for (int32_t reader : readers_[p_.nodes[made].value]) add(reader, bytes(a.value) / 2);
        }
    std::stable_sort(scored.begin(), scored.end(), [](auto& a, auto& b) { return a.first > b.first; });
    std::vector<int32_t> result;
    for (auto& [score, unit] : scored)
      if (result.size() < 6) result.push_back(unit);
    return result;
  }

  // GPU: a launch is dearer than such a sum.
  bool small_sum(const LoopNode& node) const {
    if (options_.processors == 0 || node.kind != LoopNode::Kind::kReduce || node.partial) return false;
    double total = 0;
    for (const Access& a : node.reads) total += bytes(a.value);
    return total <= 4 << 20;
  }
  bool is_sibling(ValueId a, ValueId b) const {
    return a != b && p_.memory[a].dtype == p_.memory[b].dtype && same_sizes(p_.memory[a].sizes, p_.memory[b].sizes) &&
           same_sizes(p_.memory[a].strides, p_.memory[b].strides);
  }

  // What a kernel may hold before it is split: a compiler's time grows faster than its text (g++ 12 takes 0.35 s for
  // 600 operations, 2.8 s for 2600), and so do the registers that spill.
  bool has_room(const Group& group, const LoopNode& node) const {
    constexpr size_t kMostNodes = 48;
    constexpr int64_t kMostCost = 512;
    if (group.nodes.size() >= kMostNodes) return false;
    int64_t cost = node.cost;
    for (int32_t other : group.nodes) cost += p_.nodes[other].cost;
    return cost <= kMostCost;
  }

  bool join(int32_t unit, int32_t id) {
    const LoopNode& node = p_.nodes[id];
    Group& group = groups_[units_[unit].group];
    if (group.frozen != node.frozen || !has_room(group, node)) return false;
    for (int32_t other : group.nodes)
      if (p_.nodes[other].kind == LoopNode::Kind::kScatter || p_.nodes[other].alone) return false;
    // Nothing that the node needs may itself need the group.
    for (const Access& a : node.reads)
      for (int32_t producer : producers_[a.value])
        if (producer != unit && test(units_[producer].before, unit)) return false;
    for (int32_t maker : makers_of_sizes(node.graph_node))
      if (test(units_[extern_unit_[maker]].before, unit)) return false;

    Match match(p_, group, node);
    for (const Access& a : node.reads)
      for (int32_t other : group.nodes) {
        const LoopNode& m = p_.nodes[other];
        if (m.value != a.value) continue;
        if (m.partial) return false;
        match.learn(m.write.address, a.address);
      }
    for (int32_t other : group.nodes)
      for (const Access& b : p_.nodes[other].reads)
        if (b.value == node.value && !node.partial) match.learn(b.address, node.write.address);
    for (const Access& a : node.reads)
      for (int32_t other : group.nodes)
        for (const Access& b : p_.nodes[other].reads)
          if (a.value == b.value) match.learn(b.address, a.address);
    if (small_sum(node))
      for (const Access& a : node.reads)
        for (int32_t other : group.nodes)
          if (small_sum(p_.nodes[other]))
            for (const Access& b : p_.nodes[other].reads)
              if (is_sibling(a.value, b.value)) match.learn(b.address, a.address);
    if (node.partial)
      for (int32_t other : group.nodes)
        if (p_.nodes[other].value == node.value) match.learn(p_.nodes[other].write.address, node.write.address);
    if (!match.finish()) return false;

    Group next;
    next.frozen = group.frozen;
    next.vars = match.vars();
    const LoopNode mine = match.mapped_node();
    std::vector<LoopNode> members;
    for (int32_t other : group.nodes) {
      members.push_back(p_.nodes[other]);
      apply(members.back(), match.group_splits());
    }
    for (const Access& a : mine.reads)
      for (const LoopNode& m : members)
        if (m.value == a.value && dependence_of(next, m, a) == Dependence::kElsewhere) return false;
    for (const LoopNode& m : members)
      for (const Access& a : m.reads)
        if (a.value == mine.value && !mine.partial && dependence_of(next, mine, a) == Dependence::kElsewhere)
          return false;
    if (!profitable(next, members, mine)) return false;

    for (size_t i = 0; i < members.size(); ++i) p_.nodes[group.nodes[i]] = std::move(members[i]);
    p_.nodes[id] = mine;
    next.nodes = group.nodes;
    next.nodes.insert(std::upper_bound(next.nodes.begin(), next.nodes.end(), id), id);
    group = std::move(next);
    return true;
  }

  // A reduction that found no group when it came, but whose only reader is one that since went over the same memory:
  // the first sum of a norm's backward, say, where the second was kept by another group.
  void absorb_reductions() {
    std::vector<int32_t> reader(p_.graph.values.size(), -1);  // unit; -2: several
    const auto read_by = [&](ValueId v, int32_t unit) {
      if (p_.views[v].base != kNoValue) v = p_.views[v].base;
      reader[v] = reader[v] == -1 || reader[v] == unit ? unit : -2;
    };
    for (size_t i = 0; i < p_.nodes.size(); ++i)
      for (const Access& a : p_.nodes[i].reads) read_by(a.value, group_of_[i]);
    for (size_t u = 0; u < units_.size(); ++u)
      if (units_[u].node >= 0)
        for (const Arg& a : p_.graph.nodes[units_[u].node].args)
          graph::for_each_ref(a, [&](ValueId v) { read_by(v, static_cast<int32_t>(u)); });
    for (size_t i = 0; i < p_.nodes.size(); ++i) {
      const LoopNode& node = p_.nodes[i];
      const int32_t from = group_of_[i], to = reader[node.value];
      if (node.kind != LoopNode::Kind::kReduce || node.partial || node.alone || p_.facts[node.value].required ||
          to < 0 || to == from || units_[to].group < 0 || groups_[units_[from].group].nodes.size() != 1)
        continue;
      double total = 0;
      for (const Access& a : node.reads) total += bytes(a.value);
      const auto shared = [&](const Access& a) {
        return bytes(a.value) * 2 >= total &&
               std::find(readers_[a.value].begin(), readers_[a.value].end(), to) != readers_[a.value].end();
      };
      if (std::none_of(node.reads.begin(), node.reads.end(), shared) && !is_twin(node, groups_[units_[to].group]))
        continue;
      if (!join(to, static_cast<int32_t>(i))) continue;
      groups_[units_[from].group].nodes.clear();  // the unit stays, as a place in the order
      group_of_[i] = to;
    }
  }

  // GPU: whether a member sums up as many elements as the node does, of as many rows, and both read a third tensor: a
  // gate's matrix and that of what it lets through, times one vector.
  bool is_twin(const LoopNode& node, const Group& group) const {
    if (options_.processors == 0) return false;
    return std::any_of(group.nodes.begin(), group.nodes.end(), [&](int32_t other) {
      const LoopNode& m = p_.nodes[other];
      const auto reads = [&](const Access& a) {
        return std::any_of(m.reads.begin(), m.reads.end(), [&](const Access& b) { return a.value == b.value; });
      };
      return m.kind == LoopNode::Kind::kReduce && !m.partial && points(m) == points(node) &&
             same_sizes(p_.memory[m.value].sizes, p_.memory[node.value].sizes) &&
             std::any_of(node.reads.begin(), node.reads.end(), reads);
    });
  }
  static sym::Expr points(const LoopNode& node) {
    sym::Expr n = 1;
    for (sym::Expr v : node.inner) n *= extent_of(v);
    return n;
  }

  bool profitable(const Group& after, const std::vector<LoopNode>& members, const LoopNode& mine) const {
    // Few long rows: the stages of one row would run on one thread, over memory that no cache holds.
    double rows = 1, inner = 1;
    for (const GroupVar& v : after.vars) (v.role == Role::kInner ? inner : rows) *= typical_extent(v.var);
    if (options_.processors > 0) {
      if (has_inner(after.vars) && rows < options_.processors && inner > 1 << 14) return false;
      // Columns are taken 32 to a program: few of them would walk through everything that a kernel of its own spreads
      // over the machine.
      const sym::Expr along = unit_var(mine.write.address);
      const bool columns = std::any_of(after.vars.begin(), after.vars.end(),
                                       [&](const GroupVar& v) { return v.var == along && v.role != Role::kInner; });
      const double programs = columns ? std::floor((rows + 31) / 32) : rows;
      if (mine.kind == LoopNode::Kind::kMap && reaches_inner(after, mine) && programs < 2.0 * options_.processors &&
          inner >= 256 && rows * inner >= 1 << 17)
        return false;
    } else if (has_inner(after.vars) && rows < 4.0 * options_.threads &&
               inner >= static_cast<double>(options_.split_numel)) {
      return false;
    }
    // Stores along different loops: the one would be scattered over lanes. A kernel of its own is tiled.
    if (!has_inner(after.vars) && rows >= 1024) {
      const sym::Expr along = unit_var(mine.write.address);
      for (const LoopNode& m : members)
        if (m.kind == LoopNode::Kind::kMap && !(unit_var(m.write.address) == along)) return false;
    }
    return true;
  }
  static bool reaches_inner(const Group& g, const LoopNode& node) {
    return std::any_of(node.vars.begin(), node.vars.end(), [&](sym::Expr v) {
      return std::any_of(g.vars.begin(), g.vars.end(),
                         [&](const GroupVar& x) { return x.var == v && x.role == Role::kInner; });
    });
  }
  static sym::Expr unit_var(sym::Expr address) {
    std::vector<sym::Expr> vars;
    sym::collect_vars(address, vars);
    for (sym::Expr v : vars)
      if (auto c = sym::coefficient(address, v); c && c->is_const(1)) return v;
    return 0;
  }

  void mark_stored() {
    for (LoopNode& node : p_.nodes) node.stored = p_.facts[node.value].required || node.partial;
    std::vector<std::vector<int32_t>> by_value(p_.graph.values.size());
    for (size_t i = 0; i < p_.nodes.size(); ++i) by_value[p_.nodes[i].value].push_back(static_cast<int32_t>(i));
    for (size_t i = 0; i < p_.nodes.size(); ++i)
      for (const Access& a : p_.nodes[i].reads)
        for (int32_t producer : by_value[a.value])
          if (group_of_[producer] != group_of_[i]) p_.nodes[producer].stored = true;
  }

  // Where a node stands in the program. A part of a cat that lies alone stands behind what it copies.
  int32_t position_of(const LoopNode& node) const {
    if (!node.alone || p_.graph.nodes[node.graph_node].op->prim != Prim::cat) return node.graph_node;
    int32_t last = -1;
    for (const Access& a : node.reads) last = std::max(last, p_.producers.of[a.value].node);
    return last;
  }

  std::vector<Unit> order(const std::vector<Group>& groups) const {
    // Ready units by where their last node stood in the program: results are made shortly before they are used.
    std::vector<int32_t> position(units_.size());
    for (size_t u = 0; u < units_.size(); ++u) {
      position[u] = units_[u].node;
      if (units_[u].group >= 0)
        for (int32_t i : groups[units_[u].group].nodes) position[u] = std::max(position[u], position_of(p_.nodes[i]));
    }
    std::vector<int32_t> waiting(units_.size());
    for (const UnitState& u : units_)
      for (int32_t next : u.next) ++waiting[next];
    std::priority_queue<std::pair<int32_t, int32_t>, std::vector<std::pair<int32_t, int32_t>>, std::greater<>> ready;
    for (size_t u = 0; u < units_.size(); ++u)
      if (waiting[u] == 0) ready.emplace(position[u], static_cast<int32_t>(u));
    std::vector<Unit> result;
    size_t done = 0;
    while (!ready.empty()) {
      const int32_t u = ready.top().second;
      ready.pop();
      ++done;
      if (units_[u].node >= 0 || !groups[units_[u].group].nodes.empty())
        result.push_back({units_[u].group, units_[u].node});
      for (int32_t next : units_[u].next)
        if (--waiting[next] == 0) ready.emplace(position[next], next);
    }
    FLASHOVER_CHECK(done == units_.size()) << "fusion made a cycle";
    return result;
  }

  LoopProgram& p_;
  const ScheduleOptions& options_;
  std::vector<Group> groups_;
  std::vector<UnitState> units_;
  std::vector<int32_t> group_of_;                          // unit of a node
  std::vector<std::vector<int32_t>> producers_, readers_;  // units, by value
  std::vector<int32_t> extern_unit_;
  std::vector<std::vector<int32_t>> data_sizes_;  // by graph node; empty: there are none
  int32_t last_effect_ = -1;
};

}  // namespace

Dependence dependence_of(const Group& g, const LoopNode& producer, const Access& read) {
  if (producer.partial) return Dependence::kElsewhere;
  if (read.address == producer.write.address) return Dependence::kSameElement;
  if (!has_inner(g.vars) || producer.kind == LoopNode::Kind::kReduce) return Dependence::kElsewhere;
  // Equal row parts, and the inner part within the block that the row wrote.
  auto theirs = terms_of(producer.write.address), mine = terms_of(read.address);
  if (!theirs || !mine) return Dependence::kElsewhere;
  sym::Expr row_theirs = producer.write.address, row_mine = read.address;
  sym::Expr block = 1, reach = 0;
  for (const GroupVar& v : g.vars) {
    if (v.role != Role::kInner) continue;
    row_theirs = replace(row_theirs, {{v.var, 0}});
    row_mine = replace(row_mine, {{v.var, 0}});
  }
  auto is_row = [&](sym::Expr v) {
    return std::any_of(g.vars.begin(), g.vars.end(),
                       [&](const GroupVar& x) { return x.var == v && x.role != Role::kInner; });
  };
  for (const Term& t : *theirs) {
    if (is_row(t.var)) continue;
    if (!(t.coef == block)) return Dependence::kElsewhere;
    block *= t.extent;
  }
  for (const Term& t : *mine)
    if (!is_row(t.var)) reach += t.coef * (t.extent - 1);
  const sym::Expr shift = row_mine - row_theirs;
  if (!only_sizes(shift) || !sym::known_le(0, shift) || !sym::known_lt(shift + reach, block))
    return Dependence::kElsewhere;
  return Dependence::kSameRow;
}

Fused fuse(LoopProgram& program, const ScheduleOptions& options) { return Fuser(program, options).run(); }

std::string print(const Fused& f, const LoopProgram& p) {
  std::string out;
  for (const Unit& u : f.order) {
    if (u.node >= 0) {
      out += "extern " + p.graph.nodes[u.node].op->name + "\n";
      continue;
    }
    const Group& g = f.groups[u.group];
    out += std::string(g.frozen ? "frozen " : "") + "group";
    for (const GroupVar& v : g.vars)
      out += " " + std::string(v.var.name()) + (v.role == Role::kInner ? "*" : v.role == Role::kRow ? "" : "?");
    out += ":";
    for (int32_t i : g.nodes) out += " %" + std::to_string(p.nodes[i].value) + (p.nodes[i].stored ? "!" : "");
    out += "\n";
  }
  return out;
}

}  // namespace flashover::loops
