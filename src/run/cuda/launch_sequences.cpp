// Sets the nodes whose parameters changed, then launches the graph.
#include "run/cuda/launch_sequences.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace flashover::run::cuda {

using plan::StepKind;

std::vector<LaunchSequence> find_launch_sequences(const Program& p) {
  constexpr size_t kMostKernels = 256, kMostSequences = 96;
  std::vector<LaunchSequence> found;
  LaunchSequence now{};
  bool freed = false;
  const auto close = [&] {
    if (now.kernels) found.push_back(now);
    now = {};
    freed = false;
  };
  for (size_t i = 0; i < p.instructions.size(); ++i) {
    const Instruction& in = p.instructions[i];
    const bool launch = in.kind == StepKind::kLaunch && p.plan.kernels[in.step->kernel].cuda.scratch == 0;
    const bool frees = in.kind == StepKind::kRelease;
    if (!(launch || frees || in.makes >= 0) || (in.makes >= 0 && freed) || now.kernels == kMostKernels) close();
    if (launch && in.launch >= 0) {
      if (!now.kernels++ && now.end == 0) now.first = i;
      now.end = i + 1;
    } else if (in.makes >= 0 && now.end == 0) {
      now.first = i;
      now.end = i + 1;
    }
    freed = now.end > 0 && (freed || frees || !p.last_reads[i].empty());
  }
  close();
  if (found.size() > kMostSequences) {
    std::stable_sort(found.begin(), found.end(),
                     [](const LaunchSequence& a, const LaunchSequence& b) { return a.kernels > b.kernels; });
    found.resize(kMostSequences);
  }
  return found;
}

KernelNodeParams node_params(const Launch& l, CallFrame& frame) {
  return {.function = l.function,
          .grid = {l.grid[0], l.grid[1], l.grid[2]},
          .block = {l.threads, 1, 1},
          .shared = l.shared,
          .params = frame.params.data() + l.params,
          .extra = nullptr,
          .kernel = nullptr,
          .context = nullptr};
}

bool LaunchSequences::run(size_t number, Run& run) {
  CallFrame& frame = run.frame;
  const LaunchSequence& s = program_.sequences[number];
  const std::vector<Instruction>& instructions = program_.instructions;
  for (size_t i = s.first; i < s.end; ++i) {
    if (instructions[i].makes >= 0) make_memory(instructions[i], run);
    if (instructions[i].launch >= 0) take_values(instructions[i].launch, run);
  }
  prepare(frame);
  SequenceGraphs& own = *frame.graphs;
  std::unique_ptr<KernelGraph>& graph = own.graphs[number];
  const bool others = own.of != &program_;
  const bool fresh = !graph || (others && own.functions[number] != functions_of(s));
  if (fresh) {
    std::vector<ChainedKernel> all;
    for (size_t i = s.first; i < s.end; ++i) {
      if (instructions[i].launch < 0) continue;
      const Launch& l = program_.launches[instructions[i].launch];
      all.push_back({node_params(l, frame), l.early});
    }
    graph = std::make_unique<KernelGraph>(all);
    own.functions[number] = functions_of(s);
  }
  if (!graph->usable() || !set_changed(s, *graph, fresh, others, frame) || !graph->launch(run.stream)) return give_up();
  for (size_t i = s.first; i < s.end; ++i) {
    if (instructions[i].kind == StepKind::kRelease) release(instructions[i], run);
    let_go(i, run);
  }
  return true;
}

// Graphs to work with. Those that another program has used have its numbers: `of` says so until the end of the call.
void LaunchSequences::prepare(CallFrame& frame) const {
  if (!frame.graphs && shared()) frame.graphs = program_.spare_graphs->take();
  if (frame.graphs && frame.graphs->graphs.size() == program_.sequences.size() &&
      frame.graphs->table.size() == frame.table.size() && frame.graphs->values.size() == frame.values.size())
    return;
  frame.graphs = std::make_unique<SequenceGraphs>();
  frame.graphs->of = &program_;
  frame.graphs->graphs.resize(program_.sequences.size());
  frame.graphs->functions.resize(program_.sequences.size());
  frame.graphs->table.resize(frame.table.size());
  frame.graphs->values.resize(frame.values.size());
}

void LaunchSequences::end(CallFrame& frame, bool first) const {
  if (!frame.graphs) return;
  frame.graphs->of = &program_;
  if (first && shared()) program_.spare_graphs->put(std::move(frame.graphs));
}

std::vector<Function> LaunchSequences::functions_of(const LaunchSequence& s) const {
  std::vector<Function> out;
  for (size_t i = s.first; i < s.end; ++i)
    if (program_.instructions[i].launch >= 0)
      out.push_back(program_.launches[program_.instructions[i].launch].function);
  return out;
}

LaunchSequences::~LaunchSequences() {
  if (shared()) program_.spare_graphs->forget(&program_);
}

// Of a fresh graph the nodes are right, and it is only noted what they have. all: what they have is of other sizes.
bool LaunchSequences::set_changed(const LaunchSequence& s, KernelGraph& graph, bool fresh, bool all,
                                  CallFrame& frame) const {
  SequenceGraphs& own = *frame.graphs;
  size_t kernel = 0;
  for (size_t i = s.first; i < s.end; ++i) {
    const Instruction& in = program_.instructions[i];
    if (in.launch < 0) continue;
    const Launch& l = program_.launches[in.launch];
    const size_t first = in.table, count = in.step->reads.size() + in.step->writes.size();
    bool same = !all;
    for (size_t k = first; k < first + count; ++k)
      if (frame.table[k] != own.table[k]) same = false, own.table[k] = frame.table[k];
    for (uint32_t k = l.values; k < l.values + l.value_count; ++k)
      if (frame.values[k] != own.values[k]) same = false, own.values[k] = frame.values[k];
    if (!same && !fresh && !graph.set(kernel, node_params(l, frame))) return false;
    ++kernel;
  }
  return true;
}

bool LaunchSequences::give_up() {
  usable_.store(false, std::memory_order_relaxed);
  return false;
}

}  // namespace flashover::run::cuda
