// Packs panels of both operands at each call, transposed or not, and multiplies block by block.
#include "cpu_kernels/product.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu_kernels/team.h"
// Last: the rest of the file is for AVX512 and AMX.
#include "cpu_kernels/x86/bf16x3.h"

namespace flashover::cpu {
namespace {

constexpr int64_t kTiles = kBlock * kBlock;  // sums of a block of the result, as four tiles
constexpr int64_t kMostRows = 64;            // blocks of rows of a task ...
constexpr int64_t kMostSums = 16;            // ... whose sums wait for the next chunk of the inner dim
constexpr int64_t kShort = 8;                // blocks of the inner dim of bf16 rows that stay in L1
constexpr int64_t kGroup = 16;               // panels that are packed at a time, at most ...
constexpr int64_t kGroupBytes = 900 << 10;   // ... and together

template <typename T>
struct Kind;
template <>
struct Kind<float> {
  static constexpr int kTerms = 3;
  static constexpr int64_t kChunk = 24;   // blocks of the inner dim that are packed at a time, about
  static constexpr int64_t kFetches = 6;  // a multiplication of blocks asks for lines
};
template <>
struct Kind<uint16_t> {
  static constexpr int kTerms = 1;
  static constexpr int64_t kChunk = 64;
  static constexpr int64_t kFetches = 1;
};
template <typename T>
constexpr int64_t kSize = Kind<T>::kTerms* kBlockElements;  // elements of a packed block

// Exponents of largest numbers.
constexpr int kLeastExponent = -100, kLeastProduct = -90;
constexpr uint32_t bits_of(int exponent) { return static_cast<uint32_t>(127 + exponent) << 23; }

// How the tasks divide the work.
struct Split {
  int64_t rows, panels;  // blocks of a task
};

}  // namespace

FLASHOVER_AVX512_BEGIN
namespace {

inline void transpose16(__m512i (&v)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 4) {
    const __m512i a = _mm512_unpacklo_epi32(v[i], v[i + 1]), b = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    const __m512i c = _mm512_unpacklo_epi32(v[i + 2], v[i + 3]), d = _mm512_unpackhi_epi32(v[i + 2], v[i + 3]);
    t[i] = _mm512_unpacklo_epi64(a, c);
    t[i + 1] = _mm512_unpackhi_epi64(a, c);
    t[i + 2] = _mm512_unpacklo_epi64(b, d);
    t[i + 3] = _mm512_unpackhi_epi64(b, d);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88), b = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88),
                  d = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
    v[i] = _mm512_shuffle_i32x4(a, c, 0x88);
    v[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
    v[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
    v[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

// 32 x 32 elements (or what there is of them) with one element behind the other along the lines.
template <typename T>
struct Lines {
  const T* data;
  int64_t stride;
  int64_t lines, width;

  const T* line(int64_t i) const { return data + i * stride; }
};

template <bool full>
inline __m512i load(const Lines<float>& s, int64_t line, int64_t from) {
  if (full) return _mm512_loadu_si512(s.line(line) + from);
  const __mmask16 mask = line < s.lines ? first_lanes(s.width - from) : static_cast<__mmask16>(0);
  return mask ? _mm512_maskz_loadu_epi32(mask, s.line(line) + from) : _mm512_setzero_si512();
}
template <bool full>
inline __m512i load(const Lines<uint16_t>& s, int64_t line) {
  if (full) return _mm512_loadu_si512(s.line(line));
  if (line >= s.lines || s.width <= 0) return _mm512_setzero_si512();
  const __mmask32 mask = s.width >= kBlock ? ~__mmask32{0} : (__mmask32{1} << s.width) - 1;
  return _mm512_maskz_loadu_epi16(mask, s.line(line));
}

// Elements two steps apart in memory go through a block of their own.
template <typename T>
Lines<T> gathered(const T* from, int64_t line_stride, int64_t stride, int64_t lines, int64_t width,
                  T (&block)[kBlock][kBlock]) {
  for (int64_t i = 0; i < lines; ++i)
    for (int64_t j = 0; j < width; ++j) block[i][j] = from[i * line_stride + j * stride];
  return {block[0], kBlock, lines, width};
}

inline __m512i larger(__m512i largest, __m512i x) {
  return _mm512_max_epu32(largest, _mm512_and_si512(x, _mm512_set1_epi32(kNotSign)));
}

// Splits a block of f32 rows or columns (bf16x3.h): 16 lines of (row, pair of inner elements) for each tile of rows,
// 16 of (pair, column) for each tile of columns. A pair is elements p and p + 16 of the block's inner dim.
//
// along: the lines run along the inner dim. `largest` per row or column: one vector for each of the 32 if a row's inner
// elements come as one vector, else one for 16 (only the first two count).
template <bool columns, bool along, bool full>
inline void pack_block(const Lines<float>& s, int64_t tiles, uint16_t* out, __m512i* largest) {
  for (int64_t t = 0; t < tiles; ++t, out += kBlockElements / 2) {
    if constexpr (columns != along) {
      for (int64_t i = 0; i < kTile; ++i) {
        const int64_t line = columns ? i : t * kTile + i;
        const __m512i x = load<full>(s, line, columns ? t * kTile : 0);
        const __m512i y = columns ? load<full>(s, line + kTile, t * kTile) : load<full>(s, line, kTile);
        __m512i& most = largest[columns ? t : line];
        most = larger(larger(most, x), y);
        store_bf16x3(x, y, out + i * kBlock, kBlockElements);
      }
    } else {
      __m512i x[16], y[16];
      for (int64_t i = 0; i < kTile; ++i) {
        x[i] = columns ? load<full>(s, t * kTile + i, 0) : load<full>(s, i, t * kTile);
        y[i] = columns ? load<full>(s, t * kTile + i, kTile) : load<full>(s, i + kTile, t * kTile);
      }
      if constexpr (!columns) {  // the lines' lanes are rows
        for (int64_t i = 0; i < kTile; ++i) largest[t] = larger(larger(largest[t], x[i]), y[i]);
      }
      transpose16(x);
      transpose16(y);
      for (int64_t i = 0; i < kTile; ++i) {
        if constexpr (columns) largest[t] = larger(larger(largest[t], x[i]), y[i]);
        store_bf16x3(x[i], y[i], out + i * kBlock, kBlockElements);
      }
    }
  }
}

// The same for bf16: a pair is two elements side by side.
template <bool columns, bool along, bool full>
inline void pack_block(const Lines<uint16_t>& s, int64_t tiles, uint16_t* out, __m512i*) {
  if constexpr (columns == along) {  // lines of pairs, transposed
    if constexpr (along) {
      for (int64_t t = 0; t < tiles; ++t, out += kBlockElements / 2) {
        __m512i x[16];
        for (int64_t i = 0; i < kTile; ++i) x[i] = load<full>(s, t * kTile + i);
        transpose16(x);
        for (int64_t i = 0; i < kTile; ++i) _mm512_store_si512(out + i * kBlock, x[i]);
      }
      return;
    }
  } else if constexpr (along) {
    for (int64_t i = 0; i < tiles * kTile; ++i) _mm512_store_si512(out + i * kBlock, load<full>(s, i));
    return;
  }
  if constexpr (!along) {  // pairs lie in two lines
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                         5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    __m512i x[16], y[16];
    for (int64_t i = 0; i < kTile; ++i) {
      const __m512i first = load<full>(s, 2 * i), second = load<full>(s, 2 * i + 1);
      x[i] = _mm512_permutex2var_epi16(first, low, second);
      y[i] = _mm512_permutex2var_epi16(first, high, second);
    }
    if constexpr (!columns) {
      transpose16(x);
      if (tiles > 1) transpose16(y);
    }
    for (int64_t i = 0; i < kTile; ++i) {
      _mm512_store_si512(out + i * kBlock, x[i]);
      if (tiles > 1) _mm512_store_si512(out + kBlockElements / 2 + i * kBlock, y[i]);
    }
  }
}

// `blocks` blocks of 32 rows or columns. outer: the stride from one to the next.
template <typename T, bool columns>
void pack(const T* from, int64_t outer, int64_t inner, int64_t count, int64_t depth, int64_t tiles, uint16_t* out,
          __m512i* largest) {
  for (; depth > 0; depth -= kBlock, from += kBlock * inner, out += kSize<T>) {
    const int64_t deep = std::min(depth, kBlock);
    const bool full = deep == kBlock && count == kBlock;
    if (inner == 1 || outer == 1) {
      const Lines<T> s = inner == 1 ? Lines<T>{from, outer, count, deep} : Lines<T>{from, inner, deep, count};
      if (full && inner == 1)
        pack_block<columns, true, true>(s, tiles, out, largest);
      else if (full)
        pack_block<columns, false, true>(s, tiles, out, largest);
      else if (inner == 1)
        pack_block<columns, true, false>(s, tiles, out, largest);
      else
        pack_block<columns, false, false>(s, tiles, out, largest);
    } else {
      T block[kBlock][kBlock];
      pack_block<columns, true, false>(gathered(from, outer, inner, count, deep, block), tiles, out, largest);
    }
  }
}

// Lines of memory to be fetched: `rows` times `bytes`.
struct Far {
  const char* at = nullptr;
  int64_t stride = 0, bytes = 0, rows = 0;
  int64_t x = 0;

  int64_t lines() const { return rows * ((bytes + 63) / 64); }
  const char* next() {
    const char* line = at + x;
    x += 64;
    if (x >= bytes) x = 0, at += stride, --rows;
    return line;
  }
};
template <typename T>
Far far(const T* from, int64_t outer, int64_t inner, int64_t count, int64_t depth) {
  if (outer < inner) std::swap(outer, inner), std::swap(count, depth);
  return {reinterpret_cast<const char*>(from), outer * static_cast<int64_t>(sizeof(T)),
          std::min(inner, int64_t{64}) * depth * static_cast<int64_t>(sizeof(T)), count};
}

// While blocks are multiplied: where the result goes, then the next rows and panels, so many lines at a time.
struct Fetcher {
  Far result, rows, panels;
  int64_t row_lines = 0, panel_lines = 0;

  void operator()() {
    if (result.rows > 0) {
      _mm_prefetch(result.next(), _MM_HINT_ET0);
      if (result.rows > 0) _mm_prefetch(result.next(), _MM_HINT_ET0);
    }
    for (int64_t i = row_lines; i > 0 && rows.rows > 0; --i) _mm_prefetch(rows.next(), _MM_HINT_T1);
    for (int64_t i = panel_lines; i > 0 && panels.rows > 0; --i) _mm_prefetch(panels.next(), _MM_HINT_T1);
  }
};

// multiply() of bf16x3.h for bf16, to c or to what is there.
template <bool two>
void multiply_bf16(const uint16_t* a, int64_t blocks, const uint16_t* b, float* c, bool more, Fetcher& fetch) {
  __asm__ volatile("" ::: "memory");  // the tile loads do not say that they read memory
  if (more)
    load_sums<two>(c);
  else
    zero_sums<two>();
  for (int64_t k = 0; k < blocks; ++k, a += kBlockElements, b += kBlockElements) {
    _tile_loadd(6, b, 64);
    _tile_loadd(7, b + kBlockElements / 2, 64);
    _tile_loadd(4, a, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (two) {
      _tile_loadd(5, a + kBlockElements / 2, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    fetch();
  }
  store_sums<two>(c);
  __asm__ volatile("" ::: "memory");
}
inline __m512 load_elements(const float* p, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, p); }
inline __m512 load_elements(const uint16_t* p, __mmask16 mask) { return load_bf16(p, mask); }
inline void store_pair(float* p, __m512 x, __m512 y) {
  _mm512_storeu_ps(p, x);
  _mm512_storeu_ps(p + kTile, y);
}
inline void store_pair(uint16_t* p, __m512 x, __m512 y) { _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(y, x)); }
inline void store_elements(float* p, __mmask16 mask, __m512 x) { _mm512_mask_storeu_ps(p, mask, x); }
inline void store_elements(uint16_t* p, __mmask16 mask, __m512 x) { store_bf16(p, mask, x); }

// Where a block of the result goes.
template <typename T, typename O>
struct ResultBlock {
  O* out;  // [rows, columns]
  int64_t stride, rows, columns;
  const O* added;  // or null
  int64_t added_row, added_column;
};

// activation(c (+ earlier) + added) to the result; `c` as tiles
template <typename T, typename O, __m512 (*activation)(__m512)>
void finish(const float* c, const float* earlier, const ResultBlock<T, O>& to) {
  const __mmask16 low = first_lanes(to.columns), high = first_lanes(to.columns - kTile);
  const bool full = high == 0xffff;
  const auto value = [&](int64_t r, int64_t tile, __mmask16 mask) __attribute__((always_inline)) {
    const int64_t at = r / kTile * (kTiles / 2) + tile * 256 + r % kTile * kTile;
    __m512 x = _mm512_load_ps(c + at);
    if (earlier) x = _mm512_add_ps(_mm512_load_ps(earlier + at), x);
    if (to.added) {
      const O* added = to.added + r * to.added_row + tile * kTile * to.added_column;
      x = _mm512_add_ps(x, to.added_column ? load_elements(added, mask)
                                           : _mm512_broadcastss_ps(_mm512_castps512_ps128(load_elements(added, 1))));
    }
    return activation(x);
  };
  O* out = to.out;
  for (int64_t r = 0; r < to.rows; ++r, out += to.stride) {
    const __m512 x = value(r, 0, low);
    if (full) {
      store_pair(out, x, value(r, 1, high));
    } else {
      store_elements(out, low, x);
      if (high) store_elements(out + kTile, high, value(r, 1, high));
    }
  }
}
template <typename T, typename O>
using Finish = void (*)(const float*, const float*, const ResultBlock<T, O>&);
template <typename T, typename O>
constexpr Finish<T, O> kFinish[] = {finish<T, O, lane_same>,      finish<T, O, lane_relu>, finish<T, O, lane_gelu>,
                                    finish<T, O, lane_gelu_tanh>, finish<T, O, lane_silu>, finish<T, O, lane_sigmoid>,
                                    finish<T, O, lane_hardswish>};

// The rows of `which` times a panel in f32 arithmetic, from the operands themselves. c as tiles.
void plain(const ProductOf<float>& p, const float* a, const float* b, int64_t columns, uint32_t which, float* c) {
  alignas(64) float block[kBlock][kBlock];
  std::memset(c, 0, kTiles * sizeof(float));
  for (int64_t k = 0; k < p.inner; k += kBlock) {
    const int64_t deep = std::min(kBlock, p.inner - k);
    std::memset(block, 0, sizeof block);
    for (int64_t i = 0; i < deep; ++i)
      for (int64_t j = 0; j < columns; ++j) block[i][j] = b[(k + i) * p.b_inner + j * p.b_column];
    for (uint32_t left = which; left; left &= left - 1) {
      const int64_t r = std::countr_zero(left);
      float* to = c + r / kTile * (kTiles / 2) + r % kTile * kTile;
      __m512 x = _mm512_load_ps(to), y = _mm512_load_ps(to + 256);
      const float* row = a + r * p.a_row + k * p.a_inner;
      for (int64_t i = 0; i < deep; ++i) {
        const __m512 factor = _mm512_set1_ps(row[i * p.a_inner]);
        x = _mm512_fmadd_ps(factor, _mm512_load_ps(block[i]), x);
        y = _mm512_fmadd_ps(factor, _mm512_load_ps(block[i] + kTile), y);
      }
      _mm512_store_ps(to, x);
      _mm512_store_ps(to + 256, y);
    }
  }
}

// What a panel asks of the rows: their largest numbers are 0 or in [least, most), as bits.
struct Range {
  uint32_t least = 0, most = kMost;
};
Range range_of(const __m512i* largest) {
  alignas(64) uint32_t columns[kBlock];
  _mm512_store_si512(columns, largest[0]);
  _mm512_store_si512(columns + kTile, largest[1]);
  uint32_t least = kMost;
  for (uint32_t c : columns) {
    if (c == 0) continue;
    if (c < bits_of(kLeastExponent) || c >= kMost) return {~0u, 0};
    least = std::min(least, c);
  }
  const int exponent = static_cast<int>(least >> 23) - 127;
  return {bits_of(std::max(kLeastExponent, kLeastProduct - exponent)), kMost};
}
uint32_t out_of_range(const uint32_t* rows, const Range& range, int64_t count) {
  uint32_t bad = 0;
  for (int64_t r = 0; r < count; ++r)
    bad |= static_cast<uint32_t>(range.most == 0 || (rows[r] != 0 && (rows[r] < range.least || rows[r] >= range.most)))
           << r;
  return bad;
}

// Chunks of the inner dim, blocks of a chunk, panels of a group.
struct Chunks {
  template <typename T, typename O>
  explicit Chunks(const ProductOf<T, O>& p) {
    const int64_t blocks = ceil_div(p.inner, kBlock);
    count = std::max<int64_t>(1, (blocks + Kind<T>::kChunk / 2) / Kind<T>::kChunk);
    // Rows that are transposed take twice as long to pack: less of the inner dim, for more panels at a time.
    if (Kind<T>::kTerms == 3 && p.a_row == 1 && p.a_inner != 1 && p.columns > 12 * kBlock)
      count = std::max(count, ceil_div(blocks, 12));
    size = std::max<int64_t>(1, ceil_div(blocks, count));
    group = std::min({kGroup, std::max<int64_t>(1, kGroupBytes / (size * kSize<T> * 2)), ceil_div(p.columns, kBlock)});
  }
  int64_t count, size, group;
};

// Row blocks [m0, m1) times panels [p0, p1) of one of the batch, a group of panels after the other.
template <typename T, typename O>
class Task {
 public:
  Task(const ProductOf<T, O>& p, int64_t i, int64_t m0, int64_t m1)
      : p_(p), i_(i), m0_(m0), height_(m1 - m0), a_(p.a + i * p.a_batch), b_(p.b + i * p.b_batch) {
    const Chunks chunks(p);
    chunk_ = chunks.size;
    most_ = chunks.group;
    each_ = chunks.count > 1 ? most_ : 0;
    sums_ = (chunks.count > 1 ? height_ : bf16x3 ? 0 : 1) * most_ * kTiles;
    const int64_t packed = (most_ + 1) * chunk_ * kSize<T>;
    c_ = static_cast<float*>(scratch(static_cast<size_t>((kTiles + sums_) * 4 + packed * 2)));
    rows_ = reinterpret_cast<uint16_t*>(c_ + kTiles + sums_);
    panels_ = rows_ + chunk_ * kSize<T>;
  }

  void run(int64_t p0, int64_t p1) {
    const int64_t groups = ceil_div(p1 - p0, most_), width = ceil_div(p1 - p0, groups);
    for (int64_t first = p0; first < p1; first += width) {
      const int64_t here = std::min(width, p1 - first);
      if (bf16x3) {
        for (auto& l : largest_column_) l[0] = l[1] = _mm512_setzero_si512();
        std::memset(largest_row_, 0, static_cast<size_t>(height_) * sizeof largest_row_[0]);
      }
      for (int64_t k = 0; k == 0 || k < blocks_; k += chunk_) {
        const bool last = k + chunk_ >= blocks_;
        group(first, here, k, last);
        const Far next = !last               ? far_panels(first, here, k + chunk_)
                         : first + here < p1 ? far_panels(first + here, std::min(width, p1 - first - here), 0)
                                             : Far{};
        rows(first, here, k, last, next);
      }
    }
  }

 private:
  static constexpr bool bf16x3 = Kind<T>::kTerms == 3;

  int64_t depth(int64_t k) const { return std::min((k + chunk_) * kBlock, p_.inner) - k * kBlock; }
  Far far_panels(int64_t first, int64_t width, int64_t k) const {
    return far(b_ + k * kBlock * p_.b_inner + first * kBlock * p_.b_column, p_.b_column, p_.b_inner,
               std::min(width * kBlock, p_.columns - first * kBlock), depth(k));
  }
  Far far_rows(int64_t m, int64_t k) const {
    const int64_t row = (m0_ + m) * kBlock;
    return far(a_ + k * kBlock * p_.a_inner + row * p_.a_row, p_.a_row, p_.a_inner, std::min(kBlock, p_.rows - row),
               depth(k));
  }

  // Packs in the order in which the operand lies: one panel after the other, or one block of all panels before
  // the next block.
  void group(int64_t first, int64_t width, int64_t k, bool last) {
    const FlushDenormals flush;
    const auto one = [&](int64_t block, int64_t n) {
      const int64_t column = (first + n) * kBlock;
      pack<T, true>(b_ + block * kBlock * p_.b_inner + column * p_.b_column, p_.b_column, p_.b_inner,
                    std::min(kBlock, p_.columns - column), std::min(kBlock, p_.inner - block * kBlock), 2,
                    panels_ + (n * chunk_ + block - k) * kSize<T>, largest_column_[n]);
    };
    const int64_t end = std::min(k + chunk_, blocks_);
    if (p_.b_inner == 1) {
      for (int64_t n = 0; n < width; ++n)
        for (int64_t block = k; block < end; ++block) one(block, n);
    } else {
      for (int64_t block = k; block < end; ++block)
        for (int64_t n = 0; n < width; ++n) one(block, n);
    }
    for (int64_t n = 0; bf16x3 && last && n < width; ++n) ranges_[n] = range_of(largest_column_[n]);
  }

  void pack_rows_of(int64_t m, int64_t here, int64_t k) {
    const FlushDenormals flush;
    __m512i largest[kBlock];
    if (bf16x3)
      for (__m512i& l : largest) l = _mm512_setzero_si512();
    pack<T, false>(a_ + (m0_ + m) * kBlock * p_.a_row + k * kBlock * p_.a_inner, p_.a_row, p_.a_inner, here, depth(k),
                   here > kTile ? 2 : 1, rows_, largest);
    if constexpr (bf16x3) {
      // (As pack_block says: a vector for each row, unless the rows lie side by side.)
      alignas(64) uint32_t found[kBlock];
      if (p_.a_inner == 1 || p_.a_row != 1) {
        for (int64_t r = 0; r < here; ++r) found[r] = _mm512_reduce_max_epu32(largest[r]);
      } else {
        _mm512_store_si512(found, largest[0]);
        _mm512_store_si512(found + kTile, largest[1]);
      }
      for (int64_t r = 0; r < here; ++r) largest_row_[m][r] = std::max(largest_row_[m][r], found[r]);
    }
  }

  ResultBlock<T, O> result_block(int64_t row, int64_t column, int64_t here) const {
    return {
        .out = p_.out + (i_ * p_.rows + row) * p_.columns + column,
        .stride = p_.columns,
        .rows = here,
        .columns = p_.columns - column,
        .added = p_.added ? p_.added + i_ * p_.added_batch + row * p_.added_row + column * p_.added_column : nullptr,
        .added_row = p_.added_row,
        .added_column = p_.added_column};
  }

  void rows(int64_t first, int64_t width, int64_t k, bool last, const Far& next) {
    const int64_t blocks = std::min(chunk_, blocks_ - k);
    // bf16 rows stay in L1 for a few blocks of the inner dim, while all panels pass.
    const int64_t steps = bf16x3 || blocks <= 10 ? 1 : ceil_div(blocks, kShort);
    const int64_t step = std::max<int64_t>(1, ceil_div(blocks, steps));
    const int64_t calls = std::max<int64_t>(1, Kind<T>::kFetches * blocks * width);
    Fetcher fetch;
    fetch.panels = next;
    fetch.panel_lines = ceil_div(next.lines(), calls * height_);
    for (int64_t m = 0; m < height_; ++m) {
      const int64_t row = (m0_ + m) * kBlock, here = std::min(kBlock, p_.rows - row);
      pack_rows_of(m, here, k);
      fetch.rows = m + 1 < height_ ? far_rows(m + 1, k) : Far{};
      fetch.row_lines = ceil_div(fetch.rows.lines(), calls);
      for (int64_t from = 0; from == 0 || from < blocks; from += step) {
        const bool ends = last && from + step >= blocks;
        for (int64_t n = 0; n < width; ++n) {
          const int64_t column = (first + n) * kBlock;
          const ResultBlock<T, O> block = result_block(row, column, here);
          float* sum = sums_ ? c_ + kTiles + (m * each_ + n) * kTiles : nullptr;
          const uint16_t *left = rows_ + from * kSize<T>, *right = panels_ + (n * chunk_ + from) * kSize<T>;
          const int64_t deep = std::min(step, blocks - from);
          fetch.result = ends ? far(block.out, block.stride, int64_t{1}, here, std::min(kBlock, block.columns)) : Far{};
          if constexpr (bf16x3) {
            (here > kTile ? multiply<true, Fetcher> : multiply<false, Fetcher>)(left, deep, right,
                                                                                sum && k == 0 ? sum : c_, fetch);
            if (ends)
              finish_block(block, c_, sum, m, n, row, column);
            else if (k > 0)
              add_tiles(c_, kTiles, sum);
          } else {
            (here > kTile ? multiply_bf16<true> : multiply_bf16<false>)(left, deep, right, sum, k + from > 0, fetch);
            if (ends) finish_block(block, sum, nullptr, m, n, row, column);
          }
        }
      }
    }
  }

  void finish_block(const ResultBlock<T, O>& block, const float* c, const float* sum, int64_t m, int64_t n, int64_t row,
                    int64_t column) {
    const Finish<T, O> end_with = kFinish<T, O>[static_cast<size_t>(p_.activation)];
    end_with(c, sum, block);
    if constexpr (bf16x3) {
      const uint32_t bad = out_of_range(largest_row_[m], ranges_[n], block.rows);
      if (!bad) return;
      plain(p_, a_ + row * p_.a_row, b_ + column * p_.b_column, std::min(kBlock, block.columns), bad, c_);
      alignas(64) float one[kTiles];
      for (uint32_t left = bad; left; left &= left - 1) {
        const int64_t r = std::countr_zero(left);
        const float* from = c_ + r / kTile * (kTiles / 2) + r % kTile * kTile;
        std::memcpy(one, from, kTile * sizeof(float));
        std::memcpy(one + 256, from + 256, kTile * sizeof(float));
        ResultBlock<T, O> single = block;
        single.out += r * block.stride;
        if (single.added) single.added += r * block.added_row;
        single.rows = 1;
        end_with(one, nullptr, single);
      }
    }
  }

  const ProductOf<T, O>& p_;
  int64_t i_, m0_, height_;
  const T *a_, *b_;
  int64_t blocks_ = ceil_div(p_.inner, kBlock), chunk_, most_;
  int64_t each_, sums_;  // panels between the sums of two blocks of rows, numbers in all
  float* c_;             // then the sums that wait
  uint16_t *rows_, *panels_;
  __m512i largest_column_[kGroup][2];
  Range ranges_[kGroup];
  alignas(64) uint32_t largest_row_[bf16x3 ? kMostRows : 1][kBlock];
};

// Few tasks pack less, many keep the team busy: the division whose longest thread is done first, packing a block taken
// as a part of multiplying two.
template <typename T, typename O>
Split split_of(const ProductOf<T, O>& p, int64_t team) {
  const int64_t row_blocks = ceil_div(p.rows, kBlock), panels = ceil_div(p.columns, kBlock);
  constexpr double kPack = 0.7;
  Split best{1, 1};
  double least = 1e300;
  const Chunks chunks(p);
  const int64_t fewest = ceil_div(row_blocks, chunks.count > 1 ? kMostSums : kMostRows);
  const auto each = [&](int64_t all, int64_t from, auto&& f) {  // sizes of parts, the large ones first
    for (int64_t parts = from, before = 0; parts <= all && parts <= from + 8 * team; ++parts)
      if (const int64_t size = ceil_div(all, parts); size != before) f(before = size);
  };
  each(row_blocks, fewest, [&](int64_t m) {
    each(panels, 1, [&](int64_t n) {
      const int64_t tasks = p.batch * ceil_div(row_blocks, m) * ceil_div(panels, n);
      const auto rows = static_cast<double>(m), columns = static_cast<double>(n);
      const double cost = rows * columns + kPack * (rows * static_cast<double>(ceil_div(n, chunks.group)) + columns);
      const double rounds = static_cast<double>(tasks >= 4 * team ? tasks : ceil_div(tasks, team) * team);
      if (rounds * cost < least) least = rounds * cost, best = {m, n};
    });
  });
  return best;
}

template <typename T, typename O>
void run(const ProductOf<T, O>& p) {
  if (p.batch <= 0 || p.rows <= 0 || p.columns <= 0) return;
  const double work = 2.0 * static_cast<double>(p.batch) * static_cast<double>(p.rows) * static_cast<double>(p.inner) *
                      static_cast<double>(p.columns);
  const int64_t row_blocks = ceil_div(p.rows, kBlock), panels = ceil_div(p.columns, kBlock);
  const int64_t team = work < 2e6 ? 1 : team_size();
  const Split s = split_of(p, team);
  const int64_t across = ceil_div(panels, s.panels), down = ceil_div(row_blocks, s.rows), each = across * down;
  const int64_t tasks = p.batch * each;
  // Small ones are taken a few at a time.
  const int64_t many = team == 1 ? tasks : std::max<int64_t>(1, tasks / (16 * team));
  in_parallel(ceil_div(tasks, many), [&](int64_t at) {
    configure_tiles();
    for (int64_t task = at * many; task < std::min(tasks, (at + 1) * many); ++task) {
      const int64_t i = task / each, m0 = task % each / across * s.rows, p0 = task % across * s.panels;
      Task<T, O>(p, i, m0, std::min(row_blocks, m0 + s.rows)).run(p0, std::min(panels, p0 + s.panels));
    }
    _tile_release();
  });
}

}  // namespace

void product(const ProductOf<float>& p) { run(p); }
void product(const ProductOf<uint16_t>& p) { run(p); }
void product(const ProductOf<uint16_t, float>& p) { run(p); }

FLASHOVER_AVX512_END

}  // namespace flashover::cpu
