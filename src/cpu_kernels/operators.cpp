// The hand-written operators under names of torch's dispatcher, so that plans call them as they call ATen's. Only
// rewrites that asked target::Providers emit them.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_embedding_bag_backward.h>
#include <ATen/ops/_to_copy.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "base/pages.h"
#include "base/unexpected_size.h"
#include "cpu_kernels/attention.h"
#include "cpu_kernels/by_rows.h"
#include "cpu_kernels/convolution.h"
#include "cpu_kernels/convolution_weights.h"
#include "cpu_kernels/depthwise_last.h"
#include "cpu_kernels/embedding.h"
#include "cpu_kernels/flex.h"
#include "cpu_kernels/linear.h"
#include "cpu_kernels/operators.h"
#include "cpu_kernels/panel_product.h"
#include "cpu_kernels/panels.h"
#include "cpu_kernels/plain.h"
#include "cpu_kernels/product.h"
#include "cpu_kernels/random.h"
#include "cpu_kernels/recurrent.h"
#include "cpu_kernels/team.h"
#include "cpu_kernels/unfold.h"
#include "ops/names.h"
#include "sym/environment.h"
#include "target/providers.h"
#include "torch/convert.h"
#include "torch/convolved.h"

namespace flashover::cpu {
namespace {

at::Tensor dense(const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  at::Tensor t(at::detail::empty_cpu(sizes, dtype, std::nullopt, std::nullopt, std::nullopt, std::nullopt));
  prefer_huge_pages(t.unsafeGetTensorImpl()->unsafe_storage().mutable_data(), t.storage().nbytes());
  return t;
}
bool is_dense_last(const at::Tensor& t) { return t.size(-1) <= 1 || t.stride(-1) == 1; }

Plain plain(const at::Tensor& t) {
  return {const_cast<void*>(t.const_data_ptr()),
          aten::from_aten(t.scalar_type()),
          {t.sizes().data(), t.sizes().size()},
          {t.strides().data(), t.strides().size()}};
}
std::optional<Plain> plain(const std::optional<at::Tensor>& t) { return t ? std::optional(plain(*t)) : std::nullopt; }
const Plain* pointer(const std::optional<Plain>& t) { return t ? &*t : nullptr; }
std::string_view text(c10::string_view s) { return {s.data(), s.size()}; }
void check_done(Wrong wrong) { TORCH_CHECK(wrong.empty(), wrong); }

at::Tensor pack_linear_op(const at::Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2, "pack_linear: a bf16 or f32 matrix");
  const DType dtype = aten::from_aten(weight.scalar_type());
  at::Tensor packed = dense({packed_linear_elements(dtype, weight.size(0), weight.size(1))}, weight.scalar_type());
  check_done(pack_linear(plain(weight), plain(packed)));
  return packed;
}

at::Tensor& packed_linear_out(const at::Tensor& x, const at::Tensor& packed, const std::optional<at::Tensor>& bias,
                              int64_t columns, c10::string_view activation, at::Tensor& out) {
  const std::optional<Plain> b = plain(bias);
  check_done(packed_linear(plain(x), plain(packed), pointer(b), columns, text(activation), plain(out)));
  return out;
}
at::Tensor packed_linear_op(const at::Tensor& x, const at::Tensor& packed, const std::optional<at::Tensor>& bias,
                            int64_t columns, c10::string_view activation) {
  at::Tensor out = dense({x.size(0), columns}, x.scalar_type());
  return packed_linear_out(x, packed, bias, columns, activation, out);
}

at::Tensor pack_panels_op(const at::Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2, "pack_panels: an f32 matrix");
  at::Tensor packed = dense({panel_elements(weight.size(0), weight.size(1))}, at::kFloat);
  check_done(pack_panels(plain(weight), plain(packed)));
  return packed;
}

at::Tensor& panel_linear_out(const at::Tensor& x, const at::Tensor& packed, const std::optional<at::Tensor>& bias,
                             const std::optional<at::Tensor>& added, int64_t columns, c10::string_view activation,
                             at::Tensor& out) {
  const std::optional<Plain> b = plain(bias), add = plain(added);
  check_done(panel_linear(plain(x), plain(packed), pointer(b), pointer(add), columns, text(activation), plain(out)));
  return out;
}
at::Tensor panel_linear_op(const at::Tensor& x, const at::Tensor& packed, const std::optional<at::Tensor>& bias,
                           const std::optional<at::Tensor>& added, int64_t columns, c10::string_view activation) {
  at::Tensor out = dense({x.size(0), columns}, at::kFloat);
  return panel_linear_out(x, packed, bias, added, columns, activation, out);
}

std::vector<int64_t> depthwise_sizes(const at::Tensor& x, at::IntArrayRef kernel, at::IntArrayRef stride,
                                     at::IntArrayRef padding, at::IntArrayRef dilation) {
  return aten::convolved_sizes(x.sizes(), {x.size(1), 1, kernel[0], kernel[1]}, stride, padding, dilation);
}

at::Tensor pack_depthwise_op(const at::Tensor& weight) {
  TORCH_CHECK(weight.dim() == 4, "pack_depthwise: an f32 weight of one channel a group");
  const at::Tensor lying = weight.contiguous();
  at::Tensor packed = dense({depthwise_elements(weight.size(0), weight.size(2) * weight.size(3))}, at::kFloat);
  check_done(pack_depthwise(plain(lying), plain(packed)));
  return packed;
}

at::Tensor& depthwise_last_out(const at::Tensor& x, const at::Tensor& packed, const std::optional<at::Tensor>& bias,
                               at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
                               at::IntArrayRef dilation, c10::string_view activation, at::Tensor& out) {
  const std::optional<Plain> b = plain(bias);
  const auto list = [](at::IntArrayRef l) { return std::span<const int64_t>(l.data(), l.size()); };
  const DepthwiseGeometry geometry{list(kernel), list(stride), list(padding), list(dilation)};
  check_done(depthwise_last(plain(x), plain(packed), pointer(b), geometry, text(activation), plain(out)));
  return out;
}
at::Tensor depthwise_last_op(const at::Tensor& x, const at::Tensor& packed, const std::optional<at::Tensor>& bias,
                             at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
                             at::IntArrayRef dilation, c10::string_view activation) {
  TORCH_CHECK(x.dim() == 4 && kernel.size() == 2 && stride.size() == 2 && padding.size() == 2 && dilation.size() == 2 &&
                  stride[0] > 0 && stride[1] > 0,
              "depthwise_last: wrong arguments");
  const std::vector<int64_t> sizes = depthwise_sizes(x, kernel, stride, padding, dilation);
  at::Tensor out = dense({sizes[0], sizes[2], sizes[3], sizes[1]}, at::kFloat).permute({0, 3, 1, 2});
  return depthwise_last_out(x, packed, bias, kernel, stride, padding, dilation, activation, out);
}

at::Tensor& product_out(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& added,
                        c10::string_view activation, bool wide, bool vectors, at::Tensor& out) {
  std::optional<at::Tensor> dense_added = added;
  if (added && added->dim() > 0 && added->size(-1) > 1 && added->stride(-1) > 1) dense_added = added->contiguous();
  const std::optional<Plain> add = plain(dense_added);
  check_done(product(plain(a), plain(b), pointer(add), text(activation), wide, vectors, plain(out)));
  return out;
}
at::Tensor product_op(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& added,
                      c10::string_view activation, bool wide, bool vectors) {
  TORCH_CHECK(a.dim() >= 2 && b.dim() >= 2, "product: wrong arguments");
  std::vector<int64_t> sizes = a.sizes().vec();
  sizes.back() = b.size(-1);
  at::Tensor out = dense(sizes, wide ? at::kFloat : a.scalar_type());
  return product_out(a, b, added, activation, wide, vectors, out);
}

// ATen's product where numbers near 0 count as 0.
at::Tensor bmm_flushed(const at::Tensor& a, const at::Tensor& b) {
  const FlushedTeam flushed;
  return at::cpu::bmm(a, b);
}

// The operand's strides along `batch` (its own leading dims, from the right), 0 where it repeats.
AttentionOperand operand(const at::Tensor& t, const Batch& batch) {
  AttentionOperand o{.data = t.const_data_ptr()};
  const int64_t rank = t.dim();
  o.row = t.size(-2) == 1 ? 0 : t.stride(-2);
  for (int64_t d = 0; d < kBatchDims; ++d) {
    const int64_t own = rank - 2 - kBatchDims + d;
    if (own < 0) continue;
    const int64_t size = t.size(own), all = batch[static_cast<size_t>(d)];
    TORCH_CHECK(size == all || size == 1, "attention: sizes do not fit");
    o.batch[static_cast<size_t>(d)] = size == 1 ? 0 : t.stride(own);
  }
  return o;
}

// Without `out` and what follows it.
Attention attention_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::TensorList biases,
                       double scale, bool causal) {
  const bool bf16 = q.scalar_type() == at::kBFloat16;
  TORCH_CHECK(bf16 ? has_amx_bf16() : has_avx512(), "attention: not on this machine");
  const int64_t rank = q.dim();
  TORCH_CHECK(rank >= 3 && rank <= 2 + kBatchDims && k.dim() == rank && v.dim() == rank &&
                  (bf16 || q.scalar_type() == at::kFloat) && k.scalar_type() == q.scalar_type() &&
                  v.scalar_type() == q.scalar_type() && biases.size() <= kMaxBiases && k.size(-1) == q.size(-1) &&
                  v.size(-2) == k.size(-2) && is_dense_last(q) && is_dense_last(k) && is_dense_last(v),
              "attention: wrong arguments");
  Attention a{.bf16 = bf16,
              .biases = static_cast<int>(biases.size()),
              .queries = q.size(-2),
              .keys = k.size(-2),
              .width = q.size(-1),
              .value_width = v.size(-1),
              .scale = static_cast<float>(scale),
              .causal = causal};
  for (int64_t d = 0; d < rank - 2; ++d) a.batch[static_cast<size_t>(kBatchDims - (rank - 2) + d)] = q.size(d);
  a.q = operand(q, a.batch);
  a.k = operand(k, a.batch);
  a.v = operand(v, a.batch);
  for (size_t i = 0; i < biases.size(); ++i) {
    const at::Tensor& b = biases[i];
    a.bias_bf16[i] = b.scalar_type() == at::kBFloat16;
    TORCH_CHECK((a.bias_bf16[i] || b.scalar_type() == at::kFloat) && b.dim() >= 2 && b.dim() <= 2 + kBatchDims &&
                    b.size(-1) == a.keys && (b.size(-2) == a.queries || b.size(-2) == 1) && is_dense_last(b),
                "attention: wrong bias");
    a.bias[i] = operand(b, a.batch);
  }
  return a;
}

void swap_dims(const at::Tensor& t, size_t a, size_t b) {
  std::vector<int64_t> sizes(t.sizes().vec()), strides(t.strides().vec());
  std::swap(sizes[a], sizes[b]);
  std::swap(strides[a], strides[b]);
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
}

// Like `t` with another width. In memory the last batch dim (the heads) lies between rows and width: what follows puts
// heads side by side.
at::Tensor heads_inside(const at::Tensor& t, int64_t width) {
  std::vector<int64_t> sizes = t.sizes().vec();
  const size_t rank = sizes.size();
  sizes.back() = width;
  std::swap(sizes[rank - 3], sizes[rank - 2]);
  at::Tensor out = dense(sizes, t.scalar_type());
  swap_dims(out, rank - 3, rank - 2);
  return out;
}

void run_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::TensorList biases,
                   const AttentionOptions& options, const at::Tensor& out, const at::Tensor* logsumexp) {
  std::vector<Plain> added;
  for (const at::Tensor& b : biases) added.push_back(plain(b));
  const std::optional<Plain> sums = logsumexp ? std::optional(plain(*logsumexp)) : std::nullopt;
  check_done(attention(plain(q), plain(k), plain(v), added, options, plain(out), pointer(sums)));
}

void check_rank(const at::Tensor& q, const at::Tensor& v) {  // what results are allocated by
  TORCH_CHECK(q.dim() >= 3 && v.dim() >= 1, "attention: wrong arguments");
}

at::Tensor attention_op(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::TensorList biases,
                        double scale, bool causal, bool zero_if_none) {
  check_rank(q, v);
  at::Tensor out = heads_inside(q, v.size(-1));
  run_attention(q, k, v, biases, {scale, causal, zero_if_none}, out, nullptr);
  return out;
}

// `t` [batch, queries], a number a row.
AttentionOperand row_statistics(const at::Tensor& t) {
  AttentionOperand o{.data = t.const_data_ptr()};
  const auto batch_dims = static_cast<size_t>(t.dim()) - 1;
  o.row = t.stride(-1);
  for (size_t d = 0; d < batch_dims; ++d) o.batch[kBatchDims - batch_dims + d] = t.stride(static_cast<int64_t>(d));
  return o;
}

std::tuple<at::Tensor, at::Tensor> attention_kept_op(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                     const at::TensorList biases, double scale, bool causal,
                                                     bool zero_if_none) {
  check_rank(q, v);
  at::Tensor out = heads_inside(q, v.size(-1));
  std::vector<int64_t> sizes(q.sizes().begin(), q.sizes().end() - 1);
  std::swap(sizes[sizes.size() - 1], sizes[sizes.size() - 2]);
  at::Tensor logsumexp = dense(sizes, at::kFloat);
  swap_dims(logsumexp, sizes.size() - 1, sizes.size() - 2);
  run_attention(q, k, v, biases, {scale, causal, zero_if_none}, out, &logsumexp);
  if (out.numel() == 0) logsumexp.fill_(-INFINITY);
  return {out, logsumexp};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_op(const at::Tensor& grad, const at::Tensor& q,
                                                                     const at::Tensor& k, const at::Tensor& v,
                                                                     const at::Tensor& out, const at::Tensor& logsumexp,
                                                                     const at::TensorList biases, double scale,
                                                                     bool causal) {
  AttentionBackward a{.forward = attention_of(q, k, v, biases, scale, causal)};
  TORCH_CHECK(a.forward.bf16 && grad.scalar_type() == at::kBFloat16 && out.scalar_type() == at::kBFloat16 &&
                  logsumexp.scalar_type() == at::kFloat && grad.sizes() == out.sizes() && is_dense_last(out) &&
                  out.dim() == q.dim() && out.size(-1) == v.size(-1) && out.size(-2) == q.size(-2) &&
                  logsumexp.dim() == q.dim() - 1 &&
                  logsumexp.sizes() == q.sizes().slice(0, static_cast<size_t>(q.dim()) - 1),
              "attention_backward: wrong arguments");
  const at::Tensor dense_grad = is_dense_last(grad) ? grad : grad.contiguous();
  std::tuple<at::Tensor, at::Tensor, at::Tensor> grads{heads_inside(q, q.size(-1)), heads_inside(k, k.size(-1)),
                                                       heads_inside(v, v.size(-1))};
  auto& [grad_q, grad_k, grad_v] = grads;
  if (q.numel() == 0 || k.numel() == 0 || v.numel() == 0) {
    grad_q.zero_(), grad_k.zero_(), grad_v.zero_();
    return grads;
  }
  const Batch& batch = a.forward.batch;
  a.forward.out = operand(out, batch);
  a.forward.logsumexp = row_statistics(logsumexp);
  a.grad = operand(dense_grad, batch);
  a.grad_q = operand(grad_q, batch);
  a.grad_k = operand(grad_k, batch);
  a.grad_v = operand(grad_v, batch);
  attention_backward(a);
  return grads;
}

// ---- random numbers

// How 1 looks in a dtype; 0: not for us.
uint32_t one_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return 0x3f800000;
    case at::kBFloat16:
      return 0x3f80;
    case at::kHalf:
      return 0x3c00;
    case at::kBool:
    case at::kByte:
      return 1;
    default:
      return 0;
  }
}

void draw(at::CPUGeneratorImpl& generator, double p, const at::Tensor& out) {
  const std::lock_guard lock(generator.mutex_);
  at::mt19937 engine = generator.engine();
  at::mt19937_data_pod data = engine.data();
  // (Its words are renewed when one is wanted and left_ is 1.)
  Twister t{.words = data.state_.data(), .used = Twister::kWords - (data.left_ - 1)};
  draw_below(t, static_cast<uint64_t>(std::ceil(std::ldexp(p, 53))), out.numel(), out.mutable_data_ptr(),
             static_cast<int>(out.element_size()), one_of(out.scalar_type()));
  data.left_ = Twister::kWords - t.used + 1;
  data.next_ = static_cast<uint32_t>(t.used);
  engine.set_data(data);
  generator.set_engine(engine);
}

// ATen draws with MKL's generators on some machines.
bool draws_as_aten() {
  static const bool same = [] {
    if (!has_avx512()) return false;
    at::Generator own = at::detail::createCPUGenerator(7), other = at::detail::createCPUGenerator(7);
    constexpr int64_t n = 1001;
    for (int i = 0; i < 2; ++i) {
      const at::Tensor got = dense({n}, at::kFloat);
      draw(*own.get<at::CPUGeneratorImpl>(), 0.3, got);
      const at::Tensor want = at::bernoulli(got, 0.3, other);
      if (!std::equal(got.const_data_ptr<float>(), got.const_data_ptr<float>() + n, want.const_data_ptr<float>()))
        return false;
    }
    return own.get<at::CPUGeneratorImpl>()->random() == other.get<at::CPUGeneratorImpl>()->random();
  }();
  return same;
}

at::Tensor bernoulli_op(const at::Tensor& x, double p, std::optional<at::Generator> generator) {
  if (generator || !(p >= 0 && p <= 1) || one_of(x.scalar_type()) == 0 || !draws_as_aten())
    return at::bernoulli(x, p, std::move(generator));
  at::Tensor out = dense(x.sizes().vec(), x.scalar_type());
  if (out.numel() == 0) return out;
  draw(*at::detail::getDefaultCPUGenerator().get<at::CPUGeneratorImpl>(), p, out);
  return out;
}

// ---- gradients of tables

bool is_index(const at::Tensor& t) { return t.scalar_type() == at::kLong || t.scalar_type() == at::kInt; }

at::Tensor gradient_of_table(const at::Tensor& grad, const at::Tensor& indices, const at::Tensor* offsets, int64_t rows,
                             int64_t left_out) {
  const at::Tensor from = grad.contiguous(), index = indices.contiguous();
  const int64_t width = grad.size(-1);
  at::Tensor out = dense({rows, width}, at::kFloat);
  at::Tensor begin;
  if (offsets) begin = offsets->to(at::kLong).contiguous();
  table_gradient({.grad = from.const_data_ptr<float>(),
                  .indices = index.const_data_ptr(),
                  .narrow = index.scalar_type() == at::kInt,
                  .offsets = offsets ? begin.const_data_ptr<int64_t>() : nullptr,
                  .bags = offsets ? begin.numel() : 0,
                  .count = index.numel(),
                  .left_out = left_out,
                  .out = out.mutable_data_ptr<float>(),
                  .rows = rows,
                  .width = width});
  return out;
}

at::Tensor embedding_dense_backward_op(const at::Tensor& grad, const at::Tensor& indices, int64_t rows, int64_t padding,
                                       bool scale_grad_by_freq) {
  if (!has_avx512() || scale_grad_by_freq || grad.scalar_type() != at::kFloat || !is_index(indices) ||
      grad.dim() != indices.dim() + 1 || grad.sizes().slice(0, static_cast<size_t>(indices.dim())) != indices.sizes())
    return at::embedding_dense_backward(grad, indices, rows, padding, scale_grad_by_freq);
  return gradient_of_table(grad, indices, nullptr, rows, padding);
}

// `sum` and the gradient of a table, into the memory of `sum`.
at::Tensor& add_rows_op(at::Tensor& sum, const at::Tensor& grad, const at::Tensor& indices, int64_t padding) {
  TORCH_CHECK(sum.dim() == 2 && sum.is_contiguous() && sum.scalar_type() == at::kFloat &&
                  grad.scalar_type() == at::kFloat && is_index(indices) && grad.dim() == indices.dim() + 1 &&
                  grad.sizes().slice(0, static_cast<size_t>(indices.dim())) == indices.sizes() &&
                  grad.size(-1) == sum.size(1),
              "add_rows: wrong arguments");
  if (!has_avx512()) return sum.add_(at::embedding_dense_backward(grad, indices, sum.size(0), padding, false));
  const at::Tensor from = grad.contiguous(), index = indices.contiguous();
  table_gradient({.grad = from.const_data_ptr<float>(),
                  .indices = index.const_data_ptr(),
                  .narrow = index.scalar_type() == at::kInt,
                  .count = index.numel(),
                  .left_out = padding,
                  .out = sum.mutable_data_ptr<float>(),
                  .rows = sum.size(0),
                  .width = sum.size(1),
                  .onto = true});
  return sum;
}
at::Tensor sum_with_rows_op(const at::Tensor& sum, const at::Tensor& grad, const at::Tensor& indices, int64_t padding) {
  at::Tensor out = dense(sum.sizes().vec(), at::kFloat);
  out.copy_(sum);
  return add_rows_op(out, grad, indices, padding);
}

at::Tensor embedding_bag_backward_op(const at::Tensor& grad, const at::Tensor& indices, const at::Tensor& offsets,
                                     const at::Tensor& offset2bag, const at::Tensor& bag_size,
                                     const at::Tensor& maximum_indices, int64_t rows, bool scale_grad_by_freq,
                                     int64_t mode, bool sparse, const std::optional<at::Tensor>& per_sample_weights,
                                     int64_t padding) {
  constexpr int64_t kSum = 0;
  if (!has_avx512() || scale_grad_by_freq || mode != kSum || sparse || per_sample_weights || grad.dim() != 2 ||
      grad.scalar_type() != at::kFloat || !is_index(indices) || indices.dim() != 1 || !is_index(offsets) ||
      offsets.dim() != 1 || offsets.numel() != grad.size(0))
    return at::_embedding_bag_backward(grad, indices, offsets, offset2bag, bag_size, maximum_indices, rows,
                                       scale_grad_by_freq, mode, sparse, per_sample_weights, padding);
  return gradient_of_table(grad, indices, &offsets, rows, padding);
}

using Ints = at::IntArrayRef;

struct Geometry {
  Ints stride, padding, dilation;
  int64_t groups;
};
// One group of a convolution between images x and y.
ConvolutionSizes sizes_of(Ints x, Ints weight, Ints y, const Geometry& g) {
  TORCH_CHECK(x.size() == 4 && weight.size() == 4 && y.size() == 4 && g.stride.size() == 2 && g.padding.size() == 2 &&
                  g.dilation.size() == 2 && g.groups > 0 && x[1] == weight[1] * g.groups && y[1] == weight[0] &&
                  weight[0] % g.groups == 0 && x[0] == y[0],
              "convolution: wrong arguments");
  ConvolutionSizes s{.batch = x[0], .in = weight[1], .out = weight[0] / g.groups, .threads = team_size()};
  for (size_t d = 0; d < 2; ++d) {
    s.size[d] = x[d + 2], s.out_size[d] = y[d + 2], s.kernel[d] = weight[d + 2];
    s.stride[d] = g.stride[d], s.padding[d] = g.padding[d], s.dilation[d] = g.dilation[d];
  }
  s.in_image = x[1] * x[2] * x[3];
  s.out_image = y[1] * y[2] * y[3];
  return s;
}
// Of this group and all others: each channel by itself.
bool is_depthwise(const ConvolutionSizes& s, int64_t groups) { return groups > 1 && s.in == 1 && s.out == 1; }
ConvolutionSizes all_channels(ConvolutionSizes s, int64_t groups) {
  s.in = s.out = groups;
  return s;
}
void check_operands(const at::Tensor& a, const at::Tensor& b, const ConvolutionSizes& s, int64_t groups) {
  TORCH_CHECK((is_depthwise(s, groups) ? has_avx512() : has_amx_bf16()) &&
                  (a.scalar_type() == at::kFloat || a.scalar_type() == at::kBFloat16) &&
                  a.scalar_type() == b.scalar_type() && a.is_contiguous() && b.is_contiguous(),
              "convolution: wrong operands");
}
template <typename T>
const T* elements(const at::Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

// f(sizes, group, workspace) for each group, until one's numbers are out of range.
template <typename F>
bool for_groups(const ConvolutionSizes& s, int64_t groups, int64_t workspace, const F& f) {
  const at::Tensor memory = dense({workspace}, at::kByte);
  for (int64_t group = 0; group < groups; ++group)
    if (!f(s, group, memory.mutable_data_ptr())) return false;
  return true;
}

at::Tensor convolution_op(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                          Ints stride, Ints padding, Ints dilation, int64_t groups) {
  TORCH_CHECK(
      !bias || (bias->scalar_type() == x.scalar_type() && bias->numel() == weight.size(0) && bias->is_contiguous()),
      "convolution: wrong bias");
  const std::vector<int64_t> sizes = aten::convolved_sizes(x.sizes(), weight.sizes(), stride, padding, dilation);
  const ConvolutionSizes all = sizes_of(x.sizes(), weight.sizes(), sizes, {stride, padding, dilation, groups});
  check_operands(x, weight, all, groups);
  at::Tensor out = dense(sizes, x.scalar_type());
  const bool f32 = x.scalar_type() == at::kFloat;
  const auto run = [&]<typename T>(T) {
    if (is_depthwise(all, groups)) {
      depthwise<T>(all_channels(all, groups), elements<T>(x), elements<T>(weight), bias ? elements<T>(*bias) : nullptr,
                   static_cast<T*>(out.mutable_data_ptr()));
      return true;
    }
    return for_groups(all, groups, convolution_workspace(all, f32), [&](const ConvolutionSizes& s, int64_t g, void* w) {
      const int64_t points = s.out_size[0] * s.out_size[1], taps = s.kernel[0] * s.kernel[1];
      return convolution<T>(s, elements<T>(x) + g * (s.in * s.size[0] * s.size[1]),
                            elements<T>(weight) + g * (s.out * s.in * taps),
                            bias ? elements<T>(*bias) + g * s.out : nullptr,
                            static_cast<T*>(out.mutable_data_ptr()) + g * s.out * points, w);
    });
  };
  if (f32 ? run(float{}) : run(uint16_t{})) return out;
  return at::convolution(x, weight, bias, stride, padding, dilation, false, {0, 0}, groups);
}

at::Tensor convolution_input_gradient_op(const at::Tensor& grad, const at::Tensor& weight, Ints input, Ints stride,
                                         Ints padding, Ints dilation, int64_t groups) {
  const ConvolutionSizes all = sizes_of(input, weight.sizes(), grad.sizes(), {stride, padding, dilation, groups});
  check_operands(grad, weight, all, groups);
  at::Tensor out = dense(input.vec(), grad.scalar_type());
  const bool f32 = grad.scalar_type() == at::kFloat;
  const auto run = [&]<typename T>(T) {
    if (is_depthwise(all, groups)) {
      depthwise_input_gradient<T>(all_channels(all, groups), elements<T>(grad), elements<T>(weight),
                                  static_cast<T*>(out.mutable_data_ptr()));
      return true;
    }
    return for_groups(all, groups, convolution_workspace(all, f32), [&](const ConvolutionSizes& s, int64_t g, void* w) {
      const int64_t points = s.size[0] * s.size[1], taps = s.kernel[0] * s.kernel[1];
      return convolution_input_gradient<T>(s, elements<T>(grad) + g * (s.out * s.out_size[0] * s.out_size[1]),
                                           elements<T>(weight) + g * (s.out * s.in * taps),
                                           static_cast<T*>(out.mutable_data_ptr()) + g * s.in * points, w);
    });
  };
  if (f32 ? run(float{}) : run(uint16_t{})) return out;
  // (Its values are not read for this gradient.)
  const at::Tensor x = dense(input.vec(), grad.scalar_type());
  return std::get<0>(at::convolution_backward(grad, x, weight, std::nullopt, stride, padding, dilation, false, {0, 0},
                                              groups, {true, false, false}));
}

at::Tensor convolution_weight_gradient_op(const at::Tensor& grad, const at::Tensor& x, Ints weight, Ints stride,
                                          Ints padding, Ints dilation, int64_t groups) {
  const ConvolutionSizes all = sizes_of(x.sizes(), weight, grad.sizes(), {stride, padding, dilation, groups});
  check_operands(grad, x, all, groups);
  at::Tensor out = dense(weight.vec(), grad.scalar_type());
  const bool f32 = grad.scalar_type() == at::kFloat;
  const auto run = [&]<typename T>(T) {
    if (is_depthwise(all, groups)) {
      depthwise_weight_gradient<T>(all_channels(all, groups), elements<T>(grad), elements<T>(x),
                                   static_cast<T*>(out.mutable_data_ptr()));
      return true;
    }
    return for_groups(all, groups, weight_gradient_workspace(all, f32),
                      [&](const ConvolutionSizes& s, int64_t g, void* w) {
                        return convolution_weight_gradient<T>(
                            s, elements<T>(grad) + g * (s.out * s.out_size[0] * s.out_size[1]),
                            elements<T>(x) + g * (s.in * s.size[0] * s.size[1]),
                            static_cast<T*>(out.mutable_data_ptr()) + g * s.out * s.in * s.kernel[0] * s.kernel[1], w);
                      });
  };
  if (f32 ? run(float{}) : run(uint16_t{})) return out;
  const at::Tensor w = dense(weight.vec(), grad.scalar_type());
  return std::get<1>(at::convolution_backward(grad, x, w, std::nullopt, stride, padding, dilation, false, {0, 0},
                                              groups, {false, true, false}));
}

// ---- f32 convolutions of sizes that were symbols: who computes them is chosen in the call

// own_f32, split_f32: target::Providers'.
target::OwnConvolution own_convolution(const at::Tensor& x, const at::Tensor& weight, Ints out, Ints stride,
                                       Ints dilation, int64_t groups, bool own_f32, bool split_f32) {
  if (x.numel() == 0 || weight.numel() == 0 || out[2] * out[3] == 0) return {};
  target::Providers p;
  p.own_f32 = own_f32;
  p.split_f32 = split_f32;
  return target::choose_convolution(p, DType::kF32,
                                    {.in = weight.size(1),
                                     .out = weight.size(0) / groups,
                                     .groups = groups,
                                     .taps = weight.size(2) * weight.size(3),
                                     .points = out[2] * out[3],
                                     .batch = out[0],
                                     .reach = (weight.size(2) - 1) * dilation[0] * x.size(3),
                                     .strided = stride[0] != 1 || stride[1] != 1});
}

at::Tensor convolution_by_size_op(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                  Ints stride, Ints padding, Ints dilation, int64_t groups, bool own_f32,
                                  bool split_f32) {
  const std::vector<int64_t> out = aten::convolved_sizes(x.sizes(), weight.sizes(), stride, padding, dilation);
  if (own_convolution(x, weight, out, stride, dilation, groups, own_f32, split_f32).forward)
    return convolution_op(x, weight, bias, stride, padding, dilation, groups);
  return at::convolution(x, weight, bias, stride, padding, dilation, false, {0, 0}, groups);
}

std::tuple<at::Tensor, at::Tensor> convolution_backward_by_size_op(const at::Tensor& grad, const at::Tensor& x,
                                                                   const at::Tensor& weight, Ints stride, Ints padding,
                                                                   Ints dilation, int64_t groups, bool own_f32,
                                                                   bool split_f32, std::array<bool, 2> needed) {
  const target::OwnConvolution own =
      own_convolution(x, weight, grad.sizes(), stride, dilation, groups, own_f32, split_f32);
  at::Tensor input_gradient, weight_gradient;
  std::array<bool, 3> left{needed[0] && !own.input, needed[1] && !own.weight, false};
  if (left[0] || left[1])
    std::tie(input_gradient, weight_gradient, std::ignore) =
        at::convolution_backward(grad, x, weight, std::nullopt, stride, padding, dilation, false, {0, 0}, groups, left);
  if (needed[0] && own.input)
    input_gradient = convolution_input_gradient_op(grad, weight, x.sizes(), stride, padding, dilation, groups);
  if (needed[1] && own.weight)
    weight_gradient = convolution_weight_gradient_op(grad, x, weight.sizes(), stride, padding, dilation, groups);
  return {std::move(input_gradient), std::move(weight_gradient)};
}

// ---- convolutions of few points: products over rows of all that a result reads (bf16 with AMX; f32: the convolution
// itself, which does without a packed weight), images channels last

using HalfProduct = ProductOf<uint16_t>;

at::Tensor image_last(int64_t batch, int64_t channels, int64_t height, int64_t width,
                      at::ScalarType dtype = at::kBFloat16) {
  at::Tensor t = dense({batch, height, width, channels}, dtype);
  const std::vector<int64_t> sizes{batch, channels, height, width};
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, {height * width * channels, 1, width * channels, channels});
  return t;
}
Unfold unfold_of(Ints image, Ints weight, Ints out, Ints stride, Ints padding, Ints dilation) {
  TORCH_CHECK(image.size() == 4 && weight.size() == 4 && out.size() == 4 && stride.size() == 2 && padding.size() == 2 &&
                  dilation.size() == 2 && image[1] == weight[1] && out[1] == weight[0] && image[0] == out[0],
              "unfolded convolution: wrong arguments");
  Unfold u{.batch = image[0], .channels = image[1]};
  for (size_t d = 0; d < 2; ++d) {
    u.size[d] = image[d + 2], u.out_size[d] = out[d + 2], u.kernel[d] = weight[d + 2];
    u.stride[d] = stride[d], u.padding[d] = padding[d], u.dilation[d] = dilation[d];
  }
  TORCH_CHECK(u.taps() <= kMostTaps, "unfolded convolution: too many taps");
  return u;
}
template <typename T>
constexpr at::ScalarType kTypeOf = std::is_same_v<T, float> ? at::kFloat : at::kBFloat16;
template <typename T>
void check_unfolded() {
  TORCH_CHECK((std::is_same_v<T, float> ? vector_kernels() != nullptr : has_amx_bf16()),
              "unfolded convolution: not on this processor");
}
template <typename T = uint16_t>
const T* lying_last(const at::Tensor& t) {
  check_unfolded<T>();
  TORCH_CHECK(t.scalar_type() == kTypeOf<T> && t.is_contiguous(at::MemoryFormat::ChannelsLast),
              "unfolded convolution: wrong image");
  return elements<T>(t);
}
template <typename T = uint16_t>
const T* lying_dense(const at::Tensor& t) {
  TORCH_CHECK(t.scalar_type() == kTypeOf<T> && t.is_contiguous(), "unfolded convolution: wrong weight");
  return elements<T>(t);
}
template <typename T = uint16_t>
at::Tensor unfolded(const Unfold& u, const at::Tensor& image) {
  at::Tensor rows = dense({u.rows(), u.width()}, kTypeOf<T>);
  unfold(u, lying_last<T>(image), static_cast<T*>(rows.mutable_data_ptr()));
  return rows;
}
void multiply(const HalfProduct& p) { product(p); }
void multiply(const ProductOf<float>& p) { panel_product(p); }

template <typename T>
at::Tensor unfolded_convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                Ints stride, Ints padding, Ints dilation) {
  const std::vector<int64_t> sizes = aten::convolved_sizes(x.sizes(), weight.sizes(), stride, padding, dilation);
  const Unfold u = unfold_of(x.sizes(), weight.sizes(), sizes, stride, padding, dilation);
  TORCH_CHECK(!bias || (bias->scalar_type() == kTypeOf<T> && bias->numel() == sizes[1] && bias->is_contiguous()),
              "unfolded convolution: wrong bias");
  const at::Tensor rows = unfolded<T>(u, x);
  at::Tensor out = image_last(sizes[0], sizes[1], sizes[2], sizes[3], kTypeOf<T>);
  multiply(ProductOf<T>{.a = elements<T>(rows),
                        .a_row = u.width(),
                        .a_inner = 1,
                        .b = lying_dense<T>(weight),
                        .b_inner = 1,
                        .b_column = u.width(),
                        .added = bias ? elements<T>(*bias) : nullptr,
                        .added_column = 1,
                        .out = static_cast<T*>(out.mutable_data_ptr()),
                        .batch = 1,
                        .rows = u.rows(),
                        .inner = u.width(),
                        .columns = sizes[1]});
  return out;
}
at::Tensor unfolded_convolution_op(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                   Ints stride, Ints padding, Ints dilation) {
  return (x.scalar_type() == at::kFloat ? unfolded_convolution<float>
                                        : unfolded_convolution<uint16_t>)(x, weight, bias, stride, padding, dilation);
}

at::Tensor unfolded_input_gradient_op(const at::Tensor& grad, const at::Tensor& weight, Ints input, Ints stride,
                                      Ints padding, Ints dilation) {
  const Unfold u = unfold_of(input, weight.sizes(), grad.sizes(), stride, padding, dilation);
  const at::Tensor rows = dense({u.rows(), u.width()}, at::kBFloat16);
  product(HalfProduct{.a = lying_last(grad),
                      .a_row = grad.size(1),
                      .a_inner = 1,
                      .b = lying_dense(weight),
                      .b_inner = u.width(),
                      .b_column = 1,
                      .out = static_cast<uint16_t*>(rows.mutable_data_ptr()),
                      .batch = 1,
                      .rows = u.rows(),
                      .inner = grad.size(1),
                      .columns = u.width()});
  at::Tensor out = image_last(input[0], input[1], input[2], input[3]);
  fold(u, elements<uint16_t>(rows), static_cast<uint16_t*>(out.mutable_data_ptr()));
  return out;
}

at::Tensor unfolded_weight_gradient_op(const at::Tensor& grad, const at::Tensor& x, Ints weight, Ints stride,
                                       Ints padding, Ints dilation) {
  const Unfold u = unfold_of(x.sizes(), weight, grad.sizes(), stride, padding, dilation);
  const at::Tensor rows = unfolded(u, x);
  at::Tensor out = dense(weight.vec(), at::kBFloat16);
  product(HalfProduct{.a = lying_last(grad),
                      .a_row = 1,
                      .a_inner = grad.size(1),
                      .b = elements<uint16_t>(rows),
                      .b_inner = u.width(),
                      .b_column = 1,
                      .out = static_cast<uint16_t*>(out.mutable_data_ptr()),
                      .batch = 1,
                      .rows = grad.size(1),
                      .inner = u.rows(),
                      .columns = u.width()});
  return out;
}

at::Tensor convolution_weights_op(const at::Tensor& weight, Ints padding, Ints stride, Ints dilation, int64_t groups,
                                  Ints typical) {
  return tensor_of(std::make_unique<ConvolutionWeights>(
      weight, ConvolutionGeometry{padding.vec(), stride.vec(), dilation.vec(), groups}, typical));
}

at::Tensor convolution_of_any_size_op(const at::Tensor& x, const at::Tensor& weights,
                                      const std::optional<at::Tensor>& bias, Ints padding, Ints stride, Ints dilation,
                                      int64_t groups, std::string_view attr,
                                      const c10::List<std::optional<at::Scalar>>& scalars,
                                      std::optional<std::string_view> algorithm) {
  using Convolve =
      at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, Ints, Ints, Ints, int64_t,
                 std::string_view, c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
  static const auto convolve =
      c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_convolution_pointwise", "").typed<Convolve>();
  return convolve.call(x, weights_of(weights).suited(x.sizes()), bias, padding, stride, dilation, groups, attr, scalars,
                       algorithm);
}

// So many elements as the number says, over the memory of one.
at::Tensor size_of_data_op(const at::Tensor& number) {
  const int64_t size = number.item().toLong();
  TORCH_CHECK(size >= 0, "a size that follows from data is ", size);
  return at::empty({1}, at::TensorOptions().dtype(at::kBool)).as_strided({size}, {0});
}

// A number in a tensor, weak in type promotion as Python's numbers are.
at::Tensor number_op(const at::Tensor& t) {
  at::Tensor number = at::_to_copy(t.detach().reshape({}), t.is_floating_point() ? at::kDouble : at::kLong);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return number;
}

void check_sizes_op(int64_t a, int64_t b, int64_t relation, std::string_view what) {
  if (!sym::satisfied(static_cast<sym::Relation>(relation), a, b))
    throw UnexpectedSize("compiled code needs " + std::string(what) + ", and the sides are " + std::to_string(a) +
                             " and " + std::to_string(b),
                         std::string(what));
}

// Who calls it has computed its operands, and that is all (graph/passes/keep_errors).
void computed_op(at::TensorList) {}

// What a plan asks of values and sizes on any device.
void define_questions(torch::Library& library) {
  const auto add = [&](const char* schema, const char* name, c10::DispatchKey key, auto* function) {
    library.def(schema);
    library.impl(name, torch::dispatch(key, function));
  };
  using enum c10::DispatchKey;
  add("size_of_data(Tensor number) -> Tensor", "size_of_data", CompositeExplicitAutograd, size_of_data_op);
  add("number(Tensor t) -> Tensor", "number", CompositeExplicitAutograd, number_op);
  add("check_sizes(int a, int b, int relation, str what) -> ()", "check_sizes", CompositeImplicitAutograd,
      check_sizes_op);
  add("computed(Tensor[] results) -> ()", "computed", CompositeExplicitAutograd, computed_op);
}

}  // namespace

void register_operators() {
  static const bool done = [] {
    // Taken back where there is no memory for all of it: the next call registers them again.
    auto whole = std::make_unique<torch::Library>(torch::Library::DEF, "flashover", std::nullopt, __FILE__, __LINE__);
    torch::Library& library = *whole;
    const auto add = [&](const char* schema, const char* name, auto* function, const std::vector<at::Tag>& tags = {}) {
      library.def(schema, tags);
      library.impl(name, torch::dispatch(c10::DispatchKey::CPU, function));
    };
    add("pack_linear(Tensor weight) -> Tensor", "pack_linear", pack_linear_op);
    add("packed_linear(Tensor x, Tensor packed, Tensor? bias, int columns, str activation) -> Tensor", "packed_linear",
        packed_linear_op);
    add("packed_linear.out(Tensor x, Tensor packed, Tensor? bias, int columns, str activation, *, Tensor(a!) out) -> "
        "Tensor(a!)",
        "packed_linear.out", packed_linear_out);
    add("pack_panels(Tensor weight) -> Tensor", "pack_panels", pack_panels_op);
    add("panel_linear(Tensor x, Tensor packed, Tensor? bias, Tensor? added, int columns, str activation) -> Tensor",
        "panel_linear", panel_linear_op);
    add("panel_linear.out(Tensor x, Tensor packed, Tensor? bias, Tensor? added, int columns, str activation, *, "
        "Tensor(a!) out) -> Tensor(a!)",
        "panel_linear.out", panel_linear_out);
    add("pack_depthwise(Tensor weight) -> Tensor", "pack_depthwise", pack_depthwise_op);
    add("depthwise_last(Tensor x, Tensor packed, Tensor? bias, int[] kernel, int[] stride, int[] padding, int[] "
        "dilation, str activation) -> Tensor",
        "depthwise_last", depthwise_last_op);
    add("depthwise_last.out(Tensor x, Tensor packed, Tensor? bias, int[] kernel, int[] stride, int[] padding, int[] "
        "dilation, str activation, *, Tensor(a!) out) -> Tensor(a!)",
        "depthwise_last.out", depthwise_last_out);
    // (wide: the result of bf16 matrices is f32. vectors: f32 matrices not on the AMX unit, if there is one.)
    add("product(Tensor a, Tensor b, Tensor? added, str activation, bool wide=False, bool vectors=False) -> Tensor",
        "product", product_op);
    add("product.out(Tensor a, Tensor b, Tensor? added, str activation, bool wide=False, bool vectors=False, *, "
        "Tensor(a!) out) -> Tensor(a!)",
        "product.out", product_out);
    add("bmm_flushed(Tensor a, Tensor b) -> Tensor", "bmm_flushed", bmm_flushed);
    add("attention(Tensor q, Tensor k, Tensor v, Tensor[] biases, float scale, bool causal, bool zero_if_none) -> "
        "Tensor",
        "attention", attention_op);
    add("attention_kept(Tensor q, Tensor k, Tensor v, Tensor[] biases, float scale, bool causal, bool zero_if_none) -> "
        "(Tensor, Tensor)",
        "attention_kept", attention_kept_op);
    add("attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor logsumexp, Tensor[] biases, "
        "float scale, bool causal) -> (Tensor, Tensor, Tensor)",
        "attention_backward", attention_backward_op);
    add("bernoulli(Tensor x, float p, *, Generator? generator=None) -> Tensor", "bernoulli", bernoulli_op,
        {at::Tag::nondeterministic_seeded});
    add("embedding_dense_backward(Tensor grad_output, Tensor indices, int num_weights, int padding_idx, bool "
        "scale_grad_by_freq) -> Tensor",
        "embedding_dense_backward", embedding_dense_backward_op);
    add("add_rows(Tensor sum, Tensor grad, Tensor indices, int padding_idx) -> Tensor", "add_rows", sum_with_rows_op);
    add("add_rows_(Tensor(a!) sum, Tensor grad, Tensor indices, int padding_idx) -> Tensor(a!)", "add_rows_",
        add_rows_op);
    add("_embedding_bag_backward(Tensor grad, Tensor indices, Tensor offsets, Tensor offset2bag, Tensor bag_size, "
        "Tensor maximum_indices, int num_weights, bool scale_grad_by_freq, int mode, bool sparse, Tensor? "
        "per_sample_weights, int padding_idx=-1) -> Tensor",
        "_embedding_bag_backward", embedding_bag_backward_op);
    add("convolution(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, int groups) "
        "-> Tensor",
        "convolution", convolution_op);
    add("convolution_input_gradient(Tensor grad, Tensor weight, int[] input, int[] stride, int[] padding, int[] "
        "dilation, int groups) -> Tensor",
        "convolution_input_gradient", convolution_input_gradient_op);
    add("convolution_weight_gradient(Tensor grad, Tensor x, int[] weight, int[] stride, int[] padding, int[] dilation, "
        "int groups) -> Tensor",
        "convolution_weight_gradient", convolution_weight_gradient_op);
    add("unfolded_convolution(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation) -> "
        "Tensor",
        "unfolded_convolution", unfolded_convolution_op);
    add("unfolded_input_gradient(Tensor grad, Tensor weight, int[] input, int[] stride, int[] padding, int[] dilation) "
        "-> Tensor",
        "unfolded_input_gradient", unfolded_input_gradient_op);
    add("unfolded_weight_gradient(Tensor grad, Tensor x, int[] weight, int[] stride, int[] padding, int[] dilation) -> "
        "Tensor",
        "unfolded_weight_gradient", unfolded_weight_gradient_op);
    add("convolution_by_size(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, int "
        "groups, bool own_f32, bool split_f32) -> Tensor",
        "convolution_by_size", convolution_by_size_op);
    add("convolution_backward_by_size(Tensor grad, Tensor x, Tensor weight, int[] stride, int[] padding, int[] "
        "dilation, int groups, bool own_f32, bool split_f32, bool[2] needed) -> (Tensor, Tensor)",
        "convolution_backward_by_size", convolution_backward_by_size_op);
    add("convolution_weights(Tensor weight, int[] padding, int[] stride, int[] dilation, int groups, int[] typical) -> "
        "Tensor",
        "convolution_weights", convolution_weights_op);
    // (As mkldnn::_convolution_pointwise.)
    add("convolution_of_any_size(Tensor x, Tensor weights, Tensor? bias, int[] padding, int[] stride, int[] dilation, "
        "int groups, str attr, Scalar?[] scalars, str? algorithm) -> Tensor",
        "convolution_of_any_size", convolution_of_any_size_op);
    define_flex(library);
    define_by_rows(library);
    define_recurrent(library);
    define_questions(library);
    whole.release();  // never unloaded: plans may run until the process ends
    return true;
  }();
  static_cast<void>(done);
}

bool shares_by_team(std::string_view op) {
  constexpr std::string_view kOps[] = {"flashover.packed_linear", "flashover.panel_linear", "flashover.depthwise_last",
                                       "flashover.product",       "flashover.attention",    "flashover.attention_kept"};
  return std::find(std::begin(kOps), std::end(kOps), op::without_overload(op)) != std::end(kOps);
}

}  // namespace flashover::cpu
