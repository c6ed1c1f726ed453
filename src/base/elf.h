// Whether bytes are a whole shared object. The dynamic linker trusts what it maps: a file that was cut ends the process
// with SIGBUS, so this stands before every dlopen and before the cache.
#pragma once
#include <string>
#include <string_view>

namespace flashover {

// "" if it is one for this machine; else what is wrong with it.
std::string why_not_shared_object(std::string_view bytes);

}  // namespace flashover
