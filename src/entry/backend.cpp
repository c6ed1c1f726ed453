#include "entry/backend.h"

#include "base/check.h"
#include "run/run.h"
#include "torch/eval.h"

namespace flashover::entry {
namespace {

class Interpreted final : public Runner {
 public:
  explicit Interpreted(graph::Graph g) : graph_(std::move(g)) {}
  void run(const at::Tensor* inputs, size_t count, std::vector<at::Tensor>& outputs) override {
    outputs = aten::eval_graph(graph_, std::vector<at::Tensor>(inputs, inputs + count));
  }

 private:
  graph::Graph graph_;
};

}  // namespace

std::unique_ptr<Runner> make_runner(graph::Graph graph, const Request& request, compile::Report& report) {
  if (request.backend == "eager") {
    report.extern_calls = static_cast<int64_t>(graph.nodes.size());
    return std::make_unique<Interpreted>(std::move(graph));
  }
  throw Declined("backend: '" + request.backend + "' cannot compile yet");
}

}  // namespace flashover::entry
