// Finds sums with a table's gradient among their addends, and makes the rest of the sum what rows are added to.
#include "graph/passes/accumulate_rows.h"

#include <algorithm>

#include "graph/analysis/addends.h"
#include "graph/rewrite/in_order.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

class RowAdder {
 public:
  explicit RowAdder(Graph& g) : g_(g), sums_(g) {}

  Graph run() {
    std::vector<Chain> chains;
    constexpr int32_t kBase = -1;
    struct Event {  // what is added behind a node
      size_t chain;
      int32_t table;  // or kBase
    };
    std::vector<std::vector<Event>> behind(g_.nodes.size());
    std::vector<int32_t> ends(g_.nodes.size(), -1);  // the chain whose sum a node was
    for (size_t i = g_.nodes.size(); i-- > 0;) {
      if (!sums_.is_root(i)) continue;
      Chain chain = chain_of(sums_.addends(i), g_.type(g_.nodes[i].outs[0]));
      if (chain.tables.empty()) continue;
      ends[i] = static_cast<int32_t>(chains.size());
      behind[chain.base_at].push_back({chains.size(), kBase});
      for (int32_t t : chain.tables) behind[std::max(t, chain.base_at)].push_back({chains.size(), t});
      chains.push_back(std::move(chain));
    }
    if (chains.empty()) return std::move(g_);
    return rewrite_in_order(g_, [&](size_t i, Node n, const Rewritten& out) {
      auto& [graph, b, replacement] = out;
      if (ends[i] >= 0)
        replacement.set(n.outs[0], chains[ends[i]].sum);
      else
        graph.nodes.push_back(std::move(n));
      for (const Event& e : behind[i]) {
        Chain& chain = chains[e.chain];
        if (e.table == kBase) {
          b.set_location(g_.nodes[i].location);
          for (ValueId v : chain.others) {
            const ValueId now = replacement.resolve(v);
            chain.sum = chain.sum == kNoValue ? now : b.add(chain.sum, now);
          }
        } else {
          const Node& table = g_.nodes[e.table];
          b.set_location(table.location);
          TensorType type = g_.type(table.outs[0]);
          type.strides = contiguous_strides(type.sizes);
          chain.sum = b.emit("flashover.add_rows.default",
                             {Ref{chain.sum}, Ref{replacement.resolve(ops::as_value(table.args[0]))},
                              Ref{replacement.resolve(ops::as_value(table.args[1]))}, table.args[3]},
                             std::move(type));
        }
      }
    });
  }

 private:
  struct Chain {
    std::vector<ValueId> others;  // addends
    std::vector<int32_t> tables;  // nodes
    int32_t base_at = 0;          // the node behind which the others are there
    ValueId sum = kNoValue;       // so far
  };

  Chain chain_of(const std::vector<ValueId>& addends, const TensorType& type) const {
    Chain c;
    if (type.device.type != DeviceType::kCPU || type.dtype != DType::kF32 ||
        !same_sizes(type.strides, contiguous_strides(type.sizes)))
      return c;
    for (ValueId v : addends) {
      if (is_table(v, type))
        c.tables.push_back(sums_.producer(v));
      else
        c.others.push_back(v);
    }
    std::ranges::sort(c.tables);
    if (c.others.empty()) {  // the first is a table
      c.others.push_back(g_.nodes[c.tables[0]].outs[0]);
      c.tables.erase(c.tables.begin());
    }
    c.base_at = -1;
    for (ValueId v : c.others) c.base_at = std::max(c.base_at, sums_.producer(v));
    // Rows that wait for the others are to be fewer than the table's.
    const auto waits = [&](int32_t t) {
      return t < c.base_at && type.numel().hint() < g_.type(ops::as_value(g_.nodes[t].args[0])).numel().hint();
    };
    for (int32_t t : c.tables)
      if (waits(t)) c.others.push_back(g_.nodes[t].outs[0]);
    std::erase_if(c.tables, waits);
    if (c.base_at < 0 && !c.tables.empty()) c.base_at = c.tables[0];
    return c;
  }

  // The gradient of a table, that nothing else reads. (Where rows are divided by how often they occur, one of several
  // gradients cannot do that.)
  bool is_table(ValueId v, const TensorType& type) const {
    const int32_t at = sums_.producer(v);
    if (at < 0 || sums_.uses(v) != 1 || !Addends::same(g_.type(v), type)) return false;
    const Node& n = g_.nodes[at];
    return n.op->name == op::embedding_dense_backward && !ops::as_bool(n.args[4]) &&
           g_.type(ops::as_value(n.args[0])).dtype == DType::kF32;
  }

  Graph& g_;
  Addends sums_;
};

}  // namespace

Graph accumulate_rows(Graph core, const target::Providers& providers) {
  if (providers.strict_numerics) return core;
  if (!providers.own_f32) return core;
  return RowAdder(core).run();
}

}  // namespace flashover::graph
