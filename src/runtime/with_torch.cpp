// The build of the runtime that stands on libtorch: tensors are described and not copied.
#include <ATen/DLConvertor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>

#include "aot/package.h"
#include "runtime/loaded.h"

namespace flashover::runtime_library {
namespace {

// A tensor of the library's own that is handed out; the description points into it.
struct Owned {
  at::Tensor tensor;
};

at::Device torch_device(Device d) {
  return d.type == DeviceType::kCUDA ? at::Device(at::kCUDA, d.index) : at::Device(at::kCPU);
}

at::Tensor borrowed(const flashover_tensor& t) {
  check_description(t);
  const at::IntArrayRef sizes(t.sizes, static_cast<size_t>(t.rank));
  const at::Device device = t.device == FLASHOVER_CUDA
                                ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(t.device_index))
                                : at::Device(at::kCPU);
  const auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(t.dtype)).device(device);
  if (!t.strides) return at::from_blob(t.data, sizes, options);
  return at::from_blob(t.data, sizes, at::IntArrayRef(t.strides, sizes.size()), options);
}

// Results that lie in the memory of an argument, which may go before them, are copied.
std::vector<at::Tensor> call(const aot::Package& p, size_t entry, const std::vector<at::Tensor>& arguments) {
  std::vector<at::Tensor> results = p.run(entry, arguments);
  for (at::Tensor& r : results)
    for (const at::Tensor& a : arguments)
      if (r.defined() && r.storage().unsafeGetStorageImpl() == a.storage().unsafeGetStorageImpl()) {
        r = r.clone();
        break;
      }
  return results;
}

flashover_tensor described(at::Tensor t) {
  flashover_tensor out{};
  out.rank = -1;
  if (!t.defined()) return out;
  auto* owner = new Owned{t.resolve_conj().resolve_neg()};
  const at::Tensor& held = owner->tensor;
  out.data = held.data_ptr();
  out.dtype = static_cast<int32_t>(held.scalar_type());
  out.device = held.is_cuda() ? FLASHOVER_CUDA : FLASHOVER_CPU;
  out.device_index = std::max<int32_t>(held.device().index(), 0);
  out.rank = static_cast<int32_t>(held.dim());
  out.sizes = held.sizes().data();
  out.strides = held.strides().data();
  out.owner = owner;
  return out;
}

class WithTorch final : public LoadedPackage {
 public:
  explicit WithTorch(std::shared_ptr<aot::Package> package) : package_(std::move(package)) {}
  const aot::Manifest& manifest() const override { return package_->manifest(); }
  const plan::Plan& plan(size_t entry) const override { return package_->plan(entry); }
  void run(size_t entry, std::span<const flashover_tensor> arguments,
           std::span<flashover_tensor> results) const override {
    std::vector<at::Tensor> given;
    for (const flashover_tensor& t : arguments) given.push_back(borrowed(t));
    const std::vector<at::Tensor> made = call(*package_, entry, given);
    for (size_t i = 0; i < results.size(); ++i) results[i] = described(made[i]);
  }
  void run_dlpack(size_t entry, std::span<DLManagedTensor* const> arguments,
                  std::span<DLManagedTensor*> results) const override {
    std::vector<at::Tensor> given;
    for (DLManagedTensor* t : arguments) given.push_back(at::fromDLPack(t, [](void*) {}));
    const std::vector<at::Tensor> made = call(*package_, entry, given);
    for (size_t i = 0; i < results.size(); ++i) results[i] = made[i].defined() ? at::toDLPack(made[i]) : nullptr;
  }
  void exchange(const std::vector<std::pair<std::string, flashover_tensor>>& weights) override {
    std::vector<std::pair<std::string, at::Tensor>> values;
    for (const auto& [name, value] : weights) values.emplace_back(name, borrowed(value));
    package_->exchange(values);
  }

 private:
  const std::shared_ptr<aot::Package> package_;
};

}  // namespace

std::unique_ptr<LoadedPackage> load_package(const std::string& path, bool verify_weights, const std::string& signed_by,
                                            std::optional<Device> device) {
  return std::make_unique<WithTorch>(
      aot::Package::load(path, {.verify_weights = verify_weights, .signed_by = signed_by, .device = device}));
}
flashover_tensor copy_to(const flashover_tensor& tensor, Device device) {
  return described(borrowed(tensor).to(at::TensorOptions(torch_device(device)), /*non_blocking=*/false, /*copy=*/true));
}
void synchronize(Device device) {
  if (device.type != DeviceType::kCUDA) return;
  c10::impl::getDeviceGuardImpl(c10::kCUDA)->synchronizeDevice(device.index);
}
void set_threads(int threads) { at::set_num_threads(threads); }
void free_owner(void* owner) { delete static_cast<Owned*>(owner); }

}  // namespace flashover::runtime_library
