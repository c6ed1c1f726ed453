// Loading: the table, the manifest and all plans are read and checked first; then weights are mapped, then code.
#include "aot/package.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <set>

#include "aot/check.h"
#include "aot/container.h"
#include "aot/entry.h"
#include "base/check.h"
#include "cpu_kernels/operators.h"
#include "torch/convert.h"

namespace flashover::aot {
namespace {

std::vector<at::Tensor> map_weights(const Container& file, const Manifest& m, bool verify) {
  const std::shared_ptr<char> bytes = file.map(file.find(kWeightSection), verify);
  std::vector<at::Tensor> out;
  for (const Weight& w : m.weights) {
    const auto options = at::TensorOptions().dtype(aten::to_aten(w.dtype)).device(at::kCPU);
    at::Tensor t = at::from_blob(
        bytes.get() + w.offset, w.sizes, w.strides, [bytes](void*) {}, options);
    if (w.device.type != DeviceType::kCPU) {
      at::Tensor there = at::empty_strided(w.sizes, w.strides, options.device(aten::to_aten(w.device)));
      t = there.copy_(t);
    }
    out.push_back(std::move(t));
  }
  return out;
}

// The first plan that this machine can run.
std::unique_ptr<LoadedEntry> load_entry(const Manifest& m, const PackagedEntry& e, std::vector<plan::Plan> plans) {
  std::string why;
  for (plan::Plan& p : plans) {
    const std::string target = p.target;
    try {
      return std::make_unique<LoadedEntry>(m, e, std::move(p));
    } catch (const Declined& d) {
      why += "\n- for " + target + ": " + d.reason;
    }
  }
  throw UserError("entry " + e.name + " of the package does not run on this machine:" + why);
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

// Fills in the weights' types and places; equal ones that nothing writes lie in one place.
std::vector<std::string_view> lay_out(Manifest& m, const std::vector<at::Tensor>& tensors,
                                      const std::set<int32_t>& written) {
  static const std::string zeros(kWeightAlignment, '\0');
  std::vector<std::string_view> pieces;
  std::unordered_map<Hash128, uint64_t> known;
  uint64_t at = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    Weight& w = m.weights[i];
    const at::Tensor& t = tensors[i];
    w.dtype = aten::from_aten(t.scalar_type());
    w.device.type = aten::from_aten(t.device()).type;
    w.sizes = t.sizes().vec();
    w.strides = t.strides().vec();
    const std::string_view bytes = bytes_of(t);
    w.bytes = bytes.size();
    const Hash128 hash = Hasher().number(bytes.size()).bytes(bytes.data(), bytes.size()).finish();
    const bool shared = !written.contains(static_cast<int32_t>(i));
    if (const auto found = known.find(hash); shared && found != known.end()) {
      w.offset = found->second;
      continue;
    }
    w.offset = at;
    if (shared) known.emplace(hash, at);
    pieces.push_back(bytes);
    const uint64_t padding = (kWeightAlignment - bytes.size() % kWeightAlignment) % kWeightAlignment;
    pieces.push_back(std::string_view(zeros).substr(0, padding));
    at += bytes.size() + padding;
  }
  return pieces;
}

void find_written(const PackagedEntry& e, const plan::Plan& p, std::set<int32_t>& written) {
  for (size_t i = 0; i < e.inputs.size(); ++i)
    if (e.inputs[i].kind == Binding::Kind::kWeight && writes_argument(p, i)) written.insert(e.inputs[i].index);
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

uint64_t total(const std::vector<std::string_view>& pieces) {
  uint64_t n = 0;
  for (std::string_view p : pieces) n += p.size();
  return n;
}

}  // namespace

std::shared_ptr<Package> Package::load(const std::string& path, const OpenOptions& options) {
  static std::once_flag once;
  std::call_once(once, [] { cpu::register_operators(); });
  std::shared_ptr<Package> p(new Package);
  const Container file(open_file(path));
  std::vector<std::vector<plan::Plan>> plans;
  p->manifest_ = check_package(file, &plans);
  std::vector<at::Tensor> weights = map_weights(file, p->manifest_, options.verify_weights);
  for (size_t i = 0; i < plans.size(); ++i)
    p->entries_.push_back(load_entry(p->manifest_, p->manifest_.entries[i], std::move(plans[i])));
  for (size_t w = 0; w < weights.size(); ++w)
    if (std::ranges::any_of(p->entries_, [&](const auto& e) { return e->writes_weight(w); }))
      weights[w] = weights[w].clone();  // whatever else lies in its place
  p->weights_ = std::make_shared<const Weights>(std::move(weights));
  return p;
}

Package::~Package() = default;

size_t Package::find(const std::string& entry) const {
  if (entry.empty() && manifest_.entries.size() == 1) return 0;
  std::string known;
  for (size_t i = 0; i < manifest_.entries.size(); ++i) {
    if (manifest_.entries[i].name == entry) return i;
    known += (i ? ", " : "") + manifest_.entries[i].name;
  }
  throw UserError(entry.empty() ? "the package has several entries, name one: " + known
                                : "the package has no entry " + entry + "; there are " + known);
}

const plan::Plan& Package::plan(size_t entry) const { return entries_.at(entry)->plan(); }

std::vector<at::Tensor> Package::run(size_t entry, std::span<const at::Tensor> arguments) const {
  const std::shared_ptr<const Weights> weights = current();
  return entries_.at(entry)->run(*weights, arguments);
}

std::vector<at::Tensor> Package::weights() const { return *current(); }

void Package::exchange(const std::vector<std::pair<std::string, at::Tensor>>& weights) {
  const std::lock_guard one_at_a_time(exchanging_);
  auto made = std::make_shared<Weights>(*current());
  for (const auto& [name, value] : weights) {
    const auto found = std::ranges::find_if(manifest_.weights, [&](const Weight& w) { return w.name == name; });
    if (found == manifest_.weights.end()) throw UserError("the package has no weight " + name);
    const auto index = static_cast<size_t>(found - manifest_.weights.begin());
    if (std::ranges::any_of(entries_, [&](const auto& e) { return e->counts_on_weight(index); }))
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
                   const std::vector<std::pair<std::string, std::string>>& plans) {
  FLASHOVER_CHECK(manifest.weights.size() == weights.size()) << "a weight without a tensor";
  manifest.torch = TORCH_VERSION;
  std::set<int32_t> written;
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& t : weights) tensors.push_back(packed(t));
  for (const PackagedEntry& e : manifest.entries)
    for (const auto& [section, bytes] : plans)
      if (std::ranges::find(e.plans, section) != e.plans.end()) find_written(e, plan::deserialize(bytes), written);
  check_apart(manifest, weights, written);
  std::vector<std::string_view> pieces = lay_out(manifest, tensors, written);
  for (size_t i = 0; i < weights.size(); ++i)
    manifest.weights[i].device.type = aten::from_aten(weights[i].device()).type;
  check(manifest, total(pieces));
  for (const PackagedEntry& e : manifest.entries)
    for (const auto& [section, bytes] : plans)
      if (std::ranges::find(e.plans, section) != e.plans.end()) check(manifest, e, plan::deserialize(bytes));
  const std::string head = encode(manifest);
  std::vector<Part> parts{{kManifestSection, {head}}};
  for (const auto& [section, bytes] : plans) parts.push_back({section, {bytes}});
  parts.push_back({kWeightSection, std::move(pieces)});
  write_container(path, parts);
}

}  // namespace flashover::aot
