// Row by row: which taps lie inside the image, where all columns of taps do, and the points at the borders one by one.
// Of small images, which are mostly borders, 64 channels at a time are copied between zeros first.
#include "cpu_kernels/depthwise_last.h"

#include <algorithm>
#include <cstring>

#include "cpu_kernels/team.h"

namespace flashover::cpu {
namespace {

// Taps [first, end) that read elements [0, size) for point `at` of the result.
struct TapRange {
  int64_t first, end;
  int64_t count() const { return std::max<int64_t>(0, end - first); }
};
TapRange taps_inside(const DepthwiseLast& d, int dim, int64_t at) {
  const int64_t from = at * d.stride[dim] - d.padding[dim], step = d.dilation[dim];
  const int64_t first = from < 0 ? ceil_div(-from, step) : 0;
  const int64_t end = from >= d.size[dim] ? 0 : std::min(d.kernel[dim], ceil_div(d.size[dim] - from, step));
  return {first, end};
}

struct Rows {
  DepthwiseLast d;
  int64_t point;  // elements of the result from one point to the next
  const VectorKernels& kernels;
  int64_t inside[2];                     // columns [inside[0], inside[1]) read inside the image with all taps
  const VectorKernels::Depthwise* wide;  // for these taps, 4 points and 8, or null

  void take(int64_t begin, int64_t end) const;
  void take_points(const float* image, int64_t row, TapRange rows, int64_t column, int64_t points, TapRange columns,
                   float* out) const;
};

// `points` points of a row, all channels. out: of the first of them.
void Rows::take_points(const float* image, int64_t row, TapRange rows, int64_t column, int64_t points, TapRange columns,
                       float* out) const {
  constexpr int64_t kMost = VectorKernels::kChannelPanels;
  alignas(64) float c[VectorKernels::kPoints * kMost * kPanel];
  const auto start = [&](int dim, int64_t at, int64_t tap) {
    return at * d.stride[dim] - d.padding[dim] + tap * d.dilation[dim];
  };
  const float* const x = image + start(0, row, rows.first) * d.row + start(1, column, columns.first) * d.column;
  const float* const weight = d.packed + (rows.first * d.kernel[1] + columns.first) * kPanel;
  const VectorKernels::Taps taps{.rows = rows.count(),
                                 .columns = columns.count(),
                                 .row = d.dilation[0] * d.row,
                                 .column = d.dilation[1] * d.column,
                                 .weight_row = d.kernel[1] * kPanel,
                                 .weight_panel = d.kernel[0] * d.kernel[1] * kPanel};
  const auto sum = points >= 4 && wide ? wide[points / 4 - 1] : kernels.depthwise[points - 1];
  const auto end_with = kernels.finish[static_cast<size_t>(d.activation)];
  for (int64_t channel = 0; channel < d.channels; channel += kMost * kPanel) {
    const int64_t here = std::min(kMost * kPanel, d.channels - channel), panels = ceil_div(here, kPanel);
    sum(x + channel, d.stride[1] * d.column, weight + channel / kPanel * taps.weight_panel, taps, panels,
        here - (panels - 1) * kPanel, c);
    end_with(c, panels * kPanel, points, here, d.bias ? d.bias + channel : nullptr, nullptr, 0, out + channel, point);
  }
}

void Rows::take(int64_t begin, int64_t end) const {
  for (int64_t at = begin; at < end; ++at) {
    const int64_t row = at % d.out_size[0];
    const float* const image = d.x + at / d.out_size[0] * d.image;
    float* const out = d.out + at * d.out_size[1] * point;
    const TapRange rows = taps_inside(d, 0, row);
    for (int64_t column = 0; column < d.out_size[1];) {
      const bool whole = column >= inside[0] && column < inside[1];
      const int64_t left = inside[1] - column;
      const int64_t points = !whole ? 1 : wide && left >= 8 ? 8 : std::min<int64_t>(4, left);
      take_points(image, row, rows, column, points, taps_inside(d, 1, column), out + column * point);
      column += points;
    }
  }
}

}  // namespace

void pack_depthwise(const float* weight, int64_t channels, int64_t taps, float* packed) {
  std::fill(packed, packed + depthwise_elements(channels, taps), 0.f);
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t t = 0; t < taps; ++t) packed[(c / kPanel * taps + t) * kPanel + c % kPanel] = weight[c * taps + t];
}

namespace {

Rows rows_of(const DepthwiseLast& d, int64_t point) {
  const int64_t reach = (d.kernel[1] - 1) * d.dilation[1];
  const int64_t first = std::min(d.out_size[1], ceil_div(d.padding[1], d.stride[1]));
  const int64_t room = d.size[1] + d.padding[1] - reach - 1;  // of the last point that reads inside, times the stride
  const int64_t last = room < 0 ? 0 : std::min(d.out_size[1], room / d.stride[1] + 1);
  const VectorKernels& kernels = *vector_kernels();
  const int64_t taps = d.kernel[1];
  const bool wide = taps % 2 == 1 && taps >= 3 && taps <= 7 && d.dilation[1] == 1 && d.stride[1] <= 2;
  return {.d = d,
          .point = point,
          .kernels = kernels,
          .inside = {first, std::max(first, last)},
          .wide = wide ? kernels.depthwise_of[taps / 2 - 1][d.stride[1] - 1] : nullptr};
}

constexpr int64_t kSlice = VectorKernels::kChannelPanels * kPanel;  // channels

// One slice of the channels of one image, which is copied between zeros to `memory`.
void take_slice(const DepthwiseLast& d, int64_t task, float* memory) {
  const int64_t slices = ceil_div(d.channels, kSlice), image = task / slices, channel = task % slices * kSlice;
  DepthwiseLast s = d;
  s.channels = std::min(kSlice, d.channels - channel);
  for (int i = 0; i < 2; ++i) s.size[i] += 2 * d.padding[i], s.padding[i] = 0;
  s.batch = 1;
  s.column = s.channels;
  s.row = s.size[1] * s.column;
  s.x = memory;
  s.packed += channel * d.kernel[0] * d.kernel[1];
  if (s.bias) s.bias += channel;
  s.out += image * d.out_size[0] * d.out_size[1] * d.channels + channel;
  std::fill(memory, memory + s.size[0] * s.row, 0.f);
  const float* const from = d.x + image * d.image + channel;
  float* const to = memory + d.padding[0] * s.row + d.padding[1] * s.column;
  for (int64_t row = 0; row < d.size[0]; ++row)
    for (int64_t column = 0; column < d.size[1]; ++column)
      std::memcpy(to + row * s.row + column * s.column, from + row * d.row + column * d.column,
                  static_cast<size_t>(s.channels) * sizeof(float));
  rows_of(s, d.channels).take(0, d.out_size[0]);
}

}  // namespace

void depthwise(const DepthwiseLast& d) {
  constexpr int64_t kInCache = 40 * 1024;  // elements
  const double work = 40.0 * static_cast<double>(d.out_size[0] * d.out_size[1] * d.batch) *
                      static_cast<double>(d.channels * (d.kernel[0] * d.kernel[1] + 2));
  const auto picoseconds = static_cast<int64_t>(std::min(work, 1e15));
  const int64_t elements = (d.size[0] + 2 * d.padding[0]) * (d.size[1] + 2 * d.padding[1]) * kSlice;
  if (d.padding[1] > 0 && elements <= kInCache) {
    return share_parts(d.batch * ceil_div(d.channels, kSlice), picoseconds, [&](int64_t begin, int64_t end) {
      auto* memory = static_cast<float*>(scratch(static_cast<size_t>(elements) * sizeof(float)));
      for (int64_t task = begin; task < end; ++task) take_slice(d, task, memory);
    });
  }
  const Rows rows = rows_of(d, d.channels);
  share_parts(d.batch * d.out_size[0], picoseconds, [&](int64_t begin, int64_t end) { rows.take(begin, end); });
}

}  // namespace flashover::cpu
