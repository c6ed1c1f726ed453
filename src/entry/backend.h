// Backends turn a captured graph into something that runs.
//   flashover   the pipeline: passes, loops, kernels, plan (compile/pipeline.h), run by run/
//   eager       the graph itself, operator by operator: for finding out whether capture or compiler is at fault
//   a callable  the user's: given a torch.fx.GraphModule and example inputs (python/flashover/backends.py)
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "graph/joint.h"
#include "ops/version_steps.h"

typedef struct _object PyObject;

namespace flashover::run {
class Executable;
}
namespace flashover::frame {
struct Capture;
}

namespace flashover::entry {

class Runner {
 public:
  virtual ~Runner() = default;
  virtual void run(const at::Tensor* inputs, size_t count, std::vector<at::Tensor>& outputs) = 0;
  virtual bool needs_gil() const { return false; }
  // It takes only addresses off input i, or knows that Python holds it: the caller counts no reference to it. (Torch
  // counts the second reference to a tensor twice, in its Python object too, which needs the GIL.)
  virtual bool borrows(size_t) const { return false; }
  // What runs a plan, for explain(): ("", plan), or "forward" and "backward".
  std::vector<std::pair<std::string, std::shared_ptr<run::Executable>>> executables;
};

struct Request {
  const std::string& backend;
  PyObject* custom = nullptr;
  const compile::Options& options;
  const std::vector<at::Tensor>& examples;  // the inputs of this call
  const graph::Joint& joint;                // present: the graph is forward and backward
  const VersionSteps& version_steps;
};

// Throws Declined, UserError, InternalError; python errors as torch's python_error.
std::unique_ptr<Runner> make_runner(graph::Graph graph, const Request& request, compile::Report& report);

// The same for a backend of the user's that takes the program's calls of torch (frame::Capture::torch_graph): autograd
// sees what it runs.
bool takes_torch_calls(PyObject* custom);
std::unique_ptr<Runner> make_torch_runner(const frame::Capture& capture, PyObject* custom,
                                          const std::vector<at::Tensor>& examples);

// A graph without a backward -> its plan, with the kernels' binaries; nothing is loaded.
// gpu: a machine that need not be here, whose plan is then not loaded.
plan::Plan compile_plan(graph::Graph graph, const compile::Options& options,
                        const std::optional<kernel::triton::Gpu>& gpu = std::nullopt);

// Tests: plans are made for this GPU, whether there is one or not (and do not load where there is none).
void pretend_gpu(int capability, int processors);

}  // namespace flashover::entry
