// Loading: the table, the manifest and all plans are read and checked first; then weights are mapped, then code.
#include "aot/package.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "aot/entry.h"
#include "aot/prepared.h"
#include "base/check.h"
#include "base/content_hash.h"
#include "cpu_kernels/operators.h"
#include "cpu_kernels/team.h"
#include "package/check.h"
#include "package/choice.h"
#include "package/container.h"
#include "package/detached_signature.h"
#include "plan/contents.h"
#include "run/cuda/driver.h"
#include "run/program.h"
#include "run/untracked_writers.h"
#include "torch/convert.h"

namespace flashover::aot {
namespace {

std::vector<at::Tensor> weights_in(const std::shared_ptr<char>& section, const Manifest& m,
                                   const std::vector<Device>& placements) {
  std::vector<at::Tensor> out;
  for (size_t i = 0; i < m.weights.size(); ++i) {
    const Weight& w = m.weights[i];
    const auto options = at::TensorOptions().dtype(aten::to_aten(w.dtype)).device(at::kCPU);
    at::Tensor t = at::from_blob(
        section.get() + w.offset, w.sizes, w.strides, [section](void*) {}, options);
    if (placements[i].type != DeviceType::kCPU) {
      at::Tensor there = at::empty_strided(w.sizes, w.strides, options.device(aten::to_aten(placements[i])));
      t = there.copy_(t);
    }
    out.push_back(std::move(t));
  }
  return out;
}

std::string minor_of(const std::string& version) {  // "2.11" of "2.11.0+cpu"
  const size_t dot = version.find('.');
  return dot == std::string::npos ? version : version.substr(0, version.find('.', dot + 1));
}

void check_versions(const Manifest& m) {
  if (minor_of(m.torch) != minor_of(TORCH_VERSION))
    throw UserError("the package was made beside torch " + m.torch + ", and this is torch " TORCH_VERSION +
                    ": package the program again");
}

Choice choose_here(Manifest m, std::vector<std::vector<plan::Plan>> plans, std::optional<Device> device) {
  // (Asked before anything of torch's asks for CUDA: where the driver's side of torch is not loaded yet, it is now.)
  const bool for_cuda = std::ranges::any_of(m.entries, [](const auto& e) { return e.device == DeviceType::kCUDA; });
  const int count = for_cuda ? run::cuda::device_count() : 0;
  if (device && device->type == DeviceType::kCUDA) {
    device->index = std::max<int8_t>(device->index, 0);
    if (count > 0 && device->index >= count)
      throw UserError("there is no CUDA device " + std::to_string(device->index));
    for (auto& of_entry : plans)
      for (plan::Plan& p : of_entry) plan::use_cuda_device(p, device->index);
  }
  return choose(std::move(m), std::move(plans), {.why_not = run::why_not_here, .cuda = count > 0}, device);
}

constexpr auto on_all_threads = [](int64_t tasks, const auto& f) { cpu::in_parallel(tasks, f); };

// Whether calls of the entry write a weight, hand one out, or give one to an operator that may keep it.
bool lets_weights_out(const PackagedEntry& e, const plan::Plan& p) {
  const auto is_weight = [&](size_t input) { return e.inputs[input].kind == Binding::Kind::kWeight; };
  const std::vector<bool> written = written_inputs(p);
  for (size_t i = 0; i < e.inputs.size(); ++i)
    if (is_weight(i) && written[i]) return true;
  return std::ranges::any_of(e.results, [](const Binding& b) { return b.kind == Binding::Kind::kWeight; }) ||
         std::ranges::any_of(p.outputs,
                             [&](const plan::OutputRef& o) {
                               return o.alias_input >= 0 && is_weight(static_cast<size_t>(o.alias_input));
                             }) ||
         std::ranges::any_of(plan::operators_called(p), run::may_write_untold);
}

// What a weight's bytes are: gaps between its elements are zeros.
at::Tensor packed(const at::Tensor& t) {
  if (t.device().is_cpu() && t.is_non_overlapping_and_dense() && !t.is_conj() && !t.is_neg()) return t;
  at::Tensor copy = at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kCPU));
  std::fill_n(static_cast<char*>(copy.mutable_data_ptr()), copy.storage().nbytes(), '\0');
  at::Tensor to = copy, from = t.detach();
  for (int64_t d = 0; d < t.dim(); ++d)
    if (t.stride(d) == 0 && t.size(d) > 1) to = to.narrow(d, 0, 1), from = from.narrow(d, 0, 1);
  to.copy_(from);
  return copy;
}

std::string_view bytes_of(const at::Tensor& t) {
  int64_t last = 1;
  for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  const size_t count = t.numel() == 0 ? 0 : static_cast<size_t>(last) * t.element_size();
  return {static_cast<const char*>(t.const_data_ptr()), count};
}

// A section of aligned pieces, equal ones once.
class Pool {
 public:
  explicit Pool(std::string name) : part_{std::move(name), {}, /*checked_by_parts=*/true} {}
  // place: a Weight or a Prepared. alone: nothing else may lie there.
  template <typename T>
  void put(std::string_view bytes, bool alone, T& place) {
    place.bytes = bytes.size();
    place.checksum = content_hash(bytes.data(), bytes.size());
    if (!alone)
      for (auto [at, end] = known_.equal_range(place.checksum); at != end; ++at)
        if (at->second.bytes == bytes) {
          place.offset = at->second.offset;
          return;
        }
    place.offset = size_;
    if (!alone) known_.insert({place.checksum, {bytes, size_}});
    static const std::string zeros(kWeightAlignment, '\0');
    const uint64_t padding = (kWeightAlignment - bytes.size() % kWeightAlignment) % kWeightAlignment;
    part_.pieces.push_back(bytes);
    part_.pieces.push_back(std::string_view(zeros).substr(0, padding));
    size_ += bytes.size() + padding;
  }
  uint64_t size() const { return size_; }
  const Part& part() const { return part_; }

 private:
  struct Known {
    std::string_view bytes;
    uint64_t offset;
  };
  Part part_;
  uint64_t size_ = 0;
  std::unordered_multimap<uint64_t, Known> known_;
};

// Fills in the weights' types and places.
void lay_out(Manifest& m, const std::vector<at::Tensor>& tensors, const std::set<int32_t>& written, Pool& pool) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    Weight& w = m.weights[i];
    const at::Tensor& t = tensors[i];
    w.dtype = aten::from_aten(t.scalar_type());
    w.sizes = t.sizes().vec();
    w.strides = t.strides().vec();
    pool.put(bytes_of(t), written.contains(static_cast<int32_t>(i)), w);
  }
}

void find_written(const PackagedEntry& e, const plan::Plan& p, std::set<int32_t>& written) {
  const std::vector<bool> inputs = written_inputs(p);
  for (size_t i = 0; i < e.inputs.size(); ++i)
    if (e.inputs[i].kind == Binding::Kind::kWeight && inputs[i]) written.insert(e.inputs[i].index);
}

// A weight that is written lies in memory of its own in a package, so it must do so in the program.
void check_apart(const Manifest& m, const std::vector<at::Tensor>& tensors, const std::set<int32_t>& written) {
  for (const int32_t w : written)
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor &a = tensors[static_cast<size_t>(w)], &b = tensors[i];
      if (static_cast<size_t>(w) != i && a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl())
        throw UserError("the program writes " + m.weights[static_cast<size_t>(w)].name + ", which shares memory with " +
                        m.weights[i].name + ": make one of them a copy");
    }
}

using Plans = std::map<std::string, plan::Plan>;  // by section

const plan::Plan& plan_of(const Plans& plans, const PackagedPlan& p) {
  const auto found = plans.find(p.section);
  FLASHOVER_CHECK(found != plans.end()) << "an entry without its plan";
  return found->second;
}

// No weight is on two devices, wherever it is loaded.
void check_devices(const Manifest& m, const Plans& plans) {
  for (const DeviceType kind : {DeviceType::kCPU, DeviceType::kCUDA}) {
    Manifest taken{.weights = m.weights};
    std::vector<const plan::Plan*> of_entries;
    for (const PackagedEntry& e : m.entries) {
      const bool other = e.device != kind && std::ranges::any_of(m.entries, [&](const PackagedEntry& o) {
                           return o.name == e.name && o.device == kind;
                         });
      if (other) continue;
      taken.entries.push_back(e);
      of_entries.push_back(&plan_of(plans, e.plans[0]));
    }
    weight_devices(taken, of_entries);
  }
}

// Fills in what the plans that this machine takes compute of weights alone; what is returned keeps the bytes.
std::vector<at::Tensor> add_prepared(Manifest& m, const Plans& plans, const std::vector<at::Tensor>& weights,
                                     Pool& pool) {
  std::vector<at::Tensor> keep;
  for (PackagedEntry& e : m.entries)
    for (PackagedPlan& packaged : e.plans) {
      const plan::Plan& plan = plan_of(plans, packaged);
      if (!run::why_not_here(plan).empty()) continue;
      for (PreparedTensor& p : prepare(plan, e, weights)) {
        pool.put(p.bytes, false, p.about);
        packaged.prepared.push_back(std::move(p.about));
        keep.push_back(std::move(p.tensor));
      }
      break;  // the one that this machine takes
    }
  return keep;
}

}  // namespace

std::shared_ptr<Package> Package::load(const std::string& path, const OpenOptions& options) {
  static std::once_flag once;
  std::call_once(once, [] { cpu::register_operators(); });
  std::shared_ptr<Package> p(new Package);
  const Container file(open_signed_file(path, options.signed_by));
  std::vector<std::vector<plan::Plan>> all;
  Manifest whole = check_package(file, &all);
  check_versions(whole);
  Choice choice = choose_here(std::move(whole), std::move(all), options.device);
  std::vector<plan::Plan>& plans = choice.plans;
  Manifest& m = p->manifest_ = std::move(choice.manifest);
  p->chosen_ = std::move(choice.chosen);
  p->placements_ = std::move(choice.placements);
  const bool suits = m.machine == machine_of_prepared();
  std::vector<bool> read(m.weights.size());
  std::vector<const Prepared*> found;
  for (size_t i = 0; i < plans.size(); ++i) {
    if (!suits) m.entries[i].plans[p->chosen_[i]].prepared.clear();
    for (const Prepared& t : p->prepared(i)) found.push_back(&t);
    mark_read(m.entries[i], plans[i], p->prepared(i), read);
    if (lets_weights_out(m.entries[i], plans[i])) *p->seen_ = true;
  }
  p->weight_bytes_ = file.map(file.find(kWeightSection));
  p->unverified_.assign(m.weights.size(), options.verify_weights);
  p->verify(read);
  p->prepared_bytes_ = file.map(file.find(kPreparedSection));
  if (options.verify_weights) verify_bytes(found, p->prepared_bytes_.get(), "prepared tensors", on_all_threads);
  std::vector<at::Tensor> weights = weights_in(p->weight_bytes_, m, p->placements_);
  for (size_t i = 0; i < plans.size(); ++i)
    p->entries_.push_back(std::make_unique<LoadedEntry>(m.entries[i], std::move(plans[i]), p->seen_));
  for (size_t w = 0; w < weights.size(); ++w)
    if (std::ranges::any_of(p->entries_, [&](const auto& e) { return e->signature().writes_weight(w); }))
      weights[w] = weights[w].clone();  // whatever else lies in its place
  p->weights_ = std::make_shared<const Weights>(std::move(weights));
  p->supply_prepared();
  return p;
}

void Package::supply_prepared() {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (prepared(i).empty()) continue;
    std::vector<at::Tensor> tensors(entries_[i]->plan().tensors.size());
    for (const Prepared& t : prepared(i)) tensors[static_cast<size_t>(t.tensor)] = restore(t, prepared_bytes_);
    entries_[i]->supply(*weights_, std::move(tensors));
  }
}

// Those that were not yet, and only once.
void Package::verify(const std::vector<bool>& which) const {
  const std::lock_guard lock(verifying_);
  std::vector<const Weight*> parts;
  for (size_t i = 0; i < which.size(); ++i)
    if (which[i] && unverified_[i]) parts.push_back(&manifest_.weights[i]);
  verify_bytes(parts, weight_bytes_.get(), "weights", on_all_threads);
  for (size_t i = 0; i < which.size(); ++i)
    if (which[i]) unverified_[i] = false;
}

Package::~Package() = default;

const plan::Plan& Package::plan(size_t entry) const { return entries_.at(entry)->plan(); }

std::vector<at::Tensor> Package::run(size_t entry, std::span<const at::Tensor> arguments) const {
  const std::shared_ptr<const Weights> weights = current();
  return entries_.at(entry)->run(*weights, arguments);
}

std::vector<at::Tensor> Package::weights() const {
  verify(std::vector<bool>(manifest_.weights.size(), true));
  run::intercept_untracked_writers();
  *seen_ = true;
  return *current();
}

void Package::exchange(const std::vector<std::pair<std::string, at::Tensor>>& weights) {
  const std::lock_guard one_at_a_time(exchanging_);
  verify(std::vector<bool>(manifest_.weights.size(), true));
  auto made = std::make_shared<Weights>(*current());
  for (const auto& [name, value] : weights) {
    const size_t index = find_weight(manifest_, name);
    if (std::ranges::any_of(entries_, [&](const auto& e) { return e->signature().counts_on_weight(index); }))
      throw UserError("the weight " + name + " is a constant of the program, whose code may count on its values");
    at::Tensor& old = (*made)[index];
    if (!value.defined() || value.scalar_type() != old.scalar_type() || value.sizes() != old.sizes())
      throw UserError("the weight " + name + " has another type or other sizes in the package");
    at::Tensor copy = at::empty_strided(old.sizes(), old.strides(), old.options());
    copy.copy_(value.detach());
    old = std::move(copy);
  }
  const std::lock_guard lock(mutex_);
  weights_ = std::move(made);
}

void write_package(const std::string& path, Manifest manifest, const std::vector<at::Tensor>& weights,
                   const std::vector<std::pair<std::string, std::string>>& plans, bool with_prepared) {
  FLASHOVER_CHECK(manifest.weights.size() == weights.size()) << "a weight without a tensor";
  manifest.torch = TORCH_VERSION;
  manifest.machine = machine_of_prepared();
  Plans read;
  for (const auto& [section, bytes] : plans) read.emplace(section, plan::deserialize(bytes));
  std::set<int32_t> written;
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& t : weights) tensors.push_back(packed(t));
  for (const PackagedEntry& e : manifest.entries)
    for (const PackagedPlan& p : e.plans) find_written(e, plan_of(read, p), written);
  check_apart(manifest, weights, written);
  Pool weight_pool(kWeightSection), prepared_pool(kPreparedSection);
  lay_out(manifest, tensors, written, weight_pool);
  std::vector<at::Tensor> kept;
  if (with_prepared) kept = add_prepared(manifest, read, weights, prepared_pool);
  check(manifest, weight_pool.size(), prepared_pool.size());
  for (const PackagedEntry& e : manifest.entries)
    for (const PackagedPlan& p : e.plans) check(manifest, e, p, plan_of(read, p));
  check_devices(manifest, read);
  const std::string head = encode(manifest);
  std::vector<Part> parts{{kManifestSection, {head}}};
  for (const auto& [section, bytes] : plans) parts.push_back({section, {bytes}});
  parts.push_back(weight_pool.part());
  parts.push_back(prepared_pool.part());
  write_container(path, parts);
}

}  // namespace flashover::aot
