// The session behind trace.h: what the Fake fallback calls.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <unordered_map>

#include "torch/convert.h"
#include "trace/tensor.h"
#include "trace/trace.h"

namespace flashover::trace {

class Recorder;
using Stack = torch::jit::Stack;

// What is known of an operator, looked up once per process.
struct OpFacts {
  aten::Operator schema;
  const ops::Op* op = nullptr;
  // Takes the call over: returns false to let the general way proceed.
  bool (*special)(Recorder&, OpFacts&, Stack&) = nullptr;
  bool composite = false;       // has no backend kernel: ATen decomposes it (reached undecomposed in inference mode)
  bool reads_data = false;      // result or its shape depends on data
  bool metadata_in_place = false;  // t_, squeeze_, as_strided_ ...: geometry changes, data does not
  bool has_tensor_return = false;
  bool may_rule = false;        // own rule usable (views that flip conj bits are not)
  int device_arg = -1, dtype_arg = -1;
  const c10::KernelFunction* cpp_meta = nullptr;  // hidden below a Python registration, or the registered one
  bool python_meta = false;
};

// One tensor argument of the call being recorded.
struct Operand {
  c10::TensorImpl* impl = nullptr;
  ValueId value = kNoValue;
  at::Tensor companion;  // made when a meta kernel is called
};

class Recorder final : public Session {
 public:
  Recorder();
  ~Recorder() override;

  int32_t add_input(PyObject* tensor, graph::InputKind kind, const std::string& name) override;
  bool is_input(PyObject* tensor) const override;
  ValueId value_of(PyObject* tensor) const override;
  bool is_trace_tensor(PyObject* object) const override;
  bool declined() const override { return declined_; }
  std::string decline_reason() const override { return reason_; }
  void decline(const std::string& reason) override;
  graph::Graph end(const std::vector<PyObject*>& outputs, std::vector<PyObject*>& constants) override;
  const Stats& stats() const override { return stats_; }

  [[noreturn]] void throw_decline(const std::string& reason);

  void call(const c10::OperatorHandle& op, Stack* stack);

  // ---- for special.cpp
  graph::Graph& graph() { return graph_; }
  Ref lift(const at::Tensor& t, const char* op_name);
  Operand& operand(Ref r, const at::Tensor& t);
  // A fresh trace tensor for a value; storage_id < 0: its own memory.
  at::Tensor make_tensor(ValueId value, c10::Storage storage, int32_t storage_id);
  at::Tensor fresh(ValueId value);
  at::Tensor view_of(const TraceImpl& base, ValueId value);
  graph::Node& add_node(const ops::Op* op, std::vector<Arg> args, std::vector<TensorType> outs);
  at::Tensor add_constant(at::Tensor real);
  // The value of a trace tensor if it depends on constants only.
  std::optional<at::Tensor> constant_value(const at::Tensor& t);
  int32_t new_storage(const c10::Storage& storage);
  int32_t find_storage(const c10::StorageImpl* storage) const;
  const c10::Storage& storage(int32_t id) const { return storages_[id]; }

 private:
  void call_general(OpFacts& facts, Stack& stack);
  void call_constant_or_decline(OpFacts& facts, Stack& stack);
  void infer_by_meta(OpFacts& facts, Stack& stack);
  std::vector<Arg> collect(const OpFacts& facts, Stack& stack);
  bool infer_by_rule(OpFacts& facts, const std::vector<Arg>& args, std::vector<TensorType>& outs);
  void finish(OpFacts& facts, std::vector<Arg> args, std::vector<TensorType> outs, Stack& stack);
  int32_t location_id();
  void check_inputs_unchanged();
  void swap_back();

  struct InputRecord {
    PyObject* object = nullptr;  // the program's tensor object, strong
    PyObject* holder = nullptr;  // a plain tensor object that has the real impl meanwhile, strong
    c10::intrusive_ptr<TraceImpl> impl;
    bool requires_grad = false;
  };

  graph::Graph graph_;
  Stats stats_;
  std::shared_ptr<Liveness> liveness_;
  std::vector<InputRecord> inputs_;
  std::vector<at::Tensor> constants_;
  std::vector<int32_t> constant_inputs_;  // graph input number of each
  std::unordered_map<const c10::TensorImpl*, at::Tensor> by_real_impl_;  // swapped inputs
  std::unordered_map<const c10::StorageImpl*, int32_t> by_real_storage_;  // real -> id
  std::unordered_map<const c10::StorageImpl*, int32_t> by_storage_;       // meta -> id
  std::vector<c10::Storage> storages_;                                    // kept: addresses stay unique
  std::vector<c10::Storage> real_storages_;
  std::unordered_map<std::string, int32_t> location_ids_;
  std::vector<Operand> operands_;  // of the current call
  std::vector<std::pair<uint64_t, ValueId>> numbers_;  // wrapped numbers seen
  bool declined_ = false, ended_ = false;
  bool autocast_cache_was_enabled_ = false;
  std::string reason_;
};

Recorder* active();  // of this thread

OpFacts& facts_of(const c10::OperatorHandle& op);
bool (*special_of(const std::string& name))(Recorder&, OpFacts&, Stack&);
// kernels.cpp: private parts of the dispatcher
const c10::KernelFunction* find_cpp_meta(const c10::OperatorHandle& op, bool& python_meta);

// Excludes everything above the backend, so that a meta kernel or a companion call sees plain tensors.
class BelowEverything {
 public:
  BelowEverything();
 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace flashover::trace
