// The tensor program.
//
// A Graph is straight-line SSA over tensors: nodes in execution order, each an operator with schema-ordered arguments
// and one or more result values. The same structure serves three forms, told apart by verify(graph, form):
//   kTraced      as recorded: aten ops, in-place ops and views as the program ran them (Value::storage tells aliases)
//   kFunctional  no mutation, no aliasing: every value is defined once and never changes; effects are in `mutations`
//   kCore        functional, and every node is a prim.* or an extern
//
//   In        recorded operator calls
//   Out       a functional core graph plus what must happen to the outside world (mutations, output aliases)
//   Promises  verify() after each pass; print() parses back to an equal graph; passes are functions Graph -> Graph
//   Declines  an unknown operator stays one extern node
//   Sample    graph {
//               %0 : f32[2,3] = input user "L['x']"
//               %1 : f32[3] = input param "L['self'].bias"
//               %2 : f32[2,3] = aten.add.Tensor(%0, %1, 1)   # model.py:12
//               return %2
//             }
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "ops/ops.h"
#include "ops/types.h"
#include "sym/environment.h"

namespace flashover::graph {

struct Value {
  TensorType type;
  // kTraced only: values with equal storage share memory. Type.strides/offset say where in it.
  int32_t storage = -1;
};

// What becomes of a result in a checkpoint: it is computed again; it is kept where that is better; it is kept.
enum class Selection : uint8_t { kAgain, kPreferSave, kSave };

// Where a node comes from. Nodes share these by index, so every pass that carries a node's location along carries all of
// it.
struct Location {
  std::string text;         // the user's line and module, "model.py:12 in self.a"; perhaps an origin (origin.h)
  int32_t checkpoint = -1;  // of torch.utils.checkpoint: the backward computes the node's values again; -1: in none
  Selection selection = Selection::kAgain;
  bool operator==(const Location&) const = default;
};

struct Node {
  const ops::OpRow* op = nullptr;
  std::vector<Arg> args;
  std::vector<ValueId> outs;
  int32_t location = -1;  // index into GraphFacts::locations
  bool frozen = false;    // depends on parameters, buffers and constants only: computed once (split_frozen)
};

enum class InputKind : uint8_t {
  kUser,       // changes from call to call
  kParameter,  // an nn.Parameter reached from a module: same tensor every call, may be written between calls
  kBuffer,     // a registered buffer, likewise
  kConstant,   // a tensor that the traced code made from Python data; its value is fixed (held by the caller, by index)
  kTangent,    // given when the backward runs: the gradient of a result, above all (joint.h)
};
// The same tensor in every call, so what follows from it can be computed once.
inline bool is_lasting(InputKind k) {
  return k == InputKind::kParameter || k == InputKind::kBuffer || k == InputKind::kConstant;
}
struct Input {
  ValueId value = kNoValue;
  InputKind kind = InputKind::kUser;
  bool requires_grad = false;
  std::string name;  // source, for people: "L['self'].layer1.weight"
};

// A result in the memory of an input or of another result, whose version counter is not that one's.
struct OwnCounter {
  int32_t output = -1;
  int32_t input = -1;  // it has this input's counter; -1: its own (`x.data`)
};

// After functionalization: input `input` must hold `value` when the call ends.
struct Mutation {
  int32_t input = 0;
  ValueId value = kNoValue;
};

// How a result reaches the caller. Sizes, strides and storage offset are eager's and must be kept.
// kValue: fresh memory that only this result (and its kOutputAlias views) owns, though the value may be an input's, or
// appear in several outputs. Where type has stride 0 (an expanded result) the value may have size 1 instead of type's
// size: its memory is repeated.
// kSlice: likewise, but the memory holds the whole value in the strides `layout`, and type says which elements of it
// are the result: several results share one memory, or elements repeat.
struct Output {
  enum class Kind : uint8_t { kValue, kInputAlias, kOutputAlias, kSlice };
  Kind kind = Kind::kValue;
  ValueId value = kNoValue;  // kTraced: always the traced value. kFunctional: for kValue and kSlice
  int32_t base = -1;         // kInputAlias: index of the input; kOutputAlias: index of the output that owns the memory
  TensorType type;  // geometry as eager returns it (sizes, strides, offset; for aliases from the base's first element)
  sym::Expr memory = 0;  // kValue: elements of the memory if that is more than type spans (0: it is not)
  Sizes layout;          // kSlice
  bool owns_memory() const { return kind == Kind::kValue || kind == Kind::kSlice; }
};

// What is true of a whole graph. A pass that makes a graph out of another one carries it over: a Graph is made from
// facts only.
struct GraphFacts {
  std::vector<Location> locations;
  bool exact = false;                 // functions have one form in all kernels (passes/exact.h)
  std::vector<sym::SizeGuard> sizes;  // what holds of the size symbols in each call
};
inline const GraphFacts kNewProgram;  // a graph that is made from no other graph

struct Graph {
  explicit Graph(GraphFacts facts) : facts(std::move(facts)) {}

  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<Mutation> mutations;
  GraphFacts facts;

  ValueId add_value(TensorType type, int32_t storage = -1);
  ValueId add_input(TensorType type, InputKind kind, std::string name, int32_t storage = -1);
  // Appends a node with one fresh value per out type.
  Node& add_node(const ops::OpRow* op, std::vector<Arg> args, std::vector<TensorType> outs, int32_t location = -1);
  const TensorType& type(ValueId v) const { return values[v].type; }
};

enum class Form : uint8_t { kTraced, kFunctional, kCore };

std::string print(const Graph& g);
std::string print(const Node& n, const Graph& g);  // one line
Graph parse(std::string_view text);                // throws UserError "line:col: what"
void verify(const Graph& g, Form form);            // throws InternalError naming the node and the broken sentence
// A traced graph writes into memory that it was given; memory that is not known counts as such.
bool writes_an_input(const Graph& g);
// A call of it that raises leaves nothing behind: no written input, no number drawn, no effect. The call can be
// repeated.
bool repeatable(const Graph& g);
Hash128 hash(const Graph& g);  // structure, types, input kinds; not names and locations
template <typename F>
void for_each_ref(const Arg& arg, F&& f) {  // every tensor mentioned by an argument (kNoValue skipped)
  if (auto* r = std::get_if<Ref>(&arg)) {
    if (r->id != kNoValue) f(r->id);
  } else if (auto* l = std::get_if<RefList>(&arg)) {
    for (const Ref& r : *l)
      if (r.id != kNoValue) f(r.id);
  }
}

}  // namespace flashover::graph
