// flashover.h over a loaded package (loaded.h): no exception passes, texts and counts come from its manifest.
#include "runtime/flashover.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "ops/types.h"
#include "runtime/loaded.h"

struct flashover_package {
  std::unique_ptr<flashover::runtime_library::LoadedPackage> package;
  struct EntryTexts {
    std::vector<std::string> names, types;  // of the tensors that it takes
  };
  std::vector<EntryTexts> entries;
};

namespace {

using flashover::UserError;
namespace aot = flashover::aot;
namespace library = flashover::runtime_library;

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

flashover::Device device_of(int32_t device, int32_t index) {
  if ((device != FLASHOVER_CPU && device != FLASHOVER_CUDA) || index < 0 || index > 127)
    throw UserError("an unknown device");
  return device == FLASHOVER_CPU ? flashover::Device{}
                                 : flashover::Device{flashover::DeviceType::kCUDA, static_cast<int8_t>(index)};
}

void load(const char* path, const char* signed_by, bool verify_weights, flashover_package** package,
          std::optional<flashover::Device> device = std::nullopt) {
  if (!path || !package) throw UserError("a path, and a place for the package, are needed");
  *package = nullptr;
  auto made = std::make_unique<flashover_package>();
  made->package = library::load_package(path, verify_weights, signed_by, device);
  fill_texts(*made);
  *package = made.release();
}

void check_count(const char* what, size_t given, size_t wanted) {
  if (given != wanted)
    throw UserError(std::string(what) + ": " + std::to_string(wanted) + " are needed, not " + std::to_string(given));
}

}  // namespace

void flashover::runtime_library::check_description(const flashover_tensor& t) {
  if (t.rank < 0 || (t.rank > 0 && !t.sizes)) throw UserError("a tensor without sizes");
  if (t.dtype < 0 || t.dtype > 44 || flashover::info(static_cast<flashover::DType>(t.dtype)).bytes == 0)
    throw UserError("a tensor of an unknown dtype");
  if (std::any_of(t.sizes, t.sizes + t.rank, [](int64_t s) { return s < 0; }))
    throw UserError("a tensor with a negative size");
}

extern "C" {

int flashover_abi_version(void) { return FLASHOVER_ABI; }
const char* flashover_last_error(void) { return last_error.c_str(); }
void flashover_set_threads(int threads) {
  guarded([&] { library::set_threads(std::max(threads, 1)); });
}

int flashover_load(const char* path, int verify_weights, flashover_package** package) {
  return guarded([&] { load(path, "", verify_weights != 0, package); });
}
int flashover_load_signed(const char* path, const char* public_key, int verify_weights, flashover_package** package) {
  return guarded([&] {
    if (package) *package = nullptr;
    if (!public_key || !*public_key) throw UserError("a public key is needed: PEM, or the path of a file with it");
    load(path, public_key, verify_weights != 0, package);
  });
}
int flashover_load_on(const char* path, const char* public_key, int verify_weights, int32_t device,
                      int32_t device_index, flashover_package** package) {
  return guarded([&] {
    if (package) *package = nullptr;
    if (public_key && !*public_key) throw UserError("a public key is needed: PEM, or the path of a file with it");
    load(path, public_key ? public_key : "", verify_weights != 0, package, device_of(device, device_index));
  });
}
void flashover_free(flashover_package* package) { delete package; }

size_t flashover_entries(const flashover_package* p) { return p->entries.size(); }
const char* flashover_entry_name(const flashover_package* p, size_t entry) {
  return entry < p->entries.size() ? p->package->manifest().entries[entry].name.c_str() : nullptr;
}
int flashover_find_entry(const flashover_package* p, const char* name, size_t* entry) {
  return guarded([&] { *entry = aot::find_entry(p->package->manifest(), name ? name : ""); });
}

int flashover_entry_device(const flashover_package* p, size_t entry, int32_t* device, int32_t* device_index) {
  return guarded([&] {
    entry_of(p, entry);
    const flashover::Device on = p->package->plan(entry).device;
    *device = on.type == flashover::DeviceType::kCUDA ? FLASHOVER_CUDA : FLASHOVER_CPU;
    *device_index = std::max<int32_t>(on.index, 0);
  });
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
    p->package->run(entry, {arguments, argument_count}, {results, result_count});
  });
}
int flashover_tensor_copy(const flashover_tensor* tensor, int32_t device, int32_t device_index,
                          flashover_tensor* copy) {
  return guarded([&] { *copy = library::copy_to(*tensor, device_of(device, device_index)); });
}
int flashover_synchronize(const flashover_package* p, size_t entry) {
  return guarded([&] {
    entry_of(p, entry);
    library::synchronize(p->package->plan(entry).device);
  });
}
void flashover_tensor_free(flashover_tensor* tensor) {
  if (!tensor) return;
  library::free_owner(tensor->owner);
  tensor->owner = nullptr;
}

int flashover_run_dlpack(const flashover_package* p, size_t entry, DLManagedTensor* const* arguments,
                         size_t argument_count, DLManagedTensor** results, size_t result_count) {
  return guarded([&] {
    check_count("room for results", result_count, entry_of(p, entry).results.size());
    p->package->run_dlpack(entry, {arguments, argument_count}, {results, result_count});
  });
}

size_t flashover_weights(const flashover_package* p) { return p->package->manifest().weights.size(); }
const char* flashover_weight_name(const flashover_package* p, size_t weight) {
  return weight < flashover_weights(p) ? p->package->manifest().weights[weight].name.c_str() : nullptr;
}
int flashover_exchange(flashover_package* p, const char* const* names, const flashover_tensor* values, size_t count) {
  return guarded([&] {
    std::vector<std::pair<std::string, flashover_tensor>> weights;
    for (size_t i = 0; i < count; ++i) weights.emplace_back(names[i], values[i]);
    p->package->exchange(weights);
  });
}

}  // extern "C"
