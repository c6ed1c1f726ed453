// Convolutions as products: which, and which of them keep no copy of the weight.
#include "graph/rewrite/convolution.h"

#include <algorithm>

#include "graph/rewrite/match.h"
#include "ops/args.h"

namespace flashover::graph {

sym::Expr points_of(const Sizes& image) {
  sym::Expr points = image[0];
  for (size_t d = 2; d < image.size(); ++d) points = points * image[d];
  return points;
}

bool is_point(const TensorType& input, const TensorType& weight, const Node& convolution) {
  const auto& args = convolution.args;
  return std::all_of(weight.sizes.begin() + 2, weight.sizes.end(), [](sym::Expr e) { return e.is_const(1); }) &&
         all_are(args[kStride], 1) && all_are(args[kPadding], 0) && !ops::as_bool(args[kTransposed]) &&
         sym::known_eq(weight.sizes[1], input.sizes[1]);
}

bool reads_weight_as_it_lies(Rewriter& r, const Node& convolution, const target::Providers& providers) {
  // Multiplications of an element of the result, by points; of several taps more, since rows are made of the image.
  constexpr int64_t kMuch = 4, kMuchMore = 16, kMostTaps = 64, kManyColumns = 128;
  // (Where no copies are made at all, images lie as they come: each would be turned for this one and back.)
  if (providers.pack_budget <= 0) return false;
  const auto& args = convolution.args;
  const ValueId weight = ops::as_value(args[kWeight]);
  const TensorType x = r.b.type(ops::as_value(args[kInput])), w = r.b.type(weight), out = r.b.type(convolution.outs[0]);
  if (r.def(weight) || x.device.type != DeviceType::kCPU || x.dtype != w.dtype || w.rank() != x.rank() ||
      !all_const(w.sizes) || w.strides != dense_type(w).strides || ops::as_bool(args[kTransposed]))
    return false;
  const int64_t columns = w.sizes[0].value(), inner = w.numel().value() / std::max<int64_t>(1, columns);
  if (!suits_unpacked_rows(providers, x.dtype, inner, columns, /*columns_lie_dense=*/true)) return false;
  if (is_point(x, w, convolution)) return inner >= kMuch * points_of(x.sizes).hint();
  return x.rank() == 4 && all_const(x.sizes) && ops::as_int(args[kGroups]) == 1 && columns >= kManyColumns &&
         inner <= kMostTaps * w.sizes[1].value() && inner >= kMuchMore * points_of(out.sizes).value();
}

}  // namespace flashover::graph
