// Registers flashover.row_product, convolution_by_image, attention_by_entry and their gradients.
#include "cpu_kernels/by_rows.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

#include "cpu_kernels/panels.h"
#include "cpu_kernels/team.h"

namespace flashover::cpu {
namespace {

using Optional = std::optional<at::Tensor>;

// ---- products

// Matrices of a batch, or of one.
struct Matrices {
  explicit Matrices(const at::Tensor& t)
      : batch(t.dim() == 3 ? t.size(0) : 1),
        batch_stride(t.dim() == 3 && t.size(0) > 1 ? t.stride(0) : 0),
        rows(t.size(-2)),
        columns(t.size(-1)),
        row_stride(t.stride(-2)),
        column_stride(t.stride(-1)) {}
  int64_t batch, batch_stride, rows, columns, row_stride, column_stride;
};

// Many on a thread each, few one after the other on all.
template <typename F>
void each(int64_t count, const F& f) {
  if (count >= int64_t{2} * team_size()) return in_parallel(count, f);
  for (int64_t i = 0; i < count; ++i) f(i);
}

void panel_products(const at::Tensor& left, const at::Tensor& right, const at::Tensor& out) {
  const Matrices a(left), b(right);
  // What repeats is packed once.
  const int64_t packs = b.batch_stride == 0 ? 1 : b.batch, size = panel_elements(b.columns, b.rows);
  const at::Tensor packed = at::empty({std::max<int64_t>(packs * size, 1)}, right.options());
  auto* const panels = packed.mutable_data_ptr<float>();
  const auto* const from = right.const_data_ptr<float>();
  const auto pack = [&](int64_t i) {
    pack_panels(from + i * b.batch_stride, b.column_stride, b.row_stride, b.columns, b.rows, panels + i * size);
  };
  const auto multiply = [&](int64_t i) {
    linear(PanelLinear{.x = left.const_data_ptr<float>() + i * a.batch_stride,
                       .row_stride = a.row_stride,
                       .packed = panels + (packs == 1 ? 0 : i * size),
                       .bias = nullptr,
                       .added = nullptr,
                       .added_stride = 0,
                       .out = out.mutable_data_ptr<float>() + i * a.rows * b.columns,
                       .rows = a.rows,
                       .inner = a.columns,
                       .columns = b.columns});
  };
  each(packs, pack);
  each(a.batch, multiply);
}

// The same order of sums in plain loops: f64, and processors without vectors that panels.h has kernels for.
template <typename T>
void plain_products(const at::Tensor& left, const at::Tensor& right, const at::Tensor& out) {
  constexpr int64_t kColumns = 64;
  const Matrices a(left), b(right);
  const T *x = left.const_data_ptr<T>(), *w = right.const_data_ptr<T>();
  T* const y = out.mutable_data_ptr<T>();
  in_parallel(a.batch * a.rows, [&](int64_t n) {
    const int64_t batch = n / a.rows, row = n % a.rows;
    const T* const from = x + batch * a.batch_stride + row * a.row_stride;
    for (int64_t first = 0; first < b.columns; first += kColumns) {
      const int64_t count = std::min(kColumns, b.columns - first);
      std::array<T, kColumns> sum{}, part{};
      for (int64_t chunk = 0; chunk < a.columns; chunk += kInnerChunk) {
        part.fill(T(0));
        for (int64_t k = chunk; k < std::min(chunk + kInnerChunk, a.columns); ++k) {
          const T element = from[k * a.column_stride];
          const T* const line = w + batch * b.batch_stride + k * b.row_stride + first;
          for (int64_t c = 0; c < count; ++c) part[static_cast<size_t>(c)] += element * line[c];
        }
        for (size_t c = 0; c < kColumns; ++c) sum[c] += part[c];
      }
      std::copy_n(sum.begin(), count, y + n * b.columns + first);
    }
  });
}

at::Tensor row_product(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK((a.dim() == 2 || a.dim() == 3) && a.dim() == b.dim() && a.size(-1) == b.size(-2) &&
                  (a.dim() == 2 || a.size(0) == b.size(0)) && a.scalar_type() == b.scalar_type() &&
                  (a.scalar_type() == at::kFloat || a.scalar_type() == at::kDouble),
              "row_product: wrong arguments");
  std::vector<int64_t> sizes = a.sizes().vec();
  sizes.back() = b.size(-1);
  if (a.size(-1) == 0) return at::zeros(sizes, a.options());
  at::Tensor out = at::empty(sizes, a.options());
  if (out.numel() == 0) return out;
  const auto dense_last = [](const at::Tensor& t) { return t.size(-1) <= 1 || t.stride(-1) == 1; };
  if (a.scalar_type() == at::kFloat && vector_kernels())
    panel_products(dense_last(a) ? a : a.contiguous(), b, out);
  else if (const at::Tensor right = dense_last(b) ? b : b.contiguous(); a.scalar_type() == at::kFloat)
    plain_products<float>(a, right, out);
  else
    plain_products<double>(a, right, out);
  return out;
}

// ---- one entry of a batch after the other

// Entry i as a batch of its own, row by row: libraries choose by strides, too, and what those are of dims of one element
// is anyone's guess, a batch of one included.
at::Tensor entry(const at::Tensor& t, int64_t i) {
  const at::Tensor one = t.narrow(0, i, 1).contiguous();
  std::vector<int64_t> strides(static_cast<size_t>(one.dim()));
  int64_t stride = 1;
  for (size_t d = strides.size(); d-- > 0;) strides[d] = stride, stride *= one.size(static_cast<int64_t>(d));
  return one.as_strided(one.sizes(), strides);
}

at::Tensor dense_of(const at::Tensor& one, int64_t batch) {
  std::vector<int64_t> sizes = one.sizes().vec();
  sizes[0] = batch;
  return at::empty(sizes, one.options());
}

using Ints = at::IntArrayRef;

at::Tensor convolution_by_image(const at::Tensor& x, const at::Tensor& kernel, const Optional& bias, Ints stride,
                                Ints padding, Ints dilation, bool transposed, Ints output_padding, int64_t groups) {
  const at::Tensor weight = kernel.contiguous();
  if (x.size(0) == 0)
    return at::convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups).contiguous();
  at::Tensor out;
  for (int64_t i = 0; i < x.size(0); ++i) {
    const at::Tensor one =
        at::convolution(entry(x, i), weight, bias, stride, padding, dilation, transposed, output_padding, groups);
    if (i == 0) out = dense_of(one, x.size(0));
    out.narrow(0, i, 1).copy_(one);
  }
  return out;
}

at::Tensor convolution_input_gradient_by_image(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& kernel,
                                               Ints stride, Ints padding, Ints dilation, bool transposed,
                                               Ints output_padding, int64_t groups) {
  const at::Tensor weight = kernel.contiguous();
  at::Tensor out = at::empty(x.sizes(), x.options().memory_format(at::MemoryFormat::Contiguous));
  for (int64_t i = 0; i < x.size(0); ++i)
    out.narrow(0, i, 1).copy_(
        std::get<0>(at::convolution_backward(entry(grad, i), entry(x, i), weight, std::nullopt, stride, padding,
                                             dilation, transposed, output_padding, groups, {true, false, false})));
  return out;
}

// A mask may be for all entries.
Optional mask_of(const Optional& mask, int64_t i) {
  return mask && mask->dim() == 4 && mask->size(0) > 1 ? Optional(entry(*mask, i)) : mask;
}

std::tuple<at::Tensor, at::Tensor> attention_by_entry(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                      double dropout, bool causal, const Optional& mask,
                                                      std::optional<double> scale) {
  const auto attend = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, const Optional& m) {
    return at::_scaled_dot_product_flash_attention_for_cpu(a, b, c, dropout, causal, m, scale);
  };
  std::tuple<at::Tensor, at::Tensor> out;
  if (q.size(0) == 0) {
    out = attend(q, k, v, mask);
    return {std::get<0>(out).contiguous(), std::get<1>(out).contiguous()};
  }
  for (int64_t i = 0; i < q.size(0); ++i) {
    const auto one = attend(entry(q, i), entry(k, i), entry(v, i), mask_of(mask, i));
    if (i == 0) out = {dense_of(std::get<0>(one), q.size(0)), dense_of(std::get<1>(one), q.size(0))};
    std::get<0>(out).narrow(0, i, 1).copy_(std::get<0>(one));
    std::get<1>(out).narrow(0, i, 1).copy_(std::get<1>(one));
  }
  return out;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_by_entry(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& result,
    const at::Tensor& log_sum, double dropout, bool causal, const Optional& mask, std::optional<double> scale) {
  const auto dense_like = [](const at::Tensor& t) {
    return at::empty(t.sizes(), t.options().memory_format(at::MemoryFormat::Contiguous));
  };
  std::tuple<at::Tensor, at::Tensor, at::Tensor> out{dense_like(q), dense_like(k), dense_like(v)};
  for (int64_t i = 0; i < q.size(0); ++i) {
    const auto one = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        entry(grad, i), entry(q, i), entry(k, i), entry(v, i), entry(result, i), entry(log_sum, i), dropout, causal,
        mask_of(mask, i), scale);
    std::get<0>(out).narrow(0, i, 1).copy_(std::get<0>(one));
    std::get<1>(out).narrow(0, i, 1).copy_(std::get<1>(one));
    std::get<2>(out).narrow(0, i, 1).copy_(std::get<2>(one));
  }
  return out;
}

}  // namespace

void define_by_rows(torch::Library& library) {
  const auto add = [&](const char* schema, const char* name, auto* function) {
    library.def(schema);
    library.impl(name, torch::dispatch(c10::DispatchKey::CPU, function));
  };
  add("row_product(Tensor a, Tensor b) -> Tensor", "row_product", row_product);
  add("convolution_by_image(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, bool "
      "transposed, int[] output_padding, int groups) -> Tensor",
      "convolution_by_image", convolution_by_image);
  add("convolution_input_gradient_by_image(Tensor grad, Tensor x, Tensor weight, int[] stride, int[] padding, int[] "
      "dilation, bool transposed, int[] output_padding, int groups) -> Tensor",
      "convolution_input_gradient_by_image", convolution_input_gradient_by_image);
  add("attention_by_entry(Tensor q, Tensor k, Tensor v, float dropout_p, bool is_causal, Tensor? attn_mask, float? "
      "scale) -> (Tensor, Tensor)",
      "attention_by_entry", attention_by_entry);
  add("attention_backward_by_entry(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor logsumexp, float "
      "dropout_p, bool is_causal, Tensor? attn_mask, float? scale) -> (Tensor, Tensor, Tensor)",
      "attention_backward_by_entry", attention_backward_by_entry);
}

}  // namespace flashover::cpu
