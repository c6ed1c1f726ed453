// A loaded plan: the program, and the parts that its calls go through.
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "cpu_kernels/operators.h"
#include "run/arena.h"
#include "run/cuda/aligned_inputs.h"
#include "run/cuda/call_memory.h"
#include "run/cuda/graph_cache.h"
#include "run/cuda/launch_sequences.h"
#include "run/cuda/operators.h"
#include "run/cuda/record.h"
#include "run/dispatch_level.h"
#include "run/frame.h"
#include "run/frozen_tensors.h"
#include "run/outputs.h"
#include "run/program.h"
#include "run/run.h"
#include "run/size_points.h"
#include "run/sized_executable.h"
#include "run/step_observer.h"
#include "run/sub_plans.h"
#include "run/undo.h"
#include "run/walk.h"

namespace flashover::run {
namespace {

using Consumed = std::vector<at::Tensor>;

// The arena slot of a thread keeps what the loaded plans need.
class AnnouncedArena {
 public:
  explicit AnnouncedArena(const Program& p) : bytes_(p.device < 0 ? p.arena_bytes : -1) {
    if (bytes_ >= 0) announce_arena(static_cast<size_t>(bytes_));
  }
  ~AnnouncedArena() {
    if (bytes_ >= 0) forget_arena(static_cast<size_t>(bytes_));
  }
  AnnouncedArena(const AnnouncedArena&) = delete;

 private:
  const int64_t bytes_;
};

struct BorrowedArena {
  Arena arena;
  explicit BorrowedArena(int64_t bytes) : arena(take_arena(static_cast<size_t>(bytes))) {}
  ~BorrowedArena() { give_arena(arena); }
  BorrowedArena(const BorrowedArena&) = delete;
};

std::shared_ptr<FrozenCache> frozen_cache(std::vector<int32_t> inputs, const LoadOptions& options) {
  auto cache = std::make_shared<FrozenCache>();
  cache->depend_on(std::move(inputs), options.inputs_seen);
  return cache;
}

// The program never changes; what calls write lies in the parts beside it.
class PlanExecutable final : public Executable {
 public:
  // shared: with other sizes of the plan (sized_executable.h), or with the plan that this one is a sub-plan of, at
  // depth `depth` (sub_plans.h).
  PlanExecutable(const CommonProgram& common, const LoadOptions& options, std::span<const int64_t> values = {},
                 SharedResources shared = {}, int depth = 0)
      : program_(make_program(common, options, values)),
        arena_(*program_),
        frozen_(shared.frozen ? std::move(shared.frozen) : frozen_cache(program_->frozen.inputs, options)),
        undo_(*program_, shared.proven),
        sequences_(*program_),
        sub_plans_(*program_, depth, &load_sub_plan),
        times_(program_->plan.steps.size()) {
    if (options.graphs && program_->device >= 0)
      graphs_ = std::make_unique<cuda::GraphCache>(*program_, *frozen_, sub_plans_, options);
    if (options.sub_plans > 1)
      if (const Cuts cuts = even_cuts(program_->plan, static_cast<size_t>(options.sub_plans)); cuts.ends.size() > 1)
        sub_plans_.cut(cuts, {}, {});
  }

  const plan::Plan& plan() const override { return program_->plan; }
  bool heavy() const override { return program_->heavy; }
  void measure(bool on) override { measured_ = on; }
  std::vector<double> times() const override { return times_.get(); }
  Counters counters() const override {
    return {.calls = calls_.load(std::memory_order_relaxed),
            .frozen_runs = frozen_->runs(),
            .graph_replays = (graphs_ ? graphs_->replays() : 0) + sub_plans_.graph_replays(),
            .content_checks = frozen_->content_checks()};
  }

  std::vector<at::Tensor> frozen_tensors(c10::TensorImpl* const* inputs) override {
    const Program& p = *program_;
    if (p.frozen_instructions.empty() || p.device >= 0) return {};
    FramePool::Borrowed frame(frames_, p);
    sync_frozen(p, *frozen_, *frame, inputs, nullptr);
    return (*frame).frozen->tensors;
  }
  bool supply_frozen(c10::TensorImpl* const* inputs, std::vector<at::Tensor> tensors) override {
    if (program_->device >= 0) return false;
    frozen_->supply(inputs, std::move(tensors));
    return true;
  }

  void run(c10::TensorImpl* const* inputs, size_t count, std::vector<at::Tensor>& outputs) override {
    call(inputs, count, outputs, nullptr);
  }
  void run_consuming(std::vector<at::Tensor>&& inputs, std::vector<at::Tensor>& outputs) override {
    std::vector<c10::TensorImpl*> pointers;
    for (const at::Tensor& t : inputs) pointers.push_back(t.unsafeGetTensorImpl());
    call(pointers.data(), pointers.size(), outputs, &inputs);
  }

 private:
  static SubPlans::Loaded load_sub_plan(plan::Plan plan, const LoadOptions& options, std::shared_ptr<const Code> code,
                                        int depth) {
    const auto common = make_common(std::move(plan), options, std::move(code));
    auto made =
        std::make_shared<PlanExecutable>(*common, options, std::span<const int64_t>{}, SharedResources{}, depth);
    const Program& p = *made->program_;
    const bool leaves_a_trace = !p.mutated.empty() || p.random;
    return {std::move(made), leaves_a_trace};
  }

  void call(c10::TensorImpl* const* inputs, size_t count, std::vector<at::Tensor>& outputs, Consumed* consumed) {
    const Program& p = *program_;
    if (count != p.plan.inputs.size())
      throw InternalError("run: " + std::to_string(count) + " inputs for a plan of " +
                          std::to_string(p.plan.inputs.size()));
    calls_.fetch_add(1, std::memory_order_relaxed);
    p.written.check(inputs);
    outputs.clear();
    outputs.resize(p.plan.outputs.size());
    FramePool::Borrowed frame(frames_, p);
    call_undoably(*frame, inputs, outputs, consumed);
    if (!p.alias_outputs.empty()) make_aliases(p, inputs, outputs);
  }

  void call_undoably(CallFrame& frame, c10::TensorImpl* const* inputs, std::vector<at::Tensor>& outputs,
                     Consumed* consumed) {
    const Program& p = *program_;
    c10::impl::ExcludeDispatchKeyGuard below(kBelowAutograd);
    const Undo::Kept kept = undo_.keep(inputs);
    frame.at = SIZE_MAX;
    failure_was_undone() = false;
    try {
      if (sub_plans_.exist() && !kept.first && !measured_)
        call_sub_plans(frame, inputs, outputs);
      else if (p.device < 0)
        call_on_cpu(frame, inputs, outputs, consumed);
      else
        call_on_cuda(frame, inputs, outputs, consumed);
    } catch (Mismatch& m) {
      undo_.undo(kept, m);
      m.clean ? p.written.tell_restored(inputs) : p.written.tell(inputs);
      throw;
    } catch (...) {
      if (undo_.undo(kept, frame.at)) failure_was_undone() = true;
      failure_was_undone() || frame.at < p.first_write ? p.written.tell_restored(inputs) : p.written.tell(inputs);
      throw;
    }
    p.written.tell(inputs);
    undo_.succeeded(kept);
  }

  void call_sub_plans(CallFrame& frame, c10::TensorImpl* const* inputs, std::vector<at::Tensor>& outputs) {
    // They have frozen tensors of their own.
    if (frame.frozen) {
      frame.frozen.reset();
      frame.patched_for = nullptr;
      frozen_->forget();
    }
    sub_plans_.run(inputs, outputs);
    narrow_outputs(*program_, outputs);
  }

  void call_on_cpu(CallFrame& frame, c10::TensorImpl* const* inputs, std::vector<at::Tensor>& outputs,
                   Consumed* consumed) {
    const Program& p = *program_;
    const BorrowedArena arena(p.arena_bytes);
    Run run{.program = p, .frame = frame, .inputs = inputs, .outputs = &outputs, .consumed = consumed};
    if (!p.frozen_instructions.empty()) sync_frozen(p, *frozen_, frame, inputs, nullptr);
    execute(run, arena.arena.data);
  }

  void call_on_cuda(CallFrame& frame, c10::TensorImpl* const* inputs, std::vector<at::Tensor>& outputs,
                    Consumed* consumed) {
    const Program& p = *program_;
    // Asking is cheap; setting and setting back are not.
    std::optional<c10::DeviceGuard> guard;
    const auto index = static_cast<c10::DeviceIndex>(p.device);
    if (c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index() != index)
      guard.emplace(c10::Device(c10::kCUDA, index));
    cuda::enter_context(p.device);
    const cuda::Stream stream = cuda::current_stream(p.device);
    if (graphs_ && graphs_->on() && !measured_ && calls_.load(std::memory_order_relaxed) > 1) {
      std::optional<at::RecordFunction> range;
      if (profiled()) [[unlikely]]
        range.emplace(at::RecordScope::USER_SCOPE).before("flashover: CUDA graph");
      if (graphs_->run(inputs, outputs, stream)) return;
    }
    const cuda::CallMemory scratch(static_cast<size_t>(p.scratch_bytes)), arena(static_cast<size_t>(p.arena_bytes));
    frame.scratch = scratch.get();
    cuda::AlignedInputs aligned(p, inputs, p.input_patches);
    Run run{.program = p, .frame = frame, .inputs = aligned.inputs(), .outputs = &outputs, .stream = stream};
    if (!aligned.any_copies()) run.consumed = consumed;  // (copies may be written back at the end)
    if (!p.frozen_instructions.empty()) sync_frozen(p, *frozen_, frame, inputs, stream);
    execute(run, arena.get());
    aligned.copy_back();
    if (graphs_ && graphs_->on()) graphs_->note_warm();
  }

  void execute(Run& run, char* arena) {
    const Program& p = *program_;
    CallFrame& frame = run.frame;
    std::vector<at::Tensor>& outputs = *run.outputs;
    const ReleasesTensors release{p, frame};
    if (arena != frame.arena_base) rebase_arena(p, frame, arena);
    patch_inputs(frame, run.inputs, p.input_patches);
    allocate_outputs(p, outputs);
    patch_outputs(p, frame, outputs);
    std::optional<StepObserver> observer;
    if (const bool ranges = profiled(); ranges || measured_) [[unlikely]] {
      observer.emplace(p.plan, ranges, measured_ ? &times_ : nullptr, p.device);
      run.observer = &*observer;
    }
    constexpr int kFirstCalls = 2;  // what is called once or twice is not worth a graph of its own
    bool first = false;
    if (sequences_.usable() && !run.observer && !cuda::is_capturing(run.stream)) {
      first = ++frame.calls <= kFirstCalls;
      if (!first || sequences_.shared()) run.sequences = &sequences_;
    }
    walk(p.instructions, run);
    if (run.sequences) sequences_.end(frame, first);
    for (const LateOutput& o : p.late_outputs) finish_output(run, o.index, o.adopt);
    if (!p.narrowed.empty()) narrow_outputs(p, outputs);
    if (observer) observer->finish();
  }

  const std::unique_ptr<const Program> program_;
  const AnnouncedArena arena_;
  const std::shared_ptr<FrozenCache> frozen_;
  Undo undo_;
  cuda::LaunchSequences sequences_;
  SubPlans sub_plans_;
  std::unique_ptr<cuda::GraphCache> graphs_;
  FramePool frames_;
  std::atomic<bool> measured_{false};
  Times times_;
  std::atomic<int64_t> calls_{0};
};

}  // namespace

bool& failure_was_undone() {
  thread_local bool undone = false;
  return undone;
}

static std::unique_ptr<Programs> programs_of(const std::shared_ptr<const CommonProgram>& common,
                                             const LoadOptions& options) {
  auto frozen = frozen_cache(common->frozen.inputs, options);
  return std::make_unique<Programs>(
      SizedPlan{common->owner, common->symbols->sources, options.graphs, frozen},
      [common, options, frozen](std::span<const int64_t> values, bool proven) {
        return std::make_shared<PlanExecutable>(*common, options, values, SharedResources{frozen, proven});
      });
}

static std::unique_ptr<Programs> programs_of_part(plan::Plan part, std::vector<plan::SizeSource> sources,
                                                  const LoadOptions& options, std::shared_ptr<const Code> code) {
  return programs_of(make_common(std::move(part), options, std::move(code), std::move(sources)), options);
}

std::shared_ptr<Executable> load(plan::Plan plan, const LoadOptions& options) {
  cpu::register_operators();
  cuda::register_operators();
  if (!plan::size_points(plan).empty()) {
    plan::verify(plan);
    std::shared_ptr<const Code> code = load_code(plan, device_here(plan));
    return load_in_parts(std::move(plan), options, std::move(code), programs_of_part);
  }
  const std::shared_ptr<const CommonProgram> common = make_common(std::move(plan), options, nullptr);
  if (common->symbols->sources.empty()) return std::make_shared<PlanExecutable>(*common, options);
  return load_sized(programs_of(common, options));
}

}  // namespace flashover::run
