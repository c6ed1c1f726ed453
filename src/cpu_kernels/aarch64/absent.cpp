// What stands on AVX-512 and AMX: has_avx512() and has_amx_bf16() say that it is not here, so nobody calls it.
#include "base/check.h"
#include "cpu_kernels/attention.h"
#include "cpu_kernels/convolution.h"
#include "cpu_kernels/embedding.h"
#include "cpu_kernels/linear.h"
#include "cpu_kernels/product.h"
#include "cpu_kernels/random.h"
#include "cpu_kernels/unfold.h"

namespace flashover::cpu {
namespace {

[[noreturn]] void absent(const char* what) {
  FLASHOVER_CHECK(false) << what << " is not on this architecture";
  __builtin_unreachable();
}

}  // namespace

bool has_avx512() { return false; }
bool has_amx_bf16() { return false; }

void attention(const Attention&) { absent("attention"); }
void attention_backward(const AttentionBackward&) { absent("attention_backward"); }
void product(const ProductOf<float>&) { absent("product"); }
void product(const ProductOf<uint16_t>&) { absent("product"); }
void product(const ProductOf<uint16_t, float>&) { absent("product"); }
int64_t packed_elements(int64_t, int64_t) { absent("packed_elements"); }
void pack_weight(const uint16_t*, int64_t, int64_t, int64_t, int64_t, uint16_t*) { absent("pack_weight"); }
int64_t packed_f32_elements(int64_t, int64_t) { absent("packed_f32_elements"); }
void pack_weight_f32(const float*, int64_t, int64_t, int64_t, int64_t, uint16_t*) { absent("pack_weight_f32"); }
void linear(const Linear&) { absent("linear"); }
void linear(const LinearF32&) { absent("linear"); }
void table_gradient(const TableGradient&) { absent("table_gradient"); }
void unfold(const Unfold&, const uint16_t*, uint16_t*) { absent("unfold"); }
void fold(const Unfold&, const uint16_t*, uint16_t*) { absent("fold"); }
void draw_below(Twister&, uint64_t, int64_t, void*, int, uint32_t) { absent("draw_below"); }

int64_t convolution_workspace(const ConvolutionSizes&, bool) { absent("convolution_workspace"); }
int64_t weight_gradient_workspace(const ConvolutionSizes&, bool) { absent("weight_gradient_workspace"); }
template <typename T>
bool convolution(const ConvolutionSizes&, const T*, const T*, const T*, T*, void*) {
  absent("convolution");
}
template <typename T>
bool convolution_input_gradient(const ConvolutionSizes&, const T*, const T*, T*, void*) {
  absent("convolution_input_gradient");
}
template <typename T>
bool convolution_weight_gradient(const ConvolutionSizes&, const T*, const T*, T*, void*) {
  absent("convolution_weight_gradient");
}
template <typename T>
void depthwise(const ConvolutionSizes&, const T*, const T*, const T*, T*) {
  absent("depthwise");
}
template <typename T>
void depthwise_input_gradient(const ConvolutionSizes&, const T*, const T*, T*) {
  absent("depthwise_input_gradient");
}
template <typename T>
void depthwise_weight_gradient(const ConvolutionSizes&, const T*, const T*, T*) {
  absent("depthwise_weight_gradient");
}

#define BOTH(T)                                                                                      \
  template bool convolution(const ConvolutionSizes&, const T*, const T*, const T*, T*, void*);       \
  template bool convolution_input_gradient(const ConvolutionSizes&, const T*, const T*, T*, void*);  \
  template bool convolution_weight_gradient(const ConvolutionSizes&, const T*, const T*, T*, void*); \
  template void depthwise(const ConvolutionSizes&, const T*, const T*, const T*, T*);                \
  template void depthwise_input_gradient(const ConvolutionSizes&, const T*, const T*, T*);           \
  template void depthwise_weight_gradient(const ConvolutionSizes&, const T*, const T*, T*);
BOTH(float)
BOTH(uint16_t)
#undef BOTH

}  // namespace flashover::cpu
