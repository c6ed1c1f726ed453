// flex_attention as ATen's operators, on any device: what its recorded operators mean (ops/flex.cpp). Compiled graphs
// hold the kernel or these steps in their place; a graph that is handed to another compiler calls them.
#pragma once
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

#include <optional>
#include <tuple>

namespace flashover::cpu {

at::Tensor flex_scores(const at::Tensor& q, const at::Tensor& k, double scale);
std::tuple<at::Tensor, at::Tensor, at::Tensor> flex_attend(const at::Tensor& scores,
                                                           const std::optional<at::Tensor>& mask, const at::Tensor& q,
                                                           const at::Tensor& v,
                                                           const c10::List<std::optional<at::Tensor>>& blocks,
                                                           c10::SymIntArrayRef block);

at::Tensor flex_rows(const at::Tensor& weights, const at::Tensor& x, const at::Tensor& like,
                     const c10::List<std::optional<at::Tensor>>& blocks, c10::SymIntArrayRef block);
at::Tensor flex_columns(const at::Tensor& weights, const at::Tensor& x, const at::Tensor& like,
                        const c10::List<std::optional<at::Tensor>>& blocks, c10::SymIntArrayRef block);

}  // namespace flashover::cpu
