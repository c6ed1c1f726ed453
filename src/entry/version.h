// Flashover's own version.
#pragma once

namespace flashover {

const char* version();  // as pyproject.toml says

}  // namespace flashover
