// Operators of our own on CUDA devices, as "flashover.convolution_in_parts.default".
#pragma once

namespace flashover::run::cuda {

void register_operators();  // in torch's dispatcher; after cpu::register_operators(), once is enough

}  // namespace flashover::run::cuda
