// Work is cut into units, the groups of panels of a chunk of rows; who takes several of a chunk gathers its rows once.
#include "cpu_kernels/panel_convolution.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu_kernels/panels.h"
#include "cpu_kernels/team.h"

namespace flashover::cpu {
namespace {

constexpr int64_t kChunkNumbers = 64 * 1024;  // of gathered rows

bool every_is(const Spatial& s, int64_t n) {
  return std::ranges::all_of(s, [&](int64_t i) { return i == n; });
}

// Whether a row is a point of the image, and rows lie one behind the other.
bool reads_points(const PanelConvolution& c) {
  const ConvolutionShape& s = c.shape;
  if (s.taps() != 1 || !every_is(s.stride, 1) || !every_is(s.padding, 0)) return false;
  int64_t apart = c.step[kSpatial - 1];
  for (size_t d = kSpatial; d-- > 0;) {
    if (c.size[d] > 1 && c.step[d] != apart) return false;
    apart *= c.size[d];
  }
  return c.batch == 1 || c.image == apart;
}

class Gather {
 public:
  Gather(const PanelConvolution& c, int64_t group)
      : c_(c),
        width_(c.shape.in / c.shape.groups),
        x_(c.x + group * width_),
        run_(c.shape.groups == 1 && c.shape.dilation[2] == 1 && c.step[2] == c.shape.in) {}

  // Rows [first, last), `stride` apart.
  void operator()(int64_t first, int64_t last, int64_t stride, float* to) const {
    Spatial at{};
    int64_t left = first;
    for (size_t d = kSpatial; d-- > 0; left /= c_.out_size[d]) at[d] = left % c_.out_size[d];
    for (int64_t row = first; row < last; ++row, to += stride) {
      take_row(left, at, to);
      for (size_t d = kSpatial; d-- > 0;) {
        if (++at[d] < c_.out_size[d]) break;
        at[d] = 0;
        left += d == 0;
      }
    }
  }

 private:
  void take_row(int64_t entry, const Spatial& at, float* to) const {
    const ConvolutionShape& s = c_.shape;
    const float* const image = x_ + entry * c_.image;
    const int64_t line = s.kernel[2] * width_;
    const auto place = [&](size_t d, int64_t tap) { return at[d] * s.stride[d] - s.padding[d] + tap * s.dilation[d]; };
    const auto outside = [&](size_t d, int64_t i) { return i < 0 || i >= c_.size[d]; };
    for (int64_t a = 0; a < s.kernel[0]; ++a)
      for (int64_t b = 0; b < s.kernel[1]; ++b, to += line) {
        const int64_t i = place(0, a), j = place(1, b);
        if (outside(0, i) || outside(1, j))
          std::fill(to, to + line, 0.F);
        else
          take_line(image + i * c_.step[0] + j * c_.step[1], place(2, 0), to);
      }
  }
  // The taps of one line of the image, the first one at `begin`, which may lie outside.
  void take_line(const float* line, int64_t begin, float* to) const {
    const ConvolutionShape& s = c_.shape;
    const int64_t taps = s.kernel[2];
    if (run_) {
      const int64_t skipped = std::clamp<int64_t>(-begin, 0, taps),
                    end = std::clamp<int64_t>(c_.size[2] - begin, skipped, taps);
      std::fill(to, to + skipped * width_, 0.F);
      if (end > skipped)
        std::memcpy(to + skipped * width_, line + (begin + skipped) * width_,
                    static_cast<size_t>((end - skipped) * width_) * sizeof(float));
      std::fill(to + end * width_, to + taps * width_, 0.F);
      return;
    }
    for (int64_t t = 0; t < taps; ++t, to += width_) {
      const int64_t i = begin + t * s.dilation[2];
      if (i < 0 || i >= c_.size[2])
        std::fill(to, to + width_, 0.F);
      else
        std::memcpy(to, line + i * c_.step[2], static_cast<size_t>(width_) * sizeof(float));
    }
  }

  const PanelConvolution& c_;
  const int64_t width_;  // channels of a group
  const float* x_;
  const bool run_;  // taps of a line lie side by side
};

// At 80 GF/s of one core.
int64_t time_of_convolution(double products) { return static_cast<int64_t>(std::min(products * 25, 1e15)); }

}  // namespace

int64_t packed_elements(const ConvolutionShape& s) { return s.groups * panel_elements(s.out / s.groups, s.inner()); }

void pack_convolution(const ConvolutionShape& s, const float* weight, int64_t out_stride, int64_t in_stride,
                      const Spatial& kernel_stride, float* packed) {
  const int64_t columns = s.out / s.groups, channels = s.in / s.groups, inner = s.inner();
  const int64_t panels = ceil_div(columns, kPanel);
  std::vector<int64_t> taps;  // where they lie
  for (int64_t a = 0; a < s.kernel[0]; ++a)
    for (int64_t b = 0; b < s.kernel[1]; ++b)
      for (int64_t c = 0; c < s.kernel[2]; ++c)
        taps.push_back(a * kernel_stride[0] + b * kernel_stride[1] + c * kernel_stride[2]);
  in_parallel(s.groups * panels, [&](int64_t at) {
    constexpr int64_t kTogether = 16;  // channels, of which all taps stay in L1
    const int64_t group = at / panels, panel = at % panels, here = std::min(kPanel, columns - panel * kPanel);
    const float* const from = weight + (group * columns + panel * kPanel) * out_stride;
    float* const to = packed + at * kPanel * inner;
    if (here < kPanel) std::fill(to, to + kPanel * inner, 0.F);
    for (int64_t first = 0; first < channels; first += kTogether) {
      const int64_t last = std::min(first + kTogether, channels);
      for (int64_t c = 0; c < here; ++c)
        for (size_t t = 0; t < taps.size(); ++t) {
          const float* const tap = from + c * out_stride + taps[t];
          float* const lines = to + static_cast<int64_t>(t) * channels * kPanel + c;
          for (int64_t i = first; i < last; ++i) lines[i * kPanel] = tap[i * in_stride];
        }
    }
  });
}

void convolution(const PanelConvolution& c) {
  const ConvolutionShape& s = c.shape;
  const VectorKernels& kernels = *vector_kernels();
  const int64_t rows = c.batch * c.out_size[0] * c.out_size[1] * c.out_size[2];
  const int64_t inner = s.inner(), columns = s.out / s.groups, tile = kernels.rows;
  const int64_t most = std::max(2 * tile, kChunkNumbers / std::max<int64_t>(inner, 1));
  const int64_t height = ceil_div(ceil_div(rows, ceil_div(rows, most)), tile) * tile, chunks = ceil_div(rows, height);
  const int64_t panels = ceil_div(columns, kernels.panels * kPanel), units = s.groups * chunks * panels;
  const bool points = reads_points(c);
  const int64_t stride = points ? c.step[kSpatial - 1] : ceil_div(inner, kPanel) * kPanel + kPanel;
  const double products = static_cast<double>(rows) * static_cast<double>(inner) * static_cast<double>(s.out);
  share_parts(units, time_of_convolution(products), [&](int64_t begin, int64_t end) {
    int64_t here = -1;
    const float* x = nullptr;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t chunk = unit / panels, group = chunk / chunks, first = chunk % chunks * height,
                    last = std::min(rows, first + height);
      if (chunk != here) {
        here = chunk;
        if (points) {
          x = c.x + group * (s.in / s.groups) + first * stride;
        } else {
          auto* const to = static_cast<float*>(scratch(static_cast<size_t>((last - first) * stride) * sizeof(float)));
          Gather(c, group)(first, last, stride, to);
          x = to;
        }
      }
      const PanelLinear product{.x = x,
                                .row_stride = stride,
                                .packed = c.packed + group * panel_elements(columns, inner),
                                .bias = c.bias ? c.bias + group * columns : nullptr,
                                .added = nullptr,
                                .added_stride = 0,
                                .out = c.out + group * columns,
                                .rows = rows,
                                .inner = inner,
                                .columns = columns,
                                .activation = c.activation,
                                .out_stride = s.out};
      take_panels(product, unit % panels, first, last, x, stride);
    }
  });
}

}  // namespace flashover::cpu
