// The table of an instruction set (vectors.h): included behind panels_kernel.h, depthwise_kernel.h and
// recurrent_kernel.h.

template <int P, int... R>
void fill_multiply(VectorKernels& k, std::integer_sequence<int, R...>) {
  ((k.multiply[P - 1][R] = multiply_tile<R + 1, P>), ...);
}

template <int... R>
void fill_multiply_few(VectorKernels& k, std::integer_sequence<int, R...>) {
  ((k.multiply_few[R] = multiply_few<R + 1>), ...);
}

VectorKernels make_vector_kernels() {
  constexpr int kPanels = kLanes == 16 ? 2 : 1;
  VectorKernels k{
      .rows = kRows,
      .panels = kPanels,
      .multiply = {},
      .finish = {finish_tile<lane_same>, finish_tile<lane_relu>, finish_tile<lane_gelu>, finish_tile<lane_gelu_tanh>,
                 finish_tile<lane_silu>, finish_tile<lane_sigmoid>, finish_tile<lane_hardswish>},
      .multiply_few = {},
      .rows_together = kSums / 4,
      .transpose = transpose_lines,
      .depthwise = {sum_panels<sum_taps<1>>, sum_panels<sum_taps<2>>, sum_panels<sum_taps<3>>, sum_panels<sum_taps<4>>},
      .depthwise_of = {{{sum_panels<sum_rows<4, 3, 1>>, sum_panels<sum_rows<8, 3, 1>>},
                        {sum_panels<sum_rows<4, 3, 2>>, sum_panels<sum_rows<8, 3, 2>>}},
                       {{sum_panels<sum_rows<4, 5, 1>>, sum_panels<sum_rows<8, 5, 1>>},
                        {sum_panels<sum_rows<4, 5, 2>>, sum_panels<sum_rows<8, 5, 2>>}},
                       {{sum_panels<sum_rows<4, 7, 1>>, sum_panels<sum_rows<8, 7, 1>>},
                        {sum_panels<sum_rows<4, 7, 2>>, sum_panels<sum_rows<8, 7, 2>>}}},
      .recur = {recur<RecurrentMode::kRelu>, recur<RecurrentMode::kTanh>, recur<RecurrentMode::kLstm>,
                recur<RecurrentMode::kGru>},
      .recur_backward = {recur_backward<RecurrentMode::kRelu>, recur_backward<RecurrentMode::kTanh>,
                         recur_backward<RecurrentMode::kLstm>, recur_backward<RecurrentMode::kGru>}};
  fill_multiply_few(k, std::make_integer_sequence<int, kSums / 4>());
  fill_multiply<1>(k, std::make_integer_sequence<int, kRows>());
  if constexpr (kPanels > 1) fill_multiply<kPanels>(k, std::make_integer_sequence<int, kRows>());
  return k;
}
