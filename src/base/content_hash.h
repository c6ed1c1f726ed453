// How large memory is told apart, and damage seen: at the speed of memory. Not cryptographic, and not for short keys.
#pragma once
#include <cstddef>
#include <cstdint>

namespace flashover {

uint64_t content_hash(const void* data, size_t bytes);  // the same on every host and run

}  // namespace flashover
