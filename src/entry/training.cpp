// The autograd node of a compiled forward: what is saved, and how its backward is called.
#include "entry/training.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <queue>
#include <unordered_set>

#include "base/check.h"
#include "compat/autograd.h"
#include "entry/batched_gradients.h"
#include "entry/log.h"
#include "run/run.h"
#include "torch/convert.h"

namespace flashover::entry {
namespace {

namespace autograd = torch::autograd;
using graph::Output;
using graph::PartitionSignature;
using Source = PartitionSignature::BackwardInput::Kind;

struct Geometry {
  at::ScalarType dtype;
  at::Device device;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;  // of a view, from its base
};
// Of one call: sizes may be symbols.
struct Layouts {
  std::vector<Geometry> backward_inputs, results;
};
// Symbol `symbol` is size `dim` of a forward input, or where it follows from data of what the forward made.
struct SavedSize {
  int symbol;
  bool made;
  size_t tensor;
  int64_t dim;
  bool stride;  // of it, not the size
};
void add_sources(const Sizes& sizes, bool made, size_t tensor, std::vector<SavedSize>& out, bool strides = false) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    const auto symbol = sym::size_symbol_index(sizes[d]);
    if (!made && sym::has_data_size(sizes[d])) continue;  // a tangent's, among the graph's inputs
    if (symbol && std::ranges::none_of(out, [&](const SavedSize& s) { return s.symbol == *symbol; }))
      out.push_back({*symbol, made, tensor, static_cast<int64_t>(d), strides});
  }
}
// What has no source is found before any call has run.
void check_sources(const Sizes& sizes, const std::vector<SavedSize>& sources) {
  std::vector<sym::Expr> variables;
  for (sym::Expr e : sizes) sym::collect_vars(e, variables);
  for (sym::Expr v : variables)
    if (std::ranges::none_of(sources, [&](const SavedSize& s) { return s.symbol == sym::size_symbol_index(v); }))
      throw Declined("training: nothing tells the size " + v.str());
}
std::vector<SavedSize> size_sources(const std::vector<TensorType>& inputs, const PartitionSignature& p,
                                    const std::vector<TensorType>& backward_types) {
  std::vector<SavedSize> out;
  for (size_t i = 0; i < inputs.size(); ++i) add_sources(inputs[i].sizes, false, i, out);
  for (size_t i = 0; i < inputs.size(); ++i) add_sources(inputs[i].strides, false, i, out, true);
  for (size_t i = 0; i < backward_types.size(); ++i)
    if (p.backward_inputs[i].kind == Source::kSaved)
      add_sources(backward_types[i].sizes, true, static_cast<size_t>(p.backward_inputs[i].index), out);
  for (const PartitionSignature::Result& r : p.results)
    if (r.kind == Output::Kind::kValue) add_sources(r.sizes, true, static_cast<size_t>(r.index), out);
  for (const TensorType& t : backward_types) {
    check_sources(t.sizes, out);
    check_sources(t.strides, out);
  }
  for (const PartitionSignature::Result& r : p.results) {
    check_sources(r.sizes, out);
    check_sources(r.strides, out);
    check_sources({r.offset}, out);
  }
  return out;
}

int64_t stride_that_counts(int64_t size, int64_t stride) { return size > 1 ? stride : 0; }

// Where a saved leaf lay. Autograd saves a leaf as the tensor object that it is, and `p.data = t` gives that other
// memory without a new version: the backward would compute with values that its forward never saw.
class Spot {
 public:
  Spot() = default;
  explicit Spot(const at::Tensor& t) {
    if (!t.is_leaf() || !t.has_storage()) return;
    leaf_ = t.unsafeGetTensorImpl();
    storage_ = t.storage();
    offset_ = t.storage_offset();
  }
  // What was saved, given what came back for it (from a hook perhaps: any tensor), as the backward was compiled for it.
  at::Tensor restore(at::Tensor now, const Geometry& g) const {
    if (now.unsafeGetTensorImpl() != leaf_ || holds(now, g)) return now;
    const auto options = at::TensorOptions().dtype(g.dtype).device(g.device);
    at::AutoDispatchBelowADInplaceOrView below;
    return at::empty({0}, options).set_(storage_, offset_, g.sizes, g.strides);
  }

 private:
  bool holds(const at::Tensor& t, const Geometry& g) const {
    if (!t.has_storage() || t.storage().unsafeGetStorageImpl() != storage_.unsafeGetStorageImpl()) return false;
    if (t.storage_offset() != offset_ || t.scalar_type() != g.dtype || t.sizes() != at::IntArrayRef(g.sizes))
      return false;
    for (size_t d = 0; d < g.sizes.size(); ++d)
      if (stride_that_counts(g.sizes[d], t.stride(static_cast<int64_t>(d))) !=
          stride_that_counts(g.sizes[d], g.strides[d]))
        return false;
    return true;
  }

  const c10::TensorImpl* leaf_ = nullptr;  // compared, never followed
  c10::Storage storage_;
  int64_t offset_ = 0;
};

bool reached(const PartitionSignature::Gradient& g, const std::vector<bool>& given) {
  return g.depends.empty() || std::any_of(g.depends.begin(), g.depends.end(), [&](int32_t t) { return given[t]; });
}

// What forward and backward of one compiled graph share; outlives both.
struct TrainingState {
  PartitionSignature signature;
  std::vector<TensorType> backward_types;
  std::vector<SavedSize> size_sources;
  Step forward, backward;
  Specialize specialize;
  VersionSteps version_steps;
  std::shared_ptr<const Replay> replay;
  mutable std::atomic<bool> compared = false;  // the replay's gradients with the backward's: they were asked for
  mutable std::atomic<int> calls = 0;          // the first ones (CompiledBackward::note_inputs)
  mutable std::mutex mutex;
  mutable std::map<std::vector<bool>, std::shared_ptr<const Variant>> variants;  // by tangents that are given
  mutable std::vector<int64_t> last_sizes;                                       // by source
  mutable std::shared_ptr<const Layouts> last_layouts;

  // made_tensors: by the forward.
  std::shared_ptr<const Layouts> layouts(const at::Tensor* inputs, const std::vector<at::Tensor>& made_tensors) const {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto size_of = [&](const SavedSize& s) {
      const at::Tensor& of = s.made ? made_tensors[s.tensor] : inputs[s.tensor];
      return s.stride ? of.stride(s.dim) : of.size(s.dim);
    };
    bool same = last_layouts != nullptr;
    for (size_t i = 0; same && i < size_sources.size(); ++i) same = last_sizes[i] == size_of(size_sources[i]);
    if (same) return last_layouts;
    std::vector<int64_t> sizes;
    for (const SavedSize& s : size_sources) sizes.push_back(size_of(s));
    const auto value = [&](sym::Expr variable) {
      const auto symbol = sym::size_symbol_index(variable);
      for (size_t i = 0; i < sizes.size(); ++i)
        if (symbol && size_sources[i].symbol == *symbol) return sizes[i];
      throw InternalError("training: no value of " + variable.str());
    };
    const auto numbers = [&](const Sizes& of) {
      std::vector<int64_t> out;
      for (sym::Expr e : of) out.push_back(sym::evaluate(e, value));
      return out;
    };
    auto made = std::make_shared<Layouts>();
    for (const TensorType& t : backward_types)
      made->backward_inputs.push_back(
          {aten::to_aten(t.dtype), aten::to_aten(t.device), numbers(t.sizes), numbers(t.strides)});
    for (const PartitionSignature::Result& r : signature.results) {
      const std::vector<int64_t> now = numbers(r.sizes);
      const bool empty = std::ranges::find(now, 0) != now.end();
      TensorType type;
      type.sizes = r.sizes, type.strides = r.strides;
      const std::vector<int64_t> strides = numbers(empty ? strides_where_empty(type) : r.strides);
      made->results.push_back({at::kFloat, at::kCPU, now, strides, sym::evaluate(r.offset, value)});
    }
    last_sizes = std::move(sizes);
    return last_layouts = std::move(made);
  }

  // Null: there is none.
  std::shared_ptr<const Variant> variant(const std::vector<bool>& given) const {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto [it, fresh] = variants.try_emplace(given);
    if (!fresh) return it->second;
    std::vector<bool> tangent, absent;
    for (const PartitionSignature::BackwardInput& in : signature.backward_inputs) {
      tangent.push_back(in.kind == Source::kTangent);
      absent.push_back(tangent.back() && !given[in.index]);
    }
    try {
      auto made = std::make_shared<const Variant>(specialize(tangent, absent));
      // A gradient that is always zero (of rounding, say) leaves no trace in the graph: the whole backward gives it.
      const auto gives = [&](const PartitionSignature::Gradient& g) {
        return g.tangent >= 0 || !reached(g, given) ||
               std::find(made->outputs.begin(), made->outputs.end(), g.output) != made->outputs.end();
      };
      if (std::all_of(signature.gradients.begin(), signature.gradients.end(), gives)) it->second = std::move(made);
    } catch (const std::bad_alloc&) {
      variants.erase(it);  // the whole backward serves this time; the next one tries again
      return nullptr;
    } catch (const std::exception& e) {
      log(Topic::kBreaks, std::string("a backward without unused results: ") + e.what());
    }
    return it->second;
  }
  mutable std::atomic<const char*> broken{nullptr};  // why calls must not be served any more
};

// As Python's error, which autograd's engine hands on to the thread that asked for the gradients as it is: it makes a
// RuntimeError of all other exceptions.
[[noreturn]] void throw_memory_error() {
  const PyGILState_STATE gil = PyGILState_Ensure();
  PyErr_NoMemory();
  python_error error;
  error.persist();
  PyGILState_Release(gil);
  throw error;
}

class CompiledBackward;
bool is_result_node(const autograd::Node& node, const CompiledBackward& call);

class CompiledBackward final : public autograd::Node {
 public:
  CompiledBackward(std::shared_ptr<const TrainingState> state, std::shared_ptr<const Layouts> layouts)
      : state_(std::move(state)), layouts_(std::move(layouts)) {}
  std::string name() const override { return "CompiledBackward"; }

  void save(const at::Tensor* inputs, size_t count, const std::vector<at::Tensor>& results,
            const std::vector<at::Tensor>& made) {
    if (state_->replay->may_be_possible()) note_inputs(inputs, count);
    for (const PartitionSignature::BackwardInput& in : state_->signature.backward_inputs) {
      spots_.emplace_back();
      switch (in.kind) {
        case Source::kInput:
          saved_.emplace_back(inputs[in.index], false);
          spots_.back() = Spot(inputs[in.index]);
          break;
        case Source::kResult:
          saved_.emplace_back(results[in.index], is_mine(results[in.index]));
          spots_.back() = Spot(results[in.index]);
          break;
        case Source::kSaved:
          saved_.emplace_back(made[in.index], false);
          break;
        case Source::kTangent:
          saved_.emplace_back();
          break;
      }
    }
  }

  autograd::variable_list apply(autograd::variable_list&& tangents) override {
    try {
      autograd::variable_list of_results = take_apart(tangents);
      autograd::variable_list gradients = whole(std::move(tangents));
      if (of_results.empty()) return gradients;
      of_results = apart(of_results);
      for (size_t i = 0; i < gradients.size(); ++i)
        if (!gradients[i].defined())
          gradients[i] = std::move(of_results[i]);
        else if (of_results[i].defined())
          gradients[i] = gradients[i].add(of_results[i]);
      return gradients;
    } catch (const std::bad_alloc&) {
      throw_memory_error();
    }
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (partial_) return;
    forget();
  }

  // What the gradient of a result gives to the results that it passes (Replay::follows), which are asked for in the
  // backward that runs now. This node takes it as that of the result alone then.
  autograd::variable_list gradients_of_results(size_t result, const at::Tensor& gradient) {
    const Replay::Apart replayed = results_apart(inputs_again(kOfResults));
    autograd::edge_list leaves;
    std::vector<size_t> of;
    for (size_t i = 0; i < replayed.leaves.size(); ++i) {
      if (!replayed.leaves[i].defined()) continue;
      leaves.push_back(autograd::impl::gradient_edge(replayed.leaves[i]));
      of.push_back(i);
    }
    const std::vector<size_t>& passed = state_->replay->follows()[result];
    const auto tangent = static_cast<size_t>(state_->signature.results[result].tangent);
    autograd::variable_list found(passed.size()), made(leaves.size());
    if (replayed.results[tangent].requires_grad())
      made = autograd::Engine::get_default_engine().execute({autograd::impl::gradient_edge(replayed.results[tangent])},
                                                            {gradient}, true, false, false, leaves);
    for (size_t i = 0; i < made.size(); ++i) {
      const auto at = std::ranges::find(passed, of[i]);
      TORCH_CHECK(made[i].defined() == (at != passed.end()), kOfResults, "results ", of[i], " and ", result,
                  " cannot be told apart", kUncompiled);
      if (at != passed.end()) found[static_cast<size_t>(at - passed.begin())] = std::move(made[i]);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    apart_in_.resize(replayed.results.size(), -1);
    apart_in_[tangent] = autograd::get_current_graph_task_id();
    return found;
  }

  // Why gradients of results cannot be told; empty: they can.
  const std::string& impossible() const { return state_->replay->impossible(); }

  static constexpr const char* kOfResults =
      "flashover: the gradient of a result of a compiled function is asked for (a hook, retain_grad or autograd.grad) "
      "through another result of it, for which its forward must be computed again: ";

 private:
  static constexpr const char* kAnotherGradient =
      "flashover: the gradient of a compiled function was asked for with create_graph=True, and its forward computed "
      "again leads to another gradient than its backward: a hook or a Function of the program changed it";
  static constexpr const char* kUncompiled =
      ". Call the uncompiled function there, or compile the function that asks for the gradient, too.";

  // An input of the call, for those who keep it alive.
  struct Given {
    Given(const at::Tensor& t, bool keep)
        : impl(t.getIntrusivePtr()), memory(memory_of(t)), version(version_of(t)), kept(keep ? t : at::Tensor()) {}
    bool is_as_it_was(const at::Tensor& t) const { return memory == memory_of(t) && version == version_of(t); }
    static const void* memory_of(const at::Tensor& t) {
      return t.defined() && t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr;
    }
    static int64_t version_of(const at::Tensor& t) { return t.defined() && !t.is_inference() ? t._version() : 0; }

    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> impl;
    const void* memory;  // `p.data = t` is no new version
    int64_t version;
    at::Tensor kept;
  };

  // Eager's graph holds on to what a second derivative needs. Here that is the inputs, of which a small one is kept, too
  // (a factor, labels that are made for the call); a large one might take memory that eager does not, so it is kept in a
  // version's first calls, and where gradients of gradients have been asked for.
  void note_inputs(const at::Tensor* inputs, size_t count) {
    constexpr size_t kSmall = size_t{64} << 10;
    constexpr int kFirstCalls = 8;
    const bool all = state_->compared || state_->calls < kFirstCalls;
    if (state_->calls < kFirstCalls) ++state_->calls;
    inputs_.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      const at::Tensor& t = inputs[i];
      inputs_.emplace_back(t, all || (t.defined() && t.has_storage() && t.storage().nbytes() <= kSmall));
    }
  }

  Replay::Apart results_apart(const std::vector<at::Tensor>& inputs) const {
    TORCH_CHECK(!c10::GradMode::is_enabled(), kOfResults, "create_graph=True is not taken with it", kUncompiled);
    return state_->replay->results_apart(inputs);
  }

  autograd::variable_list whole(autograd::variable_list&& tangents) {
    if (std::ranges::none_of(tangents, [](const at::Tensor& t) { return t.defined(); }))
      return autograd::variable_list(num_outputs());
    if (c10::GradMode::is_enabled()) return differentiably(std::move(tangents));
    std::lock_guard<std::mutex> lock(mutex_);
    return differentiate(std::move(tangents), autograd::get_current_graph_task_keep_graph());
  }

  // Takes those of results alone out of `tangents`; empty: there are none.
  autograd::variable_list take_apart(autograd::variable_list& tangents) {
    std::lock_guard<std::mutex> lock(mutex_);
    autograd::variable_list out;
    for (size_t t = 0; t < apart_in_.size(); ++t) {
      if (apart_in_[t] != autograd::get_current_graph_task_id()) continue;
      out.resize(tangents.size());
      out[t] = std::move(tangents[t]);
      tangents[t].reset();
    }
    return out;
  }

  autograd::variable_list apart(const autograd::variable_list& tangents) {
    const std::vector<at::Tensor> inputs = inputs_again(kOfResults);
    return through(results_apart(inputs).results, inputs, tangents, false).gradients;
  }

  // Gradients that have gradients (create_graph=True): those of the forward computed again, in eager.
  autograd::variable_list differentiably(autograd::variable_list&& tangents) {
    const char* asked =
        "flashover: the gradient of a compiled function was asked for with create_graph=True, and its forward must be "
        "computed again for it: ";
    TORCH_CHECK(!are_batched(tangents), asked, "it is asked for by vmap", kUncompiled);
    const std::vector<at::Tensor> inputs = inputs_again(asked);
    Differentiated found = through(state_->replay->results(inputs), inputs, tangents, true);
    if (!state_->compared) compare(found, inputs, tangents);
    state_->compared = true;
    return std::move(found.gradients);
  }

  struct Differentiated {
    autograd::variable_list gradients;
    std::vector<size_t> asked_for;
  };
  // The engine over results of a replay of `inputs`.
  Differentiated through(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& inputs,
                         const autograd::variable_list& tangents, bool create_graph) {
    autograd::edge_list roots, leaves;
    autograd::variable_list given;
    Differentiated found{autograd::variable_list(num_outputs()), {}};
    for (size_t t = 0; t < results.size(); ++t) {
      if (!tangents[t].defined() || !results[t].requires_grad()) continue;
      roots.push_back(autograd::impl::gradient_edge(results[t]));
      given.push_back(tangents[t]);
    }
    for (size_t i = 0; i < num_outputs(); ++i) {
      const at::Tensor& input = inputs[static_cast<size_t>(state_->signature.gradients[i].input)];
      if (!next_edge(i).is_valid() || !task_should_compute_output(i) || !input.defined()) continue;
      leaves.push_back(autograd::impl::gradient_edge(input));
      found.asked_for.push_back(i);
    }
    if (roots.empty() || leaves.empty()) return found;
    autograd::variable_list made =
        autograd::Engine::get_default_engine().execute(roots, given, true, create_graph, false, leaves);
    for (size_t k = 0; k < made.size(); ++k) found.gradients[found.asked_for[k]] = std::move(made[k]);
    return found;
  }

  // The replay's gradients with the compiled backward's, once a version: what the trace did not see would show at once,
  // and a value that rounds to the other side of a kink, as one does in a million, is no reason to stop a long training.
  void compare(const Differentiated& found, const std::vector<at::Tensor>& inputs,
               const autograd::variable_list& tangents) {
    const auto tolerance = state_->replay->tolerance();
    if (!tolerance) return;
    const auto asked_for = [&](const autograd::variable_list& of) {
      autograd::variable_list out;
      for (size_t i : found.asked_for) out.push_back(of[i]);
      return out;
    };
    autograd::variable_list compiled;
    {
      const c10::AutoGradMode not_followed(false);
      std::lock_guard<std::mutex> lock(mutex_);
      compiled = differentiate(autograd::variable_list(tangents), true);
    }
    const autograd::variable_list made = asked_for(found.gradients), expected = asked_for(compiled);
    if (are_same_gradients(expected, made, *tolerance)) return;
    // Of a norm over equal rows nothing but rounding is left: what moves it as much is no other program.
    const std::vector<at::Tensor> moved = Replay::moved(inputs);
    const auto nearby = asked_for(through(state_->replay->results(moved), moved, tangents, false).gradients);
    TORCH_CHECK(are_same_gradients(expected, made, *tolerance, nearby), kAnotherGradient, kUncompiled);
  }

  // The call's inputs, unchanged since, for a replay: those that require grad under an alias, which has none of their
  // hooks (the engine calls these with what this node returns).
  std::vector<at::Tensor> inputs_again(const char* asked) {
    const Replay& replay = *state_->replay;
    TORCH_CHECK(replay.impossible().empty(), asked, replay.impossible(), kUncompiled);
    std::vector<at::Tensor> inputs(inputs_.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!replay.takes(i)) continue;
      auto alive = inputs_[i].impl.lock();
      if (alive.defined())
        inputs[i] = at::Tensor(std::move(alive));
      else
        inputs[i] = saved_input(i);
      TORCH_CHECK(inputs[i].defined(), asked, "nothing keeps its input ", i, " alive", kUncompiled);
      TORCH_CHECK(!replay.depends_on(i) || inputs_[i].is_as_it_was(inputs[i]),
                  "one of the variables needed for gradient computation has been modified by an inplace operation: "
                  "input ",
                  i, " of a compiled function is at version ", Given::version_of(inputs[i]), "; expected version ",
                  inputs_[i].version, " of the memory that it had then.");
      if (!inputs[i].requires_grad()) continue;
      const c10::AutoGradMode followed(true);
      inputs[i] = inputs[i].view_as(inputs[i]);
    }
    return inputs;
  }

  // The backward has it; undefined: it has not.
  at::Tensor saved_input(size_t input) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto& all = state_->signature.backward_inputs;
    for (size_t i = 0; i < saved_.size(); ++i)
      if (all[i].kind == Source::kInput && static_cast<size_t>(all[i].index) == input) return saved_[i].unpack(nullptr);
    return {};
  }

  // keep: another run for the same results may follow.
  autograd::variable_list differentiate(autograd::variable_list&& tangents, bool keep) {
    if (are_batched(tangents))
      return for_each_row(tangents, [&](autograd::variable_list&& row, bool last) {
        return differentiate(std::move(row), keep || !last);
      });
    const PartitionSignature& p = state_->signature;
    autograd::variable_list gradients(p.gradients.size());
    std::vector<bool> given(p.tangents());
    for (size_t t = 0; t < given.size(); ++t) given[t] = tangents[t].defined();
    // What is kept by reference is not freed by a run for some results: a second one for them is refused here.
    spent_.resize(given.size());
    // Where nothing was saved, eager runs it as often as it is asked.
    for (size_t t = 0; t < given.size(); ++t)
      TORCH_CHECK(!given[t] || !spent_[t] || saves_nothing(), autograd::ERR_BACKWARD_TWICE);
    const bool all = std::find(given.begin(), given.end(), false) == given.end();
    const std::shared_ptr<const Variant> part = all || !state_->specialize ? nullptr : state_->variant(given);
    std::vector<at::Tensor> inputs;
    inputs.reserve(p.backward_inputs.size());
    // A tangent goes when it has been read, too (the engine keeps none), unless it is a gradient as it is.
    std::vector<bool> handed_on(given.size());
    for (const PartitionSignature::Gradient& g : p.gradients)
      if (g.tangent >= 0) handed_on[g.tangent] = true;
    const auto take = [&](size_t i) {
      const PartitionSignature::BackwardInput& in = p.backward_inputs[i];
      if (in.kind == Source::kTangent) {
        at::Tensor& tangent = tangents[in.index];
        inputs.push_back(conform(tangent, layouts_->backward_inputs[i]));
        if (!handed_on[in.index]) tangent.reset();
      } else
        inputs.push_back(spots_[i].restore(saved_[i].unpack(in.kind == Source::kResult ? getptr() : nullptr),
                                           layouts_->backward_inputs[i]));
    };
    if (part)
      for (int32_t i : part->inputs) take(static_cast<size_t>(i));
    else
      for (size_t i = 0; i < p.backward_inputs.size(); ++i) take(i);
    // Nothing needs them again: what was saved goes as the backward reads it, not when it has ended. But other results
    // may have a backward of their own later.
    if (!keep) {
      for (size_t t = 0; t < given.size(); ++t) spent_[t] = spent_[t] || given[t];
      // Where no part of the backward stands for these tangents alone, nothing tells what the others read.
      partial_ = state_->specialize && std::ranges::count(spent_, false) != 0;
      if (!partial_) {
        forget();
      } else if (part) {
        for (int32_t i : part->inputs)
          if (p.backward_inputs[i].kind == Source::kSaved && !std::ranges::count(part->left_out, i))
            saved_[i].reset_data();
      }
    }
    std::vector<at::Tensor> made;
    try {
      if (part) {
        std::vector<at::Tensor> some;
        part->run(std::move(inputs), some);
        for (const PartitionSignature::Gradient& g : p.gradients)
          made.resize(std::max(made.size(), static_cast<size_t>(g.output + 1)));
        for (size_t i = 0; i < some.size(); ++i) made[part->outputs[i]] = std::move(some[i]);
      } else {
        state_->backward(std::move(inputs), made);
      }
    } catch (const run::Mismatch& m) {
      // The forward has run and its inputs may have changed since: this backward is lost, the next calls are not.
      state_->broken = "the backward met an operator whose shape function is wrong";
      TORCH_CHECK(false, "flashover: in a compiled backward, ", m.what(),
                  ". The shape function (register_fake) of that operator is wrong. Later calls run eager.");
    }
    for (size_t i = 0; i < gradients.size(); ++i) {
      const PartitionSignature::Gradient& g = p.gradients[i];
      if (!reached(g, given)) continue;
      gradients[i] = g.tangent >= 0 ? tangents[g.tangent] : made[g.output];
    }
    return gradients;
  }

  bool saves_nothing() const {
    const auto& all = state_->signature.backward_inputs;
    return std::all_of(all.begin(), all.end(), [](const auto& in) { return in.kind == Source::kTangent; });
  }

  void forget() {
    for (autograd::SavedVariable& s : saved_) s.reset_data();
    spots_.assign(spots_.size(), Spot());
    for (Given& g : inputs_) g.kept.reset();
  }

  bool is_mine(const at::Tensor& t) const {
    if (!t.requires_grad()) return false;
    const autograd::Node* node = autograd::impl::gradient_edge(t).function.get();
    return node == this || is_result_node(*node, *this);
  }

  // The tangent as the backward was compiled for it.
  static at::Tensor conform(const at::Tensor& t, const Geometry& g) {
    const auto options = at::TensorOptions().dtype(g.dtype).device(g.device);
    at::AutoDispatchBelowADInplaceOrView below;
    if (!t.defined()) {
      at::Tensor zero = at::empty_strided(g.sizes, g.strides, options);
      zero.zero_();
      return zero;
    }
    TORCH_CHECK(!t.key_set().has(c10::DispatchKey::Python),
                "flashover: the gradient of a plain result of a compiled function is of a tensor subclass. Call the "
                "uncompiled function where such gradients come.");
    if (t.layout() == at::kStrided && t.sizes() == at::IntArrayRef(g.sizes) &&
        t.strides() == at::IntArrayRef(g.strides) && t.scalar_type() == g.dtype && t.device() == g.device &&
        t.has_storage() && !t.is_conj() && !t.is_neg())
      return t;
    at::Tensor own = at::empty_strided(g.sizes, g.strides, options);
    own.copy_(t.layout() == at::kStrided ? t : t.to_dense());
    return own;
  }

  std::shared_ptr<const TrainingState> state_;
  std::shared_ptr<const Layouts> layouts_;
  std::vector<autograd::SavedVariable> saved_;
  std::vector<Spot> spots_;    // of what is saved
  std::vector<Given> inputs_;  // of the call
  bool partial_ = false;       // other results may have a backward of their own later
  std::vector<bool> spent_;    // tangents that came and will not come again
  std::vector<int> apart_in_;  // by tangent: the last graph task in which it was its result's alone
  std::mutex mutex_;
};

// Of a result that others follow from, or that follows from others, and no view of them. It leads to the call's node,
// and to the nodes of the results that its gradient passes: hooks, retain_grad and autograd.grad see theirs as in eager.
// Where nobody looks, the call's node takes all of it at once.
class CompiledResultBackward final : public autograd::Node {
 public:
  CompiledResultBackward(compat::NodePtr<CompiledBackward> call, size_t result, size_t tangent) : result_(result) {
    add_next_edge(autograd::Edge(std::move(call), static_cast<uint32_t>(tangent)));
  }
  std::string name() const override { return "CompiledBackward"; }

  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    autograd::variable_list out(num_outputs());
    if (gradients[0].defined() && passed_are_watched()) {
      autograd::variable_list passed = call().gradients_of_results(result_, gradients[0]);
      std::ranges::move(passed, out.begin() + 1);
    }
    out[0] = std::move(gradients[0]);
    return out;
  }

 private:
  CompiledBackward& call() const { return static_cast<CompiledBackward&>(*next_edge(0).function); }

  // Who looks at the gradient of a result in the backward that runs now.
  enum class Watch : uint8_t { kNobody, kHook, kGradient };

  // A hook need not read the gradient (those of sharded training do not).
  bool passed_are_watched() const {
    Watch watch = Watch::kNobody;
    std::vector<const autograd::Node*> left{this};
    std::unordered_set<const autograd::Node*> seen{&call()};
    while (!left.empty()) {
      const autograd::Node* node = left.back();
      left.pop_back();
      for (const autograd::Edge& e : node->next_edges()) {
        if (!seen.insert(e.function.get()).second) continue;
        watch = std::max(watch, watch_of(*e.function));
        left.push_back(e.function.get());
      }
    }
    if (watch != Watch::kHook || call().impossible().empty()) return watch != Watch::kNobody;
    TORCH_WARN_ONCE(CompiledBackward::kOfResults, call().impossible(),
                    ". The hook sees the gradient that comes from elsewhere.");
    return false;
  }

  static Watch watch_of(autograd::Node& node) {
    if (const auto* tasks = autograd::get_current_graph_task_exec_info(); tasks != nullptr)
      if (const auto info = tasks->find(&node); info != tasks->end() && info->second.captures_) return Watch::kGradient;
    if (!node.retains_grad_hooks().empty()) return Watch::kGradient;
    const bool hooks = !node.tensor_pre_hooks().empty() || !node.pre_hooks().empty() || !node.post_hooks().empty();
    return hooks ? Watch::kHook : Watch::kNobody;
  }

  size_t result_;
};

bool is_result_node(const autograd::Node& node, const CompiledBackward& call) {
  const auto* result = dynamic_cast<const CompiledResultBackward*>(&node);
  return result != nullptr && result->next_edge(0).function.get() == &call;
}

class Trained final : public Runner {
 public:
  explicit Trained(std::shared_ptr<const TrainingState> state) : state_(std::move(state)) {
    const PartitionSignature& p = state_->signature;
    root_of_.assign(p.results.size(), -1);
    for (size_t i = 0; i < p.results.size(); ++i)
      if (p.results[i].tangent >= 0) root_of_[memory_of(i)] = static_cast<int32_t>(i);
    const std::vector<std::vector<size_t>>& follows = state_->replay->follows();
    is_linked_.assign(p.results.size(), false);
    for (size_t i = 0; i < follows.size(); ++i)
      if (!follows[i].empty()) order_result(i);
  }

  void run(const at::Tensor* inputs, size_t count, std::vector<at::Tensor>& outputs) override {
    if (const char* why = state_->broken) {
      run::Mismatch m(why);
      m.clean = true;
      throw m;
    }
    const PartitionSignature& p = state_->signature;
    c10::AutoGradMode followed(true);  // the program may have turned it on itself
    std::vector<at::Tensor> made;
    state_->forward(std::vector<at::Tensor>(inputs, inputs + count), made);
    for (at::Tensor& t : made)  // a view of what nothing sees (backends): autograd would take it for a view of a leaf
      if (t.defined() && t.is_view()) {
        at::AutoDispatchBelowADInplaceOrView below;
        t = at::alias(t);
      }
    const std::shared_ptr<const Layouts> layouts = state_->layouts(inputs, made);
    outputs.clear();
    outputs.resize(p.results.size());
    compat::NodePtr<CompiledBackward> node;
    if (p.tangents() != 0) {
      node = compat::make_node<CompiledBackward>(state_, layouts);
      autograd::edge_list edges;
      edges.reserve(p.gradients.size());
      for (const PartitionSignature::Gradient& g : p.gradients)
        edges.push_back(autograd::impl::gradient_edge(inputs[g.input]));
      node->set_next_edges(std::move(edges));
    }
    for (size_t i = 0; i < p.results.size(); ++i)  // in order of tangents
      if (const PartitionSignature::Result& r = p.results[i]; r.tangent >= 0) {
        outputs[i] = r.kind == Output::Kind::kInputAlias ? given_back(inputs[r.index], r, layouts->results[i])
                                                         : made[p.results[memory_of(i)].index];
        if (is_linked_[i])
          node->add_input_metadata(outputs[i]);
        else
          autograd::set_history(outputs[i], compat::NodePtr<autograd::Node>(node));
      }
    for (size_t i : linked_) link(i, node, *layouts, outputs);
    // Inputs that the program wrote under autograd: so they are now, before views of them are made.
    const size_t visible = p.results.size() - p.extra.size();
    for (size_t k = 0; k < p.extra.size(); ++k)
      if (p.extra[k] >= 0) write(p.extra[k], inputs[p.extra[k]], outputs[visible + k]);
    for (size_t i = 0; i < p.results.size(); ++i) {
      const PartitionSignature::Result& r = p.results[i];
      if (r.tangent >= 0 || is_linked_[i]) continue;
      if (r.kind == Output::Kind::kInputAlias) {
        outputs[i] = view(inputs[r.index], inputs[r.index], r, layouts->results[i]);
        continue;
      }
      const size_t memory = memory_of(i);
      const int32_t root = root_of_[memory];
      const at::Tensor& whole = root >= 0 ? outputs[root] : made[p.results[memory].index];
      outputs[i] = memory == i && root < 0 ? whole : view(whole, whole, r, layouts->results[i]);
    }
    if (node) node->save(inputs, count, outputs, made);
    outputs.resize(visible);
  }

 private:
  // A result that others follow from or that follows from others, all those that it follows from being there.
  void link(size_t i, const compat::NodePtr<CompiledBackward>& call, const Layouts& layouts,
            std::vector<at::Tensor>& outputs) const {
    const PartitionSignature::Result& r = state_->signature.results[i];
    const std::vector<size_t>& passed = state_->replay->follows()[i];
    if (r.tangent < 0) {  // a view, which follows from one
      const int32_t root = root_of_[memory_of(i)];
      FLASHOVER_CHECK(root >= 0) << "result " << i << " is a view of no result";
      outputs[i] = view(outputs[passed.front()], outputs[root], r, layouts.results[i]);
      return;
    }
    auto node = compat::make_node<CompiledResultBackward>(call, i, static_cast<size_t>(r.tangent));
    for (size_t k : passed) node->add_next_edge(autograd::impl::gradient_edge(outputs[k]));
    autograd::set_history(outputs[i], compat::NodePtr<autograd::Node>(node));
  }
  // Puts i and what it follows from behind each other, in the order in which autograd wants them made.
  void order_result(size_t i) {
    if (is_linked_[i]) return;
    is_linked_[i] = true;
    for (size_t passed : state_->replay->follows()[i]) order_result(passed);
    linked_.push_back(i);
  }
  // One copy, where the program may have written several times.
  void write(int32_t number, const at::Tensor& input, const at::Tensor& content) const {
    input.copy_(content);
    const VersionSteps& steps = state_->version_steps;
    for (int32_t i = 1; i < steps[static_cast<size_t>(number)]; ++i) input.unsafeGetTensorImpl()->bump_version();
  }
  // The result that owns the memory of result i.
  size_t memory_of(size_t i) const {
    const PartitionSignature::Result& r = state_->signature.results[i];
    return r.kind == Output::Kind::kOutputAlias ? static_cast<size_t>(r.index) : i;
  }
  // What a Function of the program gives back of an input: autograd refuses writes into it, as eager's does.
  static at::Tensor given_back(const at::Tensor& input, const PartitionSignature::Result& r, const Geometry& g) {
    const c10::AutoGradMode not_followed(false);
    at::Tensor made = at::as_strided(input, g.sizes, g.strides, input.storage_offset() + g.offset);
    if (auto* meta = autograd::impl::get_view_autograd_meta(made); meta && meta->has_bw_view())
      meta->set_creation_meta(r.one_of_several ? autograd::CreationMeta::MULTI_OUTPUT_NODE
                                               : autograd::CreationMeta::IN_CUSTOM_FUNCTION);
    return made;
  }
  // At the caller's level: autograd follows the view, of `base` or of a view of it, or is told not to.
  static at::Tensor view(const at::Tensor& of, const at::Tensor& base, const PartitionSignature::Result& r,
                         const Geometry& g) {
    const at::Tensor whole = of.requires_grad() && !r.requires_grad ? of.detach() : of;
    at::Tensor made = at::as_strided(whole, g.sizes, g.strides, base.storage_offset() + g.offset);
    auto* meta = r.one_of_several ? torch::autograd::impl::get_view_autograd_meta(made) : nullptr;
    if (meta && meta->has_bw_view() && meta->get_creation_meta() == torch::autograd::CreationMeta::DEFAULT)
      meta->set_creation_meta(torch::autograd::CreationMeta::MULTI_OUTPUT_NODE);
    return made;
  }

  std::shared_ptr<const TrainingState> state_;
  std::vector<int32_t> root_of_;  // by result that owns memory: the result that leads into the backward
  std::vector<size_t> linked_;    // results that follow from each other: each behind those that it follows from
  std::vector<bool> is_linked_;
};

}  // namespace

namespace {

// Gradients are to be accumulated in the order they have here. The engine takes what becomes ready at the same time
// from a heap, in an order that depends on how it was filled only.
void order_for_engine(std::vector<PartitionSignature::Gradient>& gradients) {
  const auto alike = [](size_t, size_t) { return false; };
  std::priority_queue<size_t, std::vector<size_t>, decltype(alike)> heap(alike);
  for (size_t i = 0; i < gradients.size(); ++i) heap.push(i);
  std::vector<PartitionSignature::Gradient> ordered(gradients.size());
  for (PartitionSignature::Gradient& g : gradients) {
    ordered[heap.top()] = std::move(g);
    heap.pop();
  }
  gradients = std::move(ordered);
}

}  // namespace

std::unique_ptr<Runner> make_training_runner(PartitionSignature signature, const std::vector<TensorType>& forward_types,
                                             std::vector<TensorType> backward_types, Step forward, Step backward,
                                             Specialize specialize, VersionSteps version_steps,
                                             std::shared_ptr<const Replay> replay) {
  auto m = std::make_shared<TrainingState>();
  m->signature = std::move(signature);
  order_for_engine(m->signature.gradients);
  m->backward_types = std::move(backward_types);
  m->size_sources = size_sources(forward_types, m->signature, m->backward_types);
  m->forward = std::move(forward);
  m->backward = std::move(backward);
  m->specialize = std::move(specialize);
  m->version_steps = std::move(version_steps);
  m->replay =
      replay ? std::move(replay) : std::make_shared<const Replay>(graph::Graph(graph::kNewProgram), graph::Joint{});
  return std::make_unique<Trained>(std::move(m));
}

}  // namespace flashover::entry
