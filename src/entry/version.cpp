// pyproject.toml has the version; CMake reads it there (FLASHOVER_VERSION).
#include "entry/version.h"

namespace flashover {

const char* version() { return FLASHOVER_VERSION; }

}  // namespace flashover
