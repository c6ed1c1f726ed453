#include "run/cpu/embedding.h"

#include <algorithm>
#include <cstring>

#include "run/cpu/team.h"
// Last: the rest of the file is for AVX512.
#include "run/cpu/lanes.h"

namespace flashover::run::cpu {

FLASHOVER_AVX512_BEGIN
namespace {

void add_row(const float* from, int64_t width, float* to) {
  for (int64_t c = 0; c < width; c += 16) {
    const __mmask16 mask = first_lanes(width - c);
    _mm512_mask_storeu_ps(to + c, mask,
                          _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to + c), _mm512_maskz_loadu_ps(mask, from + c)));
  }
}

// Rows [first, last) of the table.
void part(const TableGradient& t, int64_t first, int64_t last) {
  std::memset(t.out + first * t.width, 0, static_cast<size_t>((last - first) * t.width) * 4);
  const auto index_at = [&](int64_t i) {
    return t.narrow ? static_cast<const int32_t*>(t.indices)[i] : static_cast<const int64_t*>(t.indices)[i];
  };
  const int64_t rows = t.offsets ? t.bags : t.count;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t begin = t.offsets ? std::max<int64_t>(0, t.offsets[r]) : r;
    const int64_t end = !t.offsets ? r + 1 : r + 1 < rows ? std::min(t.offsets[r + 1], t.count) : t.count;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t index = index_at(i);
      if (index >= first && index < last && index != t.left_out)
        add_row(t.grad + r * t.width, t.width, t.out + index * t.width);
    }
  }
}

}  // namespace

void table_gradient(const TableGradient& t) {
  constexpr int64_t kAlone = 1 << 14;  // numbers that are no work for a team
  const int64_t parts = t.rows * t.width <= kAlone ? 1 : std::min<int64_t>(team_size(), t.rows);
  in_parallel(parts, [&](int64_t n) { part(t, t.rows * n / parts, t.rows * (n + 1) / parts); });
}

FLASHOVER_AVX512_END

}  // namespace flashover::run::cpu
