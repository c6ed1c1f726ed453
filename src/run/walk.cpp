// One loop over the instructions; what CUDA graphs leave out is asked of few calls only.
#include "run/walk.h"

#include <ATen/ops/copy.h>

#include <cstring>

#include "cpu_kernels/team.h"
#include "run/cuda/launch_sequences.h"
#include "run/cuda/record.h"
#include "run/extern_call.h"
#include "run/tensor_memory.h"

namespace flashover::run {

using plan::StepKind;
using plan::StorageKind;
using plan::TensorId;

namespace {

[[noreturn]] void fail_index(const Program& p, const plan::Step& s, int32_t status) {
  const auto& errors = p.plan.kernels[s.kernel].errors;
  const auto i = static_cast<size_t>(status) - 1;
  throw c10::IndexError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                        status > 0 && i < errors.size() ? plan::with_sizes(errors[i], p.symbols->sources, p.values)
                                                        : "index out of range");
}

void launch_on_cuda(const Instruction& in, Run& run) {
  if (in.launch < 0) return;
  const Launch& l = run.program.launches[in.launch];
  if (run.scope == WalkScope::kAll) take_values(in.launch, run);
  cuda::check(cuda::driver()->launch(l.function, l.grid[0], l.grid[1], l.grid[2], l.threads, 1, 1, l.shared, run.stream,
                                     run.frame.params.data() + l.params, nullptr),
              "cuLaunchKernel");
  if (run.nodes) run.nodes->push_back(cuda::last_node(run.stream));
}

int32_t call_kernel(const Instruction& in, const Run& run) {
  return in.fn(run.frame.table.data() + in.table, run.program.numbers.data() + in.sizes, &cpu::share);
}

void launch(const Instruction& in, Run& run) {
  if (run.program.device >= 0) return launch_on_cuda(in, run);
  if (const int32_t status = call_kernel(in, run)) fail_index(run.program, *in.step, status);
}

// Returns the last of the batch's instructions.
const Instruction* run_batch(const Instruction* first, Run& run) {
  const Batch& batch = run.program.batches[first->batch];
  std::vector<int32_t> statuses(static_cast<size_t>(batch.count));
  const auto launch_one = [&](int32_t step) {
    statuses[static_cast<size_t>(step - batch.first)] = call_kernel(first[step - batch.first], run);
  };
  for (int32_t step : batch.alone) launch_one(step);
  run_shared(batch, launch_one);
  for (int32_t i = 0; i < batch.count; ++i) {
    if (const int32_t status = statuses[static_cast<size_t>(i)]) fail_index(run.program, *first[i].step, status);
    let_go(static_cast<size_t>(batch.first + i), run);
  }
  return first + batch.count - 1;
}

void perform(const Instruction& in, Run& run) {
  switch (in.kind) {
    case StepKind::kLaunch:
      launch(in, run);
      break;
    case StepKind::kCall:
      if (in.makes >= 0)
        make_memory(in, run);
      else
        call_operator(*run.program.calls[in.call], run);
      break;
    case StepKind::kCopy:
      tensor_of(run, in.step->writes[0]).copy_(tensor_of(run, in.step->reads[0]));
      break;
    case StepKind::kRelease:
      release(in, run);
      break;
  }
}

// The first time with so many threads shows whether a team that stands by would have paid off.
template <typename F>
void walk_stretch(CallFrame::StretchWalk& way, const F& walk) {
  if (const int threads = cpu::team_size(); way.threads != threads) {
    cpu::saved_by_team();
    walk();
    way = {threads, cpu::saved_by_team() > 0};
  } else if (way.with_team) {
    cpu::with_team(walk);
  } else {
    walk();
  }
}

// Whether step `at` runs in this scope. (The host's share of a launch is the numbers that the launch takes along.)
bool in_scope(const Instruction& in, size_t at, Run& run) {
  if (in.kind == StepKind::kLaunch && run.scope == WalkScope::kHost) {
    if (in.launch >= 0) take_values(in.launch, run);
    return false;
  }
  return (*run.host_steps)[at] == (run.scope == WalkScope::kHost);
}

}  // namespace

void walk(const std::vector<Instruction>& instructions, Run& run) {
  const Instruction* const begin = instructions.data();
  const Instruction* const end = begin + instructions.size();
  const Instruction* in = begin;
  const auto note = [&] { run.frame.at = run.outputs ? static_cast<size_t>(in - begin) : 0; };
  const auto walk_to = [&](const Instruction* last) {
    for (; in != last; ++in) {
      const auto at = static_cast<size_t>(in - begin);
      if (run.scope != WalkScope::kAll) [[unlikely]]
        if (!in_scope(*in, at, run)) continue;
      if (run.sequences && in->sequence >= 0) {
        if (run.sequences->run(static_cast<size_t>(in->sequence), run)) {
          in = begin + run.program.sequences[static_cast<size_t>(in->sequence)].end - 1;
          continue;
        }
        run.sequences = nullptr;
      }
      if (in->batch >= 0 && !run.observer) {
        in = run_batch(in, run);
        continue;
      }
      if (run.observer) [[unlikely]]
        run.observer->begin(at);
      perform(*in, run);
      if (run.observer) [[unlikely]]
        run.observer->end(at);
      let_go(at, run);
    }
  };
  try {
    if (!run.observer && run.outputs)
      for (size_t i = 0; i < run.program.stretches.size(); ++i) {
        const Stretch& s = run.program.stretches[i];
        walk_to(begin + s.first);
        walk_stretch(run.frame.stretches[i], [&] { walk_to(begin + s.end); });
      }
    walk_to(end);
  } catch (Mismatch& m) {
    m.step = static_cast<size_t>(in - begin);
    m.clean = !run.outputs;  // frozen steps write nothing that anybody sees
    throw;
  } catch (c10::Error& e) {
    note();
    if (!in->step->label.empty()) e.add_context("in compiled code for " + in->step->label);
    throw;
  } catch (...) {
    note();
    throw;
  }
}

at::Tensor tensor_of(Run& run, TensorId t) {
  const Program& p = run.program;
  const TensorId r = p.roots[t];
  const plan::Tensor& base = p.plan.tensors[r];
  at::Tensor whole;
  switch (base.storage) {
    case StorageKind::kArena:
      return arena_tensor(p, run.frame, t);
    case StorageKind::kInput:
      whole = borrow(run.inputs[base.index]);
      break;
    case StorageKind::kOutput:
      whole = (*run.outputs)[base.index];
      break;
    case StorageKind::kExtern:
      whole = run.frame.tensors[r];
      break;
    case StorageKind::kFrozen:
      whole = run.frozen ? (*run.frozen)[r] : run.frame.frozen->tensors[r];
      break;
    case StorageKind::kView:
      break;
  }
  if (r == t) return whole;
  const Shape& shape = p.shapes[t];
  return view_of(whole, shape.dtype, shape.sizes, shape.strides,
                 p.offsets[t] / static_cast<int64_t>(c10::elementSize(shape.dtype)));
}

void take_values(int32_t launch, Run& run) {
  const Program& p = run.program;
  const Launch& l = p.launches[static_cast<size_t>(launch)];
  for (uint32_t i = l.values; i < l.values + l.value_count; ++i) {
    uint64_t value = 0;
    std::memcpy(&value, run.frame.table[p.host_values[i].slot], p.host_values[i].bytes);
    if (run.frame.values[i] != value && run.stale) (*run.stale)[static_cast<size_t>(launch)] = true;
    run.frame.values[i] = value;
  }
}

void make_memory(const Instruction& in, Run& run) {
  at::Tensor& memory = run.frame.tensors[in.makes];
  memory = run.program.shapes[in.makes].empty();
  patch_late(run.program, run.frame, in.makes, memory);
}

void release(const Instruction& in, Run& run) {
  for (TensorId t : in.step->reads) run.frame.tensors[t].reset();
}

}  // namespace flashover::run
