// Captures what a call does on the device, and changes the nodes of what moved before each replay.
#include "run/cuda/recording.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/copy.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "run/cuda/launch_sequences.h"
#include "run/cuda/record.h"
#include "run/frozen_tensors.h"
#include "run/outputs.h"
#include "run/tensor_memory.h"
#include "run/walk.h"

namespace flashover::run::cuda {

using plan::StepKind;

namespace {

// Temporaries of graphs that replay on one stream, never two at a time.
std::shared_ptr<CallMemory> shared_memory(int device, Stream stream, int64_t bytes, bool scratch) {
  struct Kept {
    std::weak_ptr<CallMemory> memory;
    int64_t bytes = 0;
  };
  static std::mutex mutex;
  static auto* all = new std::map<std::tuple<int, Stream, bool>, Kept>;
  const std::lock_guard lock(mutex);
  Kept& kept = (*all)[{device, stream, scratch}];
  std::shared_ptr<CallMemory> memory = kept.memory.lock();
  if (!memory || kept.bytes < bytes) {
    memory = std::make_shared<CallMemory>(static_cast<size_t>(bytes));
    kept = {memory, bytes};
  }
  return memory;
}

void prepare(const Program& p, Recording& r, Stream stream) {
  r.stream = stream;
  r.frame = make_frame(p);
  r.frame->at = SIZE_MAX;
  r.inputs.resize(p.plan.inputs.size());
  r.fixed.resize(p.plan.inputs.size());
  r.outputs.resize(p.plan.outputs.size());
  r.stale.assign(p.launches.size(), false);
  r.nodes.resize(p.launches.size());
  r.arena = shared_memory(p.device, stream, p.arena_bytes, false);
  r.scratch = shared_memory(p.device, stream, p.scratch_bytes, true);
  r.frame->scratch = r.scratch->get();
}

// The inputs to record with: a buffer for each that operators read and whose address varies.
std::vector<c10::TensorImpl*> recorded_inputs(const Program& p, const GraphPlan& g,
                                              const std::vector<InputAddress>& addresses, Recording& r,
                                              c10::TensorImpl* const* inputs) {
  std::vector<c10::TensorImpl*> used(inputs, inputs + p.plan.inputs.size());
  for (size_t i = 0; i < used.size(); ++i) {
    if (!g.operator_inputs[i]) continue;
    if (addresses[i] != InputAddress::kVaries) {
      r.fixed[i] = data_of(used[i]);
      continue;
    }
    const Shape& shape = p.input_shapes[i];
    r.inputs[i] =
        view_of(flat(p, static_cast<int32_t>(i), used[i]).clone(), shape.dtype, shape.sizes, shape.strides, 0);
    used[i] = r.inputs[i].unsafeGetTensorImpl();
  }
  return used;
}

void capture_steps(const Program& p, const GraphPlan& g, Recording& r, c10::TensorImpl* const* inputs) {
  std::vector<at::Tensor> made(p.plan.outputs.size());
  allocate_outputs(p, made);
  std::vector<Node> nodes;
  {
    StreamCapture capture(p.device, g.any_pool_outputs);
    Run run{.program = p,
            .frame = *r.frame,
            .inputs = inputs,
            .outputs = &made,
            .stream = capture.stream(),
            .nodes = &nodes,
            .scope = WalkScope::kDevice,
            .host_steps = &g.host_steps};
    rebase_arena(p, *r.frame, r.arena->get());
    patch_inputs(*r.frame, inputs, p.input_patches);
    patch_outputs(p, *r.frame, made);
    walk(p.instructions, run);
    for (const LateOutput& o : p.late_outputs)
      if (g.operator_outputs[o.index]) finish_output(run, o.index, o.adopt);
    r.exec = capture.finish(r.graph);
  }
  release_tensors(p, *r.frame);
  size_t next = 0;
  for (const Instruction& in : p.instructions)
    if (in.kind == StepKind::kLaunch && in.launch >= 0) r.nodes[in.launch] = nodes.at(next++);
  for (size_t i = 0; i < made.size(); ++i)
    if (g.operator_outputs[i] || g.pool_outputs[i]) r.outputs[i] = std::move(made[i]);
}

// Many small copies are few launches.
struct Copies {
  std::vector<at::Tensor> to, from;
  void add(at::Tensor target, at::Tensor source) {
    to.push_back(std::move(target));
    from.push_back(std::move(source));
  }
  void run() {
    std::vector<bool> done(to.size());
    for (size_t i = 0; i < to.size(); ++i) {
      if (done[i]) continue;
      std::vector<at::Tensor> some_to, some_from;
      for (size_t k = i; k < to.size(); ++k) {
        if (done[k] || to[k].scalar_type() != to[i].scalar_type() || to[k].device() != to[i].device() ||
            to[k].device() != from[k].device())
          continue;
        some_to.push_back(to[k]);
        some_from.push_back(from[k]);
        done[k] = true;
      }
      if (some_to.size() > 1)
        at::_foreach_copy_(some_to, some_from);
      else
        to[i].copy_(from[i]);
    }
  }
};

void set_slot(const GraphPlan& g, Recording& r, uint32_t slot, void* value) {
  if (r.frame->table[slot] == value) return;
  r.frame->table[slot] = value;
  if (g.slot_launch[slot] >= 0) r.stale[g.slot_launch[slot]] = true;
}

void run_host_steps(const Program& p, const GraphPlan& g, Recording& r, c10::TensorImpl* const* inputs,
                    std::vector<at::Tensor>& outputs) {
  if (p.host_values.empty() && std::find(g.host_steps.begin(), g.host_steps.end(), true) == g.host_steps.end()) return;
  const ReleasesTensors release{p, *r.frame};
  Run run{.program = p,
          .frame = *r.frame,
          .inputs = inputs,
          .outputs = &outputs,
          .stream = r.stream,
          .stale = &r.stale,
          .scope = WalkScope::kHost,
          .host_steps = &g.host_steps};
  walk(p.instructions, run);
  for (const LateOutput& o : p.late_outputs)
    if (!g.operator_outputs[o.index]) finish_output(run, o.index, o.adopt);
}

void update_nodes(const Program& p, Recording& r) {
  for (size_t i = 0; i < r.stale.size(); ++i) {
    if (!r.stale[i]) continue;
    const KernelNodeParams params = node_params(p.launches[i], *r.frame);
    check(driver()->exec_set_kernel(r.exec, r.nodes[i], &params), "cuGraphExecKernelNodeSetParams");
    r.stale[i] = false;
  }
}

}  // namespace

bool Recording::suits(c10::TensorImpl* const* given) const {
  for (size_t i = 0; i < fixed.size(); ++i)
    if (fixed[i] && fixed[i] != data_of(given[i])) return false;
  return true;
}

std::unique_ptr<Recording> record(const Program& p, const GraphPlan& g, const std::vector<InputAddress>& addresses,
                                  FrozenCache& frozen, c10::TensorImpl* const* inputs, Stream stream,
                                  size_t& failed_at) {
  auto r = std::make_unique<Recording>();
  failed_at = SIZE_MAX;
  try {
    prepare(p, *r, stream);
    const std::vector<c10::TensorImpl*> used = recorded_inputs(p, g, addresses, *r, inputs);
    if (!p.frozen_instructions.empty()) sync_frozen(p, frozen, *r->frame, inputs, stream);
    r->frozen = r->frame->frozen;
    capture_steps(p, g, *r, used.data());
  } catch (const Mismatch& m) {
    failed_at = m.step;
    throw;
  } catch (...) {
    if (r->frame) failed_at = r->frame->at;
    throw;
  }
  if (g.any_pool_outputs) r->reservation = std::make_unique<PoolReservation>(p.device, g.pool_bytes);
  return r;
}

void replay(const Program& p, const GraphPlan& g, Recording& r, c10::TensorImpl* const* inputs,
            std::vector<at::Tensor>& outputs) {
  Copies in, out;
  for (size_t i = 0; i < r.inputs.size(); ++i)
    if (r.inputs[i].defined())
      in.add(flat(p, static_cast<int32_t>(i), r.inputs[i].unsafeGetTensorImpl()),
             flat(p, static_cast<int32_t>(i), inputs[i]));
  in.run();
  for (const Patch& patch : p.input_patches)
    if (!r.inputs[patch.index].defined()) set_slot(g, r, patch.slot, data_of(inputs[patch.index]) + patch.bytes);
  for (int32_t i : p.owned_outputs)
    if (!g.pool_outputs[i]) outputs[i] = p.shapes[p.plan.outputs[i].tensor].empty();
  run_host_steps(p, g, r, inputs, outputs);
  for (const Patch& patch : p.output_patches)
    if (!r.outputs[patch.index].defined())
      set_slot(g, r, patch.slot, data_of(outputs[patch.index].unsafeGetTensorImpl()) + patch.bytes);
  update_nodes(p, r);
  if (g.draws)
    capture_hooks.replay(r.graph.get());
  else
    check(driver()->graph_launch(r.exec, r.stream), "cuGraphLaunch");
  for (size_t i = 0; i < r.outputs.size(); ++i) {
    if (!r.outputs[i].defined()) continue;
    if (g.pool_outputs[i]) {
      outputs[i] = pool_output(r.outputs[i], r.live_outputs);
      continue;
    }
    if (!outputs[i].defined()) outputs[i] = p.shapes[p.plan.outputs[i].tensor].empty();
    out.add(outputs[i], r.outputs[i]);
  }
  for (int32_t i : p.mutated)
    if (r.inputs[i].defined()) out.add(flat(p, i, inputs[i]), flat(p, i, r.inputs[i].unsafeGetTensorImpl()));
  out.run();
  narrow_outputs(p, outputs);
}

}  // namespace flashover::run::cuda
