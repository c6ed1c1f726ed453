// Values that follow from the program alone: built from full, iota, views and arithmetic, with no tensor of the caller
// in them. Masks are made of these. They are computed here, element by element, as the prims define them (in double,
// rounded to the value's dtype after each step), within a budget.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "graph/graph.h"

namespace flashover::graph {

struct ConstantArray {
  std::vector<int64_t> sizes;
  std::vector<int64_t> stored;  // 1 for dims along which all elements are equal, else the size
  std::vector<double> data;     // row-major over `stored`
  bool is_uniform() const { return data.size() == 1; }
};

class Constants {
 public:
  explicit Constants(const Graph& g);
  // Null: depends on an input, on an operator not known here, or is too big.
  std::shared_ptr<const ConstantArray> operator[](ValueId v);

 private:
  std::shared_ptr<const ConstantArray> compute(const Node& n, ValueId v);
  const Graph& g_;
  std::vector<int32_t> producer_;
  std::vector<int8_t> state_;  // 0 unknown, 1 computed (maybe null)
  std::vector<std::shared_ptr<const ConstantArray>> arrays_;
  int64_t budget_ = int64_t{1} << 25;  // element operations
};

// The nearest value of that dtype.
double round_to(DType dtype, double x);

}  // namespace flashover::graph
