// Everything known about an operator without tensors at hand: one row per operator, asked by every later stage.
//
// Two vocabularies share the table:
//   aten.*   "aten.add.Tensor": what the trace records (namespace.name.overload; "aten.relu" has the overload "" and
//            is written "aten.relu.default"). Arguments are in schema order, defaults filled in.
//   prim.*   the small closed set that decompositions end in; see prims.def for the meaning of each.
// Any name may be looked up: an operator without a row gets a row of kind kExtern at first use ("always right, just not
// fused"); such rows know nothing but their name and what the trace says of them.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/names.h"
#include "ops/types.h"

namespace flashover::ops {

enum class OpKind : uint8_t {
  kPointwise,  // output element i depends on input elements i (after broadcast)
  kReduction,
  kScan,
  kView,     // outputs alias input 0; no data moves
  kIndex,    // gather, scatter, cat, pad, pooling windows ...: data movement computed by index
  kFactory,  // full, iota, ...
  kRandom,
  kExtern,  // call the ATen operator
};

// What a rule is told: the tensors' types by ValueId through `type_of`, everything else in args.
struct InferContext {
  std::span<const Arg> args;
  const TensorType& (*type_of)(const void* user, ValueId id);
  const void* user;
  DType default_dtype = DType::kF32;
  const TensorType& type(size_t arg_index) const { return type_of(user, std::get<Ref>(args[arg_index]).id); }
  const TensorType& value_type(ValueId id) const { return type_of(user, id); }
  const TensorType& type(ValueId) const =
      delete;  // an int: an argument number or a value? say size_t{0} or value_type(id)
  bool has_tensor(size_t i) const {
    return i < args.size() && std::holds_alternative<Ref>(args[i]) && std::get<Ref>(args[i]).id != kNoValue;
  }
};
// Fills the outputs' dtype, device, sizes, strides, offset exactly as eager would. Returns false = "I do not know this
// case", and the trace asks ATen's meta kernels instead. Throws UserError for inputs that eager rejects (or returns
// false: then ATen words the error; prefer this).
using InferRule = bool (*)(const InferContext& in, std::vector<TensorType>& outs);

// Asks a rule; sizes that are symbols are taken for 2 or more (sym::PresumeScope).
bool infer(InferRule rule, const InferContext& in, std::vector<TensorType>& outs);

struct OpRow {
  std::string name;  // interned: compare pointers
  OpKind kind = OpKind::kExtern;
  InferRule infer = nullptr;  // null: unknown
  // The operator that returns what this one writes (aten.add_.Tensor -> aten.add.Tensor). Arguments: the same, without
  // the written ones if drops_mutated (out= overloads). Results: this one's results that are not written arguments,
  // then the new contents of the written arguments in order. Null: nobody knows one.
  const OpRow* functional = nullptr;
  bool drops_mutated = false;
  uint32_t mutates = 0;           // bit i: argument i is written (from the schema; in-place, out= and copy_)
  bool effectful = false;         // does, or may do, something that neither its schema nor its tags tell (ops.cpp)
  bool check = false;             // an effectful one that at most raises: nothing is left of it when it did not
  bool nondeterministic = false;  // random: must not be duplicated or merged
  bool data_sized = false;        // sizes of its results follow from what its operands hold
  bool generated = false;         // no prim, and no operator that is called: a kernel of its own computes it
  Prim prim = Prim::none;
  bool is_prim() const { return prim != Prim::none; }
  uint8_t cost = 1;           // of an element, in units of an addition, and the two traits: prims.def
  bool approximated = false;  // a backend has an approximate form
  bool moves = false;         // moves data, computes nothing
  // "functional.<name>": runs <name>, which writes arguments and has no known twin, on clones (strides kept) of the
  // tensors it writes. Results: <name>'s own results (kNoValue for those that are written arguments), then the clones,
  // in argument order.
  const OpRow* on_clones = nullptr;
  bool is_aten_view = false;  // outputs alias argument 0
  bool declared = false;      // a table row or schema facts stand behind this; false: nothing but the name
  // Runs exactly once a call, in the program's order: not removed, merged, computed again or ahead of time.
  bool once() const { return effectful || nondeterministic || data_sized || mutates != 0; }
};

const OpRow* find(OpName name);                     // creates the extern row if new; thread safe; never null
const OpRow* find_existing(std::string_view name);  // null if there is no row
// What is known of an operator of the program's, which is no more: the next of that name may be another. Rows stay.
void forget(std::string_view name);
// An operator of the program's makes results whose sizes follow from data, as its shape function says when it is met;
// before the first graph that holds it.
void note_data_sized(std::string_view name);
std::vector<const OpRow*> all();  // sorted by name; for tests and docs

// What an operator's schema says. The trace passes this with the first use of an operator without a table row.
struct SchemaFacts {
  uint32_t mutates = 0;
  bool is_aten_view = false, nondeterministic = false;
  bool pure = false;       // a tag says that it does nothing but compute its results
  std::string functional;  // name of the functional twin, "" if none
  bool drops_mutated = false;
};
const OpRow* find(std::string_view name,
                  const SchemaFacts& facts);  // facts are used unless the row is declared already

// ---- the static table. One row per operator, in the file of its family (src/ops/aten/*.cpp, src/ops/prims.cpp).
struct Row {
  std::string_view name;  // "aten.add.Tensor"; lives as long as the process
  OpKind kind = OpKind::kExtern;
  InferRule infer = nullptr;
  const char* functional = nullptr;  // twin of an in-place or out= operator (its row need not come first)
  uint32_t mutates = 0;
  bool drops_mutated = false, nondeterministic = false, is_aten_view = false;
  Prim prim = Prim::none;
  uint8_t cost = 1;
  bool approximated = false, moves = false;
};
void register_prims(std::vector<Row>& rows);      // src/ops/prims.cpp
void register_aten(std::vector<Row>& rows);       // src/ops/aten/aten.cpp: calls one function per family
void register_flex(std::vector<Row>& rows);       // src/ops/flex.cpp
void register_recurrent(std::vector<Row>& rows);  // src/ops/recurrent.cpp

}  // namespace flashover::ops
