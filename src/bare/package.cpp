// The build of the runtime without torch (runtime/loaded.h): packages whose plans need no library of torch's.
#include <omp.h>

#include <algorithm>

#include "bare/executor.h"
#include "base/check.h"
#include "cpu_kernels/team.h"
#include "package/check.h"
#include "package/choice.h"
#include "package/container.h"
#include "package/detached_signature.h"
#include "package/signature.h"
#include "runtime/loaded.h"
#include "target/features.h"

namespace flashover::runtime_library {
namespace {

using aot::Binding;
using bare::Array;
using Kind = Binding::Kind;

struct Owned {
  Array array;
};

std::vector<int64_t> dense_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  return strides;
}

Array borrowed(const flashover_tensor& t) {
  check_description(t);
  Array a{nullptr, static_cast<char*>(t.data), static_cast<DType>(t.dtype), {t.sizes, t.sizes + t.rank}, {}};
  a.strides = t.strides ? std::vector<int64_t>(t.strides, t.strides + t.rank) : dense_strides(a.sizes);
  return a;
}

aot::GivenTensor given_of(const Array& a, const flashover_tensor& t) {
  return {.strided = true,
          .dtype = a.dtype,
          .device = t.device == FLASHOVER_CUDA ? Device{DeviceType::kCUDA, 0} : Device{},
          .sizes = a.sizes,
          .strides = a.strides};
}

flashover_tensor described(Array a) {
  auto* owner = new Owned{std::move(a)};
  flashover_tensor out{};
  out.data = owner->array.data;
  out.dtype = static_cast<int32_t>(owner->array.dtype);
  out.device = FLASHOVER_CPU;
  out.rank = static_cast<int32_t>(owner->array.sizes.size());
  out.sizes = owner->array.sizes.data();
  out.strides = owner->array.strides.data();
  out.owner = owner;
  return out;
}

struct Entry {
  Entry(const aot::PackagedEntry& e, plan::Plan plan) : signature(e, plan), executor(std::move(plan)) {}
  aot::EntrySignature signature;
  bare::Executor executor;
};

bool overlap(const Array& a, const Array& b) {
  const auto end = [](const Array& x) {
    int64_t last = 1;
    for (size_t d = 0; d < x.sizes.size(); ++d) last += std::max<int64_t>(x.sizes[d] - 1, 0) * x.strides[d];
    return x.data + last * info(x.dtype).bytes;
  };
  return a.data < end(b) && b.data < end(a);
}

class WithoutTorch final : public LoadedPackage {
 public:
  WithoutTorch(const std::string& path, bool verify, const std::string& signed_by, std::optional<Device> device) {
    const aot::Container file(aot::open_signed_file(path, signed_by));
    std::vector<std::vector<plan::Plan>> all;
    aot::Manifest whole = aot::check_package(file, &all);
    aot::Choice choice =
        aot::choose(std::move(whole), std::move(all), {.why_not = bare::why_not, .how = " without torch"}, device);
    std::vector<plan::Plan>& plans = choice.plans;
    manifest_ = std::move(choice.manifest);
    // What was prepared by another kind of processor may have other bits. (Numbers of threads do not matter here.)
    const bool suits = manifest_.machine.ends_with(", processor " + target::processor());
    std::vector<std::vector<aot::Prepared>> found;
    std::vector<bool> read(manifest_.weights.size());
    for (size_t i = 0; i < plans.size(); ++i) {
      aot::PackagedEntry& e = manifest_.entries[i];
      const size_t at = choice.chosen[i];
      std::vector<aot::Prepared>& prepared = found.emplace_back();
      if (suits && aot::is_complete(e.plans[at].prepared, plans[i])) prepared = e.plans[at].prepared;
      aot::mark_read(e, plans[i], prepared, read);
      entries_.push_back(std::make_unique<Entry>(e, std::move(plans[i])));
    }
    weight_bytes_ = file.map(file.find(aot::kWeightSection));
    unverified_.assign(manifest_.weights.size(), verify);
    verify_weights(read);
    auto weights = std::make_shared<Weights>();
    for (const aot::Weight& w : manifest_.weights)
      weights->arrays.push_back({weight_bytes_, weight_bytes_.get() + w.offset, w.dtype, w.sizes, w.strides});
    const std::shared_ptr<char> prepared = file.map(file.find(aot::kPreparedSection));
    for (size_t i = 0; i < entries_.size(); ++i)
      weights->frozen.push_back(taken_frozen(i, found[i], prepared, verify, *weights));
    weights_ = std::move(weights);
  }
  const aot::Manifest& manifest() const override { return manifest_; }
  const plan::Plan& plan(size_t entry) const override { return entries_[entry]->executor.plan(); }

  void run(size_t entry, std::span<const flashover_tensor> arguments,
           std::span<flashover_tensor> results) const override {
    const aot::PackagedEntry& e = manifest_.entries[entry];
    const aot::EntrySignature& signature = entries_[entry]->signature;
    std::vector<Array> given;
    std::vector<aot::GivenTensor> seen;
    for (const flashover_tensor& t : arguments) given.push_back(borrowed(t));
    for (size_t i = 0; i < given.size(); ++i) seen.push_back(given_of(given[i], arguments[i]));
    const aot::EntrySignature::Values values = signature.check(seen);
    const std::shared_ptr<const Weights> weights = current();
    std::vector<Array> inputs;
    for (size_t i = 0; i < e.inputs.size(); ++i) {
      const Binding& b = e.inputs[i];
      if (b.kind == Kind::kWeight) {
        inputs.push_back(weights->arrays[static_cast<size_t>(b.index)]);
        continue;
      }
      const size_t at = signature.position(b);
      const auto strides = signature.other_strides(i, seen[at], values);
      inputs.push_back(strides ? bare::in_strides(given[at], *strides) : given[at]);
    }
    for (size_t i = 0; i < inputs.size(); ++i)
      for (size_t k = 0; signature.writes(i) && k < inputs.size(); ++k)
        if (k != i && overlap(inputs[i], inputs[k])) signature.refuse_shared_memory();
    std::vector<char*> addresses;
    std::vector<std::vector<int64_t>> sizes;
    for (const Array& a : inputs) addresses.push_back(a.data), sizes.push_back(a.sizes);
    std::vector<Array> outputs = entries_[entry]->executor.run(addresses, sizes, weights->frozen[entry]);
    for (size_t i = 0; i < e.results.size(); ++i) {
      const Binding& b = e.results[i];
      results[i] = flashover_tensor{};
      results[i].rank = -1;
      if (b.kind == Kind::kOutput) results[i] = described(outputs[static_cast<size_t>(b.index)]);
      if (b.kind == Kind::kArgument) results[i] = described(bare::copy_of(given[signature.position(b)]));
      if (b.kind == Kind::kWeight) results[i] = described(bare::copy_of(weights->arrays[static_cast<size_t>(b.index)]));
    }
  }
  void run_dlpack(size_t, std::span<DLManagedTensor* const>, std::span<DLManagedTensor*>) const override {
    throw UserError("the runtime without torch takes no DLPack tensors: flashover_run does the same");
  }
  void exchange(const std::vector<std::pair<std::string, flashover_tensor>>& values) override {
    const std::lock_guard one_at_a_time(exchanging_);
    verify_weights(std::vector<bool>(manifest_.weights.size(), true));
    auto made = std::make_shared<Weights>(Weights{current()->arrays, {}});
    for (const auto& [name, value] : values) {
      const size_t index = aot::find_weight(manifest_, name);
      if (std::ranges::any_of(entries_, [&](const auto& e) { return e->signature.counts_on_weight(index); }))
        throw UserError("the weight " + name + " is a constant of the program, whose code may count on its values");
      const Array given = borrowed(value);
      Array& old = made->arrays[index];
      if (value.device != FLASHOVER_CPU || given.dtype != old.dtype || given.sizes != old.sizes)
        throw UserError("the weight " + name + " has another type or other sizes in the package");
      old = bare::in_strides(given, old.strides);
    }
    for (size_t e = 0; e < entries_.size(); ++e) made->frozen.push_back(computed_frozen(e, *made));
    const std::lock_guard lock(mutex_);
    weights_ = std::move(made);
  }

 private:
  struct Weights {
    std::vector<Array> arrays;               // by Manifest::weights
    std::vector<bare::FrozenMemory> frozen;  // by entry
  };
  static constexpr auto on_all_threads = [](int64_t tasks, const auto& f) { cpu::in_parallel(tasks, f); };
  // Those that were not yet.
  void verify_weights(const std::vector<bool>& which) {
    std::vector<const aot::Weight*> parts;
    for (size_t i = 0; i < which.size(); ++i)
      if (which[i] && unverified_[i]) parts.push_back(&manifest_.weights[i]);
    aot::verify_bytes(parts, weight_bytes_.get(), "weights", on_all_threads);
    for (size_t i = 0; i < which.size(); ++i)
      if (which[i]) unverified_[i] = false;
  }
  bare::FrozenMemory computed_frozen(size_t entry, const Weights& weights) const {
    std::vector<char*> inputs;
    for (const Binding& b : manifest_.entries[entry].inputs)
      inputs.push_back(b.kind == Kind::kWeight ? weights.arrays[static_cast<size_t>(b.index)].data : nullptr);
    return entries_[entry]->executor.compute_frozen(inputs);
  }
  // What lies in the file, or is computed where it does not serve.
  bare::FrozenMemory taken_frozen(size_t entry, const std::vector<aot::Prepared>& prepared,
                                  const std::shared_ptr<char>& section, bool verify, const Weights& weights) {
    std::vector<const aot::Prepared*> parts;
    std::vector<std::pair<plan::TensorId, std::span<char>>> tensors;
    for (const aot::Prepared& p : prepared) {
      parts.push_back(&p);
      if (p.layout.empty()) tensors.emplace_back(p.tensor, std::span<char>(section.get() + p.offset, p.bytes));
    }
    if (auto taken = prepared.empty() ? std::nullopt : entries_[entry]->executor.take_frozen(section, tensors)) {
      if (verify) aot::verify_bytes(parts, section.get(), "prepared tensors", on_all_threads);
      return *std::move(taken);
    }
    verify_weights(std::vector<bool>(manifest_.weights.size(), true));
    return computed_frozen(entry, weights);
  }
  std::shared_ptr<const Weights> current() const {
    const std::lock_guard lock(mutex_);
    return weights_;
  }
  aot::Manifest manifest_;
  std::shared_ptr<char> weight_bytes_;  // as mapped
  std::vector<bool> unverified_;        // by weight
  std::vector<std::unique_ptr<Entry>> entries_;
  mutable std::mutex mutex_;
  std::mutex exchanging_;
  std::shared_ptr<const Weights> weights_;
};

}  // namespace

std::unique_ptr<LoadedPackage> load_package(const std::string& path, bool verify_weights, const std::string& signed_by,
                                            std::optional<Device> device) {
  return std::make_unique<WithoutTorch>(path, verify_weights, signed_by, device);
}
flashover_tensor copy_to(const flashover_tensor& tensor, Device device) {
  if (tensor.device != FLASHOVER_CPU || device.type != DeviceType::kCPU)
    throw UserError("the runtime without torch knows no devices but the CPU");
  return described(bare::copy_of(borrowed(tensor)));
}
void synchronize(Device) {}
void set_threads(int threads) { omp_set_num_threads(threads); }
void free_owner(void* owner) { delete static_cast<Owned*>(owner); }

}  // namespace flashover::runtime_library
