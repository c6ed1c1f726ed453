// A TensorImpl that imitates another one: keys, sizes, strides and flags as eager's tensor has them.
#include "trace/tensor.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "ops/last_element.h"
#include "torch/size_node.h"
#include "trace/contiguous_call.h"
#include "trace/elsewhere.h"

namespace flashover::trace {
namespace {

constexpr const char* kDataAccess =
    "flashover: the data of a tensor was asked for while the program is being traced (.numpy(), .tolist(), data_ptr() "
    "...)";

// Same memory, other keys and device.
class PlainImpl final : public c10::TensorImpl {
 public:
  PlainImpl(c10::Storage storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype, c10::Device device)
      : TensorImpl(std::move(storage), keys, dtype) {
    device_opt_ = device;
  }
};

at::Tensor companion(const c10::TensorImpl& like, c10::DispatchKeySet keys, c10::Device device, CompanionSizes sizes) {
  if (like.is_conj()) keys = keys.add(c10::DispatchKey::Conjugate);
  if (like.is_neg()) keys = keys.add(c10::DispatchKey::Negative);
  // A real tensor (a number that ATen wrapped) lends its geometry only.
  c10::Storage storage =
      trace_impl(&like) ? c10::Storage(like.unsafe_storage()) : make_storage(like.dtype().itemsize());
  auto impl = c10::make_intrusive<PlainImpl>(std::move(storage), keys, like.dtype(), device);
  if (sizes == CompanionSizes::kRead)
    impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  else
    impl->set_sizes_and_strides(like.sizes_default(), like.strides_default(), like.storage_offset_default());
  if (like.is_wrapped_number()) impl->set_wrapped_number(true);
  return at::Tensor(std::move(impl));
}

}  // namespace

c10::intrusive_ptr<TraceImpl> TraceImpl::twin() const {
  auto impl = c10::make_intrusive<TraceImpl>(c10::Storage(storage_), key_set_, data_type_, *device_opt_);
  impl->value = value;
  impl->storage_id = storage_id;
  impl->liveness = liveness;
  impl->symbolic_ = symbolic_;
  return impl;
}

SymbolicGeometry::SymbolicGeometry(std::shared_ptr<sym::Environment> e, const TensorType& type)
    : environment(std::move(e)), sizes(type.sizes), strides(type.strides), offset(type.offset) {
  for (sym::Expr s : sizes) size_nodes.push_back(aten::to_symint(environment, s));
  for (sym::Expr s : strides) stride_nodes.push_back(aten::to_symint(environment, s));
}

void TraceImpl::set_symbolic(std::shared_ptr<const SymbolicGeometry> symbolic) {
  symbolic_ = std::move(symbolic);
  set_custom_sizes_strides(symbolic_ ? SizesStridesPolicy::CustomSizes : SizesStridesPolicy::Default);
}

TensorType TraceImpl::symbolic_type() const {
  TensorType type;
  type.sizes = symbolic_->sizes;
  type.strides = symbolic_->strides;
  type.offset = symbolic_->offset;
  return type;
}

std::optional<sym::Expr> TraceImpl::memory_size() const {
  TensorType type;
  if (symbolic_) {
    type = symbolic_type();
  } else {
    type.sizes.assign(sizes().begin(), sizes().end());
    type.strides.assign(strides().begin(), strides().end());
    type.offset = storage_offset();
  }
  const sym::Expr size = ops::last_element(type) + 1;
  const int64_t now = symbolic_ ? symbolic_->environment->now(size) : size.value();
  if (now * static_cast<int64_t>(itemsize()) != static_cast<int64_t>(storage().nbytes())) return {};
  return size;
}
std::optional<bool> TraceImpl::same_memory_size(const TraceImpl& other) const {
  if (!symbolic_) return other.symbolic_ ? other.same_memory_size(*this) : std::nullopt;
  const std::optional<sym::Expr> mine = memory_size(), its = other.memory_size();
  if (!mine || !its) return {};
  return holds(sym::Relation::kEqual, *mine, *its);
}

c10::IntArrayRef TraceImpl::sizes_custom() const {
  for (sym::Expr e : symbolic_->sizes) symbolic_->environment->specialize(e);
  return sizes_default();
}
int64_t TraceImpl::size_custom(int64_t d) const {
  const auto at = static_cast<size_t>(c10::maybe_wrap_dim(d, dim_custom(), /*wrap_scalar=*/false));
  return symbolic_->environment->specialize(symbolic_->sizes[at]);
}
c10::IntArrayRef TraceImpl::strides_custom() const {
  for (sym::Expr e : symbolic_->strides) symbolic_->environment->specialize(e);
  return strides_default();
}
int64_t TraceImpl::numel_custom() const { return symbolic_->environment->specialize(sym::product(symbolic_->sizes)); }
int64_t TraceImpl::storage_offset_custom() const { return symbolic_->environment->specialize(symbolic_->offset); }
c10::SymIntArrayRef TraceImpl::sym_sizes_custom() const { return symbolic_->size_nodes; }
c10::SymInt TraceImpl::sym_size_custom(int64_t d) const {
  return symbolic_->size_nodes[static_cast<size_t>(c10::maybe_wrap_dim(d, dim_custom(), /*wrap_scalar=*/false))];
}
c10::SymIntArrayRef TraceImpl::sym_strides_custom() const { return symbolic_->stride_nodes; }
c10::SymInt TraceImpl::sym_numel_custom() const {
  return aten::to_symint(symbolic_->environment, sym::product(symbolic_->sizes));
}
c10::SymInt TraceImpl::sym_storage_offset_custom() const {
  return aten::to_symint(symbolic_->environment, symbolic_->offset);
}

// What is said of a layout may not be so for a tensor without elements.
void TraceImpl::has_elements() const {
  for (sym::Expr size : symbolic_->sizes) (void)holds(sym::Relation::kLess, 0, size);
}

// Each dimension begins where the ones before it end; those of one element lie anywhere, and all where there are none.
bool TraceImpl::is_dense(const std::vector<size_t>& inner_first) const {
  if (has_no_elements()) return true;
  sym::Expr expected = 1;
  for (size_t d : inner_first) {
    const sym::Expr size = symbolic_->sizes[d];
    if (size.is_const(1)) continue;
    if (!holds(sym::Relation::kEqual, symbolic_->strides[d], expected)) {
      if (holds(sym::Relation::kEqual, size, 1)) continue;
      has_elements();
      return false;
    }
    expected = expected * symbolic_->sizes[d];
  }
  return true;
}

namespace {
// Dimensions from the innermost to the outermost, where that format means something for the rank.
std::vector<size_t> order_of(at::MemoryFormat format, size_t rank) {
  std::vector<size_t> order;
  const bool channels_last = (format == at::MemoryFormat::ChannelsLast && rank == 4) ||
                             (format == at::MemoryFormat::ChannelsLast3d && rank == 5);
  if (format != at::MemoryFormat::Contiguous && !channels_last) return order;
  for (size_t d = rank; d-- > 0;) order.push_back(d);
  if (channels_last) {  // the channels first, the batch last
    order.erase(order.end() - 2);
    order.insert(order.begin(), 1);
  }
  return order;
}
}  // namespace

static thread_local bool in_contiguous_call = false;
ContiguousCall::ContiguousCall(PyObject* tensor)
    : before_(std::exchange(in_contiguous_call,
                            THPVariable_CheckExact(tensor) && at::impl::PythonTorchFunctionTLS::stack_len() == 0)) {}
ContiguousCall::~ContiguousCall() { in_contiguous_call = before_; }
void ContiguousCall::arrived() { in_contiguous_call = false; }

c10::SymBool TraceImpl::sym_is_contiguous_custom(at::MemoryFormat format) const {
  if (in_contiguous_call) return false;
  const std::vector<size_t> order = order_of(format, symbolic_->sizes.size());
  return !order.empty() && is_dense(order);
}

c10::SymBool TraceImpl::sym_is_non_overlapping_and_dense_custom() const {
  std::vector<size_t> order(symbolic_->sizes.size());
  for (size_t d = 0; d < order.size(); ++d) order[d] = d;
  const c10::IntArrayRef now = strides_default();
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return now[a] < now[b]; });
  return is_dense(order);
}

// As ATen decides it: no stride smaller than what the dimension within it spans.
bool TraceImpl::is_strides_like_custom(at::MemoryFormat format) const {
  const std::vector<size_t> order = order_of(format, symbolic_->sizes.size());
  if (order.empty() || format == at::MemoryFormat::Contiguous || has_no_elements()) return false;
  const Sizes& strides = symbolic_->strides;
  if (strides[1].is_const(0)) return false;
  sym::Expr least = 0;
  for (size_t d : order) {
    if (holds(sym::Relation::kLess, strides[d], least)) return false;
    // A tensor with one channel and one row is as well contiguous.
    if (d == 0 && holds(sym::Relation::kEqual, least, strides[1])) return false;
    least = symbolic_->sizes[d].is_const(1) ? strides[d] : strides[d] * symbolic_->sizes[d];
  }
  has_elements();
  return true;
}

c10::intrusive_ptr<c10::TensorImpl> TraceImpl::shallow_copy_and_detach(const c10::VariableVersion& version,
                                                                       bool allow_metadata_change) const {
  auto impl = twin();
  copy_tensor_metadata(this, impl.get(), version, allow_metadata_change);
  impl->set_symbolic(symbolic_);
  return impl;
}

c10::intrusive_ptr<c10::TensorImpl> TraceImpl::shallow_copy_and_detach(c10::VariableVersion&& version,
                                                                       bool allow_metadata_change) const {
  auto impl = twin();
  copy_tensor_metadata(this, impl.get(), std::move(version), allow_metadata_change);
  impl->set_symbolic(symbolic_);
  return impl;
}

// `t.data = source`.
void TraceImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& source) {
  const TraceImpl* other = trace_impl(source.get());
  if (input >= 0 && !data_written)
    decline_trace(*this, "tensor data replaced: .data of a tensor that outlives the call was assigned");
  if (!other) decline_trace(*this, "tensor data replaced: .data of a traced tensor was set to a real tensor");
  copy_tensor_metadata(other, this, version_counter(), allow_tensor_metadata_change());
  set_symbolic(other->symbolic_);
  value = other->value;
  storage_id = other->storage_id;
}

void TraceImpl::imitate(const c10::TensorImpl& like) {
  key_set_ = (like.key_set() | kTraceKeys).add(kElsewhere);
  set_geometry(like.sizes(), like.strides(), like.storage_offset());
}

void TraceImpl::set_geometry(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  const bool allowed = allow_tensor_metadata_change();
  set_allow_tensor_metadata_change(true);
  set_symbolic(nullptr);
  set_sizes_and_strides(sizes, strides, offset);
  set_allow_tensor_metadata_change(allowed);
}

void TraceImpl::rebase(c10::Storage storage, int32_t id) {
  const auto device = device_opt_;
  set_storage_keep_dtype(std::move(storage));
  device_opt_ = device;
  storage_id = id;
}

c10::Storage make_storage(int64_t bytes) {
  static c10::Allocator* allocator = c10::GetAllocator(c10::kMeta);
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, c10::Device(c10::kMeta)), allocator,
                       /*resizable=*/true);
  forbid_data_access(storage);
  return storage;
}

void forbid_data_access(const c10::Storage& storage) {
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(std::string(kDataAccess));
}

at::Tensor symbolic_companion(const TraceImpl& like) {
  at::Tensor out =
      companion(like, c10::DispatchKeySet(c10::DispatchKey::Meta), c10::Device(c10::kMeta), CompanionSizes::kNow);
  if (like.is_symbolic())
    out.unsafeGetTensorImpl()->set_sizes_and_strides(like.sym_sizes(), like.sym_strides(), like.sym_storage_offset());
  return out;
}

at::Tensor meta_companion(const c10::TensorImpl& like, CompanionSizes sizes) {
  return companion(like, c10::DispatchKeySet(c10::DispatchKey::Meta), c10::Device(c10::kMeta), sizes);
}

namespace {

// Indexing and .to() switch to a tensor's device: one that is always current, where there is none.
struct OneDevice : c10::impl::DeviceGuardImplInterface {
  const c10::Device device{c10::kCUDA, 0};
  c10::DeviceType type() const override { return device.type(); }
  c10::Device exchangeDevice(c10::Device) const override { return device; }
  c10::Device getDevice() const override { return device; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getNewStream(c10::Device, int) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

}  // namespace

at::Tensor cuda_stand_in(const c10::TensorImpl& like) {
  if (!at::globalContext().hasCUDA()) static const c10::impl::DeviceGuardImplRegistrar one(c10::kCUDA, new OneDevice);
  const c10::Device device(c10::kCUDA, 0);
  const auto keys =
      c10::DispatchKeySet(c10::computeDispatchKey(c10::typeMetaToScalarType(like.dtype()), c10::kStrided, device));
  // Addresses that nothing lies at, as a device's are for the CPU: no two stand-ins share memory.
  static std::atomic<uintptr_t> next{uintptr_t{1} << 44};
  const uintptr_t address = next.fetch_add((like.storage().nbytes() + 512) / 512 * 512);
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(like.storage().nbytes()),
                       at::DataPtr(reinterpret_cast<void*>(address), device), nullptr, /*resizable=*/false);
  auto impl =
      c10::make_intrusive<PlainImpl>(std::move(storage),
                                     keys | c10::getAutogradRelatedKeySetFromBackend(c10::BackendComponent::CUDABit) |
                                         c10::getAutocastRelatedKeySetFromBackend(c10::BackendComponent::CUDABit),
                                     like.dtype(), device);
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return at::Tensor(std::move(impl));
}

// The autograd engine asks CUDA for the device's context. Nothing but the hooks object knows, and it is made for good
// when first asked: its virtual functions are copied and the one in question is replaced.
void stand_ins_train() {
  if (at::globalContext().hasCUDA()) return;
  static const void* functions[96];
  if (functions[0]) return;
  constexpr bool (at::AcceleratorHooksInterface::*kMember)(c10::DeviceIndex) const =
      &at::AcceleratorHooksInterface::hasPrimaryContext;
  uintptr_t slot = 0;  // 1 + its offset, by the ABI of the compilers that build this
  std::memcpy(&slot, &kMember, sizeof slot);
  const auto& hooks = at::detail::getCUDAHooks();
  const void** table = nullptr;
  std::memcpy(&table, &hooks, sizeof table);
  std::memcpy(functions, table - 2, sizeof functions);
  bool (*const no)(const void*, c10::DeviceIndex) = [](const void*, c10::DeviceIndex) { return false; };
  std::memcpy(&functions[2 + (slot - 1) / sizeof(void*)], &no, sizeof no);
  const void** replaced = functions + 2;
  std::memcpy(const_cast<void*>(static_cast<const void*>(&hooks)), &replaced, sizeof replaced);
}

at::Tensor tagged_companion(const c10::TensorImpl& like, CompanionSizes sizes) {
  const auto backend = c10::DispatchKeySet(
      c10::computeDispatchKey(c10::typeMetaToScalarType(like.dtype()), c10::kStrided, like.device()));
  return companion(like, backend, like.device(), sizes);
}

at::Tensor contiguous_companion(const TraceImpl& like) {
  const auto backend = c10::DispatchKeySet(
      c10::computeDispatchKey(c10::typeMetaToScalarType(like.dtype()), c10::kStrided, like.device()));
  int64_t count = 1;
  for (int64_t size : like.sizes_now()) count *= size;
  auto impl = c10::make_intrusive<PlainImpl>(make_storage(count * static_cast<int64_t>(like.itemsize())), backend,
                                             like.dtype(), like.device());
  impl->set_sizes_contiguous(like.sizes_now());
  return at::Tensor(std::move(impl));
}

at::Tensor plane_of(const at::Tensor& line) {
  c10::SymDimVector sizes(line.sym_sizes().begin(), line.sym_sizes().end());
  c10::SymDimVector strides(line.sym_strides().begin(), line.sym_strides().end());
  strides.insert(strides.begin() + 2, sizes[2] * strides[2]);
  sizes.insert(sizes.begin() + 2, 1);
  auto impl = c10::make_intrusive<PlainImpl>(c10::Storage(line.storage()), line.key_set(), line.dtype(), line.device());
  impl->set_sizes_and_strides(sizes, strides, line.sym_storage_offset());
  return at::Tensor(std::move(impl));
}

}  // namespace flashover::trace
