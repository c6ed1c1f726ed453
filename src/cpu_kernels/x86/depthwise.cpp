// Convolutions with one channel a group: 16 points of a line at a time, in f32 arithmetic.
#include <bit>
#include <cstring>

#include "cpu_kernels/convolution.h"
#include "cpu_kernels/team.h"
// Last: the rest of the file is for AVX512.
#include "cpu_kernels/x86/line.h"

namespace flashover::cpu {

FLASHOVER_AVX512_BEGIN
namespace {

inline __m512 to_float(__m512i x, float) { return _mm512_castsi512_ps(x); }
inline __m512 to_float(__m512i x, uint16_t) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }

// One channel of an image as lines, phase by phase.
template <typename T>
void fill(const Line& l, const std::vector<PointRuns>& phases, const T* x, int64_t length, float* line) {
  const __m512i index = steps_of(l);
  for (const PointRuns& runs : phases) {
    for (int64_t group = 0; group < length / 16; ++group)
      _mm512_store_ps(line + group * 16, to_float(load_points(x, l, runs, group, index), T{}));
    line += length;
  }
}

constexpr int64_t kWide = 4;  // vectors of points at a time

// out (`groups` of 16 points) = sum over taps of weight times the line from `at` on
void sum_taps(const float* line, const int64_t* at, const float* weight, int64_t taps, float bias, int64_t groups,
              float* out) {
  int64_t g = 0;
  for (; g + kWide <= groups; g += kWide) {
    __m512 sum[kWide];
    for (__m512& s : sum) s = _mm512_set1_ps(bias);
    for (int64_t t = 0; t < taps; ++t) {
      const __m512 w = _mm512_set1_ps(weight[t]);
      const float* from = line + at[t] + g * 16;
      for (int64_t i = 0; i < kWide; ++i) sum[i] = _mm512_fmadd_ps(w, _mm512_loadu_ps(from + i * 16), sum[i]);
    }
    for (int64_t i = 0; i < kWide; ++i) _mm512_store_ps(out + (g + i) * 16, sum[i]);
  }
  for (; g < groups; ++g) {
    __m512 sum = _mm512_set1_ps(bias);
    for (int64_t t = 0; t < taps; ++t)
      sum = _mm512_fmadd_ps(_mm512_set1_ps(weight[t]), _mm512_loadu_ps(line + at[t] + g * 16), sum);
    _mm512_store_ps(out + g * 16, sum);
  }
}

// sums (16 of each tap) += grad times the line from `at` on
template <int taps>
void sum_points(const float* line, const int64_t* at, const float* grad, int64_t groups, float* sums) {
  __m512 sum[taps];
  for (int t = 0; t < taps; ++t) sum[t] = _mm512_load_ps(sums + t * 16);
  const float* from[taps];
  for (int t = 0; t < taps; ++t) from[t] = line + at[t];
  for (int64_t g = 0; g < groups * 16; g += 16) {
    const __m512 x = _mm512_load_ps(grad + g);
    for (int t = 0; t < taps; ++t) sum[t] = _mm512_fmadd_ps(x, _mm512_loadu_ps(from[t] + g), sum[t]);
  }
  for (int t = 0; t < taps; ++t) _mm512_store_ps(sums + t * 16, sum[t]);
}
using SumPoints = void (*)(const float*, const int64_t*, const float*, int64_t, float*);
constexpr SumPoints kSumPoints[] = {sum_points<1>, sum_points<2>, sum_points<3>, sum_points<4>,
                                    sum_points<5>, sum_points<6>, sum_points<7>, sum_points<8>};

std::vector<PointRuns> all_runs(const Line& l, int64_t length) {
  std::vector<PointRuns> runs;
  for (const auto& phase : l.used) runs.push_back(find_runs(l, phase, 0, length));
  return runs;
}

// `p` is of one image.
template <typename T>
void run(const ConvolutionPlan& p, int64_t batch, int64_t channels, int64_t taps, int64_t in_image, int64_t out_image,
         const T* x, const T* weight, const T* bias, T* out) {
  const int64_t groups = ceil_div(p.line.points(), 16), length = Line::strip(groups * 16 + p.span + 16);
  const std::vector<PointRuns> phases = all_runs(p.line, length);
  struct Result {
    std::vector<int64_t> at;
    std::vector<StoreTarget> targets;
  };
  std::vector<Result> results;
  for (const OutputClass& c : p.classes) {
    Result& r = results.emplace_back();
    for (size_t t = 0; t < c.shift.size(); ++t) r.at.push_back(c.phase[t] * length + c.shift[t]);
    find_targets(p, c, 0, groups * 16, 0, r.targets);
  }
  const int64_t points = p.out_size[0] * p.out_size[1], lines = static_cast<int64_t>(phases.size()) * length;
  const __m512i index = _mm512_mullo_epi32(lane_indices(), _mm512_set1_epi32(static_cast<int>(p.step[1])));
  in_parallel(channels, [&](int64_t c) {
    auto* line = static_cast<float*>(scratch(static_cast<size_t>((lines + groups * 16 + ceil_div(taps, 16) * 16) * 4)));
    float *sums = line + lines, *w = sums + groups * 16;
    for (int64_t n = 0; n < batch; ++n) {
      fill(p.line, phases, x + n * in_image + c * p.line.channel, length, line);
      T* to = out + n * out_image + c * points;
      for (size_t i = 0; i < results.size(); ++i) {
        const OutputClass& cls = p.classes[i];
        for (size_t t = 0; t < cls.weight.size(); ++t) w[t] = Pack<T>::number(weight[c * taps + cls.weight[t]]);
        sum_taps(line, results[i].at.data(), w, static_cast<int64_t>(cls.weight.size()),
                 bias ? Pack<T>::number(bias[c]) : 0, groups, sums);
        for (const StoreTarget& t : results[i].targets)
          Pack<T>::write(to + t.offset, p.step[1], index, t.mask, _mm512_load_ps(sums + t.group * 16));
      }
    }
  });
}

ConvolutionSizes one_image(ConvolutionSizes s) {
  s.batch = 1;
  return s;
}

}  // namespace

template <typename T>
void depthwise(const ConvolutionSizes& s, const T* x, const T* weight, const T* bias, T* out) {
  run<T>(plan_forward(one_image(s)), s.batch, s.in, s.kernel[0] * s.kernel[1], s.in_image, s.out_image, x, weight, bias,
         out);
}
template <typename T>
void depthwise_input_gradient(const ConvolutionSizes& s, const T* grad, const T* weight, T* out) {
  run<T>(plan_gradient(one_image(s)), s.batch, s.in, s.kernel[0] * s.kernel[1], s.out_image, s.in_image, grad, weight,
         nullptr, out);
}

template <typename T>
void depthwise_weight_gradient(const ConvolutionSizes& s, const T* grad, const T* x, T* out) {
  const ConvolutionPlan p = plan_forward(one_image(s));
  const OutputClass& cls = p.classes[0];
  Line line = p.line;  // of the results
  line.used = {{0, 0}};
  for (int d = 0; d < 2; ++d) line.step[d] = 1, line.before[d] = 0, line.size[d] = s.out_size[d];
  line.channel = s.out_size[0] * s.out_size[1];
  const int64_t groups = ceil_div(p.line.points(), 16), length = Line::strip(groups * 16 + p.span + 16);
  const std::vector<PointRuns> phases = all_runs(p.line, length), grads = all_runs(line, groups * 16);
  std::vector<int64_t> at;
  for (size_t t = 0; t < cls.shift.size(); ++t) at.push_back(cls.phase[t] * length + cls.shift[t]);
  const int64_t lines = static_cast<int64_t>(phases.size()) * length;
  in_parallel(s.in, [&](int64_t c) {
    auto* from = static_cast<float*>(scratch(static_cast<size_t>((lines + groups * 16 + p.taps * 16) * 4)));
    float *g = from + lines, *sums = g + groups * 16;
    std::memset(sums, 0, static_cast<size_t>(p.taps) * 64);
    for (int64_t n = 0; n < s.batch; ++n) {
      fill(p.line, phases, x + n * s.in_image + c * p.line.channel, length, from);
      fill(line, grads, grad + n * s.out_image + c * line.channel, groups * 16, g);
      for (int64_t t = 0; t < p.taps; t += 8)
        kSumPoints[std::min<int64_t>(8, p.taps - t) - 1](from, at.data() + t, g, groups, sums + t * 16);
    }
    for (int64_t t = 0; t < p.taps; ++t)
      Pack<T>::write(out + c * p.taps + t, 1, _mm512_setzero_si512(), 1,
                     _mm512_set1_ps(_mm512_reduce_add_ps(_mm512_load_ps(sums + t * 16))));
  });
}

template void depthwise<float>(const ConvolutionSizes&, const float*, const float*, const float*, float*);
template void depthwise<uint16_t>(const ConvolutionSizes&, const uint16_t*, const uint16_t*, const uint16_t*,
                                  uint16_t*);
template void depthwise_input_gradient<float>(const ConvolutionSizes&, const float*, const float*, float*);
template void depthwise_input_gradient<uint16_t>(const ConvolutionSizes&, const uint16_t*, const uint16_t*, uint16_t*);
template void depthwise_weight_gradient<float>(const ConvolutionSizes&, const float*, const float*, float*);
template void depthwise_weight_gradient<uint16_t>(const ConvolutionSizes&, const uint16_t*, const uint16_t*, uint16_t*);

FLASHOVER_AVX512_END

}  // namespace flashover::cpu
