// The session behind trace.h: what the Fake fallback calls.
#pragma once
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <cstdint>

#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "compat/autograd.h"
#include "graph/checkpoint.h"
#include "torch/convert.h"
#include "torch/size_node.h"
#include "trace/tensor.h"
#include "trace/trace.h"

namespace flashover::trace {

// A size that a shape function asked for, and what it promised of it.
struct AskedSize {
  sym::Expr symbol;
  int64_t least = 0;
  std::optional<int64_t> most;
};

class Recorder;
using Stack = torch::jit::Stack;

struct OpFacts;
// Takes the call over (arguments start at stack[base]); false lets the general way proceed.
using Special = bool (*)(Recorder&, OpFacts&, Stack& stack, size_t base);

// What is known of an operator, looked up once a thread.
struct OpFacts {
  c10::OperatorName qualified{"", ""};  // handles are reused when a library is unloaded: compared at each look-up
  aten::Operator schema;
  const ops::OpRow* op = nullptr;
  Special special = nullptr;
  ops::InferRule in_place_rule = nullptr;  // the functional twin's
  int written_arg = -1;                    // of an in-place operator
  bool per_tensor = false;                 // _foreach_*: ATen's loop over single tensors is traced, which fuses
  bool autograd_inside = false;            // no autograd kernel: in eager its kernel's own calls are differentiated
  bool composite = false;     // no backend kernel: ATen decomposes it (reached undecomposed in inference mode only)
  bool reads_data = false;    // the result or its shape depends on data
  bool may_ask_meta = false;  // ... but not always (repeat_interleave with output_size)
  bool has_tensor_return = false;
  bool only_writes = false;    // an operator of the program's own that returns nothing but writes arguments
  bool uninitialized = false;  // its result holds what was in its memory before
  bool is_query = false;       // answers about metadata: is_same_size ...; not recorded
  bool may_rule = false;       // own rules apply
  int device_arg = -1, dtype_arg = -1;
  const c10::KernelFunction* cpp_meta = nullptr;
  bool python_meta = false;
  bool shadowed = false;  // cpp_meta is, by a Python one, which computes with symbols
};

// One tensor argument of the call being recorded.
struct Operand {
  at::Tensor tensor;          // as it arrived
  TraceImpl* impl = nullptr;  // null: a number
  ValueId value = kNoValue;
  int arg = -1;          // number of the argument it came in
  at::Tensor companion;  // made when a meta kernel is called
  at::Tensor tensor_of_trace() const {
    return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(static_cast<c10::TensorImpl*>(impl)));
  }
};

class Recorder final : public Session {
 public:
  // For shape functions of the program's operators; throws Declined elsewhere.
  c10::SymInt new_data_size(int64_t least, std::optional<int64_t> most);
  Recorder();
  ~Recorder() override;

  int32_t add_input(PyObject* tensor, graph::InputKind kind, const std::string& name,
                    const std::vector<SymbolicSize>& symbolic) override;
  void add_made_subclass(PyObject* made) override;  // subclass.cpp, as what follows
  void add_wrapper(PyObject* wrapper) override;
  const std::vector<std::pair<PyObject*, uint32_t>>& written_wrappers() const override { return written_wrappers_; }
  sym::Environment& sizes() override { return *sizes_; }
  std::optional<sym::Expr> size_of_data(PyObject* tensor) override;  // data_sizes.cpp
  PyObject* copy_of_data(PyObject* tensor) override;                 // data_numbers.cpp, as what follows
  PyObject* symbol_of_data(PyObject* copy, PyObject* number, ValueId& value) override;
  PyObject* tensor_of_size(sym::Expr e) override;
  // Where a mask is true, one tensor of positions a dimension; nullopt: this trace may not ask data.
  std::optional<std::vector<at::Tensor>> positions_of(const at::Tensor& mask);
  sym::Expr add_size(int64_t now, const std::string& name, int32_t& input) override;
  std::pair<int32_t, int32_t> source_of_size(sym::Expr symbol) const override;
  PyObject* size_symbol(sym::Expr e) override;
  std::optional<sym::Expr> size_of_symbol(PyObject* symbol) const override;
  bool is_input(PyObject* tensor) const override;
  bool write_grad(PyObject* tensor) override;
  bool write_data(PyObject* tensor, PyObject* value) override;
  PyObject* add_number(PyObject* number, const std::string& name, int32_t& input) override;
  PyObject* element(int32_t input, DType& dtype) const override;
  PyObject* add_narrowed_input(PyObject* tensor, const std::vector<Narrow>& narrows, const std::string& name,
                               int32_t& input) override;
  ValueId input_value(int32_t input) const override { return graph_.inputs.at(input).value; }
  std::optional<HostValue> host_value(PyObject* tensor) const override;
  ValueId value_of(PyObject* tensor) const override;
  bool is_trace_tensor(PyObject* object) const override;
  bool declined() const override { return declined_; }
  std::string decline_reason() const override { return reason_; }
  void decline(const std::string& reason) override;
  void select(PyObject* policy) override;
  graph::Joint add_backward(const std::vector<PyObject*>& outputs, std::vector<WrappedResult>& wrapped) override;
  const std::vector<WrappedGradient>& wrapped_gradients() const override { return wrapped_gradients_; }
  graph::Graph end(const std::vector<PyObject*>& outputs, std::vector<PyObject*>& constants) override;
  const VersionSteps& version_steps() const override { return version_steps_; }
  const std::vector<graph::OwnCounter>& own_counters() const override { return own_counters_; }
  const Stats& stats() const override { return stats_; }

  [[noreturn]] void throw_decline(const std::string& reason);

  void call(const c10::OperatorHandle& op, Stack* stack);

  // ---- building blocks, also for special.cpp
  graph::Graph& graph() { return graph_; }
  Ref lift(const at::Tensor& t, const char* op_name);
  std::vector<Arg> collect(const OpFacts& facts, const Stack& stack, size_t base);  // fills operands()
  const std::vector<Operand>& operands() const { return operands_; }
  TensorType type_of(const at::Tensor& t) const;  // sizes as they are known, symbols among them
  at::Tensor make_tensor(ValueId value, c10::Storage storage, int32_t storage_id);
  at::Tensor fresh(ValueId value);  // its own memory
  at::Tensor view_of(const TraceImpl& base, ValueId value);
  at::Tensor rebind(const Operand& source, ValueId value);
  graph::Node& add_node(const ops::OpRow* op, std::vector<Arg> args, std::vector<TensorType> outs);
  ValueId add_number(const at::Tensor& t);  // prim.full of a 0-d tensor of known value
  ValueId add_number(TensorType type, Arg number);
  at::Tensor add_constant(const at::Tensor& real);
  // The value of a trace tensor if it depends on constants only; perhaps on the CPU.
  std::optional<at::Tensor> constant_value(const at::Tensor& t);
  // The same where it depends on sizes of inputs, too: in this call. These are guarded to be what they are.
  std::optional<at::Tensor> value_at_these_sizes(const at::Tensor& t);
  int32_t new_storage(const c10::Storage& storage);
  int32_t find_storage(const c10::StorageImpl* storage) const;
  // Some value in that memory with that dtype; kNoValue if there is none.
  ValueId value_in_storage(int32_t storage, DType dtype) const;
  const c10::Storage& storage(int32_t id) const { return storages_[id]; }
  Stats& counters() { return stats_; }
  void give_geometry(TraceImpl& impl, const TensorType& type) const;
  int64_t number_shown(sym::Expr e) const;
  void read_sizes(const OpFacts& facts, Stack& stack, size_t base) const;
  bool infer_by_rule(OpFacts& facts, const std::vector<Arg>& args, std::vector<TensorType>& outs);
  void note_rule(const OpFacts& facts);  // the types of the last node come from it: it is asked about small sizes, too

  // ---- reshape over sizes that are symbols
  c10::SymInt symint(sym::Expr e) const;
  // The shape with its -1 filled in; nullopt: not this shape of that tensor, or nobody knows.
  std::optional<Sizes> reshaped(const at::Tensor& t, c10::SymIntArrayRef shape) const;
  bool can_view(const at::Tensor& t, const Sizes& sizes) const;  // for sizes of 2 and more
  // Eager copies as well, or where sizes are 1 it may take a view of these sizes instead.
  void note_copy(const at::Tensor& of, const at::Tensor& copy, const at::Tensor& result, const Sizes& sizes) {
    copies_.emplace(value_of(copy), Copy{value_of(of), value_of(result), sizes});
  }
  // Of Tensor.contiguous(), for sizes of 2 and more: the tensor itself, a copy, or a copy in this call (no guard says
  // so: in calls where eager makes none it does as well, unless the program notices it).
  enum class Contiguous : uint8_t { kItself, kCopy, kCopyNow };
  Contiguous contiguous(const at::Tensor& t) const;
  void note_contiguous(const at::Tensor& of, const at::Tensor& copy, bool asked) {
    copies_.emplace(value_of(copy), Copy{value_of(of), value_of(copy), {}, /*as_is=*/true, asked});
  }
  void note_comparison() { compares_tensors_ = true; }  // contiguous_call.h
  // Values from `first` up to `end` are seen by our code alone.
  void note_inner(size_t first, size_t end) { inner_.emplace_back(first, end); }
  bool is_inner(ValueId v) const {
    return std::ranges::any_of(
        inner_, [at = static_cast<size_t>(v)](const auto& range) { return at >= range.first && at < range.second; });
  }
  ValueId value_of(const at::Tensor& t) const;

 private:
  explicit Recorder(std::shared_ptr<Liveness> liveness);
  struct InputRecord {
    PyObject* object = nullptr;  // the program's tensor object, strong
    PyObject* holder = nullptr;  // a plain tensor object that has the real impl meanwhile, strong
    c10::intrusive_ptr<TraceImpl> impl;
    int32_t number = -1;
    bool requires_grad = false;
    bool grad_written = false;
    uint32_t version = 0;                            // when it became an input
    compat::NodePtr<torch::autograd::Node> history;  // where autograd leaves the trace; null for leaves
  };

  // As InputRecord, of a wrapper.
  struct WrapperRecord {
    PyObject* object = nullptr;  // strong, as the next
    PyObject* holder = nullptr;
    at::Tensor real, trace;
    uint32_t version = 0;
    compat::NodePtr<torch::autograd::Node> history;
  };

  // True: a class with __torch_dispatch__ took the call (subclass.cpp).
  bool call_subclass(const c10::OperatorHandle& op, const OpFacts& facts, Stack& stack, size_t base);
  void check_written(const OpFacts& facts, const Stack& stack, size_t base) const;
  void check_wrappers_unchanged() const;
  void count_wrapper_versions();
  void swap_wrappers_back();
  // Steps of add_backward (subclass_backward.cpp).
  void check_wrapped(const std::vector<WrappedResult>& wrapped, const std::vector<at::Tensor>& outputs) const;
  void add_wrapped_tangents(graph::Joint& joint, WrappedResult& result, const std::vector<at::Tensor>& outputs);
  void take_gradient(graph::Joint& joint, PyObject* of, int32_t input, const at::Tensor& gradient);
  void share_dependences(graph::Joint& joint) const;
  std::vector<at::Tensor> parts_of(const at::Tensor& wrapper);
  void call_general(OpFacts& facts, Stack& stack, size_t base);
  void settle(TensorType& type) const;
  void substitute_sizes();
  // small_sizes.cpp
  void admit_small_sizes();
  void ask_of_copies() const;
  struct Copy;
  std::set<int32_t> possibly_one_memory(ValueId of, const Copy& but) const;
  bool is_noticed(const Copy& copy) const;
  std::optional<int64_t> first_difference(const std::vector<std::pair<sym::Expr, sym::Expr>>& small) const;
  // What the rule of the operator says, and the types of what it writes.
  static bool apply_rule(const OpFacts& facts, const ops::InferContext& context, std::vector<TensorType>& outs);
  static void check_fits(const OpFacts& facts, const ops::InferContext& context);  // raises as ATen does
  friend class SmallReplay;
  bool any_symbols(const OpFacts& facts, const Stack& stack, size_t base) const;
  void read_symbols(const OpFacts& facts, Stack& stack, size_t base, bool all);
  bool item_as_symbol(Stack& stack);
  bool numbers_fit(const OpFacts& facts, const std::vector<Arg>& args, const std::vector<TensorType>& outs) const;
  std::optional<at::Tensor> constant_value(const at::Tensor& t, std::vector<sym::Expr>* sizes);
  bool call_on_constants(OpFacts& facts, Stack& stack, size_t base);
  bool find_sizes(OpFacts& facts, Stack& stack, size_t base);  // data_sizes.cpp, as what follows
  void assume_of_data(const sym::SizeGuard& fact, std::string words);
  bool is_unwritten_since(ValueId value, size_t node) const;
  bool is_same(ValueId a, ValueId b, int depth = 0) const;
  size_t maker_of(ValueId value) const;
  bool truth_is_known(Stack& stack) const;
  bool overlaps(const OpFacts& facts) const;
  void check_copy_in_itself() const;
  void refuse_ordered_write(const OpFacts& facts) const;
  void check_devices(const OpFacts& facts) const;
  bool may_change(const OpFacts& facts, size_t arg) const;
  Ref size_as_number(sym::Expr e);
  Ref float_as_number(const aten::FloatOfSizes& f);
  bool any_sized_scalar(const OpFacts& facts, const Stack& stack, size_t base) const;
  bool sizes_fit(const OpFacts& facts, const Stack& stack, size_t base, const std::vector<TensorType>& outs) const;
  bool specialize_operands(const OpFacts& facts, Stack& stack, size_t base);
  void fill_factory_defaults(const OpFacts& facts, std::vector<Arg>& args, const TensorType& result);
  const Operand& aliased(const OpFacts& facts, const std::vector<Arg>& args, int alias) const;
  void finish_by_rule(OpFacts& facts, std::vector<Arg> args, std::vector<TensorType> outs, Stack& stack, size_t base);
  void check_autograd(const OpFacts& facts, const std::vector<TensorType>& outs) const;
  void finish_by_meta(OpFacts& facts, std::vector<Arg> args, Stack& stack, size_t base);  // meta.cpp, as what follows
  struct MetaResult {
    at::Tensor meta;
    const Operand* self = nullptr;  // the result is this argument
    int32_t storage = -1;           // memory it shares with earlier tensors
  };
  Device device_of_results(const OpFacts& facts, const std::vector<Arg>& args) const;
  at::Tensor companion_of(const at::Tensor& t);
  Stack call_meta(const OpFacts& facts, const Stack& stack, size_t base);
  std::optional<Stack> call_meta_on_symbols(const OpFacts& facts, const Stack& stack, size_t base);
  std::optional<Stack> call_shape_function_of_user(const OpFacts& facts, const Stack& stack, size_t base);
  void check_asked_sizes(const OpFacts& facts);  // fake_sizes.cpp
  bool agrees_now(const OpFacts& facts, const Stack& symbolic, const Stack& stack, size_t base);
  void take_geometry(const OpFacts& facts);
  void add_result(const at::Tensor& t, Device device, std::vector<MetaResult>& results,
                  std::vector<TensorType>& outs) const;
  void leave_out(const OpFacts& facts, const std::vector<Arg>& args, std::vector<MetaResult>& results,
                 std::vector<TensorType>& outs) const;
  std::vector<at::Tensor> place_results(const OpFacts& facts, const std::vector<MetaResult>& results,
                                        const std::vector<ValueId>& values);
  int32_t location_id();
  void ask_policy(const OpFacts& facts, const Stack& stack, size_t base);  // selection.cpp
  // Steps of add_backward.
  void check_trainable() const;
  void describe_results(graph::Joint& joint, const std::vector<at::Tensor>& outputs, size_t given) const;
  std::vector<size_t> find_roots(const graph::Joint& joint, const std::vector<at::Tensor>& outputs, size_t given) const;
  void run_engine(graph::Joint& joint, const std::vector<at::Tensor>& outputs, const std::vector<size_t>& roots,
                  std::vector<WrappedResult>& wrapped);
  // Whose gradients the engine is asked for, and where they arrive.
  struct Ends {
    torch::autograd::edge_list edges;
    std::vector<std::pair<PyObject*, int32_t>> of;  // the input's object and number; -1: a wrapper
    std::vector<size_t> arrived;                    // in this order
  };
  void add_end(Ends& ends, PyObject* object, int32_t number, const at::Tensor& trace,
               const compat::NodePtr<torch::autograd::Node>& history) const;
  void check_backward(size_t first_node);
  at::Tensor add_tangent(const at::Tensor& like, int32_t& number);
  void note_gradients(const std::vector<c10::IValue>& stack, size_t base);
  bool is_followed() const;
  void note_saved(graph::Joint& joint, size_t first_node, size_t first_value,
                  const std::vector<at::Tensor>& outputs) const;
  void note_dependences(graph::Joint& joint, size_t first_node) const;
  bool is_rewritten(const InputRecord& in) const;
  void find_extra_results(graph::Joint& joint, const std::vector<PyObject*>& objects);
  void add_extra_outputs();
  void add_gradient_outputs();
  int64_t bytes_now(const TensorType& type) const;
  bool has_type(const TraceImpl& impl, const TensorType& type) const;  // its sizes and strides
  void check_inputs_unchanged() const;
  void count_versions();
  void find_own_counters(const std::vector<PyObject*>& outputs);
  const at::Tensor* tensor_of_data(PyObject* object) const;
  bool fits_data(const OpFacts& facts, const std::vector<Arg>& args, const std::vector<TensorType>& outs,
                 std::vector<ValueId>& in_range) const;
  bool check_range(const std::vector<ValueId>& numbers);
  void drop_unread_sizes();
  void keep_constants_constant();
  void swap_back();
  void deactivate();

  graph::Graph graph_{graph::kNewProgram};
  std::shared_ptr<sym::Environment> sizes_ = std::make_shared<sym::Environment>();
  std::vector<std::pair<int32_t, int32_t>> size_sources_;  // by symbol: input, dimension
  struct Copy {
    ValueId original;
    ValueId result;      // a view of it
    Sizes sizes;         // the result's
    bool as_is = false;  // a tensor's that is contiguous is no copy, but that tensor
    bool asked = true;   // whether eager makes one, of sizes of 2 and more
  };
  std::unordered_map<ValueId, Copy> copies_;  // note_copy(), note_contiguous()
  bool compares_tensors_ = false;
  std::vector<std::pair<size_t, size_t>> inner_;      // note_inner()
  std::unordered_map<size_t, const OpFacts*> ruled_;  // nodes whose types come from rules
  // What was found of data, and the number of nodes there were then.
  struct Found {
    size_t nodes = 0;
    sym::Expr size;
    std::vector<at::Tensor> positions;
    ValueId value = kNoValue;
  };
  std::unordered_map<ValueId, Found> numbers_found_, positions_found_, nonzeros_found_, copies_found_;
  struct DataNumber {
    at::Tensor copy;       // what holds it
    bool checked = false;  // the graph asserts that f32 holds it
  };
  std::unordered_map<ValueId, DataNumber> data_numbers_;  // symbol_of_data()'s
  Stats stats_;
  std::shared_ptr<Liveness> liveness_;
  std::vector<InputRecord> inputs_;
  std::vector<at::Tensor> gradients_;  // add_backward's
  std::vector<at::Tensor> extra_;      // Joint::extra's
  std::vector<int32_t> rewritten_;     // inputs that autograd sees written
  std::vector<at::Tensor> constants_;
  std::vector<int32_t> constant_inputs_;                                  // graph input number of each
  std::unordered_map<const c10::TensorImpl*, at::Tensor> by_real_impl_;   // swapped inputs
  std::unordered_multimap<const c10::TensorImpl*, TraceImpl*> grad_of_;   // real gradients -> whose they are
  std::unordered_map<const c10::StorageImpl*, int32_t> by_real_storage_;  // real -> id
  std::unordered_map<const c10::StorageImpl*, int32_t> by_storage_;       // meta -> id
  std::vector<c10::Storage> storages_;                                    // kept: addresses stay unique
  std::vector<c10::Storage> real_storages_;
  std::unordered_map<const void*, c10::VariableVersion> versions_;  // of inputs, by the counter of the real one
  VersionSteps version_steps_;
  std::vector<graph::OwnCounter> own_counters_;
  std::unordered_map<std::string, int32_t> location_ids_;
  int numbers_ = 0;                                          // add_number()s
  std::unordered_map<uint64_t, int32_t> forward_locations_;  // by sequence number of autograd's nodes
  int arg_ = -1;                                             // being collected
  std::vector<Operand> operands_;                            // of the current call
  bool symbolic_companions_ = false;                         // whose companions have sizes that are symbols
  bool asks_for_sizes_ = false;                              // a shape function that may is being called
  std::vector<AskedSize> asked_sizes_;                       // by the current call's
  // Which tangents lead to a node of autograd (where there are several), and so to the constants that it made: nodes of
  // the graph.
  std::unordered_map<const torch::autograd::Node*, std::vector<bool>> led_to_;
  std::unordered_map<size_t, std::vector<bool>> constants_from_;
  std::unordered_set<const c10::TensorImpl*> made_subclasses_;
  std::vector<WrapperRecord> wrappers_;
  std::vector<std::pair<PyObject*, uint32_t>> written_wrappers_;
  std::vector<WrappedGradient> wrapped_gradients_;
  std::vector<PyObject*> kept_;  // strong
  bool declined_ = false, ended_ = false, in_backward_ = false;
  bool followed_ = true;            // so far: no operator took what requires grad while gradients were off
  std::vector<bool> read_plainly_;  // by value: an operator of the forward took a tensor of it that requires no grad
  bool autocast_cache_was_enabled_ = false;
  at::impl::SavedTensorDefaultHooksTLS saved_tensor_hooks_;  // the caller's: not for trace tensors
  at::RecordFunctionTLS profiler_;                           // so is this: with shapes on it asks for their memory
  std::string reason_;
  PyObject* policy_ = nullptr;                            // select()'s, strong
  graph::Selection selected_ = graph::Selection::kAgain;  // of the operator that is being recorded
};

// 0 where there is no CUDA: tests trace for a device that is not there.
int8_t current_cuda_device();
// Both Python objects exchange their tensors (session.cpp).
void swap_tensors(PyObject* a, PyObject* b);
// The history of an input ends here: eager computed it before the call.
compat::NodePtr<torch::autograd::Node> attach_outer_gradient(const at::Tensor& trace);
OpFacts& facts_of(const c10::OperatorHandle& op);
Special special_of(std::string_view name);  // special.cpp
// new_memory.cpp: results that hold what was in their memory before, and what torch fills them with.
bool is_uninitialized(std::string_view name);
bool fills_new_memory();
void fill_new_memory(const at::Tensor& made);
Special fourier_of(std::string_view name);      // fourier.cpp
Special convolution_of(std::string_view name);  // convolution.cpp
const c10::KernelFunction* find_cpp_meta(const c10::OperatorHandle& op, bool& python_meta,
                                         bool& shadowed);  // kernels.cpp
PyObject* decline_class();                                 // borrowed
void link_intercepts();                                    // intercept.cpp

// Null: ATen's own way (attention.cpp).
std::optional<at::Tensor> record_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                           const std::optional<at::Tensor>& mask, double dropout, bool causal,
                                           std::optional<double> scale, bool gqa);

// Excludes everything above the backend, so that kernels see plain tensors.
class BelowEverything {
 public:
  BelowEverything();

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

// internal_call() is true inside.
class InternalScope {
 public:
  InternalScope();
  ~InternalScope();
  InternalScope(const InternalScope&) = delete;
};

}  // namespace flashover::trace
