// The graph is described for Python as values (functional, forward and backward in one), so that each can be computed
// alone; detection compares the real runners.
#include "entry/checked.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <map>
#include <string>
#include <utility>

#include "base/boundary.h"
#include "base/check.h"
#include "base/unexpected_size.h"
#include "compat/python_lock.h"
#include "entry/entry.h"
#include "entry/python_graph.h"
#include "graph/analysis/symbolic.h"
#include "graph/checkpoint.h"
#include "graph/passes.h"

namespace flashover::entry {
namespace {

PyObject* tuple_of(const at::Tensor* tensors, size_t count) {
  Reference out(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (size_t i = 0; i < count; i++) {
    PyObject* t = tensors[i].defined() ? THPVariable_Wrap(tensors[i]) : Py_NewRef(Py_None);
    if (!t) throw python_error();
    PyTuple_SET_ITEM(out.p, static_cast<Py_ssize_t>(i), t);
  }
  return out.release();
}

void run_without_gil(Runner& runner, const std::vector<at::Tensor>& inputs, std::vector<at::Tensor>& outputs) {
  if (runner.needs_gil()) return runner.run(inputs.data(), inputs.size(), outputs);
  PyThreadState* saved = PyEval_SaveThread();
  try {
    runner.run(inputs.data(), inputs.size(), outputs);
  } catch (...) {
    compat::take_lock_again(saved);
    throw;
  }
  compat::take_lock_again(saved);
}

constexpr const char* kRunnerCapsule = "flashover.runner";
using SharedRunner = std::shared_ptr<Runner>;

// (tensors) -> tensors; None: what the graph took for granted is not so, another version serves the call.
PyObject* run_by_python(PyObject* capsule, PyObject* given) {
  auto* runner = static_cast<SharedRunner*>(PyCapsule_GetPointer(capsule, kRunnerCapsule));
  if (!runner) return nullptr;
  try {
    Reference items(PySequence_Fast(given, "the inputs of a graph are a sequence of tensors"));
    std::vector<at::Tensor> inputs, outputs;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.p); i++) {
      PyObject* t = PySequence_Fast_GET_ITEM(items.p, i);
      inputs.push_back(THPVariable_Check(t) ? THPVariable_Unpack(t) : at::Tensor());
    }
    run_without_gil(**runner, inputs, outputs);
    return tuple_of(outputs.data(), outputs.size());
  } catch (python_error& error) {
    error.restore();
  } catch (const UnexpectedSize&) {
    Py_RETURN_NONE;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}
PyMethodDef run_method = {"run", at_boundary<run_by_python>, METH_O, "Runs a graph on tensors."};

PyObject* function_of(const SharedRunner& runner) {
  auto held = std::make_unique<SharedRunner>(runner);
  Reference capsule(PyCapsule_New(held.get(), kRunnerCapsule, [](PyObject* c) {
    delete static_cast<SharedRunner*>(PyCapsule_GetPointer(c, kRunnerCapsule));
  }));
  static_cast<void>(held.release());
  return Reference(PyCFunction_New(&run_method, capsule.p)).release();
}

template <typename T>
PyObject* pairs(const std::vector<std::pair<T, T>>& all) {
  Reference out(PyList_New(0));
  for (const auto& [a, b] : all) {
    Reference pair(Py_BuildValue("(ii)", static_cast<int>(a), static_cast<int>(b)));
    if (PyList_Append(out.p, pair.p) != 0) throw python_error();
  }
  return out.release();
}

// By output of the traced graph: the operator that made it, and the program's line.
PyObject* makers_of(const graph::Graph& traced) {
  std::map<ValueId, const graph::Node*> makers;
  for (const graph::Node& n : traced.nodes)
    for (const ValueId v : n.outs) makers.emplace(v, &n);
  Reference out(PyList_New(0));
  for (const graph::Output& o : traced.outputs) {
    const auto found = makers.find(o.value);
    const graph::Node* n = found == makers.end() ? nullptr : found->second;
    const std::string place =
        n && n->location >= 0 ? graph::str(traced.facts.locations[static_cast<size_t>(n->location)]) : "";
    Reference maker(Py_BuildValue("(ss)", n ? n->op->name.c_str() : "", place.c_str()));
    if (PyList_Append(out.p, maker.p) != 0) throw python_error();
  }
  return out.release();
}

using Pairs = std::vector<std::pair<int32_t, int32_t>>;

// What becomes of a graph, in words of its inputs and outputs; `values`: what its outputs are to be.
struct Described {
  std::vector<ValueId> values;
  Pairs results, written, gradients, tangents, late;
  int32_t add(ValueId v) {
    values.push_back(v);
    return static_cast<int32_t>(values.size() - 1);
  }
};

Described described(const graph::Graph& g, const graph::Joint& joint) {
  Described d;
  const size_t results = joint.present ? joint.results.size() : g.outputs.size();
  const size_t visible = results - (joint.present ? joint.extra.size() : 0);
  for (size_t i = 0; i < results; ++i) {
    const graph::Output& o = g.outputs[i];
    const bool whole = o.kind == graph::Output::Kind::kValue;
    const int32_t written = i < visible ? -1 : joint.extra[i - visible];
    if (i < visible)
      d.results.emplace_back(static_cast<int32_t>(i), whole ? d.add(o.value) : -1);
    else if (written >= 0)
      d.written.emplace_back(written, whole ? d.add(o.value) : -1);
    if (!joint.present || joint.results[i].tangent < 0) continue;
    const int32_t tangent = joint.tangents.at(static_cast<size_t>(joint.results[i].tangent));
    if (i < visible || written >= 0)
      d.tangents.emplace_back(tangent, i < visible ? static_cast<int32_t>(i) : -1 - written);
  }
  for (const graph::Mutation& m : g.mutations) d.written.emplace_back(m.input, d.add(m.value));
  for (size_t i = 0; joint.present && i < joint.gradients.size(); ++i) {
    const graph::Output& o = g.outputs.at(results + i);
    d.gradients.emplace_back(joint.gradients[i], o.kind == graph::Output::Kind::kValue ? d.add(o.value) : -1);
  }
  if (joint.present)
    for (const graph::Joint::Late& l : joint.late) d.late.emplace_back(l.number, l.input);
  return d;
}

// None: it has no form as values.
PyObject* describe(const graph::Graph& traced, const graph::Joint& facts) {
  const sym::AssumeScope assume(traced.facts.sizes);
  graph::Joint joint = facts;
  graph::Graph g(graph::kNewProgram);
  try {
    g = graph::run_pipeline(graph::Pipeline::kCustom, traced,
                            {.providers = target::Providers{}, .joint = joint.present ? &joint : nullptr});
  } catch (const Declined&) {
    Py_RETURN_NONE;
  }
  const Described d = described(g, joint);
  g.outputs.clear();
  g.mutations.clear();
  for (const ValueId v : d.values) {
    graph::Output o;
    o.value = v;
    o.type = g.type(v);
    g.outputs.push_back(o);
  }
  Reference values(to_python(g, true)), lasting(PyList_New(0));
  for (const graph::Input& in : g.inputs) {
    const bool kept = graph::is_lasting(in.kind) && !(joint.present && in.requires_grad);
    if (PyList_Append(lasting.p, kept ? Py_True : Py_False) != 0) throw python_error();
  }
  bool symbols = false;
  for (const graph::Input& in : g.inputs) symbols |= graph::is_symbolic(g.type(in.value));
  Reference places(places_of_symbols(g)), results(pairs(d.results)), written(pairs(d.written)),
      gradients(pairs(d.gradients)), tangents(pairs(d.tangents)), late(pairs(d.late)), makers(makers_of(traced));
  return Py_BuildValue("{s:O,s:O,s:O,s:O,s:O,s:O,s:O,s:O,s:O,s:O,s:O}", "graph", values.p, "makers", makers.p,
                       "lasting", lasting.p, "places", places.p, "results", results.p, "written", written.p,
                       "gradients", gradients.p, "tangents", tangents.p, "late", late.p, "symbols",
                       symbols ? Py_True : Py_False, "training", joint.present ? Py_True : Py_False);
}

class Checked final : public Runner {
 public:
  Checked(PyObject* watched, SharedRunner compiled, SharedRunner eager)
      : watched_(watched), runner_(std::move(compiled)) {
    Reference fast(function_of(runner_)), slow(function_of(eager));
    compiled_ = fast.release();
    eager_ = slow.release();
    executables = runner_->executables;
  }
  ~Checked() override {
    const PyGILState_STATE gil = PyGILState_Ensure();
    Py_XDECREF(watched_);
    Py_XDECREF(compiled_);
    Py_XDECREF(eager_);
    PyGILState_Release(gil);
  }
  bool needs_gil() const override { return true; }
  void run(const at::Tensor* inputs, size_t count, std::vector<at::Tensor>& outputs) override {
    {
      Reference given(tuple_of(inputs, count));
      Reference done(PyObject_CallMethod(watched_, "call", "OOO", given.p, compiled_, eager_));
    }
    run_without_gil(*runner_, std::vector<at::Tensor>(inputs, inputs + count), outputs);
    Reference done(PyObject_CallMethod(watched_, "ended", nullptr));
  }

 private:
  PyObject* watched_;
  SharedRunner runner_;
  PyObject *compiled_ = nullptr, *eager_ = nullptr;
};

}  // namespace

std::unique_ptr<Runner> make_checked(graph::Graph graph, const Request& request, compile::Report& report,
                                     PyObject* watcher) {
  static const std::string kOperators = "eager";
  Reference description(describe(graph, request.joint));
  Reference inputs(tuple_of(request.examples.data(), request.examples.size()));
  Reference watched(PyObject_CallMethod(watcher, "graph", "OO", description.p, inputs.p));
  compile::Report of_eager;
  SharedRunner eager = make_runner(
      graph, {kOperators, nullptr, request.options, request.examples, request.joint, request.version_steps}, of_eager);
  SharedRunner compiled;
  try {
    compiled = make_runner(std::move(graph), request, report);
  } catch (const EnvironmentFailure& error) {
    Reference told(PyObject_CallMethod(watched.p, "failed", "s", error.what()));
    throw;
  } catch (const InternalError& error) {
    Reference told(PyObject_CallMethod(watched.p, "failed", "s", error.what()));
    throw;
  }
  return std::make_unique<Checked>(watched.release(), std::move(compiled), std::move(eager));
}

}  // namespace flashover::entry
