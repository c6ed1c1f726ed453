// Looks below the Python registrations of shape functions: `import torch` shadows some 600 C++ meta kernels with Python
// ones that take 60-1700 us a call. The dispatcher keeps the shadowed kernels in a private list, reached here through
// the one legal door to private members (explicit instantiation).
#include <string>

#include "trace/recorder.h"

namespace flashover::trace {
namespace {

template <auto Member, typename Tag>
struct Expose {
  friend constexpr auto expose(Tag) { return Member; }
};

struct DefinitionTag {
  friend constexpr auto expose(DefinitionTag);
};
struct KernelsTag {
  friend constexpr auto expose(KernelsTag);
};
template struct Expose<&c10::OperatorHandle::operatorDef_, DefinitionTag>;
template struct Expose<&c10::impl::OperatorEntry::kernels_, KernelsTag>;

}  // namespace

const c10::KernelFunction* find_cpp_meta(const c10::OperatorHandle& op, bool& python_meta, bool& shadowed) {
  const auto& kernels = (op.*expose(DefinitionTag()))->op.*expose(KernelsTag());
  const auto is_python = [](const auto& kernel) {
    return kernel.debug.find(".py:") != std::string::npos || kernel.debug.find("/dev/null") != std::string::npos;
  };
  const auto first_cpp = [&](c10::DispatchKey key) -> const c10::KernelFunction* {
    auto it = kernels.find(key);
    if (it == kernels.end()) return nullptr;
    for (const auto& kernel : it->second)
      if (!is_python(kernel)) return &kernel.kernel;
    return nullptr;
  };
  if (const auto* kernel = first_cpp(c10::DispatchKey::Meta)) {
    python_meta = false;
    shadowed = is_python(kernels.find(c10::DispatchKey::Meta)->second.front());
    return kernel;
  }
  // A composite below a Python shape function is not asked: some choose by device (convolution), which meta would
  // mislead.
  python_meta = kernels.find(c10::DispatchKey::Meta) != kernels.end();
  if (python_meta) return nullptr;
  if (const auto* kernel = first_cpp(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) return kernel;
  if (const auto* kernel = first_cpp(c10::DispatchKey::CompositeExplicitAutograd)) return kernel;
  python_meta = kernels.find(c10::DispatchKey::CompositeExplicitAutograd) != kernels.end();
  return nullptr;
}

}  // namespace flashover::trace
