// act(x w^T + bias) on bf16 and f32 matrices with the AMX unit, the weight packed beforehand.
//
// Sums are f32, as in oneDNN's; one rounding to bf16 at the end, behind the activation. About twice oneDNN's speed at
// the sizes of transformers (docs/benchmarks/libraries.md).
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace flashover::cpu {

bool has_amx_bf16();  // the processor has it and the system lets this process use it

enum class Activation : uint8_t { kNone, kRelu, kGelu, kGeluTanh, kSilu, kSigmoid, kHardswish };
constexpr int kActivations = 7;
std::optional<Activation> activation_named(std::string_view name);  // "none", "relu", "gelu", "gelu_tanh", ...
std::string_view name_of(Activation activation);

// Packed: panels of 32 columns; in a panel, blocks of 32 of the inner dim; in a block, two tiles of 16 columns, each 16
// rows of (column, pair of inner elements).
constexpr int64_t kTile = 16, kBlock = 32;
inline int64_t ceil_div(int64_t n, int64_t size) { return (n + size - 1) / size; }
int64_t packed_elements(int64_t columns, int64_t inner);
void pack_weight(const uint16_t* weight, int64_t column_stride, int64_t inner_stride, int64_t columns, int64_t inner,
                 uint16_t* packed);

// T: the element, uint16_t for bf16.
template <typename T>
struct LinearOf {
  const T* x;
  int64_t row_stride;
  const uint16_t* packed;
  const T* bias;  // or null
  T* out;         // dense
  int64_t rows, inner, columns;
  Activation activation = Activation::kNone;
};
using Linear = LinearOf<uint16_t>;
void linear(const Linear& l);

// The same on f32 matrices, with f32's accuracy: each number is the sum of three bf16 ones (8 + 8 + 8 bits), and the
// six products of terms that are above f32's rounding (2^-26 of each product is left out) are added up, the blocks of
// the inner dim apart. 2-3 times the speed of the machine's f32 unit, with a fifth of a plain sum's error.
//
// Rows of x (and columns of the weight) whose largest number is not between 2^-40 and 2^63 - infinite ones, NaN, ones
// whose terms would be too small - are multiplied in f32 arithmetic; zeros are not among them.
//
// Packed: as above, three times, the blocks of 32 x 32 of one inner block side by side, the largest terms first; then
// for each panel a number that is not 0 if one of its columns is out of range and the panel is not split.
int64_t packed_f32_elements(int64_t columns, int64_t inner);
void pack_weight_f32(const float* weight, int64_t column_stride, int64_t inner_stride, int64_t columns, int64_t inner,
                     uint16_t* packed);

using LinearF32 = LinearOf<float>;
void linear(const LinearF32& l);

}  // namespace flashover::cpu
