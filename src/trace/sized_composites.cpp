// Composite operators over sizes that are symbols: ATen takes them apart with the numbers of sizes in its hands. Where an
// operand has symbols they are written here with operators that take those, step by step as ATen's, and elsewhere they
// are ATen's own.
#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/_fft_c2r.h>
#include <ATen/ops/_fft_r2c.h>
#include <ATen/ops/_new_zeros_with_same_feature_meta.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/broadcast_tensors.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/chunk.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cosine_similarity.h>
#include <ATen/ops/cov.h>
#include <ATen/ops/diagonal_copy.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/fill_diagonal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gradient.h>
#include <ATen/ops/istft.h>
#include <ATen/ops/kron.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nanquantile.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pad_sequence.h>
#include <ATen/ops/pairwise_distance.h>
#include <ATen/ops/quantile.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/slice.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/stft.h>
#include <ATen/ops/take_along_dim.h>
#include <ATen/ops/tensor_split.h>
#include <ATen/ops/tensordot.h>
#include <ATen/ops/unfold_backward.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>

#include "trace/own_form.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

bool any_symbolic(at::TensorList tensors) {
  return current() != nullptr && std::any_of(tensors.begin(), tensors.end(), [](auto& t) { return is_symbolic(t); });
}

// ------------------------------------------------------------------------------------------------------- quantiles

// Between 0 and 1, which ATen looks at.
bool are_probabilities(const at::Tensor& q) {
  auto* recorder = static_cast<Recorder*>(current());
  const auto known = recorder && !recorder->declined() ? recorder->constant_value(q) : std::nullopt;
  if (!known || !known->is_cpu() || q.dim() > 1) return false;
  BelowEverything plain;
  InternalScope internal;
  return known->ge(0).logical_and(known->le(1)).all().item<bool>();
}

at::Tensor quantile_of(const at::Tensor& self, const at::Tensor& q, std::optional<int64_t> dim, bool keepdim,
                       c10::string_view interpolation, bool ignore_nan) {
  const int64_t rank = self.dim(), at = dim ? (*dim < 0 ? *dim + rank : *dim) : 0;
  at::Tensor sorted;
  if (!dim) {
    sorted = std::get<0>(self.reshape_symint({-1}).sort());
    for (int64_t d = 0; keepdim && d < rank; ++d) sorted = sorted.unsqueeze(0);
  } else {
    sorted = std::get<0>(self.unsqueeze(-1).transpose(at, -1).sort());
    if (!keepdim) sorted = sorted.squeeze(at);
  }
  const c10::SymInt last = sorted.sym_size(-1) - 1;
  const at::Tensor points = q.dim() == 0 ? q.unsqueeze(0) : q, nan = sorted.isnan();
  at::Tensor ranks;
  if (ignore_nan) {
    ranks = points * (nan.logical_not().sum(-1, /*keepdim=*/true) - 1);
    ranks = ranks.masked_fill(ranks < 0, 0);
  } else {
    const auto both = at::broadcast_tensors({points * at::Scalar(last), nan.any(-1, /*keepdim=*/true)});
    ranks = both[0].masked_fill(both[1], at::Scalar(last));
  }
  if (interpolation == "lower") ranks = ranks.floor();
  if (interpolation == "higher") ranks = ranks.ceil();
  if (interpolation == "nearest") ranks = ranks.round();
  const at::Tensor below = ranks.to(at::kLong);
  at::Tensor values = sorted.gather(-1, below);
  if (interpolation == "linear" || interpolation == "midpoint") {
    const at::Tensor weights = interpolation == "midpoint" ? at::full_like(ranks, 0.5) : ranks - below;
    values = values.lerp(sorted.gather(-1, ranks.ceil().to(at::kLong)), weights);
  }
  return q.dim() == 0 ? values.squeeze(-1) : values.unsqueeze(0).transpose(0, -1).squeeze(-1);
}

template <auto by_aten, bool ignore_nan>
at::Tensor quantile(const at::Tensor& self, const at::Tensor& q, std::optional<int64_t> dim, bool keepdim,
                    c10::string_view interpolation) {
  constexpr int64_t kMost = 1 << 24;
  const bool known_way = interpolation == "linear" || interpolation == "lower" || interpolation == "higher" ||
                         interpolation == "midpoint" || interpolation == "nearest";
  const auto count = [&] { return dim ? self.sym_size(*dim) : self.sym_numel(); };
  const bool taken = any_symbolic(self) && known_way && self.dim() > 0 && self.scalar_type() == q.scalar_type() &&
                     (self.scalar_type() == at::kFloat || self.scalar_type() == at::kDouble) &&
                     (!dim || (*dim >= -self.dim() && *dim < self.dim())) && are_probabilities(q) &&
                     self.sym_numel() > 0 && count() <= kMost;
  if (taken) return quantile_of(self, q, dim, keepdim, interpolation, ignore_nan);
  const Below below;
  return by_aten(self, q, dim, keepdim, interpolation);
}

template <auto by_aten, auto of_tensor>
at::Tensor quantile_at(const at::Tensor& self, double q, std::optional<int64_t> dim, bool keepdim,
                       c10::string_view interpolation) {
  if (any_symbolic(self) && q >= 0 && q <= 1)
    return of_tensor(self, at::scalar_tensor(q, self.options()), dim, keepdim, interpolation);
  const Below below;
  return by_aten(self, q, dim, keepdim, interpolation);
}

// ------------------------------------------------------------------------------------------------------- sequences

at::Tensor pad_sequence(at::TensorList sequences, bool batch_first, double value, c10::string_view side) {
  bool taken = any_symbolic(sequences) && (side == "right" || side == "left");
  for (const at::Tensor& t : sequences) {
    taken = taken && t.dim() > 0 && t.dim() == sequences[0].dim() && t.dtype() == sequences[0].dtype() &&
            t.device() == sequences[0].device();
    for (int64_t d = 1; taken && d < t.dim(); ++d) taken = t.sym_size(d) == sequences[0].sym_size(d);
  }
  if (!taken) {
    const Below below;
    return at::pad_sequence(sequences, batch_first, value, side);
  }
  c10::SymInt longest = sequences[0].sym_size(0);
  for (const at::Tensor& t : sequences) longest = longest.max(t.sym_size(0));
  std::vector<at::Tensor> padded;
  for (const at::Tensor& t : sequences) {
    std::vector<c10::SymInt> pads(static_cast<size_t>(2 * t.dim()), 0);
    pads[pads.size() - (side == "right" ? 1 : 2)] = longest - t.sym_size(0);
    padded.push_back(at::constant_pad_nd_symint(t, pads, value));
  }
  return at::stack(padded, batch_first ? 0 : 1);
}

// The layers that oneDNN computes, as ATen calls them for sizes that are numbers.
using Recurrent = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
Recurrent lstm(const at::Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases, int64_t layers,
               double dropout, bool train, bool bidirectional, bool batch_first) {
  constexpr int64_t kLstm = 2;
  const int64_t directions = bidirectional ? 2 : 1, each = has_biases ? 4 : 2;
  const auto plain = [](at::TensorList list) {
    return std::all_of(list.begin(), list.end(),
                       [](const at::Tensor& t) { return t.is_cpu() && t.scalar_type() == at::kFloat; });
  };
  bool taken = any_symbolic(input) && input.dim() == 3 && plain(input) && hx.size() == 2 && plain(hx) &&
               plain(params) && static_cast<int64_t>(params.size()) == layers * directions * each &&
               at::globalContext().userEnabledMkldnn() &&
               std::none_of(params.begin(), params.end(), [](auto& t) { return is_symbolic(t) || t.dim() == 0; });
  for (const at::Tensor& h : hx)
    taken = taken && h.dim() == 3 && h.sym_size(0) == layers * directions &&
            h.sym_size(1) == input.sym_size(batch_first ? 0 : 1) && h.sym_size(2) == params[1].size(1);
  taken = taken && input.sym_size(2) == params[0].size(1) && params[0].size(0) == 4 * params[1].size(1) &&
          input.sym_numel() > 0;
  // (How large the workspace of oneDNN's backward is only the library knows.)
  const auto trained = [](at::TensorList list) {
    return std::ranges::any_of(list, [](const at::Tensor& t) { return t.requires_grad(); });
  };
  taken = taken && !(c10::GradMode::is_enabled() && (trained(input) || trained(hx) || trained(params)));
  if (!taken && (any_symbolic(input) || input.scalar_type() == at::kDouble))
    if (auto whole = record_lstm(input, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first))
      return *whole;
  if (!taken) {
    const Below below;
    return at::lstm(input, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first);
  }
  const int64_t hidden = params[1].size(1);
  at::Tensor steps = (batch_first ? input.transpose(0, 1) : input).contiguous();
  const at::Tensor h0 = hx[0].contiguous(), c0 = hx[1].contiguous();
  std::vector<at::Tensor> hs, cs;
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::vector<at::Tensor> out;
    for (int64_t direction = 0; direction < directions; ++direction) {
      const int64_t index = layer * directions + direction;
      const auto weights = params.slice(static_cast<size_t>(index * each), static_cast<size_t>(each));
      const auto bias = [&](size_t i) {
        return has_biases ? weights[2 + i] : at::zeros(weights[i].sizes(), weights[i].options());
      };
      auto [y, h, c, workspace] = at::mkldnn_rnn_layer(
          steps, weights[0], weights[1], bias(0), bias(1), h0.select(0, index), c0.select(0, index), direction > 0,
          /*batch_sizes=*/{}, kLstm, hidden, layers, has_biases, bidirectional, batch_first, train);
      out.push_back(y);
      hs.push_back(h);
      cs.push_back(c);
    }
    steps = directions == 1 ? out[0] : at::cat(out, -1);
    if (dropout != 0 && train && layer + 1 < layers) steps = at::dropout(steps, dropout, /*train=*/true);
  }
  return {batch_first ? steps.transpose(0, 1) : steps, at::stack(hs, 0), at::stack(cs, 0)};
}

// Whether a dimension whose size is a symbol is cut, in a few parts.
bool cuts_symbol(const at::Tensor& self, int64_t parts, int64_t dim) {
  constexpr int64_t kMost = 64;
  return any_symbolic(self) && parts >= 1 && parts <= kMost && dim >= -self.dim() && dim < self.dim() &&
         self.sym_size(dim).is_symbolic();
}

// Parts of a dimension in as many pieces as are asked for, whatever its size.
std::vector<at::Tensor> split_in_sections(const at::Tensor& self, c10::SymInt sections, int64_t dim) {
  if (sections.is_symbolic() || !cuts_symbol(self, sections.expect_int(), dim)) {
    const Below below;
    return at::tensor_split_symint(self, sections, dim);
  }
  const c10::SymInt size = self.sym_size(dim);
  std::vector<at::Tensor> parts;
  c10::SymInt at = 0;
  const int64_t count = sections.expect_int();
  for (int64_t i = 0; i < count; ++i) {
    const c10::SymInt end = i + 1 < count ? at + (size + (count - 1 - i)) / count : size;
    parts.push_back(at::slice_symint(self, dim, at, end));
    at = end;
  }
  return parts;
}

// ATen rounds the size of a part up; there may be fewer of them then, which is asked for once.
std::vector<at::Tensor> chunk(const at::Tensor& self, int64_t chunks, int64_t dim) {
  if (chunks > 1 && cuts_symbol(self, chunks, dim)) {
    const c10::SymInt size = self.sym_size(dim), part = (size + (chunks - 1)) / chunks;
    if (part * (chunks - 1) < size) {
      std::vector<at::Tensor> parts;
      for (int64_t i = 0; i < chunks; ++i)
        parts.push_back(at::slice_symint(self, dim, part * i, i + 1 < chunks ? part * (i + 1) : size));
      return parts;
    }
  }
  const Below below;
  return at::chunk(self, chunks, dim);
}

// Differences of neighbours along one dim: of those on both sides, and of the next one at the ends.
std::vector<at::Tensor> gradient(const at::Tensor& self, const std::optional<at::Scalar>& spacing,
                                 std::optional<int64_t> dim, int64_t edge_order) {
  const bool taken = any_symbolic(self) && dim && edge_order == 1 && *dim >= -self.dim() && *dim < self.dim() &&
                     self.is_floating_point() && (!spacing || !spacing->isComplex()) && self.sym_size(*dim) > 1;
  if (!taken) {
    const Below below;
    return at::gradient(self, spacing, dim, edge_order);
  }
  const at::Scalar step = spacing.value_or(1);
  const auto between = [&](const c10::SymInt& from, const c10::SymInt& to, int64_t apart) {
    const auto part = [&](const c10::SymInt& shift) { return at::slice_symint(self, *dim, from + shift, to + shift); };
    return (part(apart) - part(0)) / step;
  };
  const c10::SymInt last = self.sym_size(*dim) - 1;
  return {at::cat({between(0, 1, 1), between(0, last - 1, 2) / 2, between(last - 1, last, 1)}, *dim)};
}

// Frames of a signal, and their transforms.
at::Tensor stft(const at::Tensor& self, int64_t n_fft, std::optional<int64_t> hop_length,
                std::optional<int64_t> win_length, const std::optional<at::Tensor>& window, bool normalized,
                std::optional<bool> onesided, std::optional<bool> return_complex, std::optional<bool> align) {
  const int64_t hop = hop_length.value_or(n_fft / 4), width = win_length.value_or(n_fft);
  const bool has_window = window && window->defined(), real = return_complex.has_value();
  const bool taken = any_symbolic(self) && (self.dim() == 1 || self.dim() == 2) && self.is_floating_point() && real &&
                     n_fft > 0 && hop > 0 && width > 0 && width <= n_fft && !align.value_or(false) &&
                     (!has_window || (window->dim() == 1 && !window->is_complex() && window->sym_size(0) == width)) &&
                     self.sym_size(-1) >= n_fft;
  if (!taken) {
    const Below below;
    return at::stft(self, n_fft, hop_length, win_length, window, normalized, onesided, return_complex, align);
  }
  at::Tensor frames = (self.dim() == 1 ? self.unsqueeze(0) : self).unfold(1, n_fft, hop);
  at::Tensor weights = has_window ? *window : at::Tensor();
  if (width < n_fft) {
    const int64_t left = (n_fft - width) / 2;
    if (!has_window) weights = at::ones({width}, self.options());
    weights = at::constant_pad_nd(weights, {left, n_fft - width - left}, 0);
  }
  if (weights.defined()) frames = frames * weights;
  constexpr int64_t kPlain = 0, kByRoot = 1;
  at::Tensor out = at::_fft_r2c(frames, frames.dim() - 1, normalized ? kByRoot : kPlain, onesided.value_or(true));
  out = out.transpose(1, 2);
  if (self.dim() == 1) out = out.squeeze(0);
  return *return_complex ? out : at::view_as_real(out);
}

// The signal whose frames they are: a sum of frames where they overlap, by the sum of the windows' squares there.
at::Tensor istft(const at::Tensor& self, int64_t n_fft, std::optional<int64_t> hop_length,
                 std::optional<int64_t> win_length, const std::optional<at::Tensor>& window, bool center,
                 bool normalized, std::optional<bool> onesided, std::optional<int64_t> length, bool return_complex) {
  const int64_t hop = hop_length.value_or(n_fft / 4), width = win_length.value_or(n_fft);
  const bool has_window = window && window->defined();
  const bool taken = any_symbolic(self) && (self.dim() == 2 || self.dim() == 3) && self.is_complex() &&
                     !return_complex && !length && onesided.value_or(true) && n_fft > 0 && hop > 0 && hop <= width &&
                     width > 0 && width <= n_fft &&
                     (!has_window || (window->dim() == 1 && !window->is_complex() && !is_symbolic(*window) &&
                                      window->sym_size(0) == width &&
                                      window->scalar_type() == c10::toRealValueType(self.scalar_type()))) &&
                     self.sym_size(-2) == n_fft / 2 + 1 && self.sym_size(-1) > 1 && self.sym_numel() > 0;
  if (!taken) {
    const Below below;
    return at::istft(self, n_fft, hop_length, win_length, window, center, normalized, onesided, length, return_complex);
  }
  const auto real = at::TensorOptions(self.device()).dtype(c10::toRealValueType(self.scalar_type()));
  at::Tensor weights = has_window ? *window : at::ones({width}, real);
  const int64_t left = (n_fft - width) / 2;
  if (width < n_fft) weights = at::constant_pad_nd(weights, {left, n_fft - width - left}, 0);
  const at::Tensor spectra = (self.dim() == 2 ? self.unsqueeze(0) : self).transpose(1, 2);
  constexpr int64_t kByRoot = 1, kByCount = 2;
  const at::Tensor frames = at::_fft_c2r(spectra, 2, normalized ? kByRoot : kByCount, n_fft) * weights;
  const c10::SymInt count = self.sym_size(-1), whole = (count - 1) * hop + n_fft, margin = center ? n_fft / 2 : 0;
  const auto overlapped = [&](const at::Tensor& parts) {
    const at::Tensor sum = at::unfold_backward_symint(parts, {parts.sym_size(0), whole}, 1, n_fft, hop);
    return at::slice_symint(sum, 1, margin, whole - margin);
  };
  const at::Tensor sums = overlapped(weights.square().expand_symint({1, count, n_fft}));
  at::_assert_async(sums.abs().amin() > 1e-11);
  const at::Tensor out = overlapped(frames) / sums;
  return self.dim() == 2 ? out.squeeze(0) : out;
}

// ------------------------------------------------------------------------------------------------------- matrices

// Blocks of `other`, each times an element of `self`.
at::Tensor kron(const at::Tensor& self, const at::Tensor& other) {
  if (!any_symbolic({self, other})) {
    const Below below;
    return at::kron(self, other);
  }
  const int64_t rank = std::max(self.dim(), other.dim());
  std::vector<c10::SymInt> outer, inner, whole;
  const auto size = [&](const at::Tensor& t, int64_t d) {
    return d < rank - t.dim() ? c10::SymInt(1) : t.sym_size(d - (rank - t.dim()));
  };
  for (int64_t d = 0; d < rank; ++d) {
    outer.insert(outer.end(), {size(self, d), 1});
    inner.insert(inner.end(), {1, size(other, d)});
    whole.push_back(size(self, d) * size(other, d));
  }
  return at::_unsafe_view_symint(self.reshape_symint(outer) * other.reshape_symint(inner), whole);
}

at::Tensor& fill_diagonal(at::Tensor& self, const at::Scalar& value, bool wrap) {
  if (any_symbolic(self) && self.dim() == 2 && !wrap) {
    self.diagonal().fill_(value);
    return self;
  }
  const Below below;
  return self.fill_diagonal_(value, wrap);
}

at::Tensor take_along_dim(const at::Tensor& self, const at::Tensor& indices, std::optional<int64_t> dim) {
  const bool taken = any_symbolic({self, indices}) && indices.scalar_type() == at::kLong && dim &&
                     self.dim() == indices.dim() && self.dim() > 0 && *dim >= -self.dim() && *dim < self.dim();
  if (!taken) {
    const Below below;
    return at::take_along_dim(self, indices, dim);
  }
  const auto at = static_cast<size_t>(*dim < 0 ? *dim + self.dim() : *dim);
  const sym::PresumeScope presume;  // (sizes of one beside others are spread)
  const auto spread = [&](const at::Tensor& t, const at::Tensor& like) {
    std::vector<c10::SymInt> sizes(like.sym_sizes().vec());
    sizes[at] = t.sym_sizes()[at];
    return t.expand_symint(at::infer_size_symint(t.sym_sizes(), sizes));
  };
  return spread(self, indices).gather(*dim, spread(indices, self));
}

at::Tensor diagonal_copy(const at::Tensor& self, int64_t offset, int64_t dim1, int64_t dim2) {
  if (any_symbolic(self)) return self.diagonal(offset, dim1, dim2).clone(at::MemoryFormat::Contiguous);
  const Below below;
  return at::diagonal_copy(self, offset, dim1, dim2);
}

// ATen looks which sizes are one: these need no product, or are spread over others. What it makes of them has the form
// that larger sizes get, too. (Operands of other sizes beside them are another program: that sizes are equal is asked.)
template <typename T>
bool has_symbols(const T& x) {
  if constexpr (std::is_convertible_v<const T&, at::TensorList>) return any_symbolic(x);
  return false;
}
template <typename Op, typename Schema = typename Op::schema>
struct Presuming;
template <typename Op, typename Result, typename... Args>
struct Presuming<Op, Result(Args...)> {
  static Result call(c10::DispatchKeySet keys, Args... args) {
    std::optional<sym::PresumeScope> presume;
    if ((has_symbols(args) || ...)) presume.emplace();
    return Op::redispatch(keys & kAfterOurs, args...);
  }
};

at::Tensor cov(const at::Tensor& self, int64_t correction, const std::optional<at::Tensor>& fweights,
               const std::optional<at::Tensor>& aweights) {
  const bool weighted = (fweights && fweights->defined()) || (aweights && aweights->defined());
  const bool taken = any_symbolic(self) && !weighted && self.dim() == 2 && self.is_floating_point() &&
                     self.sym_size(0) > 1 && self.sym_size(1) > correction && self.sym_size(1) > 0;
  if (!taken) {
    const Below below;
    return at::cov(self, correction, fweights, aweights);
  }
  const c10::SymInt n = self.sym_size(1);
  const at::Tensor centered = self - (self.sum(1) / at::Scalar(n)).unsqueeze(1);
  return at::mm(centered, centered.t()) / at::Scalar(n - correction);
}

// Where a tangent is set: zeros that lie as the tensor does.
at::Tensor new_zeros_alike(c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& other,
                           int64_t batch_dims) {
  const auto* impl = trace_impl(other);
  if (!any_symbolic(other) || !impl->is_contiguous() || batch_dims < 0 || batch_dims > self.dim())
    // (What wraps others calls it again for what is inside.)
    return at::_ops::_new_zeros_with_same_feature_meta::redispatch(keys & kAfterOurs, self, other, batch_dims);
  std::vector<c10::SymInt> sizes(self.sym_sizes().begin(), self.sym_sizes().begin() + batch_dims);
  for (const c10::SymInt& s : other.sym_sizes()) sizes.push_back(s);
  return at::zeros_symint(sizes, other.options());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericWrapper, m) {
  own<at::_ops::quantile, quantile<at::_ops::quantile::call, false>>(m, "quantile");
  own<at::_ops::nanquantile, quantile<at::_ops::nanquantile::call, true>>(m, "nanquantile");
  own<at::_ops::quantile_scalar, quantile_at<at::_ops::quantile_scalar::call, at::_ops::quantile::call>>(
      m, "quantile.scalar");
  own<at::_ops::nanquantile_scalar, quantile_at<at::_ops::nanquantile_scalar::call, at::_ops::nanquantile::call>>(
      m, "nanquantile.scalar");
  own<at::_ops::pad_sequence, pad_sequence>(m, "pad_sequence");
  own<at::_ops::lstm_input, lstm>(m, "lstm.input");
  own<at::_ops::stft, stft>(m, "stft");
  own<at::_ops::istft, istft>(m, "istft");
  own<at::_ops::tensor_split_sections, split_in_sections>(m, "tensor_split.sections");
  own<at::_ops::chunk, chunk>(m, "chunk");
  own<at::_ops::diagonal_copy, diagonal_copy>(m, "diagonal_copy");
  own<at::_ops::kron, kron>(m, "kron");
  own<at::_ops::fill_diagonal_, fill_diagonal>(m, "fill_diagonal_");
  own<at::_ops::take_along_dim, take_along_dim>(m, "take_along_dim");
  own<at::_ops::gradient_scalarint, gradient>(m, "gradient.scalarint");
  own<at::_ops::cov, cov>(m, "cov");
  own<at::_ops::einsum, Presuming<at::_ops::einsum>::call>(m, "einsum");
  own<at::_ops::tensordot, Presuming<at::_ops::tensordot>::call>(m, "tensordot");
  own<at::_ops::cosine_similarity, Presuming<at::_ops::cosine_similarity>::call>(m, "cosine_similarity");
  own<at::_ops::pairwise_distance, Presuming<at::_ops::pairwise_distance>::call>(m, "pairwise_distance");
  own<at::_ops::_new_zeros_with_same_feature_meta, new_zeros_alike>(m, "_new_zeros_with_same_feature_meta");
}

void link_sized_composites() {}

}  // namespace flashover::trace
