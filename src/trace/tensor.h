// The tensor the user's code holds during a trace.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <cstdint>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/types.h"
#include "sym/environment.h"

namespace flashover::trace {

class Recorder;

// Trace tensors outlive their session when the program keeps one; `recorder` turns null then.
struct Liveness {
  Recorder* recorder = nullptr;
};

// Fake catches what reaches the backend; the wrapper key, above everything, catches single composite operators that
// would look at data (intercept.cpp) and lets the rest fall through.
constexpr c10::DispatchKeySet kTraceKeys({c10::DispatchKey::Fake, c10::DispatchKey::TESTING_ONLY_GenericWrapper});

// Sizes and strides that hold symbols: what torch is told of them (size_node.h).
struct SymbolicGeometry {
  std::shared_ptr<sym::Environment> environment;
  Sizes sizes, strides;
  sym::Expr offset;
  std::vector<c10::SymInt> size_nodes, stride_nodes;
  SymbolicGeometry(std::shared_ptr<sym::Environment> environment, const TensorType& type);
};

// Real device keys plus Fake over a meta storage that views share. Geometry, version counter and autograd metadata are
// TensorImpl's own, so everything above the backend works as in eager.
class TraceImpl final : public c10::TensorImpl {
 public:
  TraceImpl(c10::Storage storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype, c10::Device device)
      : TensorImpl(std::move(storage), keys | kTraceKeys, dtype) {
    device_opt_ = device;
  }

  struct ViewTag {};
  // A view: the keys of its base as they are.
  TraceImpl(ViewTag, const TraceImpl& base, caffe2::TypeMeta dtype)
      : TensorImpl(c10::TensorImpl::VIEW, c10::Storage(base.storage_), base.key_set_, dtype),
        storage_id(base.storage_id),
        liveness(base.liveness) {
    device_opt_ = base.device_opt_;
  }

  ValueId value = kNoValue;
  int32_t storage_id = -1;
  int32_t input = -1;  // number of the graph input whose tensor object this is; copies (detach, views) are not inputs
  bool data_written = false;  // an input whose .data the program may assign
  at::Tensor real;            // of an input: the tensor it stands for
  std::shared_ptr<Liveness> liveness;

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& source) override;
  const char* tensorimpl_type_name() const override { return "flashover::TraceImpl"; }

  // Takes all keys, as `like` has them, plus Fake; geometry as well.
  void imitate(const c10::TensorImpl& like);
  void set_geometry(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset);
  // Over the numbers of this call, which have been set. Whoever asks for one of them specializes it; the symbolic
  // questions (sym_sizes() ...) leave it open.
  void set_symbolic(std::shared_ptr<const SymbolicGeometry> symbolic);
  bool is_symbolic() const { return symbolic_ != nullptr; }
  TensorType symbolic_type() const;  // sizes, strides and offset of such a one
  // Whether their memory has as many elements, where sizes that are symbols tell: of tensors that reach its end.
  std::optional<bool> same_memory_size(const TraceImpl& other) const;
  // For these, a size that is a symbol is none of 0 and 1 (small_sizes.cpp).
  bool has_no_elements() const { return numel_ == 0; }
  c10::IntArrayRef sizes_now() const { return sizes_default(); }
  c10::IntArrayRef strides_now() const { return strides_default(); }

  c10::IntArrayRef sizes_custom() const override;
  int64_t size_custom(int64_t d) const override;
  c10::IntArrayRef strides_custom() const override;
  int64_t numel_custom() const override;
  int64_t storage_offset_custom() const override;
  int64_t dim_custom() const override { return static_cast<int64_t>(sizes_default().size()); }
  c10::SymIntArrayRef sym_sizes_custom() const override;
  c10::SymInt sym_size_custom(int64_t d) const override;
  c10::SymIntArrayRef sym_strides_custom() const override;
  c10::SymInt sym_numel_custom() const override;
  c10::SymInt sym_storage_offset_custom() const override;
  c10::SymBool sym_is_contiguous_custom(at::MemoryFormat format) const override;
  c10::SymBool sym_is_non_overlapping_and_dense_custom() const override;
  bool is_strides_like_custom(at::MemoryFormat format) const override;
  void rebase(c10::Storage storage, int32_t id);  // set_(): another memory, the device stays
  void set_bits(bool conjugate, bool negative) {
    key_set_ = with(with(key_set_, c10::DispatchKey::Conjugate, conjugate), c10::DispatchKey::Negative, negative);
  }

 private:
  bool holds(sym::Relation r, sym::Expr a, sym::Expr b) const { return symbolic_->environment->holds(r, a, b); }
  bool is_dense(const std::vector<size_t>& inner_first) const;
  void has_elements() const;
  std::optional<sym::Expr> memory_size() const;
  std::shared_ptr<const SymbolicGeometry> symbolic_;
  static c10::DispatchKeySet with(c10::DispatchKeySet keys, c10::DispatchKey key, bool on) {
    return on ? keys.add(key) : keys.remove(key);
  }
  c10::intrusive_ptr<TraceImpl> twin() const;
};

// Sticky decline of the session that `tensor` belongs to (a plain error when that has ended).
[[noreturn]] void decline_trace(const TraceImpl& tensor, const std::string& reason);

// Null for real and undefined tensors.
inline TraceImpl* trace_impl(const c10::TensorImpl* impl) {
  if (!impl->key_set().has(c10::DispatchKey::Fake)) return nullptr;
  return static_cast<TraceImpl*>(const_cast<c10::TensorImpl*>(impl));
}
inline TraceImpl* trace_impl(const at::TensorBase& t) {
  return t.defined() ? trace_impl(t.unsafeGetTensorImpl()) : nullptr;
}

// A meta storage of that many bytes; reading its data throws.
c10::Storage make_storage(int64_t bytes);
void forbid_data_access(const c10::Storage& storage);
// Plain tensors with the geometry of `like`: on the meta device over the same storage (for shape functions), or with
// the real device's keys but without Fake (for C++ code that looks at devices and strides and touches no data).
at::Tensor symbolic_companion(const TraceImpl& like);  // likewise; its sizes are symbols as torch's own code knows them
// kRead: who asks for a size that is a symbol has asked for its number. kNow: this call's, for advice that must not be
// relied on at other sizes.
enum class CompanionSizes : uint8_t { kRead, kNow };
at::Tensor meta_companion(const c10::TensorImpl& like, CompanionSizes sizes = CompanionSizes::kRead);
at::Tensor tagged_companion(const c10::TensorImpl& like, CompanionSizes sizes = CompanionSizes::kRead);
at::Tensor contiguous_companion(const TraceImpl& like);  // of this call's sizes, in memory of its own
// line.unsqueeze(2) of a companion, on its device (a view would be on the device of the memory).
at::Tensor plane_of(const at::Tensor& line);
// A tensor on a CUDA device that need not exist: geometry without data, to trace for that device (tests).
at::Tensor cuda_stand_in(const c10::TensorImpl& like);
void stand_ins_train();  // lets the autograd engine run over stand-ins, in this process for good

}  // namespace flashover::trace
