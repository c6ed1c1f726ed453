// Puts zeros in the place of absent tangents, and removes what follows from them.
#include "graph/partition/prune.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "graph/builder.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

enum class Tangent : uint8_t { kFree, kAbsent, kThere };  // of no tangent, of absent ones only, of one that comes

Arg zero_of(DType d) {
  if (d == DType::kBool) return false;
  if (info(d).complex) return std::complex<double>(0, 0);
  if (is_integral(d)) return sym::Expr(0);
  return 0.0;
}

// The sizes that a node computes with.
void collect_sizes(const Graph& g, const Node& n, std::vector<sym::Expr>& out) {
  const auto collect = [&](const Sizes& sizes) {
    for (sym::Expr e : sizes) sym::collect_vars(e, out);
  };
  for (const Arg& a : n.args) {
    if (const auto* e = std::get_if<sym::Expr>(&a)) collect({*e});
    if (const auto* l = std::get_if<Sizes>(&a)) collect(*l);
  }
  for (ValueId v : n.outs) {
    if (v == kNoValue) continue;
    collect(g.type(v).sizes);
    collect(g.type(v).strides);
    collect({g.type(v).offset});
  }
}

// The inputs that nodes of absent tangents read, themselves or computed from the inputs alone; and the sizes that these
// nodes compute with.
std::vector<int32_t> read_by_absent(const Graph& g, const std::vector<Tangent>& state,
                                    const std::vector<Tangent>& of_node, std::vector<sym::Expr>& sizes) {
  std::vector<bool> read(g.values.size());
  for (size_t i = g.nodes.size(); i-- > 0;) {
    bool reads = of_node[i] == Tangent::kAbsent;
    for (ValueId v : g.nodes[i].outs) reads = reads || (v != kNoValue && read[v]);
    if (!reads) continue;
    collect_sizes(g, g.nodes[i], sizes);
    for (const Arg& a : g.nodes[i].args)
      for_each_ref(a, [&](ValueId v) { read[v] = read[v] || state[v] == Tangent::kFree; });
  }
  std::vector<int32_t> out;
  for (size_t i = 0; i < g.inputs.size(); ++i)
    if (read[g.inputs[i].value]) out.push_back(static_cast<int32_t>(i));
  return out;
}

// Which inputs are to be there beside `there`, though no node reads them, so that a size that is needed is the size of
// an input: those without elements (partition() saves sizes as such) before others. Tangents do not always come.
// Leaves in `needed` what none tells.
std::vector<int32_t> that_tell_sizes(const Graph& g, std::vector<sym::Expr>& needed, const std::vector<int32_t>& there,
                                     const std::vector<bool>& tangent) {
  const auto sizes_of = [&](int32_t i) -> const Sizes& { return g.type(g.inputs[static_cast<size_t>(i)].value).sizes; };
  for (int32_t i : there)
    for (sym::Expr e : sizes_of(i)) std::erase(needed, e);
  const auto is_zero = [](sym::Expr e) { return e.is_const(0); };
  std::vector<int32_t> out;
  for (const bool without_elements : {true, false})
    for (int32_t i = 0; i < static_cast<int32_t>(g.inputs.size()); ++i) {
      const Sizes& sizes = sizes_of(i);
      if (tangent[static_cast<size_t>(i)] || std::ranges::any_of(sizes, is_zero) != without_elements) continue;
      const size_t before = needed.size();
      for (sym::Expr e : sizes) std::erase(needed, e);
      if (needed.size() != before) out.push_back(i);
    }
  return out;
}

void keep_inputs_that_tell_sizes(const Graph& g, const std::vector<bool>& tangent, Pruned& out) {
  std::vector<sym::Expr> used;
  for (const Node& n : out.graph.nodes) collect_sizes(out.graph, n, used);
  for (int32_t i : that_tell_sizes(g, used, out.inputs, tangent)) {
    out.inputs.push_back(i);
    const Input& in = g.inputs[static_cast<size_t>(i)];
    out.graph.add_input(g.type(in.value), in.kind, in.name);
  }
  std::erase_if(used, sym::has_data_size);  // a node may find those
  if (!used.empty()) throw Declined("nothing tells the size " + used.front().str());
}

}  // namespace

Pruned without_tangents(const Graph& g, const std::vector<bool>& tangent, const std::vector<bool>& absent) {
  std::vector<Tangent> state(g.values.size(), Tangent::kFree);
  for (size_t i = 0; i < g.inputs.size(); ++i)
    if (tangent[i]) state[g.inputs[i].value] = absent[i] ? Tangent::kAbsent : Tangent::kThere;
  // A sum with something absent is its other operand.
  std::vector<ValueId> same(g.values.size(), kNoValue);
  std::vector<Tangent> of_node;
  for (const Node& n : g.nodes) {
    Tangent s = Tangent::kFree;
    for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { s = std::max(s, state[v]); });
    for (ValueId v : n.outs)
      if (v != kNoValue) state[v] = s;
    of_node.push_back(s);
    const bool add = n.op->prim == Prim::add || n.op->name == op::add_Tensor,
               sub = n.op->prim == Prim::sub || n.op->name == op::sub_Tensor;
    if (s != Tangent::kThere || (!add && !sub)) continue;
    const Ref *a = std::get_if<Ref>(&n.args[0]), *b = std::get_if<Ref>(&n.args[1]);
    if (!a || !b ||
        (!n.op->is_prim() &&
         !(n.args.size() > 2 && std::get_if<sym::Expr>(&n.args[2]) && std::get<sym::Expr>(n.args[2]).is_const(1))))
      continue;
    const ValueId left = state[b->id] == Tangent::kAbsent          ? a->id
                         : add && state[a->id] == Tangent::kAbsent ? b->id
                                                                   : kNoValue;
    const ValueId out = n.outs[0];
    if (left != kNoValue && g.type(left).dtype == g.type(out).dtype &&
        same_sizes(g.type(left).sizes, g.type(out).sizes))
      same[out] = same[left] != kNoValue ? same[left] : left;
  }
  const auto real = [&](ValueId v) { return same[v] != kNoValue ? same[v] : v; };

  Pruned out{.graph = Graph(g.facts)};
  std::vector<sym::Expr> left;  // sizes of what is left out
  out.left_out = read_by_absent(g, state, of_node, left);
  for (int32_t i : that_tell_sizes(g, left, out.left_out, tangent)) out.left_out.push_back(i);
  std::vector<bool> live(g.values.size());
  for (size_t i = 0; i < g.outputs.size(); ++i) {
    const Output& o = g.outputs[i];
    FLASHOVER_CHECK(o.kind == Output::Kind::kValue) << "a gradient is a value";
    if (state[o.value] == Tangent::kAbsent) continue;
    out.outputs.push_back(static_cast<int32_t>(i));
    live[real(o.value)] = true;
  }
  std::vector<bool> keep(g.nodes.size());
  for (size_t i = g.nodes.size(); i-- > 0;) {
    const Node& n = g.nodes[i];
    keep[i] = n.op->once() && of_node[i] != Tangent::kAbsent;
    for (ValueId v : n.outs) keep[i] = keep[i] || (v != kNoValue && live[v]);
    if (!keep[i]) continue;
    for (const Arg& a : n.args)
      for_each_ref(a, [&](ValueId v) {
        if (state[v] != Tangent::kAbsent) live[real(v)] = true;
      });
  }
  Graph& p = out.graph;
  std::vector<ValueId> to(g.values.size(), kNoValue);
  for (size_t i = 0; i < g.inputs.size(); ++i) {
    const Input& in = g.inputs[i];
    if (!live[in.value]) continue;
    out.inputs.push_back(static_cast<int32_t>(i));
    to[in.value] = p.add_input(g.type(in.value), in.kind, in.name);
  }
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    if (!keep[i]) continue;
    Node n = g.nodes[i];
    const auto map_to_new = [&](Ref& r) {
      if (r.id == kNoValue) return;
      const ValueId v = real(r.id);
      if (state[v] == Tangent::kAbsent && to[v] == kNoValue) {
        Builder b(p, n.location);
        const TensorType& t = g.type(v);
        to[v] = b.full(t.sizes, zero_of(t.dtype), t.dtype, t.device);
      }
      r.id = to[v];
    };
    for (Arg& a : n.args) {
      if (auto* r = std::get_if<Ref>(&a)) map_to_new(*r);
      if (auto* l = std::get_if<RefList>(&a))
        for (Ref& r : *l) map_to_new(r);
    }
    for (ValueId& v : n.outs) {
      if (v == kNoValue) continue;
      to[v] = p.add_value(g.type(v));
      v = to[v];
    }
    p.nodes.push_back(std::move(n));
  }
  for (const int32_t i : out.outputs) {
    Output o = g.outputs[i];
    o.value = to[real(o.value)];
    p.outputs.push_back(std::move(o));
  }
  keep_inputs_that_tell_sizes(g, tangent, out);
  return out;
}

}  // namespace flashover::graph
