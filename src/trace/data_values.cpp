// Operators are called below everything that records or differentiates. What is not surely this call's own doing is no
// value: the trace goes on as if nobody could know.
#include "trace/data_values.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "base/check.h"
#include "eager/eval.h"
#include "graph/written.h"
#include "torch/convert.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

constexpr size_t kMaxBytes = size_t{4} << 30;  // that are kept for it

}  // namespace

int64_t DataValues::number(sym::Expr e) const {
  if (e.is_const()) return e.value();
  return sym::evaluate(e, [&](sym::Expr v) {
    const auto known = sizes_.find(v);
    if (known != sizes_.end()) return known->second;
    if (sym::has_data_size(v)) throw Declined("no value of " + v.str());
    return now_(v);
  });
}

bool DataValues::writes_an_input(const graph::Node& node) const {
  const auto is_input = [&](ValueId v) {
    const int32_t memory = graph_.values[static_cast<size_t>(v)].storage;
    return std::ranges::any_of(graph_.inputs, [&](const graph::Input& in) {
      return memory >= 0 && graph_.values[static_cast<size_t>(in.value)].storage == memory;
    });
  };
  bool writes = false;
  graph::for_each_written(node, [&](ValueId v) { writes = writes || is_input(v); });
  return writes;
}

// False: not to be run, or its results are not what the trace takes them for.
bool DataValues::run(const graph::Node& node) {
  if (node.op->nondeterministic || (node.op->effectful && !node.op->check) || writes_an_input(node)) return false;
  graph::Node numbered = node;
  for (Arg& a : numbered.args) {
    if (auto* e = std::get_if<sym::Expr>(&a)) *e = sym::Expr(number(*e));
    if (auto* list = std::get_if<Sizes>(&a))
      for (sym::Expr& e : *list) e = sym::Expr(number(e));
  }
  const auto tensor_of = [&](ValueId v) { return values_.at(v); };
  std::vector<at::Tensor> results;
  if (node.op->is_prim()) {
    results = aten::eval_prim(numbered, graph_, tensor_of);
  } else {
    const aten::Operator* op = aten::find_operator(node.op->name);
    if (!op) return false;
    results = aten::call(*op, numbered.args, tensor_of);
  }
  if (results.size() != node.outs.size()) return false;
  for (size_t i = 0; i < results.size(); ++i) {
    const ValueId v = node.outs[i];
    if (v == kNoValue) continue;
    const TensorType& type = graph_.type(v);
    if (!results[i].defined() || results[i].dim() != static_cast<int64_t>(type.rank())) return false;
    for (size_t d = 0; d < type.rank(); ++d) {
      const int64_t size = results[i].size(static_cast<int64_t>(d));
      if (node.op->data_sized && sym::has_data_size(type.sizes[d]) && type.sizes[d].kind() == sym::Kind::kVar)
        sizes_.try_emplace(type.sizes[d], size);
      if (number(type.sizes[d]) != size) return false;
    }
    bytes_ += results[i].nbytes();
    values_[v] = std::move(results[i]);
  }
  return bytes_ <= kMaxBytes;
}

bool DataValues::catch_up() {
  const BelowEverything plain;
  const InternalScope internal;
  const c10::AutoGradMode no_gradients(false);
  try {
    for (auto& [value, tensor] : inputs_()) values_.try_emplace(value, std::move(tensor));
    for (; done_ < graph_.nodes.size(); ++done_)
      if (!run(graph_.nodes[done_])) return false;
  } catch (const std::exception&) {  // an operator's own: where the program itself raises, it does so in its own time
    return false;
  }
  return true;
}

std::optional<int64_t> DataValues::of(sym::Expr e) {
  failed_ = failed_ || !catch_up();
  if (failed_) {
    values_.clear();
    return std::nullopt;
  }
  try {
    return number(e);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace flashover::trace
