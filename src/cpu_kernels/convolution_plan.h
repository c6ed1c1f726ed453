// The geometry of a convolution (convolution.h): lines of points, taps and shifts.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cpu_kernels/convolution.h"
#include "cpu_kernels/linear.h"

namespace flashover::cpu {

// Point (row, column) of line (phase a, b) is element (row * step - before + a, column * step - before + b) of the
// image, or zero. Zeros behind a row are also those before the next one; the same with images.
struct Line {
  int64_t step[2], before[2], size[2];
  int64_t images, image, channel;                 // how many, elements from one to the next
  int64_t rows, width;                            // of an image, zeros included
  std::vector<std::pair<int64_t, int64_t>> used;  // phases

  int64_t points() const { return images * rows * width; }
  int64_t phase(int64_t a, int64_t b) {
    const auto at = static_cast<size_t>(std::find(used.begin(), used.end(), std::pair(a, b)) - used.begin());
    if (at == used.size()) used.emplace_back(a, b);
    return static_cast<int64_t>(at);
  }
  // `grid` points are read from in each dimension, up to `most` further on.
  void fit(const int64_t (&grid)[2], const int64_t (&most)[2]) {
    for (int d = 0; d < 2; ++d) {
      const int64_t zeros = ceil_div(std::max<int64_t>(0, before[d] - step[d] + 1), step[d]);
      const int64_t data = ceil_div(size[d] + before[d], step[d]), read = grid[d] + most[d];
      (d == 0 ? rows : width) = std::max({std::min(data, read), read - zeros, grid[d]});
    }
  }
  // Points of a segment in memory: an odd number of cache lines, so that channels do not share sets of the cache.
  static int64_t strip(int64_t points) { return (ceil_div(points, 16) | 1) * 16; }
};

// 16 points of a line: lane i of `mask` is at `offset` + i * step.
struct PointRun {
  uint16_t mask = 0;
  int64_t offset = 0;
};
struct PointRuns {
  struct Group {
    PointRun first;  // nearly always all
    int32_t more = 0, end = 0;
  };
  std::vector<Group> groups;
  std::vector<PointRun> more;
};
// Finds the runs of `points` points from `first` on.
PointRuns find_runs(const Line& l, std::pair<int64_t, int64_t> phase, int64_t first, int64_t points);

// A result of a sum over taps: every step[]-th row and column of an image from first[] on.
struct OutputClass {
  int64_t first[2];
  std::vector<int64_t> weight;  // of each tap: its point of the kernel
  std::vector<int64_t> at;      // ... where it reads: phase and shift, in points of the strip, once that is known
  std::vector<int64_t> phase, shift;
};

struct ConvolutionPlan {
  Line line;
  std::vector<OutputClass> classes;
  int64_t step[2], out_size[2], grid[2];  // of the results; points of the grid that are results
  int64_t rows, inner;                    // output and input channels of the sum
  int64_t span = 0;                       // the largest shift
  int64_t taps = 0;    // of all classes; where strides are longer than images not all of the kernel's are met
  int64_t kernel = 0;  // points of the kernel
};

ConvolutionPlan plan_forward(const ConvolutionSizes& s);
ConvolutionPlan plan_gradient(const ConvolutionSizes& s);  // of the input
// Without taps and padding rows need no zeros between them: they become one.
ConvolutionSizes joined_rows(ConvolutionSizes s);

// Where points of a result go: lane i of `mask` of a group of 16 to `offset` + i * step.
struct StoreTarget {
  int64_t group;
  uint16_t mask;
  int64_t offset;
};
void find_targets(const ConvolutionPlan& p, const OutputClass& c, int64_t first, int64_t points, int64_t image,
                  std::vector<StoreTarget>& targets);

}  // namespace flashover::cpu
