// The one file that includes ATen's autocast.
#include "torch/autocast.h"

#include <ATen/autocast_mode.h>

namespace flashover::autocast {

bool is_enabled(at::DeviceType device) { return at::autocast::is_autocast_enabled(device); }
at::ScalarType dtype(at::DeviceType device) { return at::autocast::get_autocast_dtype(device); }
at::Tensor cast(const at::Tensor& operand, at::DeviceType device) {
  return at::autocast::cached_cast(dtype(device), operand, device);
}

bool is_cache_enabled() { return at::autocast::is_autocast_cache_enabled(); }
void set_cache_enabled(bool enabled) { at::autocast::set_autocast_cache_enabled(enabled); }
void clear_cache() { at::autocast::clear_cache(); }

}  // namespace flashover::autocast
