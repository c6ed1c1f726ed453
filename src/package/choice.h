// Which of a package's plans a machine takes.
//
//   In        a manifest with its plans; which of them this machine can run; the device that the caller asks for, if any
//   Out       the manifest with the entries that are taken (one a name), and of each the plan
//   Promises  all entries run on the same kind of device where the package has code for it: CUDA where there is one, else
//             the CPU. The first plan of an entry that can be run is taken
//   Declines  an entry without a plan for this machine: UserError, which names what the package holds
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "package/manifest.h"

namespace flashover::aot {

struct ThisMachine {
  std::function<std::string(const plan::Plan&)> why_not;  // "": it runs here
  bool cuda = false;                                      // has a device
  std::string how{};                                      // for people: " without torch"
};

struct Choice {
  Manifest manifest;
  std::vector<size_t> chosen;      // by entry: of PackagedEntry::plans
  std::vector<plan::Plan> plans;   // these
  std::vector<Device> placements;  // by weight
};
Choice choose(Manifest m, std::vector<std::vector<plan::Plan>> plans, const ThisMachine& machine,
              std::optional<Device> device);

}  // namespace flashover::aot
