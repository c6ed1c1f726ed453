// The table of operators that refuse contents, by names without overload: overloads are alike.
#include "ops/refusals.h"

#include <algorithm>

#include "ops/names.h"

namespace flashover::ops {
namespace {

constexpr std::string_view kDivisions[] = {"aten.div", "aten.floor_divide", "aten.fmod", "aten.remainder"};
constexpr std::string_view kOfContents[] = {
    "aten._embedding_bag",
    "aten._embedding_bag_forward_only",
    "aten._linalg_eigh",
    "aten._linalg_svd",
    "aten.binary_cross_entropy",
    "aten.embedding",
    "aten.embedding_bag",
    "aten.gather",
    "aten.histc",
    "aten.index",
    "aten.index_add",
    "aten.index_copy",
    "aten.index_fill",
    "aten.index_put",
    "aten.index_reduce",
    "aten.index_select",
    "aten.linalg_eig",
    "aten.linalg_eigvals",
    "aten.linalg_lstsq",
    "aten.masked_scatter",
    "aten.max_unpool2d",
    "aten.max_unpool3d",
    "aten.multi_margin_loss",
    "aten.multilabel_margin_loss_forward",
    "aten.nll_loss2d_forward",
    "aten.nll_loss_forward",
    "aten.put",
    "aten.scatter",
    "aten.scatter_add",
    "aten.scatter_reduce",
    "aten.searchsorted",
    "aten.segment_reduce",
    "aten.take",
};

bool is_in(std::string_view name, const auto& list) {
  return std::binary_search(std::begin(list), std::end(list), op::without_overload(name));
}
static_assert(std::ranges::is_sorted(kDivisions) && std::ranges::is_sorted(kOfContents));

}  // namespace

Refuses refuses(std::string_view name) {
  if (name.starts_with("functional.")) name.remove_prefix(11);
  if (is_in(name, kDivisions)) return Refuses::kZeroDivisor;
  return is_in(name, kOfContents) ? Refuses::kContents : Refuses::kNothing;
}

}  // namespace flashover::ops
