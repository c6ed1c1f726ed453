// The three ways to run a graph: plans, ATen operator by operator, a function of the user's.
#include "entry/backend.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <torch/version.h>

#include <chrono>
#include <cstdio>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "base/check.h"
#include "base/interrupt.h"
#include "base/options.h"
#include "base/stack.h"
#include "eager/eval.h"
#include "entry/entry.h"
#include "entry/machine.h"
#include "entry/measure.h"
#include "entry/python_graph.h"
#include "entry/training.h"
#include "entry/version.h"
#include "entry/versions.h"
#include "frame/frame.h"
#include "frame/signals.h"
#include "frame/size_expression.h"
#include "graph/analysis/devices.h"
#include "graph/analysis/symbolic.h"
#include "graph/partition/prune.h"
#include "graph/passes.h"
#include "graph/passes/lower_random.h"
#include "run/cuda/driver.h"
#include "run/cuda/random.h"
#include "run/run.h"
#include "target/features.h"
#include "torch/convert.h"

namespace flashover::entry {
namespace {

// detach() leaves no node in a graph: its result is a tensor object of its own all the same.
void make_distinct(const at::Tensor* inputs, size_t count, std::vector<at::Tensor>& outputs) {
  for (size_t i = 0; i < outputs.size(); i++) {
    bool seen = false;
    for (size_t k = 0; k < count; k++) seen |= inputs[k].is_same(outputs[i]);
    for (size_t k = 0; k < i; k++) seen |= outputs[k].is_same(outputs[i]);
    if (seen) outputs[i] = outputs[i].detach();
  }
}

// Runs a graph operator by operator. Writes to inputs come last where it is functional, and where they do not, a call
// that raises before the first of them can be repeated all the same.
class Interpreter {
 public:
  explicit Interpreter(graph::Graph g) : graph_(std::move(g)) {
    for (const graph::Node& n : graph_.nodes) acts_ |= n.op->nondeterministic || (n.op->effectful && !n.op->check);
  }
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs) const {
    const std::vector<int64_t> before = versions(inputs);
    try {
      return aten::eval_graph(graph_, inputs);
    } catch (...) {
      run::failure_was_undone() = !acts_ && versions(inputs) == before;
      throw;
    }
  }

 private:
  static std::vector<int64_t> versions(const std::vector<at::Tensor>& inputs) {
    std::vector<int64_t> all;
    all.reserve(inputs.size());
    for (const at::Tensor& t : inputs) all.push_back(!t.defined() || t.is_inference() ? 0 : t._version());
    return all;
  }
  graph::Graph graph_;
  bool acts_ = false;  // draws random numbers, or has effects
};

class Interpreted final : public Runner {
 public:
  explicit Interpreted(graph::Graph g) : evaluate_(std::move(g)) {}
  void run(const at::Tensor* inputs, size_t count, std::vector<at::Tensor>& outputs) override {
    outputs = evaluate_(std::vector<at::Tensor>(inputs, inputs + count));
    make_distinct(inputs, count, outputs);
  }

 private:
  Interpreter evaluate_;
};

// A graph that is to be a program: nothing runs it here.
class Captured final : public Runner {
 public:
  void run(const at::Tensor*, size_t, std::vector<at::Tensor>&) override {
    throw UserError("what was captured for an export is not called");
  }
};

struct WithGil {
  PyGILState_STATE state = PyGILState_Ensure();
  WithGil() = default;
  WithGil(const WithGil&) = delete;
  ~WithGil() { PyGILState_Release(state); }
};

PyObject* wrap(const std::vector<const at::Tensor*>& tensors) {
  PyObject* out = PyTuple_New(static_cast<Py_ssize_t>(tensors.size()));
  if (!out) throw python_error();
  for (size_t i = 0; i < tensors.size(); i++) {
    PyObject* t = THPVariable_Wrap(*tensors[i]);
    if (!t) {
      Py_DECREF(out);
      throw python_error();
    }
    PyTuple_SET_ITEM(out, static_cast<Py_ssize_t>(i), t);
  }
  return out;
}

at::Tensor tensor_of_number(PyObject* number) {
  if (PyFloat_Check(number)) return c10::scalar_to_tensor(PyFloat_AS_DOUBLE(number));
  const long long whole = PyLong_AsLongLong(number);
  if (PyErr_Occurred()) throw python_error();
  return c10::scalar_to_tensor(static_cast<int64_t>(whole));
}

// Outputs that may come as Python's numbers: sizes that follow from data.
std::vector<bool> may_be_numbers(const graph::Graph& g) {
  std::vector<bool> numbers;
  for (const graph::Output& o : g.outputs) {
    numbers.push_back(false);
    if (o.value == kNoValue) continue;
    const TensorType& t = g.type(o.value);
    numbers.back() = t.rank() == 0 && (t.dtype == DType::kI64 || t.dtype == DType::kF64);
  }
  return numbers;
}

// What a backend's callable gave.
void unwrap_results(PyObject* result, const std::vector<bool>& numbers, std::vector<at::Tensor>& outputs) {
  const size_t count = numbers.size();
  outputs.clear();
  if (THPVariable_Check(result) && count == 1) {
    outputs.push_back(THPVariable_Unpack(result));
    return;
  }
  Reference items(PySequence_Fast(result, "the backend's callable must return a tuple or list of tensors"));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.p); i++) {
    PyObject* t = PySequence_Fast_GET_ITEM(items.p, i);
    if (static_cast<size_t>(i) < count && numbers[static_cast<size_t>(i)] && (PyFloat_Check(t) || PyLong_Check(t))) {
      outputs.push_back(tensor_of_number(t));
      continue;
    }
    if (!THPVariable_Check(t)) {
      PyErr_Format(PyExc_TypeError, "the backend's callable returned a %s where a tensor was due", Py_TYPE(t)->tp_name);
      throw python_error();
    }
    outputs.push_back(THPVariable_Unpack(t));
  }
  if (outputs.size() != count) {
    PyErr_Format(PyExc_ValueError, "the backend's callable returned %zu tensors, the graph has %zu outputs",
                 outputs.size(), count);
    throw python_error();
  }
}

// A backend written in Python.
class Custom final : public Runner {
 public:
  Custom(const graph::Graph& g, PyObject* compiler, const std::vector<at::Tensor>& inputs)
      : outputs_(may_be_numbers(g)) {
    std::vector<const at::Tensor*> examples, constants;
    for (size_t i = 0; i < g.inputs.size(); i++) {
      bool constant = g.inputs[i].kind == graph::InputKind::kConstant;
      constant_.push_back(constant);
      (constant ? constants : examples).push_back(&inputs[i]);
    }
    Reference given(wrap(examples)), fixed(wrap(constants));
    compile(g, compiler, given.p, fixed.p);
  }
  // A graph that is compiled before there is anything to run it on: its examples are fake tensors.
  Custom(const graph::Graph& g, PyObject* compiler) : outputs_(may_be_numbers(g)), constant_(g.inputs.size(), false) {
    std::vector<at::Tensor> shapes;
    std::vector<const at::Tensor*> pointers;
    Reference devices(PyList_New(0)), none(PyTuple_New(0)), module(PyImport_ImportModule("flashover.fx_graph"));
    for (const graph::Input& in : g.inputs) {
      const TensorType& t = g.type(in.value);
      const auto options = at::TensorOptions().dtype(aten::to_aten(t.dtype)).device(at::kMeta);
      shapes.push_back(at::empty_strided(aten::to_ints(t.sizes), aten::to_ints(t.strides), options));
      Reference device(PyUnicode_FromString(aten::to_aten(t.device).str().c_str()));
      if (PyList_Append(devices.p, device.p) != 0) throw python_error();
    }
    for (const at::Tensor& t : shapes) pointers.push_back(&t);
    Reference like(wrap(pointers));
    Reference given(PyObject_CallMethod(module.p, "fake_tensors", "OO", like.p, devices.p));
    compile(g, compiler, given.p, none.p);
  }
  ~Custom() override {
    const WithGil gil;
    Py_XDECREF(run_);
  }
  bool needs_gil() const override { return true; }
  bool borrows(size_t) const override { return true; }
  void run(const at::Tensor* inputs, size_t count, std::vector<at::Tensor>& outputs) override {
    const at::NoGradGuard no_grad;  // the graph leads into no backward but its own
    std::vector<const at::Tensor*> given;
    for (size_t i = 0; i < count; i++)
      if (!constant_[i]) given.push_back(&inputs[i]);
    Reference args(wrap(given));
    Reference result(PyObject_CallObject(run_, args.p));
    unwrap_results(result.p, outputs_, outputs);
    make_distinct(inputs, count, outputs);
  }

 private:
  void compile(const graph::Graph& g, PyObject* compiler, PyObject* examples, PyObject* constants) {
    const at::NoGradGuard no_grad;
    const frame::SignalsPass as_usual;
    Reference description(to_python(g)), module(PyImport_ImportModule("flashover.fx_graph"));
    Reference made(PyObject_CallMethod(module.p, "graph_module", "OO", description.p, constants));
    if (made.p == Py_None) throw Declined("a graph that has no form in torch.fx");
    run_ = PyObject_CallMethod(module.p, "make_runner", "OOO", compiler, made.p, examples);
    if (!run_) throw python_error();
  }

  PyObject* run_ = nullptr;
  std::vector<bool> outputs_;  // one an output: may_be_numbers()
  std::vector<bool> constant_;
};

class Planned final : public Runner {
 public:
  explicit Planned(std::shared_ptr<run::Executable> e) : executable_(std::move(e)) {
    const plan::Plan& p = executable_->plan();
    borrows_.assign(p.inputs.size(), p.device.type == DeviceType::kCPU);
    const auto takes = [&](plan::TensorId t) {
      const plan::Tensor& whole = p.tensors[static_cast<size_t>(plan::root(p, t))];
      if (whole.storage == plan::StorageKind::kInput) borrows_[static_cast<size_t>(whole.index)] = false;
    };
    for (const plan::Step& s : p.steps) {
      if (s.kind != plan::StepKind::kLaunch) plan::for_each_read(s, takes);
      plan::for_each_write(s, takes);
    }
    for (const plan::OutputRef& o : p.outputs)
      if (o.alias_input >= 0) borrows_[static_cast<size_t>(o.alias_input)] = false;
  }
  bool borrows(size_t i) const override { return i < borrows_.size() && borrows_[i]; }
  void run(const at::Tensor* inputs, size_t count, std::vector<at::Tensor>& outputs) override {
    executable_->run(inputs, count, outputs);
  }

 private:
  std::shared_ptr<run::Executable> executable_;
  std::vector<bool> borrows_;  // by input: only kernels read it, or steps that run once
};

// A backend written in Python that got the program's calls of torch. Autograd sees what it runs, and may keep inputs.
class OfTorchCalls final : public Runner {
 public:
  OfTorchCalls(const frame::Capture& c, PyObject* custom, const std::vector<at::Tensor>& examples)
      : outputs_(may_be_numbers(c.graph)) {
    const frame::SignalsPass as_usual;
    std::vector<const at::Tensor*> given;
    for (const at::Tensor& t : examples) given.push_back(&t);
    Reference all(wrap(given)), shapes(shapes_of(c)), symbols(PyDict_New());
    for (size_t k = 0; k < c.size_symbols.size(); ++k) {
      Reference e(frame::size_expression(c.size_symbols[k].canonical));
      if (PyDict_SetItemString(symbols.p, c.size_symbols[k].name.c_str(), e.p) != 0) throw python_error();
    }
    run_ = PyObject_CallMethod(c.torch_graph, "runner", "OOOO", custom, all.p, shapes.p, symbols.p);
    if (!run_) throw python_error();
    if (run_ == Py_None) throw Declined("custom backend: what its sizes were found to be came after what uses them");
  }
  ~OfTorchCalls() override {
    const WithGil gil;
    Py_XDECREF(run_);
  }
  bool needs_gil() const override { return true; }
  void run(const at::Tensor* inputs, size_t count, std::vector<at::Tensor>& outputs) override {
    std::vector<const at::Tensor*> given;
    for (size_t i = 0; i < count; i++) given.push_back(&inputs[i]);
    Reference args(wrap(given));
    Reference result(PyObject_CallOneArg(run_, args.p));
    unwrap_results(result.p, outputs_, outputs);
  }

 private:
  // By input: its name, sizes and strides, as expressions, and whether it stands for an int that is a size.
  static PyObject* shapes_of(const frame::Capture& c) {
    Reference all(PyList_New(0));
    for (size_t i = 0; i < c.graph.inputs.size(); ++i) {
      const graph::Input& in = c.graph.inputs[i];
      const TensorType& type = c.graph.type(in.value);
      Reference shape(PyTuple_New(4)), name(PyUnicode_FromString(in.name.c_str()));
      PyTuple_SET_ITEM(shape.p, 0, name.release());
      PyTuple_SET_ITEM(shape.p, 3, PyBool_FromLong(c.size_inputs.at(i) >= 0));
      for (const auto& [at, list] : {std::pair(1, &type.sizes), std::pair(2, &type.strides)}) {
        Reference expressions(PyList_New(0));
        for (sym::Expr part : *list) {
          Reference e(frame::size_expression(part));
          if (PyList_Append(expressions.p, e.p) != 0) throw python_error();
        }
        PyTuple_SET_ITEM(shape.p, at, expressions.release());
      }
      if (PyList_Append(all.p, shape.p) != 0) throw python_error();
    }
    return all.release();
  }

  PyObject* run_ = nullptr;
  std::vector<bool> outputs_;  // one an output: may_be_numbers()
};

std::optional<run::cuda::DeviceFacts> pretended;

// What the pipeline is told of this machine and of torch's settings (which the guards compare).
// gpu: another one than this machine's. Nothing is measured for it, and random numbers are left to the library, whose
// kernels know how many threads the device has.
compile::CompileTarget environment(const graph::Graph& graph, const compile::Options& options,
                                   const std::optional<kernel::triton::Gpu>& gpu = std::nullopt) {
  compile::CompileTarget e;
  int64_t random_threads = 0;
  if (gpu) {
    e.gpu = gpu;
  } else if (const Device d = graph::device_of(graph); d.type == DeviceType::kCUDA) {
    const run::cuda::DeviceFacts facts = pretended ? *pretended : run::cuda::facts(d.index);
    e.gpu = kernel::triton::Gpu{facts.capability, facts.multiprocessors};
    if (options.flag("fused_random") && (pretended || run::cuda::reaches_generator()))
      random_threads = graph::random_threads(facts.multiprocessors, facts.threads);
  }
  e.threads = at::get_num_threads();
  target::Providers& p = e.providers;
  e.versions = std::string("torch " TORCH_VERSION " flashover ") + version();
  p = machine_providers(compile::Cache::process(), choices_of(options, e));
  // The user's switches, which may change between two compilations.
  p.mkl = p.mkl && at::Context::hasMKL();
  p.onednn = p.onednn && at::globalContext().userEnabledMkldnn() && at::Context::hasMKLDNN();
  p.onednn_bf16 = p.onednn && p.onednn_bf16;
  p.onednn_f16 = p.onednn && p.onednn_f16;
  if (options.flag("max_autotune") && !gpu) e.measure = measure;
  p.eagers_bits = options.flag("strict_numerics");
  p.batch_invariant = options.flag("batch_invariant");
  p.strict_numerics = p.eagers_bits || p.batch_invariant || options.flag("eager_roundings");
  p.deterministic = at::globalContext().deterministicAlgorithms();
  p.random_threads = random_threads;
  p.pack_budget = int_option(options.values, "weight_copies") << 20;
  return e;
}

std::shared_ptr<run::Executable> load(plan::Plan plan, const compile::Options& options, compile::Report& report,
                                      run::LoadOptions how = {}) {
  auto start = std::chrono::steady_clock::now();
  how.graphs = options.flag("cuda_graphs");
  how.kernel_graphs = options.flag("kernel_graphs");
  how.sub_plans = int_option(options.values, "sub_plans");
  std::shared_ptr<run::Executable> executable = run::load(std::move(plan), how);
  report.stages.push_back({"load", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()});
  return executable;
}

// `make` compiles and loads. What the cache gave and cannot be loaded is built again; what was built is kept when it
// has been loaded.
template <typename Make>
auto build_and_load(const compile::Options& options, compile::Report& report, Make&& make) {
  const auto result = [&] {
    try {
      return make();
    } catch (const EnvironmentFailure&) {
      if (report.rebuild || (!report.cache_hit && report.kernels_reused == 0)) throw;
    }
    compile::Report again;
    again.want_texts = report.want_texts;
    again.dump_number = report.dump_number;
    again.rebuild = true;
    report = std::move(again);
    return make();
  }();
  compile::loaded(report, options);
  return result;
}

Step step_of(std::shared_ptr<run::Executable> e) {
  return [e = std::move(e)](std::vector<at::Tensor>&& inputs, std::vector<at::Tensor>& outputs) {
    e->run_consuming(std::move(inputs), outputs);
  };
}
Step step_of(graph::Graph g) {
  return [evaluate = std::make_shared<Interpreter>(std::move(g))](
             std::vector<at::Tensor>&& inputs, std::vector<at::Tensor>& outputs) { outputs = (*evaluate)(inputs); };
}

// The user's backend gets the forward (or backward) of a training graph, and the values it must compute as outputs.
// Without examples it gets fake ones, and no input is a constant.
Step step_of_custom(graph::Graph forward, PyObject* compiler, const std::vector<at::Tensor>* examples) {
  // (What its backend returns is laid out as the graph says, which has no sizes of a call.)
  for (const graph::Output& o : forward.outputs)
    if (graph::is_symbolic(o.type)) throw Declined("custom backend: symbolic sizes");
  graph::Graph values = forward;
  values.outputs.clear();
  values.mutations.clear();
  auto want = [&values](ValueId v) {
    graph::Output o;
    o.value = v;
    o.type = values.type(v);
    values.outputs.push_back(o);
  };
  for (const graph::Output& o : forward.outputs) want(o.owns_memory() ? o.value : forward.inputs.at(0).value);
  for (const graph::Mutation& m : forward.mutations) want(m.value);
  auto custom =
      examples ? std::make_shared<Custom>(values, compiler, *examples) : std::make_shared<Custom>(values, compiler);
  auto g = std::make_shared<graph::Graph>(std::move(forward));
  return [custom, g](std::vector<at::Tensor>&& inputs, std::vector<at::Tensor>& outputs) {
    std::vector<at::Tensor> made;
    {
      const WithGil gil;
      try {
        custom->run(inputs.data(), inputs.size(), made);
      } catch (python_error& error) {
        error.persist();
        throw;
      }
    }
    const auto results = static_cast<std::ptrdiff_t>(g->outputs.size());
    at::AutoDispatchBelowAutograd below_autograd;
    outputs = aten::finish_functional(*g, inputs, {made.begin(), made.begin() + results},
                                      {made.begin() + results, made.end()});
  };
}

// What torch._dynamo.backends.common.aot_autograd was given: compilers of the forward and of the backward; null: the
// backend is another one, which gets the forward only. Owned.
struct AotCompilers {
  PyObject *forward = nullptr, *backward = nullptr;
  explicit AotCompilers(PyObject* custom) {
    Reference module(PyImport_ImportModule("flashover.backends"));
    Reference pair(PyObject_CallMethod(module.p, "aot_compilers", "O", custom));
    if (pair.p == Py_None) return;
    forward = Py_NewRef(PyTuple_GET_ITEM(pair.p, 0));
    backward = Py_NewRef(PyTuple_GET_ITEM(pair.p, 1));
  }
  ~AotCompilers() {
    Py_XDECREF(forward);
    Py_XDECREF(backward);
  }
  AotCompilers(const AotCompilers&) = delete;
};

// Of the forward plan: autograd sees the others written, and the runner writes them.
VersionSteps forward_steps(const Request& request) {
  VersionSteps steps = request.version_steps;
  for (int32_t i : request.joint.extra)
    if (i >= 0) steps.at(static_cast<size_t>(i)) = 0;
  return steps;
}

std::unique_ptr<Runner> make_aot_training(graph::Partition p, const std::vector<TensorType>& types,
                                          const Request& request, const AotCompilers& aot,
                                          const std::vector<int32_t>& written, std::shared_ptr<const Replay> replay) {
  Step forward = step_of_custom(std::move(p.forward), aot.forward, &request.examples);
  forward = counting_versions(std::move(forward), forward_steps(request), written);
  graph::Graph whole = std::move(p.backward);
  for (graph::Input& in : whole.inputs) in.kind = graph::InputKind::kUser;
  Step backward = step_of_custom(std::move(whole), aot.backward, nullptr);
  return make_training_runner(std::move(p), {}, types, std::move(forward), std::move(backward), {},
                              request.version_steps, std::move(replay));
}

// How the plans of a training step lie in memory, for CUDA graphs: what the forward saves, which nothing else sees,
// stays in its graph's own memory; parameters stay where they are (a leaf that requires grad is taken for one).
struct Memory {
  run::LoadOptions forward, backward;
};
Memory memory_of(const std::vector<run::InputAddress>& inputs, VersionSteps steps, const compile::Training& t) {
  using Kind = graph::PartitionSignature::BackwardInput::Kind;
  Memory m{.forward = {.addresses = inputs,
                       .pool_outputs = std::vector<bool>(t.forward.outputs.size()),
                       .version_steps = std::move(steps)},
           .backward = {.converts = true}};
  const std::vector<plan::OutputRef>& outputs = t.forward.outputs;
  std::vector<bool> seen(outputs.size(), true);  // the program sees it, or a view of it
  for (const graph::PartitionSignature::BackwardInput& in : t.signature.backward_inputs)
    if (in.kind == Kind::kSaved) seen.at(static_cast<size_t>(in.index)) = false;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (seen[i] && outputs[i].alias_output >= 0) seen.at(static_cast<size_t>(outputs[i].alias_output)) = true;
  for (size_t i = 0; i < outputs.size(); ++i) m.forward.pool_outputs[i] = outputs[i].tensor >= 0 && !seen[i];
  for (const graph::PartitionSignature::BackwardInput& in : t.signature.backward_inputs) {
    const auto i = static_cast<size_t>(in.index);
    run::InputAddress address = run::InputAddress::kVaries;
    if (in.kind == Kind::kInput) {
      address = inputs.at(i);
    } else if (in.kind == Kind::kSaved) {
      const plan::OutputRef& o = outputs.at(i);
      const size_t memory = o.alias_output >= 0 ? static_cast<size_t>(o.alias_output) : i;
      if (m.forward.pool_outputs.at(memory)) address = run::InputAddress::kGraphPool;
      if (o.alias_input >= 0) address = inputs.at(static_cast<size_t>(o.alias_input));
    }
    m.backward.addresses.push_back(address);
  }
  return m;
}

std::unique_ptr<Runner> make_training(graph::Graph graph, const Request& request, compile::Report& report) {
  std::vector<TensorType> types;  // of the backward's inputs
  auto replay = std::make_shared<const Replay>(graph, request.joint);
  if (request.backend == "eager" || request.custom) {
    report.extern_calls = static_cast<int64_t>(graph.nodes.size());
    graph::Joint joint = request.joint;
    graph::Graph functional =
        graph::run_pipeline(graph::Pipeline::kCustom, graph, {.providers = target::Providers{}, .joint = &joint});
    graph::Partition p = graph::partition(functional, joint);
    for (const graph::Input& in : p.backward.inputs) types.push_back(p.backward.type(in.value));
    if (request.custom)
      if (const AotCompilers aot(request.custom); aot.forward)
        return make_aot_training(std::move(p), types, request, aot, written_inputs(graph), std::move(replay));
    Step forward = request.custom ? step_of_custom(std::move(p.forward), request.custom, &request.examples)
                                  : step_of(std::move(p.forward));
    forward = counting_versions(std::move(forward), forward_steps(request), written_inputs(graph));
    auto whole = std::make_shared<const graph::Graph>(std::move(p.backward));
    Specialize specialize;
    if (!request.joint.zeros)
      specialize = [whole](const std::vector<bool>& tangent, const std::vector<bool>& absent) {
        graph::Pruned part = graph::without_tangents(*whole, tangent, absent);
        return Variant{step_of(std::move(part.graph)), std::move(part.inputs), std::move(part.outputs),
                       std::move(part.left_out)};
      };
    return make_training_runner(std::move(p), {}, types, std::move(forward), step_of(*whole), std::move(specialize),
                                request.version_steps, std::move(replay));
  }
  const compile::CompileTarget environment = entry::environment(graph, request.options);
  std::vector<run::InputAddress> addresses;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const graph::Input& in = graph.inputs[i];
    const bool parameter = in.kind != graph::InputKind::kUser ||
                           (in.requires_grad && i < request.examples.size() && request.examples[i].is_leaf());
    addresses.push_back(parameter ? run::InputAddress::kStatic : run::InputAddress::kVaries);
  }
  compile::Training t;
  Memory memory;
  std::shared_ptr<run::Executable> forward, backward;
  build_and_load(request.options, report, [&] {
    t = compile::compile_training(graph, request.joint, request.options, environment, report);
    types.clear();
    for (const auto& in : t.backward.inputs) types.push_back(in.type);
    addresses.resize(t.forward.inputs.size());
    memory = memory_of(addresses, forward_steps(request), t);
    forward = load(std::move(t.forward), request.options, report, memory.forward);
    backward = load(std::move(t.backward), request.options, report, memory.backward);
    return 0;
  });
  Specialize specialize;
  if (!t.backward_graph.empty())
    specialize = [text = std::move(t.backward_graph), options = request.options, environment,
                  whole = memory.backward.addresses](const std::vector<bool>& tangent,
                                                     const std::vector<bool>& absent) {
      const WithGil gil;  // as for any compilation; the autograd engine let it go
      graph::Pruned part = graph::without_tangents(graph::parse(text), tangent, absent);
      run::LoadOptions how{.converts = true};
      for (int32_t i : part.inputs) how.addresses.push_back(whole.at(static_cast<size_t>(i)));
      compile::Report discarded;
      std::shared_ptr<run::Executable> e;
      try {
        e = build_and_load(options, discarded, [&] {
          plan::Plan plan;
          with_stack(kCompileStack,
                     [&] { plan = compile::compile_backward(part.graph, options, environment, discarded); });
          return load(std::move(plan), options, discarded, how);
        });
      } catch (const Interrupted&) {  // through the autograd engine, which knows Python's errors
        python_error error;
        error.persist();
        throw error;
      }
      return Variant{step_of(std::move(e)), std::move(part.inputs), std::move(part.outputs), std::move(part.left_out)};
    };
  std::vector<TensorType> forward_types;
  for (const graph::Input& in : graph.inputs) forward_types.push_back(graph.type(in.value));
  auto runner =
      make_training_runner(std::move(t.signature), forward_types, std::move(types), step_of(forward), step_of(backward),
                           std::move(specialize), request.version_steps, std::move(replay));
  runner->executables = {{"forward", std::move(forward)}, {"backward", std::move(backward)}};
  return runner;
}

}  // namespace

bool takes_torch_calls(PyObject* custom) {
  PyObject* says = PyObject_GetAttrString(custom, "compiles_backwards");
  PyErr_Clear();
  Py_XDECREF(says);
  return says != Py_True;
}

std::unique_ptr<Runner> make_torch_runner(const frame::Capture& capture, PyObject* custom,
                                          const std::vector<at::Tensor>& examples) {
  return std::make_unique<OfTorchCalls>(capture, custom, examples);
}

void pretend_gpu(int capability, int processors) { pretended = {capability, processors, 0, 0, 2048}; }

plan::Plan compile_plan(graph::Graph graph, const compile::Options& options,
                        const std::optional<kernel::triton::Gpu>& gpu) {
  compile::Report report;
  const compile::CompileTarget environment = entry::environment(graph, options, gpu);
  plan::Plan plan = compile::compile(std::move(graph), options, environment, report);
  // What is kept, and what leaves, is known to load: here, or as far as can be seen without the machine.
  gpu ? plan::verify(plan) : static_cast<void>(run::load(plan));
  compile::loaded(report, options);
  return plan;
}

std::unique_ptr<Runner> make_runner(graph::Graph graph, const Request& request, compile::Report& report) {
  if (request.backend == kExportBackend) return std::make_unique<Captured>();
  if (request.joint.present) return make_training(std::move(graph), request, report);
  if (request.custom || request.backend == "eager") {
    const std::vector<int32_t> written = written_inputs(graph);
    std::unique_ptr<Runner> runner;
    if (request.custom) {
      runner = std::make_unique<Custom>(graph, request.custom, request.examples);
    } else {
      report.extern_calls = static_cast<int64_t>(graph.nodes.size());
      runner = std::make_unique<Interpreted>(std::move(graph));
    }
    return written.empty() ? std::move(runner) : counting_versions(std::move(runner), request.version_steps, written);
  }
  const compile::CompileTarget environment = entry::environment(graph, request.options);
  run::LoadOptions how{.version_steps = request.version_steps};
  std::shared_ptr<run::Executable> executable = build_and_load(request.options, report, [&] {
    return load(compile::compile(graph, request.options, environment, report), request.options, report, how);
  });
  auto runner = std::make_unique<Planned>(executable);
  runner->executables = {{"", std::move(executable)}};
  return runner;
}

}  // namespace flashover::entry
