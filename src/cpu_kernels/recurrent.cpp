// Steps are products of ATen's and one pass over the gates of each sequence.
#include "cpu_kernels/recurrent.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>
#include <vector>

#include "cpu_kernels/panels.h"
#include "cpu_kernels/team.h"
#include "cpu_kernels/vectors.h"

namespace flashover::cpu {
namespace {

using Maybe = std::optional<at::Tensor>;

using ops::gates_of;
using ops::kept_of;

// Which rows are whose.
class Steps {
 public:
  Steps(const at::Tensor& gates, const at::Tensor& h0, const Maybe& batch_sizes, bool reverse) : reverse_(reverse) {
    if (batch_sizes) {
      TORCH_CHECK(gates.dim() == 2 && batch_sizes->dim() == 1 && batch_sizes->scalar_type() == at::kLong,
                  "rnn_steps: wrong packed sequences");
      const at::Tensor sizes = batch_sizes->contiguous();
      rows_.assign(sizes.const_data_ptr<int64_t>(), sizes.const_data_ptr<int64_t>() + sizes.numel());
    } else {
      TORCH_CHECK(gates.dim() == 3 && gates.size(1) == h0.size(0), "rnn_steps: wrong gates");
      rows_.assign(static_cast<size_t>(gates.size(0)), gates.size(1));
    }
    int64_t all = 0, before = h0.size(0);
    TORCH_CHECK(rows_.empty() || rows_[0] == before, "rnn_steps: another number of states than of sequences");
    for (const int64_t n : rows_) {
      TORCH_CHECK(n >= 0 && n <= before, "rnn_steps: sequences that are not in the order of their lengths");
      first_.push_back(all);
      all += n;
      before = n;
    }
    TORCH_CHECK(!batch_sizes || all == gates.size(0), "rnn_steps: another number of rows than the steps have");
  }
  int64_t count() const { return static_cast<int64_t>(rows_.size()); }
  int64_t at(int64_t i) const { return reverse_ ? count() - 1 - i : i; }  // the i-th that is taken
  int64_t rows(int64_t step) const { return rows_[static_cast<size_t>(step)]; }
  int64_t first(int64_t step) const { return first_[static_cast<size_t>(step)]; }
  int64_t all() const { return rows_.empty() ? 0 : first_.back() + rows_.back(); }

 private:
  bool reverse_;
  std::vector<int64_t> rows_, first_;
};

// ------------------------------------------------------------------------------------------- numbers of any float type

template <typename T>
struct PlainStep {
  const T *input, *hidden, *h, *c;
  T *new_h, *new_c, *kept;
  int64_t size;
};
template <typename T>
struct PlainGradient {
  const T *y, *kept, *h, *c;
  T *dh, *dc, *d_input, *d_hidden;
  int64_t size;
};

template <typename T>
T sigmoid(T x) {
  return 1 / (1 + std::exp(-x));
}

template <typename T>
void recur_plainly(RecurrentMode mode, const PlainStep<T>& s) {
  const int64_t n = s.size;
  for (int64_t j = 0; j < n; ++j) {
    const auto sum = [&](int64_t gate) { return s.input[gate * n + j] + s.hidden[gate * n + j]; };
    const auto keep = [&](std::initializer_list<T> parts) {
      int64_t at = j;
      for (auto p = parts.begin(); s.kept && p != parts.end(); ++p, at += n) s.kept[at] = *p;
    };
    if (mode == RecurrentMode::kGru) {
      const T reset = sigmoid(sum(0)), update = sigmoid(sum(1)), of_hidden = s.hidden[2 * n + j];
      const T fresh = std::tanh(s.input[2 * n + j] + of_hidden * reset);
      s.new_h[j] = (s.h[j] - fresh) * update + fresh;
      keep({reset, update, fresh, of_hidden});
    } else if (mode == RecurrentMode::kLstm) {
      const T in = sigmoid(sum(0)), forget = sigmoid(sum(1)), cell = std::tanh(sum(2)), out = sigmoid(sum(3));
      const T c = forget * s.c[j] + in * cell;
      s.new_c[j] = c;
      s.new_h[j] = out * std::tanh(c);
      keep({in, forget, cell, out, c});
    } else {
      const T x = sum(0);
      s.new_h[j] = mode == RecurrentMode::kTanh ? std::tanh(x) : x > 0 || std::isnan(x) ? x : 0;
    }
  }
}

template <typename T>
void recur_backward_plainly(RecurrentMode mode, const PlainGradient<T>& s) {
  const int64_t n = s.size;
  for (int64_t j = 0; j < n; ++j) {
    const auto kept = [&](int64_t part) { return s.kept[part * n + j]; };
    const T dh = s.dh[j];
    if (mode == RecurrentMode::kGru) {
      const T reset = kept(0), update = kept(1), fresh = kept(2);
      const T d_fresh = dh * (1 - update) * (1 - fresh * fresh);
      s.d_input[j] = s.d_hidden[j] = d_fresh * kept(3) * reset * (1 - reset);
      s.d_input[n + j] = s.d_hidden[n + j] = dh * (s.h[j] - fresh) * update * (1 - update);
      s.d_input[2 * n + j] = d_fresh;
      s.d_hidden[2 * n + j] = d_fresh * reset;
      s.dh[j] = dh * update;
    } else if (mode == RecurrentMode::kLstm) {
      const T in = kept(0), forget = kept(1), cell = kept(2), out = kept(3), large = std::tanh(kept(4));
      const T dc = s.dc[j] + dh * out * (1 - large * large);
      s.d_input[j] = dc * cell * in * (1 - in);
      s.d_input[n + j] = dc * s.c[j] * forget * (1 - forget);
      s.d_input[2 * n + j] = dc * in * (1 - cell * cell);
      s.d_input[3 * n + j] = dh * large * out * (1 - out);
      s.dc[j] = dc * forget;
      s.dh[j] = 0;
    } else {
      const T y = s.y[j];
      s.d_input[j] = mode == RecurrentMode::kTanh ? dh * (1 - y * y) : y <= 0 ? 0 : dh;
      s.dh[j] = 0;
    }
  }
}

void step(RecurrentMode mode, const PlainStep<double>& s) { recur_plainly(mode, s); }
void step(RecurrentMode mode, const PlainStep<float>& s) {
  const VectorKernels* kernels = vector_kernels();
  if (!kernels) return recur_plainly(mode, s);
  kernels->recur[static_cast<size_t>(mode)]({s.input, s.hidden, s.h, s.c, s.new_h, s.new_c, s.kept, s.size});
}
void step_back(RecurrentMode mode, const PlainGradient<double>& s) { recur_backward_plainly(mode, s); }
void step_back(RecurrentMode mode, const PlainGradient<float>& s) {
  const VectorKernels* kernels = vector_kernels();
  if (!kernels) return recur_backward_plainly(mode, s);
  kernels->recur_backward[static_cast<size_t>(mode)](
      {s.y, s.kept, s.h, s.c, s.dh, s.dc, s.d_input, s.d_hidden, s.size});
}

// ------------------------------------------------------------------------------------------------------- layers

constexpr int64_t kPicoseconds = 2500;  // about, for a number of a state

template <typename T>
const T* read(const at::Tensor& t) {
  return t.const_data_ptr<T>();
}
template <typename T>
T* write(at::Tensor& t) {
  return t.mutable_data_ptr<T>();
}
at::Tensor rows_of(const at::Tensor& t, int64_t first, int64_t rows) { return t.narrow(0, first, rows); }

at::Tensor make(at::IntArrayRef sizes, const at::Tensor& like) { return at::empty(sizes, like.options()); }

void check_layer(const at::Tensor& gates, const at::Tensor& h0, const Maybe& c0, const at::Tensor& w_hh,
                 RecurrentMode mode) {
  const int64_t size = h0.size(-1);
  const auto same = [&](const at::Tensor& t) { return t.is_cpu() && t.scalar_type() == gates.scalar_type(); };
  TORCH_CHECK((gates.scalar_type() == at::kFloat || gates.scalar_type() == at::kDouble) && same(h0) && same(w_hh) &&
                  h0.dim() == 2 && w_hh.dim() == 2 && w_hh.size(0) == gates_of(mode) * size && w_hh.size(1) == size &&
                  gates.size(-1) == w_hh.size(0) && (mode != RecurrentMode::kLstm || (c0 && same(*c0))) &&
                  (!c0 || c0->sizes() == h0.sizes()),
              "rnn_steps: wrong arguments");
}

// x b + added for the rows of each step, b the same for all of them: packed where that pays.
class StepProduct {
 public:
  // b: [inner, columns]
  StepProduct(at::Tensor b, int64_t steps) : b_(std::move(b)) {
    constexpr int64_t kFewSteps = 4;
    if (b_.scalar_type() != at::kFloat || steps < kFewSteps || !vector_kernels()) return;
    packed_.resize(static_cast<size_t>(panel_elements(b_.size(1), b_.size(0))));
    pack_panels(b_.const_data_ptr<float>(), b_.stride(1), b_.stride(0), b_.size(1), b_.size(0), packed_.data());
  }
  // added: of one row for all, or of as many as x has. It may be out.
  void operator()(const at::Tensor& x, const at::Tensor& added, at::Tensor& out) const {
    if (packed_.empty()) {
      at::cpu::addmm_out(out, added, x, b_);
      return;
    }
    const bool spread = added.dim() == 1;
    const auto* more = added.const_data_ptr<float>();
    linear(PanelLinear{.x = x.const_data_ptr<float>(),
                       .row_stride = x.stride(0),
                       .packed = packed_.data(),
                       .bias = spread ? more : nullptr,
                       .added = spread ? nullptr : more,
                       .added_stride = added.stride(0),
                       .out = out.mutable_data_ptr<float>(),
                       .rows = x.size(0),
                       .inner = b_.size(0),
                       .columns = b_.size(1)});
  }

 private:
  at::Tensor b_;
  std::vector<float> packed_;
};

using Layer = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

template <typename T>
Layer run_layer(const at::Tensor& gates, const at::Tensor& h0, const Maybe& c0, const at::Tensor& w_hh,
                const at::Tensor& b_hh, const Steps& steps, RecurrentMode mode, bool keeps) {
  const int64_t size = h0.size(1), width = w_hh.size(0), kept_size = kept_of(mode) * size;
  const bool has_c = mode == RecurrentMode::kLstm;
  at::Tensor y = make({steps.all(), size}, h0), hidden = make({h0.size(0), width}, h0);
  at::Tensor h = h0.clone(at::MemoryFormat::Contiguous),
             c = has_c ? c0->clone(at::MemoryFormat::Contiguous) : make({0}, h0),
             kept = make({keeps ? steps.all() : 0, kept_size}, h0);
  const StepProduct of_state(w_hh.t(), steps.count());
  for (int64_t i = 0; i < steps.count(); ++i) {
    const int64_t t = steps.at(i), rows = steps.rows(t), first = steps.first(t);
    if (rows == 0) continue;
    at::Tensor of_hidden = rows_of(hidden, 0, rows);
    of_state(rows_of(h, 0, rows), b_hh, of_hidden);
    const auto part = [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t row = first + r;
        T* const out = write<T>(y) + row * size;
        step(mode, PlainStep<T>{.input = read<T>(gates) + row * width,
                                .hidden = read<T>(hidden) + r * width,
                                .h = read<T>(h) + r * size,
                                .c = has_c ? read<T>(c) + r * size : nullptr,
                                .new_h = out,
                                .new_c = has_c ? write<T>(c) + r * size : nullptr,
                                .kept = keeps && kept_size > 0 ? write<T>(kept) + row * kept_size : nullptr,
                                .size = size});
        std::memcpy(write<T>(h) + r * size, out, static_cast<size_t>(size) * sizeof(T));
      }
    };
    share_parts(rows, rows * size * kPicoseconds, part);
  }
  if (gates.dim() == 3) {
    y = y.view({gates.size(0), gates.size(1), size});
    if (keeps) kept = kept.view({gates.size(0), gates.size(1), kept_size});
  }
  if (!keeps || kept_size == 0) kept = make({0}, h0);
  return {y, h, c, kept};
}

Layer rnn_steps(const at::Tensor& gates, const at::Tensor& h0, const Maybe& c0, const at::Tensor& w_hh,
                const Maybe& b_hh, const Maybe& batch_sizes, int64_t mode, bool reverse, bool keeps) {
  const auto of = static_cast<RecurrentMode>(mode);
  check_layer(gates, h0, c0, w_hh, of);
  const Steps steps(gates, h0, batch_sizes, reverse);
  const at::Tensor bias = b_hh ? b_hh->contiguous() : at::zeros({w_hh.size(0)}, w_hh.options());
  return (gates.scalar_type() == at::kFloat ? run_layer<float> : run_layer<double>)(gates.contiguous(), h0, c0, w_hh,
                                                                                    bias, steps, of, keeps);
}

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

template <typename T>
Gradients run_backward(const Maybe& grad_y, const at::Tensor& grad_h, const Maybe& grad_c, const at::Tensor& y,
                       const at::Tensor& h0, const Maybe& c0, const at::Tensor& w_hh, const at::Tensor& kept,
                       const Steps& steps, RecurrentMode mode) {
  const int64_t size = h0.size(1), width = w_hh.size(0), kept_size = kept_of(mode) * size;
  const bool has_c = mode == RecurrentMode::kLstm, differs = mode == RecurrentMode::kGru;
  at::Tensor d_input = make({steps.all(), width}, h0), d_hidden = make({differs ? steps.all() : 0, width}, h0),
             before = make({steps.all(), size}, h0), dh = grad_h.clone(at::MemoryFormat::Contiguous),
             dc = !has_c   ? make({0}, h0)
                  : grad_c ? grad_c->clone(at::MemoryFormat::Contiguous)
                           : at::zeros(h0.sizes(), h0.options());
  const StepProduct of_gates(w_hh, steps.count());
  // The state that each step began with: of the step that was taken before it, or of the first one.
  for (int64_t i = 0; i < steps.count(); ++i) {
    const int64_t t = steps.at(i), rows = steps.rows(t), earlier = i > 0 ? steps.at(i - 1) : t;
    const int64_t known = i > 0 ? std::min(rows, steps.rows(earlier)) : 0;
    const auto copy = [&](int64_t from_row, int64_t count, const T* from) {
      if (count > 0)
        std::memcpy(write<T>(before) + (steps.first(t) + from_row) * size, from,
                    static_cast<size_t>(count * size) * sizeof(T));
    };
    copy(0, known, known > 0 ? read<T>(y) + steps.first(earlier) * size : nullptr);
    copy(known, rows - known, read<T>(h0) + known * size);
  }
  for (int64_t i = steps.count(); i-- > 0;) {
    const int64_t t = steps.at(i), rows = steps.rows(t), first = steps.first(t);
    if (rows == 0) continue;
    const int64_t earlier = i > 0 ? steps.at(i - 1) : t, known = i > 0 ? steps.rows(earlier) : 0;
    const auto part = [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t row = first + r;
        T* const gradient = write<T>(dh) + r * size;
        if (grad_y)
          for (int64_t j = 0; j < size; ++j) gradient[j] += read<T>(*grad_y)[row * size + j];
        const T* const c_before = !has_c      ? nullptr
                                  : r < known ? read<T>(kept) + (steps.first(earlier) + r) * kept_size + 4 * size
                                              : read<T>(*c0) + r * size;
        step_back(mode, PlainGradient<T>{.y = read<T>(y) + row * size,
                                         .kept = kept_size > 0 ? read<T>(kept) + row * kept_size : nullptr,
                                         .h = read<T>(before) + row * size,
                                         .c = c_before,
                                         .dh = gradient,
                                         .dc = has_c ? write<T>(dc) + r * size : nullptr,
                                         .d_input = write<T>(d_input) + row * width,
                                         .d_hidden = differs ? write<T>(d_hidden) + row * width : nullptr,
                                         .size = size});
      }
    };
    share_parts(rows, rows * size * kPicoseconds, part);
    at::Tensor to = rows_of(dh, 0, rows);
    of_gates(rows_of(differs ? d_hidden : d_input, first, rows), to, to);
  }
  return {d_input, d_hidden, before, dh, dc};
}

Gradients rnn_steps_backward(const Maybe& grad_y, const Maybe& grad_h, const Maybe& grad_c, const at::Tensor& y,
                             const at::Tensor& h0, const Maybe& c0, const at::Tensor& w_hh, const Maybe& batch_sizes,
                             const at::Tensor& kept, int64_t mode, bool reverse) {
  const Steps steps(y, h0, batch_sizes, reverse);
  const auto dense = [](const Maybe& t) { return t ? Maybe(t->contiguous()) : Maybe(); };
  const at::Tensor last = grad_h ? *grad_h : at::zeros(h0.sizes(), h0.options());
  return (y.scalar_type() == at::kFloat ? run_backward<float>
                                        : run_backward<double>)(dense(grad_y), last, grad_c, y.contiguous(),
                                                                h0.contiguous(), dense(c0), w_hh, kept.contiguous(),
                                                                steps, static_cast<RecurrentMode>(mode));
}

}  // namespace

void define_recurrent(torch::Library& library) {
  library.def(
      "rnn_steps(Tensor gates, Tensor h0, Tensor? c0, Tensor w_hh, Tensor? b_hh, Tensor? batch_sizes, int mode, bool "
      "reverse, bool keeps) -> (Tensor, Tensor, Tensor, Tensor)");
  library.impl("rnn_steps", torch::dispatch(c10::DispatchKey::CPU, rnn_steps));
  library.def(
      "rnn_steps_backward(Tensor? grad_y, Tensor? grad_h, Tensor? grad_c, Tensor y, Tensor h0, Tensor? c0, Tensor "
      "w_hh, "
      "Tensor? batch_sizes, Tensor kept, int mode, bool reverse) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  library.impl("rnn_steps_backward", torch::dispatch(c10::DispatchKey::CPU, rnn_steps_backward));
}

}  // namespace flashover::cpu
