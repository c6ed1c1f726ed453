// A batch norm with fixed statistics goes into the weight and the bias of the convolution before it, unless that one
// would do without a copy of its weight.
#include "graph/passes/fold_batch_norm.h"

#include "graph/rewrite/convolution.h"
#include "graph/rewrite/match.h"
#include "graph/rewrite/rewriter.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

struct BatchNorm {
  ValueId x;
  std::optional<ValueId> gamma, beta, mean, variance;
  double eps = 0;
};

struct FoldingState {
  const target::Providers& providers;
  int64_t room;  // bytes that are left for copies of weights
};

// y = (x - mean) / sqrt(variance + eps) * gamma + beta with x = conv(w) + b:
// conv with w' = w * scale and b' = (b - mean) * scale + beta, scale = gamma / sqrt(variance + eps)
bool fold_into_convolution(Rewriter& r, const Node& n, const BatchNorm& bn, Values& results, FoldingState& state) {
  for (size_t i = 1; i < n.outs.size(); ++i)
    if (n.outs[i] != kNoValue && r.uses(n.outs[i]) > 0) return false;
  const Node* found = r.def(bn.x, op::convolution);
  if (!found || r.uses(bn.x) != 1 || !bn.mean || !bn.variance) return false;
  const Node conv = *found;
  if (ops::as_bool(conv.args[kTransposed])) return false;
  for (const auto& v : {bn.gamma, bn.beta, bn.mean, bn.variance})
    if (v && (!r.is_frozen(*v) || r.b.dtype(*v) != DType::kF32)) return false;
  const ValueId weight = ops::as_value(conv.args[kWeight]);
  const auto bias = ops::as_optional_value(conv.args[kBias]);
  if (!r.is_frozen(weight) || (bias && !r.is_frozen(*bias))) return false;
  const DType dtype = r.b.dtype(weight);
  if ((dtype != DType::kF32 && !is_reduced(dtype)) || r.b.dtype(n.outs[0]) != r.b.dtype(bn.x)) return false;

  if (reads_weight_as_it_lies(r, conv, state.providers) || !take_room(r.b.type(weight), state.room)) return false;

  Builder& b = r.b;
  const ValueId eps = b.scalar_like(*bn.variance, bn.eps);
  ValueId scale = b.reciprocal(b.sqrt(b.add(*bn.variance, eps)));
  if (bn.gamma) scale = b.mul(*bn.gamma, scale);
  const ValueId wide = b.convert(skip_narrowing(r, weight), DType::kF32);
  Sizes per_channel(b.rank(wide), 1);
  per_channel[0] = b.size(scale, 0);
  const ValueId new_weight = b.convert(b.mul(wide, b.reshape(scale, per_channel)), dtype);
  ValueId shift = b.neg(*bn.mean);
  if (bias) shift = b.sub(b.convert(skip_narrowing(r, *bias), DType::kF32), *bn.mean);
  shift = b.mul(shift, scale);
  if (bn.beta) shift = b.add(shift, *bn.beta);
  Node folded = conv;
  folded.args[kWeight] = Ref{new_weight};
  folded.args[kBias] = Ref{b.convert(shift, dtype)};
  results.assign(n.outs.size(), kNoValue);
  results[0] = b.emit(op::convolution, std::move(folded.args), b.type(n.outs[0]));
  return true;
}

// (input, weight, bias, running_mean, running_var, [training,] momentum, eps)
template <size_t eps>
bool fold_as(Rewriter& r, const Node& n, Values& results, const void* user) {
  if (eps == 7 && ops::as_bool(n.args[5])) return false;  // training: batch statistics
  return fold_into_convolution(r, n,
                               {.x = ops::as_value(n.args[0]),
                                .gamma = ops::as_optional_value(n.args[1]),
                                .beta = ops::as_optional_value(n.args[2]),
                                .mean = ops::as_optional_value(n.args[3]),
                                .variance = ops::as_optional_value(n.args[4]),
                                .eps = ops::as_double(n.args[eps])},
                               results, *static_cast<FoldingState*>(const_cast<void*>(user)));
}

constexpr RewriteRule kFold[] = {
    {op::native_batch_norm, "batch_norm(conv(x)) with fixed statistics -> conv", fold_as<7>},
    {op::_native_batch_norm_legit_no_training, "the same", fold_as<6>},
};

}  // namespace

Graph fold_batch_norm(Graph g, const target::Providers& providers) {
  FoldingState state{providers, providers.pack_budget};
  return rewrite(std::move(g), kFold, &state);
}

}  // namespace flashover::graph
