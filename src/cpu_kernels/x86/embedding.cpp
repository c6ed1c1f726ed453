// Each task looks at all indices, and adds the rows that fall into its part of the table.
#include "cpu_kernels/embedding.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "cpu_kernels/team.h"
// Last: the rest of the file is for AVX512.
#include "cpu_kernels/x86/lanes.h"

namespace flashover::cpu {

FLASHOVER_AVX512_BEGIN
namespace {

void add_row(const float* from, int64_t width, float* to) {
  for (int64_t c = 0; c < width; c += 16) {
    const __mmask16 mask = first_lanes(width - c);
    _mm512_mask_storeu_ps(to + c, mask,
                          _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to + c), _mm512_maskz_loadu_ps(mask, from + c)));
  }
}

int64_t index_at(const TableGradient& t, int64_t i) {
  return t.narrow ? static_cast<const int32_t*>(t.indices)[i] : static_cast<const int64_t*>(t.indices)[i];
}

// Rows [first, last) of the table.
void add_onto(const TableGradient& t, int64_t first, int64_t last) {
  std::vector<std::pair<int64_t, int64_t>> found;  // index, row
  for (int64_t r = 0; r < t.count; ++r)
    if (const int64_t index = index_at(t, r); index >= first && index < last && index != t.left_out)
      found.emplace_back(index, r);
  std::sort(found.begin(), found.end());
  std::vector<float> sum;
  for (size_t i = 0, next = 0; i < found.size(); i = next) {
    const float* row = t.grad + found[i].second * t.width;
    for (next = i + 1; next < found.size() && found[next].first == found[i].first; ++next) {
      if (next == i + 1) sum.assign(row, row + t.width);
      add_row(t.grad + found[next].second * t.width, t.width, sum.data());
    }
    add_row(next == i + 1 ? row : sum.data(), t.width, t.out + found[i].first * t.width);
  }
}

void run_task(const TableGradient& t, int64_t first, int64_t last) {
  if (t.onto) return add_onto(t, first, last);
  std::memset(t.out + first * t.width, 0, static_cast<size_t>((last - first) * t.width) * 4);
  const int64_t rows = t.offsets ? t.bags : t.count;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t begin = t.offsets ? std::max<int64_t>(0, t.offsets[r]) : r;
    const int64_t end = !t.offsets ? r + 1 : r + 1 < rows ? std::min(t.offsets[r + 1], t.count) : t.count;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t index = index_at(t, i);
      if (index >= first && index < last && index != t.left_out)
        add_row(t.grad + r * t.width, t.width, t.out + index * t.width);
    }
  }
}

}  // namespace

void table_gradient(const TableGradient& t) {
  constexpr int64_t kAlone = 1 << 14;  // numbers that are no work for a team
  const int64_t work = (t.onto ? t.count : t.rows) * t.width;
  const int64_t tasks = work <= kAlone ? 1 : std::min<int64_t>(team_size(), t.rows);
  in_parallel(tasks, [&](int64_t n) { run_task(t, t.rows * n / tasks, t.rows * (n + 1) / tasks); });
}

FLASHOVER_AVX512_END

}  // namespace flashover::cpu
