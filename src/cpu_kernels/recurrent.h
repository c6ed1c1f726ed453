// The steps of a layer of nn.RNN, nn.LSTM or nn.GRU in one direction, over any number of steps and of sequences, and their
// backward. What the gates get of the input is given for all steps: a product of its own.
//
//   In        gates: [steps, sequences, gates * size], or packed: [all, gates * size] and how many sequences each step has
//   Out       results of all steps, the last state of each sequence, and what the backward needs
#pragma once
#include <torch/library.h>

namespace flashover::cpu {

void define_recurrent(torch::Library& library);

}  // namespace flashover::cpu
