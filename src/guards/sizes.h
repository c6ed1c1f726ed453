// Whether the sizes and strides of a call's tensors are those that an entry with symbolic sizes was made for.
//
//   In        the types of its inputs (sym::Expr over size symbols) and what the trace asked of them (SizeGuard)
//   Out       yes / no, for the tensors of a call
//   Promises  no Python, no allocation; nothing but what is symbolic is compared (the rest is TensorSpec's)
//   Declines  make(): a symbol that is no size or stride of any input (InternalError)
#pragma once
#include <Python.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "guards/guards.h"
#include "ops/geometry.h"
#include "ops/types.h"
#include "sym/environment.h"

namespace flashover::guards {

// Which parts of a tensor's geometry (ops/geometry.h) are symbols: a bit for each.
int64_t symbolic_parts(const TensorType& type);

// Sizes in the program's words: "4*x.shape[0] <= 8" for "4*s0 <= 8". names: by symbol.
std::string in_words(const std::string& text, const std::vector<std::string>& names);

class SizeProgram {
 public:
  struct Input {
    int32_t object = -1;  // position among the objects of a call
    std::string name;     // for people: "x"
    TensorType type;
    bool number = false;  // the object is a Python int, the only size of `type`
  };
  SizeProgram() = default;
  // names: what the program calls each symbol; equal_at: the line that made it equal to something else, or "".
  SizeProgram(std::vector<Input> inputs, const std::vector<sym::AskedGuard>& guards, std::vector<std::string> names,
              const std::vector<std::string>& equal_at);

  bool empty() const { return steps_.empty(); }
  bool holds(PyObject* const* objects) const { return first_failing(objects) < 0; }
  Failure failure(PyObject* const* objects) const;  // the first guard that fails
  std::vector<std::string> describe() const;

 private:
  enum class Op : uint8_t { kSize, kStride, kNumber, kConstant, kAdd, kMul, kFloorDiv, kMod, kMin, kMax, kCheck };
  struct Step {
    Op op;
    sym::Relation relation = sym::Relation::kEqual;  // kCheck
    int32_t a = 0, b = 0;                            // steps; kSize, kStride, kNumber: object, dimension
    int64_t number = 0;                              // kConstant
  };
  static constexpr size_t kOnStack = 256;
  int32_t add(Step step);
  int32_t compile(sym::Expr e);
  struct Words {
    std::string guard, a, b, where;  // of its sides: empty where that is a number
  };
  void check(sym::Relation relation, int32_t a, int32_t b, Words words);
  int32_t first_failing(PyObject* const* objects, int64_t* now = nullptr) const;

  std::vector<Step> steps_;
  std::vector<Words> words_;                      // by check
  std::unordered_map<sym::Expr, int32_t> known_;  // while it is made
};

}  // namespace flashover::guards
