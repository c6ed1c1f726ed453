// Finds the makers of symbols by the types of results, and follows arguments and operands.
#include "graph/analysis/data_sizes.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"

namespace flashover::graph {
namespace {

using MakerOf = std::unordered_map<sym::Expr, int32_t>;  // by symbol

MakerOf find_makers(const Graph& g) {
  MakerOf out;
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    if (!g.nodes[n].op->data_sized) continue;
    for (ValueId v : g.nodes[n].outs) {
      if (v == kNoValue) continue;
      for (sym::Expr e : g.type(v).sizes)
        if (e.kind() == sym::Kind::kVar && sym::has_data_size(e)) out.try_emplace(e, static_cast<int32_t>(n));
    }
  }
  return out;
}

void collect_data_sizes(sym::Expr e, std::vector<sym::Expr>& out) {
  if (e.is_const() || !sym::has_data_size(e)) return;
  std::vector<sym::Expr> all;
  sym::collect_vars(e, all);
  for (sym::Expr s : all)
    if (sym::has_data_size(s)) out.push_back(s);
}
void collect_data_sizes(const Sizes& list, std::vector<sym::Expr>& out) {
  for (sym::Expr e : list) collect_data_sizes(e, out);
}
void collect_data_sizes(const TensorType& t, std::vector<sym::Expr>& out) {
  collect_data_sizes(t.sizes, out);
  collect_data_sizes(t.strides, out);
  collect_data_sizes(t.offset, out);
}

// f(symbol) for each symbol of data in a node's arguments and results.
template <typename F>
void for_each_data_size(const Graph& g, const Node& node, F&& f) {
  std::vector<sym::Expr> symbols;
  for (const Arg& a : node.args) {
    if (const auto* e = std::get_if<sym::Expr>(&a)) collect_data_sizes(*e, symbols);
    if (const auto* list = std::get_if<Sizes>(&a)) collect_data_sizes(*list, symbols);
  }
  for (ValueId v : node.outs)
    if (v != kNoValue) collect_data_sizes(g.type(v), symbols);
  for (sym::Expr s : symbols) f(s);
}

void insert(std::vector<int32_t>& sorted, int32_t n) {
  const auto at = std::ranges::lower_bound(sorted, n);
  if (at == sorted.end() || *at != n) sorted.insert(at, n);
}

}  // namespace

std::vector<std::vector<int32_t>> data_sizes_before(const Graph& g) {
  const MakerOf makers = find_makers(g);
  std::vector<std::vector<int32_t>> out;
  if (makers.empty()) return out;
  out.resize(g.nodes.size());
  std::vector<int32_t> producer(g.values.size(), -1);
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const auto n = static_cast<int32_t>(i);
    for (ValueId v : g.nodes[i].outs)
      if (v != kNoValue) producer[v] = n;
    for (const Arg& a : g.nodes[i].args)
      for_each_ref(a, [&](ValueId v) {
        if (producer[v] < 0) return;
        for (int32_t maker : out[producer[v]]) insert(out[i], maker);
      });
    for_each_data_size(g, g.nodes[i], [&](sym::Expr s) {
      if (const auto maker = makers.find(s); maker != makers.end() && maker->second != n) insert(out[i], maker->second);
    });
  }
  return out;
}

std::vector<std::pair<sym::Expr, ValueId>> untold_data_sizes(const Graph& g, const Graph& from) {
  std::vector<sym::Expr> met;
  std::unordered_set<sym::Expr> told;
  for (const Input& in : g.inputs) {
    collect_data_sizes(g.type(in.value), met);
    for (sym::Expr e : g.type(in.value).sizes) told.insert(e);
  }
  for (const Node& n : g.nodes) for_each_data_size(g, n, [&](sym::Expr s) { met.push_back(s); });
  for (const Output& o : g.outputs) collect_data_sizes(o.type, met);
  std::vector<std::pair<sym::Expr, ValueId>> out;
  if (met.empty()) return out;
  const MakerOf makers = find_makers(from);
  for (sym::Expr s : met) {
    if (!told.insert(s).second) continue;
    ValueId found = kNoValue;
    if (const auto maker = makers.find(s); maker != makers.end())
      for (ValueId v : from.nodes[static_cast<size_t>(maker->second)].outs)
        if (found == kNoValue && v != kNoValue && std::ranges::find(from.type(v).sizes, s) != from.type(v).sizes.end())
          found = v;
    out.emplace_back(s, found);
  }
  return out;
}

Graph behind_data_sizes(Graph g) {
  const MakerOf makers = find_makers(g);
  if (makers.empty()) return g;
  std::vector<int32_t> producer(g.values.size(), -1);
  for (size_t i = 0; i < g.nodes.size(); ++i)
    for (ValueId v : g.nodes[i].outs)
      if (v != kNoValue) producer[v] = static_cast<int32_t>(i);
  std::vector<bool> placed(g.nodes.size());
  std::vector<Node> nodes;
  const auto is_ready = [&](const Node& node, int32_t n) {
    bool ready = true;
    const auto need = [&](int32_t other) { ready = ready && (other < 0 || other == n || placed[other]); };
    for (const Arg& a : node.args) for_each_ref(a, [&](ValueId v) { need(producer[v]); });
    for_each_data_size(g, node, [&](sym::Expr s) {
      if (const auto maker = makers.find(s); maker != makers.end()) need(maker->second);
    });
    return ready;
  };
  while (nodes.size() < g.nodes.size()) {
    const size_t before = nodes.size();
    for (size_t i = 0; i < g.nodes.size(); ++i) {
      if (placed[i] || !is_ready(g.nodes[i], static_cast<int32_t>(i))) continue;
      placed[i] = true;
      nodes.push_back(g.nodes[i]);
    }
    if (nodes.size() == before) throw InternalError("sizes that follow from data depend on each other");
  }
  g.nodes = std::move(nodes);
  return g;
}

}  // namespace flashover::graph
