// Entries of one name are told apart by their kind of device; then plans are asked in order.
#include "package/choice.h"

#include <algorithm>

#include "base/check.h"

namespace flashover::aot {
namespace {

// The one of its name that is for a kind of device, else the other one unless the caller asks.
size_t entry_of(const Manifest& m, const std::string& name, DeviceType kind, bool asked) {
  size_t other = m.entries.size();
  for (size_t i = 0; i < m.entries.size(); ++i) {
    if (m.entries[i].name != name) continue;
    if (m.entries[i].device == kind) return i;
    if (!asked) other = i;
  }
  return other;
}

std::string kind_name(DeviceType kind) { return kind == DeviceType::kCUDA ? "CUDA devices" : "the CPU"; }

// What the package holds of an entry, and why that is not for here.
[[noreturn]] void refuse(const Manifest& m, const std::vector<std::vector<plan::Plan>>& plans, const std::string& name,
                         const ThisMachine& machine, std::optional<Device> device) {
  std::string text = "entry " + name + " of the package does not run" + machine.how + " on this machine";
  text += (device ? ", on " + kind_name(device->type) : "") + ":";
  bool other = false;
  for (size_t i = 0; i < m.entries.size(); ++i)
    for (size_t k = 0; m.entries[i].name == name && k < plans[i].size(); ++k) {
      std::string reason = machine.why_not(plans[i][k]);
      if (reason.empty()) other = true, reason = "this one would";
      text += "\n- for " + plans[i][k].target + ": " + reason;
    }
  if (other && !device) text += "\nload(path, device=\"cpu\") takes the code for the CPU";
  throw UserError(text);
}

}  // namespace

Choice choose(Manifest m, std::vector<std::vector<plan::Plan>> plans, const ThisMachine& machine,
              std::optional<Device> device) {
  const DeviceType kind = device ? device->type : machine.cuda ? DeviceType::kCUDA : DeviceType::kCPU;
  std::vector<std::string> names;
  for (const PackagedEntry& e : m.entries)
    if (std::ranges::find(names, e.name) == names.end()) names.push_back(e.name);
  Choice out;
  std::vector<PackagedEntry> entries;
  for (const std::string& name : names) {
    const size_t i = entry_of(m, name, kind, device.has_value());
    size_t fits = 0;
    while (i < plans.size() && fits < plans[i].size() && !machine.why_not(plans[i][fits]).empty()) ++fits;
    if (i == plans.size() || fits == plans[i].size()) refuse(m, plans, name, machine, device);
    out.chosen.push_back(fits);
    out.plans.push_back(std::move(plans[i][fits]));
    entries.push_back(std::move(m.entries[i]));
  }
  m.entries = std::move(entries);
  out.manifest = std::move(m);
  std::vector<const plan::Plan*> taken;
  for (const plan::Plan& p : out.plans) taken.push_back(&p);
  out.placements = weight_devices(out.manifest, taken);
  return out;
}

}  // namespace flashover::aot
