// How a product is cut into tiles: rows in chunks that stay in the L2 cache, within them panel by panel, so that each
// panel is read from memory once for a chunk and from L1 or L2 for all its rows.
#include "cpu_kernels/panels.h"

#include <algorithm>
#include <cstring>

#include "cpu_kernels/team.h"
#include "target/features.h"

namespace flashover::cpu {
namespace {

constexpr int64_t kChunkElements = 64 * 1024;  // of the rows
constexpr int64_t kMostRows = 14, kMostPanels = 2;

// Rows so far apart lie in the same few sets of the L1 cache, which holds too few of them then: they are copied.
constexpr int64_t kAlias = 512;
bool rows_collide(const PanelLinear& l, const VectorKernels& k) {
  return l.row_stride % kAlias == 0 && l.rows >= k.rows / 2 && l.inner > kPanel;
}

struct Cut {
  const PanelLinear& l;
  int64_t chunks, height, groups;  // chunks of `height` rows; groups of panels that a tile takes
  bool copies;

  void take(int64_t begin, int64_t end) const;
};

// Units [begin, end): the groups of the first chunk, of the second one, ...
void Cut::take(int64_t begin, int64_t end) const {
  int64_t here = -1;
  const float* x = nullptr;
  int64_t stride = l.row_stride;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t chunk = unit / groups, first = chunk * height, last = std::min(l.rows, first + height);
    if (chunk != here) {
      here = chunk;
      x = l.x + first * l.row_stride;
      if (copies) {
        stride = ceil_div(l.inner, kPanel) * kPanel + kPanel;
        auto* to = static_cast<float*>(scratch(static_cast<size_t>((last - first) * stride) * sizeof(float)));
        for (int64_t r = 0; r < last - first; ++r)
          std::memcpy(to + r * stride, x + r * l.row_stride, static_cast<size_t>(l.inner) * sizeof(float));
        x = to;
      }
    }
    take_panels(l, unit % groups, first, last, x, stride);
  }
}

// About how many picoseconds one thread needs: at 80 GF/s, or at 16 GB/s where rows are few.
int64_t picoseconds(const PanelLinear& l) {
  const double products = static_cast<double>(l.rows) * static_cast<double>(l.inner) * static_cast<double>(l.columns);
  const double numbers = static_cast<double>(l.inner) * static_cast<double>(l.columns);
  return static_cast<int64_t>(std::min(std::max(products * 25, numbers * 250), 1e15));
}

}  // namespace

void take_panels(const PanelLinear& l, int64_t group, int64_t first, int64_t last, const float* x, int64_t stride) {
  const VectorKernels& kernels = *vector_kernels();
  alignas(64) float c[kMostRows * kMostPanels * kPanel];
  const int64_t column = group * kernels.panels * kPanel,
                columns = std::min(kernels.panels * kPanel, l.columns - column);
  const int64_t panels = ceil_div(columns, kPanel), panel_stride = l.inner * kPanel;
  const float* const packed = l.packed + group * kernels.panels * panel_stride;
  const auto end_with = kernels.finish[static_cast<size_t>(l.activation)];
  const int64_t tiles = ceil_div(last - first, kernels.rows);
  for (int64_t t = 0; t < tiles; ++t) {  // as equal as can be
    const int64_t from = (last - first) * t / tiles, rows = (last - first) * (t + 1) / tiles - from;
    const auto multiply = kernels.multiply[panels - 1][rows - 1];
    for (int64_t k = 0; k < l.inner || k == 0; k += kInnerChunk) {
      const float* const here = packed + k * kPanel;
      // The last tiles fetch the next group: one panel each, or a single tile both.
      const float* const next[2] = {t + 1 == tiles - 1 || tiles == 1 ? here + kernels.panels * panel_stride : here,
                                    t == tiles - 1 ? here + (2 * kernels.panels - 1) * panel_stride : here};
      multiply(x + from * stride + k, stride, here, panel_stride, std::min(kInnerChunk, l.inner - k), k > 0,
               t + 2 >= tiles ? next : nullptr, c);
    }
    const int64_t row = first + from;
    end_with(c, panels * kPanel, rows, columns, l.bias ? l.bias + column : nullptr,
             l.added ? l.added + row * l.added_stride + column : nullptr, l.added_stride,
             l.out + row * l.out_stride + column, l.out_stride);
  }
}

void pack_panel(const float* weight, int64_t column_stride, int64_t inner_stride, int64_t columns, int64_t inner,
                float* panel) {
  if (columns < kPanel) std::fill(panel, panel + kPanel * inner, 0.f);
  if (const VectorKernels* kernels = vector_kernels(); kernels && inner_stride == 1)
    return kernels->transpose(weight, column_stride, columns, inner, panel, kPanel);
  constexpr int64_t kTogether = 64;  // elements of the inner dim whose lines stay in L1
  for (int64_t k = 0; k < inner; k += kTogether)
    for (int64_t c = 0; c < columns; ++c)
      for (int64_t i = k; i < std::min(k + kTogether, inner); ++i)
        panel[i * kPanel + c] = weight[c * column_stride + i * inner_stride];
}

void pack_panels(const float* weight, int64_t column_stride, int64_t inner_stride, int64_t columns, int64_t inner,
                 float* packed) {
  in_parallel(ceil_div(columns, kPanel), [&](int64_t panel) {
    pack_panel(weight + panel * kPanel * column_stride, column_stride, inner_stride,
               std::min(kPanel, columns - panel * kPanel), inner, packed + panel * kPanel * inner);
  });
}

void linear(const PanelLinear& l) {
  const VectorKernels& kernels = *vector_kernels();
  const int64_t tile = kernels.rows;
  const int64_t most = std::max(2 * tile, kChunkElements / std::max<int64_t>(l.inner, 1));
  const int64_t height = ceil_div(ceil_div(l.rows, ceil_div(l.rows, most)), tile) * tile;
  const Cut cut{.l = l,
                .chunks = ceil_div(l.rows, height),
                .height = height,
                .groups = ceil_div(l.columns, kernels.panels * kPanel),
                .copies = rows_collide(l, kernels)};
  share_parts(cut.chunks * cut.groups, picoseconds(l), [&](int64_t begin, int64_t end) { cut.take(begin, end); });
}

}  // namespace flashover::cpu
