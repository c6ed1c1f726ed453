// flashover.h over aot/package.h: no exception passes, tensors are described and not copied.
#include "runtime/flashover.h"

#include <ATen/DLConvertor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "aot/package.h"
#include "base/check.h"
#include "ops/types.h"

struct flashover_package {
  std::shared_ptr<flashover::aot::Package> package;
  struct EntryTexts {
    std::vector<std::string> names, types;  // of the tensors that it takes
  };
  std::vector<EntryTexts> entries;
};

namespace {

using flashover::UserError;
namespace aot = flashover::aot;

thread_local std::string last_error;

template <typename F>
int guarded(F&& f) noexcept {
  try {
    f();
    return 0;
  } catch (const std::exception& e) {
    last_error = e.what();
  } catch (...) {
    last_error = "an unknown exception";
  }
  return 1;
}

const aot::PackagedEntry& entry_of(const flashover_package* p, size_t entry) {
  if (!p || entry >= p->entries.size()) throw UserError("there is no such entry");
  return p->package->manifest().entries[entry];
}

// A tensor of the library's own that is handed out; the description points into it.
struct Owned {
  at::Tensor tensor;
};

at::Tensor borrowed(const flashover_tensor& t) {
  if (t.rank < 0 || (t.rank > 0 && !t.sizes)) throw UserError("a tensor without sizes");
  if (flashover::info(static_cast<flashover::DType>(t.dtype)).bytes == 0 || t.dtype < 0 || t.dtype > 44)
    throw UserError("a tensor of an unknown dtype");
  const at::IntArrayRef sizes(t.sizes, static_cast<size_t>(t.rank));
  const at::Device device = t.device == FLASHOVER_CUDA
                                ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(t.device_index))
                                : at::Device(at::kCPU);
  const auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(t.dtype)).device(device);
  if (std::ranges::any_of(sizes, [](int64_t s) { return s < 0; })) throw UserError("a tensor with a negative size");
  if (!t.strides) return at::from_blob(t.data, sizes, options);
  return at::from_blob(t.data, sizes, at::IntArrayRef(t.strides, sizes.size()), options);
}

// Results that lie in the memory of an argument, which may go before them, are copied.
std::vector<at::Tensor> call(const flashover_package* p, size_t entry, const std::vector<at::Tensor>& arguments) {
  std::vector<at::Tensor> results = p->package->run(entry, arguments);
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

void fill_texts(flashover_package& p) {
  const aot::Manifest& m = p.package->manifest();
  for (size_t e = 0; e < m.entries.size(); ++e) {
    const aot::PackagedEntry& entry = m.entries[e];
    flashover_package::EntryTexts& texts = p.entries.emplace_back();
    for (size_t a = 0; a < entry.arguments.size(); ++a) {
      if (!entry.arguments[a].tensor) continue;
      texts.names.push_back(entry.arguments[a].name);
      texts.types.emplace_back("any");
      for (size_t i = 0; i < entry.inputs.size(); ++i)
        if (entry.inputs[i].kind == aot::Binding::Kind::kArgument && static_cast<size_t>(entry.inputs[i].index) == a)
          texts.types.back() = str(p.package->plan(e).inputs[i].type);
    }
  }
}

const char* text_at(const std::vector<std::string>& texts, size_t i) {
  return i < texts.size() ? texts[i].c_str() : nullptr;
}

void check_count(const char* what, size_t given, size_t wanted) {
  if (given != wanted)
    throw UserError(std::string(what) + ": " + std::to_string(wanted) + " are needed, not " + std::to_string(given));
}

}  // namespace

extern "C" {

int flashover_abi_version(void) { return FLASHOVER_ABI; }
const char* flashover_last_error(void) { return last_error.c_str(); }
void flashover_set_threads(int threads) {
  guarded([&] { at::set_num_threads(std::max(threads, 1)); });
}

int flashover_load(const char* path, int verify_weights, flashover_package** package) {
  return guarded([&] {
    if (!path || !package) throw UserError("a path, and a place for the package, are needed");
    *package = nullptr;
    auto made = std::make_unique<flashover_package>();
    made->package = aot::Package::load(path, {.verify_weights = verify_weights != 0});
    fill_texts(*made);
    *package = made.release();
  });
}
void flashover_free(flashover_package* package) { delete package; }

size_t flashover_entries(const flashover_package* p) { return p->entries.size(); }
const char* flashover_entry_name(const flashover_package* p, size_t entry) {
  return entry < p->entries.size() ? p->package->manifest().entries[entry].name.c_str() : nullptr;
}
int flashover_find_entry(const flashover_package* p, const char* name, size_t* entry) {
  return guarded([&] { *entry = p->package->find(name ? name : ""); });
}

size_t flashover_arguments(const flashover_package* p, size_t entry) {
  return entry < p->entries.size() ? p->entries[entry].names.size() : 0;
}
const char* flashover_argument_name(const flashover_package* p, size_t entry, size_t argument) {
  return entry < p->entries.size() ? text_at(p->entries[entry].names, argument) : nullptr;
}
const char* flashover_argument_type(const flashover_package* p, size_t entry, size_t argument) {
  return entry < p->entries.size() ? text_at(p->entries[entry].types, argument) : nullptr;
}
size_t flashover_results(const flashover_package* p, size_t entry) {
  return entry < p->entries.size() ? p->package->manifest().entries[entry].results.size() : 0;
}
const char* flashover_result_value(const flashover_package* p, size_t entry, size_t result) {
  if (result >= flashover_results(p, entry)) return nullptr;
  const aot::Binding& b = p->package->manifest().entries[entry].results[result];
  return b.kind == aot::Binding::Kind::kValue ? b.value.c_str() : nullptr;
}

int flashover_run(const flashover_package* p, size_t entry, const flashover_tensor* arguments, size_t argument_count,
                  flashover_tensor* results, size_t result_count) {
  return guarded([&] {
    check_count("room for results", result_count, entry_of(p, entry).results.size());
    std::vector<at::Tensor> given;
    for (size_t i = 0; i < argument_count; ++i) given.push_back(borrowed(arguments[i]));
    const std::vector<at::Tensor> made = call(p, entry, given);
    for (size_t i = 0; i < result_count; ++i) results[i] = described(made[i]);
  });
}
void flashover_tensor_free(flashover_tensor* tensor) {
  if (!tensor) return;
  delete static_cast<Owned*>(tensor->owner);
  tensor->owner = nullptr;
}

int flashover_run_dlpack(const flashover_package* p, size_t entry, DLManagedTensor* const* arguments,
                         size_t argument_count, DLManagedTensor** results, size_t result_count) {
  return guarded([&] {
    check_count("room for results", result_count, entry_of(p, entry).results.size());
    std::vector<at::Tensor> given;
    for (size_t i = 0; i < argument_count; ++i) given.push_back(at::fromDLPack(arguments[i], [](void*) {}));
    const std::vector<at::Tensor> made = call(p, entry, given);
    for (size_t i = 0; i < result_count; ++i) results[i] = made[i].defined() ? at::toDLPack(made[i]) : nullptr;
  });
}

size_t flashover_weights(const flashover_package* p) { return p->package->manifest().weights.size(); }
const char* flashover_weight_name(const flashover_package* p, size_t weight) {
  return weight < flashover_weights(p) ? p->package->manifest().weights[weight].name.c_str() : nullptr;
}
int flashover_exchange(flashover_package* p, const char* const* names, const flashover_tensor* values, size_t count) {
  return guarded([&] {
    std::vector<std::pair<std::string, at::Tensor>> weights;
    for (size_t i = 0; i < count; ++i) weights.emplace_back(names[i], borrowed(values[i]));
    p->package->exchange(weights);
  });
}

}  // extern "C"
