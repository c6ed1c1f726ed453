// Works out a mask's elements, and says whether it masks nothing, is causal, or is something else.
#include "graph/analysis/attention_mask.h"

#include <algorithm>
#include <cmath>

#include "graph/analysis/constants.h"
#include "graph/passes/dce.h"
#include "graph/passes/decompose.h"
#include "graph/passes/functionalize.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

std::vector<int32_t> producers(const Graph& g) {
  std::vector<int32_t> out(g.values.size(), -1);
  for (size_t i = 0; i < g.nodes.size(); ++i)
    for (ValueId v : g.nodes[i].outs)
      if (v != kNoValue) out[v] = static_cast<int32_t>(i);
  return out;
}

// What a mask [..., rows, columns] does.
Mask kind_of(const ConstantArray& mask, DType dtype) {
  const size_t rank = mask.sizes.size();
  const int64_t rows = rank < 2 ? 1 : mask.stored[rank - 2], columns = rank < 1 ? 1 : mask.stored[rank - 1];
  bool none = true, causal = rows == columns && rows > 1;  // then both are whole
  for (int64_t k = 0; k < static_cast<int64_t>(mask.data.size()) && (none || causal); ++k) {
    const int64_t row = k / columns % rows, column = k % columns;
    const bool open = dtype == DType::kBool ? mask.data[k] != 0 : mask.data[k] == 0;
    const bool shut = dtype == DType::kBool ? mask.data[k] == 0 : mask.data[k] == -INFINITY;
    none = none && open;
    causal = causal && (column <= row ? open : shut);
  }
  return none ? Mask::kNone : causal ? Mask::kCausal : Mask::kOther;
}

// What a mask is made of before its batches and heads were repeated: less to look at. `rows` tells whether its last two
// dimensions are still the mask's own.
ValueId behind_repetition(const Graph& g, const std::vector<int32_t>& producer, ValueId v, bool& rows) {
  for (rows = true; producer[v] >= 0;) {
    const Node& n = g.nodes[producer[v]];
    if (n.op->prim != Prim::broadcast) break;
    const ValueId x = ops::as_value(n.args[0]);
    const TensorType &from = g.type(x), &to = g.type(v);
    if (from.rank() < 2) {
      rows = false;
    } else {
      const std::vector<int64_t> dims = ops::as_ints(n.args[2]);
      for (size_t back = 1; back <= 2; ++back)
        rows = rows && dims[dims.size() - back] == static_cast<int64_t>(to.rank() - back) &&
               sym::known_eq(from.sizes[from.rank() - back], to.sizes[to.rank() - back]);
    }
    v = x;
  }
  return v;
}

// One number for any sizes, which shuts nothing.
bool is_open_everywhere(const Graph& g, const std::vector<int32_t>& producer, ValueId v) {
  if (producer[v] < 0 || g.nodes[producer[v]].op->prim != Prim::full) return false;
  const Arg& number = g.nodes[producer[v]].args[1];
  const auto* open = std::get_if<bool>(&number);
  const auto* added = std::get_if<double>(&number);
  return (open && *open) || (added && *added == 0);
}

// The nodes that a value depends on, itself included; false: on something that the caller gives.
bool slice(const Graph& g, const std::vector<int32_t>& producer, ValueId from, std::vector<bool>& nodes) {
  std::vector<ValueId> open = {from};
  while (!open.empty()) {
    const ValueId v = open.back();
    open.pop_back();
    if (producer[v] < 0) return false;
    const auto i = static_cast<size_t>(producer[v]);
    if (nodes[i]) continue;
    nodes[i] = true;
    for (const Arg& a : g.nodes[i].args) for_each_ref(a, [&](ValueId u) { open.push_back(u); });
  }
  return true;
}

}  // namespace

Mask mask_of(const Graph& g, Constants& constants, ValueId mask, const TensorType& q, const TensorType& k) {
  bool rows = true;
  const ValueId own = behind_repetition(g, producers(g), mask, rows);
  const auto array = constants[own];
  if (!array) return is_open_everywhere(g, producers(g), own) ? Mask::kNone : Mask::kOther;
  const Mask kind = kind_of(*array, g.type(own).dtype);
  const bool square = q.rank() == 4 && k.rank() == 4 && sym::known_eq(q.sizes[2], k.sizes[2]);
  if (kind == Mask::kCausal && !(rows && square && sym::known_eq(q.sizes[2], array->sizes.back()))) return Mask::kOther;
  return kind;
}

Mask mask_of_traced(const Graph& traced, ValueId mask, const TensorType& q, const TensorType& k) {
  const std::vector<int32_t> producer = producers(traced);
  std::vector<bool> made(traced.nodes.size());
  if (!slice(traced, producer, mask, made)) return Mask::kOther;
  for (size_t i = 0; i < traced.nodes.size(); ++i) {
    const Node& n = traced.nodes[i];
    if (made[i] && (n.op->nondeterministic || n.op->effectful)) return Mask::kOther;
    if (n.op->mutates == 0) continue;
    // A write to anything that the mask may lie in: the values here are not all there is to it.
    std::vector<bool> written(traced.nodes.size());
    for (size_t arg = 0; arg < n.args.size() && arg < 32; ++arg)
      if (n.op->mutates >> arg & 1) for_each_ref(n.args[arg], [&](ValueId v) { slice(traced, producer, v, written); });
    bool apart = !(made[i] && n.op->mutates);
    for (size_t k = 0; k < made.size() && apart; ++k) apart = !(made[k] && written[k]);
    if (!apart) return Mask::kOther;
  }
  Graph g(traced.facts);
  g.values = traced.values;
  for (size_t i = 0; i < traced.nodes.size(); ++i)
    if (made[i]) g.nodes.push_back(traced.nodes[i]);
  for (Node& n : g.nodes) n.location = -1;
  Output out;
  out.value = mask;
  out.type = g.type(mask);
  g.outputs.push_back(std::move(out));
  g = decompose(dce(functionalize(std::move(g))));
  if (g.outputs[0].value == kNoValue) return Mask::kOther;
  Constants constants(g);
  return mask_of(g, constants, g.outputs[0].value, q, k);
}

}  // namespace flashover::graph
