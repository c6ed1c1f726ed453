// act(x w^T + bias) on bf16 matrices with the AMX unit, the weight packed beforehand.
//
// Sums are f32, as in oneDNN's; one rounding to bf16 at the end, behind the activation. About twice oneDNN's speed at
// the sizes of transformers (docs/providers.md).
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace flashover::run::cpu {

bool has_amx_bf16();  // the processor has it and the system lets this process use it

enum class Activation : uint8_t { kNone, kRelu, kGelu, kGeluTanh, kSilu, kSigmoid };
std::optional<Activation> activation_named(std::string_view name);  // "none", "relu", "gelu", "gelu_tanh", ...

// Packed: panels of 32 columns; in a panel, blocks of 32 of the inner dim; in a block, two tiles of 16 columns, each 16
// rows of (column, pair of inner elements).
int64_t packed_elements(int64_t columns, int64_t inner);
void pack_weight(const uint16_t* weight, int64_t column_stride, int64_t inner_stride, int64_t columns, int64_t inner,
                 uint16_t* packed);

struct Linear {
  const uint16_t* x;
  int64_t row_stride;
  const uint16_t* packed;
  const uint16_t* bias;  // or null
  uint16_t* out;         // dense
  int64_t rows, inner, columns;
  Activation activation = Activation::kNone;
};
void linear(const Linear& l);

}  // namespace flashover::run::cpu
