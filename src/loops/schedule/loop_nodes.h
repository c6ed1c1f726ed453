// Loop nodes: the realised values of a graph, each with the loops that compute it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "loops/lower/emitter.h"
#include "loops/lower/lower.h"
#include "sym/bounded.h"

namespace flashover::loops {

// One memory access of a node, addresses in elements of the value's buffer, over the loop variables of that node.
struct Access {
  ValueId value = kNoValue;
  sym::Expr address;
  bool masked = false;
};

struct LoopNode {
  enum class Kind : uint8_t {
    kMap,      // each element on its own
    kReduce,   // folded over `inner` coordinates
    kScan,     // running along one coordinate, which is the inner loop
    kScatter,  // stores at indices computed from data, over a buffer that an earlier node filled
  };
  Kind kind = Kind::kMap;
  int32_t graph_node = -1;   // index in the graph, whose order is the program's
  ValueId value = kNoValue;  // the value that it computes
  // kMap: the value whose elements are stored; usually `value` itself, for an operand of a cat that operand.
  ValueId source = kNoValue;
  Index at;    // kMap, kScan: coordinates in `value` that are stored; kReduce: coordinates of the result
  Index from;  // coordinates in `source` (kMap) or in the operand (kReduce, kScan)
  std::vector<sym::Expr> vars;   // loop variables over independent points
  std::vector<sym::Expr> inner;  // loop variables that are folded, scanned, or whose order matters
  std::vector<Access> reads;
  Access write;
  int64_t cost = 1;      // scalar operations per point
  bool partial = false;  // several nodes fill `value`: no reader may take it from a register
  bool alone = false;    // never fused: a copy that may turn out to be needless
  bool frozen = false;   // depends on parameters and constants only
  bool stored = false;   // set by the fuser: something outside of the group reads the memory
};

struct ValueFacts {  // of a value
  bool used = false;
  bool realised = false;  // in memory or an accumulator: input, extern result, node
  bool required = false;  // must be in memory: output, mutation, extern operand
  bool frozen = false;
};

// The strides in which an output that owns its memory is written; where eager repeats elements (stride 0) the value has
// size 1.
inline const Sizes& written_strides(const graph::Output& o) {
  return o.kind == graph::Output::Kind::kSlice ? o.layout : o.type.strides;
}

// An extern operand or output that is a view of realised memory.
struct Strided {
  ValueId base = kNoValue;
  Sizes strides;
  sym::Expr offset;
};

struct LoopProgram {
  const graph::Graph& graph;
  Producers producers;
  std::vector<ValueFacts> facts;      // by ValueId
  std::vector<TensorType> memory;     // by ValueId: geometry of realised values, offset 0
  std::vector<Strided> views;         // by ValueId: base != kNoValue for values that externs take as views
  std::vector<LoopNode> nodes;        // in graph order
  std::vector<int32_t> extern_nodes;  // in graph order
  int next_var = 0;                   // numbers temporary loop variables

  explicit LoopProgram(const graph::Graph& g) : graph(g), producers(g) {}
  sym::Expr fresh(sym::Expr extent) { return loop_var('x', next_var++, extent); }
};

LoopProgram make_loop_nodes(const graph::Graph& expanded);

using sym::extent_of;  // a loop variable's
// What cost models take a loop to be long: the extent where it is a number, else a number that is the same for all.
inline double typical_extent(sym::Expr var) {
  constexpr int64_t kTypical = 128;
  return static_cast<double>(extent_of(var).as_const().value_or(kTypical));
}
bool is_step(sym::Expr e);               // of an index: a size that is 0 belongs to a tensor without elements
bool divides(sym::Expr k, sym::Expr n);  // n is a multiple of k, for sure
bool only_sizes(sym::Expr e);            // no loop variables: a constant, or an expression over size symbols
sym::Expr replace(sym::Expr e, const std::vector<std::pair<sym::Expr, sym::Expr>>& map);
std::string print(const LoopProgram& p);

}  // namespace flashover::loops
