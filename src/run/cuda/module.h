// Cubins on a device. Equal cubins are loaded once a device, and never unloaded: a kernel may still be running.
#pragma once
#include <string>
#include <string_view>

#include "run/cuda/driver.h"

namespace flashover::run::cuda {

CuModule load_module(std::string_view cubin, int device);  // throws Declined
// Ready to be launched with `shared` bytes of dynamic shared memory. Throws Declined.
Function find_function(CuModule module, const std::string& name, int shared, int device);
bool is_cubin(std::string_view bytes);

}  // namespace flashover::run::cuda
