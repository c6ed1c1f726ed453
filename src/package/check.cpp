// The manifest first, then each plan by itself and against its entry.
#include "package/check.h"

namespace flashover::aot {

Manifest check_package(const Container& file, std::vector<std::vector<plan::Plan>>* plans) {
  Manifest m = decode(file.read(file.find(kManifestSection)));
  check(m, file.find(kWeightSection).size, file.find(kPreparedSection).size);
  for (const PackagedEntry& e : m.entries) {
    std::vector<plan::Plan> of_entry;
    for (const PackagedPlan& p : e.plans) {
      of_entry.push_back(plan::deserialize(file.read(file.find(p.section))));
      check(m, e, p, of_entry.back());
    }
    if (plans) plans->push_back(std::move(of_entry));
  }
  return m;
}

}  // namespace flashover::aot
