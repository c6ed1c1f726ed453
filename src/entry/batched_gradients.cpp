// Rows of tensors that vmap has wrapped, of both vmaps that torch has, and results wrapped again.
#include "entry/batched_gradients.h"

#include <ATen/functorch/BatchedTensorImpl.h>
// In this order: both have functions of one name, and those of functorch would find the others by their argument.
#include <ATen/LegacyBatchedTensorImpl.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

namespace flashover::entry {
namespace {

using c10::DispatchKey;

// torch.autograd's own vmap keeps all levels of a tensor in one object, torch.func's has an object for each.
enum class Vmap { kNone, kOfAutograd, kOfFunc };

struct Level {
  Vmap vmap = Vmap::kNone;
  int64_t number = -1;
  bool operator==(const Level&) const = default;
};

Level outermost_level(const at::Tensor& t) {
  if (!t.defined()) return {};
  if (const auto* batched = at::functorch::maybeGetBatchedImpl(t)) return {Vmap::kOfFunc, batched->level()};
  if (const auto* batched = at::maybeGetBatchedImpl(t)) return {Vmap::kOfAutograd, batched->bdims().back().level()};
  return {};
}

int64_t rows_of(const at::Tensor& t, Level level) {
  if (level.vmap == Vmap::kOfFunc) {
    const auto* batched = at::functorch::maybeGetBatchedImpl(t);
    return batched->value().size(batched->bdim());
  }
  const auto* batched = at::maybeGetBatchedImpl(t);
  return batched->value().size(batched->bdims().back().dim());
}

// What is not batched at that level is the same in each row.
at::Tensor row_of(const at::Tensor& t, Level level, int64_t row) {
  if (outermost_level(t) != level) return t;
  if (level.vmap == Vmap::kOfFunc) {
    const auto* batched = at::functorch::maybeGetBatchedImpl(t);
    return batched->value().select(batched->bdim(), row);
  }
  const auto* batched = at::maybeGetBatchedImpl(t);
  const int64_t dim = batched->bdims().back().dim();
  at::BatchDims rest(batched->bdims().begin(), batched->bdims().end() - 1);
  for (at::BatchDim& d : rest)
    if (d.dim() > dim) d = at::BatchDim(d.level(), d.dim() - 1);
  const at::Tensor value = batched->value().select(dim, row);
  return rest.empty() ? value : at::makeBatched(value, rest);
}

at::Tensor with_batch_dim(const at::Tensor& rows, Level level) {
  return level.vmap == Vmap::kOfFunc ? at::functorch::addBatchDim(rows, 0, level.number)
                                     : at::addBatchDim(rows, level.number, 0);
}

}  // namespace

bool are_batched(const variable_list& tangents) {
  const c10::DispatchKeySet batched({DispatchKey::Batched, DispatchKey::FuncTorchBatched});
  return std::any_of(tangents.begin(), tangents.end(),
                     [&](const at::Tensor& t) { return t.defined() && t.key_set().has_any(batched); });
}

variable_list for_each_row(const variable_list& tangents,
                           const std::function<variable_list(variable_list&& row, bool last)>& backward) {
  Level level;
  for (const at::Tensor& t : tangents)
    if (const Level own = outermost_level(t); own.number > level.number) level = own;
  int64_t rows = 0;
  for (const at::Tensor& t : tangents)
    if (outermost_level(t) == level) rows = rows_of(t, level);
  TORCH_CHECK(rows > 0, "flashover: a compiled backward was asked for the gradients of an empty batch");
  std::vector<variable_list> of_rows;
  for (int64_t i = 0; i < rows; ++i) {
    variable_list row;
    for (const at::Tensor& t : tangents) row.push_back(row_of(t, level, i));
    // Rows of one level are plain tensors: what the backward calls must not meet the modes of vmap.
    const c10::DispatchKeySet modes = are_batched(row)
                                          ? c10::DispatchKeySet()
                                          : c10::DispatchKeySet({DispatchKey::VmapMode, DispatchKey::FuncTorchVmapMode,
                                                                 DispatchKey::FuncTorchDynamicLayerFrontMode,
                                                                 DispatchKey::FuncTorchDynamicLayerBackMode});
    const c10::impl::ExcludeDispatchKeyGuard without(modes);
    of_rows.push_back(backward(std::move(row), i + 1 == rows));
  }
  variable_list gradients(of_rows.front().size());
  for (size_t g = 0; g < gradients.size(); ++g) {
    if (!of_rows.front()[g].defined()) continue;
    std::vector<at::Tensor> parts;
    for (const variable_list& row : of_rows) parts.push_back(row[g]);
    gradients[g] = with_batch_dim(at::stack(parts), level);
  }
  return gradients;
}

}  // namespace flashover::entry
