// Runs the part of a plan that depends on weights alone, and tells plain tensors from those in oneDNN's layouts.
#include "aot/prepared.h"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/from_blob.h>
#include <torch/headeronly/version.h>

#include <set>

#include "aot/entry.h"
#include "base/check.h"
#include "plan/contents.h"
#include "target/features.h"
#include "torch/convert.h"
#include "torch/mkldnn.h"

namespace flashover::aot {
namespace {

std::string layout_of(const at::Tensor& t) {
  static const auto describe = c10::Dispatcher::singleton()
                                   .findSchemaOrThrow("mkldnn::_get_mkldnn_serialized_md", "")
                                   .typed<at::Tensor(const at::Tensor&)>();
  const at::Tensor text = describe.call(t);
  return {static_cast<const char*>(text.const_data_ptr()), static_cast<size_t>(text.numel())};
}

// What MKL packs holds addresses and the like: it stays in the process that made it.
std::set<plan::TensorId> packed_by_mkl(const plan::Plan& p) {
  std::set<plan::TensorId> found;
  for (const plan::Step& s : p.frozen_steps)
    if (s.op.starts_with("mkl.")) plan::for_each_write(s, [&](plan::TensorId t) { found.insert(plan::root(p, t)); });
  return found;
}

// False: not a tensor of plain memory or of oneDNN's.
bool describe(const at::Tensor& t, PreparedTensor& out) {
  if (!t.defined() || !t.device().is_cpu() || t.numel() == 0) return false;
  out.tensor = t;
  out.about.dtype = aten::from_aten(t.scalar_type());
  out.about.sizes = t.sizes().vec();
  if (t.is_mkldnn()) {
    out.about.layout = layout_of(t);
    out.bytes = {static_cast<const char*>(at::native::data_ptr_from_mkldnn(t)),
                 static_cast<size_t>(at::native::nbytes_from_mkldnn(t))};
    return true;
  }
  if (t.layout() != at::kStrided || !t.is_non_overlapping_and_dense() || t.is_conj() || t.is_neg()) return false;
  out.about.strides = t.strides().vec();
  out.bytes = {static_cast<const char*>(t.const_data_ptr()), t.nbytes()};
  return true;
}

}  // namespace

// (oneDNN chooses layouts by the number of threads, too: those for two took twice as long in one.)
std::string machine_of_prepared() {
  return "torch " TORCH_VERSION ", threads " + std::to_string(at::get_num_threads()) + ", processor " +
         target::processor();
}

std::vector<PreparedTensor> prepare(const plan::Plan& plan, const PackagedEntry& entry,
                                    const std::vector<at::Tensor>& weights) {
  std::vector<PreparedTensor> out;
  const std::vector<plan::TensorId> kept = plan::kept_frozen(plan);
  if (kept.empty() || plan.device.type != DeviceType::kCPU) return out;
  std::vector<at::Tensor> made;
  try {
    made = frozen_tensors(plan, entry, weights);
  } catch (const Declined&) {  // for another machine
    return out;
  }
  const std::set<plan::TensorId> mkl = packed_by_mkl(plan);
  for (const plan::TensorId t : kept) {
    PreparedTensor p;
    p.about.tensor = t;
    if (made.empty() || mkl.contains(t) || !describe(made[static_cast<size_t>(t)], p)) continue;
    out.push_back(std::move(p));
  }
  return out;
}

at::Tensor restore(const Prepared& about, const std::shared_ptr<char>& section) {
  char* data = section.get() + about.offset;
  if (about.layout.empty()) {
    const auto options = at::TensorOptions().dtype(aten::to_aten(about.dtype));
    return at::from_blob(
        data, about.sizes, about.strides, [section](void*) {}, options);
  }
  at::Tensor t = at::native::mkldnn_tensor_from_data_ptr(data, about.sizes, aten::to_aten(about.dtype), at::kCPU,
                                                         reinterpret_cast<const uint8_t*>(about.layout.data()),
                                                         static_cast<int64_t>(about.layout.size()));
  if (static_cast<uint64_t>(at::native::nbytes_from_mkldnn(t)) != about.bytes)
    throw UserError("damaged package: a prepared tensor has another number of bytes than its layout");
  return t;
}

}  // namespace flashover::aot
