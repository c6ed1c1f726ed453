// Everything that is checked of a package before anything of it is mapped or loaded: what fuzz tests attack.
#pragma once
#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/content_hash.h"
#include "base/pages.h"
#include "package/container.h"
#include "package/manifest.h"

namespace flashover::aot {

constexpr const char* kManifestSection = "manifest";
constexpr const char* kWeightSection = "weights";
constexpr const char* kPreparedSection = "prepared";

// Throws UserError. plans: by entry, those that it has. (The weights' bytes are looked at where they are mapped.)
Manifest check_package(const Container& file, std::vector<std::vector<plan::Plan>>* plans = nullptr);

// Throws UserError where bytes of a section are not those that were written. T: Weight or Prepared.
// in_parallel(n, f): f(0) to f(n - 1), the first ones first.
template <typename T, typename InParallel>
void verify_bytes(std::vector<const T*> parts, const char* section, const std::string& what,
                  const InParallel& in_parallel) {
  std::stable_sort(parts.begin(), parts.end(), [](const T* a, const T* b) { return a->bytes > b->bytes; });
  std::atomic<bool> damaged = false;
  in_parallel(static_cast<int64_t>(parts.size()), [&](int64_t i) {
    const T& part = *parts[static_cast<size_t>(i)];
    bring_in(section + part.offset, part.bytes);
    if (content_hash(section + part.offset, part.bytes) != part.checksum) damaged = true;
  });
  if (damaged) throw UserError("damaged package: wrong checksum of " + what);
}

}  // namespace flashover::aot
