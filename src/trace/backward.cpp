// Forward and backward in one trace: the autograd engine runs over trace tensors.
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/python_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string_view>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "compat/autograd.h"
#include "compat/dispatch.h"
#include "graph/checkpoint.h"
#include "graph/rewrite/rewriter.h"
#include "graph/written.h"
#include "ops/args.h"
#include "ops/names.h"
#include "torch/size_node.h"
#include "trace/no_memory.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

namespace autograd = torch::autograd;
static_assert(compat::kClassesFirst == (c10::DispatchKey::Python > c10::DispatchKey::Fake));

// One thread: trace state is thread-local.
class SingleThreaded {
 public:
  SingleThreaded() : before_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  ~SingleThreaded() { c10::AutogradState::get_tls_state().set_multithreading_enabled(before_); }
  SingleThreaded(const SingleThreaded&) = delete;

 private:
  bool before_;
};

// Derivative formulas look at values to take a shorter way (max, median, cumprod, masked_fill ...), except for tensors
// that have none: ATen takes all for such while a dispatch mode is set. This one sees no call, for its key stays off.
class WithoutValues {
 public:
  WithoutValues() {
    if (c10::impl::TorchDispatchModeTLS::any_modes_set()) return;
    pybind11::gil_scoped_acquire gil;
    c10::impl::TorchDispatchModeTLS::set_mode(
        std::make_shared<c10::impl::PyObject_TorchDispatchMode>(Py_NewRef(Py_None), getPyInterpreter()), kSlot);
    set_ = true;
    c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Python, false);
    c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::PythonTLSSnapshot, false);
  }
  ~WithoutValues() {
    if (set_) c10::impl::TorchDispatchModeTLS::unset_mode(kSlot);
  }
  WithoutValues(const WithoutValues&) = delete;

 private:
  static constexpr auto kSlot = c10::impl::TorchDispatchModeKey::PROXY;
  bool set_ = false;
};

bool has_hooks(const at::Tensor& t) {
  const auto* meta = autograd::impl::get_autograd_meta(t);
  if (!meta) return false;
  if (!meta->hooks_.empty() || meta->post_acc_grad_hooks_ || meta->retains_grad_) return true;
  const auto& fn = t.grad_fn();
  return fn && (!fn->tensor_pre_hooks().empty() || !fn->pre_hooks().empty() || !fn->post_hooks().empty());
}

// Null: a node of C++'s. (torch does not export what dynamic_cast asks for.)
const autograd::PyNode* python_function(const autograd::Node* node) {
  const autograd::Node& n = *node;
  return std::string_view(typeid(n).name()) == "N5torch8autograd6PyNodeE" ? static_cast<const autograd::PyNode*>(node)
                                                                          : nullptr;
}

// Whether f(node, is_last) holds for a node of the history between a view and what it is a view of.
template <typename F>
bool any_node_between(const at::Tensor& view, const at::Tensor& base, F&& f) {
  const autograd::Node* end = autograd::impl::gradient_edge(base).function.get();
  const autograd::Node* node = view.grad_fn().get();
  while (node && node != end && node->num_outputs() > 0) {
    const autograd::Node* next = node->next_edge(0).function.get();
    if (f(*node, next == end)) return true;
    node = next;
  }
  return false;
}

// A Function of the program gave its input back: its gradient is no part of a view's.
bool is_behind_function(const at::Tensor& view, const at::Tensor& base) {
  return any_node_between(view, base, [](const autograd::Node& n, bool) {
    return python_function(&n) || std::string_view(typeid(n).name()).starts_with("N5torch8autograd7CppNode");
  });
}

// What autograd takes `t` for a view of; `t` itself if it is none; null: a view that is not to be followed.
const c10::TensorImpl* followed_base(const at::Tensor& t) {
  auto* meta = autograd::impl::get_view_autograd_meta(t);
  if (!meta || !meta->has_bw_view()) return t.unsafeGetTensorImpl();
  const auto creation = meta->get_creation_meta();
  if (creation != autograd::CreationMeta::DEFAULT && creation != autograd::CreationMeta::MULTI_OUTPUT_NODE)
    return nullptr;
  const at::Tensor& base = meta->get_backward_view().base_;
  if (is_behind_function(t, base)) return nullptr;
  return base.unsafeGetTensorImpl();
}

at::Tensor tensor_of(const c10::TensorImpl* t) {
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(const_cast<c10::TensorImpl*>(t)));
}

bool is_same_result(const at::Tensor& a, const at::Tensor& b) {
  return a.requires_grad() && autograd::impl::gradient_edge(a) == autograd::impl::gradient_edge(b);
}

// A gradient of `view` is one of those elements of `root`.
bool follows(const at::Tensor& view, const at::Tensor& root) {
  const c10::TensorImpl* base = followed_base(view);
  return is_same_result(view, root) || (base && base == followed_base(root));
}

// The input that `t` is a differentiable view of; null: it is none, or not in a way that as_strided can say.
const TraceImpl* viewed_input(const at::Tensor& t) {
  const c10::TensorImpl* impl = followed_base(t);
  const TraceImpl* base = impl ? trace_impl(impl) : nullptr;
  return base && base->input >= 0 ? base : nullptr;
}

// What a Function of the program gave back of its input: memory of that input, with the Function's own history.
bool is_given_back(const at::Tensor& t) {
  auto* meta = autograd::impl::get_view_autograd_meta(t);
  if (!meta || !meta->has_bw_view()) return false;
  const at::Tensor& base = meta->get_backward_view().base_;
  const TraceImpl* impl = trace_impl(base);
  return impl && impl->input >= 0 && is_behind_function(t, base);
}

// as_strided of a view may reach elements of `root` outside that view; autograd gives those no gradient, and a view cut
// out of `root` itself would.
bool reaches_outside(const at::Tensor& view, const at::Tensor& root) {
  return any_node_between(view, root, [](const autograd::Node& node, bool is_last) {
    return !is_last && node.name() == "AsStridedBackward0";
  });
}

// Hooks get None where no gradient comes, and so may a Function.
bool is_told_what_comes(const autograd::Node& node) {
  if (!node.pre_hooks().empty() || !node.post_hooks().empty()) return true;
  const autograd::PyNode* function = python_function(&node);
  return function && !reinterpret_cast<const THPFunction*>(compat::function_object(*function))->materialize_grads;
}

// Whether a Function of the program's stands in this backward, results of which lead to it from different roots: when
// some tangents do not come it runs all the same, with zeros for the others, which need not mean nothing to it.
// Declines where the program is told what comes.
bool wants_zeros(const autograd::edge_list& roots) {
  std::unordered_map<const autograd::Node*, std::map<uint32_t, std::vector<size_t>>> from;  // by result
  for (size_t r = 0; r < roots.size(); ++r) {
    std::unordered_set<const autograd::Node*> seen;
    std::vector<autograd::Edge> waiting{roots[r]};
    while (!waiting.empty()) {
      const autograd::Edge edge = std::move(waiting.back());
      waiting.pop_back();
      const autograd::Node* node = edge.function.get();
      if (python_function(node) || is_told_what_comes(*node))
        if (std::vector<size_t>& to = from[node][edge.input_nr]; to.empty() || to.back() != r) to.push_back(r);
      if (!seen.insert(node).second) continue;
      for (const autograd::Edge& e : node->next_edges())
        if (e.is_valid()) waiting.push_back(e);
    }
  }
  bool zeros = false;
  for (const auto& [node, results] : from) {
    const bool alike = std::all_of(results.begin(), results.end(),
                                   [&, &first = results.begin()->second](const auto& r) { return r.second == first; });
    if (alike) continue;
    if (is_told_what_comes(*node)) throw Declined("training: a Function or hook that is told which results are used");
    zeros = true;
  }
  return zeros;
}

bool calls_program(const autograd::Node& of) {
  auto& node = const_cast<autograd::Node&>(of);  // (torch's readers of hooks are not const)
  return python_function(&node) || !node.pre_hooks().empty() || !node.post_hooks().empty() ||
         !node.tensor_pre_hooks().empty() || node.tensor_post_acc_grad_hooks() != nullptr;
}

// Whether hooks or Functions of the program have a say in the gradients of these results.
bool lead_through_program(const std::vector<at::Tensor>& results) {
  std::vector<const autograd::Node*> waiting;
  std::unordered_set<const autograd::Node*> seen;
  const auto add = [&](const autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) waiting.push_back(node);
  };
  for (const at::Tensor& t : results) add(t.grad_fn().get());
  while (!waiting.empty()) {
    const autograd::Node& node = *waiting.back();
    waiting.pop_back();
    if (calls_program(node)) return true;
    for (const autograd::Edge& e : node.next_edges()) add(e.function.get());
  }
  return false;
}

// A leaf that the program made and let go takes its gradient with it, so the backward of this graph has no part for it.
// Declines where hooks or Functions of the program would have run on the way there.
void check_ways_to_other_leaves(const autograd::edge_list& roots, const autograd::edge_list& inputs) {
  std::unordered_map<const autograd::Node*, std::vector<const autograd::Node*>> led_from;
  std::vector<const autograd::Node*> waiting;
  for (const autograd::Edge& root : roots)
    if (led_from.try_emplace(root.function.get()).second) waiting.push_back(root.function.get());
  bool calls = false;
  while (!waiting.empty()) {
    const autograd::Node* node = waiting.back();
    waiting.pop_back();
    calls = calls || calls_program(*node);
    for (const autograd::Edge& e : node->next_edges()) {
      if (!e.is_valid()) continue;
      const auto [it, fresh] = led_from.try_emplace(e.function.get());
      it->second.push_back(node);
      if (fresh) waiting.push_back(e.function.get());
    }
  }
  if (!calls) return;
  std::unordered_set<const autograd::Node*> serves;
  for (const autograd::Edge& in : inputs)
    if (serves.insert(in.function.get()).second) waiting.push_back(in.function.get());
  while (!waiting.empty()) {
    const autograd::Node* node = waiting.back();
    waiting.pop_back();
    for (const autograd::Node* from : led_from[node])
      if (serves.insert(from).second) waiting.push_back(from);
  }
  for (const auto& [node, from] : led_from)
    if (!serves.contains(node) && calls_program(*node))
      throw Declined("training: a hook or Function on the way to a leaf that the program made and let go");
}

// By node, which of the roots lead to it.
std::unordered_map<const autograd::Node*, std::vector<bool>> find_led_to(const autograd::edge_list& roots) {
  std::unordered_map<const autograd::Node*, std::vector<bool>> led_to;
  for (size_t r = 0; r < roots.size(); ++r) {
    std::vector<const autograd::Node*> waiting{roots[r].function.get()};
    while (!waiting.empty()) {
      const autograd::Node* node = waiting.back();
      waiting.pop_back();
      std::vector<bool>& from = led_to[node];
      from.resize(roots.size());
      if (from[r]) continue;
      from[r] = true;
      for (const autograd::Edge& e : node->next_edges())
        if (e.is_valid()) waiting.push_back(e.function.get());
    }
  }
  return led_to;
}

// Notes when a gradient is complete: eager's accumulate in that order, and call hooks.
class Arrival final : public autograd::FunctionPreHook {
 public:
  Arrival(std::vector<size_t>& arrived, size_t which) : arrived_(arrived), which_(which) {}
  autograd::variable_list operator()(const autograd::variable_list& gradients) override {
    if (std::find(arrived_.begin(), arrived_.end(), which_) == arrived_.end()) arrived_.push_back(which_);
    return gradients;
  }

 private:
  std::vector<size_t>& arrived_;
  size_t which_;
};

// Roots stand for several tangents each where results are wrappers: what is known by root, by tangent.
std::vector<bool> by_tangent(const std::vector<bool>& roots, const std::vector<size_t>& root_of) {
  std::vector<bool> out;
  for (size_t r : root_of) out.push_back(roots[r]);
  return out;
}

TensorType dense(TensorType t) {
  t.offset = 0;
  t.wrapped_number = false;
  if (ops::is_dense(t.sizes, t.strides)) return t;
  sym::Expr stride = 1;
  for (size_t d = t.rank(); d-- > 0;) {
    t.strides[d] = stride;
    stride = stride * t.sizes[d];
  }
  return t;
}

// Tangents are in the order of their results (whoever runs the two halves takes them so).
void number_by_results(graph::Joint& joint, std::vector<size_t>& root_of) {
  const std::vector<int32_t> tangents = std::exchange(joint.tangents, {});
  const std::vector<size_t> roots = std::exchange(root_of, {});
  for (graph::Joint::Result& r : joint.results) {
    if (r.tangent < 0) continue;
    const auto was = static_cast<size_t>(std::exchange(r.tangent, static_cast<int32_t>(joint.tangents.size())));
    joint.tangents.push_back(tangents[was]);
    root_of.push_back(roots[was]);
  }
}

using ResultsByEdge = std::unordered_map<autograd::Edge, int32_t>;

// Those that a gradient at `node` comes to first.
std::vector<int32_t> nearest(const autograd::Node* node, const ResultsByEdge& results) {
  std::vector<int32_t> out;
  std::unordered_set<const autograd::Node*> seen;
  std::vector<const autograd::Node*> left{node};
  while (!left.empty()) {
    node = left.back();
    left.pop_back();
    if (!seen.insert(node).second) continue;
    for (const autograd::Edge& e : node->next_edges()) {
      if (!e.is_valid()) continue;
      const auto result = results.find(e);
      if (result == results.end())
        left.push_back(e.function.get());
      else if (std::ranges::find(out, result->second) == out.end())
        out.push_back(result->second);
    }
  }
  return out;
}

// graph::Joint::Result::follows. edges: of the results `roots`, then others.
void note_following(graph::Joint& joint, const std::vector<at::Tensor>& outputs, const autograd::edge_list& edges,
                    const std::vector<size_t>& roots) {
  ResultsByEdge results;
  for (size_t k = 0; k < roots.size(); ++k) results.emplace(edges[k], static_cast<int32_t>(roots[k]));
  const auto is_view = [&](int32_t i) {
    const graph::Joint::Result& r = joint.results[i];
    return r.requires_grad && r.tangent < 0 && r.view_of_input < 0;
  };
  for (size_t i = 0; i < outputs.size(); ++i)
    if (is_view(static_cast<int32_t>(i)))
      results.emplace(autograd::impl::gradient_edge(outputs[i]), static_cast<int32_t>(i));
  if (results.size() < 2) return;
  // Views that autograd does not take for parts of the result that stands for their memory are not told apart from it.
  const auto is_apart = [&](const ResultsByEdge::value_type& view) {
    if (!is_view(view.second)) return false;
    const std::vector<int32_t> next = nearest(view.first.function.get(), results);
    return next.size() != 1 || trace_impl(outputs[next[0]])->storage_id != trace_impl(outputs[view.second])->storage_id;
  };
  while (std::erase_if(results, is_apart) != 0) {
  }
  for (const auto& [edge, i] : results) {
    std::vector<int32_t>& follows = joint.results[i].follows;
    follows = nearest(edge.function.get(), results);
    // The gradient of as_strided, which makes views of results, is spread over elements that share memory.
    if (is_view(i) && !graph::is_writable_layout(aten::type_of(outputs[follows[0]])))
      throw Declined("training: a result is a view of another one whose elements share memory");
  }
}

// Eager runs a checkpoint twice: what it wrote, beyond memory of its own, was written twice.
void check_checkpoints(const graph::Graph& g) {
  std::vector<int32_t> made_in;  // by storage
  const auto maker = [&](int32_t storage) -> int32_t& {
    if (made_in.size() <= static_cast<size_t>(storage)) made_in.resize(storage + 1, -2);
    return made_in[storage];
  };
  for (const graph::Input& in : g.inputs)
    if (g.values[in.value].storage >= 0) maker(g.values[in.value].storage) = -1;
  for (const graph::Node& n : g.nodes) {
    const int32_t here = graph::checkpoint_of(g, n);
    for (ValueId v : n.outs)
      if (v != kNoValue && g.values[v].storage >= 0)
        if (int32_t& made = maker(g.values[v].storage); made == -2) made = here;
    if (here < 0) continue;
    if (n.op->effectful && !n.op->check) throw Declined("a checkpoint has an effect: it would have it twice");
    graph::for_each_written(n, [&](ValueId v) {
      const int32_t s = g.values[v].storage;
      if (s < 0 || maker(s) != here)
        throw Declined("a checkpoint writes a tensor from before it: it would do so twice");
    });
  }
}

std::string first_line(const char* text) {
  const std::string s = text;
  return s.substr(0, s.find('\n'));
}

}  // namespace

at::Tensor Recorder::add_tangent(const at::Tensor& like, int32_t& number) {
  number = static_cast<int32_t>(graph_.inputs.size());
  TensorType type = dense(type_of(like));
  const ValueId value = graph_.add_input(std::move(type), graph::InputKind::kTangent, "tangent");
  return fresh(value);
}

// Autograd saw the program write it.
bool Recorder::is_rewritten(const InputRecord& in) const {
  const at::Tensor trace(in.impl);
  return trace.requires_grad() && trace.grad_fn() != in.history;
}

// Results that the caller does not see: the new content of inputs that autograd must see written, and memory that
// several results are parts of.
void Recorder::find_extra_results(graph::Joint& joint, const std::vector<PyObject*>& objects) {
  for (const InputRecord& in : inputs_) {
    if (!is_rewritten(in)) continue;
    for (const InputRecord& other : inputs_)
      if (other.number != in.number && other.impl->storage_id == in.impl->storage_id)
        throw Declined("training: an input is written in place that shares memory with another");
    rewritten_.push_back(in.number);
    joint.extra.push_back(in.number);
    extra_.emplace_back(in.impl);
  }
  std::map<int32_t, std::vector<const at::Tensor*>> sharing;
  for (PyObject* o : objects)
    if (const TraceImpl* impl = trace_impl(THPVariable_Unpack(o)))
      sharing[impl->storage_id].push_back(&THPVariable_Unpack(o));
  for (const auto& [storage, tensors] : sharing) {
    if (std::any_of(inputs_.begin(), inputs_.end(),
                    [&](const InputRecord& in) { return in.impl->storage_id == storage; }))
      continue;
    if (tensors.size() == 1) continue;
    const c10::TensorImpl* base = nullptr;
    bool one_base = true, any = false;
    for (const at::Tensor* t : tensors) {
      if (!t->requires_grad()) continue;
      const c10::TensorImpl* followed = followed_base(*t);
      one_base &= !any || followed == base;
      base = followed;
      any = true;
    }
    if (!any || !one_base || !base) continue;
    const at::Tensor whole = tensor_of(base);
    const bool there = std::ranges::any_of(tensors, [&](const at::Tensor* t) { return is_same_result(*t, whole); });
    if (there) continue;
    joint.extra.push_back(-1);
    extra_.push_back(whole);
  }
}

void Recorder::check_trainable() const {
  for (const InputRecord& in : inputs_) {
    const at::Tensor trace(in.impl);
    if (has_hooks(trace)) throw Declined("training: a hook or retain_grad on an input");
    // Eager's backward would read what autograd saved of it in the new memory.
    if (in.impl->data_written) throw Declined("training: .data of an input is written");
  }
  for (const WrapperRecord& w : wrappers_)
    if (has_hooks(w.trace)) throw Declined("training: a hook or retain_grad on an input");
  check_checkpoints(graph_);
  // Their formulas check gradients for being well defined; without values they do not.
  for (const graph::Node& n : graph_.nodes)
    if (op::is_any_of(n.op->name, {op::_linalg_eigh, op::linalg_eig, op::_linalg_svd}) &&
        std::any_of(n.outs.begin(), n.outs.end(),
                    [&](ValueId v) { return v != kNoValue && info(graph_.type(v).dtype).complex; }))
      throw Declined("training: complex eigenvectors, whose gradient may be ill-defined");
}

void Recorder::describe_results(graph::Joint& joint, const std::vector<at::Tensor>& outputs, size_t given) const {
  std::vector<bool> of_input(storages_.size());
  for (const InputRecord& in : inputs_) of_input[in.impl->storage_id] = true;
  joint.results.resize(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor& t = outputs[i];
    const TraceImpl* impl = trace_impl(t);
    if (!impl) throw Declined("an output is not a tensor of this trace");
    graph::Joint::Result& r = joint.results[i];
    r.requires_grad = t.requires_grad();
    if (!r.requires_grad) continue;
    const auto* view = autograd::impl::get_view_autograd_meta(t);
    r.one_of_several =
        view && view->has_bw_view() && view->get_creation_meta() == autograd::CreationMeta::MULTI_OUTPUT_NODE;
    if (t.retains_grad()) throw Declined("training: retain_grad on a result");
    if (t.is_leaf()) throw Declined("training: a result is a new leaf that requires grad");
    if (!of_input[impl->storage_id] || i >= given) continue;
    if (is_given_back(t)) continue;
    const TraceImpl* base = viewed_input(t);
    if (!base) throw Declined("training: a result is memory of an input and not a view of it");
    // (Numbers are inputs of the graph, too, and have no record.)
    const auto viewed =
        std::find_if(inputs_.begin(), inputs_.end(), [&](const InputRecord& in) { return in.number == base->input; });
    if (viewed == inputs_.end() || reaches_outside(t, at::Tensor(viewed->impl)))
      throw Declined("training: a result is as_strided of a view of an input");
    r.view_of_input = base->input;
  }
}

// Results that lead into the backward.
std::vector<size_t> Recorder::find_roots(const graph::Joint& joint, const std::vector<at::Tensor>& outputs,
                                         size_t given) const {
  // Results that share memory: one of them leads into the backward, the others are its views.
  std::vector<size_t> roots;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const TraceImpl* impl = trace_impl(outputs[i]);
    if (!joint.results[i].requires_grad || joint.results[i].view_of_input >= 0) continue;
    bool shared = false;
    const bool content = i >= given && joint.extra[i - given] >= 0;  // is copied when all is done
    const bool alone = content || is_given_back(outputs[i]);
    for (size_t k = 0; k < outputs.size() && !alone; ++k)
      shared |= k != i && trace_impl(outputs[k])->storage_id == impl->storage_id;
    if (!shared) {
      roots.push_back(i);
      continue;
    }
    // What they are views of (find_extra_results), else the first of those that cover the most; functionalize finds the
    // same container or the partitioner declines.
    size_t root = i;
    const c10::TensorImpl* base = followed_base(outputs[i]);
    const auto is_base = [&](size_t k) { return base && is_same_result(outputs[k], tensor_of(base)); };
    for (size_t k = 0; k < outputs.size() && !is_base(root); ++k) {
      if (!joint.results[k].requires_grad || trace_impl(outputs[k])->storage_id != impl->storage_id) continue;
      const sym::Expr its = type_of(outputs[k]).numel(), largest = type_of(outputs[root]).numel();
      if (is_base(k) || sym::known_lt(largest, its) || (k < root && sym::known_eq(largest, its))) root = k;
    }
    if (root == i) {
      roots.push_back(i);
      continue;
    }
    if (!follows(outputs[i], outputs[root]))
      throw Declined("training: results share memory in a way that autograd does not follow");
    if (reaches_outside(outputs[i], outputs[root])) throw Declined("training: a result is as_strided of a view");
  }
  return roots;
}

void Recorder::add_end(Ends& ends, PyObject* object, int32_t number, const at::Tensor& trace,
                       const compat::NodePtr<autograd::Node>& history) const {
  autograd::Edge edge;
  if (history) {
    edge = autograd::Edge(history, 0);
  } else if (auto accumulator = autograd::impl::try_get_grad_accumulator(trace)) {
    edge = autograd::Edge(std::move(accumulator), 0);
  }
  if (!edge.is_valid()) return;  // the outputs do not depend on it
  auto arrival = std::make_unique<Arrival>(ends.arrived, ends.edges.size());
  if (history)
    history->add_tensor_pre_hook(std::move(arrival));
  else
    autograd::impl::add_hook(trace, std::move(arrival));
  ends.edges.push_back(std::move(edge));
  ends.of.emplace_back(object, number);
}

// In made_subclasses_: a class took a call (subclass.cpp).
static constexpr const c10::TensorImpl* kSomeClass = nullptr;

// Tangents become inputs of the graph, what arrives at its inputs gradients.
void Recorder::run_engine(graph::Joint& joint, const std::vector<at::Tensor>& outputs, const std::vector<size_t>& roots,
                          std::vector<WrappedResult>& wrapped) {
  autograd::edge_list edges;
  autograd::variable_list tangents;
  std::vector<size_t> root_of;  // by tangent of the graph
  for (size_t i : roots) {
    int32_t number = -1;
    tangents.push_back(add_tangent(outputs[i], number));
    joint.results[i].tangent = static_cast<int32_t>(joint.tangents.size());
    joint.tangents.push_back(number);
    root_of.push_back(edges.size());
    edges.push_back(autograd::impl::gradient_edge(outputs[i]));
  }
  note_following(joint, outputs, edges, roots);
  for (WrappedResult& w : wrapped) {
    add_wrapped_tangents(joint, w, outputs);
    tangents.push_back(THPVariable_Unpack(w.tangent));
    root_of.resize(joint.tangents.size(), edges.size());
    edges.push_back(autograd::impl::gradient_edge(THPVariable_Unpack(w.wrapper)));
  }
  number_by_results(joint, root_of);
  Ends ends;
  for (const InputRecord& in : inputs_)
    if (in.requires_grad) add_end(ends, in.object, in.number, at::Tensor(in.impl), in.history);
  for (const WrapperRecord& w : wrappers_)
    if (w.trace.requires_grad()) add_end(ends, w.object, -1, w.trace, w.history);
  check_ways_to_other_leaves(edges, ends.edges);
  autograd::variable_list gradients(ends.edges.size());
  if (!edges.empty() && !ends.edges.empty()) {
    SingleThreaded single;
    // (Formulas take the general way for tensors of such classes as it is, and these would see the mode.)
    std::optional<WithoutValues> valueless;
    const bool classes = compat::kClassesFirst ? !wrappers_.empty() || !wrapped.empty() || !made_subclasses_.empty()
                                               : made_subclasses_.contains(kSomeClass);
    if (!classes) valueless.emplace();
    const aten::OpenQuestions open;
    in_backward_ = true;
    if (root_of.size() > 1) {
      joint.zeros = wants_zeros(edges);
      led_to_ = find_led_to(edges);
      for (auto& [node, from] : led_to_) from = by_tangent(from, root_of);
    }
    try {
      pybind11::gil_scoped_release no_gil;
      gradients =
          autograd::Engine::get_default_engine().execute(edges, tangents, /*keep_graph=*/false,
                                                         /*create_graph=*/false, /*accumulate_grad=*/false, ends.edges);
    } catch (python_error& e) {
      if (says_no_memory(e)) throw std::bad_alloc();
      if (declined_) throw Declined("training: " + reason_);
      std::string text = e.type ? reinterpret_cast<PyTypeObject*>(e.type)->tp_name : "an error";
      const std::unique_ptr<PyObject, decltype(&Py_DecRef)> said(e.value ? PyObject_Str(e.value) : nullptr, Py_DecRef);
      if (const char* utf8 = said ? PyUnicode_AsUTF8(said.get()) : nullptr) text += ": " + first_line(utf8);
      PyErr_Clear();
      throw Declined("training: the backward raised " + text);
    } catch (const std::exception& e) {
      if (says_no_memory(e)) throw std::bad_alloc();
      if (declined_) throw Declined("training: " + reason_);
      throw Declined("training: the backward raised " + first_line(e.what()));
    }
    in_backward_ = false;
    led_to_.clear();
    if (declined_) throw Declined("training: " + reason_);
  }
  for (size_t i : ends.arrived)
    if (gradients[i].defined()) take_gradient(joint, ends.of[i].first, ends.of[i].second, gradients[i]);
}

void Recorder::check_backward(size_t first_node) {
  for (size_t i = first_node; i < graph_.nodes.size(); ++i)
    if (graph_.nodes[i].op->nondeterministic) throw Declined("training: the backward runs " + graph_.nodes[i].op->name);
  // Eager's kernels refuse operands of two types in the backward only; ours would not.
  for (size_t i = first_node; i < graph_.nodes.size(); ++i) {
    const graph::Node& n = graph_.nodes[i];
    if (n.op->name != op::mse_loss_backward && n.op->name != op::huber_loss_backward) continue;
    const Ref *self = std::get_if<Ref>(&n.args[1]), *target = std::get_if<Ref>(&n.args[2]);
    if (self && target && graph_.type(self->id).dtype != graph_.type(target->id).dtype)
      throw Declined("training: a loss of two types, which eager's backward refuses");
  }
  for (const graph::Node& n : graph_.nodes) {  // how large its workspace is only the library knows
    if (n.op->name != op::mkldnn_rnn_layer || n.outs.back() == kNoValue) continue;
    TensorType& workspace = graph_.values[n.outs.back()].type;
    workspace.opaque = true;
    workspace.strides.clear();
  }
}

namespace {

// A gradient that comes of plain results and of wrappers is of a class in eager only where the latter have gradients.
// (Those of jagged tensors always are.)
void check_classes(const graph::Joint& joint, const std::vector<WrappedResult>& wrapped,
                   const std::vector<WrappedGradient>& gradients) {
  std::vector<bool> of_wrapper(joint.tangents.size());
  for (const WrappedResult& w : wrapped)
    for (int32_t i : w.outputs)
      if (i >= 0) of_wrapper[static_cast<size_t>(joint.results[static_cast<size_t>(i)].tangent)] = true;
  for (const WrappedGradient& g : gradients) {
    if (THPVariable_Unpack(g.gradient).is_nested()) continue;
    bool plain = false, other = false;
    for (size_t i = 0; i < joint.gradients.size(); ++i)
      if (std::find(g.inputs.begin(), g.inputs.end(), joint.gradients[i]) != g.inputs.end())
        for (int32_t t : joint.depends[i]) (of_wrapper[static_cast<size_t>(t)] ? other : plain) = true;
    if (plain && other) throw Declined("training: a gradient is of a tensor subclass where some results are used");
  }
}

}  // namespace

// Before the backward is recorded. What an operator makes of values that require grad does so, too.
bool Recorder::is_followed() const {
  std::vector<bool> requires_grad(graph_.values.size());
  for (const InputRecord& in : inputs_)
    requires_grad[graph_.inputs[static_cast<size_t>(in.number)].value] = in.impl->requires_grad();
  for (const graph::Node& n : graph_.nodes) {
    bool any = false;
    if (n.op->kind != ops::OpKind::kFactory)
      for (const Arg& a : n.args) graph::for_each_ref(a, [&](ValueId v) { any = any || requires_grad[v]; });
    for (ValueId v : n.outs)
      if (v != kNoValue)
        requires_grad[v] = any && (info(graph_.type(v).dtype).floating || info(graph_.type(v).dtype).complex);
  }
  for (size_t v = 0; v < std::min(requires_grad.size(), read_plainly_.size()); ++v)
    if (requires_grad[v] && read_plainly_[v]) return false;
  return followed_;
}

graph::Joint Recorder::add_backward(const std::vector<PyObject*>& objects, std::vector<WrappedResult>& wrapped) {
  const sym::AskScope ask(sizes_->empty() ? nullptr : sizes_.get());
  graph::Joint joint;
  count_versions();
  for (PyObject* o : objects) joint.present |= THPVariable_Unpack(o).requires_grad();
  for (const InputRecord& in : inputs_) joint.present |= is_rewritten(in);
  joint.present |= !wrapped.empty();
  if (!joint.present) return joint;
  if (declined_) throw Declined(reason_);
  check_trainable();
  find_extra_results(joint, objects);
  std::vector<at::Tensor> outputs;
  for (PyObject* o : objects) outputs.push_back(THPVariable_Unpack(o));
  outputs.insert(outputs.end(), extra_.begin(), extra_.end());
  joint.followed = is_followed() && !lead_through_program(outputs);
  describe_results(joint, outputs, objects.size());
  check_wrapped(wrapped, outputs);
  const std::vector<size_t> roots = find_roots(joint, outputs, objects.size());
  const size_t first_node = graph_.nodes.size(), first_value = graph_.values.size();
  run_engine(joint, outputs, roots, wrapped);
  check_backward(first_node);
  note_saved(joint, first_node, first_value, outputs);
  note_dependences(joint, first_node);
  check_classes(joint, wrapped, wrapped_gradients_);
  return joint;
}

// What nodes of the backward read of the forward is what eager's autograd saved, memory for memory.
void Recorder::note_saved(graph::Joint& joint, size_t first_node, size_t first_value,
                          const std::vector<at::Tensor>& outputs) const {
  std::vector<bool> saved(storages_.size()), made_again(storages_.size());
  for (size_t i = first_node; i < graph_.nodes.size(); ++i)
    for (const Arg& a : graph_.nodes[i].args)
      graph::for_each_ref(a, [&](ValueId v) {
        const int32_t s = graph_.values[v].storage;
        if (static_cast<size_t>(v) < first_value && s >= 0) saved[s] = true;
      });
  // What a checkpoint made is made again.
  for (size_t i = 0; i < first_node; ++i)
    if (const graph::Node& n = graph_.nodes[i]; graph::checkpoint_of(graph_, n) >= 0) {
      for (ValueId v : n.outs)
        if (v != kNoValue && graph_.values[v].storage >= 0) made_again[graph_.values[v].storage] = true;
      // Its second run reads parameters as they are then.
      for (const Arg& a : n.args)
        graph::for_each_ref(a, [&](ValueId v) {
          if (graph_.values[v].storage >= 0) saved[graph_.values[v].storage] = true;
        });
    }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const int32_t s = trace_impl(outputs[i])->storage_id;
    joint.results[i].saved = saved[s] && !made_again[s];
  }
  joint.saved_inputs.assign(graph_.inputs.size(), false);
  for (const InputRecord& in : inputs_) joint.saved_inputs[in.number] = saved[in.impl->storage_id];
}

void Recorder::note_dependences(graph::Joint& joint, size_t first_node) const {
  std::vector<std::vector<bool>> reach(storages_.size());
  const size_t count = joint.tangents.size();
  const auto storage_of = [&](ValueId v) { return v == kNoValue ? -1 : graph_.values[v].storage; };
  for (size_t t = 0; t < count; ++t) {
    auto& r = reach[storage_of(graph_.inputs[joint.tangents[t]].value)];
    r.resize(count);
    r[t] = true;
  }
  const auto merge = [&](std::vector<bool>& into, const std::vector<bool>& from) {
    if (from.empty()) return;
    into.resize(count);
    for (size_t t = 0; t < count; ++t)
      if (from[t]) into[t] = true;
  };
  for (size_t i = first_node; i < graph_.nodes.size(); ++i) {
    const graph::Node& n = graph_.nodes[i];
    std::vector<bool> all;
    if (const auto made = constants_from_.find(i); made != constants_from_.end()) all = made->second;
    for (const Arg& a : n.args)
      graph::for_each_ref(a, [&](ValueId v) {
        if (storage_of(v) >= 0) merge(all, reach[storage_of(v)]);
      });
    // The partitioner tells the halves apart by what follows from a gradient. (What the backward takes for granted of
    // sizes, the forward checks.)
    if (n.op->effectful && n.op->name != op::check_sizes && std::find(all.begin(), all.end(), true) == all.end())
      throw Declined("training: the backward runs " + n.op->name + ", which has an effect and depends on no gradient");
    for (ValueId v : n.outs)
      if (storage_of(v) >= 0) merge(reach[storage_of(v)], all);
    graph::for_each_written(n, [&](ValueId v) {
      if (storage_of(v) >= 0) merge(reach[storage_of(v)], all);
    });
  }
  for (const at::Tensor& g : gradients_) {
    const std::vector<bool>& r = reach[trace_impl(g)->storage_id];
    std::vector<int32_t>& out = joint.depends.emplace_back();
    for (size_t t = 0; t < r.size(); ++t)
      if (r[t]) out.push_back(static_cast<int32_t>(t));
  }
  share_dependences(joint);
}

void Recorder::add_extra_outputs() {
  static const ops::OpRow* clone = ops::find(op::clone);
  for (const at::Tensor& t : extra_) {
    const TraceImpl* impl = trace_impl(t);
    TensorType type = aten::type_of(t);
    ValueId value = impl->value;
    if (impl->input >= 0) {
      type.offset = 0;
      value = graph_.add_value(type, new_storage(make_storage(0)));
      graph_.nodes.push_back({.op = clone, .args = {Ref{impl->value}, MemoryFormat::kPreserve}, .outs = {value}});
    }
    graph_.outputs.push_back({.value = value, .type = std::move(type)});
  }
  extra_.clear();
}

// Each gradient is a tensor of its own, whatever it shares memory with in the trace.
void Recorder::add_gradient_outputs() {
  static const ops::OpRow* clone = ops::find(op::clone);
  for (const at::Tensor& g : gradients_) {
    TensorType type = type_of(g);
    type.offset = 0;
    type.wrapped_number = false;
    const ValueId value = graph_.add_value(type, new_storage(make_storage(0)));
    graph_.nodes.push_back(
        {.op = clone, .args = {Ref{trace_impl(g)->value}, MemoryFormat::kPreserve}, .outs = {value}});
    graph_.outputs.push_back({.value = value, .type = std::move(type)});
  }
  gradients_.clear();
}

}  // namespace flashover::trace
