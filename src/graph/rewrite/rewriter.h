// Rewrites that walk the nodes in order and match backwards from a root node.
//
// A rule sees one node whose arguments are values of the graph being built. It may look at the producers of those
// values, append nodes with `b` and give one value per result; what it made superfluous is removed by the dce at the
// end.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "graph/analysis/unpacking.h"
#include "graph/builder.h"
#include "graph/rewrite/replace.h"

namespace flashover::graph {

class Rewriter {
 public:
  // Starts from `in`, which keeps its values (numbers stay valid) and loses the rest to the caller.
  explicit Rewriter(Graph& in);

  Graph out;
  Builder b;

  // The node that computes v, null for inputs.
  const Node* def(ValueId v);
  const Node* def(ValueId v, OpName op);  // null unless it is that operator
  // How often v is read, by nodes yet to come included; never too small.
  int uses(ValueId v) const { return static_cast<size_t>(v) < uses_.size() ? uses_[v] : 0; }
  // Depends on parameters, buffers and constants only, none of them written by the graph.
  bool is_frozen(ValueId v);
  bool is_input(ValueId v) { return !def(v); }
  void add_uses(ValueId v, int count);

 private:
  void index();
  std::vector<int32_t> producer_;  // node number, -1 input or not seen
  std::vector<int> uses_;          // in the graph that came in
  std::vector<int8_t> frozen_;     // -1 unknown
  size_t indexed_ = 0;
};

Definitions definitions(Rewriter& r);  // of the graph as far as it is rewritten
// Frozen, and in memory between calls: not unpacked in each of them (analysis/unpacking.h).
bool is_kept(Rewriter& r, ValueId v);

// True: `results` holds one value per result (kNoValue only for results that nothing reads).
using Values = std::vector<ValueId>;  // of a node, one a result
struct RewriteRule {
  OpName op;            // the root's operator
  const char* meaning;  // one line, for people
  bool (*apply)(Rewriter& r, const Node& n, Values& results, const void* user);
};
// First rule that applies wins. `user` goes to every rule.
Graph rewrite(Graph g, std::span<const RewriteRule> rules, const void* user = nullptr);

// Which values are known before the call: true for values that depend on unwritten parameters, buffers and constants
// (and factories) only.
std::vector<bool> frozen_values(const Graph& g);

bool same_strides(const TensorType& a, const TensorType& b);  // size-1 dims ignored
// Strides in which a tensor can be written: no two elements in one place (provably).
bool is_writable_layout(const TensorType& t);
// `v` was built, by nodes from first_node on, in place of a value of type `expected`: gives it the expected strides.
// The producing prim takes them, or a prim.copy follows; a layout that cannot be written (expanded) is not asked for.
ValueId in_layout(Builder& b, size_t first_node, ValueId v, const TensorType& expected);

}  // namespace flashover::graph
