// Define-by-run: builds the body of one stage by asking values for their elements.
//
// read(v, at) gives element `at` of value v as an instruction. A value that is realised (in memory, an accumulator,
// scratch) is fetched from its RealisedValues; any other value is computed in place by its prim's lowering (see
// lower.h), which reads the prim's operands in turn. So pointwise chains and views compose into one body, and equal
// subexpressions meet in one instruction: instructions are numbered by content.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "loops/loops.h"
#include "ops/floats.h"

namespace flashover::loops {

using Index = std::vector<sym::Expr>;

// Which node makes a value; built once per graph.
struct Producers {
  explicit Producers(const graph::Graph& g);
  struct Def {
    int32_t node = -1;  // -1: an input
    int32_t out = 0;
  };
  std::vector<Def> of;
};

class Emitter;
// Realised values. nullopt: compute the value in place.
struct RealisedValues {
  virtual ~RealisedValues() = default;
  virtual std::optional<Id> fetch(Emitter& e, ValueId v, const Index& at) = 0;
};

inline DType compute_dtype(DType d) { return is_narrow_float(d) ? DType::kF32 : d; }

class Emitter {
 public:
  // Messages of index checks are appended to `errors`; instructions to `body`.
  Emitter(const graph::Graph& g, const Producers& producers, RealisedValues& source, std::vector<Instr>& body,
          std::vector<std::string>& errors)
      : graph_(g), producers_(producers), source_(source), body_(body), errors_(errors) {}

  Id read(ValueId v, const Index& at);
  Id compute(ValueId v, const Index& at);  // as read, but v itself is not fetched

  Id op(Op op, Id a, Id b = kNone, Id c = kNone);  // result dtype from the operands
  Id convert(Id a, DType to);
  Id constant(DType d, double v);
  Id constant(DType d, int64_t v);
  Id constant(DType d, const Arg& scalar);
  Id index_value(sym::Expr e);
  // nullopt: always true. A mask that is never true gives constant false.
  std::optional<Id> in_range(sym::Expr e, sym::Expr lo, sym::Expr hi);
  // An i64 value as a variable in [0, size). Without a message the value is trusted.
  sym::Expr indirect(Id value, sym::Expr size, bool wrap, const std::string& message);
  Id load(int32_t param, DType memory, sym::Expr address);
  Id add(Instr in);

  // All that is read while a Masked lives is read under its condition too.
  class Masked {
   public:
    Masked(Emitter& e, std::optional<Id> condition) : e_(e), saved_(e.mask_) {
      if (condition) e.mask_ = e.mask_ == kNone ? *condition : e.op(Op::k_bitwise_and, e.mask_, *condition);
    }
    ~Masked() { e_.mask_ = saved_; }
    Masked(const Masked&) = delete;
    Masked& operator=(const Masked&) = delete;

   private:
    Emitter& e_;
    Id saved_;
  };
  Id mask() const { return mask_; }
  DType dtype(Id id) const { return body_[id].dtype; }
  const TensorType& type(ValueId v) const { return graph_.values[v].type; }
  const graph::Graph& graph() const { return graph_; }
  const graph::Node* maker(ValueId v) const {  // null: an input
    const int32_t node = producers_.of[v].node;
    return node < 0 ? nullptr : &graph_.nodes[node];
  }
  const std::vector<Instr>& body() const { return body_; }

 private:
  friend class Masked;
  std::optional<sym::Expr> position(Id id) const;
  struct Hash {
    size_t operator()(const Instr& i) const;
    size_t operator()(const std::vector<uint64_t>& v) const;
  };
  const graph::Graph& graph_;
  const Producers& producers_;
  RealisedValues& source_;
  std::vector<Instr>& body_;
  std::vector<std::string>& errors_;
  std::unordered_map<Instr, Id, Hash> numbering_;
  std::unordered_map<std::vector<uint64_t>, Id, Hash> memo_;
  Id mask_ = kNone;
};

}  // namespace flashover::loops
