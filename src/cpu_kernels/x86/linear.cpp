// Packs rows, multiplies them with panels of the packed weight, and finishes with bias and activation.
#include "cpu_kernels/linear.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "cpu_kernels/team.h"
#include "target/features.h"
// Last: the rest of the file is for AVX512 and AMX.
#include "cpu_kernels/x86/lanes.h"

namespace flashover::cpu {

bool has_amx_bf16() {
  static const bool has = [] {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return target::missing_feature("avx512 avx512_bf16 amx_bf16").empty() &&
           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
}

namespace {

constexpr int64_t kPanelStep = kBlock * kBlock;  // elements of a panel for one block of the inner dim
// A panel's part for so many blocks (24 KB) stays in L1 while rows stream past it.
constexpr int64_t kChunk = 12;

}  // namespace

int64_t packed_elements(int64_t columns, int64_t inner) {
  return ceil_div(columns, kBlock) * kBlock * ceil_div(inner, kBlock) * kBlock;
}

void pack_weight(const uint16_t* weight, int64_t column_stride, int64_t inner_stride, int64_t columns, int64_t inner,
                 uint16_t* packed) {
  const int64_t blocks = ceil_div(inner, kBlock);
  in_parallel(ceil_div(columns, kBlock), [&](int64_t panel) {
    uint16_t* out = packed + panel * blocks * kPanelStep;
    for (int64_t block = 0; block < blocks; ++block)
      for (int64_t tile = 0; tile < 2; ++tile)
        for (int64_t pair = 0; pair < kTile; ++pair)
          for (int64_t c = 0; c < kTile; ++c)
            for (int64_t i = 0; i < 2; ++i) {
              const int64_t column = panel * kBlock + tile * kTile + c, k = block * kBlock + pair * 2 + i;
              *out++ = column < columns && k < inner ? weight[column * column_stride + k * inner_stride] : uint16_t{0};
            }
  });
}

FLASHOVER_AVX512_BEGIN
namespace {

// Up to 32 rows of the left matrix, `blocks` blocks of the inner dim from `first` on, as tiles one behind the other.
// (Tile loads wait for each of their 16 lines; ordinary ones overlap. The incomplete rows and the last block get
// zeros.)
void pack_rows(const Linear& l, int64_t row, int64_t rows, int64_t tiles, int64_t first, int64_t blocks,
               uint16_t* out) {
  for (int64_t t = 0; t < tiles; ++t)
    for (int64_t r = 0; r < kTile; ++r) {
      uint16_t* to = out + t * kTile * kBlock + r * kBlock;
      const int64_t here = t * kTile + r, step = tiles * kTile * kBlock;
      const uint16_t* from = l.x + (row + here) * l.row_stride + first * kBlock;
      const int64_t left = here < rows ? l.inner - first * kBlock : 0;  // elements
      for (int64_t b = 0; b < blocks; ++b, to += step) {
        const int64_t n = left - b * kBlock;
        const __mmask32 mask = n >= kBlock ? ~__mmask32{0} : n <= 0 ? __mmask32{0} : (__mmask32{1} << n) - 1;
        _mm512_store_si512(to, _mm512_maskz_loadu_epi16(mask, from + (mask ? b * kBlock : 0)));
      }
    }
}

// c (tiles of 16 x 16, two by two) gets rows x panel, added to what is there unless `fresh`.
template <bool two>
void multiply(const uint16_t* rows, int64_t blocks, const uint16_t* panel, float* c, bool fresh) {
  __asm__ volatile("" ::: "memory");  // the tile loads do not say that they read memory
  if (fresh) {
    zero_sums<two>();
  } else {
    _tile_loadd(0, c, 64);
    _tile_loadd(1, c + 256, 64);
    if (two) {
      _tile_loadd(2, c + 512, 64);
      _tile_loadd(3, c + 768, 64);
    }
  }
  for (int64_t b = 0; b < blocks; ++b) {
    _tile_loadd(6, panel, 64);
    _tile_loadd(7, panel + 512, 64);
    _tile_loadd(4, rows, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (two) {
      _tile_loadd(5, rows + 512, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    rows += two ? 1024 : 512;
    panel += kPanelStep;
  }
  store_sums<two>(c);
}

template <__m512 (*activation)(__m512)>
void finish(const float* c, int64_t rows, const uint16_t* bias, int64_t columns, uint16_t* out, int64_t stride) {
  for (int64_t tile = 0; tile < 2; ++tile) {
    const __mmask16 mask = first_lanes(columns - tile * kTile);
    if (!mask) break;
    const __m512 b = bias ? load_bf16(bias + tile * kTile, mask) : _mm512_setzero_ps();
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = c + (r / kTile) * 512 + tile * 256 + (r % kTile) * kTile;
      store_bf16(out + r * stride + tile * kTile, mask, activation(_mm512_add_ps(_mm512_load_ps(from), b)));
    }
  }
}
using Finish = void (*)(const float*, int64_t, const uint16_t*, int64_t, uint16_t*, int64_t);
constexpr Finish kFinish[] = {finish<lane_same>, finish<lane_relu>,    finish<lane_gelu>,     finish<lane_gelu_tanh>,
                              finish<lane_silu>, finish<lane_sigmoid>, finish<lane_hardswish>};

// Rows [m0, m1) times panels [p0, p1).
void run_task(const Linear& l, int64_t m0, int64_t m1, int64_t p0, int64_t p1) {
  const int64_t blocks = ceil_div(l.inner, kBlock), row_blocks = ceil_div(m1 - m0, kBlock);
  const int64_t chunks = row_blocks == 1 ? 1 : ceil_div(blocks, kChunk), chunk = ceil_div(blocks, chunks);
  const int64_t sums = (chunks == 1 ? 1 : row_blocks * (p1 - p0)) * kPanelStep;
  auto* c = static_cast<float*>(scratch(static_cast<size_t>(sums * 4 + chunk * kPanelStep * 2)));
  auto* rows = reinterpret_cast<uint16_t*>(c + sums);
  for (int64_t k = 0; k < blocks; k += chunk) {
    const int64_t end = std::min(k + chunk, blocks);
    for (int64_t m = 0; m < row_blocks; ++m) {
      const int64_t row = m0 + m * kBlock, here = std::min(kBlock, m1 - row);
      const bool two = here > kTile;
      pack_rows(l, row, here, two ? 2 : 1, k, end - k, rows);
      for (int64_t p = p0; p < p1; ++p) {
        const uint16_t* panel = l.packed + (p * blocks + k) * kPanelStep;
        float* block = chunks == 1 ? c : c + (m * (p1 - p0) + p - p0) * kPanelStep;
        (two ? multiply<true> : multiply<false>)(rows, end - k, panel, block, k == 0);
        if (end < blocks) continue;
        const int64_t column = p * kBlock;
        kFinish[static_cast<size_t>(l.activation)](block, here, l.bias ? l.bias + column : nullptr, l.columns - column,
                                                   l.out + row * l.columns + column, l.columns);
      }
    }
  }
}

}  // namespace

void linear(const Linear& l) {
  const int64_t row_blocks = ceil_div(l.rows, kBlock), panels = ceil_div(l.columns, kBlock), team = team_size();
  // A task's sums (f32) and its rows fit in L2 beside the weight that streams by.
  int64_t m = std::min<int64_t>(row_blocks, 12), n = std::min<int64_t>(panels, std::max<int64_t>(1, 128 / m));
  const auto tasks = [&] { return ceil_div(row_blocks, m) * ceil_div(panels, n); };
  const double work = 2.0 * static_cast<double>(l.rows) * static_cast<double>(l.inner) * static_cast<double>(l.columns);
  const int64_t target_tasks = work < 4e6 ? 1 : team == 1 ? 1 : 4 * team;
  while (tasks() < target_tasks && n > 2) n = ceil_div(n, 2);
  while (tasks() < std::min<int64_t>(target_tasks, team) && (n > 1 || m > 1))
    (n > 1 ? n : m) = ceil_div(n > 1 ? n : m, 2);
  if (work < 4e6) m = row_blocks, n = panels;
  const int64_t across = ceil_div(panels, n);
  in_parallel(ceil_div(row_blocks, m) * across, [&](int64_t task) {
    const int64_t m0 = task / across * m * kBlock, p0 = task % across * n;
    configure_tiles();
    run_task(l, m0, std::min(l.rows, m0 + m * kBlock), p0, std::min(panels, p0 + n));
    _tile_release();
  });
}

FLASHOVER_AVX512_END

}  // namespace flashover::cpu
