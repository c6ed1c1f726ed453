// nn.RNN, nn.LSTM and nn.GRU on the CPU: each layer in each direction is one operator for all steps, of packed sequences
// too, where ATen would write the steps out. Its derivative is written here with one more.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gru.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rnn_relu.h>
#include <ATen/ops/rnn_tanh.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/recurrent_mode.h"
#include "trace/assume.h"
#include "trace/own_form.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

using Maybe = std::optional<at::Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Mode = ops::RecurrentMode;
using enum ops::RecurrentMode;

// What a call of an operator of ATen's says of its layers. `packed`: how many sequences each step has.
struct Layers {
  Mode mode;
  at::Tensor steps;  // time first
  Maybe packed;
  at::TensorList states;  // h, and c of an LSTM
  at::TensorList params;
  bool has_biases;
  int64_t count;
  double dropout;
  bool train, bidirectional;

  int64_t directions() const { return bidirectional ? 2 : 1; }
  int64_t each() const { return has_biases ? 4 : 2; }
};

using Steps = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
Steps call_steps(const at::Tensor& gates, const at::Tensor& h0, const Maybe& c0, const at::Tensor& w_hh,
                 const Maybe& b_hh, const Maybe& packed, Mode mode, bool reverse, bool keeps) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("flashover::rnn_steps", "")
                             .typed<Steps(const at::Tensor&, const at::Tensor&, const Maybe&, const at::Tensor&,
                                          const Maybe&, const Maybe&, int64_t, bool, bool)>();
  return op.call(gates, h0, c0, w_hh, b_hh, packed, static_cast<int64_t>(mode), reverse, keeps);
}

using StepsBackward = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
StepsBackward call_backward(const Maybe& grad_y, const Maybe& grad_h, const Maybe& grad_c, const at::Tensor& y,
                            const at::Tensor& h0, const Maybe& c0, const at::Tensor& w_hh, const Maybe& packed,
                            const at::Tensor& kept, Mode mode, bool reverse) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("flashover::rnn_steps_backward", "")
          .typed<StepsBackward(const Maybe&, const Maybe&, const Maybe&, const at::Tensor&, const at::Tensor&,
                               const Maybe&, const at::Tensor&, const Maybe&, const at::Tensor&, int64_t, bool)>();
  return op.call(grad_y, grad_h, grad_c, y, h0, c0, w_hh, packed, kept, static_cast<int64_t>(mode), reverse);
}

Maybe maybe(const at::Tensor& t) { return t.defined() ? Maybe(t) : Maybe(); }

class StepsFunction : public torch::autograd::Function<StepsFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& gates, const at::Tensor& h0, const Maybe& c0,
                               const at::Tensor& w_hh, const Maybe& b_hh, const Maybe& packed, Mode mode,
                               bool reverse) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [y, h, c, kept] = call_steps(gates, h0, c0, w_hh, b_hh, packed, mode, reverse, /*keeps=*/true);
    context->save_for_backward({y, h0, c0.value_or(at::Tensor()), w_hh, packed.value_or(at::Tensor()), kept});
    context->saved_data["mode"] = static_cast<int64_t>(mode);
    context->saved_data["reverse"] = reverse;
    context->saved_data["biased"] = b_hh.has_value();
    context->set_materialize_grads(false);
    if (mode == kLstm) return {y, h, c};
    return {y, h};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    if (const TraceImpl* impl = trace_impl(saved[0]); impl && c10::GradMode::is_enabled())
      decline_trace(*impl, std::string("training: ") + kDifferentiatedTwice);
    const at::Tensor &y = saved[0], &w_hh = saved[3];
    const auto mode = static_cast<Mode>(context->saved_data["mode"].toInt());
    const Maybe grad_c = mode == kLstm ? maybe(grads[2]) : Maybe();
    variable_list out(8);
    if (!grads[0].defined() && !grads[1].defined() && !grad_c) return out;
    auto [d_gates, d_hidden, before, dh, dc] =
        call_backward(maybe(grads[0]), maybe(grads[1]), grad_c, y, saved[1], maybe(saved[2]), w_hh, maybe(saved[4]),
                      saved[5], mode, context->saved_data["reverse"].toBool());
    const at::Tensor& of_hidden = mode == kGru ? d_hidden : d_gates;
    std::vector<c10::SymInt> sizes(y.sym_sizes().begin(), y.sym_sizes().end());
    sizes.back() = w_hh.sym_size(0);
    out[0] = d_gates.view_symint(sizes);
    out[1] = dh;
    if (mode == kLstm) out[2] = dc;
    out[3] = at::mm(of_hidden.t(), before);
    if (context->saved_data["biased"].toBool()) out[4] = of_hidden.sum(0);
    return out;
  }
};

bool requires_grad(const Maybe& t) { return t && t->requires_grad(); }

// Who takes no operators of ours gets the steps one by one: of a known number, since ATen's own form wants the number of
// sequences. (Of an LSTM there is an operator of ATen's for all steps.)
bool is_written_out(const Layers& l) {
  return l.mode != kLstm && !l.packed && !c10::GradMode::is_enabled() && is_symbolic(l.steps) &&
         l.steps.sym_size(0).maybe_as_int().has_value();
}
// The cells' formulas as ATen's (RNN.cpp), with the products with the input done for all steps.
std::tuple<at::Tensor, at::Tensor, at::Tensor> write_out(Mode mode, const at::Tensor& gates, at::Tensor h,
                                                         const at::Tensor& w_hh, const Maybe& b_hh, bool reverse) {
  const int64_t count = gates.sym_size(0).expect_int(), size = w_hh.size(1);
  std::vector<at::Tensor> out(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t t = reverse ? count - 1 - i : i;
    const at::Tensor of_input = gates.select(0, t), of_state = at::linear(h, w_hh, b_hh);
    const auto part = [&](const at::Tensor& all, int64_t n) { return all.narrow(-1, n * size, size); };
    if (mode == kGru) {
      const at::Tensor reset = (part(of_input, 0) + part(of_state, 0)).sigmoid(),
                       keep = (part(of_input, 1) + part(of_state, 1)).sigmoid(),
                       made = (part(of_input, 2) + reset * part(of_state, 2)).tanh();
      h = (h - made) * keep + made;
    } else {
      h = mode == kTanh ? (of_input + of_state).tanh() : (of_input + of_state).relu();
    }
    out[static_cast<size_t>(t)] = h;
  }
  return {at::stack(out, 0), h, {}};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> direction(const Layers& l, const at::Tensor& steps, int64_t index) {
  const auto weights = l.params.slice(static_cast<size_t>(index * l.each()), static_cast<size_t>(l.each()));
  const at::Tensor gates = at::linear(steps, weights[0], l.has_biases ? Maybe(weights[2]) : Maybe());
  const at::Tensor h0 = l.states[0].select(0, index);
  const Maybe c0 = l.mode == kLstm ? Maybe(l.states[1].select(0, index)) : Maybe(),
              bias = l.has_biases ? Maybe(weights[3]) : Maybe();
  const bool reverse = index % l.directions() > 0;
  if (!static_cast<const Recorder*>(current())->own_operators)
    return write_out(l.mode, gates, h0, weights[1], bias, reverse);
  const bool trains = c10::GradMode::is_enabled() && (requires_grad(gates) || requires_grad(h0) || requires_grad(c0) ||
                                                      requires_grad(weights[1]) || requires_grad(bias));
  if (!trains) {
    auto [y, h, c, kept] = call_steps(gates, h0, c0, weights[1], bias, l.packed, l.mode, reverse, /*keeps=*/false);
    return {y, h, c};
  }
  const variable_list made = StepsFunction::apply(gates, h0, c0, weights[1], bias, l.packed, l.mode, reverse);
  return {made[0], made[1], l.mode == kLstm ? made[2] : at::Tensor()};
}

// Whether the arguments are what ATen takes, and the operator computes.
bool is_taken(const Layers& l) {
  const auto* recorder = static_cast<Recorder*>(current());
  if (!recorder || recorder->declined() || (!recorder->own_operators && !is_written_out(l))) return false;
  const at::Tensor& x = l.steps;
  const auto fits = [&](const at::Tensor& t) {
    return trace_impl(t) && t.is_cpu() && t.scalar_type() == x.scalar_type() && !t._fw_grad(0).defined();
  };
  if (!fits(x) || (x.scalar_type() != at::kFloat && x.scalar_type() != at::kDouble)) return false;
  const size_t states = l.mode == kLstm ? 2 : 1;
  if (l.states.size() != states || l.count < 1 ||
      static_cast<int64_t>(l.params.size()) != l.count * l.directions() * l.each())
    return false;
  for (const at::Tensor& p : l.params)
    if (!fits(p) || is_symbolic(p)) return false;
  const int64_t size = l.params[1].dim() == 2 ? l.params[1].size(1) : 0;
  for (size_t i = 0; i < l.params.size(); ++i) {
    const at::Tensor& p = l.params[i];
    const bool matrix = i % static_cast<size_t>(l.each()) < 2, recurs = i % static_cast<size_t>(l.each()) == 1;
    if (p.dim() != (matrix ? 2 : 1) || p.size(0) != ops::gates_of(l.mode) * size || (recurs && p.size(1) != size))
      return false;
  }
  if (size == 0 || x.dim() != (l.packed ? 2 : 3) || !(x.sym_size(-1) == l.params[0].size(1))) return false;
  for (const at::Tensor& h : l.states) {
    if (!fits(h) || h.dim() != 3 || h.sym_size(0) != l.count * l.directions() || h.sym_size(2) != size) return false;
    if (!l.packed && h.sym_size(1) != x.sym_size(1)) return false;
  }
  if (l.packed) return trace_impl(*l.packed) && l.packed->is_cpu() && l.packed->scalar_type() == at::kLong;
  return x.sym_numel() > 0;
}

using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
Results run(const Layers& l) {
  at::Tensor steps = l.steps;
  std::vector<at::Tensor> hs, cs;
  for (int64_t layer = 0; layer < l.count; ++layer) {
    std::vector<at::Tensor> out;
    for (int64_t d = 0; d < l.directions(); ++d) {
      auto [y, h, c] = direction(l, steps, layer * l.directions() + d);
      out.push_back(y);
      hs.push_back(h);
      cs.push_back(c);
    }
    steps = out.size() == 1 ? out[0] : at::cat(out, -1);
    if (l.dropout != 0 && l.train && layer + 1 < l.count) steps = at::dropout(steps, l.dropout, /*train=*/true);
  }
  return {steps, at::stack(hs, 0), l.mode == kLstm ? at::stack(cs, 0) : at::Tensor()};
}

// One step of a known number is fused with what is around it where it is written out.
bool is_long(const at::Tensor& steps) { return is_symbolic(steps) || steps.size(0) > 1; }

template <Mode mode, typename Op>
std::tuple<at::Tensor, at::Tensor> of_steps(const at::Tensor& input, const at::Tensor& hx, at::TensorList params,
                                            bool has_biases, int64_t layers, double dropout, bool train,
                                            bool bidirectional, bool batch_first) {
  if (input.dim() == 3) {
    const at::Tensor steps = batch_first ? input.transpose(0, 1) : input;
    const Layers l{mode, steps, {}, hx, params, has_biases, layers, dropout, train, bidirectional};
    if (is_taken(l) && is_long(steps)) {
      auto [y, h, none] = run(l);
      return {batch_first ? y.transpose(0, 1) : y, h};
    }
  }
  const Below below;
  return Op::call(input, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first);
}

template <Mode mode, typename Op>
std::tuple<at::Tensor, at::Tensor> of_packed(const at::Tensor& data, const at::Tensor& batch_sizes,
                                             const at::Tensor& hx, at::TensorList params, bool has_biases,
                                             int64_t layers, double dropout, bool train, bool bidirectional) {
  const Layers l{mode, data, batch_sizes, hx, params, has_biases, layers, dropout, train, bidirectional};
  if (is_taken(l)) {
    auto [y, h, none] = run(l);
    return {y, h};
  }
  const Below below;
  return Op::call(data, batch_sizes, hx, params, has_biases, layers, dropout, train, bidirectional);
}

Results packed_lstm(const at::Tensor& data, const at::Tensor& batch_sizes, at::TensorList hx, at::TensorList params,
                    bool has_biases, int64_t layers, double dropout, bool train, bool bidirectional) {
  const Layers l{kLstm, data, batch_sizes, hx, params, has_biases, layers, dropout, train, bidirectional};
  if (is_taken(l)) return run(l);
  const Below below;
  return at::lstm(data, batch_sizes, hx, params, has_biases, layers, dropout, train, bidirectional);
}

}  // namespace

std::optional<Results> record_lstm(const at::Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases,
                                   int64_t layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  if (input.dim() != 3) return {};
  const at::Tensor steps = batch_first ? input.transpose(0, 1) : input;
  const Layers l{kLstm, steps, {}, hx, params, has_biases, layers, dropout, train, bidirectional};
  if (!is_taken(l)) return {};
  auto [y, h, c] = run(l);
  return Results{batch_first ? y.transpose(0, 1) : y, h, c};
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericWrapper, m) {
  own<at::_ops::gru_input, of_steps<kGru, at::_ops::gru_input>>(m, "gru.input");
  own<at::_ops::rnn_tanh_input, of_steps<kTanh, at::_ops::rnn_tanh_input>>(m, "rnn_tanh.input");
  own<at::_ops::rnn_relu_input, of_steps<kRelu, at::_ops::rnn_relu_input>>(m, "rnn_relu.input");
  own<at::_ops::gru_data, of_packed<kGru, at::_ops::gru_data>>(m, "gru.data");
  own<at::_ops::rnn_tanh_data, of_packed<kTanh, at::_ops::rnn_tanh_data>>(m, "rnn_tanh.data");
  own<at::_ops::rnn_relu_data, of_packed<kRelu, at::_ops::rnn_relu_data>>(m, "rnn_relu.data");
  own<at::_ops::lstm_data, packed_lstm>(m, "lstm.data");
}

void link_recurrent() {}

}  // namespace flashover::trace
