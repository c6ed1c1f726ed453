// Linear on f32 numbers through the bf16x3 split; rows and columns that it cannot represent, in f32 arithmetic.
#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu_kernels/linear.h"
#include "cpu_kernels/team.h"
// Last: the rest of the file is for AVX512 and AMX.
#include "cpu_kernels/x86/bf16x3.h"

namespace flashover::cpu {
namespace {

// Sums of so many blocks of the inner dim are made apart: with fewer, reading and writing the sums takes longer than
// reading rows and weight from L2.
constexpr int64_t kChunk = 24;
// Rows (in blocks) and columns (in panels) of a task: packed rows (144 KB a block) and sums stay in L2.
constexpr int64_t kTaskRows = 8, kTaskPanels = 24;

}  // namespace

int64_t packed_f32_elements(int64_t columns, int64_t inner) {
  const int64_t panels = ceil_div(columns, kBlock);
  return panels * ceil_div(inner, kBlock) * kStep + ceil_div(panels, kBlock) * kBlock;
}

FLASHOVER_AVX512_BEGIN
namespace {

// Block [first column, first inner element) of the weight, zeros behind its ends.
void read_block(const float* weight, int64_t column_stride, int64_t inner_stride, int64_t columns, int64_t inner,
                float (&block)[kBlock][kBlock]) {
  if (columns < kBlock || inner < kBlock) std::memset(block, 0, sizeof block);
  columns = std::min(columns, kBlock), inner = std::min(inner, kBlock);
  if (inner_stride == 1) {
    for (int64_t c = 0; c < columns; ++c)
      std::memcpy(block[c], weight + c * column_stride, static_cast<size_t>(inner) * sizeof(float));
  } else {
    for (int64_t k = 0; k < inner; ++k)
      for (int64_t c = 0; c < columns; ++c) block[c][k] = weight[c * column_stride + k * inner_stride];
  }
}

// activation(c (+ earlier) + bias) to the result
template <__m512 (*activation)(__m512)>
void finish(const float* c, const float* earlier, int64_t rows, const float* bias, int64_t columns, float* out,
            int64_t stride) {
  for (int64_t tile = 0; tile < 2; ++tile) {
    const __mmask16 mask = first_lanes(columns - tile * kTile);
    if (!mask) break;
    const __m512 b = bias ? _mm512_maskz_loadu_ps(mask, bias + tile * kTile) : _mm512_setzero_ps();
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = r / kTile * 512 + tile * 256 + r % kTile * kTile;
      __m512 x = _mm512_load_ps(c + at);
      if (earlier) x = _mm512_add_ps(_mm512_load_ps(earlier + at), x);
      _mm512_mask_storeu_ps(out + r * stride + tile * kTile, mask, activation(_mm512_add_ps(x, b)));
    }
  }
}
using Finish = void (*)(const float*, const float*, int64_t, const float*, int64_t, float*, int64_t);
constexpr Finish kFinish[] = {finish<lane_same>, finish<lane_relu>,    finish<lane_gelu>,     finish<lane_gelu_tanh>,
                              finish<lane_silu>, finish<lane_sigmoid>, finish<lane_hardswish>};

// One row times one panel in f32 arithmetic: the weight's numbers are put together again, unless the panel `keeps`
// them.
void plain_row(const LinearF32& l, int64_t row, int64_t panel, bool keeps, float* c) {
  const int64_t blocks = ceil_div(l.inner, kBlock);
  const float* x = l.x + row * l.row_stride;
  for (int64_t tile = 0; tile < 2; ++tile) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t k = 0; k < l.inner; ++k) {
      const uint16_t* block = l.packed + (panel * blocks + k / kBlock) * kStep;
      const uint16_t* pairs = block + tile * (kBlockElements / 2) + k % kBlock / 2 * kBlock;
      const auto term = [&](int64_t i) __attribute__((always_inline)) {
        const __m512i pair = _mm512_load_si512(pairs + i * kBlockElements);
        return _mm512_castsi512_ps(k % 2 ? _mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xffff0000)))
                                         : _mm512_slli_epi32(pair, 16));
      };
      const __m512 weight =
          keeps ? _mm512_loadu_ps(reinterpret_cast<const float*>(block) + k % kBlock * kBlock + tile * kTile)
                : _mm512_add_ps(term(0), _mm512_add_ps(term(1), term(2)));
      sum = _mm512_fmadd_ps(_mm512_set1_ps(x[k]), weight, sum);
    }
    _mm512_store_ps(c + tile * 256, sum);
  }
}

// Row blocks [m0, m1) times panels [p0, p1).
void run_task(const LinearF32& l, int64_t m0, int64_t m1, int64_t p0, int64_t p1) {
  const int64_t blocks = ceil_div(l.inner, kBlock), height = m1 - m0;
  const int64_t chunks = ceil_div(blocks, kChunk), chunk = ceil_div(blocks, chunks);
  const int64_t sums = chunks == 1 ? 0 : height * (p1 - p0) * kBlockElements;
  auto* earlier =
      static_cast<float*>(scratch(static_cast<size_t>((sums + kBlockElements) * 4 + height * chunk * kStep * 2)));
  float* c = earlier + sums;
  auto* rows = reinterpret_cast<uint16_t*>(c + kBlockElements);
  const uint16_t* flags = l.packed + ceil_div(l.columns, kBlock) * blocks * kStep;
  const Finish end_with = kFinish[static_cast<size_t>(l.activation)];
  uint32_t bad[kTaskRows] = {};
  for (int64_t k = 0; k < blocks; k += chunk) {
    const int64_t end = std::min(k + chunk, blocks);
    for (int64_t m = 0; m < height; ++m) {
      const int64_t row = (m0 + m) * kBlock;
      bad[m] |= pack_rows(l.x + row * l.row_stride + k * kBlock, l.row_stride, std::min(kBlock, l.rows - row),
                          l.inner - k * kBlock, end - k, rows + m * chunk * kStep);
    }
    for (int64_t p = p0; p < p1; ++p) {
      const uint16_t* panel = l.packed + (p * blocks + k) * kStep;
      // A block of the weight is 96 lines, in six parts of 16.
      const uint16_t* next = p + 1 < p1 ? panel + blocks * kStep : l.packed + (p0 * blocks + end % blocks) * kStep;
      const int64_t lines = ceil_div(16, height);
      for (int64_t m = 0; m < height; ++m) {
        const int64_t row = (m0 + m) * kBlock, here = std::min(kBlock, l.rows - row), column = p * kBlock;
        float* sum = chunks == 1 ? nullptr : earlier + (m * (p1 - p0) + p - p0) * kBlockElements;
        (here > kTile ? multiply<true> : multiply<false>)(rows + m * chunk * kStep, end - k, panel,
                                                          sum && k == 0 ? sum : c, next, lines);
        next += 6 * lines * 32 * (end - k);
        if (end < blocks) {
          if (k > 0) add_tiles(c, here > kTile ? kBlockElements : kBlockElements / 2, sum);
          continue;
        }
        const float* bias = l.bias ? l.bias + column : nullptr;
        float* out = l.out + row * l.columns + column;
        end_with(c, sum, here, bias, l.columns - column, out, l.columns);
        for (uint32_t left = flags[p] ? ~0u : bad[m]; left; left &= left - 1) {
          const int64_t r = std::countr_zero(left);
          if (r >= here) break;
          plain_row(l, row + r, p, flags[p] != 0, c);
          end_with(c, nullptr, 1, bias, l.columns - column, out + r * l.columns, l.columns);
        }
      }
    }
  }
}

}  // namespace

void pack_weight_f32(const float* weight, int64_t column_stride, int64_t inner_stride, int64_t columns, int64_t inner,
                     uint16_t* packed) {
  const int64_t blocks = ceil_div(inner, kBlock), panels = ceil_div(columns, kBlock);
  uint16_t* flags = packed + panels * blocks * kStep;
  std::fill(flags, flags + ceil_div(panels, kBlock) * kBlock, uint16_t{0});
  in_parallel(panels, [&](int64_t panel) {
    alignas(64) float block[kBlock][kBlock];
    __m512i largest[kBlock];
    for (__m512i& l : largest) l = _mm512_setzero_si512();
    const __m512i pairs = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                             _mm512_set1_epi32(kTile));
    const auto read = [&](int64_t b) {
      read_block(weight + panel * kBlock * column_stride + b * kBlock * inner_stride, column_stride, inner_stride,
                 columns - panel * kBlock, inner - b * kBlock, block);
    };
    uint16_t* const out = packed + panel * blocks * kStep;
    for (int64_t b = 0; b < blocks; ++b) {
      read(b);
      for (int64_t c = 0; c < kBlock; ++c) {
        const __m512 x = _mm512_load_ps(block[c]), y = _mm512_load_ps(block[c] + 16);
        const __m512i size = _mm512_set1_epi32(kNotSign);
        largest[c] = _mm512_max_epu32(largest[c], _mm512_max_epu32(_mm512_and_si512(size, _mm512_castps_si512(x)),
                                                                   _mm512_and_si512(size, _mm512_castps_si512(y))));
        const Bf16x3 p = split_bf16x3(x, y);  // pairs of the inner dim, which go one below the other
        for (int i = 0; i < 3; ++i)
          _mm512_i32scatter_epi32(
              out + b * kStep + i * kBlockElements + c / kTile * (kBlockElements / 2) + c % kTile * 2, pairs, p.term[i],
              4);
      }
    }
    for (const __m512i& l : largest)
      if (!in_range(_mm512_reduce_max_epu32(l))) flags[panel] = 1;
    // A panel with a column out of range keeps its f32 numbers, 32 columns side by side.
    for (int64_t b = 0; flags[panel] && b < blocks; ++b) {
      read(b);
      for (int64_t k = 0; k < kBlock; ++k)
        for (int64_t c = 0; c < kBlock; ++c)
          std::memcpy(out + b * kStep + 2 * (k * kBlock + c), &block[c][k], sizeof(float));
    }
  });
}

void linear(const LinearF32& l) {
  const int64_t row_blocks = ceil_div(l.rows, kBlock), panels = ceil_div(l.columns, kBlock), team = team_size();
  int64_t m = ceil_div(row_blocks, ceil_div(row_blocks, kTaskRows)),
          n = ceil_div(panels, ceil_div(panels, kTaskPanels));
  const auto tasks = [&] { return ceil_div(row_blocks, m) * ceil_div(panels, n); };
  const double work = 2.0 * static_cast<double>(l.rows) * static_cast<double>(l.inner) * static_cast<double>(l.columns);
  const int64_t target_tasks = work < 2e6 || team == 1 ? 1 : 4 * team;
  // Fewer columns mean that rows are packed more often, fewer rows that the weight is read more often.
  while (tasks() < target_tasks && (n > 8 || m > 4)) (n > 8 ? n : m) = ceil_div(n > 8 ? n : m, 2);
  while (tasks() < std::min<int64_t>(target_tasks, team) && (n > 1 || m > 1))
    (n > 1 ? n : m) = ceil_div(n > 1 ? n : m, 2);
  const int64_t across = ceil_div(panels, n);
  in_parallel(ceil_div(row_blocks, m) * across, [&](int64_t task) {
    const int64_t m0 = task / across * m, p0 = task % across * n;
    configure_tiles();
    run_task(l, m0, std::min(row_blocks, m0 + m), p0, std::min(panels, p0 + n));
    _tile_release();
  });
}

FLASHOVER_AVX512_END

}  // namespace flashover::cpu
