// Works out, once per convolution, which runs of points each tap reads and writes.
#include "cpu_kernels/convolution_plan.h"

namespace flashover::cpu {

PointRuns find_runs(const Line& l, std::pair<int64_t, int64_t> phase, int64_t first, int64_t points) {
  PointRuns out;
  out.groups.resize(static_cast<size_t>(ceil_div(points, 16)));
  const int64_t from = l.before[1] - phase.second;
  const int64_t least = from <= 0 ? 0 : ceil_div(from, l.step[1]);
  const int64_t end = l.size[1] + from <= 0 ? 0 : ceil_div(l.size[1] + from, l.step[1]);
  int64_t at = first;
  for (PointRuns::Group& group : out.groups) {
    group.more = static_cast<int32_t>(out.more.size());
    for (int64_t i = 0; i < 16;) {
      const int64_t line = (at + i) / l.width, column = (at + i) % l.width;
      const int64_t image = line / l.rows, row = line % l.rows * l.step[0] + phase.first - l.before[0];
      const int64_t run = std::min(16 - i, l.width - column);
      const int64_t lo = std::max(column, least), hi = std::min(column + run, end);
      if (image < l.images && row >= 0 && row < l.size[0] && lo < hi) {
        const auto mask = static_cast<uint16_t>(((1u << (hi - lo)) - 1) << (i + lo - column));
        const PointRun found{mask, image * l.image + row * l.size[1] + (column - i) * l.step[1] - from};
        if (group.first.mask == 0)
          group.first = found;
        else
          out.more.push_back(found);
      }
      i += run;
    }
    group.end = static_cast<int32_t>(out.more.size());
    at += 16;
  }
  return out;
}

namespace {

int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

void count_taps(ConvolutionPlan& p) {
  for (const OutputClass& c : p.classes) {
    p.taps += static_cast<int64_t>(c.weight.size());
    for (int64_t shift : c.shift) p.span = std::max(p.span, shift);
  }
}

}  // namespace

ConvolutionSizes joined_rows(ConvolutionSizes s) {
  for (int d = 0; d < 2; ++d)
    if (s.kernel[d] != 1 || s.stride[d] != 1 || s.padding[d] != 0) return s;
  s.size[1] = s.out_size[1] = s.size[0] * s.size[1];
  s.size[0] = s.out_size[0] = 1;
  return s;
}

ConvolutionPlan plan_forward(const ConvolutionSizes& s) {
  ConvolutionPlan p{};
  OutputClass c{};
  int64_t most[2];
  for (int d = 0; d < 2; ++d) {
    p.step[d] = 1;
    p.out_size[d] = p.grid[d] = s.out_size[d];
    p.line.step[d] = s.stride[d];
    p.line.before[d] = s.padding[d];
    p.line.size[d] = s.size[d];
    most[d] = (s.kernel[d] - 1) * s.dilation[d] / s.stride[d];
  }
  p.line.images = s.batch;
  p.line.image = s.in_image;
  p.line.channel = s.size[0] * s.size[1];
  p.line.fit(p.grid, most);
  for (int64_t h = 0; h < s.kernel[0]; ++h)
    for (int64_t w = 0; w < s.kernel[1]; ++w) {
      const int64_t y = h * s.dilation[0], x = w * s.dilation[1];
      c.weight.push_back(h * s.kernel[1] + w);
      c.phase.push_back(p.line.phase(y % s.stride[0], x % s.stride[1]));
      c.shift.push_back(y / s.stride[0] * p.line.width + x / s.stride[1]);
    }
  p.classes.push_back(std::move(c));
  p.rows = s.out, p.inner = s.in;
  p.kernel = s.kernel[0] * s.kernel[1];
  count_taps(p);
  return p;
}

// Row i * stride + first of the input met the rows i + (first + padding - k * dilation) / stride of the output.
ConvolutionPlan plan_gradient(const ConvolutionSizes& s) {
  ConvolutionPlan p{};
  int64_t least[2] = {0, 0}, most[2] = {0, 0};
  const auto meets = [&](int d, int64_t first, int64_t k, int64_t& shift) {
    const int64_t at = first + s.padding[d] - k * s.dilation[d];
    shift = floor_div(at, s.stride[d]);
    return at == shift * s.stride[d];
  };
  int64_t shift;
  for (int d = 0; d < 2; ++d) {
    for (int64_t first = 0; first < s.stride[d]; ++first)
      for (int64_t k = 0; k < s.kernel[d]; ++k)
        if (meets(d, first, k, shift)) least[d] = std::min(least[d], shift), most[d] = std::max(most[d], shift);
    p.step[d] = s.stride[d];
    p.out_size[d] = s.size[d];
    p.grid[d] = ceil_div(s.size[d], s.stride[d]);
    p.line.step[d] = 1;
    p.line.before[d] = -least[d];
    p.line.size[d] = s.out_size[d];
    most[d] -= least[d];
  }
  p.line.images = s.batch;
  p.line.image = s.out_image;
  p.line.channel = s.out_size[0] * s.out_size[1];
  p.line.fit(p.grid, most);
  for (int64_t a = 0; a < std::min(s.stride[0], s.size[0]); ++a)
    for (int64_t b = 0; b < std::min(s.stride[1], s.size[1]); ++b) {
      OutputClass c{.first = {a, b}, .weight = {}, .at = {}, .phase = {}, .shift = {}};
      for (int64_t h = 0; h < s.kernel[0]; ++h)
        for (int64_t w = 0; w < s.kernel[1]; ++w) {
          int64_t y, x;
          if (!meets(0, a, h, y) || !meets(1, b, w, x)) continue;
          c.weight.push_back(h * s.kernel[1] + w);
          c.phase.push_back(p.line.phase(0, 0));
          c.shift.push_back((y - least[0]) * p.line.width + x - least[1]);
        }
      p.classes.push_back(std::move(c));
    }
  p.rows = s.in, p.inner = s.out;
  // Of a short image no tap may meet anything: all zeros.
  if (p.line.used.empty()) p.line.phase(0, 0);
  p.kernel = s.kernel[0] * s.kernel[1];
  count_taps(p);
  return p;
}

void find_targets(const ConvolutionPlan& p, const OutputClass& c, int64_t first, int64_t points, int64_t image,
                  std::vector<StoreTarget>& targets) {
  targets.clear();
  const int64_t end = ceil_div(p.out_size[1] - c.first[1], p.step[1]);
  for (int64_t group = 0; group < ceil_div(points, 16); ++group)
    for (int64_t i = 0; i < 16;) {
      const int64_t at = first + group * 16 + i, y = at / p.line.width, column = at % p.line.width;
      const int64_t batch = y / p.line.rows, row = (y % p.line.rows) * p.step[0] + c.first[0];
      const int64_t run = std::min(16 - i, p.line.width - column), count = std::min(run, end - column);
      if (batch < p.line.images && row < p.out_size[0] && count > 0)
        targets.push_back({group, static_cast<uint16_t>(((1u << count) - 1) << i),
                           batch * image + row * p.out_size[1] + (column - i) * p.step[1] + c.first[1]});
      i += run;
    }
}

}  // namespace flashover::cpu
