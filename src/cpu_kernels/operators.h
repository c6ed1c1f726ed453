// The hand-written operators (linear.h, attention.h) as "flashover.packed_linear.default" and so on.
#pragma once

namespace flashover::cpu {

void register_operators();  // in torch's dispatcher; once is enough

}  // namespace flashover::cpu
