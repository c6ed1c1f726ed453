// Composite operators caught above autograd: those that read data on their own in C++, and those that are better
// recorded otherwise than ATen would take them apart.
#include <ATen/core/Tensor.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/_batch_norm_impl_index.h>
#include <ATen/ops/_pad_circular.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/_upsample_bicubic2d_aa.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/_upsample_nearest_exact1d.h>
#include <ATen/ops/_upsample_nearest_exact2d.h>
#include <ATen/ops/_upsample_nearest_exact3d.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/block_diag.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/broadcast_tensors.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/contiguous.h>
#include <ATen/ops/cumprod_backward.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/flatten.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/max_pool1d.h>
#include <ATen/ops/max_pool1d_with_indices.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reshape.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/tensor_split.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_linear1d.h>
#include <ATen/ops/upsample_nearest1d.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/upsample_nearest3d.h>
#include <ATen/ops/upsample_trilinear3d.h>
#include <ATen/ops/vdot.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/check.h"
#include "graph/analysis/attention_mask.h"
#include "sym/environment.h"
#include "sym/whole.h"
#include "torch/size_node.h"
#include "trace/contiguous_call.h"
#include "trace/own_form.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

// Without gradients ATen runs a kernel of its own over the data.
at::Tensor max_pool1d(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
                      at::IntArrayRef dilation, bool ceil_mode) {
  return std::get<0>(at::max_pool1d_with_indices(self, kernel, stride, padding, dilation, ceil_mode));
}

std::vector<at::Tensor> tensor_split(const at::Tensor& self, const at::Tensor& indices, int64_t dim) {
  const TraceImpl* impl = trace_impl(indices);
  if (!impl) impl = trace_impl(self);
  decline_trace(*impl, "data-dependent: aten.tensor_split with a tensor of indices");
}

// ATen looks at the classes before it writes them; the kernel's own bounds check says the same of bad ones.
at::Tensor one_hot(const at::Tensor& self, int64_t classes) {
  if (classes <= 0 || self.scalar_type() != at::kLong || self.sym_numel() == 0) {
    c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
    return at::one_hot(self, classes);
  }
  std::vector<c10::SymInt> sizes = self.sym_sizes().vec();
  sizes.emplace_back(classes);
  return at::zeros_symint(sizes, self.options()).scatter(-1, self.unsqueeze(-1), 1);
}

// The plain kernel where ATen takes cuDNN's: that one is nothing to fuse.
using BatchNorm = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, int64_t>;
BatchNorm batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                     const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& mean,
                     const std::optional<at::Tensor>& variance, bool training, double momentum, double eps,
                     bool cudnn) {
  bool plain = input.is_cuda() && input.dim() > 1 && input.sym_numel() > 0;
  for (const auto* t : {&weight, &bias, &mean, &variance})
    if (*t && (*t)->defined())
      plain = plain && (*t)->dim() == 1 && (*t)->sym_size(0) == input.sym_size(1);  // else ATen words the error
  if (!plain) {
    c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
    return at::_batch_norm_impl_index(input, weight, bias, mean, variance, training, momentum, eps, cudnn);
  }
  auto [out, save_mean, save_rstd] =
      at::native_batch_norm(input, weight, bias, mean, variance, training, momentum, eps);
  return {out, save_mean, save_rstd, at::empty({0}, input.options().dtype(at::kByte)), 0};
}

// A mask whose last dimension repeats one number (transformers expands such ones where it finds itself traced) keeps
// ATen from the fused kernels: it is written out, once for all that it is repeated over.
std::optional<at::Tensor> dense_rows(const at::Tensor& q, const std::optional<at::Tensor>& mask) {
  if (!q.is_cuda() || !mask || !mask->defined() || mask->dim() < 2 || mask->requires_grad() ||
      mask->sym_stride(-1) == 1)
    return mask;
  at::Tensor once = *mask;
  for (int64_t d = 0; d + 2 < once.dim(); ++d)
    if (once.sym_stride(d) == 0 && once.sym_size(d) > 1) once = once.narrow_symint(d, 0, 1);
  return once.clone(at::MemoryFormat::Contiguous).expand_symint(mask->sym_sizes());
}

// What a mask does that depends on nothing but the program.
graph::Mask known_mask(const at::Tensor& q, const at::Tensor& k, const at::Tensor& mask) {
  auto* recorder = static_cast<Recorder*>(current());
  if (!recorder || recorder->declined() || !q.is_cuda() || !mask.defined() || mask.requires_grad()) return {};
  const TraceImpl *tq = trace_impl(q), *tk = trace_impl(k), *tm = trace_impl(mask);
  if (!tq || !tk || !tm) return {};
  const graph::Graph& g = recorder->graph();
  // Sizes that do not go together are ATen's to complain about.
  const TensorType &from = g.type(tq->value), &to = g.type(tk->value), &type = g.type(tm->value);
  if (from.rank() != 4 || to.rank() != 4 || type.rank() < 2 || type.rank() > 4) return {};
  const Sizes wanted = {from.sizes[0], from.sizes[1], from.sizes[2], to.sizes[2]};
  for (size_t i = 0; i < type.rank(); ++i) {
    const sym::Expr have = type.sizes[type.rank() - 1 - i];
    if (!have.is_const(1) && !sym::known_eq(have, wanted[3 - i])) return {};
  }
  try {
    return graph::mask_of_traced(g, tm->value, from, to);
  } catch (const Declined&) {
    return {};
  }
}

at::Tensor attention(c10::DispatchKeySet keys, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::optional<at::Tensor>& mask, double dropout, bool causal, std::optional<double> scale,
                     bool gqa) {
  if (auto whole = record_attention(q, k, v, mask, dropout, causal, scale, gqa)) return *whole;
  // What ATen's formula for other shapes calls comes here again: its products ask for the numbers of sizes.
  const auto by_aten = [&, below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER,
                                                              c10::DispatchKey::TESTING_ONLY_GenericWrapper)](
                           const std::optional<at::Tensor>& m, bool is_causal) {
    return at::_ops::scaled_dot_product_attention::redispatch(below, q, k, v, m, dropout, is_causal, scale, gqa);
  };
  // ATen asks of a mask whether its sizes are 1. Its kernels compute the same, so the answer is that of larger sizes.
  std::optional<sym::PresumeScope> presume;
  if (is_symbolic(q)) presume.emplace();
  // With gradients ATen chooses the library here and now.
  const graph::Mask kind = mask && !causal ? known_mask(q, k, *mask) : graph::Mask::kOther;
  if (kind != graph::Mask::kOther) return by_aten({}, kind == graph::Mask::kCausal);
  return by_aten(dense_rows(q, mask), causal);
}

// ATen looks for zeros and then takes a formula over selected elements, or (of tensors without values) one step for
// each element of the dim, which spreads infinities elsewhere. This is the formula over masks, in one go. Up to the
// first zero of a line it is the usual one; the zero itself gets what follows it up to the next; the rest gets nothing.
at::Tensor cumprod_backward(const at::Tensor& grad, const at::Tensor& input, int64_t dim, const at::Tensor& output) {
  const bool one_step = input.dim() == 0 || input.sym_numel() <= 1 || input.sym_size(dim) == 1;
  if (c10::GradMode::is_enabled() || one_step) {
    c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
    return at::cumprod_backward(grad, input, dim, output);
  }
  const at::Tensor factor = input.conj();
  const at::Tensor is_zero = input.eq(0), zeros = is_zero.cumsum(dim);
  const at::Tensor before = zeros.eq(0), after_first = zeros.eq(1), first = is_zero.logical_and(after_first);
  const at::Tensor weighed = output.conj().mul(grad).masked_fill(before.logical_not(), 0);
  const at::Tensor usual = weighed.flip(dim).cumsum(dim).flip(dim).div(factor);
  const at::Tensor head = factor.masked_fill(before.logical_not(), 1).prod(dim, /*keepdim=*/true);
  const at::Tensor tail = factor.masked_fill(after_first.logical_not().logical_or(first), 1).cumprod(dim);
  const at::Tensor at_zero = tail.mul(grad.masked_fill(after_first.logical_not(), 0)).sum(dim, true).mul(head);
  return at::where(before, usual, at_zero.masked_fill(first.logical_not(), 0));
}

c10::SymInt count(c10::SymIntArrayRef sizes) {
  c10::SymInt out = 1;
  for (const c10::SymInt& s : sizes) out = out * s;
  return out;
}

// Of a tensor whose layout our own forms ask about. Null: ATen's do.
Recorder* recorder_of_layout(const at::Tensor& self) {
  auto* recorder = static_cast<Recorder*>(current());
  const bool taken = recorder && !recorder->declined() && is_symbolic(self) && !self.is_conj() && !self.is_neg();
  return taken ? recorder : nullptr;
}

// ATen looks at each size for 1, where strides are free. Whether a view is possible is asked for larger sizes, and for
// those of 1 behind the trace (Recorder::note_copy).
at::Tensor reshape(const at::Tensor& self, c10::SymIntArrayRef shape) {
  Recorder* const recorder = recorder_of_layout(self);
  const auto sizes = recorder ? recorder->reshaped(self, shape) : std::nullopt;
  if (!sizes) {
    c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
    return self.reshape_symint(shape);
  }
  std::vector<c10::SymInt> wanted;
  for (sym::Expr e : *sizes) wanted.push_back(recorder->symint(e));
  if (recorder->can_view(self, *sizes)) return self.view_symint(wanted);
  const at::Tensor copy = self.clone(at::MemoryFormat::Contiguous);
  const at::Tensor result = at::_unsafe_view_symint(copy, wanted);
  recorder->note_copy(self, copy, result, *sizes);
  return result;
}

// ATen's own reshapes without calling an operator.
at::Tensor flatten(const at::Tensor& self, int64_t start, int64_t end) {
  const int64_t rank = self.dim(), first = start < 0 ? start + rank : start, last = end < 0 ? end + rank : end;
  if (!is_symbolic(self) || first < 0 || first >= last || last >= rank) {
    c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
    return at::_ops::flatten_using_ints::call(self, start, end);
  }
  const c10::SymIntArrayRef sizes = self.sym_sizes();
  const auto at = [&](int64_t d) { return sizes.begin() + d; };
  std::vector<c10::SymInt> wanted(at(0), at(first));
  wanted.push_back(count({at(first), at(last + 1)}));
  wanted.insert(wanted.end(), at(last + 1), sizes.end());
  return trace::reshape(self, wanted);
}

// ATen asks whether the tensor is contiguous for sizes of 1, too (Recorder::note_contiguous).
at::Tensor contiguous(const at::Tensor& self, at::MemoryFormat format) {
  ContiguousCall::arrived();
  Recorder* const recorder = recorder_of_layout(self);
  if (!recorder || format != at::MemoryFormat::Contiguous) {
    c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
    return at::_ops::contiguous::call(self, format);
  }
  const Recorder::Contiguous what = recorder->contiguous(self);
  if (what == Recorder::Contiguous::kItself) return self;
  at::Tensor copy = self.clone(format);
  recorder->note_contiguous(self, copy, /*asked=*/what == Recorder::Contiguous::kCopy);
  return copy;
}

// While it lives, values are made that only the code here sees: nobody asks how they lie in memory.
class InnerValues {
 public:
  InnerValues() : recorder_(static_cast<Recorder*>(current())) {
    if (recorder_) first_ = recorder_->graph().values.size();
  }
  ~InnerValues() {
    if (recorder_) recorder_->note_inner(first_, recorder_->graph().values.size());
  }
  InnerValues(const InnerValues&) = delete;

 private:
  Recorder* recorder_;
  size_t first_ = 0;
};

// Over all but the last dimension at once, as a product of matrices: ATen's own code asks for the numbers of the sizes.
// product: (rows, depth) -> (rows, columns).
template <typename Product>
at::Tensor by_rows(const at::Tensor& x, const c10::SymInt& columns, Product product) {
  const c10::SymIntArrayRef sizes = x.sym_sizes();
  const at::Tensor flat = [&] {
    const InnerValues inner;
    return x.reshape_symint({count(sizes.slice(0, sizes.size() - 1)), sizes.back()});
  }();
  std::vector<c10::SymInt> wanted(sizes.begin(), sizes.end());
  wanted.back() = columns;
  return at::_unsafe_view_symint(product(flat), wanted);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const bool has_bias = bias && bias->defined();
  if (is_symbolic(x) && x.dim() > 2 && weight.dim() == 2 && (!has_bias || bias->dim() == 1))
    return by_rows(x, weight.sym_size(0), [&](const at::Tensor& flat) {
      return has_bias ? at::addmm(*bias, flat, weight.t()) : at::mm(flat, weight.t());
    });
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
  return at::linear(x, weight, bias);
}

// Of two sizes that broadcast. (What is no number is not 1 in this call.)
c10::SymInt broadcast(const c10::SymInt& a, const c10::SymInt& b) { return a.maybe_as_int() == 1 ? b : a; }

// ATen asks of each size whether it is 1.
std::vector<at::Tensor> broadcast_tensors(at::TensorList tensors) {
  int64_t rank = 0;
  for (const at::Tensor& t : tensors) rank = std::max(rank, t.dim());
  std::vector<c10::SymInt> sizes(static_cast<size_t>(rank), 1);
  const auto of = [&](const at::Tensor& t, int64_t d) -> c10::SymInt& {
    return sizes[static_cast<size_t>(rank - t.dim() + d)];
  };
  for (const at::Tensor& t : tensors)
    for (int64_t d = 0; d < t.dim(); ++d) of(t, d) = broadcast(of(t, d), t.sym_size(d));
  bool taken = std::any_of(tensors.begin(), tensors.end(), is_symbolic);
  for (const at::Tensor& t : tensors)
    for (int64_t d = 0; taken && d < t.dim(); ++d)
      taken = t.sym_size(d).maybe_as_int() == 1 || t.sym_size(d) == of(t, d);
  if (!taken) {
    c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
    return at::broadcast_tensors(tensors);
  }
  std::vector<at::Tensor> out;
  for (const at::Tensor& t : tensors) out.push_back(t.expand_symint(sizes));
  return out;
}

at::Tensor matmul(const at::Tensor& a, const at::Tensor& b) {
  if (a.dim() == 1 && b.dim() == 1) return at::dot(a, b);  // which knows what its result is
  const bool symbolic = is_symbolic(a) || is_symbolic(b);
  if (symbolic && a.dim() > 2 && b.dim() == 2)
    return by_rows(a, b.sym_size(1), [&](const at::Tensor& flat) { return at::mm(flat, b); });
  if (symbolic && a.dim() > 2 && b.dim() == 1)
    return by_rows(a, 1, [&](const at::Tensor& flat) { return at::mm(flat, b.unsqueeze(1)); }).squeeze(-1);
  if (symbolic && a.dim() == 1 && b.dim() > 2) return trace::matmul(b.mT(), a);
  // Like ATen: a gradient of the matrix is not to be added up over batches that were made for it.
  if (symbolic && a.dim() == 2 && b.dim() > 2 && a.requires_grad())
    return by_rows(b.mT(), a.sym_size(0), [&](const at::Tensor& flat) { return at::mm(flat, a.t()); })
        .mT()
        .contiguous();
  if (symbolic && std::min(a.dim(), b.dim()) >= 2 && std::max(a.dim(), b.dim()) > 2) {
    // Batches are those of both, broadcast; the product is of batches of matrices.
    const auto n = static_cast<size_t>(std::max(a.dim(), b.dim()) - 2);
    std::vector<c10::SymInt> batch;
    for (size_t i = 0; i < n; ++i) {
      const auto of = [&](const at::Tensor& t) {
        const auto d = static_cast<int64_t>(i) - (static_cast<int64_t>(n) + 2 - t.dim());
        return d < 0 ? c10::SymInt(1) : t.sym_size(d);
      };
      batch.push_back(broadcast(of(a), of(b)));
    }
    const auto matrices = [&](const at::Tensor& t) {
      const InnerValues inner;
      std::vector<c10::SymInt> sizes = batch;
      for (int64_t d : {-2, -1}) sizes.push_back(t.sym_size(d));
      return t.expand_symint(sizes).reshape_symint({count(batch), t.sym_size(-2), t.sym_size(-1)});
    };
    std::vector<c10::SymInt> wanted = batch;
    wanted.push_back(a.sym_size(-2));
    wanted.push_back(b.sym_size(-1));
    return at::_unsafe_view_symint(at::bmm(matrices(a), matrices(b)), wanted);
  }
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
  return at::matmul(a, b);
}

// ATen writes parts of its result from other parts of it, which it looks at the numbers of sizes for.
at::Tensor pad_circular(const at::Tensor& self, c10::SymIntArrayRef pad) {
  const auto padded = static_cast<int64_t>(pad.size() / 2);
  bool taken = is_symbolic(self) && pad.size() % 2 == 0 && padded < self.dim();
  for (int64_t i = 0; taken && i < padded; ++i) {
    const c10::SymInt size = self.sym_size(self.dim() - 1 - i);
    const c10::SymInt &left = pad[static_cast<size_t>(2 * i)], &right = pad[static_cast<size_t>(2 * i + 1)];
    taken = left >= 0 && right >= 0 && left <= size && right <= size;
  }
  if (!taken) {
    c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
    return at::_pad_circular_symint(self, pad);
  }
  at::Tensor out = self;
  for (int64_t i = 0; i < padded; ++i) {
    const int64_t dim = self.dim() - 1 - i;
    const c10::SymInt size = self.sym_size(dim);
    const c10::SymInt &left = pad[static_cast<size_t>(2 * i)], &right = pad[static_cast<size_t>(2 * i + 1)];
    std::vector<at::Tensor> parts;
    if (left != 0) parts.push_back(out.slice_symint(dim, size - left, size));
    parts.push_back(out);
    if (right != 0) parts.push_back(out.slice_symint(dim, 0, right));
    if (parts.size() > 1) out = at::cat(parts, dim);
  }
  return out.is_same(self) ? self.clone(at::MemoryFormat::Contiguous) : out.contiguous();
}

// factor * size as doubles, rounded down. nullopt: no expression says it.
std::optional<c10::SymInt> scaled(const c10::SymInt& size, double factor) {
  if (!size.is_symbolic()) return static_cast<int64_t>(std::floor(static_cast<double>(size.expect_int()) * factor));
  const auto e = aten::expr_of(size);
  if (!e || !(factor > 0)) return std::nullopt;
  const auto fit = sym::fit_around(current()->sizes().now(*e), [=](double n) { return std::floor(n * factor); });
  if (!fit || size > fit->most) return std::nullopt;
  return (size * fit->line.slope + fit->line.start) / fit->line.by;
}

// The size that an image is asked to have, by the factors if by those. nullopt: ATen's own way, which asks for the
// numbers of sizes.
std::optional<std::vector<c10::SymInt>> resized(const at::Tensor& x, at::OptionalSymIntArrayRef size,
                                                std::optional<c10::ArrayRef<double>> factors) {
  const auto n = static_cast<size_t>(x.dim()) - 2;
  const auto symbolic = [](const c10::SymInt& s) { return s.is_symbolic(); };
  const bool any = is_symbolic(x) || (size && std::any_of(size->begin(), size->end(), symbolic));
  if (!any || !current() || size.has_value() == factors.has_value()) return std::nullopt;
  if (size) return size->size() == n ? std::optional(size->vec()) : std::nullopt;
  if (factors->size() != n) return std::nullopt;
  std::vector<c10::SymInt> out;
  for (size_t i = 0; i < n; ++i) {
    const auto one = scaled(x.sym_size(static_cast<int64_t>(i) + 2), (*factors)[i]);
    if (!one) return std::nullopt;
    out.push_back(*one);
  }
  return out;
}

// Composites of torch that take a size or factors, over the operators that take a size.
template <auto to_size, auto composite, size_t n, typename... Flags>
at::Tensor resample(const at::Tensor& x, at::OptionalSymIntArrayRef size, Flags... flags,
                    std::optional<c10::ArrayRef<double>> factors) {
  const auto wanted = x.dim() == static_cast<int64_t>(n) + 2 ? resized(x, size, factors) : std::nullopt;
  if (!wanted) {
    c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
    return composite(x, size, flags..., factors);
  }
  const auto factor = [&](size_t i) { return factors ? std::optional((*factors)[i]) : std::nullopt; };
  if constexpr (n == 1) {
    return to_size(x, *wanted, flags..., factor(0));
  } else if constexpr (n == 2) {
    return to_size(x, *wanted, flags..., factor(0), factor(1));
  } else {
    return to_size(x, *wanted, flags..., factor(0), factor(1), factor(2));
  }
}

bool follows_data(const at::Tensor& t) {
  return is_symbolic(t) && std::ranges::any_of(trace_impl(t)->symbolic_type().sizes, sym::has_data_size);
}

// ATen asks for the numbers of sizes to lay the blocks out.
at::Tensor block_diag(at::TensorList tensors) {
  bool symbolic = false, alike = current() != nullptr;
  for (const at::Tensor& t : tensors) {
    symbolic = symbolic || is_symbolic(t);
    // (Where blocks lie that follow from data no view says.)
    alike = alike && t.dim() <= 2 && t.device() == tensors[0].device() && !follows_data(t);
  }
  if (!symbolic || !alike) {
    c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
    return at::block_diag(tensors);
  }
  std::vector<at::Tensor> blocks;
  c10::SymInt rows = 0, columns = 0;
  for (const at::Tensor& t : tensors) {
    blocks.push_back(t.dim() == 2 ? t : t.dim() == 1 ? t.unsqueeze(0) : t.unsqueeze(0).unsqueeze(0));
    rows += blocks.back().sym_size(0);
    columns += blocks.back().sym_size(1);
  }
  const at::Tensor out =
      at::zeros_symint({rows, columns}, tensors[0].options().dtype(at::native::result_type(tensors)));
  rows = columns = 0;
  for (const at::Tensor& t : blocks) {
    out.narrow_symint(0, rows, t.sym_size(0)).narrow_symint(1, columns, t.sym_size(1)).copy_(t);
    rows += t.sym_size(0);
    columns += t.sym_size(1);
  }
  return out;
}

// The backward of a number's power compares the number, which ATen cannot do with a symbol; that of a tensor's does not.
bool is_compared_in_backward(const at::Tensor& self, const at::Scalar& number) {
  return number.isSymbolic() && current() && self.requires_grad() && c10::GradMode::is_enabled();
}
at::Tensor number_beside(const at::Tensor& self, const at::Scalar& number) {
  // (Among tensors of no dimensions the wider dtype wins.)
  const at::ScalarType real = self.dim() == 0 ? c10::toRealValueType(self.scalar_type()) : at::kDouble;
  return at::full({}, number, self.options().dtype(number.isIntegral(false) ? at::kLong : real));
}
at::Tensor power_by_number(const at::Tensor& self, const at::Scalar& exponent) {
  if (is_compared_in_backward(self, exponent)) return self.pow(number_beside(self, exponent));
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
  return self.pow(exponent);
}
at::Tensor power_of_number(const at::Scalar& self, const at::Tensor& exponent) {
  if (is_compared_in_backward(exponent, self)) return number_beside(exponent, self).pow(exponent);
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
  return at::pow(self, exponent);
}
at::Tensor& power_by_number_in_place(at::Tensor& self, const at::Scalar& exponent) {
  if (is_compared_in_backward(self, exponent)) return self.pow_(number_beside(self, exponent));
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
  return self.pow_(exponent);
}

// As ATen's own say where an operand is conjugated lazily: products of two such ones are so, too.
at::Tensor dot(const at::Tensor& self, const at::Tensor& tensor) {
  if (self.is_conj() && tensor.is_conj()) return at::dot(self.conj(), tensor.conj()).conj();
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
  return at::dot(self, tensor);
}
at::Tensor vdot(const at::Tensor& self, const at::Tensor& other) {
  if (other.is_conj() && !self.is_conj()) return at::dot(self, other.conj()).conj();
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
  return at::vdot(self, other);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericWrapper, m) {
  own<at::_ops::max_pool1d, max_pool1d>(m, "max_pool1d");
  own<at::_ops::one_hot, one_hot>(m, "one_hot");
  own<at::_ops::block_diag, block_diag>(m, "block_diag");
  own<at::_ops::cumprod_backward, cumprod_backward>(m, "cumprod_backward");
  own<at::_ops::_batch_norm_impl_index, batch_norm>(m, "_batch_norm_impl_index");
  own<at::_ops::scaled_dot_product_attention, attention>(m, "scaled_dot_product_attention");
  own<at::_ops::_pad_circular, pad_circular>(m, "_pad_circular");
  own<at::_ops::pow_Tensor_Scalar, power_by_number>(m, "pow.Tensor_Scalar");
  own<at::_ops::pow_Scalar, power_of_number>(m, "pow.Scalar");
  own<at::_ops::pow__Scalar, power_by_number_in_place>(m, "pow_.Scalar");
  own<at::_ops::broadcast_tensors, broadcast_tensors>(m, "broadcast_tensors");
  own<at::_ops::dot, dot>(m, "dot");
  own<at::_ops::vdot, vdot>(m, "vdot");
  own<at::_ops::linear, linear>(m, "linear");
  own<at::_ops::reshape, reshape>(m, "reshape");
  own<at::_ops::contiguous, contiguous>(m, "contiguous");
  own<at::_ops::flatten_using_ints, flatten>(m, "flatten.using_ints");
  own<at::_ops::matmul, matmul>(m, "matmul");
  own<at::_ops::_upsample_bicubic2d_aa_vec,
      resample<at::_ops::_upsample_bicubic2d_aa::call, at::_ops::_upsample_bicubic2d_aa_vec::call, 2, bool>>(
      m, "_upsample_bicubic2d_aa.vec");
  own<at::_ops::_upsample_bilinear2d_aa_vec,
      resample<at::_ops::_upsample_bilinear2d_aa::call, at::_ops::_upsample_bilinear2d_aa_vec::call, 2, bool>>(
      m, "_upsample_bilinear2d_aa.vec");
  own<at::_ops::_upsample_nearest_exact1d_vec,
      resample<at::_ops::_upsample_nearest_exact1d::call, at::_ops::_upsample_nearest_exact1d_vec::call, 1>>(
      m, "_upsample_nearest_exact1d.vec");
  own<at::_ops::_upsample_nearest_exact2d_vec,
      resample<at::_ops::_upsample_nearest_exact2d::call, at::_ops::_upsample_nearest_exact2d_vec::call, 2>>(
      m, "_upsample_nearest_exact2d.vec");
  own<at::_ops::_upsample_nearest_exact3d_vec,
      resample<at::_ops::_upsample_nearest_exact3d::call, at::_ops::_upsample_nearest_exact3d_vec::call, 3>>(
      m, "_upsample_nearest_exact3d.vec");
  own<at::_ops::upsample_bicubic2d_vec,
      resample<at::_ops::upsample_bicubic2d::call, at::_ops::upsample_bicubic2d_vec::call, 2, bool>>(
      m, "upsample_bicubic2d.vec");
  own<at::_ops::upsample_bilinear2d_vec,
      resample<at::_ops::upsample_bilinear2d::call, at::_ops::upsample_bilinear2d_vec::call, 2, bool>>(
      m, "upsample_bilinear2d.vec");
  own<at::_ops::upsample_linear1d_vec,
      resample<at::_ops::upsample_linear1d::call, at::_ops::upsample_linear1d_vec::call, 1, bool>>(
      m, "upsample_linear1d.vec");
  own<at::_ops::upsample_nearest1d_vec,
      resample<at::_ops::upsample_nearest1d::call, at::_ops::upsample_nearest1d_vec::call, 1>>(
      m, "upsample_nearest1d.vec");
  own<at::_ops::upsample_nearest2d_vec,
      resample<at::_ops::upsample_nearest2d::call, at::_ops::upsample_nearest2d_vec::call, 2>>(
      m, "upsample_nearest2d.vec");
  own<at::_ops::upsample_nearest3d_vec,
      resample<at::_ops::upsample_nearest3d::call, at::_ops::upsample_nearest3d_vec::call, 3>>(
      m, "upsample_nearest3d.vec");
  own<at::_ops::upsample_trilinear3d_vec,
      resample<at::_ops::upsample_trilinear3d::call, at::_ops::upsample_trilinear3d_vec::call, 3, bool>>(
      m, "upsample_trilinear3d.vec");
  own<at::_ops::tensor_split_tensor_indices_or_sections, tensor_split>(m, "tensor_split.tensor_indices_or_sections");
}

void link_intercepts() {  // keeps registrations in a static library
  link_sized_composites();
  link_recurrent();
}

}  // namespace flashover::trace
