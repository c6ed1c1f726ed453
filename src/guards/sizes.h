// Whether the sizes and strides of a call's tensors are those that an entry with symbolic sizes was made for.
//
//   In        the types of its inputs (sym::Expr over size symbols) and what the trace asked of them (SizeGuard)
//   Out       yes / no, for the tensors of a call
//   Promises  no Python, no allocation; nothing but what is symbolic is compared (the rest is TensorSpec's)
//   Declines  make(): a symbol that is no size of any input (InternalError)
#pragma once
#include <Python.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/types.h"
#include "sym/environment.h"

namespace flashover::guards {

// Which parts of a tensor's geometry are symbols: bit d for the size of dimension d, bit 16 + d for its stride.
constexpr size_t kMaxSymbolicRank = 16;
int64_t symbolic_parts(const TensorType& type);

class SizeProgram {
 public:
  struct Input {
    int32_t object = -1;  // position among the objects of a call
    std::string name;     // for people: "x"
    TensorType type;
  };
  SizeProgram() = default;
  SizeProgram(std::vector<Input> inputs, const std::vector<sym::SizeGuard>& guards);

  bool empty() const { return steps_.empty(); }
  bool holds(PyObject* const* objects) const { return first_failing(objects) < 0; }
  // The first guard that fails, and what is so now; empty: all hold.
  std::pair<std::string, std::string> failure(PyObject* const* objects) const;
  std::vector<std::string> describe() const;

 private:
  enum class Op : uint8_t { kSize, kStride, kConstant, kAdd, kMul, kFloorDiv, kMod, kMin, kMax, kCheck };
  struct Step {
    Op op;
    sym::Relation relation = sym::Relation::kEqual;  // kCheck
    int32_t a = 0, b = 0;                            // steps; kSize, kStride: object, dimension
    int64_t number = 0;                              // kConstant
  };
  static constexpr size_t kOnStack = 256;
  int32_t add(Step step);
  int32_t compile(sym::Expr e);
  void check(sym::Relation relation, int32_t a, int32_t b, std::string text);
  int32_t first_failing(PyObject* const* objects, int64_t* a = nullptr) const;

  std::vector<Step> steps_;
  std::vector<std::string> texts_;                // by check
  std::unordered_map<sym::Expr, int32_t> known_;  // while it is made
};

}  // namespace flashover::guards
