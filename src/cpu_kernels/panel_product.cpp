// A product is cut into tasks of rows and groups of panels; a task packs block by block and multiplies as it goes.
#include "cpu_kernels/panel_product.h"

#include <algorithm>
#include <cstring>

#include "cpu_kernels/panels.h"
#include "cpu_kernels/team.h"

namespace flashover::cpu {
namespace {

constexpr int64_t kBlockNumbers = 64 * 1024;    // of b, packed
constexpr int64_t kDeep = 768, kShallow = 256;  // elements of the inner dim in a block; where rows are packed, too
constexpr int64_t kTilesTogether = 8;           // of rows that are packed
constexpr int64_t kMostTile = 14 * 2 * kPanel;  // numbers
constexpr int64_t kAliasing = 512;              // rows so far apart lie in few sets of the L1 cache
constexpr int64_t kWays = 8;                    // lines of a set: so many rows stay there all the same

enum class Rows : uint8_t { kAsTheyLie, kCopied, kTransposed, kGathered };

Rows rows_of(const ProductOf<float>& p, int64_t tile) {
  if (p.inner <= 1 || p.a_inner == 1)
    return tile > kWays && p.a_row % kAliasing == 0 && p.rows >= tile / 2 && p.inner > kPanel ? Rows::kCopied
                                                                                              : Rows::kAsTheyLie;
  return p.a_row == 1 ? Rows::kTransposed : Rows::kGathered;
}

// How a product is cut into blocks, the same for every task.
struct Blocks {
  Blocks(const ProductOf<float>& p, const VectorKernels& k)
      : rows(rows_of(p, k.rows)), width(k.panels * kPanel), groups(ceil_div(p.columns, width)) {
    const int64_t most = rows == Rows::kAsTheyLie ? kDeep : kShallow;
    const int64_t chunks = std::max<int64_t>(1, ceil_div(p.inner, kInnerChunk));
    deep = ceil_div(chunks, ceil_div(p.inner, most)) * kInnerChunk;
    if (p.inner <= most) deep = std::max<int64_t>(1, p.inner);
    together = std::clamp<int64_t>(kBlockNumbers / (deep * width), 1, groups);
    height = rows == Rows::kAsTheyLie ? p.rows : std::min(p.rows, kTilesTogether * k.rows);
    row_stride = deep + kPanel;
  }

  Rows rows;
  int64_t width, groups;       // columns of a group of panels; groups
  int64_t deep, together;      // a block of b: elements of the inner dim, groups
  int64_t height, row_stride;  // rows that are packed at a time, and how far apart
};

// A tile of the result: entry of the batch, rows and columns.
struct Tile {
  int64_t i, row, rows, column, columns;
};
// first, last: of the blocks of the inner dim, which meet in the result.
void finish_tile(const ProductOf<float>& p, const VectorKernels& kernels, const float* c, int64_t c_stride,
                 const Tile& t, bool first, bool last) {
  alignas(64) float repeated[kMostTile];
  float* const out = p.out + (t.i * p.rows + t.row) * p.columns + t.column;
  const float *bias = nullptr, *added = nullptr;
  int64_t added_stride = p.columns;
  if (!first) {
    added = out;
  } else if (p.added) {
    const float* const from = p.added + t.i * p.added_batch + t.row * p.added_row + t.column * p.added_column;
    if (p.added_column == 1 && p.added_row == 0) {
      bias = from;
    } else if (p.added_column == 1) {
      added = from, added_stride = p.added_row;
    } else {
      for (int64_t r = 0; r < t.rows; ++r)
        for (int64_t n = 0; n < t.columns; ++n)
          repeated[r * t.columns + n] = from[r * p.added_row + n * p.added_column];
      added = repeated, added_stride = t.columns;
    }
  }
  const Activation activation = last ? p.activation : Activation::kNone;
  kernels.finish[static_cast<size_t>(activation)](c, c_stride, t.rows, t.columns, bias, added, added_stride, out,
                                                  p.columns);
}

class Task {
 public:
  Task(const ProductOf<float>& p, const VectorKernels& k, const Blocks& b, int64_t i)
      : p_(p), kernels_(k), blocks_(b), a_(p.a + i * p.a_batch), b_(p.b + i * p.b_batch), i_(i) {
    const int64_t packed = b.deep * b.together * b.width;
    const int64_t rows = b.rows == Rows::kAsTheyLie ? 0 : b.height * b.row_stride;
    packed_ = static_cast<float*>(scratch(static_cast<size_t>(packed + rows) * sizeof(float)));
    rows_ = packed_ + packed;
  }

  void run(int64_t first_row, int64_t last_row, int64_t first_group, int64_t last_group) {
    for (int64_t g = first_group; g < last_group; g += blocks_.together) {
      const int64_t groups = std::min(blocks_.together, last_group - g);
      for (int64_t k = 0; k < p_.inner || k == 0; k += blocks_.deep) {
        const int64_t deep = std::min(blocks_.deep, p_.inner - k);
        pack_block(g * blocks_.width, std::min(p_.columns, (g + groups) * blocks_.width), k, deep);
        const int64_t height = blocks_.rows == Rows::kAsTheyLie ? last_row - first_row : blocks_.height;
        for (int64_t r = first_row; r < last_row; r += height)
          take_rows(r, std::min(last_row, r + height), g, groups, k, deep);
      }
    }
  }

 private:
  void pack_block(int64_t column, int64_t end, int64_t k, int64_t deep) {
    const float* const from = b_ + k * p_.b_inner + column * p_.b_column;
    const int64_t whole = (end - column) / kPanel * kPanel;
    if (p_.b_column == 1) {
      for (int64_t i = 0; i < deep; ++i) {
        const float* const line = from + i * p_.b_inner;
        for (int64_t c = 0; c < whole; c += kPanel)
          std::memcpy(packed_ + c * deep + i * kPanel, line + c, kPanel * sizeof(float));
      }
    } else {
      for (int64_t c = 0; c < whole; c += kPanel) pack_columns(from, c, kPanel, deep);
    }
    if (const int64_t left = end - column - whole; left > 0) pack_columns(from, whole, left, deep);
  }

  void pack_columns(const float* from, int64_t first, int64_t columns, int64_t deep) {
    pack_panel(from + first * p_.b_column, p_.b_column, p_.b_inner, columns, deep, packed_ + first * deep);
  }

  // Rows [first, last) of a from element k on, one behind the other.
  const float* packed_rows(int64_t first, int64_t last, int64_t k, int64_t deep) {
    const float* const from = a_ + first * p_.a_row + k * p_.a_inner;
    if (blocks_.rows == Rows::kTransposed) {
      kernels_.transpose(from, p_.a_inner, deep, last - first, rows_, blocks_.row_stride);
      return rows_;
    }
    for (int64_t r = 0; r < last - first; ++r) {
      const float* const row = from + r * p_.a_row;
      float* const to = rows_ + r * blocks_.row_stride;
      if (blocks_.rows == Rows::kCopied)
        std::memcpy(to, row, static_cast<size_t>(deep) * sizeof(float));
      else
        for (int64_t i = 0; i < deep; ++i) to[i] = row[i * p_.a_inner];
    }
    return rows_;
  }

  void take_rows(int64_t first, int64_t last, int64_t group, int64_t groups, int64_t k, int64_t deep) {
    const bool as_they_lie = blocks_.rows == Rows::kAsTheyLie;
    const float* const x = as_they_lie ? a_ + first * p_.a_row + k : packed_rows(first, last, k, deep);
    const int64_t stride = as_they_lie ? p_.a_row : blocks_.row_stride;
    const int64_t tiles = ceil_div(last - first, kernels_.rows);
    for (int64_t t = 0; t < tiles; ++t) {  // as equal as can be
      const int64_t from = (last - first) * t / tiles, rows = (last - first) * (t + 1) / tiles - from;
      for (int64_t g = 0; g < groups; ++g)
        take_tile(x + from * stride, stride, packed_ + g * blocks_.width * deep, first + from, rows,
                  (group + g) * blocks_.width, k, deep);
    }
  }

  void take_tile(const float* x, int64_t stride, const float* packed, int64_t row, int64_t rows, int64_t column,
                 int64_t k, int64_t deep) const {
    alignas(64) float c[kMostTile];
    const int64_t columns = std::min(blocks_.width, p_.columns - column), panels = ceil_div(columns, kPanel);
    const auto multiply = kernels_.multiply[panels - 1][rows - 1];
    for (int64_t i = 0; i < deep || i == 0; i += kInnerChunk) {
      multiply(x + i, stride, packed + i * kPanel, deep * kPanel, std::min(kInnerChunk, deep - i), i > 0, nullptr, c);
    }
    finish_tile(p_, kernels_, c, panels * kPanel, {i_, row, rows, column, columns}, k == 0,
                k + blocks_.deep >= p_.inner);
  }

  const ProductOf<float>& p_;
  const VectorKernels& kernels_;
  const Blocks& blocks_;
  const float *a_, *b_;
  int64_t i_;
  float *packed_, *rows_;
};

// Few rows, whose elements lie one behind the other as b's columns do: nothing is worth packing. (In a short inner dim
// adding up the lanes of the sums takes too much.)
bool has_few_rows(const ProductOf<float>& p) {
  constexpr int64_t kMostRows = 127, kMemoryBound = 8, kLong = 192;
  return (p.inner <= 1 || (p.a_inner == 1 && p.b_inner == 1)) && p.inner >= kPanel &&
         p.rows <= (p.inner < kLong ? kMemoryBound : kMostRows);
}

// Some columns at a time, whose part of b stays in L2 while the rows pass, and of the inner dim what lets a few rows stay
// in L1. How the sums are made depends on the inner dim alone.
void multiply_few(const ProductOf<float>& p, const VectorKernels& kernels) {
  constexpr int64_t kColumns = 32, kDeepest = 1024, kPicoseconds = 250;  // a number of b, at 16 GB/s
  const int64_t parts = ceil_div(p.columns, kColumns), chunks = ceil_div(p.inner, kDeepest);
  const int64_t deep = ceil_div(ceil_div(p.inner, chunks), kPanel) * kPanel;
  const int64_t tile = kernels.rows_together;
  const int64_t tiles = ceil_div(p.rows, tile), times = std::max<int64_t>(1, p.rows / 8);
  share_parts(p.batch * parts, p.batch * p.columns * p.inner * kPicoseconds * times, [&](int64_t begin, int64_t end) {
    const auto c = static_cast<float*>(scratch(static_cast<size_t>(p.rows * kColumns) * sizeof(float)));
    for (int64_t part = begin; part < end; ++part) {
      const int64_t i = part / parts, column = part % parts * kColumns,
                    columns = std::min(kColumns, p.columns - column);
      const float *const a = p.a + i * p.a_batch, *const b = p.b + i * p.b_batch + column * p.b_column;
      for (int64_t k = 0; k < p.inner; k += deep)
        for (int64_t t = 0; t < tiles; ++t) {  // as equal as can be
          const int64_t from = p.rows * t / tiles, rows = p.rows * (t + 1) / tiles - from;
          kernels.multiply_few[rows - 1](a + from * p.a_row + k, p.a_row, b + k, p.b_column, columns,
                                         std::min(deep, p.inner - k), k > 0, c + from * kColumns, kColumns);
        }
      for (int64_t row = 0; row < p.rows; row += tile)
        finish_tile(p, kernels, c + row * kColumns, kColumns, {i, row, std::min(tile, p.rows - row), column, columns},
                    true, true);
    }
  });
}

// What a task takes at most: rows and groups of panels. Few tasks pack less, many keep the team busy.
struct Division {
  int64_t rows, groups;
};
Division division_of(const ProductOf<float>& p, const Blocks& b, int64_t tile, int64_t team) {
  // In rows (columns) multiplied, what packing a column (row) takes.
  const double pack_column = p.b_column == 1 ? 2 : 4, pack_row = b.rows == Rows::kAsTheyLie ? 0 : 5;
  const int64_t row_tiles = ceil_div(p.rows, tile);
  Division best{p.rows, b.groups};
  double least = 1e300;
  const auto each = [&](int64_t all, auto&& f) {  // sizes of parts, the large ones first
    for (int64_t parts = 1, before = 0; parts <= all && parts <= 8 * team; ++parts)
      if (const int64_t size = ceil_div(all, parts); size != before) f(before = size);
  };
  each(row_tiles, [&](int64_t tiles) {
    each(b.groups, [&](int64_t groups) {
      const int64_t tasks = p.batch * ceil_div(row_tiles, tiles) * ceil_div(b.groups, groups);
      const auto rows = static_cast<double>(tiles * tile), columns = static_cast<double>(groups * b.width);
      const double cost =
          rows * columns + pack_column * columns + pack_row * rows * static_cast<double>(ceil_div(groups, b.together));
      const double rounds = static_cast<double>(tasks >= 4 * team ? tasks : ceil_div(tasks, team) * team);
      if (rounds * cost < least) least = rounds * cost, best = {tiles * tile, groups};
    });
  });
  return best;
}

}  // namespace

void panel_product(const ProductOf<float>& p) {
  if (p.batch <= 0 || p.rows <= 0 || p.columns <= 0) return;
  const VectorKernels& kernels = *vector_kernels();
  if (has_few_rows(p)) return multiply_few(p, kernels);
  const Blocks blocks(p, kernels);
  constexpr double kWorthATeam = 1e6;
  const double work = 2.0 * static_cast<double>(p.batch) * static_cast<double>(p.rows) * static_cast<double>(p.inner) *
                      static_cast<double>(p.columns);
  const int64_t team = work < kWorthATeam ? 1 : team_size();
  const Division d = division_of(p, blocks, kernels.rows, team);
  const int64_t down = ceil_div(p.rows, d.rows), across = ceil_div(blocks.groups, d.groups), each = down * across;
  const int64_t tasks = p.batch * each, many = team == 1 ? tasks : std::max<int64_t>(1, tasks / (16 * team));
  in_parallel(ceil_div(tasks, many), [&](int64_t at) {
    for (int64_t task = at * many; task < std::min(tasks, (at + 1) * many); ++task) {
      const int64_t row = task % each / across * d.rows, group = task % across * d.groups;
      Task(p, kernels, blocks, task / each)
          .run(row, std::min(p.rows, row + d.rows), group, std::min(blocks.groups, group + d.groups));
    }
  });
}

}  // namespace flashover::cpu
