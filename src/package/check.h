// Everything that is checked of a package before anything of it is mapped or loaded: what fuzz tests attack.
#pragma once
#include <vector>

#include "package/container.h"
#include "package/manifest.h"

namespace flashover::aot {

constexpr const char* kManifestSection = "manifest";
constexpr const char* kWeightSection = "weights";
constexpr const char* kPreparedSection = "prepared";

// Throws UserError. plans: by entry, those that it has. (The weights' bytes are looked at where they are mapped.)
Manifest check_package(const Container& file, std::vector<std::vector<plan::Plan>>* plans = nullptr);

}  // namespace flashover::aot
