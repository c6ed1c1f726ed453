// Inputs: real tensors swapped for trace tensors under the same Python object, and back.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/python_symnode.h>

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "compat/names.h"
#include "graph/written.h"
#include "ops/geometry.h"
#include "ops/names.h"
#include "torch/autocast.h"
#include "torch/size_node.h"
#include "torch/versions.h"
#include "trace/elsewhere.h"
#include "trace/exchange.h"
#include "trace/number.h"
#include "trace/recorder.h"

namespace flashover::trace {

// Both objects exchange their tensors; each tensor's back pointer follows. Local copies keep both use counts above one,
// so each tensor holds exactly one reference to its object before and after, and counts stay as they are.
void swap_tensors(PyObject* a, PyObject* b) {
  auto* va = reinterpret_cast<THPVariable*>(a);
  auto* vb = reinterpret_cast<THPVariable*>(b);
  const at::Tensor keep_a = va->cdata, keep_b = vb->cdata;
  std::swap(va->cdata, vb->cdata);
  va->cdata.unsafeGetTensorImpl()->pyobj_slot()->store_pyobj(a);
  vb->cdata.unsafeGetTensorImpl()->pyobj_slot()->store_pyobj(b);
}

namespace {

const char* untraceable(const at::Tensor& t) {
  if (!t.defined()) return "undefined tensor";
  const c10::DispatchKeySet keys = t.key_set();
  if (keys.has(c10::DispatchKey::Python)) return "tensor subclass with __torch_dispatch__";
  if (keys.has(c10::DispatchKey::Fake)) return "fake tensor";
  if (t.layout() != at::kStrided) return "layout is not strided";
  if (t.is_mkldnn()) return "mkldnn tensor";
  if (t.is_quantized()) return "quantized tensor";
  if (t.is_nested()) return "nested tensor";
  if (compat::has_names(t)) return "named tensor";
  if (!t.has_storage()) return "tensor without storage";
  if (t._is_zerotensor()) return "zero tensor";
  const c10::DispatchKeySet functorch({c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched,
                                       c10::DispatchKey::Functionalize, c10::DispatchKey::Batched});
  if (keys.has_any(functorch)) return "tensor of a functorch transform";
  if (!t.is_cpu() && !t.is_cuda()) return "device is neither cpu nor cuda";
  if (t.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return "symbolic sizes";
  return nullptr;
}

// Stands where the history of an input ends that eager computed before the call.
struct OuterGradient final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { return {}; }
  std::string name() const override { return "FlashoverOuterGradient"; }
};

// The program's object holds it instead of the real one. Any thread may ask.
bool is_exchanged(const TraceImpl& input) { return std::atomic_ref(input.liveness->recorder).load() != nullptr; }

// Other threads read and write the real tensor's .grad.
class InputMeta final : public torch::autograd::AutogradMeta {
 public:
  explicit InputMeta(TraceImpl* trace) : trace_(trace) {}
  at::Tensor& mutable_grad() override {
    return is_elsewhere() ? trace_->real.mutable_grad() : AutogradMeta::mutable_grad();
  }
  const at::Tensor& grad() const override {
    return is_elsewhere() ? trace_->real.unsafeGetTensorImpl()->grad() : AutogradMeta::grad();
  }

 private:
  bool is_elsewhere() const { return is_exchanged(*trace_) && !current(); }
  TraceImpl* const trace_;
};

}  // namespace

compat::NodePtr<torch::autograd::Node> attach_outer_gradient(const at::Tensor& trace) {
  auto node = compat::make_node<OuterGradient>();
  node->add_input_metadata(trace);
  torch::autograd::impl::set_gradient_edge(trace, torch::autograd::Edge(node, 0));
  return node;
}

PyObject* decline_class() {
  static PyObject* type = [] {
    pybind11::gil_scoped_acquire gil;
    return PyErr_NewExceptionWithDoc("flashover._C.Decline", "Thrown through traced code; never reaches the user.",
                                     PyExc_BaseException, nullptr);
  }();
  return type;
}

namespace {

// Symbols for these sizes. A stride that is what the dimensions within it span is that product; another one is a symbol
// where it is among `symbolic`, else a number. False: there are none.
bool give_symbols(sym::Environment& environment, TensorType& type, const std::vector<SymbolicSize>& symbolic,
                  int32_t input, std::vector<std::pair<int32_t, int32_t>>& sources) {
  std::vector<int64_t> sizes, strides;
  for (size_t d = 0; d < type.rank(); ++d) {
    sizes.push_back(type.sizes[d].value());
    strides.push_back(type.strides[d].value());
  }
  std::vector<bool> open_strides(type.rank());
  bool any = false;
  const auto add = [&](size_t part, int64_t now, const sym::Promise& promise) {
    sources.emplace_back(input, static_cast<int32_t>(part));
    any = true;
    return environment.add(now, promise);
  };
  for (const auto& [part, promise, instead] : symbolic) {
    const size_t d = dimension_of_part(part);
    if (d >= type.rank()) continue;
    const int64_t now = instead != 0 ? instead : sizes[d];
    if (is_stride_part(part))
      open_strides[d] = strides[d] >= sym::kLeastPresumed;
    else if (now >= sym::kLeastPresumed)
      type.sizes[d] = add(part, now, promise);
  }
  const std::vector<bool> spanned = spanned_strides(sizes, strides);
  sym::Expr span = 1;
  for (size_t d : inner_first(strides)) {
    if (spanned[d]) {
      type.strides[d] = span;
    } else if (open_strides[d]) {
      type.strides[d] = add(kMaxSymbolicRank + d, strides[d], {});
      // Whether its elements share places is asked of every tensor; that these do not is the usual case.
      if (environment.now(span) <= strides[d]) environment.holds(sym::Relation::kLessEqual, span, type.strides[d]);
    }
    // As ATen: of empty dimensions, too.
    span = type.strides[d] * (type.sizes[d].is_const(0) ? sym::Expr(1) : type.sizes[d]);
  }
  return any;
}

}  // namespace

int32_t Recorder::add_input(PyObject* object, graph::InputKind kind, const std::string& name,
                            const std::vector<SymbolicSize>& symbolic) {
  if (!THPVariable_Check(object)) throw Declined("an input is not a tensor");
  if (const TraceImpl* impl = trace_impl(THPVariable_Unpack(object))) {
    if (impl->liveness.get() == liveness_.get() && impl->input >= 0) return impl->input;
    throw Declined("a tensor made in the trace cannot become an input");
  }
  // From here to the exchange no other thread gets the GIL.
  if (wait_for_others && !wait_for_others(&object, 1, exchange().patience)) {
    exchange().interfered = true;
    throw Declined("another thread is in the midst of a method of an input");
  }
  const at::Tensor real = THPVariable_Unpack(object);
  if (const char* why = untraceable(real)) throw Declined(std::string("untraceable input: ") + why);
  TensorType type = aten::type_of(real);
  type.wrapped_number = false;
  const bool has_symbols = !symbolic.empty() && give_symbols(*sizes_, type, symbolic,
                                                             static_cast<int32_t>(graph_.inputs.size()), size_sources_);

  InternalScope internal;
  const auto* real_impl = real.unsafeGetTensorImpl();
  // Memory: shared by inputs that share theirs.
  const c10::StorageImpl* real_storage = real.storage().unsafeGetStorageImpl();
  int32_t storage_id;
  if (auto it = by_real_storage_.find(real_storage); it != by_real_storage_.end()) {
    storage_id = it->second;
  } else {
    storage_id = new_storage(make_storage(std::max(static_cast<int64_t>(real_storage->nbytes()), bytes_now(type))));
    by_real_storage_.emplace(real_storage, storage_id);
    real_storages_.push_back(real.storage());
  }

  const auto number = static_cast<int32_t>(graph_.inputs.size());
  const ValueId value = graph_.add_input(type, kind, name, storage_id);
  graph_.inputs[number].requires_grad = real.requires_grad();

  auto impl = c10::make_intrusive<TraceImpl>(c10::Storage(storages_[storage_id]),
                                             c10::DispatchKeySet(c10::DispatchKey::CPU), real.dtype(), real.device());
  impl->imitate(*real_impl);
  if (has_symbols) give_geometry(*impl, type);
  impl->value = value;
  impl->storage_id = storage_id;
  impl->input = number;
  impl->real = real;
  impl->liveness = liveness_;
  if (!impl->is_inference()) {
    // In-place checks of autograd see what eager's would: inputs that share a version counter share one here.
    auto [it, fresh] = versions_.try_emplace(aten::counter_of(real_impl), c10::VariableVersion(real._version()));
    impl->set_version_counter(it->second);
  }
  impl->set_allow_tensor_metadata_change(real_impl->allow_tensor_metadata_change());
  at::Tensor trace(impl);
  compat::NodePtr<torch::autograd::Node> history;
  if (real.requires_grad()) {
    if (real.is_leaf()) {
      impl->set_autograd_meta(std::make_unique<InputMeta>(impl.get()));
      impl->set_requires_grad(true);
    } else {
      history = attach_outer_gradient(trace);
    }
  }
  if (real.is_leaf()) {
    // The program may look at .grad: the real one until that is an input itself.
    const at::Tensor& grad = real_impl->grad();
    if (grad.defined()) {
      auto known = by_real_impl_.find(grad.unsafeGetTensorImpl());
      impl->mutable_grad() = known == by_real_impl_.end() ? grad : known->second;
      if (known == by_real_impl_.end()) grad_of_.emplace(grad.unsafeGetTensorImpl(), impl.get());
    }
  }
  for (auto [owner, end] = grad_of_.equal_range(real_impl); owner != end; ++owner)
    owner->second->mutable_grad() = trace;

  // What can fail for want of memory comes before the swap: one that is not on the list is never swapped back.
  if (inputs_.size() == inputs_.capacity()) inputs_.reserve(2 * inputs_.size() + 8);
  by_real_impl_.emplace(real_impl, trace);
  PyObject* holder = THPVariable_Wrap(std::move(trace));
  if (!holder) {
    by_real_impl_.erase(real_impl);
    throw Declined("no Python object for a trace tensor");
  }
  swap_tensors(object, holder);
  Py_INCREF(object);
  const uint32_t version = impl->is_inference() ? 0 : impl->version_counter().current_version();
  inputs_.push_back({object, holder, impl, number, real.requires_grad(), false, version, std::move(history)});
  return number;
}

bool Recorder::is_input(PyObject* object) const {
  if (!THPVariable_Check(object)) return false;
  const TraceImpl* impl = trace_impl(THPVariable_Unpack(object));
  return impl && impl->liveness.get() == liveness_.get() && impl->input >= 0;
}

bool Recorder::write_grad(PyObject* object) {
  const TraceImpl* impl = THPVariable_Check(object) ? trace_impl(THPVariable_Unpack(object)) : nullptr;
  for (InputRecord& in : inputs_)
    if (in.impl.get() == impl) return in.grad_written = true;
  return false;
}

// Of the same type, so that what was asked of the input stays true. (Views and results of autograd follow others.)
bool Recorder::write_data(PyObject* object, PyObject* value) {
  if (!is_input(object) || !is_trace_tensor(value)) return false;
  const at::Tensor &tensor = THPVariable_Unpack(object), &source = THPVariable_Unpack(value);
  TraceImpl* impl = trace_impl(tensor);
  if (!impl->real.is_leaf() || impl->real.is_view() || impl->is_inference()) return false;
  const TensorType before = type_of(tensor), after = type_of(source);
  if (before.dtype != after.dtype || before.device != after.device || before.sizes != after.sizes ||
      before.strides != after.strides)
    return false;  // (what was assigned before stays so)
  return impl->data_written = true;
}

ValueId Recorder::value_of(PyObject* object) const {
  if (!THPVariable_Check(object)) return kNoValue;
  const TraceImpl* impl = trace_impl(THPVariable_Unpack(object));
  return impl && impl->liveness.get() == liveness_.get() ? impl->value : kNoValue;
}

bool Recorder::is_trace_tensor(PyObject* object) const { return value_of(object) != kNoValue; }

ValueId Recorder::value_in_storage(int32_t storage, DType dtype) const {
  for (size_t v = graph_.values.size(); v-- > 0;)
    if (graph_.values[v].storage == storage && graph_.values[v].type.dtype == dtype) return static_cast<ValueId>(v);
  return kNoValue;
}

// The memory that such a tensor of this trace reaches over.
int64_t Recorder::bytes_now(const TensorType& type) const {
  int64_t last = sizes_->now(type.offset);
  for (size_t d = 0; d < type.sizes.size(); ++d)
    last += std::max<int64_t>(sizes_->now(type.sizes[d]) - 1, 0) * sizes_->now(type.strides[d]);
  return (last + 1) * info(type.dtype).bytes;
}

bool Recorder::has_type(const TraceImpl& impl, const TensorType& type) const {
  const auto same = [this](const Sizes& list, c10::IntArrayRef now) {
    return std::ranges::equal(list, now, [this](sym::Expr e, int64_t n) { return sizes_->now(e) == n; });
  };
  return same(type.sizes, impl.sizes_now()) && same(type.strides, impl.strides_now());
}

// What the graph cannot express about inputs must not have happened.
void Recorder::check_inputs_unchanged() const {
  for (const InputRecord& in : inputs_) {
    const graph::Input& input = graph_.inputs[in.number];
    const at::Tensor& real = in.impl->real;
    const std::string who = "input " + input.name + ": ";
    const bool as_given = in.impl->is_symbolic()
                              ? has_type(*in.impl, graph_.values[input.value].type)
                              : in.impl->sizes_now() == real.sizes() && in.impl->strides_now() == real.strides();
    if (!as_given || (in.impl->storage_id != graph_.values[input.value].storage && !in.impl->data_written))
      throw Declined(who + "its shape or memory was replaced");
    const at::Tensor trace(in.impl);
    const bool rewritten = std::find(rewritten_.begin(), rewritten_.end(), in.number) != rewritten_.end();
    if (!rewritten && trace.requires_grad() != in.requires_grad) throw Declined(who + "requires_grad changed");
    if (!rewritten && is_rewritten(in)) throw Declined(who + "written in place under autograd");
    if (real.is_leaf() && !in.grad_written) {
      const at::Tensor &before = real.unsafeGetTensorImpl()->grad(), &after = in.impl->grad();
      const auto traced = by_real_impl_.find(before.unsafeGetTensorImpl());
      const bool same = before.is_same(after) || (traced != by_real_impl_.end() && traced->second.is_same(after));
      if (before.defined() != after.defined() || (before.defined() && !same))
        throw Declined(who + ".grad was assigned");
    }
  }
  // Different storages over the same bytes (numpy arrays, from_blob): writing one changes the other unseen.
  struct Span {
    const char *begin, *end;
    int32_t id;
  };
  std::vector<Span> spans;
  for (const c10::Storage& s : real_storages_) {
    const auto* begin = static_cast<const char*>(s.data());
    if (begin && s.nbytes())
      spans.push_back({begin, begin + s.nbytes(), by_real_storage_.at(s.unsafeGetStorageImpl())});
  }
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::vector<int32_t> overlapping;
  for (size_t i = 1; i < spans.size(); ++i)
    if (spans[i].begin < spans[i - 1].end) overlapping.insert(overlapping.end(), {spans[i - 1].id, spans[i].id});
  if (overlapping.empty()) return;
  for (const graph::Node& n : graph_.nodes)
    graph::for_each_written(n, [&](ValueId v) {
      if (std::find(overlapping.begin(), overlapping.end(), graph_.values[v].storage) != overlapping.end())
        throw Declined("inputs overlap in memory without sharing a storage, and one is written");
    });
}

// The trace tensors' counters moved as those of the real tensors would have.
void Recorder::count_versions() {
  version_steps_.assign(graph_.inputs.size(), 0);
  std::unordered_map<const void*, int32_t> first;
  for (const InputRecord& in : inputs_) {
    const void* counter = aten::counter_of(in.impl.get());
    if (!counter) continue;
    const auto [known, fresh] = first.try_emplace(counter, in.number);
    const uint32_t now = in.impl->version_counter().current_version();
    if (now < in.version) throw Declined("the version of input " + graph_.inputs[in.number].name + " was set back");
    version_steps_[in.number] = fresh ? static_cast<int32_t>(now - in.version) : -1 - known->second;
  }
}

namespace {

// What autograd follows a tensor's views to.
const c10::TensorImpl* root_of(const at::Tensor& t) {
  return t.is_view() ? t._base().unsafeGetTensorImpl() : t.unsafeGetTensorImpl();
}

}  // namespace

void Recorder::find_own_counters(const std::vector<PyObject*>& outputs) {
  std::unordered_map<int32_t, at::Tensor> owner;  // by storage: whose memory results are views of
  for (const InputRecord& in : inputs_) owner.try_emplace(in.impl->storage_id, at::Tensor(in.impl));
  for (bool followed : {true, false})
    for (PyObject* o : outputs)
      if (const at::Tensor& t = THPVariable_Unpack(o); t.requires_grad() == followed)
        owner.try_emplace(trace_impl(t)->storage_id, t);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor& t = THPVariable_Unpack(outputs[i]);
    const void* counter = aten::counter_of(t.unsafeGetTensorImpl());
    const int32_t storage = trace_impl(t)->storage_id;
    const at::Tensor& base = owner.at(storage);
    if (!counter || t.requires_grad() || base.is_same(t)) continue;
    graph::OwnCounter own{static_cast<int32_t>(i), -1};
    if (counter == aten::counter_of(base.unsafeGetTensorImpl())) {
      // The counter is its base's, but autograd must not take it for a view (`x.detach()`): if the base comes to
      // require grad later, the result must not.
      own.input = -2;
      if (base.requires_grad() || root_of(t) != root_of(base)) own_counters_.push_back(own);
      continue;
    }
    for (const InputRecord& in : inputs_)
      if (aten::counter_of(in.impl.get()) == counter) own.input = in.number;
    own_counters_.push_back(own);
  }
}

PyObject* Recorder::element(int32_t input, DType& dtype) const {
  for (const InputRecord& in : inputs_) {
    if (in.number != input) continue;
    const at::Tensor& t = in.impl->real;
    dtype = aten::from_aten(t.scalar_type());
    return only_number(t);
  }
  return nullptr;
}

PyObject* Recorder::add_narrowed_input(PyObject* tensor, const std::vector<Narrow>& narrows, const std::string& name,
                                       int32_t& input) {
  const TraceImpl* impl = THPVariable_Check(tensor) ? trace_impl(THPVariable_Unpack(tensor)) : nullptr;
  if (!impl || impl->liveness.get() != liveness_.get() || impl->input < 0 || !impl->real.defined()) return nullptr;
  if (graph_.inputs[static_cast<size_t>(impl->input)].value != impl->value) return nullptr;  // written by now
  at::Tensor part = impl->real;
  {
    c10::impl::ExcludeDispatchKeyGuard real(c10::DispatchKey::Fake);
    InternalScope internal;
    for (const Narrow& n : narrows) part = part.narrow(n.dim, n.start, n.length);
  }
  PyObject* object = THPVariable_Wrap(part);
  input = add_input(object, graph::InputKind::kUser, name, {});
  return object;
}

// The program may write a tensor that it made of Python data: each call gets its own copy then.
void Recorder::keep_constants_constant() {
  static const ops::OpRow* clone = ops::find(op::clone);
  std::vector<bool> written(storages_.size(), false);
  for (const graph::Node& n : graph_.nodes)
    graph::for_each_written(n, [&](ValueId v) { written[graph_.values[v].storage] = true; });
  // What leaves the call must not be the constant itself either.
  for (const graph::Output& o : graph_.outputs) written[graph_.values[o.value].storage] = true;
  for (int32_t number : constant_inputs_) {
    graph::Input& input = graph_.inputs[number];
    const ValueId old = input.value;
    if (!written[graph_.values[old].storage]) continue;
    TensorType type = graph_.type(old);
    input.value = graph_.add_value(std::move(type), new_storage(make_storage(0)));
    graph::Node node{.op = clone, .args = {Ref{input.value}, MemoryFormat::kPreserve}, .outs = {old}};
    graph_.nodes.insert(graph_.nodes.begin(), std::move(node));
  }
}

namespace {

// Trace tensors that a thread may still be about to use, with the objects that it had them from (not to be followed).
// Under the GIL.
using Leftovers = std::vector<std::pair<PyObject*, at::Tensor>>;
Leftovers& leftovers() {
  static Leftovers* const all = new Leftovers;
  return *all;
}

// Another thread's method that began with a trace tensor goes on with it, or finds the real one in its place; neither
// is wrong, as long as both live.
void await_end_of_methods(const Leftovers& inputs) {
  if (!wait_for_others) return;
  // More patient than before the trace: nothing can be given up any more.
  double none = 0, seconds = 1;
  std::erase_if(leftovers(), [&](const auto& l) { return wait_for_others(&l.first, 1, none); });
  std::vector<PyObject*> objects;
  for (const auto& [object, trace] : inputs) objects.push_back(object);
  if (wait_for_others(objects.data(), objects.size(), seconds)) return;
  leftovers().insert(leftovers().end(), inputs.begin(), inputs.end());
}

}  // namespace

void Recorder::swap_back() {
  ended_ = true;
  c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Fake, false);
  c10::impl::tls_set_dispatch_key_excluded(kElsewhere, false);
  deactivate();
  pybind11::gil_scoped_acquire gil;
  try {
    Leftovers inputs;
    for (const InputRecord& in : inputs_) inputs.emplace_back(in.object, at::Tensor(in.impl));
    for (const WrapperRecord& w : wrappers_) inputs.emplace_back(w.object, w.trace);
    await_end_of_methods(inputs);
  } catch (const std::bad_alloc&) {  // it goes back in any case
  }
  for (auto it = inputs_.rbegin(); it != inputs_.rend(); ++it) {
    swap_tensors(it->object, it->holder);  // the trace tensor keeps `real`: another thread may be about to use it
  }
  swap_wrappers_back();
  std::atomic_ref(liveness_->recorder).store(nullptr);
  by_real_impl_.clear();
  for (InputRecord& in : inputs_) {
    Py_DECREF(in.holder);
    Py_DECREF(in.object);
  }
  inputs_.clear();
  autocast::clear_cache();
  autocast::set_cache_enabled(autocast_cache_was_enabled_);
  for (int tries = 0; tries < 2; ++tries) try {  // it copies: without memory the second time, they stay off
      at::set_record_function_tls_(profiler_);
      at::SavedTensorDefaultHooks::set_tls_state(saved_tensor_hooks_);
      break;
    } catch (const std::bad_alloc&) {
    }
}

sym::Expr Recorder::add_size(int64_t now, const std::string& name, int32_t& input) {
  input = static_cast<int32_t>(graph_.inputs.size());
  TensorType type;
  type.dtype = DType::kI64;
  type.sizes = {sizes_->add(now)};
  type.strides = {sym::Expr(0)};
  size_sources_.emplace_back(input, 0);
  const sym::Expr size = type.sizes[0];
  graph_.add_input(std::move(type), graph::InputKind::kUser, name, new_storage(make_storage(8)));
  return size;
}

std::pair<int32_t, int32_t> Recorder::source_of_size(sym::Expr symbol) const {
  return size_sources_.at(static_cast<size_t>(sym::size_symbol_index(symbol).value()));
}

PyObject* Recorder::size_symbol(sym::Expr e) { return pybind11::cast(aten::to_symint(sizes_, e)).release().ptr(); }

std::optional<sym::Expr> Recorder::size_of_symbol(PyObject* symbol) const {
  if (!torch::is_symint(pybind11::handle(symbol))) return std::nullopt;
  return aten::expr_of(pybind11::cast<c10::SymInt>(pybind11::handle(symbol)));
}

// Symbols that were found equal to something else are that.
void Recorder::substitute_sizes() {
  if (sizes_->empty()) return;
  const auto all = [this](Sizes& list) {
    for (sym::Expr& e : list) e = sizes_->canonical(e);
  };
  const auto type = [&](TensorType& t) {
    all(t.sizes);
    all(t.strides);
    t.offset = sizes_->canonical(t.offset);
  };
  for (graph::Value& v : graph_.values) type(v.type);
  for (graph::Output& o : graph_.outputs) type(o.type);
  for (graph::Node& n : graph_.nodes)
    for (Arg& a : n.args) {
      if (auto* e = std::get_if<sym::Expr>(&a)) *e = sizes_->canonical(*e);
      if (auto* list = std::get_if<Sizes>(&a)) all(*list);
    }
}

graph::Graph Recorder::end(const std::vector<PyObject*>& outputs, std::vector<PyObject*>& constants) {
  FLASHOVER_CHECK(!ended_) << "session ended twice";
  try {
    if (declined_) throw Declined(reason_);
    for (PyObject* object : outputs) {
      const ValueId value = value_of(object);
      if (value == kNoValue) throw Declined("an output is not a tensor of this trace");
      const at::Tensor& t = THPVariable_Unpack(object);
      graph::Output out;
      out.value = value;
      out.type = type_of(t);
      if (t.is_conj() || t.is_neg()) throw Declined("an output is a lazily conjugated or negated view");
      graph_.outputs.push_back(std::move(out));
    }
    check_inputs_unchanged();
    check_wrappers_unchanged();
    count_wrapper_versions();
    if (version_steps_.empty()) count_versions();
    version_steps_.resize(graph_.inputs.size());
    find_own_counters(outputs);
    add_extra_outputs();
    add_gradient_outputs();
    substitute_sizes();
    drop_unread_sizes();
    ask_of_copies();
    admit_small_sizes();
    keep_constants_constant();
  } catch (...) {
    swap_back();
    throw;
  }
  swap_back();
  for (at::Tensor& t : constants_) constants.push_back(THPVariable_Wrap(t));
  return std::move(graph_);
}

}  // namespace flashover::trace
