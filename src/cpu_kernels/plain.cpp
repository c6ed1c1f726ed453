// Looks at the arguments and hands them on.
#include "cpu_kernels/plain.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "cpu_kernels/attention.h"
#include "cpu_kernels/depthwise_last.h"
#include "cpu_kernels/library_operators.h"
#include "cpu_kernels/linear.h"
#include "cpu_kernels/panel_product.h"
#include "cpu_kernels/panels.h"
#include "cpu_kernels/product.h"
#include "cpu_kernels/vectors.h"
#include "ops/names.h"

namespace flashover::cpu {

int64_t Plain::numel() const {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

bool Plain::is_dense() const {
  int64_t wanted = 1;
  for (int64_t d = rank(); d-- > 0;) {
    if (size(d) == 0) return true;
    if (size(d) != 1 && stride(d) != wanted) return false;
    wanted *= size(d);
  }
  return true;
}

namespace {

bool has_dense_last_dim(const Plain& t) { return t.size(-1) <= 1 || t.stride(-1) == 1; }
const float* numbers_of(const Plain* t) { return t ? t->as<const float>() : nullptr; }

}  // namespace

bool is_f32(const Plain& t) { return t.dtype == DType::kF32; }
bool is_vector(const Plain* t, int64_t size) {
  return !t || (is_f32(*t) && t->rank() == 1 && t->size(0) == size && has_dense_last_dim(*t));
}

int64_t packed_linear_elements(DType dtype, int64_t columns, int64_t inner) {
  return dtype == DType::kF32 ? packed_f32_elements(columns, inner) / 2 : packed_elements(columns, inner);
}

Wrong pack_linear(const Plain& weight, const Plain& packed) {
  const bool f32 = is_f32(weight);
  if (!(f32 || weight.dtype == DType::kBF16) || weight.rank() != 2 || packed.dtype != weight.dtype ||
      !packed.is_dense() || packed.numel() != packed_linear_elements(weight.dtype, weight.size(0), weight.size(1)))
    return "pack_linear: a bf16 or f32 matrix";
  if (f32 && !has_amx_bf16()) return "pack_linear: this machine has no AMX";
  const auto pack = [&](auto* from, auto* function) {
    function(from, weight.stride(0), weight.stride(1), weight.size(0), weight.size(1), packed.as<uint16_t>());
  };
  if (f32)
    pack(weight.as<const float>(), pack_weight_f32);
  else
    pack(weight.as<const uint16_t>(), pack_weight);
  return {};
}

namespace {

template <typename T>
void run_packed_linear(const Plain& x, const Plain& packed, const Plain* bias, Activation activation,
                       const Plain& out) {
  linear(LinearOf<T>{.x = x.as<const T>(),
                     .row_stride = x.stride(0),
                     .packed = packed.as<const uint16_t>(),
                     .bias = bias ? bias->as<const T>() : nullptr,
                     .out = out.as<T>(),
                     .rows = x.size(0),
                     .inner = x.size(1),
                     .columns = out.size(1),
                     .activation = activation});
}

}  // namespace

Wrong packed_linear(const Plain& x, const Plain& packed, const Plain* bias, int64_t columns,
                    std::string_view activation, const Plain& out) {
  if (!has_amx_bf16()) return "packed_linear: this machine has no AMX";
  const auto act = activation_named(activation);
  const bool fits = out.dtype == x.dtype && out.rank() == 2 && x.rank() == 2 && out.size(0) == x.size(0) &&
                    out.size(1) == columns && out.is_dense();
  if (!act || !fits || !(is_f32(x) || x.dtype == DType::kBF16) || !has_dense_last_dim(x) || packed.dtype != x.dtype ||
      !packed.is_dense() || packed.numel() != packed_linear_elements(x.dtype, columns, x.size(1)))
    return "packed_linear: wrong arguments";
  if (bias && (bias->dtype != x.dtype || bias->rank() != 1 || bias->size(0) != columns || !has_dense_last_dim(*bias)))
    return "packed_linear: wrong bias";
  if (out.numel() > 0) (is_f32(x) ? run_packed_linear<float> : run_packed_linear<uint16_t>)(x, packed, bias, *act, out);
  return {};
}

Wrong pack_panels(const Plain& weight, const Plain& packed) {
  if (!vector_kernels() || weight.rank() != 2 || !is_f32(weight) || !is_f32(packed) || !packed.is_dense() ||
      packed.numel() != panel_elements(weight.size(0), weight.size(1)))
    return "pack_panels: an f32 matrix";
  pack_panels(weight.as<const float>(), weight.stride(0), weight.stride(1), weight.size(0), weight.size(1),
              packed.as<float>());
  return {};
}

Wrong panel_linear(const Plain& x, const Plain& packed, const Plain* bias, const Plain* added, int64_t columns,
                   std::string_view activation, const Plain& out) {
  const auto act = activation_named(activation);
  const bool operands = x.rank() == 2 && is_f32(x) && has_dense_last_dim(x) && is_f32(packed) && packed.is_dense() &&
                        columns >= 0 && packed.numel() == panel_elements(columns, x.size(1)) &&
                        is_vector(bias, columns);
  const auto fits = [&](const Plain& t) {
    return is_f32(t) && t.rank() == 2 && t.size(0) == x.size(0) && t.size(1) == columns;
  };
  if (!vector_kernels() || !act || !operands || (added && !(fits(*added) && has_dense_last_dim(*added))) ||
      !fits(out) || !out.is_dense())
    return "panel_linear: wrong arguments";
  if (out.numel() == 0) return {};
  linear(PanelLinear{.x = x.as<const float>(),
                     .row_stride = x.stride(0),
                     .packed = packed.as<const float>(),
                     .bias = numbers_of(bias),
                     .added = numbers_of(added),
                     .added_stride = added ? added->stride(0) : 0,
                     .out = out.as<float>(),
                     .rows = x.size(0),
                     .inner = x.size(1),
                     .columns = columns,
                     .activation = *act});
  return {};
}

namespace {

// Strides of a tensor whose dims are the last ones of `out`, 0 where it repeats; nothing: it does not spread to `out`.
std::optional<std::array<int64_t, 3>> spread_strides(const Plain& t, const Plain& out) {
  std::array<int64_t, 3> strides{};
  if (t.rank() > out.rank()) return std::nullopt;
  for (int64_t d = -1; d >= -t.rank(); --d) {
    if (t.size(d) != out.size(d) && t.size(d) != 1) return std::nullopt;
    strides[static_cast<size_t>(3 + d)] = t.size(d) == 1 ? 0 : t.stride(d);
  }
  return strides;
}

template <typename T, typename O>
Wrong run_product(const Plain& a, const Plain& b, const Plain* added, Activation activation, bool vectors,
                  const Plain& out) {
  const bool batch = a.rank() == 3;
  ProductOf<T, O> p{.a = a.as<const T>(),
                    .a_batch = batch ? a.stride(0) : 0,
                    .a_row = a.stride(-2),
                    .a_inner = a.stride(-1),
                    .b = b.as<const T>(),
                    .b_batch = batch ? b.stride(0) : 0,
                    .b_inner = b.stride(-2),
                    .b_column = b.stride(-1),
                    .out = out.as<O>(),
                    .batch = batch ? a.size(0) : 1,
                    .rows = a.size(-2),
                    .inner = a.size(-1),
                    .columns = b.size(-1),
                    .activation = activation};
  if (added) {
    const auto strides = spread_strides(*added, out);
    if (!strides || (*strides)[2] > 1) return "product: what is added does not fit";
    p.added = added->as<const O>();
    p.added_batch = (*strides)[0], p.added_row = (*strides)[1], p.added_column = (*strides)[2];
  }
  if constexpr (std::is_same_v<T, float>) {
    if (vectors || !has_amx_bf16()) {
      panel_product(p);
      return {};
    }
  }
  product(p);
  return {};
}

}  // namespace

Wrong product(const Plain& a, const Plain& b, const Plain* added, std::string_view activation, bool wide, bool vectors,
              const Plain& out) {
  const auto act = activation_named(activation);
  const bool f32 = is_f32(a), bf16 = a.dtype == DType::kBF16;
  const DType result = wide ? DType::kF32 : a.dtype;
  if (bf16 ? !has_amx_bf16() : !has_amx_bf16() && !vector_kernels()) return "product: not on this machine";
  const int64_t rank = a.rank();
  const bool fit = (rank == 2 || rank == 3) && b.rank() == rank && out.rank() == rank && b.size(-2) == a.size(-1) &&
                   out.size(-2) == a.size(-2) && out.size(-1) == b.size(-1) &&
                   (rank == 2 || (b.size(0) == a.size(0) && out.size(0) == a.size(0)));
  if (!act || !(f32 || bf16) || b.dtype != a.dtype || out.dtype != result || (added && added->dtype != result) ||
      !fit || !out.is_dense())
    return "product: wrong arguments";
  if (out.numel() == 0) return {};
  return (f32    ? run_product<float, float>
          : wide ? run_product<uint16_t, float>
                 : run_product<uint16_t, uint16_t>)(a, b, added, *act, vectors, out);
}

Wrong pack_depthwise(const Plain& weight, const Plain& packed) {
  if (!vector_kernels() || weight.rank() != 4 || weight.size(1) != 1 || !is_f32(weight) || !weight.is_dense() ||
      !is_f32(packed) || !packed.is_dense() ||
      packed.numel() != depthwise_elements(weight.size(0), weight.size(2) * weight.size(3)))
    return "pack_depthwise: an f32 weight of one channel a group";
  pack_depthwise(weight.as<const float>(), weight.size(0), weight.size(2) * weight.size(3), packed.as<float>());
  return {};
}

namespace {

bool lies_channels_last(const Plain& t) {
  const std::array<int64_t, 4> sizes{t.size(0), t.size(2), t.size(3), t.size(1)};
  const std::array<int64_t, 4> strides{t.stride(0), t.stride(2), t.stride(3), t.stride(1)};
  return Plain{nullptr, t.dtype, sizes, strides}.is_dense();
}

// Points of a convolution's result in one dimension; -1: there is no such convolution.
int64_t convolved_size(const Plain& x, const DepthwiseGeometry& g, size_t d) {
  const int64_t reach = g.dilation[d] * (g.kernel[d] - 1) + 1;
  const int64_t room = x.size(static_cast<int64_t>(d) + 2) + 2 * g.padding[d] - reach;
  return room < 0 ? -1 : room / g.stride[d] + 1;
}

bool is_geometry(const DepthwiseGeometry& g) {
  constexpr int64_t kMost = int64_t{1} << 24;
  const auto within = [](std::span<const int64_t> list, int64_t least) {
    return list.size() == 2 && std::ranges::all_of(list, [&](int64_t n) { return n >= least && n <= kMost; });
  };
  return within(g.kernel, 1) && within(g.stride, 1) && within(g.dilation, 1) && within(g.padding, 0);
}

}  // namespace

Wrong depthwise_last(const Plain& x, const Plain& packed, const Plain* bias, const DepthwiseGeometry& g,
                     std::string_view activation, const Plain& out) {
  const auto act = activation_named(activation);
  if (!vector_kernels() || !act || !is_geometry(g) || x.rank() != 4 || !is_f32(x) ||
      !(x.size(1) <= 1 || x.stride(1) == 1) || !is_f32(packed) || !packed.is_dense() ||
      packed.numel() != depthwise_elements(x.size(1), g.kernel[0] * g.kernel[1]) || !is_vector(bias, x.size(1)))
    return "depthwise_last: wrong arguments";
  if (!is_f32(out) || out.rank() != 4 || out.size(0) != x.size(0) || out.size(1) != x.size(1) ||
      out.size(2) != convolved_size(x, g, 0) || out.size(3) != convolved_size(x, g, 1) || !lies_channels_last(out))
    return "depthwise_last: wrong result";
  if (out.numel() == 0) return {};
  depthwise(DepthwiseLast{.x = x.as<const float>(),
                          .image = x.stride(0),
                          .row = x.stride(2),
                          .column = x.stride(3),
                          .packed = packed.as<const float>(),
                          .bias = numbers_of(bias),
                          .out = out.as<float>(),
                          .batch = x.size(0),
                          .channels = x.size(1),
                          .size = {x.size(2), x.size(3)},
                          .out_size = {out.size(2), out.size(3)},
                          .kernel = {g.kernel[0], g.kernel[1]},
                          .stride = {g.stride[0], g.stride[1]},
                          .padding = {g.padding[0], g.padding[1]},
                          .dilation = {g.dilation[0], g.dilation[1]},
                          .activation = *act});
  return {};
}

namespace {

// The operand's strides along `batch` (its own leading dims, from the right), 0 where it repeats; nothing: it does not
// fit.
std::optional<AttentionOperand> strides_along(const Plain& t, const Batch& batch) {
  AttentionOperand o{.data = t.data};
  o.row = t.size(-2) == 1 ? 0 : t.stride(-2);
  for (int64_t d = 0; d < kBatchDims; ++d) {
    const int64_t own = t.rank() - 2 - kBatchDims + d;
    if (own < 0) continue;
    const int64_t size = t.size(own), all = batch[static_cast<size_t>(d)];
    if (size != all && size != 1) return std::nullopt;
    o.batch[static_cast<size_t>(d)] = size == 1 ? 0 : t.stride(own);
  }
  return o;
}

// Of [..., queries], a number a row; nothing: it does not fit.
std::optional<AttentionOperand> row_numbers(const Plain& t, const Attention& a) {
  AttentionOperand o{.data = t.data};
  const int64_t batch_dims = t.rank() - 1;
  if (!is_f32(t) || batch_dims < 1 || batch_dims > kBatchDims || t.size(-1) != a.queries) return std::nullopt;
  o.row = t.stride(-1);
  for (int64_t d = 0; d < batch_dims; ++d) {
    const auto at = static_cast<size_t>(kBatchDims - batch_dims + d);
    if (t.size(d) != a.batch[at]) return std::nullopt;
    o.batch[at] = t.stride(d);
  }
  return o;
}

constexpr Wrong kWrongAttention = "attention: wrong arguments";

Wrong describe_bias(const Plain& b, size_t i, Attention& a) {
  a.bias_bf16[i] = b.dtype == DType::kBF16;
  const bool fits = (a.bias_bf16[i] || is_f32(b)) && b.rank() >= 2 && b.rank() <= 2 + kBatchDims &&
                    b.size(-1) == a.keys && (b.size(-2) == a.queries || b.size(-2) == 1) && has_dense_last_dim(b);
  const auto described = fits ? strides_along(b, a.batch) : std::nullopt;
  if (!described) return "attention: wrong bias";
  a.bias[i] = *described;
  return {};
}

}  // namespace

Wrong attention(const Plain& q, const Plain& k, const Plain& v, std::span<const Plain> biases,
                const AttentionOptions& options, const Plain& out, const Plain* logsumexp) {
  const bool bf16 = q.dtype == DType::kBF16;
  if (bf16 ? !has_amx_bf16() : !has_avx512()) return "attention: not on this machine";
  const int64_t rank = q.rank();
  if (rank < 3 || rank > 2 + kBatchDims || k.rank() != rank || v.rank() != rank || (!bf16 && !is_f32(q)) ||
      k.dtype != q.dtype || v.dtype != q.dtype || out.dtype != q.dtype || out.rank() != rank ||
      biases.size() > kMaxBiases || k.size(-1) != q.size(-1) || v.size(-2) != k.size(-2) ||
      out.size(-2) != q.size(-2) || out.size(-1) != v.size(-1))
    return kWrongAttention;
  for (const Plain* t : {&q, &k, &v, &out})
    if (!has_dense_last_dim(*t)) return kWrongAttention;
  Attention a{.bf16 = bf16,
              .biases = static_cast<int>(biases.size()),
              .queries = q.size(-2),
              .keys = k.size(-2),
              .width = q.size(-1),
              .value_width = v.size(-1),
              .scale = static_cast<float>(options.scale),
              .causal = options.causal,
              .zero_if_none = options.zero_if_none};
  for (int64_t d = 0; d < rank - 2; ++d) {
    a.batch[static_cast<size_t>(kBatchDims - (rank - 2) + d)] = q.size(d);
    if (out.size(d) != q.size(d)) return kWrongAttention;
  }
  AttentionOperand* const operands[] = {&a.q, &a.k, &a.v, &a.out};
  const Plain* const given[] = {&q, &k, &v, &out};
  for (size_t i = 0; i < std::size(operands); ++i) {
    const auto described = strides_along(*given[i], a.batch);
    if (!described) return kWrongAttention;
    *operands[i] = *described;
  }
  for (size_t i = 0; i < biases.size(); ++i)
    if (const Wrong wrong = describe_bias(biases[i], i, a); !wrong.empty()) return wrong;
  if (logsumexp) {
    const auto described = row_numbers(*logsumexp, a);
    if (!described) return kWrongAttention;
    a.logsumexp = *described;
  }
  if (out.numel() > 0) attention(a);
  return {};
}

std::string_view missing_for(std::string_view op) {
  constexpr std::string_view kOwn = "flashover.";
  if (!op.starts_with(kOwn)) return {};
  op.remove_prefix(kOwn.size());
  constexpr std::string_view kAmx[] = {"pack_linear.", "packed_linear.", "unfolded_input_gradient.",
                                       "unfolded_weight_gradient."};
  // (The library's, entry by entry or image by image, need nothing: attention_by_entry.)
  constexpr std::string_view kAvx512[] = {"attention.",
                                          "attention_backward.",
                                          "attention_kept.",
                                          "attention_of_any_size.",
                                          "convolution.",
                                          "convolution_input_gradient.",
                                          "convolution_weight_gradient."};
  const auto is_one_of = [&](std::span<const std::string_view> names) {
    return std::ranges::any_of(names, [&](std::string_view n) { return op.starts_with(n); });
  };
  if (is_one_of(kAmx) && !has_amx_bf16()) return "amx_bf16";
  if ((op.starts_with("product.") || op.starts_with("unfolded_convolution.")) && !has_amx_bf16() && !vector_kernels())
    return "avx2";
  return is_one_of(kAvx512) && !has_avx512() ? "avx512" : "";
}

// ---- by name

namespace {

using Arguments = std::span<const PlainArgument>;
using Results = std::span<const Plain>;
constexpr Wrong kOtherKinds = "arguments of other kinds than the operator's";

template <typename... T, size_t... I>
bool are(Arguments arguments, std::index_sequence<I...>) {
  return (std::holds_alternative<T>(arguments[I]) && ...);
}
// Whether the arguments are of these kinds, and there is one result.
template <typename... T>
bool are(Arguments arguments, Results results) {
  return arguments.size() == sizeof...(T) && results.size() == 1 &&
         are<T...>(arguments, std::make_index_sequence<sizeof...(T)>());
}
// A tensor, or nothing.
bool is_maybe(const PlainArgument& a) {
  return std::holds_alternative<Plain>(a) || std::holds_alternative<std::monostate>(a);
}
const Plain* maybe(const PlainArgument& a) { return std::get_if<Plain>(&a); }

Wrong call_pack_linear(Arguments a, Results r) {
  return are<Plain>(a, r) ? pack_linear(std::get<Plain>(a[0]), r[0]) : kOtherKinds;
}
Wrong call_pack_panels(Arguments a, Results r) {
  return are<Plain>(a, r) ? pack_panels(std::get<Plain>(a[0]), r[0]) : kOtherKinds;
}
Wrong call_pack_depthwise(Arguments a, Results r) {
  return are<Plain>(a, r) ? pack_depthwise(std::get<Plain>(a[0]), r[0]) : kOtherKinds;
}

Wrong call_packed_linear(Arguments a, Results r) {
  if (a.size() != 5 || r.size() != 1 || !are<Plain, Plain>(a.first(2), r) || !is_maybe(a[2]) ||
      !are<int64_t, std::string_view>(a.subspan(3), r))
    return kOtherKinds;
  return packed_linear(std::get<Plain>(a[0]), std::get<Plain>(a[1]), maybe(a[2]), std::get<int64_t>(a[3]),
                       std::get<std::string_view>(a[4]), r[0]);
}

Wrong call_panel_linear(Arguments a, Results r) {
  if (a.size() != 6 || r.size() != 1 || !are<Plain, Plain>(a.first(2), r) || !is_maybe(a[2]) || !is_maybe(a[3]) ||
      !are<int64_t, std::string_view>(a.subspan(4), r))
    return kOtherKinds;
  return panel_linear(std::get<Plain>(a[0]), std::get<Plain>(a[1]), maybe(a[2]), maybe(a[3]), std::get<int64_t>(a[4]),
                      std::get<std::string_view>(a[5]), r[0]);
}

Wrong call_product(Arguments a, Results r) {
  if (a.size() != 6 || r.size() != 1 || !are<Plain, Plain>(a.first(2), r) || !is_maybe(a[2]) ||
      !are<std::string_view, bool, bool>(a.subspan(3), r))
    return kOtherKinds;
  return product(std::get<Plain>(a[0]), std::get<Plain>(a[1]), maybe(a[2]), std::get<std::string_view>(a[3]),
                 std::get<bool>(a[4]), std::get<bool>(a[5]), r[0]);
}

Wrong call_depthwise_last(Arguments a, Results r) {
  using List = std::vector<int64_t>;
  if (a.size() != 8 || r.size() != 1 || !are<Plain, Plain>(a.first(2), r) || !is_maybe(a[2]) ||
      !are<List, List, List, List, std::string_view>(a.subspan(3), r))
    return kOtherKinds;
  const DepthwiseGeometry geometry{std::get<List>(a[3]), std::get<List>(a[4]), std::get<List>(a[5]),
                                   std::get<List>(a[6])};
  return depthwise_last(std::get<Plain>(a[0]), std::get<Plain>(a[1]), maybe(a[2]), geometry,
                        std::get<std::string_view>(a[7]), r[0]);
}

Wrong call_attention(Arguments a, Results r) {
  if (!are<Plain, Plain, Plain, std::vector<Plain>, double, bool, bool>(a, r)) return kOtherKinds;
  const AttentionOptions options{std::get<double>(a[4]), std::get<bool>(a[5]), std::get<bool>(a[6])};
  return attention(std::get<Plain>(a[0]), std::get<Plain>(a[1]), std::get<Plain>(a[2]),
                   std::get<std::vector<Plain>>(a[3]), options, r[0], nullptr);
}

// What makes its operands has run by then, and has said what is wrong of theirs.
Wrong call_computed(Arguments, Results) { return {}; }

constexpr PlainOperator kOperators[] = {
    {"flashover.pack_linear", call_pack_linear,
     [](Arguments a) {
       const auto* weight = a.empty() ? nullptr : std::get_if<Plain>(&a[0]);
       return weight && weight->rank() == 2 ? packed_linear_elements(weight->dtype, weight->size(0), weight->size(1))
                                            : int64_t{-1};
     }},
    {"flashover.packed_linear", call_packed_linear, nullptr},
    {"flashover.pack_panels", call_pack_panels,
     [](Arguments a) {
       const auto* weight = a.empty() ? nullptr : std::get_if<Plain>(&a[0]);
       return weight && weight->rank() == 2 ? panel_elements(weight->size(0), weight->size(1)) : int64_t{-1};
     }},
    {"flashover.panel_linear", call_panel_linear, nullptr},
    {"flashover.product", call_product, nullptr},
    {"flashover.pack_depthwise", call_pack_depthwise,
     [](Arguments a) {
       const auto* weight = a.empty() ? nullptr : std::get_if<Plain>(&a[0]);
       return weight && weight->rank() == 4 ? depthwise_elements(weight->size(0), weight->size(2) * weight->size(3))
                                            : int64_t{-1};
     }},
    {"flashover.depthwise_last", call_depthwise_last, nullptr},
    {"flashover.attention", call_attention, nullptr},
    {"flashover.computed", call_computed, nullptr},
};

}  // namespace

const PlainOperator* find_plain(std::string_view op) {
  const std::string_view name = op::without_overload(op);
  for (const std::span<const PlainOperator> table : {std::span<const PlainOperator>(kOperators), library_operators()})
    if (const auto found = std::ranges::find(table, name, &PlainOperator::name); found != table.end()) return &*found;
  return nullptr;
}

}  // namespace flashover::cpu
