// Which library computes a convolution, and how its operands lie for it.
#include "graph/passes/convolution.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_set>
#include <vector>

#include "graph/passes/linear.h"
#include "graph/rewrite/convolution.h"
#include "graph/rewrite/match.h"
#include "graph/rewrite/rewriter.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

// Both take the same arguments.
constexpr std::string_view kPackedConvolution = "mkldnn._convolution_pointwise.default",
                           kConvolutionOfAnySize = "flashover.convolution_of_any_size.default";
constexpr std::string_view kUnfolded = "flashover.unfolded_convolution.default";
constexpr std::string_view kDepthwise = "flashover.depthwise_last.default";

struct State {
  const target::Providers& providers;
  int64_t room;  // bytes that are left for packed weights
};
const target::Providers& machine(const void* user) { return static_cast<const State*>(user)->providers; }

Arg spatial(const Arg& a, size_t count) {  // one entry per spatial dim
  std::vector<int64_t> list = ops::as_ints(a);
  if (list.size() == 1) list.resize(count, list[0]);
  return int_list(list);
}

// Weights of convolutions that are copies already: cast, or with a batch norm in them.
std::vector<TensorType> copied_weights(const Graph& g) {
  const std::vector<bool> frozen = frozen_values(g);
  std::unordered_set<ValueId> copies, read;
  std::vector<TensorType> out;
  for (const Node& n : g.nodes) {
    if (!moves_elements_only(n)) copies.insert(n.outs.begin(), n.outs.end());
    if (n.op->name != op::convolution) continue;
    const ValueId weight = ops::as_value(n.args[kWeight]);
    if (frozen[weight] && copies.contains(weight) && read.insert(weight).second) out.push_back(g.type(weight));
  }
  return out;
}
// How a convolution is a product of ours, where that is faster: one with a kernel of one point, or (kOwn) any whose
// weight can be read as it lies.
std::optional<target::Gemm> choose_product(Rewriter& r, const Node& conv, const target::Providers& providers) {
  const ValueId weight = ops::as_value(conv.args[kWeight]);
  const TensorType x = r.b.type(ops::as_value(conv.args[kInput])), w = r.b.type(weight);
  if (reads_weight_as_it_lies(r, conv, providers)) return target::Gemm::kOwn;
  if (!is_point(x, w, conv)) return std::nullopt;
  const sym::Expr rows = points_of(x.sizes);
  if (rows.is_const() && suits_bf16x3(providers, x.dtype, rows.value(), x.sizes[1].value(), w.sizes[0].value()))
    return target::Gemm::kOwnPacked;
  if (suits_panels(providers, x.dtype, rows.hint())) return target::Gemm::kOwnPanels;
  return std::nullopt;
}
// x lies channels last.
ValueId product_of_points(Rewriter& r, target::Gemm gemm, ValueId x, ValueId weight, std::optional<ValueId> bias) {
  const Sizes sizes = r.b.sizes(x);
  const size_t rank = sizes.size();
  const sym::Expr rows = points_of(sizes), inner = sizes[1], columns = r.b.size(weight, 0);
  std::vector<int64_t> last{0}, back{0, static_cast<int64_t>(rank) - 1};
  for (size_t d = 2; d < rank; ++d)
    last.push_back(static_cast<int64_t>(d)), back.push_back(static_cast<int64_t>(d) - 1);
  last.push_back(1);
  const ValueId matrix = r.b.reshape(weight, {columns, inner});
  const ValueId points = r.b.reshape(r.b.permute(x, last), {rows, inner});
  TensorType type = r.b.type(points);
  type.sizes = {rows, columns};
  type = dense_type(type);
  const ValueId y = own_linear(r, gemm, points, matrix, bias, std::move(type));
  Sizes out{sizes[0]};
  out.insert(out.end(), sizes.begin() + 2, sizes.end());
  out.push_back(columns);
  return r.b.permute(r.b.reshape(y, out), back);
}

bool use_onednn(Rewriter& r, const Node& n, Values& results, const void* user) {
  auto& state = *static_cast<State*>(const_cast<void*>(user));
  const target::Providers& providers = state.providers;
  const ValueId x = skip_copies(r, ops::as_value(n.args[kInput])), weight = ops::as_value(n.args[kWeight]);
  const TensorType input = r.b.type(x), w = r.b.type(weight);
  const bool dtype = input.dtype == DType::kF32 || (input.dtype == DType::kBF16 && providers.onednn_bf16) ||
                     (input.dtype == DType::kF16 && providers.onednn_f16);
  if (!providers.onednn || !dtype || input.dtype != w.dtype || input.device.type != DeviceType::kCPU) return false;
  if (ops::as_bool(n.args[kTransposed]) || !is_kept(r, weight)) return false;
  const size_t rank = input.rank();
  if ((rank != 4 && rank != 5) || w.rank() != rank || !input.sizes[1].is_const() || !all_const(w.sizes)) return false;
  const auto bias = ops::as_optional_value(n.args[kBias]);
  if (bias && r.b.dtype(*bias) != input.dtype) return false;
  const std::optional<target::Gemm> product = choose_product(r, n, providers);
  // (What is packed takes the place of a weight that is a copy already.)
  const Node* made = r.def(weight);
  if (product != target::Gemm::kOwn && (!made || moves_elements_only(*made)) && !take_room(w, state.room)) return false;

  TensorType type = r.b.type(n.outs[0]);
  type.strides = channels_last_strides(type.sizes);
  const Arg stride = spatial(n.args[kStride], rank - 2), padding = spatial(n.args[kPadding], rank - 2),
            dilation = spatial(n.args[kDilation], rank - 2);
  const auto x_last = [&] { return in_strides(r, x, channels_last(input)); };
  if (rank == 4 && ops::as_int(n.args[kGroups]) > 1 && w.sizes[1].is_const(1) &&
      sym::known_eq(w.sizes[0], input.sizes[1]) && input.dtype == DType::kF32 && providers.panels) {
    const ValueId packed = r.b.emit("flashover.pack_depthwise.default", {Ref{weight}}, opaque_type(w));
    const Arg kernel = int_list({w.sizes[2].value(), w.sizes[3].value()});
    results = {r.b.emit(
        kDepthwise,
        {Ref{x_last()}, Ref{packed}, dense_value(r, bias), kernel, stride, padding, dilation, std::string("none")},
        type)};
    return true;
  }
  if (product) {
    results = {
        is_point(input, w, n)
            ? product_of_points(r, *product, x_last(), weight, bias)
            : r.b.emit(kUnfolded, {Ref{x_last()}, Ref{weight}, dense_value(r, bias), stride, padding, dilation}, type)};
    return true;
  }
  // The weight is laid out for images of this size; where it is a symbol, for a typical one and later for those that
  // come.
  Sizes laid_for = input.sizes;
  constexpr int64_t kTypical = 16;
  for (sym::Expr& e : laid_for)
    if (!e.is_const()) e = kTypical;
  const bool known = all_const(input.sizes);
  const ValueId packed =
      r.b.emit(known ? "mkldnn._reorder_convolution_weight.default" : "flashover.convolution_weights.default",
               {Ref{weight}, padding, stride, dilation, n.args[kGroups], laid_for}, opaque_type(w));
  const ValueId lying = x_last();
  results = {r.b.emit(known ? kPackedConvolution : kConvolutionOfAnySize,
                      {Ref{lying}, Ref{packed}, dense_value(r, bias), padding, stride, dilation, n.args[kGroups],
                       std::string("none"), std::vector<double>{}, std::string()},
                      type)};
  return true;
}

// Weights that change from call to call (training), in reduced floats: channels last as well, which oneDNN takes as it
// lies (from and to other layouts it copies for every call, which takes up to ten times as long). In f32 what that
// gains (1.1x, depthwise 2x) is lost again by normalisations, whose sums then run across.
bool suits_channels_last(const target::Providers& providers, const TensorType& input, const TensorType& w) {
  const bool dtype =
      (input.dtype == DType::kBF16 && providers.onednn_bf16) || (input.dtype == DType::kF16 && providers.onednn_f16);
  return providers.onednn && !providers.strict_numerics && dtype && input.dtype == w.dtype &&
         input.device.type == DeviceType::kCPU && input.rank() == 4 && w.rank() == 4 && input.sizes[1].is_const() &&
         all_const(w.sizes);
}
ValueId as_rows(Rewriter& r, ValueId image) {  // that lies channels last
  const Sizes sizes = r.b.sizes(image);
  return r.b.reshape(r.b.permute(image, {0, 2, 3, 1}), {sizes[0] * sizes[2] * sizes[3], sizes[1]});
}
ValueId as_image(Rewriter& r, ValueId rows, const Sizes& sizes) {
  return r.b.permute(r.b.reshape(rows, {sizes[0], sizes[2], sizes[3], sizes[1]}), {0, 3, 1, 2});
}
ValueId matrix_product(Rewriter& r, ValueId left, ValueId right, std::optional<ValueId> bias = std::nullopt) {
  TensorType type = r.b.type(left);
  type.sizes = {r.b.size(left, 0), r.b.size(right, 1)};
  type = dense_type(type);
  if (!bias) return r.b.emit(op::mm, {Ref{left}, Ref{right}}, type);
  return r.b.emit(op::addmm, {Ref{*bias}, Ref{left}, Ref{right}, sym::Expr(1), sym::Expr(1)}, type);
}

// ---- Patches: no two results read the same point, so the image falls into rows of a matrix.

struct Patches {
  std::array<int64_t, 2> kernel{}, stride{}, count{};  // kernel 1, or as large as the stride
  Sizes image;                                         // what is cut
  bool last = true;  // a patch's channels lie side by side; else its points do, as they lie in a weight

  int64_t channels() const { return image[1].value(); }
  bool one_point() const { return kernel[0] == 1 && kernel[1] == 1; }
  int64_t inner() const { return channels() * kernel[0] * kernel[1]; }
  int64_t rows() const { return image[0].value() * count[0] * count[1]; }
  // Of the image that patches cover, or that lies between the first and the last of their points.
  int64_t covered(size_t d) const { return one_point() ? (count[d] - 1) * stride[d] + 1 : count[d] * kernel[d]; }
};

// `image` is cut into patches for `small`, a point each. Geometry: stride, padding, dilation, transposed, ...
std::optional<Patches> find_patches(const TensorType& image, const TensorType& small, const TensorType& w,
                                    std::span<const Arg> geometry) {
  if (!all_are(geometry[1], 0) || !all_are(geometry[2], 1) || ops::as_int(geometry[5]) != 1) return std::nullopt;
  Patches p{.image = image.sizes};
  const std::vector<int64_t> stride = ops::as_ints(spatial(geometry[0], 2));
  for (size_t d = 0; d < 2; ++d) {
    p.kernel[d] = w.sizes[d + 2].value();
    p.stride[d] = stride[d];
    p.count[d] = small.sizes[d + 2].value();
  }
  if (!p.one_point() && p.kernel != p.stride) return std::nullopt;
  // Few channels (an image's colours) would be taken one by one.
  constexpr int64_t kFew = 16;
  p.last = p.one_point() || p.channels() >= kFew || image.strides[1].is_const(1);
  return p;
}

ValueId patch_rows(Rewriter& r, ValueId image, const Patches& p) {
  const sym::Expr n = p.image[0];
  const Sizes crop{n, p.channels(), p.covered(0), p.covered(1)};
  Sizes steps(4, 1);
  if (p.one_point()) steps = {1, 1, p.stride[0], p.stride[1]};
  const ValueId x = r.b.slice(image, Sizes(4, 0), crop, steps);
  const Sizes rows{p.rows(), p.inner()};
  if (p.one_point()) return r.b.reshape(r.b.permute(x, {0, 2, 3, 1}), rows);
  const ValueId cut = r.b.reshape(x, {n, p.channels(), p.count[0], p.kernel[0], p.count[1], p.kernel[1]});
  return r.b.reshape(
      r.b.permute(cut, p.last ? std::vector<int64_t>{0, 2, 4, 3, 5, 1} : std::vector<int64_t>{0, 2, 4, 1, 3, 5}), rows);
}

// The image with patches in these rows, and 0 elsewhere.
ValueId patch_image(Rewriter& r, ValueId rows, const Patches& p) {
  const sym::Expr n = p.image[0];
  const Sizes crop{n, p.channels(), p.covered(0), p.covered(1)};
  if (p.one_point()) {
    const ValueId points = r.b.permute(r.b.reshape(rows, {n, p.count[0], p.count[1], p.channels()}), {0, 3, 1, 2});
    if (p.stride == std::array<int64_t, 2>{1, 1}) return points;
    // (Channels last, as the rows lie.)
    const ValueId nothing =
        r.b.full({n, p.image[2], p.image[3], p.channels()}, 0.0, r.b.dtype(rows), r.b.type(rows).device);
    return r.b.slice_scatter(r.b.permute(nothing, {0, 3, 1, 2}), points, Sizes(4, 0), crop,
                             {1, 1, p.stride[0], p.stride[1]});
  }
  ValueId x;
  if (p.last) {
    x = r.b.reshape(rows, {n, p.count[0], p.count[1], p.kernel[0], p.kernel[1], p.channels()});
    x = r.b.reshape(r.b.permute(x, {0, 1, 3, 2, 4, 5}), {n, crop[2], crop[3], p.channels()});
    x = r.b.permute(x, {0, 3, 1, 2});
  } else {
    x = r.b.reshape(rows, {n, p.count[0], p.count[1], p.channels(), p.kernel[0], p.kernel[1]});
    x = r.b.reshape(r.b.permute(x, {0, 3, 1, 4, 2, 5}), crop);
  }
  return r.b.pad(x, Sizes(4, 0), {0, 0, p.image[2] - crop[2], p.image[3] - crop[3]}, 0.0);
}

// A weight [a, channels, kernel] as a matrix [a, a patch], and back.
ValueId patch_matrix(Rewriter& r, ValueId weight, const Patches& p) {
  return r.b.reshape(p.last ? r.b.permute(weight, {0, 2, 3, 1}) : weight, {r.b.size(weight, 0), p.inner()});
}
ValueId patch_weight(Rewriter& r, ValueId matrix, const Patches& p) {
  const sym::Expr rows = r.b.size(matrix, 0);
  if (!p.last) return r.b.reshape(matrix, {rows, p.channels(), p.kernel[0], p.kernel[1]});
  return r.b.permute(r.b.reshape(matrix, {rows, p.kernel[0], p.kernel[1], p.channels()}), {0, 3, 1, 2});
}

// What a convolution reads and gives, if that suits channels-last layouts.
struct ChannelsLastForward {
  ValueId x, weight;
  std::optional<ValueId> bias;
  TensorType input, w, out;
};
std::optional<ChannelsLastForward> channels_last_forward(Rewriter& r, const Node& n, const void* user) {
  const ValueId x = skip_copies(r, ops::as_value(n.args[kInput])), weight = ops::as_value(n.args[kWeight]);
  const TensorType input = r.b.type(x), w = r.b.type(weight), out = r.b.type(n.outs[0]);
  if (!suits_channels_last(machine(user), input, w)) return std::nullopt;
  const auto bias = ops::as_optional_value(n.args[kBias]);
  if (bias && r.b.dtype(*bias) != input.dtype) return std::nullopt;
  return ChannelsLastForward{x, weight, bias, input, w, out};
}

bool cut_patches(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto forward = channels_last_forward(r, n, user);
  if (!forward) return false;
  const auto& [x, weight, bias, input, w, out] = *forward;
  if (!all_const(input.sizes) || !all_const(out.sizes)) return false;
  const bool transposed = ops::as_bool(n.args[kTransposed]);
  if (transposed && !all_are(n.args[kOutputPadding], 0)) return false;
  const auto p =
      find_patches(transposed ? out : input, transposed ? input : out, w, std::span(n.args).subspan(kStride));
  if (!p) return false;
  if (!transposed) {
    const ValueId matrix = r.b.permute(patch_matrix(r, weight, *p), {1, 0});
    results = {as_image(r, matrix_product(r, patch_rows(r, x, *p), matrix, bias), out.sizes)};
    return true;
  }
  if (p->one_point()) return false;
  Patches cut = *p;
  cut.last = true;
  std::optional<ValueId> all;  // the bias of a patch
  if (bias) all = r.b.reshape(r.b.expand(*bias, {cut.kernel[0], cut.kernel[1], cut.channels()}), {cut.inner()});
  const ValueId points = as_rows(r, in_strides(r, x, channels_last(input)));
  results = {patch_image(r, matrix_product(r, points, patch_matrix(r, weight, cut), all), cut)};
  return true;
}

// Which gradients (input, weight, bias) a convolution_backward is asked for and somebody reads.
std::optional<std::array<bool, 3>> needed_gradients(const Node& n) {
  const auto* mask = std::get_if<std::vector<bool>>(&n.args[10]);
  if (!mask || mask->size() != 3) return std::nullopt;
  std::array<bool, 3> needed{};
  for (size_t i = 0; i < 3; ++i) needed[i] = (*mask)[i] && n.outs[i] != kNoValue;
  return needed;
}

// What a convolution_backward reads, if that suits channels-last layouts.
struct ChannelsLastBackward {
  std::array<bool, 3> needed;
  ValueId g, x, weight;  // behind copies
  TensorType out, input, w;
};
std::optional<ChannelsLastBackward> channels_last_backward(Rewriter& r, const Node& n, const void* user) {
  const auto needed = needed_gradients(n);
  const ValueId g = skip_copies(r, ops::as_value(n.args[0])), x = skip_copies(r, ops::as_value(n.args[1])),
                weight = ops::as_value(n.args[2]);
  const TensorType out = r.b.type(g), input = r.b.type(x), w = r.b.type(weight);
  if (!needed || !suits_channels_last(machine(user), input, w) || out.dtype != input.dtype) return std::nullopt;
  return ChannelsLastBackward{*needed, g, x, weight, out, input, w};
}

// aten.convolution_backward(grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
// groups, mask)
bool cut_patches_backward(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto backward = channels_last_backward(r, n, user);
  if (!backward) return false;
  const auto& [needed, g, x, weight, out, input, w] = *backward;
  if (out.rank() != 4 || !all_const(input.sizes) || !all_const(out.sizes)) return false;
  const bool transposed = ops::as_bool(n.args[7]);
  if (transposed && !all_are(n.args[8], 0)) return false;
  auto p = find_patches(transposed ? out : input, transposed ? input : out, w, std::span(n.args).subspan(4));
  if (!p || (transposed && p->one_point())) return false;
  if (transposed) p->last = true;
  results.assign(3, kNoValue);
  if (needed[2]) results[2] = bias_gradient(r, in_strides(r, g, channels_last(out)), r.b.dtype(n.outs[2]));
  if (!needed[0] && !needed[1]) return true;
  const ValueId cut = patch_rows(r, transposed ? g : x, *p);
  const ValueId points = transposed ? as_rows(r, in_strides(r, x, channels_last(input)))
                                    : as_rows(r, in_strides(r, g, channels_last(out)));
  const ValueId matrix = patch_matrix(r, weight, *p);
  if (needed[0])
    results[0] = transposed ? as_image(r, matrix_product(r, cut, r.b.permute(matrix, {1, 0})), input.sizes)
                            : patch_image(r, matrix_product(r, points, matrix), *p);
  if (needed[1]) results[1] = patch_weight(r, matrix_product(r, r.b.permute(points, {1, 0}), cut), *p);
  return true;
}

// The operators of cpu_kernels/convolution.h, where they win (docs/benchmarks/libraries.md).
target::OwnConvolution own_convolution(
    const target::Providers& p, const TensorType& input, const TensorType& w, const TensorType& out,
    std::span<const Arg> geometry) {  // stride, padding, dilation, transposed, ..., groups
  if (p.strict_numerics || w.dtype != input.dtype || out.dtype != input.dtype ||
      input.device.type != DeviceType::kCPU || input.rank() != 4 || w.rank() != 4 || ops::as_bool(geometry[3]) ||
      !all_const(input.sizes) || !all_const(w.sizes) || !all_const(out.sizes))
    return {};
  const int64_t groups = ops::as_int(geometry[5]);
  return choose_convolution(p, input.dtype,
                            {.in = w.sizes[1].value(),
                             .out = w.sizes[0].value() / groups,
                             .groups = groups,
                             .taps = w.sizes[2].value() * w.sizes[3].value(),
                             .points = out.sizes[2].value() * out.sizes[3].value(),
                             .batch = out.sizes[0].value(),
                             .reach = (w.sizes[2].value() - 1) * ops::as_ints(geometry[2])[0] * input.sizes[3].value(),
                             .strided = !all_are(geometry[0], 1)});
}
bool use_own(Rewriter& r, const Node& n, Values& results, const void* user) {
  const ValueId x = skip_copies(r, ops::as_value(n.args[kInput])), weight = ops::as_value(n.args[kWeight]);
  const TensorType input = r.b.type(x), w = r.b.type(weight), out = r.b.type(n.outs[0]);
  const target::OwnConvolution own = own_convolution(machine(user), input, w, out, std::span(n.args).subspan(kStride));
  if (!own.forward) return false;
  const auto bias = ops::as_optional_value(n.args[kBias]);
  if (bias && r.b.dtype(*bias) != input.dtype) return false;
  if (own.unfolded) {
    results = {r.b.emit(kUnfolded,
                        {Ref{in_strides(r, x, channels_last(input))}, Ref{dense_value(r, weight)}, dense_value(r, bias),
                         spatial(n.args[kStride], 2), spatial(n.args[kPadding], 2), spatial(n.args[kDilation], 2)},
                        channels_last(out))};
    return true;
  }
  results = {
      r.b.emit("flashover.convolution.default",
               {Ref{dense_value(r, x)}, Ref{dense_value(r, weight)}, dense_value(r, bias), spatial(n.args[kStride], 2),
                spatial(n.args[kPadding], 2), spatial(n.args[kDilation], 2), n.args[kGroups]},
               dense_type(out))};
  return true;
}

// aten.convolution_backward for the gradients of input and weight that are needed, of these types.
void call_backward(Rewriter& r, std::vector<Arg> args, std::array<bool, 2> needed, std::array<TensorType, 2> types,
                   Values& results) {
  args[3] = Arg{};
  args[10] = std::vector<bool>{needed[0], needed[1], false};
  const auto made =
      r.b.emit_all(op::convolution_backward, std::move(args), {std::move(types[0]), std::move(types[1]), TensorType{}});
  std::vector<ValueId>& outs = r.out.nodes.back().outs;
  outs[2] = kNoValue;
  for (size_t i = 0; i < 2; ++i) (needed[i] ? results : outs)[i] = needed[i] ? made[i] : kNoValue;
}

bool use_own_backward(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto needed = needed_gradients(n);
  const ValueId g = skip_copies(r, ops::as_value(n.args[0])), x = skip_copies(r, ops::as_value(n.args[1])),
                weight = ops::as_value(n.args[2]);
  const TensorType out = r.b.type(g), input = r.b.type(x), w = r.b.type(weight);
  if (!needed) return false;
  const auto& providers = machine(user);
  const target::OwnConvolution own = own_convolution(providers, input, w, out, std::span(n.args).subspan(4));
  if (!((*needed)[0] && own.input) && !((*needed)[1] && own.weight)) return false;
  results.assign(3, kNoValue);
  if (own.unfolded) {
    const auto call = [&](const char* op, ValueId second, const TensorType& like, TensorType type) {
      const ValueId grad = in_strides(r, g, channels_last(out));
      return r.b.emit(
          op, {Ref{grad}, Ref{second}, like.sizes, spatial(n.args[4], 2), spatial(n.args[5], 2), spatial(n.args[6], 2)},
          std::move(type));
    };
    if ((*needed)[0])
      results[0] =
          call("flashover.unfolded_input_gradient.default", dense_value(r, weight), input, channels_last(input));
    if ((*needed)[1])
      results[1] =
          call("flashover.unfolded_weight_gradient.default", in_strides(r, x, channels_last(input)), w, dense_type(w));
    if ((*needed)[2]) results[2] = bias_gradient(r, g, r.b.dtype(n.outs[2]));
    return true;
  }
  const auto call = [&](const char* op, ValueId second, const TensorType& like) {
    return r.b.emit(op,
                    {Ref{dense_value(r, g)}, Ref{dense_value(r, second)}, like.sizes, spatial(n.args[4], 2),
                     spatial(n.args[5], 2), spatial(n.args[6], 2), n.args[9]},
                    dense_type(like));
  };
  std::array<bool, 2> left{(*needed)[0], (*needed)[1]};
  if (left[0] && own.input) {
    results[0] = call("flashover.convolution_input_gradient.default", weight, input);
    left[0] = false;
  }
  if (left[1] && own.weight) {
    results[1] = call("flashover.convolution_weight_gradient.default", x, w);
    left[1] = false;
  }
  if ((*needed)[2]) {  // (oneDNN makes it together with the weight's.)
    results[2] = bias_gradient(r, g, r.b.dtype(n.outs[2]));
  }
  if (!left[0] && !left[1]) return true;
  const bool last = suits_channels_last(providers, input, w);
  const auto lying = [&](TensorType t) { return last ? channels_last(std::move(t)) : dense_type(std::move(t)); };
  std::vector<Arg> args = n.args;
  args[0] = Ref{in_strides(r, g, lying(out))};
  args[1] = Ref{in_strides(r, x, lying(input))};
  args[2] = Ref{dense_value(r, weight)};
  call_backward(r, std::move(args), {left[0], left[1]}, {lying(input), lying(w)}, results);
  return true;
}

// Sizes of images that are symbols, in f32, where everyone's operands are dense: the call chooses.
bool may_be_own(const target::Providers& p, const TensorType& input, const TensorType& w, const TensorType& out,
                std::span<const Arg> geometry) {
  if (p.strict_numerics || (!p.own_f32 && !p.split_f32) || w.dtype != DType::kF32 || input.dtype != w.dtype ||
      out.dtype != w.dtype || input.device.type != DeviceType::kCPU || input.rank() != 4 || w.rank() != 4 ||
      ops::as_bool(geometry[3]) || !all_const(w.sizes) || !input.sizes[1].is_const() ||
      (all_const(input.sizes) && all_const(out.sizes)))
    return false;
  const bool depthwise = ops::as_int(geometry[5]) > 1 && w.sizes[1].is_const(1) && w.sizes[0] == input.sizes[1];
  return depthwise ? p.own_f32 : p.split_f32;
}
bool choose_in_call(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto& p = machine(user);
  const ValueId x = skip_copies(r, ops::as_value(n.args[kInput])), weight = ops::as_value(n.args[kWeight]);
  const TensorType out = r.b.type(n.outs[0]);
  if (!may_be_own(p, r.b.type(x), r.b.type(weight), out, std::span(n.args).subspan(kStride))) return false;
  results = {
      r.b.emit("flashover.convolution_by_size.default",
               {Ref{dense_value(r, x)}, Ref{dense_value(r, weight)},
                dense_value(r, ops::as_optional_value(n.args[kBias])), spatial(n.args[kStride], 2),
                spatial(n.args[kPadding], 2), spatial(n.args[kDilation], 2), n.args[kGroups], p.own_f32, p.split_f32},
               dense_type(out))};
  return true;
}
bool choose_in_call_backward(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto& p = machine(user);
  const auto needed = needed_gradients(n);
  const ValueId g = skip_copies(r, ops::as_value(n.args[0])), x = skip_copies(r, ops::as_value(n.args[1])),
                weight = ops::as_value(n.args[2]);
  const TensorType input = r.b.type(x), w = r.b.type(weight);
  if (!needed || !may_be_own(p, input, w, r.b.type(g), std::span(n.args).subspan(4))) return false;
  results.assign(3, kNoValue);
  if ((*needed)[2]) results[2] = bias_gradient(r, g, r.b.dtype(n.outs[2]));
  const std::array<bool, 2> left{(*needed)[0], (*needed)[1]};
  if (!left[0] && !left[1]) return true;
  const auto made = r.b.emit_all("flashover.convolution_backward_by_size.default",
                                 {Ref{dense_value(r, g)}, Ref{dense_value(r, x)}, Ref{dense_value(r, weight)},
                                  spatial(n.args[4], 2), spatial(n.args[5], 2), spatial(n.args[6], 2), n.args[9],
                                  p.own_f32, p.split_f32, std::vector<bool>{left[0], left[1]}},
                                 {dense_type(input), dense_type(w)});
  std::vector<ValueId>& outs = r.out.nodes.back().outs;
  for (size_t i = 0; i < 2; ++i) (left[i] ? results : outs)[i] = left[i] ? made[i] : kNoValue;
  return true;
}

bool lay_last(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto forward = channels_last_forward(r, n, user);
  if (!forward) return false;
  const auto& [x, weight, bias, input, w, out] = *forward;
  std::vector<Arg> args = n.args;
  args[kInput] = Ref{in_strides(r, x, channels_last(input))};
  // ATen would lay the weight so in each call, at a quarter of the speed.
  args[kWeight] = Ref{in_strides(r, weight, channels_last(w))};
  results = {r.b.emit(op::convolution, std::move(args), channels_last(out))};
  return true;
}

// aten.convolution_backward(grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
// groups, mask)
bool lay_last_backward(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto backward = channels_last_backward(r, n, user);
  if (!backward) return false;
  const auto& [needed, g, x, weight, out, input, w] = *backward;
  results.assign(3, kNoValue);
  const ValueId g_last = in_strides(r, g, channels_last(out));
  if (needed[2]) {  // a sum like any other
    results[2] = bias_gradient(r, g_last, r.b.dtype(n.outs[2]));
  }
  if (!needed[0] && !needed[1]) return true;
  const ValueId x_last = in_strides(r, x, channels_last(input));
  std::vector<Arg> args = n.args;
  args[0] = Ref{g_last};
  args[1] = Ref{x_last};
  args[2] = Ref{in_strides(r, weight, channels_last(w))};
  call_backward(r, std::move(args), {needed[0], needed[1]}, {channels_last(input), channels_last(w)}, results);
  return true;
}

// The gradient of a weight of one point with strides, where the library's is wrong: of the points that it meets, with
// stride 1.
bool take_points_backward(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto needed = needed_gradients(n);
  const ValueId g = ops::as_value(n.args[0]), x = ops::as_value(n.args[1]);
  const TensorType out = r.b.type(g), input = r.b.type(x), w = r.b.type(ops::as_value(n.args[2]));
  if (machine(user).onednn_strided_points || !needed || input.dtype != DType::kF32 ||
      input.device.type != DeviceType::kCPU || input.rank() != 4 || w.rank() != 4 || !all_const(input.sizes) ||
      !all_const(w.sizes) || !all_const(out.sizes) || ops::as_bool(n.args[7]) || all_are(n.args[4], 1) || !(*needed)[1])
    return false;
  const auto points = find_patches(input, out, w, std::span(n.args).subspan(4));
  if (!points || !points->one_point()) return false;
  results.assign(3, kNoValue);
  if ((*needed)[0]) call_backward(r, n.args, {true, false}, {r.b.type(n.outs[0]), r.b.type(n.outs[1])}, results);
  if ((*needed)[2]) results[2] = bias_gradient(r, g, r.b.dtype(n.outs[2]));
  const Sizes ends{input.sizes[0], input.sizes[1], points->covered(0), points->covered(1)};
  const ValueId met = r.b.slice(x, Sizes(4, 0), ends, {1, 1, points->stride[0], points->stride[1]});
  TensorType lying = input;
  lying.sizes = r.b.sizes(met);
  std::vector<Arg> args = n.args;
  args[1] = Ref{in_strides(r, met, dense_type(lying))};
  args[4] = int_list({1, 1});
  Values made(3, kNoValue);
  call_backward(r, std::move(args), {false, true}, {lying, r.b.type(n.outs[1])}, made);
  results[1] = made[1];
  return true;
}

// activation(conv): the convolution computes it.
bool take_activation_of_convolution(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto& providers = machine(user);
  const ValueId top = ops::as_value(n.args[0]);
  if (providers.strict_numerics || r.uses(top) != 1) return false;
  const ValueId v = skip_copies(r, top);
  if (r.uses(v) != 1) return false;
  if (const Node* found = r.def(v, kDepthwise)) {
    const auto activation = own_activation(n);
    if (!activation || std::get<std::string>(found->args[7]) != "none") return false;
    std::vector<Arg> args = found->args;
    args[7] = *activation;
    results = {r.b.emit(kDepthwise, std::move(args), r.b.type(v))};
    return true;
  }
  const auto activation = fused_activation(n);
  const Node* found = r.def(v, kPackedConvolution);
  if (!found) found = r.def(v, kConvolutionOfAnySize);
  if (!activation || !found || std::get<std::string>(found->args[7]) != "none") return false;
  Node conv = *found;
  conv.args[7] = std::string(activation->attr);
  conv.args[9] = activation->algorithm;
  results = {r.b.emit(conv.op->name, std::move(conv.args), r.b.type(v))};
  return true;
}

constexpr RewriteRule kConvolution[] = {
    {op::convolution, "conv with a known weight -> oneDNN, channels last, packed", use_onednn},
    {op::convolution, "conv of patches that do not overlap -> a product, channels last", cut_patches},
    {op::convolution_backward, "its gradients", cut_patches_backward},
    {op::convolution, "conv -> the AMX unit", use_own},
    {op::convolution_backward, "its gradients", use_own_backward},
    {op::convolution, "conv of sizes that are symbols: the call chooses", choose_in_call},
    {op::convolution_backward, "its gradients", choose_in_call_backward},
    {op::convolution, "conv -> channels last", lay_last},
    {op::convolution_backward, "the same", lay_last_backward},
    {op::convolution_backward, "a weight's gradient that oneDNN's kernel has wrong", take_points_backward},
    {op::gelu, "gelu(conv)", take_activation_of_convolution},
    {op::relu, "relu(conv), where it keeps NaN", take_activation_of_convolution},
    {op::silu, "silu(conv)", take_activation_of_convolution},
    {op::hardswish, "hardswish(conv)", take_activation_of_convolution},
    {op::tanh, "tanh(conv)", take_activation_of_convolution},
    {op::sigmoid, "sigmoid(conv)", take_activation_of_convolution},
};

}  // namespace

Graph convolution(Graph g, const target::Providers& providers) {
  State state{providers, providers.pack_budget};
  for (const TensorType& copy : copied_weights(g))
    if (!take_room(copy, state.room)) state.room = 0;
  return rewrite(std::move(g), kConvolution, &state);
}

}  // namespace flashover::graph
