// Whether two strided views meet: a sum of strides times indices must come out at the distance between the two, which is
// searched for from the largest stride on.
#include "trace/overlap.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace flashover::trace {
namespace {

struct Term {
  int64_t step, most;  // step * x with 0 <= x <= most
};

class Search {
 public:
  explicit Search(std::vector<Term> terms) : terms_(std::move(terms)), reach_(terms_.size() + 1), step_(reach_.size()) {
    for (size_t i = terms_.size(); i-- > 0;) {
      reach_[i] = reach_[i + 1] + terms_[i].step * terms_[i].most;
      step_[i] = std::gcd(step_[i + 1], terms_[i].step);
    }
  }

  bool reaches(int64_t sum, size_t i = 0) {
    if (sum == 0) return true;
    if (sum < 0 || sum > reach_[i] || sum % step_[i] != 0) return false;
    if (++tries_ > kMostTries) return true;
    const auto [step, most] = terms_[i];
    const int64_t least = std::max<int64_t>(0, (sum - reach_[i + 1] + step - 1) / step);
    for (int64_t x = std::min(most, sum / step); x >= least; --x)
      if (reaches(sum - x * step, i + 1)) return true;
    return false;
  }

 private:
  static constexpr int kMostTries = 4096;
  std::vector<Term> terms_;            // larger steps first
  std::vector<int64_t> reach_, step_;  // of the terms from i on: the largest sum, what divides each sum
  int tries_ = 0;
};

}  // namespace

bool may_meet(const c10::TensorImpl& a, const c10::TensorImpl& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  // b's indices count from its end, so that all terms are added: a + i = b + j becomes i + (last - j) = b + last - a.
  std::vector<Term> terms;
  int64_t distance = 0;
  const auto add = [&](int64_t step, int64_t most) {
    if (step == 0 || most == 0) return;
    const auto same = std::ranges::find(terms, step, &Term::step);
    if (same != terms.end()) {
      same->most += most;
    } else {
      terms.push_back({step, most});
    }
  };
  const auto view = [&](const c10::TensorImpl& t, bool from_end) {
    const int64_t itemsize = static_cast<int64_t>(t.itemsize());
    int64_t last = itemsize - 1;
    add(1, itemsize - 1);
    for (int64_t d = 0; d < t.dim(); ++d) {
      add(t.stride(d) * itemsize, t.size(d) - 1);
      last += t.stride(d) * itemsize * (t.size(d) - 1);
    }
    distance += from_end ? t.storage_offset() * itemsize + last : -t.storage_offset() * itemsize;
  };
  view(a, false);
  view(b, true);
  std::ranges::sort(terms, std::greater(), &Term::step);
  return Search(std::move(terms)).reaches(distance);
}

bool is_read_ahead(const c10::TensorImpl& written, const c10::TensorImpl& read) {
  if (written.sizes() != read.sizes() || written.itemsize() != read.itemsize() ||
      written.storage_offset() > read.storage_offset())
    return false;
  std::vector<Term> dims;
  for (int64_t d = 0; d < written.dim(); ++d) {
    if (written.size(d) == 1) continue;
    if (written.stride(d) != read.stride(d)) return false;
    dims.push_back({written.stride(d), written.size(d) - 1});
  }
  std::ranges::sort(dims, std::less(), &Term::step);
  int64_t span = 0;
  for (const Term& d : dims) {  // otherwise the loop goes back in memory
    if (d.step <= span) return false;
    span += d.step * d.most;
  }
  return true;
}

}  // namespace flashover::trace
