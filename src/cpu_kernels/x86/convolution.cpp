// Packs lines of an image and of the weight into tiles, and sums products over taps.
#include "cpu_kernels/convolution.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <type_traits>
#include <vector>

#include "cpu_kernels/team.h"
// Last: the rest of the file is for AVX512 and AMX.
#include "cpu_kernels/x86/line.h"

namespace flashover::cpu {
namespace {

int64_t weight_bytes(int64_t rows, int64_t inner, int64_t taps, bool f32) {
  return ceil_div(rows, kBlock) * ceil_div(inner, kBlock) * taps * (f32 ? kStep : kBlockElements) * 2;
}

}  // namespace

int64_t convolution_workspace(const ConvolutionSizes& s, bool f32) {
  const int64_t taps = s.kernel[0] * s.kernel[1];
  return std::max(weight_bytes(s.out, s.in, taps, f32), weight_bytes(s.in, s.out, taps, f32));
}

FLASHOVER_AVX512_BEGIN
namespace {

// 16 x 16 numbers of 32 bits.
void transpose(const uint16_t* from, uint16_t* to);

// `count` neighbours (16 at most) of each of `lanes` (16 at most) places `stride` apart, as vectors over the places.
template <typename T>
void across(const T* from, int64_t stride, int64_t lanes, int64_t count, uint16_t* to, __m512i& largest) {
  alignas(64) uint16_t rows[kBlockElements / 2];
  for (int64_t i = 0; i < kTile; ++i) {
    const __m512i x =
        Pack<T>::load(from + (i < lanes ? i * stride : 0), 1, largest, first_lanes(i < lanes ? count : 0));
    largest = _mm512_max_epu32(largest, Pack<T>::size(x));
    _mm512_store_si512(rows + i * 32, x);
  }
  transpose(rows, to);
}

// Weights of rows [row, row + 32) as left operands: for each block of the inner dim, each class, each tap. Taps are
// neighbours, and behind them either the inner dim (forward) or the rows.
template <typename T>
uint32_t pack_weight(const ConvolutionPlan& p, const T* weight, int64_t row_stride, int64_t inner_stride, int64_t row,
                     int64_t block, uint16_t* out) {
  constexpr int64_t step = Pack<T>::kTerms * kBlockElements;
  std::vector<uint16_t*> to(static_cast<size_t>(p.kernel));
  for (const OutputClass& c : p.classes)
    for (int64_t tap : c.weight) to[static_cast<size_t>(tap)] = out, out += step;
  __m512i largest = _mm512_setzero_si512();
  const int64_t k = block * kBlock, rows = std::min(kBlock, p.rows - row), left = p.inner - k;
  // Neighbours: (row, tap) or, for one row, taps.
  const bool together = row_stride == p.kernel;
  alignas(64) uint16_t vectors[2][kBlockElements / 2];
  for (int64_t r = 0; r < kBlock; r += together ? kBlock : 1) {
    if (r >= rows) {
      for (uint16_t* t : to)
        for (int64_t i = 0; t && i < Pack<T>::kTerms; ++i)
          _mm512_store_si512(t + i * kBlockElements + r * kBlock, _mm512_setzero_si512());
      continue;
    }
    const int64_t neighbours = together ? kBlock * p.kernel : p.kernel, there = together ? rows * p.kernel : p.kernel;
    const T* from = weight + (row + r) * row_stride + k * inner_stride;
    for (int64_t j = 0; j < neighbours; j += 16) {
      const int64_t count = std::min<int64_t>(16, there - j);
      for (int64_t half = 0; half < 2; ++half)
        across(from + (count > 0 ? j : 0) + (left > half * 16 ? half * 16 * inner_stride : 0), inner_stride,
               left - half * 16, count, vectors[half], largest);
      for (int64_t i = 0; i < std::min<int64_t>(16, neighbours - j); ++i)
        if (uint16_t* t = to[static_cast<size_t>((j + i) % p.kernel)])
          Pack<T>::store(_mm512_load_si512(vectors[0] + i * 32), _mm512_load_si512(vectors[1] + i * 32),
                         t + (r + (j + i) / p.kernel) * kBlock, kBlockElements);
    }
  }
  return _mm512_reduce_max_epu32(largest);
}

template <typename T>
void write(const ConvolutionPlan& p, const float* c, const float* earlier, const std::vector<StoreTarget>& targets,
           int64_t rows, const T* bias, T* out, int64_t channel) {
  const __m512i index = _mm512_mullo_epi32(lane_indices(), _mm512_set1_epi32(static_cast<int>(p.step[1])));
  for (int64_t r = 0; r < rows; ++r, out += channel) {
    const int64_t at = r / kTile * 512 + r % kTile * kTile;
    __m512 x[2] = {_mm512_load_ps(c + at), _mm512_load_ps(c + at + 256)};
    if (earlier)
      for (int t = 0; t < 2; ++t) x[t] = _mm512_add_ps(_mm512_load_ps(earlier + at + t * 256), x[t]);
    if (bias)
      for (int t = 0; t < 2; ++t) x[t] = _mm512_add_ps(x[t], _mm512_set1_ps(Pack<T>::number(bias[r])));
    for (const StoreTarget& t : targets) Pack<T>::write(out + t.offset, p.step[1], index, t.mask, x[t.group]);
  }
}

void note(std::atomic<uint32_t>& most, uint32_t x) {
  uint32_t old = most.load(std::memory_order_relaxed);
  while (x > old && !most.compare_exchange_weak(old, x, std::memory_order_relaxed)) {
  }
}

// Steps whose products are added up by the unit: longer sums round more.
constexpr int64_t kSummed = 24;
constexpr int64_t kStripBytes = 640 << 10;

template <typename T>
bool run(ConvolutionPlan& p, const T* source, const T* weight, int64_t row_stride, int64_t inner_stride, const T* bias,
         T* out, int64_t out_image, int64_t threads, uint16_t* packed) {
  constexpr int64_t terms = Pack<T>::kTerms, step = terms * kBlockElements;
  const int64_t panels = ceil_div(p.rows, kBlock), blocks = ceil_div(p.inner, kBlock), team = threads;
  std::atomic<uint32_t> largest_weight{0}, largest_source{0};
  in_parallel(panels * blocks, [&](int64_t task) {
    const FlushDenormals flush;
    note(largest_weight, pack_weight<T>(p, weight, row_stride, inner_stride, task / blocks * kBlock, task % blocks,
                                        packed + task * p.taps * step));
  });

  // Segments of up to 16 blocks of points; where that gives too few tasks, output channels are shared as well.
  const int64_t points = ceil_div(p.line.points(), kBlock);
  const int64_t segments = ceil_div(points, 16), segment = ceil_div(points, segments);
  const int64_t groups = team == 1 ? 1 : std::min(panels, ceil_div(2 * team, segments));
  const int64_t length = p.line.strip(segment * kBlock + p.span + 16),
                phases = static_cast<int64_t>(p.line.used.size());
  const int64_t term = kTile * length * 4, block = phases * terms * term;  // bytes
  const int64_t chunk = ceil_div(blocks, ceil_div(blocks, std::max<int64_t>(1, kStripBytes / block)));
  for (OutputClass& c : p.classes) {
    c.at.clear();
    for (int64_t k = 0; k < chunk; ++k)
      for (size_t t = 0; t < c.shift.size(); ++t)
        c.at.push_back(k * block + c.phase[t] * terms * term + c.shift[t] * 4);
  }
  const auto left = [](const uint16_t* a) {
    return TileOperand{reinterpret_cast<const char*>(a), nullptr, step * 2, 64, kBlockElements * 2, kBlockElements};
  };
  const auto right = [&](const OutputClass& of, const char* b) {
    return TileOperand{b, of.at.data(), 0, length * 4, term, 64};
  };
  const int64_t classes = static_cast<int64_t>(p.classes.size());
  in_parallel(segments * groups, [&](int64_t task) {
    const int64_t first = task / groups * segment, here = std::min(segment, points - first);
    const int64_t p0 = panels * (task % groups) / groups, p1 = panels * (task % groups + 1) / groups;
    const int64_t sums = chunk == blocks ? 0 : classes * here * (p1 - p0) * kBlockElements;
    if (here <= 0) return;
    auto* earlier = static_cast<float*>(scratch(static_cast<size_t>((sums + kBlockElements) * 4 + chunk * block)));
    float* c = earlier + sums;
    auto* strip = reinterpret_cast<char*>(c + kBlockElements);
    configure_tiles();
    std::vector<StoreTarget> targets;
    for (int64_t k = 0; k < blocks; k += chunk) {
      const int64_t end = std::min(k + chunk, blocks);
      {
        const FlushDenormals flush;
        note(largest_source, pack_points<T>(p.line, source, p.inner, k, end - k, first * kBlock, length, strip));
      }
      float* sum = sums ? earlier : nullptr;
      for (int64_t panel = p0; panel < p1; ++panel) {
        const uint16_t* a = packed + (panel * blocks + k) * p.taps * step;
        const int64_t rows = std::min(kBlock, p.rows - panel * kBlock);
        const auto product = rows > kTile ? multiply<terms, true> : multiply<terms, false>;
        for (const OutputClass& cls : p.classes) {
          const int64_t taps = static_cast<int64_t>(cls.shift.size());
          // Blocks of the inner dim summed at once. (With several classes their taps lie class by class.)
          const int64_t run = classes > 1 ? 1 : std::max<int64_t>(1, kSummed / std::max<int64_t>(1, taps));
          for (int64_t m = 0; m < here; ++m) {
            const char* b = strip + m * kBlock * 4;
            float* into = sum && k == 0 ? sum : c;
            alignas(64) float part[kBlockElements];
            for (int64_t i = 0; i < end - k; i += run) {
              product(left(a + i * p.taps * step), right(cls, b + i * block), std::min(run, end - k - i) * taps,
                      i == 0 ? into : part);
              if (i > 0) add_tiles(part, rows > kTile ? kBlockElements : kBlockElements / 2, into);
            }
            if (end < blocks) {
              if (k > 0) add_tiles(c, rows > kTile ? kBlockElements : kBlockElements / 2, sum);
            } else {
              find_targets(p, cls, (first + m) * kBlock, kBlock, out_image, targets);
              write<T>(p, c, sum, targets, rows, bias ? bias + panel * kBlock : nullptr,
                       out + panel * kBlock * p.out_size[0] * p.out_size[1], p.out_size[0] * p.out_size[1]);
            }
            if (sum) sum += kBlockElements;
          }
          a += taps * step;
        }
      }
    }
    _tile_release();
  });
  return Pack<T>::fits(largest_weight, largest_source);
}

// ---- the gradient of the weight

// Left operand: channels as rows, points (q, q + 16) in pairs, so that every shift is an address: for each term, 32
// channels, the points.
template <typename T>
uint32_t pack_channels(const Line& l, const std::vector<PointRuns>& runs, const T* x, int64_t channels, int64_t length,
                       uint16_t* out) {
  constexpr int64_t terms = Pack<T>::kTerms;
  const int64_t term = kBlock * length * 2;
  const __m512i index = steps_of(l);
  __m512i largest = _mm512_setzero_si512();
  for (const PointRuns& phase : runs) {
    for (int64_t c = 0; c < kBlock; ++c) {
      uint16_t* row = out + c * length * 2;
      __m512i a = c < channels ? load_points(x + c * l.channel, l, phase, 0, index) : _mm512_setzero_si512();
      for (int64_t group = 0; group < length / 16; ++group) {
        const bool more = c < channels && group + 1 < length / 16;
        const __m512i b = more ? load_points(x + c * l.channel, l, phase, group + 1, index) : _mm512_setzero_si512();
        largest = _mm512_max_epu32(largest, Pack<T>::size(a));
        Pack<T>::store(a, b, row + group * 32, term);
        a = b;
      }
    }
    out += terms * term;
  }
  return _mm512_reduce_max_epu32(largest);
}

void transpose(const uint16_t* from, uint16_t* to) {  // 16 x 16 numbers of 32 bits
  __m512i r[16], t[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_load_si512(from + i * 32);
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
      r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
    }
  for (int j = 0; j < 4; ++j) {  // r[4 i + j]: columns 4 k + j of rows 4 i to 4 i + 3
    const __m512i a = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88), b = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88),
                  d = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
    _mm512_store_si512(to + j * 32, _mm512_shuffle_i32x4(a, c, 0x88));
    _mm512_store_si512(to + (8 + j) * 32, _mm512_shuffle_i32x4(a, c, 0xdd));
    _mm512_store_si512(to + (4 + j) * 32, _mm512_shuffle_i32x4(b, d, 0x88));
    _mm512_store_si512(to + (12 + j) * 32, _mm512_shuffle_i32x4(b, d, 0xdd));
  }
}

// Right operand: for each 32 points, each term, two tiles of 16 channels, rows of points (q, q + 16).
template <typename T>
uint32_t pack_columns(const Line& l, const PointRuns& runs, const T* x, int64_t channels, int64_t steps,
                      uint16_t* out) {
  constexpr int64_t terms = Pack<T>::kTerms;
  alignas(64) uint16_t tile[terms * kBlockElements / 2];
  const __m512i index = steps_of(l);
  __m512i largest = _mm512_setzero_si512();
  for (int64_t k = 0; k < steps; ++k, out += terms * kBlockElements)
    for (int64_t half = 0; half < 2; ++half) {
      for (int64_t r = 0; r < kTile; ++r) {
        const int64_t c = half * kTile + r;
        __m512i a = _mm512_setzero_si512(), b = a;
        if (c < channels) {
          a = load_points(x + c * l.channel, l, runs, 2 * k, index);
          b = load_points(x + c * l.channel, l, runs, 2 * k + 1, index);
          largest = _mm512_max_epu32(largest, _mm512_max_epu32(Pack<T>::size(a), Pack<T>::size(b)));
        }
        Pack<T>::store(a, b, tile + r * 32, kBlockElements / 2);
      }
      for (int64_t i = 0; i < terms; ++i)
        transpose(tile + i * (kBlockElements / 2), out + i * kBlockElements + half * (kBlockElements / 2));
    }
  return _mm512_reduce_max_epu32(largest);
}

struct GradientTasks {
  int64_t blocks, panels;                      // of input and of output channels
  int64_t points, segment;                     // blocks of points in all, in a segment
  int64_t block_groups, panel_groups, splits;  // how the tasks share them
};
// Sums of one split of the points take as much memory as the gradient.
constexpr int64_t kSumsBytes = 4 << 20, kColumnBytes = 512 << 10;

GradientTasks share_gradient(const ConvolutionSizes& s, const ConvolutionPlan& p, int64_t terms) {
  GradientTasks t{};
  t.blocks = ceil_div(s.in, kBlock), t.panels = ceil_div(s.out, kBlock);
  t.points = ceil_div(p.line.points(), kBlock);
  t.block_groups = t.panel_groups = 1;
  const int64_t team = s.threads, target_tasks = team == 1 ? 1 : 2 * team;
  const int64_t bytes = t.blocks * t.panels * p.taps * kBlockElements * 4;
  t.splits = std::clamp<int64_t>(kSumsBytes / bytes, 1, std::min(target_tasks, ceil_div(t.points, 16)));
  while (t.splits * t.block_groups * t.panel_groups < target_tasks &&
         (t.blocks > t.block_groups || t.panels > t.panel_groups))
    ++(t.blocks * t.panel_groups >= t.panels * t.block_groups && t.blocks > t.block_groups ? t.block_groups
       : t.panels > t.panel_groups                                                         ? t.panel_groups
                                                                                           : t.block_groups);
  const int64_t most =
      std::clamp<int64_t>(kColumnBytes / (ceil_div(t.panels, t.panel_groups) * terms * kBlockElements * 2), 4, 16);
  const int64_t share = ceil_div(t.points, t.splits);
  t.segment = ceil_div(share, ceil_div(share, most));
  return t;
}

// Products of so many steps at a time: what is read stays in L1 from tap to tap.
constexpr int64_t kSteps = 4;

template <typename T>
bool weight_gradient(const ConvolutionSizes& s, const T* grad, const T* x, T* out, float* sums) {
  constexpr int64_t terms = Pack<T>::kTerms;
  ConvolutionPlan p = plan_forward(s);
  const GradientTasks t = share_gradient(s, p, terms);
  const OutputClass& cls = p.classes[0];
  const int64_t at_once = p.taps == 1 ? t.segment : kSteps;
  const int64_t taps = p.taps, whole = t.blocks * t.panels * taps * kBlockElements;
  Line line = p.line;  // of the results
  for (int d = 0; d < 2; ++d) line.step[d] = 1, line.before[d] = 0, line.size[d] = s.out_size[d];
  line.image = s.out_image;
  line.channel = s.out_size[0] * s.out_size[1];
  std::atomic<uint32_t> largest_grad{0}, largest_x{0};
  const int64_t length = Line::strip(t.segment * kBlock + p.span + 16);
  const int64_t term = kBlock * length * 4, strip = static_cast<int64_t>(p.line.used.size()) * terms * term;
  in_parallel(t.splits * t.block_groups * t.panel_groups, [&](int64_t task) {
    const int64_t split = task / (t.block_groups * t.panel_groups), bg = task / t.panel_groups % t.block_groups,
                  pg = task % t.panel_groups;
    const int64_t b0 = t.blocks * bg / t.block_groups, b1 = t.blocks * (bg + 1) / t.block_groups;
    const int64_t p0 = t.panels * pg / t.panel_groups, p1 = t.panels * (pg + 1) / t.panel_groups;
    const int64_t column = t.segment * terms * kBlockElements;  // elements of a panel in a segment
    auto* c = static_cast<float*>(scratch(static_cast<size_t>(kBlockElements * 4 + (p1 - p0) * column * 2 + strip)));
    auto* columns = reinterpret_cast<uint16_t*>(c + kBlockElements);
    auto* channels = columns + (p1 - p0) * column;
    configure_tiles();
    const int64_t last = t.points * (split + 1) / t.splits;
    bool fresh = true;
    for (int64_t q = t.points * split / t.splits; q < last; q += t.segment, fresh = false) {
      const int64_t steps = std::min(t.segment, last - q);
      const PointRuns grads = find_runs(line, {0, 0}, q * kBlock, steps * kBlock);
      std::vector<PointRuns> points;
      for (const auto& phase : p.line.used) points.push_back(find_runs(p.line, phase, q * kBlock, length));
      {
        const FlushDenormals flush;
        for (int64_t n = p0; n < p1; ++n)
          note(largest_grad, pack_columns<T>(line, grads, grad + n * kBlock * line.channel, s.out - n * kBlock, steps,
                                             columns + (n - p0) * column));
      }
      for (int64_t b = b0; b < b1; ++b) {
        {
          const FlushDenormals flush;
          note(largest_x,
               pack_channels<T>(p.line, points, x + b * kBlock * p.line.channel, s.in - b * kBlock, length, channels));
        }
        const bool two = s.in - b * kBlock > kTile;
        const auto product = two ? multiply<terms, true> : multiply<terms, false>;
        for (int64_t n = p0; n < p1; ++n) {
          float* const sum = sums + split * whole + (b * t.panels + n) * taps * kBlockElements;
          for (int64_t k = 0; k < steps; k += at_once)
            for (int64_t tap = 0; tap < taps; ++tap) {
              const auto i = static_cast<size_t>(tap);
              const bool first = fresh && k == 0;
              const TileOperand left{reinterpret_cast<const char*>(channels) + cls.phase[i] * terms * term +
                                         (cls.shift[i] + k * kBlock) * 4,
                                     nullptr,
                                     kBlock * 4,
                                     length * 4,
                                     term,
                                     term / 2};
              const TileOperand right{
                  reinterpret_cast<const char*>(columns + (n - p0) * column + k * terms * kBlockElements),
                  nullptr,
                  terms * kBlockElements * 2,
                  64,
                  kBlockElements * 2,
                  kBlockElements};
              product(left, right, std::min(at_once, steps - k), first ? sum + tap * kBlockElements : c);
              if (!first) add_tiles(c, two ? kBlockElements : kBlockElements / 2, sum + tap * kBlockElements);
            }
        }
      }
    }
    _tile_release();
  });
  if (!Pack<T>::fits(largest_grad, largest_x)) return false;
  // Splits are added up and go to [out][in][tap].
  in_parallel(t.blocks * t.panels, [&](int64_t task) {
    const int64_t b = task / t.panels, n = task % t.panels;
    const __m512i index = _mm512_mullo_epi32(lane_indices(), _mm512_set1_epi32(static_cast<int>(taps)));
    alignas(64) uint16_t across[kBlockElements / 2];
    for (int64_t tap = 0; tap < taps; ++tap) {
      float* const sum = sums + (task * taps + tap) * kBlockElements;
      for (int64_t split = 1; split < t.splits; ++split) add_tiles(sum + split * whole, kBlockElements, sum);
      for (int64_t tile = 0; tile < 4; ++tile) {
        const int64_t in = b * kBlock + tile / 2 * kTile, to = n * kBlock + tile % 2 * kTile;
        const __mmask16 mask = first_lanes(s.in - in);
        if (!mask || to >= s.out) continue;
        transpose(reinterpret_cast<const uint16_t*>(sum + tile * 256), across);
        for (int64_t o = 0; o < std::min(kTile, s.out - to); ++o)
          Pack<T>::write(out + ((to + o) * s.in + in) * taps + tap, taps, index, mask, _mm512_load_ps(across + o * 32));
      }
    }
  });
  return true;
}

}  // namespace

template <typename T>
bool convolution(const ConvolutionSizes& s, const T* x, const T* weight, const T* bias, T* out, void* workspace) {
  ConvolutionPlan p = plan_forward(joined_rows(s));
  const int64_t taps = s.kernel[0] * s.kernel[1];
  return run<T>(p, x, weight, s.in * taps, taps, bias, out, s.out_image, s.threads, static_cast<uint16_t*>(workspace));
}

template <typename T>
bool convolution_input_gradient(const ConvolutionSizes& s, const T* grad, const T* weight, T* out, void* workspace) {
  ConvolutionPlan p = plan_gradient(joined_rows(s));
  const int64_t taps = s.kernel[0] * s.kernel[1];
  return run<T>(p, grad, weight, taps, s.in * taps, nullptr, out, s.in_image, s.threads,
                static_cast<uint16_t*>(workspace));
}

template <typename T>
bool convolution_weight_gradient(const ConvolutionSizes& s, const T* grad, const T* x, T* out, void* workspace) {
  return weight_gradient<T>(joined_rows(s), grad, x, out, static_cast<float*>(workspace));
}

template bool convolution<float>(const ConvolutionSizes&, const float*, const float*, const float*, float*, void*);
template bool convolution<uint16_t>(const ConvolutionSizes&, const uint16_t*, const uint16_t*, const uint16_t*,
                                    uint16_t*, void*);
template bool convolution_input_gradient<float>(const ConvolutionSizes&, const float*, const float*, float*, void*);
template bool convolution_input_gradient<uint16_t>(const ConvolutionSizes&, const uint16_t*, const uint16_t*, uint16_t*,
                                                   void*);
template bool convolution_weight_gradient<float>(const ConvolutionSizes&, const float*, const float*, float*, void*);
template bool convolution_weight_gradient<uint16_t>(const ConvolutionSizes&, const uint16_t*, const uint16_t*,
                                                    uint16_t*, void*);

FLASHOVER_AVX512_END

int64_t weight_gradient_workspace(const ConvolutionSizes& s, bool f32) {
  ConvolutionPlan p = plan_forward(joined_rows(s));
  const GradientTasks t = share_gradient(s, p, f32 ? 3 : 1);
  return t.splits * t.blocks * t.panels * p.taps * kBlockElements * 4;
}

}  // namespace flashover::cpu
