// See devices.h.
#include "graph/analysis/devices.h"

#include <algorithm>

#include "base/check.h"

namespace flashover::graph {

bool uses_cuda(const Graph& g) {
  return std::any_of(g.values.begin(), g.values.end(),
                     [](const Value& v) { return v.type.device.type == DeviceType::kCUDA; });
}

Device device_of(const Graph& g) {
  Device device;
  for (const Value& v : g.values) {
    if (v.type.device.type != DeviceType::kCUDA || v.type.device == device) continue;
    if (device.type == DeviceType::kCUDA) throw Declined("a graph on two CUDA devices");
    device = v.type.device;
  }
  return device;
}

}  // namespace flashover::graph
