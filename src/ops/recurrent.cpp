// Type rules of the steps of recurrent layers: all results lie dense.
//
//   rnn_steps(gates, h0, c0, w_hh, b_hh, batch_sizes, mode, reverse, keeps)
//       results of all steps, the last states (of an LSTM two), and what a backward needs
//   rnn_steps_backward(grad_y, grad_h, grad_c, y, h0, c0, w_hh, batch_sizes, kept, mode, reverse)
//       gradients of what the gates get of the input, and of the state where that differs (GRU); the states before each
//       step; gradients of the first states
#include "ops/args.h"
#include "ops/aten/infer.h"
#include "ops/ops.h"
#include "ops/recurrent_mode.h"

namespace flashover::ops {
namespace {

using aten::fresh;

std::optional<RecurrentMode> mode_of(const Arg& given) {
  const auto mode = aten::integer(given);
  return mode ? std::optional(static_cast<RecurrentMode>(*mode)) : std::nullopt;
}

// Gates in place of what is as wide as a state.
Sizes with_last(Sizes sizes, sym::Expr last) {
  sizes.back() = last;
  return sizes;
}

bool steps(const InferContext& in, std::vector<TensorType>& outs) {
  const TensorType &gates = in.type(size_t{0}), &h0 = in.type(size_t{1});
  const auto mode = mode_of(in.args[6]);
  if (gates.rank() < 2 || h0.rank() != 2 || !mode || gates.dtype != h0.dtype) return false;
  const sym::Expr size = h0.sizes[1];
  const int64_t kept = kept_of(*mode);
  const TensorType none = fresh(h0, h0.dtype, {0}), state = fresh(h0, h0.dtype, h0.sizes);
  outs = {fresh(h0, h0.dtype, with_last(gates.sizes, size)), state, *mode == RecurrentMode::kLstm ? state : none,
          aten::flag(in.args[8]) && kept > 0 ? fresh(h0, h0.dtype, with_last(gates.sizes, kept * size)) : none};
  return true;
}

bool steps_backward(const InferContext& in, std::vector<TensorType>& outs) {
  const TensorType &y = in.type(size_t{3}), &h0 = in.type(size_t{4}), &w_hh = in.type(size_t{6});
  const auto mode = mode_of(in.args[9]);
  if (y.rank() < 2 || h0.rank() != 2 || w_hh.rank() != 2 || !mode) return false;
  const sym::Expr width = w_hh.sizes[0], size = h0.sizes[1];
  sym::Expr all = 1;
  for (size_t d = 0; d + 1 < y.rank(); ++d) all *= y.sizes[d];
  const TensorType none = fresh(h0, h0.dtype, {0}), state = fresh(h0, h0.dtype, h0.sizes);
  const auto rows = [&](sym::Expr count, sym::Expr width) { return fresh(h0, h0.dtype, {count, width}); };
  outs = {rows(all, width), rows(*mode == RecurrentMode::kGru ? all : sym::Expr(0), width), rows(all, size), state,
          *mode == RecurrentMode::kLstm ? state : none};
  return true;
}

}  // namespace

void register_recurrent(std::vector<Row>& rows) {
  rows.push_back({.name = op::rnn_steps, .infer = steps});
  rows.push_back({.name = op::rnn_steps_backward, .infer = steps_backward});
}

}  // namespace flashover::ops
