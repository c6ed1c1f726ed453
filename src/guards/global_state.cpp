// A table of flags, each with the function of torch that reads it, packed into words.
#include "guards/global_state.h"

#include <Python.h>
#include <pthread.h>

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch/autocast.h"

namespace flashover::guards {
namespace {

struct Flag {
  const char* name;
  bool (*read)();
};
at::Context& context() { return at::globalContext(); }
const Flag kFlags[] = {
    {"grad mode", [] { return c10::GradMode::is_enabled(); }},
    {"inference mode", [] { return c10::InferenceMode::is_enabled(); }},
    {"autocast cache", [] { return autocast::is_cache_enabled(); }},
    // Dispatch keys of the thread, too.
    {"autocast on cpu", [] { return autocast::is_enabled(at::kCPU); }},
    {"autocast on cuda", [] { return autocast::is_enabled(at::kCUDA); }},
    // The context's.
    {"deterministic algorithms", [] { return context().deterministicAlgorithms(); }},
    {"deterministic algorithms, warn only", [] { return context().deterministicAlgorithmsWarnOnly(); }},
    {"deterministic fill of uninitialized memory", [] { return context().deterministicFillUninitializedMemory(); }},
    {"cudnn enabled", [] { return context().userEnabledCuDNN(); }},
    {"cudnn benchmark", [] { return context().benchmarkCuDNN(); }},
    {"cudnn deterministic", [] { return context().deterministicCuDNN(); }},
    {"mkldnn enabled", [] { return context().userEnabledMkldnn(); }},
    {"mkldnn deterministic", [] { return context().deterministicMkldnn(); }},
    {"flash attention", [] { return context().userEnabledFlashSDP(); }},
    {"memory efficient attention", [] { return context().userEnabledMemEfficientSDP(); }},
    {"math attention", [] { return context().userEnabledMathSDP(); }},
    {"cudnn attention", [] { return context().userEnabledCuDNNSDP(); }},
    {"reduced precision math attention", [] { return context().allowFP16BF16ReductionMathSDP(); }},
    {"fp16 reduction on cpu", [] { return context().allowFP16ReductionCPU(); }},
    {"fp16 accumulation in cublas", [] { return context().allowFP16AccumulationCuBLAS(); }},
};
static_assert(std::size(kFlags) <= 64);
constexpr size_t kFlagsOfThread = 3, kFirstFlagOfContext = 5;

struct Small {
  const char* name;
  int8_t (*read)();
};
template <typename T>
int8_t small(T value) {
  return static_cast<int8_t>(value);
}
// Not set means full precision for matrix products.
int8_t matmul_precision(at::Float32Backend backend) {
  at::Float32Precision p = context().float32Precision(backend, at::Float32Op::MATMUL);
  return small(p == at::Float32Precision::NONE ? at::Float32Precision::IEEE : p);
}
// A default device (torch.set_default_device, with torch.device(...)) is a torch function mode, alone on their stack;
// its object decides what factories do. Null: none, or other modes.
PyObject* default_device() {
  if (at::impl::PythonTorchFunctionTLS::stack_len() != 1) return nullptr;
  PyObject* mode = at::impl::PythonTorchFunctionTLS::get_stack_at(0)->ptr(getPyInterpreter());
  static PyTypeObject* type = [] {
    PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch.utils._device");
    PyObject* found = module ? PyObject_GetAttrString(module, "DeviceContext") : nullptr;
    if (!found) PyErr_Clear();
    return reinterpret_cast<PyTypeObject*>(found);
  }();
  return type && Py_TYPE(mode) == type ? mode : nullptr;
}
// Read off the object: 0 for none, else c10's numbers plus 2.
int8_t default_device_part(bool index) {
  PyObject* mode = default_device();
  if (!mode) return 0;
  PyObject* device = PyObject_GetAttrString(mode, "device");
  if (!device || !THPDevice_Check(device)) {
    PyErr_Clear();
    Py_XDECREF(device);
    return -1;
  }
  const at::Device d = reinterpret_cast<THPDevice*>(device)->device;
  Py_DECREF(device);
  return small((index ? static_cast<int>(d.index()) : static_cast<int>(d.type())) + 2);
}

bool cuda_is_used() {
  static auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::kCUDA));
  return allocator && allocator->initialized();
}
// A child of a process that used CUDA cannot use it, nor ask it for anything: each question is an error there. (Workers
// of a DataLoader are such children.)
std::atomic<bool> forked_from_user{false};
[[maybe_unused]] const int watched = pthread_atfork(nullptr, nullptr, [] {
  if (cuda_is_used()) forked_from_user = true;
});
// 0 until CUDA is used: asking earlier would start it. In such a child it stays what it was.
int8_t current_cuda_device() {
  static std::atomic<int8_t> last{0};
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA) || forked_from_user || !cuda_is_used()) return last;
  return last = small(c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index());
}
const Small kSmall[] = {
    {"default dtype", [] { return small(c10::get_default_dtype_as_scalartype()); }},
    {"autocast dtype on cpu", [] { return small(autocast::dtype(at::kCPU)); }},
    {"autocast dtype on cuda", [] { return small(autocast::dtype(at::kCUDA)); }},
    {"current cuda device", current_cuda_device},
    {"default device", [] { return default_device_part(false); }},
    {"index of the default device", [] { return default_device_part(true); }},
    // The context's.
    {"float32 matmul precision of mkldnn", [] { return matmul_precision(at::Float32Backend::MKLDNN); }},
    {"float32 matmul precision of cuda", [] { return matmul_precision(at::Float32Backend::CUDA); }},
    {"float32 convolution precision of mkldnn",
     [] { return small(context().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::CONV)); }},
    {"float32 convolution precision of cuda",
     [] { return small(context().float32Precision(at::Float32Backend::CUDA, at::Float32Op::CONV)); }},
};
static_assert(std::size(kSmall) <= std::tuple_size_v<decltype(GlobalState::types)>);
constexpr size_t kFirstSmallOfDevice = 4, kFirstSmallOfContext = 6;

uint64_t flags_from(size_t begin, size_t end) {
  uint64_t flags = 0;
  for (size_t i = begin; i < end; i++) flags |= static_cast<uint64_t>(kFlags[i].read()) << i;
  return flags;
}

using Precisions = std::unordered_map<std::pair<at::Float32Backend, at::Float32Op>, at::Float32Precision,
                                      c10::hash<std::pair<at::Float32Backend, at::Float32Op>>>;
}  // namespace

// The context keeps its float32 precisions in a private table, whose look-ups took half the time of reading it all.
Precisions& precisions_of(at::Context&);
template <Precisions at::Context::*Member>
struct Reach {
  friend Precisions& precisions_of(at::Context& c) { return c.*Member; }
};
template struct Reach<&at::Context::fp32_precision>;

namespace {
// The context's part of the state, and the bytes it was read off: what it says is in them and in its table.
struct OfContext {
  std::array<unsigned char, sizeof(at::Context)> bytes{};
  std::vector<std::pair<const at::Float32Precision*, at::Float32Precision>> precisions;
  GlobalState state;

  bool current() const {
    if (precisions.empty() || std::memcmp(bytes.data(), static_cast<const void*>(&context()), bytes.size()) != 0)
      return false;
    for (const auto& [where, is] : precisions)
      if (*where != is) return false;
    return true;
  }
  void read() {
    std::memcpy(bytes.data(), static_cast<const void*>(&context()), bytes.size());
    precisions.clear();
    for (const auto& [key, precision] : precisions_of(context())) precisions.emplace_back(&precision, precision);
    state.flags = flags_from(kFirstFlagOfContext, std::size(kFlags));
    for (size_t i = kFirstSmallOfContext; i < std::size(kSmall); i++) state.types[i] = kSmall[i].read();
  }
  static const GlobalState& now() {
    static OfContext last;  // GIL held
    if (!last.current()) last.read();
    return last.state;
  }
};
}  // namespace

GlobalState GlobalState::read() {
  GlobalState s;
  c10::impl::LocalDispatchKeySet tls = c10::impl::tls_local_dispatch_key_set();
  s.included = tls.included_.raw_repr();
  s.excluded = tls.excluded_.raw_repr();
  s.flags = flags_from(0, std::size(kFlags));
  for (size_t i = 0; i < std::size(kSmall); i++) s.types[i] = kSmall[i].read();
  return s;
}

bool GlobalState::holds() const {
  const c10::impl::LocalDispatchKeySet tls = c10::impl::tls_local_dispatch_key_set();
  if (included != tls.included_.raw_repr() || excluded != tls.excluded_.raw_repr()) return false;
  constexpr uint64_t kOfThread = (uint64_t{1} << kFlagsOfThread) - 1, kOfContext = ~uint64_t{0} << kFirstFlagOfContext;
  const GlobalState& c = OfContext::now();
  if ((flags & kOfContext) != c.flags || (flags & kOfThread) != flags_from(0, kFlagsOfThread)) return false;
  // Hardly ever is there a mode; what each look costs when caches are cold is the pages of its code.
  const bool plain = at::impl::PythonTorchFunctionTLS::stack_len() == 0;
  for (size_t i = 0; i < kFirstSmallOfContext; i++)
    if (types[i] != (plain && i >= kFirstSmallOfDevice ? 0 : kSmall[i].read())) return false;
  return std::equal(types.begin() + kFirstSmallOfContext, types.end(), c.types.begin() + kFirstSmallOfContext);
}

std::string GlobalState::difference(const GlobalState& now) const {
  for (size_t i = 0; i < std::size(kFlags); i++) {
    bool was = flags >> i & 1, is = now.flags >> i & 1;
    if (was != is) return std::string(kFlags[i].name) + " is " + (was ? "on" : "off") + ", now " + (is ? "on" : "off");
  }
  for (size_t i = 0; i < std::size(kSmall); i++)
    if (types[i] != now.types[i])
      return std::string(kSmall[i].name) + " is " + std::to_string(types[i]) + ", now " + std::to_string(now.types[i]);
  if (included != now.included || excluded != now.excluded) return "thread-local dispatch keys changed";
  return "";
}

const char* state_to_avoid() {
  // What calls __torch_dispatch__ turns off all keys above Python's. Fake is one of them up to torch 2.12.
  if (c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Fake) ||
      c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::DeferredInit))
    return "torch's state: an operator is running (__torch_dispatch__)";
  if (const int64_t modes = at::impl::PythonTorchFunctionTLS::stack_len();
      modes > 1 || (modes == 1 && !default_device()))
    return "a torch function mode is active";
  if (at::impl::PythonTorchFunctionTLS::get_disabled_state() != at::impl::TorchFunctionDisabledState::ENABLED)
    return "torch functions are disabled";
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) return "a torch dispatch mode is active";
  c10::DispatchKeySet on = c10::impl::tls_local_dispatch_key_set().included_;
  if (on.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode)) return "a functorch transform is active";
  if (on.has(c10::DispatchKey::VmapMode)) return "vmap is active";
  // Levels are numbered from 0; tensors may have tangents that no plan computes.
  if (torch::autograd::ForwardADLevel::try_get_by_idx(0)) return "forward-mode differentiation is active";
  if (on.has(c10::DispatchKey::Tracer)) return "torch.jit.trace is active";
  if (on.has(c10::DispatchKey::Fake)) return "a trace is active";
  if (on.has(c10::DispatchKey::PythonDispatcher)) return "the Python dispatcher is active";
  return nullptr;
}

}  // namespace flashover::guards
