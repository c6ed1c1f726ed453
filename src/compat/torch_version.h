// Which torch the headers are of. Only the files of this folder ask.
#pragma once
#include <torch/headeronly/version.h>

#define FLASHOVER_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if !FLASHOVER_TORCH_AT_LEAST(2, 11)
#error "Flashover needs torch 2.11 or newer: pip install 'torch>=2.11,<2.16'"
#endif
