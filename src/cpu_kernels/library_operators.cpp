// Looks at the arguments, lays them out for the kernels where they lie otherwise, and hands them on.
#include "cpu_kernels/library_operators.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "cpu_kernels/attention.h"
#include "cpu_kernels/panel_convolution.h"
#include "cpu_kernels/panels.h"
#include "cpu_kernels/team.h"
#include "cpu_kernels/vectors.h"

namespace flashover::cpu {
namespace {

using Arguments = std::span<const PlainArgument>;
using Results = std::span<const Plain>;
using List = std::vector<int64_t>;

const Plain* tensor_at(Arguments a, size_t i) { return i < a.size() ? std::get_if<Plain>(&a[i]) : nullptr; }
const List* list_at(Arguments a, size_t i) { return i < a.size() ? std::get_if<List>(&a[i]) : nullptr; }
std::string_view text_at(Arguments a, size_t i) {
  const auto* t = i < a.size() ? std::get_if<std::string_view>(&a[i]) : nullptr;
  return t ? *t : std::string_view();
}
std::optional<int64_t> number_at(Arguments a, size_t i) {
  const auto* n = i < a.size() ? std::get_if<int64_t>(&a[i]) : nullptr;
  return n ? std::optional(*n) : std::nullopt;
}
bool is_given(Arguments a, size_t i) { return i < a.size() && !std::holds_alternative<std::monostate>(a[i]); }

// Strides of a dense tensor whose dims lie in this order, the outermost first.
List dense_in_order(std::span<const int64_t> sizes, std::span<const size_t> order) {
  List strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) strides[order[i]] = stride, stride *= std::max<int64_t>(sizes[order[i]], 1);
  return strides;
}
std::vector<size_t> channels_last_order(size_t rank) {
  std::vector<size_t> order{0};
  for (size_t d = 2; d < rank; ++d) order.push_back(d);
  order.push_back(1);
  return order;
}
std::vector<size_t> row_order(size_t rank) {
  std::vector<size_t> order;
  for (size_t d = 0; d < rank; ++d) order.push_back(d);
  return order;
}
bool lies_in(const Plain& t, const List& strides) {
  for (int64_t d = 0; d < t.rank(); ++d)
    if (t.size(d) > 1 && t.stride(d) != strides[static_cast<size_t>(d)]) return false;
  return true;
}

void copy_numbers(const float* from, std::span<const int64_t> from_strides, float* to,
                  std::span<const int64_t> to_strides, std::span<const int64_t> sizes) {
  if (std::ranges::find(sizes, 0) != sizes.end()) return;
  List at(sizes.size());
  for (;;) {
    int64_t a = 0, b = 0;
    for (size_t d = 0; d < at.size(); ++d) a += at[d] * from_strides[d], b += at[d] * to_strides[d];
    to[b] = from[a];
    size_t d = at.size();
    while (d > 0 && ++at[d - 1] == sizes[d - 1]) at[--d] = 0;
    if (d == 0) return;
  }
}

// An operand in the strides that a kernel wants: as it lies, or copied.
class Laid {
 public:
  Laid(const Plain& t, List strides) : strides_(std::move(strides)), data_(t.as<float>()) {
    if (lies_in(t, strides_)) return;
    copy_.resize(static_cast<size_t>(t.numel()));
    data_ = copy_.data();
    copied_ = true;
  }
  static Laid read(const Plain& t, List strides) {
    Laid out(t, std::move(strides));
    if (out.copied_) copy_numbers(t.as<const float>(), t.strides, out.data_, out.strides_, t.sizes);
    return out;
  }
  void write_back(const Plain& t) const {
    if (copied_) copy_numbers(data_, strides_, t.as<float>(), t.strides, t.sizes);
  }
  Laid(Laid&&) = default;
  float* data() const { return data_; }
  const List& strides() const { return strides_; }

 private:
  List strides_;
  std::vector<float> copy_;
  float* data_;
  bool copied_ = false;
};

// An activation by the name that oneDNN's operators have for it.
struct LibraryActivation {
  Activation fused = Activation::kNone;
  bool tanh = false;  // behind the kernel
};
std::optional<LibraryActivation> library_activation(std::string_view name, std::string_view algorithm) {
  if (name.empty() || name == "none") return LibraryActivation{};
  if (name == "tanh") return LibraryActivation{.tanh = true};
  if (name == "swish") return LibraryActivation{Activation::kSilu};
  if (name == "gelu") return LibraryActivation{algorithm == "tanh" ? Activation::kGeluTanh : Activation::kGelu};
  for (const std::string_view known : {"relu", "sigmoid", "hardswish"})
    if (name == known) return LibraryActivation{*activation_named(known)};
  return std::nullopt;
}
void take_tanh(float* x, int64_t n) {
  constexpr int64_t kPicoseconds = 10000;
  share_parts(n, n * kPicoseconds, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) x[i] = std::tanh(x[i]);
  });
}

// ---- convolutions

constexpr int64_t kMostNumbers = int64_t{1} << 40;  // of anything: products of two of them do not overflow
bool is_count(int64_t n, int64_t least) { return n >= least && n <= (int64_t{1} << 24); }

// Of a list with a number for each spatial dim, or one for all.
std::optional<Spatial> spatial_of(const List* list, size_t dims, int64_t absent, int64_t least) {
  if (!list || dims > kSpatial || (list->size() != dims && list->size() != 1)) return std::nullopt;
  Spatial out;
  out.fill(absent);
  for (size_t d = 0; d < dims; ++d) {
    const int64_t n = (*list)[list->size() == 1 ? 0 : d];
    if (!is_count(n, least)) return std::nullopt;
    out[kSpatial - dims + d] = n;
  }
  return out;
}

// What stands before packed weights.
struct PackedHeader {
  int64_t out, in, groups;
  Spatial kernel;
};
constexpr int64_t kHeaderNumbers = 16;
static_assert(sizeof(PackedHeader) <= kHeaderNumbers * sizeof(float));

// The shape but for strides and the like; nothing where such weights are none.
std::optional<ConvolutionShape> shape_of(std::span<const int64_t> weight, int64_t groups) {
  const size_t rank = weight.size();
  if (rank < 3 || rank > 2 + kSpatial || !is_count(groups, 1)) return std::nullopt;
  ConvolutionShape s{.out = weight[0], .groups = groups};
  s.kernel.fill(1);
  int64_t numbers = 1;
  for (size_t d = 0; d < rank; ++d) {
    if (!is_count(weight[d], 1) || (numbers *= weight[d]) > kMostNumbers) return std::nullopt;
    if (d >= 2) s.kernel[kSpatial - (rank - 2) + d - 2] = weight[d];
  }
  s.in = weight[1] * groups;
  if (s.out % groups != 0 || !is_count(s.in, 1)) return std::nullopt;
  return s;
}

constexpr Wrong kWrongConvolution = "convolution: wrong arguments";

void pack_weight_of(const ConvolutionShape& s, const Plain& weight, float* panels) {
  Spatial strides{};
  for (int64_t d = 2; d < weight.rank(); ++d)
    strides[kSpatial - static_cast<size_t>(weight.rank()) + static_cast<size_t>(d)] = weight.stride(d);
  pack_convolution(s, weight.as<const float>(), weight.stride(0), weight.stride(1), strides, panels);
}

// (weight, padding, stride, dilation, groups, image)
int64_t packed_convolution_elements(Arguments a) {
  const Plain* weight = tensor_at(a, 0);
  const auto groups = number_at(a, 4);
  const auto s = weight && groups ? shape_of(weight->sizes, *groups) : std::nullopt;
  return s ? kHeaderNumbers + packed_elements(*s) : -1;
}
Wrong call_reorder_convolution(Arguments a, Results r) {
  const Plain* weight = tensor_at(a, 0);
  const int64_t elements = packed_convolution_elements(a);
  if (elements < 0 || r.size() != 1 || !is_f32(*weight) || !is_f32(r[0]) || !r[0].is_dense() ||
      r[0].numel() != elements)
    return kWrongConvolution;
  const ConvolutionShape s = *shape_of(weight->sizes, *number_at(a, 4));
  const PackedHeader header{s.out, s.in, s.groups, s.kernel};
  std::memset(r[0].data, 0, kHeaderNumbers * sizeof(float));
  std::memcpy(r[0].data, &header, sizeof header);
  pack_weight_of(s, *weight, r[0].as<float>() + kHeaderNumbers);
  return {};
}

std::optional<ConvolutionShape> packed_shape(const Plain& packed) {
  PackedHeader h{};
  if (!is_f32(packed) || !packed.is_dense() || packed.numel() < kHeaderNumbers) return std::nullopt;
  std::memcpy(&h, packed.data, sizeof h);
  if (!is_count(h.groups, 1) || h.in % h.groups != 0) return std::nullopt;
  const auto s = shape_of(List{h.out, h.in / h.groups, h.kernel[0], h.kernel[1], h.kernel[2]}, h.groups);
  if (!s || packed.numel() != kHeaderNumbers + packed_elements(*s)) return std::nullopt;
  return s;
}

struct ConvolutionCall {
  const Plain* x;
  const Plain* bias;
  const List *stride, *padding, *dilation;
  LibraryActivation activation;
};
Wrong convolve(const ConvolutionCall& call, ConvolutionShape s, const float* panels, const Plain& out) {
  const Plain& x = *call.x;
  const auto rank = static_cast<size_t>(x.rank());
  if (rank < 3 || rank > 2 + kSpatial || !is_f32(x) || !is_f32(out) || out.rank() != x.rank() || x.size(1) != s.in ||
      out.size(1) != s.out || out.size(0) != x.size(0) || !is_vector(call.bias, s.out))
    return kWrongConvolution;
  const size_t dims = rank - 2;
  const auto stride = spatial_of(call.stride, dims, 1, 1), padding = spatial_of(call.padding, dims, 0, 0),
             dilation = spatial_of(call.dilation, dims, 1, 1);
  if (!stride || !padding || !dilation) return kWrongConvolution;
  s.stride = *stride, s.padding = *padding, s.dilation = *dilation;
  Spatial size, out_size, step{};
  size.fill(1), out_size.fill(1);
  for (size_t d = 0; d < kSpatial; ++d) {
    if (d + dims < kSpatial) {
      if (s.kernel[d] != 1) return kWrongConvolution;
      continue;
    }
    const auto dim = static_cast<int64_t>(d + dims - kSpatial + 2);
    size[d] = x.size(dim), out_size[d] = out.size(dim);
    const int64_t room = size[d] + 2 * s.padding[d] - (s.dilation[d] * (s.kernel[d] - 1) + 1);
    if (room < 0 || out_size[d] != room / s.stride[d] + 1) return "convolution: wrong result";
  }
  if (out.numel() == 0) return {};
  const List last = dense_in_order(x.sizes, channels_last_order(rank));
  const Laid from = Laid::read(x, last), to(out, dense_in_order(out.sizes, channels_last_order(rank)));
  for (size_t d = kSpatial - dims; d < kSpatial; ++d) step[d] = from.strides()[d + dims - kSpatial + 2];
  convolution(PanelConvolution{.shape = s,
                               .x = from.data(),
                               .image = from.strides()[0],
                               .step = step,
                               .packed = panels,
                               .bias = call.bias ? call.bias->as<const float>() : nullptr,
                               .out = to.data(),
                               .batch = x.size(0),
                               .size = size,
                               .out_size = out_size,
                               .activation = call.activation.fused});
  if (call.activation.tanh) take_tanh(to.data(), out.numel());
  to.write_back(out);
  return {};
}

// (x, packed, bias, padding, stride, dilation, groups, attr, scalars, algorithm)
Wrong call_packed_convolution(Arguments a, Results r) {
  const Plain *x = tensor_at(a, 0), *packed = tensor_at(a, 1);
  const auto activation = library_activation(text_at(a, 7), text_at(a, 9));
  const auto s = packed ? packed_shape(*packed) : std::nullopt;
  if (!x || !s || !activation || r.size() != 1 || (is_given(a, 2) && !tensor_at(a, 2)) || number_at(a, 6) != s->groups)
    return kWrongConvolution;
  return convolve({x, tensor_at(a, 2), list_at(a, 4), list_at(a, 3), list_at(a, 5), *activation}, *s,
                  packed->as<const float>() + kHeaderNumbers, r[0]);
}

// (x, weight, bias, stride, padding, dilation, transposed, output_padding, groups): packed in each call.
Wrong call_convolution(Arguments a, Results r) {
  const Plain *x = tensor_at(a, 0), *weight = tensor_at(a, 1);
  const auto groups = number_at(a, 8);
  const bool* transposed = a.size() == 9 ? std::get_if<bool>(&a[6]) : nullptr;
  const auto s = weight && groups ? shape_of(weight->sizes, *groups) : std::nullopt;
  if (!x || !s || !transposed || *transposed || r.size() != 1 || !is_f32(*weight) || x->rank() != weight->rank() ||
      (is_given(a, 2) && !tensor_at(a, 2)))
    return kWrongConvolution;
  std::vector<float> panels(static_cast<size_t>(packed_elements(*s)));
  pack_weight_of(*s, *weight, panels.data());
  return convolve({x, tensor_at(a, 2), list_at(a, 3), list_at(a, 4), list_at(a, 5), {}}, *s, panels.data(), r[0]);
}

// ---- attention

// (q, k, v, dropout, causal, mask, scale) -> (out, logsumexp)
Wrong call_flash_attention(Arguments a, Results r) {
  const Plain *q = tensor_at(a, 0), *k = tensor_at(a, 1), *v = tensor_at(a, 2);
  const bool* causal = a.size() == 7 ? std::get_if<bool>(&a[4]) : nullptr;
  const double* dropout = a.size() == 7 ? std::get_if<double>(&a[3]) : nullptr;
  if (!q || !k || !v || !causal || !dropout || *dropout != 0 || r.empty() || r.size() > 2 || q->rank() != 4 ||
      q->size(-1) == 0 || (is_given(a, 5) && !tensor_at(a, 5)))
    return "attention: wrong arguments";
  AttentionOptions options{
      .scale = 1 / std::sqrt(static_cast<double>(q->size(-1))), .causal = *causal, .zero_if_none = true};
  if (const auto* scale = std::get_if<double>(&a[6])) options.scale = *scale;
  const Plain* mask = tensor_at(a, 5);
  std::vector<Laid> laid;
  std::vector<Plain> operands;
  for (const Plain* t : {q, k, v, mask}) {
    if (!t) continue;
    if (!is_f32(*t)) return "attention: wrong arguments";
    const bool lies = t->rank() > 0 && (t->size(-1) <= 1 || t->stride(-1) == 1);
    laid.push_back(Laid::read(*t, lies ? List(t->strides.begin(), t->strides.end())
                                       : dense_in_order(t->sizes, row_order(static_cast<size_t>(t->rank())))));
  }
  for (const Plain* t : {q, k, v, mask}) {
    if (!t) continue;
    const Laid& l = laid[operands.size()];
    operands.push_back({l.data(), t->dtype, t->sizes, l.strides()});
  }
  const Plain* sums = r.size() == 2 && r[1].data ? &r[1] : nullptr;
  return attention(operands[0], operands[1], operands[2], std::span(operands).subspan(3), options, r[0], sums);
}

// ---- products

// x times b, in any strides; x and b of two dims, or three.
Wrong multiply(const Plain& x, const Plain& b, const Plain* added, LibraryActivation activation, const Plain& out) {
  if (!is_f32(x) || !is_f32(b) || !is_f32(out)) return "product: f32 alone";
  const Laid to(out, dense_in_order(out.sizes, row_order(static_cast<size_t>(out.rank()))));
  const Plain result{to.data(), out.dtype, out.sizes, to.strides()};
  const Wrong wrong = product(x, b, added, name_of(activation.fused), /*wide=*/false, /*vectors=*/false, result);
  if (!wrong.empty()) return wrong;
  if (activation.tanh) take_tanh(to.data(), out.numel());
  to.write_back(out);
  return {};
}

constexpr Wrong kWrongProduct = "product: wrong arguments";

// (a, b)
Wrong call_matrix_product(Arguments a, Results r) {
  const Plain *x = tensor_at(a, 0), *b = tensor_at(a, 1);
  return x && b && a.size() == 2 && r.size() == 1 ? multiply(*x, *b, nullptr, {}, r[0]) : kWrongProduct;
}
bool is_one(Arguments a, size_t i) {
  const auto* real = i < a.size() ? std::get_if<double>(&a[i]) : nullptr;
  return real ? *real == 1 : number_at(a, i) == 1;
}
// (added, a, b, beta, alpha)
Wrong call_added_product(Arguments a, Results r) {
  const Plain *added = tensor_at(a, 0), *x = tensor_at(a, 1), *b = tensor_at(a, 2);
  if (!added || !x || !b || r.size() != 1 || a.size() != 5 || !is_one(a, 3) || !is_one(a, 4)) return kWrongProduct;
  const bool spreads = added->rank() == 0 || added->size(-1) <= 1 || added->stride(-1) <= 1;
  const Laid laid =
      Laid::read(*added, spreads ? List(added->strides.begin(), added->strides.end())
                                 : dense_in_order(added->sizes, row_order(static_cast<size_t>(added->rank()))));
  const Plain all{laid.data(), added->dtype, added->sizes, laid.strides()};
  return multiply(*x, *b, &all, {}, r[0]);
}

// (weight [columns, inner], ...)
int64_t packed_linear_elements(Arguments a) {
  const Plain* weight = tensor_at(a, 0);
  const bool fits = weight && weight->rank() == 2 && is_count(weight->size(0), 0) && is_count(weight->size(1), 0);
  return fits ? panel_elements(weight->size(0), weight->size(1)) : -1;
}
Wrong call_reorder_linear(Arguments a, Results r) {
  return packed_linear_elements(a) >= 0 && r.size() == 1 ? pack_panels(*tensor_at(a, 0), r[0]) : kWrongProduct;
}
// x [..., inner] as a matrix, times packed panels.
Wrong multiply_packed(const Plain& x, const Plain& packed, const Plain* bias, LibraryActivation activation,
                      const Plain& out) {
  if (!is_f32(x) || !is_f32(out) || x.rank() < 1 || out.rank() != x.rank() || out.size(-1) < 1 || x.size(-1) < 1)
    return kWrongProduct;
  const auto rows_of = [](const Plain& t) { return t.numel() / t.size(-1); };
  const auto rows_first = [](const Plain& t) {
    return dense_in_order(t.sizes, row_order(static_cast<size_t>(t.rank())));
  };
  if (rows_of(x) != rows_of(out)) return kWrongProduct;
  const Laid from = Laid::read(x, rows_first(x)), to(out, rows_first(out));
  const List sizes{rows_of(x), x.size(-1)}, strides{x.size(-1), 1}, out_sizes{rows_of(out), out.size(-1)},
      out_strides{out.size(-1), 1};
  const Wrong wrong = panel_linear({from.data(), x.dtype, sizes, strides}, packed, bias, nullptr, out.size(-1),
                                   name_of(activation.fused), {to.data(), out.dtype, out_sizes, out_strides});
  if (!wrong.empty()) return wrong;
  if (activation.tanh) take_tanh(to.data(), out.numel());
  to.write_back(out);
  return {};
}
// (x, packed, weight, bias, rows)
Wrong call_mkl_linear(Arguments a, Results r) {
  const Plain *x = tensor_at(a, 0), *packed = tensor_at(a, 1);
  if (!x || !packed || r.size() != 1 || (is_given(a, 3) && !tensor_at(a, 3))) return kWrongProduct;
  return multiply_packed(*x, *packed, tensor_at(a, 3), {}, r[0]);
}
// (x, weight, bias, attr, scalars, algorithm), the weight packed or a matrix
Wrong call_linear(Arguments a, Results r) {
  const Plain *x = tensor_at(a, 0), *weight = tensor_at(a, 1), *bias = tensor_at(a, 2);
  const auto activation = library_activation(text_at(a, 3), text_at(a, 5));
  if (!x || !weight || !activation || r.size() != 1 || (is_given(a, 2) && !bias)) return kWrongProduct;
  if (weight->rank() == 1) return multiply_packed(*x, *weight, bias, *activation, r[0]);
  if (weight->rank() != 2 || x->rank() != 2) return kWrongProduct;
  const List sizes{weight->size(1), weight->size(0)}, strides{weight->stride(1), weight->stride(0)};
  return multiply(*x, {weight->data, weight->dtype, sizes, strides}, bias, *activation, r[0]);
}

constexpr PlainOperator kLibrary[] = {
    {"mkldnn._reorder_convolution_weight", call_reorder_convolution, packed_convolution_elements, true},
    {"flashover.convolution_weights", call_reorder_convolution, packed_convolution_elements, true},
    {"mkldnn._convolution_pointwise", call_packed_convolution, nullptr, true},
    {"flashover.convolution_of_any_size", call_packed_convolution, nullptr, true},
    {"aten.convolution", call_convolution, nullptr, true},
    {"aten._scaled_dot_product_flash_attention_for_cpu", call_flash_attention, nullptr, true},
    {"aten.mm", call_matrix_product, nullptr, true},
    {"aten.bmm", call_matrix_product, nullptr, true},
    {"flashover.bmm_flushed", call_matrix_product, nullptr, true},
    {"aten.addmm", call_added_product, nullptr, true},
    {"aten.baddbmm", call_added_product, nullptr, true},
    {"mkl._mkl_reorder_linear_weight", call_reorder_linear, packed_linear_elements, true},
    {"mkldnn._reorder_linear_weight", call_reorder_linear, packed_linear_elements, true},
    {"mkl._mkl_linear", call_mkl_linear, nullptr, true},
    {"mkldnn._linear_pointwise", call_linear, nullptr, true},
};

}  // namespace

std::span<const PlainOperator> library_operators() { return kLibrary; }

std::string_view missing_without_library(std::string_view op) {
  const PlainOperator* known = find_plain(op);
  if (!known || !known->of_library) return {};
  if (!vector_kernels()) return "avx2";
  return known->call == call_flash_attention && !has_avx512() ? "avx512" : "";
}

}  // namespace flashover::cpu
