// Finds launches that touch different memory; each thread takes the next of a batch, the largest first.
#include "run/batches.h"

#include <algorithm>
#include <map>

namespace flashover::run {
namespace {

using plan::StorageKind;
using plan::TensorId;

constexpr int64_t kWorthATeam = 96 << 10;  // bytes that a batch touches

// What a batch touches so far.
class Touched {
 public:
  Touched(const plan::Plan& p, std::span<const int64_t> bytes, std::span<const int64_t> arena_offsets)
      : p_(p), bytes_(bytes), arena_offsets_(arena_offsets) {}
  // False: it depends on what is there; nothing is added.
  bool add(const plan::Step& s) {
    for (TensorId t : s.reads)
      if (meets(t, false)) return false;
    for (TensorId t : s.writes)
      if (meets(t, true)) return false;
    for (TensorId t : s.reads) note(t, false);
    for (TensorId t : s.writes) note(t, true);
    return true;
  }

 private:
  struct Range {
    int64_t begin, end;
    bool written;
  };
  Range range_of(TensorId root, bool written) const {
    const int64_t begin = arena_offsets_[root];
    return {begin, begin + bytes_[root], written};
  }
  bool meets(TensorId t, bool written) const {
    const TensorId r = plan::root(p_, t);
    if (p_.tensors[r].storage == StorageKind::kArena) {
      const Range mine = range_of(r, written);
      return std::any_of(arena_.begin(), arena_.end(), [&](const Range& other) {
        return (written || other.written) && mine.begin < other.end && other.begin < mine.end;
      });
    }
    auto it = others_.find(r);
    return it != others_.end() && (written || it->second);
  }
  void note(TensorId t, bool written) {
    const TensorId r = plan::root(p_, t);
    if (p_.tensors[r].storage == StorageKind::kArena)
      arena_.push_back(range_of(r, written));
    else
      others_[r] |= written;
  }
  const plan::Plan& p_;
  const std::span<const int64_t> bytes_, arena_offsets_;
  std::vector<Range> arena_;
  std::map<TensorId, bool> others_;  // root -> written
};

int64_t bytes_of(std::span<const int64_t> bytes, const plan::Step& s) {
  int64_t sum = 0;
  for (const auto* list : {&s.reads, &s.writes})
    for (TensorId t : *list) sum += bytes[t];
  return sum;
}

}  // namespace

std::vector<Batch> find_batches(const plan::Plan& p, std::span<const int64_t> bytes,
                                std::span<const int64_t> arena_offsets, int threads) {
  std::vector<Batch> out;
  if (threads < 2 || p.device.type != DeviceType::kCPU) return out;
  const auto count = static_cast<int32_t>(p.steps.size());
  for (int32_t i = 0; i < count;) {
    Touched touched(p, bytes, arena_offsets);
    int32_t end = i;
    // What fails leaves inputs as they were when its step began (undo.h).
    bool checks = false, writes_input = false;
    const auto joins = [&](const plan::Step& s) {
      if (s.kind != plan::StepKind::kLaunch) return false;
      checks |= !p.kernels[s.kernel].errors.empty();
      for (TensorId t : s.writes) writes_input |= p.tensors[plan::root(p, t)].storage == StorageKind::kInput;
      return !(checks && writes_input && end > i) && touched.add(s);
    };
    while (end < count && joins(p.steps[end])) ++end;
    Batch b{i, end - i, {}, {}};
    i = std::max(end, i + 1);
    if (b.count < 3) continue;
    std::vector<std::pair<int64_t, int32_t>> work;
    int64_t total = 0;
    for (int32_t s = b.first; s < end; ++s) {
      work.emplace_back(bytes_of(bytes, p.steps[s]), s);
      total += work.back().first;
    }
    if (total < kWorthATeam) continue;
    std::stable_sort(work.begin(), work.end(), [](const auto& a, const auto& c) { return a.first > c.first; });
    // One that is a large part of the whole would be what the others wait for.
    for (auto [size, s] : work) (size > total / (4 * threads) ? b.alone : b.shared).push_back(s);
    if (b.shared.size() >= 2) out.push_back(std::move(b));
  }
  return out;
}

}  // namespace flashover::run
