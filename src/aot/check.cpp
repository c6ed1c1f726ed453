// The manifest first, then each plan by itself and against its entry.
#include "aot/check.h"

#include <torch/headeronly/version.h>

#include "base/check.h"

namespace flashover::aot {
namespace {

std::string minor_of(const std::string& version) {  // "2.11" of "2.11.0+cpu"
  const size_t dot = version.find('.');
  return dot == std::string::npos ? version : version.substr(0, version.find('.', dot + 1));
}

void check_versions(const Manifest& m) {
  if (minor_of(m.torch) != minor_of(TORCH_VERSION))
    throw UserError("the package was made beside torch " + m.torch + ", and this is torch " TORCH_VERSION +
                    ": package the program again");
}

}  // namespace

Manifest check_package(const Container& file, std::vector<std::vector<plan::Plan>>* plans) {
  Manifest m = decode(file.read(file.find(kManifestSection)));
  check_versions(m);
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
