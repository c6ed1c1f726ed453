#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/copy.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "plan/split.h"
#include "run/batches.h"
#include "run/call.h"
#include "run/cpu/operators.h"
#include "run/cuda/kernel_graph.h"
#include "run/cuda/module.h"
#include "run/cuda/operators.h"
#include "run/cuda/record.h"
#include "run/cuda/stream.h"
#include "run/frozen.h"
#include "run/library.h"
#include "run/run.h"
#include "run/slab.h"
#include "run/target.h"
#include "run/watch.h"
#include "run/written.h"

namespace flashover::run {
namespace {

static_assert(sizeof(at::Tensor) == sizeof(c10::TensorImpl*));

using plan::Home;
using plan::StepKind;
using plan::TensorId;
using KernelFn = int32_t (*)(void* const* pointers, const int64_t* sizes);

// table[slot] = base of something + bytes
struct Patch {
  int32_t index;  // input, output or tensor number
  uint32_t slot;
  int64_t bytes;
};

struct Instruction {
  StepKind kind;
  uint32_t table = 0;     // launch: first slot of its pointers
  uint32_t sizes = 0;     // launch: first of its numbers
  uint32_t call = 0;      // call: index into calls
  KernelFn fn = nullptr;  // launch on the CPU
  int32_t launch = -1;    // launch on CUDA: index into launches; -1: an empty grid
  int32_t batch = -1;     // the first of a batch of launches
  int32_t stretch = -1;   // the first of kernels in a row
  TensorId makes = -1;    // call: of nothing but memory for this tensor
  const plan::Step* step = nullptr;
};

struct Launch {
  cuda::Function function = nullptr;
  std::array<unsigned, 3> grid{};
  unsigned threads = 0, shared = 0;
  uint32_t params = 0;                   // first of its entries in Frame::params
  uint32_t values = 0, value_count = 0;  // its entries in Frame::values
};

// What one entry of Frame::params points to.
struct Param {
  plan::ParamKind kind;
  uint32_t index = 0;  // of the table's slot, of numbers32, of numbers or of Frame::values
};
// A number in a CPU tensor, which a launch takes along.
struct HostValue {
  uint32_t slot, bytes;
};

// What one call needs beside the plan; kept for the next call when the call ends.
struct Frame {
  std::vector<void*> table;         // pointer arguments of all launches, one behind the other
  std::vector<at::Tensor> tensors;  // by TensorId: wrappers of slab memory, results of extern calls while they live
  std::vector<uint64_t> values;     // CUDA: numbers that launches take along, as they were at the launch
  std::vector<void*> params;        // CUDA: addresses of the parameters of all launches, one behind the other
  void* scratch = nullptr;          // CUDA: global scratch of the kernels that ask for it
  torch::jit::Stack stack;
  char* slab_base = nullptr;  // what the table and the wrappers were made for
  std::shared_ptr<const Frozen> frozen;
  const Frozen* patched_for = nullptr;
  size_t at = 0;  // the instruction that raised
  // CUDA, by stretch: the graph of its kernels; and the pointers and numbers that the nodes have.
  std::vector<std::unique_ptr<cuda::KernelGraph>> graphs;
  std::vector<void*> graphs_table;
  std::vector<uint64_t> graphs_values;
  int calls = 0;
};

// One call on the way.
struct Run {
  Frame& frame;
  c10::TensorImpl* const* inputs;
  std::vector<at::Tensor>* outputs;  // null while frozen steps run
  cuda::Stream stream;
  std::vector<at::Tensor>* frozen;              // being filled; null in ordinary calls
  std::vector<cuda::Node>* nodes = nullptr;     // while a graph is recorded: of each launch
  std::vector<at::Tensor>* consumed = nullptr;  // the inputs, let go one by one
  Watch* watch = nullptr;                       // somebody looks at the steps
  std::vector<bool>* stale = nullptr;           // before a replay: launches whose numbers changed
  bool stretches = false;                       // kernels in a row are launched as one graph
};

// Kernels rely on it (plan::ParamKind).
constexpr uintptr_t kCudaAlignment = 16;

// The memory of one CUDA call; freed when its kernels are enqueued, since later work of the stream comes after them.
struct CudaMemory {
  c10::DataPtr data;
  explicit CudaMemory(size_t bytes) {
    if (bytes) data = cuda::allocator()->allocate(bytes);
  }
  char* get() const { return static_cast<char*>(data.get()); }
};

at::Tensor borrow(c10::TensorImpl* impl) {
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
}

char* data_of(c10::TensorImpl* impl) {
  const auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (!storage || impl->numel() == 0) return nullptr;
  // Not TensorImpl::data(): that asks a dozen questions which the guards answered.
  return static_cast<char*>(const_cast<void*>(storage->data_ptr().get())) +
         impl->storage_offset() * static_cast<int64_t>(impl->itemsize());
}

// Memory of a recorded graph that somebody has: not written until it has come back.
struct Loan {
  at::Tensor memory;
  std::shared_ptr<std::atomic<int>> out;  // how much of that graph's is on loan
};
void end_loan(void* p) {
  auto* loan = static_cast<Loan*>(p);
  const std::shared_ptr<std::atomic<int>> out = std::move(loan->out);
  delete loan;
  out->fetch_sub(1, std::memory_order_release);
}
// A tensor object and storage of their own, with the memory of `of`.
at::Tensor lend(const at::Tensor& of, const std::shared_ptr<std::atomic<int>>& out) {
  c10::InferenceMode normal(false);
  auto* memory = of.storage().unsafeGetStorageImpl();
  out->fetch_add(1, std::memory_order_relaxed);
  c10::DataPtr pointer(memory->data_ptr().get(), new Loan{of, out}, &end_loan, of.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), memory->nbytes(), std::move(pointer), nullptr,
                       /*resizable=*/false);
  const auto key = of.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), of.dtype());
  impl->set_storage_offset(of.storage_offset());
  impl->set_sizes_and_strides(of.sizes(), of.strides());
  return at::Tensor(std::move(impl));
}
bool is_lent(c10::TensorImpl* impl) {
  const auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  return storage && storage->data_ptr().get_deleter() == &end_loan;
}

// What the recordings of all plans hold in order to lend it.
class HeldToLend {
 public:
  static int64_t total(int device) { return of(device).load(std::memory_order_relaxed); }
  HeldToLend(int device, int64_t bytes) : device_(device), bytes_(bytes) { of(device_) += bytes_; }
  ~HeldToLend() { of(device_) -= bytes_; }
  HeldToLend(const HeldToLend&) = delete;

 private:
  static std::atomic<int64_t>& of(int device) {
    static std::array<std::atomic<int64_t>, 64> all{};
    return all[static_cast<size_t>(device) % all.size()];
  }
  int device_;
  int64_t bytes_;
};

std::atomic<int64_t> all_replays{0};

bool is_unique(const at::Tensor& t) { return t.use_count() == 1 && (!t.has_storage() || t.storage().use_count() == 1); }

// The code of a plan, for its pieces too.
struct Code {
  std::vector<std::shared_ptr<Library>> libraries;
  std::vector<KernelFn> kernels;
  std::vector<cuda::Function> functions;
};

class PlanExecutable final : public Executable {
 public:
  // `code`, `parts`: of the plan that this one is a piece of.
  PlanExecutable(plan::Plan p, const LoadOptions& options, std::shared_ptr<const Code> code = nullptr, int parts = 0)
      : plan_(std::move(p)), code_(std::move(code)), parts_(parts), times_(plan_.steps.size()) {
    plan::verify(plan_);
    slab_bytes_ = constant(plan_.slab_bytes);
    converts_ = options.converts;
    if (plan_.device.type == DeviceType::kCUDA) {
      if (!cuda::driver()) throw Declined("plan: " + cuda::why_no_driver());
      device_ = plan_.device.index;
      const std::string built_for = "sm_" + std::to_string(cuda::facts(device_).capability);
      if (!plan_.kernels.empty() && plan_.target != built_for)
        throw Declined("plan: built for " + plan_.target + ", not " + built_for);
    } else if (const std::string missing = missing_feature(plan_.target); !missing.empty()) {
      throw Declined("plan: this machine lacks " + missing);
    }
    for (const plan::Tensor& t : plan_.tensors) shapes_.emplace_back(t.type);
    for (size_t i = 0; i < plan_.tensors.size(); ++i) {
      if (plan_.tensors[i].home == Home::kExtern) extern_tensors_.push_back(static_cast<TensorId>(i));
      roots_.push_back(plan::root(plan_, static_cast<TensorId>(i)));
      const plan::Tensor& t = plan_.tensors[i];
      // (Outputs and frozen tensors may be what operators on the CPU write.)
      if (t.home == Home::kSlab && !on_plan_device(t.type) && !t.type.opaque)
        throw Declined("plan: memory that is not on the plan's device");
      // In bytes, link by link, since a view may have another dtype than its base.
      offsets_.push_back(t.home == Home::kView ? offsets_[t.index] + constant(t.type.offset) * info(t.type.dtype).bytes
                                               : 0);
    }
    if (!code_) code_ = load_code();
    translate(plan_.frozen_steps, frozen_program_, frozen_input_patches_);
    translate(plan_.steps, program_, input_patches_);
    find_frozen_inputs();
    find_mutations(options);
    plan_outputs();
    find_last_reads();
    by_input(input_patches_);
    by_input(frozen_input_patches_);
    by_input(output_patches_);
    heavy_ = device_ >= 0 || !calls_.empty() || slab_bytes_ > (64 << 10) || program_.size() > 16;
    for (const plan::Tensor& t : plan_.tensors) heavy_ |= t.home == Home::kOutput && span_bytes(t.type) > (64 << 10);
    for (plan::Binary& b : plan_.binaries) b.bytes = {};  // loaded; the text and the cache have their own
    if (device_ < 0) announce_slab(slab_bytes_);
    batches_ = find_batches(plan_, at::get_num_threads());
    for (size_t i = 0; i < batches_.size(); ++i) program_[batches_[i].first].batch = static_cast<int32_t>(i);
    if (options.graphs && device_ >= 0) plan_graph(options);
    if (options.kernel_graphs && device_ >= 0) find_stretches();
    if (options.pieces > 1) {
      std::vector<size_t> ends;
      const size_t steps = plan_.steps.size(), pieces = std::min(static_cast<size_t>(options.pieces), steps);
      for (size_t i = 1; i <= pieces; ++i) ends.push_back(steps * i / pieces);
      if (ends.size() > 1) run_in_pieces(ends, {});
    }
  }

  ~PlanExecutable() override {
    for (auto& slot : frames_) delete slot.exchange(nullptr);
    if (device_ < 0) forget_slab(slab_bytes_);
  }

  const plan::Plan& plan() const override { return plan_; }
  bool heavy() const override { return heavy_; }
  void measure(bool on) override { measured_ = on; }
  std::vector<double> times() const override { return times_.get(); }
  Counters counters() const override {
    return {.calls = calls_made_.load(std::memory_order_relaxed),
            .frozen_runs = frozen_.runs(),
            .graph_replays = replays_.load(std::memory_order_relaxed) + replays_of_pieces(),
            .content_checks = frozen_.content_checks()};
  }

  void run(c10::TensorImpl* const* inputs, size_t count, std::vector<at::Tensor>& outputs) override {
    run_with(inputs, count, outputs, nullptr);
  }
  void run_consuming(std::vector<at::Tensor>&& inputs, std::vector<at::Tensor>& outputs) override {
    std::vector<c10::TensorImpl*> pointers;
    for (const at::Tensor& t : inputs) pointers.push_back(t.unsafeGetTensorImpl());
    run_with(pointers.data(), pointers.size(), outputs, &inputs);
  }

 private:
  void run_with(c10::TensorImpl* const* inputs, size_t count, std::vector<at::Tensor>& outputs,
                std::vector<at::Tensor>* consumed) {
    if (count != plan_.inputs.size())
      throw InternalError("run: " + std::to_string(count) + " inputs for a plan of " +
                          std::to_string(plan_.inputs.size()));
    calls_made_.fetch_add(1, std::memory_order_relaxed);
    written_.check(inputs);
    outputs.clear();
    outputs.resize(plan_.outputs.size());
    Borrowed frame(*this);
    {
      c10::impl::ExcludeDispatchKeyGuard below(kBelow);
      const bool first = !proven_.load(std::memory_order_relaxed);
      const Guarded& guarded = first ? guarded_first_ : will_fail(inputs) ? guarded_failing_ : guarded_;
      const Before before = guarded.needed ? remember(inputs, guarded.kept) : Before{};
      (*frame).at = SIZE_MAX;
      failure_was_undone() = false;
      try {
        if (in_pieces_.load(std::memory_order_acquire) && !first && !measured_) {
          execute_pieces(*frame, inputs, outputs);
        } else if (device_ < 0) {
          execute_on_cpu(*frame, inputs, outputs, consumed);
        } else {
          // Asking is cheap; setting and setting back are not.
          std::optional<c10::DeviceGuard> guard;
          const auto index = static_cast<c10::DeviceIndex>(device_);
          if (c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index() != index)
            guard.emplace(c10::Device(c10::kCUDA, index));
          execute_on_cuda(*frame, inputs, outputs, consumed);
        }
      } catch (Mismatch& m) {
        if (first) restore(before, inputs);
        m.clean = m.clean || first || m.step < first_write_;
        m.clean ? written_.tell_restored(inputs) : written_.tell(inputs);
        throw;
      } catch (...) {
        const size_t at = (*frame).at;
        const bool acted = at >= first_effect_ && at < SIZE_MAX;  // not to be done again
        if (!acted && (at < guarded.end || (at < first_write_ && at < SIZE_MAX && (guarded.needed || !random_)))) {
          restore(before, inputs);
          failure_was_undone() = true;
        }
        failure_was_undone() || at < first_write_ ? written_.tell_restored(inputs) : written_.tell(inputs);
        throw;
      }
      written_.tell(inputs);
      if (first) proven_.store(true, std::memory_order_relaxed);
      if (&guarded == &guarded_failing_) false_alarms_.fetch_add(1, std::memory_order_relaxed);
    }
    for (size_t i : alias_outputs_) {  // at the caller's level, so that view and grad-mode bookkeeping are eager's
      const plan::OutputRef& o = plan_.outputs[i];
      at::Tensor base = o.alias_input >= 0 ? borrow(inputs[o.alias_input]) : outputs[o.alias_output];
      // Plans compute no gradients; what the program detached is not followed.
      if (base.requires_grad() && c10::GradMode::is_enabled()) base = base.detach();
      outputs[i] = at::as_strided(base, output_shapes_[i].sizes, output_shapes_[i].strides,
                                  base.storage_offset() + o.type.offset.value());
    }
  }

 private:
  // Autocast has acted in the trace; autograd does not take part.
  static constexpr c10::DispatchKeySet kBelow =
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

  // ---- loading ----
  static int64_t constant(sym::Expr e) {
    if (!e.is_const()) throw Declined("plan: sizes are not constant");
    return e.value();
  }
  static int64_t span_bytes(const TensorType& t) { return constant(plan::bytes(t)); }

  bool on_plan_device(const TensorType& t) const {
    return device_ < 0 ? t.device.type == DeviceType::kCPU : t.device == plan_.device;
  }

  const plan::Tensor& root_tensor(TensorId t) const { return plan_.tensors[roots_[t]]; }

  void translate(const std::vector<plan::Step>& steps, std::vector<Instruction>& program, std::vector<Patch>& inputs) {
    for (const plan::Step& s : steps) {
      Instruction in{s.kind};
      in.step = &s;
      if (s.kind == StepKind::kLaunch) {
        in.table = table_size_;
        in.sizes = static_cast<uint32_t>(numbers_.size());
        for (sym::Expr e : s.sizes) numbers_.push_back(constant(e));
        const std::vector<plan::ParamKind>& kinds = plan_.kernels[s.kernel].cuda.params;
        for (size_t i = 0; i < s.reads.size(); ++i)
          pointer(s.reads[i], inputs, device_ >= 0 && kinds[i] != plan::ParamKind::kPointer);
        for (TensorId t : s.writes) pointer(t, inputs, false);
        if (device_ < 0)
          in.fn = code_->kernels[s.kernel];
        else
          in.launch = cuda_launch(s, in);
      } else if (s.kind == StepKind::kCall) {
        in.call = static_cast<uint32_t>(calls_.size());
        calls_.push_back(prepare(plan_, s));
        if (plan::takes_memory(s) && s.writes.size() == 1 && s.writes[0] >= 0 &&
            plan_.tensors[s.writes[0]].home == Home::kExtern)
          in.makes = s.writes[0];
      }
      program.push_back(in);
    }
  }

  int32_t cuda_launch(const plan::Step& s, const Instruction& in) {
    const plan::CudaLaunch& c = plan_.kernels[s.kernel].cuda;
    Launch launch{.function = code_->functions[s.kernel],
                  .threads = static_cast<unsigned>(c.threads),
                  .shared = static_cast<unsigned>(c.shared),
                  .params = static_cast<uint32_t>(params_.size()),
                  .values = static_cast<uint32_t>(host_values_.size())};
    int64_t programs = 1;
    for (size_t i = 0; i < 3; ++i) {
      const sym::Expr size = sym::substitute(c.grid[i], [&](sym::Expr v) -> std::optional<sym::Expr> {
        for (size_t k = 0; k < s.sizes.size(); ++k)
          if (v.name() == "n" + std::to_string(k)) return s.sizes[k];
        return std::nullopt;
      });
      const int64_t n = constant(size);
      if (n < 0 || n > (i == 0 ? INT32_MAX : 65535)) throw Declined("plan: a kernel's grid is too large");
      launch.grid[i] = static_cast<unsigned>(n);
      programs *= n;
    }
    if (programs == 0) return -1;
    uint32_t slot = in.table, number = in.sizes;
    for (const plan::ParamKind kind : c.params) {
      Param p{kind, 0};
      if (kind == plan::ParamKind::kPointer) {
        p.index = slot++;
      } else if (kind == plan::ParamKind::kValue32 || kind == plan::ParamKind::kValue64) {
        p.index = static_cast<uint32_t>(host_values_.size());
        host_values_.push_back({slot++, kind == plan::ParamKind::kValue32 ? 4U : 8U});
        ++launch.value_count;
      } else if (kind == plan::ParamKind::kI64) {
        p.index = number++;
      } else if (kind == plan::ParamKind::kI32) {
        p.index = static_cast<uint32_t>(numbers32_.size());
        numbers32_.push_back(static_cast<int32_t>(numbers_[number++]));
      }
      params_.push_back(p);
    }
    scratch_bytes_ = std::max(scratch_bytes_, c.scratch * programs);
    launches_.push_back(launch);
    return static_cast<int32_t>(launches_.size()) - 1;
  }

  void pointer(TensorId t, std::vector<Patch>& inputs, bool value) {
    const uint32_t slot = table_size_++;
    const TensorId r = roots_[t];
    const plan::Tensor& base = plan_.tensors[r];
    if (value) {
      if (base.type.device.type != DeviceType::kCPU) throw Declined("plan: a number that is not on the CPU");
    } else if (device_ >= 0) {
      if (!on_plan_device(base.type)) throw Declined("plan: a kernel's tensor is not on the plan's device");
      if (offsets_[t] % static_cast<int64_t>(kCudaAlignment) != 0)
        throw Declined("plan: a kernel's tensor starts off alignment");
    }
    switch (base.home) {
      case Home::kInput:
        inputs.push_back({base.index, slot, offsets_[t]});
        break;
      case Home::kOutput:
        output_patches_.push_back({base.index, slot, offsets_[t]});
        break;
      case Home::kSlab:
        slab_patches_.push_back({0, slot, constant(base.slab_offset) + offsets_[t]});
        break;
      case Home::kFrozen:
      case Home::kExtern:
        late_patches_.resize(plan_.tensors.size());
        late_patches_[r].push_back({r, slot, offsets_[t]});
        break;
      case Home::kView:
        break;
    }
  }
  static void by_input(std::vector<Patch>& patches) {
    std::stable_sort(patches.begin(), patches.end(), [](const Patch& a, const Patch& b) { return a.index < b.index; });
  }

  void find_frozen_inputs() {
    std::vector<bool> read(plan_.inputs.size()), keep(plan_.tensors.size());
    for (const plan::Step& s : plan_.frozen_steps)
      plan::for_each_read(s, [&](TensorId t) {
        if (root_tensor(t).home == Home::kInput) read[root_tensor(t).index] = true;
      });
    for (const plan::Step& s : plan_.steps) {
      plan::for_each_read(s, [&](TensorId t) { keep[roots_[t]] = true; });
      plan::for_each_write(s, [&](TensorId t) { keep[roots_[t]] = true; });
    }
    for (const plan::OutputRef& o : plan_.outputs)
      if (o.tensor >= 0) keep[roots_[o.tensor]] = true;
    std::vector<int32_t> inputs;
    for (size_t i = 0; i < read.size(); ++i)
      if (read[i]) inputs.push_back(static_cast<int32_t>(i));
    for (size_t i = 0; i < keep.size(); ++i)
      if (keep[i] && plan_.tensors[i].home == Home::kFrozen) frozen_kept_.push_back(static_cast<TensorId>(i));
    // Frozen tensors that a kernel writes need memory of their own; what an operator returns brings its own.
    std::vector<bool> made(plan_.tensors.size());
    for (const plan::Step& s : plan_.frozen_steps) {
      const bool brings = s.kind == StepKind::kCall && !s.out_variant;
      plan::for_each_write(s, [&](TensorId t) {
        const TensorId r = roots_[t];
        if (!made[r] && !(brings && r == t)) frozen_allocated_.push_back(r);
        made[r] = true;
      });
    }
    if (device_ >= 0)
      for (TensorId t : frozen_allocated_) {
        const bool kept = std::find(frozen_kept_.begin(), frozen_kept_.end(), t) != frozen_kept_.end();
        if (!kept || shapes_[t].opaque || !on_plan_device(plan_.tensors[t].type)) continue;
        constexpr int64_t kApart = 256;
        frozen_places_.emplace_back(t, frozen_bytes_);
        frozen_bytes_ += (span_bytes(plan_.tensors[t].type) + kApart - 1) / kApart * kApart;
      }
    frozen_.watch(std::move(inputs));
  }

  // By instruction: the inputs that nobody reads after it. Not those that become results, or that the frozen part
  // watches.
  void find_last_reads() {
    std::vector<int64_t> last(plan_.inputs.size(), -1);
    const auto touch = [&](TensorId t, int64_t at) {
      if (t >= 0 && root_tensor(t).home == Home::kInput) last[root_tensor(t).index] = at;
    };
    for (size_t s = 0; s < plan_.steps.size(); ++s) {
      plan::for_each_read(plan_.steps[s], [&](TensorId t) { touch(t, static_cast<int64_t>(s)); });
      plan::for_each_write(plan_.steps[s], [&](TensorId t) { touch(t, static_cast<int64_t>(s)); });
    }
    for (const plan::Step& s : plan_.frozen_steps) plan::for_each_read(s, [&](TensorId t) { touch(t, -1); });
    for (const plan::OutputRef& o : plan_.outputs) {
      touch(o.tensor, -1);
      if (o.alias_input >= 0) last[o.alias_input] = -1;
    }
    for (int32_t i : written_.inputs()) last[i] = -1;
    last_reads_.resize(plan_.steps.size());
    for (size_t i = 0; i < last.size(); ++i)
      if (last[i] >= 0) last_reads_[last[i]].push_back(static_cast<int32_t>(i));
  }

  void find_mutations(const LoadOptions& options) {
    for (const plan::Step& s : plan_.steps)
      plan::for_each_write(s, [&](TensorId t) {
        const plan::Tensor& base = root_tensor(t);
        if (base.home != Home::kInput) return;
        mutated_.push_back(base.index);
        first_write_ = std::min(first_write_, static_cast<size_t>(&s - plan_.steps.data()));
      });
    std::sort(mutated_.begin(), mutated_.end());
    mutated_.erase(std::unique(mutated_.begin(), mutated_.end()), mutated_.end());
    if (!options.piece) written_.set(mutated_, options.version_steps);
    for (const Call& c : calls_) random_ |= c.op->handle.hasTag(at::Tag::nondeterministic_seeded);
    for (size_t i = plan_.steps.size(); i-- > 0;)
      if (plan_.steps[i].kind == StepKind::kCall)
        if (const ops::Op* op = ops::find(plan_.steps[i].op); op->effectful && !op->check) first_effect_ = i;
    find_undo();
  }

  // What calls keep of the inputs, so that a step that raises leaves no trace.
  struct Guarded {
    size_t end = 0;             // failures of steps before that can be undone, beside those before the first write
    std::vector<int32_t> kept;  // the inputs that are written by then
    bool needed = false;        // contents, or the random generator's state, must be kept
  };
  // The first call may fail anywhere. Later ones keep what is written before steps that may raise, if that is little,
  // and of any size where indices are out of range, which is seen before the first step.
  void find_undo() {
    size_t last_call = 0, last_risk = 0;  // one behind
    std::vector<size_t> unforeseen, foreseen;
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      const plan::Step& s = plan_.steps[i];
      const bool checks = s.kind == StepKind::kLaunch && !plan_.kernels[s.kernel].errors.empty();
      const bool calls = s.kind == StepKind::kCall && program_[i].makes < 0;
      if (checks || calls) last_call = i + 1;
      if (!checks && !(calls && plan::may_raise(s.op))) continue;
      last_risk = i + 1;
      (s.foreseen ? foreseen : unforeseen).push_back(i);
    }
    guarded_first_ = guard(last_call);
    if (last_risk == 0 || device_ >= 0) return;  // (On CUDA a kernel cannot say that it failed; operators rarely do.)
    const int64_t little = little_bytes();
    for (size_t i : unforeseen) {
      Guarded g = guard(i + 1);
      if (kept_bytes(g) > little) break;
      guarded_ = std::move(g);
    }
    guarded_.needed = random_ || !guarded_.kept.empty();
    guarded_failing_ = guard(last_risk);
    for (size_t i : foreseen)
      if (i >= first_write_ && i >= guarded_.end)
        for (const plan::Bounds& b : plan_.steps[i].bounds) foresee(b);
  }
  Guarded guard(size_t end) const {
    Guarded g{.end = end};
    for (size_t i = first_write_; i < end; ++i)
      plan::for_each_write(plan_.steps[i], [&](TensorId t) {
        const plan::Tensor& base = root_tensor(t);
        if (base.home == Home::kInput && std::find(g.kept.begin(), g.kept.end(), base.index) == g.kept.end())
          g.kept.push_back(base.index);
      });
    g.needed = random_ || !g.kept.empty();
    return g;
  }
  int64_t kept_bytes(const Guarded& g) const {
    int64_t bytes = 0;
    for (int32_t i : g.kept) bytes += span_bytes(plan_.inputs[i].type);
    return bytes;
  }
  // Copies of so much are not felt beside what the steps write anyway. (Of inputs they may read or write small parts.)
  int64_t little_bytes() const {
    constexpr int64_t kLeast = 256 << 10, kPart = 32;
    int64_t written = 0;
    for (const plan::Step& s : plan_.steps)
      plan::for_each_write(s, [&](TensorId t) {
        if (root_tensor(t).home != Home::kInput && !plan_.tensors[t].type.opaque)
          written += span_bytes(plan_.tensors[t].type);
      });
    return std::max(kLeast, written / kPart);
  }

  // ---- index checks that fail are seen before
  struct Range {
    int32_t input;
    bool wide;  // i64
    int64_t count, lo, hi;
  };
  void foresee(const plan::Bounds& b) {
    const plan::Tensor& t = plan_.tensors[b.tensor];
    Range range{t.index, t.type.dtype == DType::kI64, constant(plan::span(t.type)), b.lo, b.hi};
    for (Range& r : ranges_)
      if (r.input == range.input) {
        r.lo = std::max(r.lo, b.lo), r.hi = std::min(r.hi, b.hi);
        return;
      }
    ranges_.push_back(range);
  }
  template <typename Int>
  static bool outside(const Int* p, const Range& r) {
    bool any = false;
    for (int64_t i = 0; i < r.count; ++i) any |= p[i] < r.lo || p[i] > r.hi;
    return any;
  }
  // An index check is going to fail, as far as can be seen. (Checks of elements that the program hides behind a
  // condition do not: then it is no use looking.)
  bool will_fail(c10::TensorImpl* const* inputs) const {
    constexpr int kMostFalseAlarms = 4;
    for (const Range& r : ranges_) {
      const void* data = data_of(inputs[r.input]);
      if (r.wide ? outside(static_cast<const int64_t*>(data), r) : outside(static_cast<const int32_t*>(data), r))
        return false_alarms_.load(std::memory_order_relaxed) < kMostFalseAlarms;
    }
    return false;
  }

  void plan_outputs() {
    for (const plan::Tensor& t : plan_.tensors)
      if (t.home == Home::kOutput) owned_outputs_.push_back(t.index);
    // Allocation in ascending order is what the patches are sorted by.
    std::sort(owned_outputs_.begin(), owned_outputs_.end());
    std::vector<bool> handed_over(plan_.tensors.size());
    for (size_t i = 0; i < plan_.outputs.size(); ++i) {
      const plan::OutputRef& o = plan_.outputs[i];
      output_shapes_.emplace_back(o.type);
      part_.push_back(false);
      if (o.tensor < 0) {
        const TensorType& base =
            o.alias_input >= 0 ? plan_.inputs[o.alias_input].type : plan_.outputs[o.alias_output].type;
        if (base.dtype != o.type.dtype) throw Declined("plan: an output is a view with another dtype");
        constant(o.type.offset);
        alias_outputs_.push_back(i);
        continue;
      }
      const plan::Tensor& t = plan_.tensors[o.tensor];
      part_[i] = !same_layout(output_shapes_[i], shapes_[o.tensor]) || constant(o.type.offset) != 0;
      if (t.home == Home::kOutput && t.index == static_cast<int32_t>(i)) continue;
      const bool adopt = t.home == Home::kExtern && !handed_over[o.tensor];
      if (adopt) handed_over[o.tensor] = true;
      late_outputs_.push_back({i, adopt});
    }
    // Copies first: a tensor that is handed over is gone from the frame.
    std::stable_sort(late_outputs_.begin(), late_outputs_.end(),
                     [](const LateOutput& a, const LateOutput& b) { return a.adopt < b.adopt; });
  }
  static bool same_layout(const Shape& a, const Shape& b) { return a.sizes == b.sizes && a.strides == b.strides; }

  // ---- frames ----
  class Borrowed {
   public:
    explicit Borrowed(PlanExecutable& e) : e_(e), frame_(e.own_slot().exchange(nullptr, std::memory_order_acquire)) {
      if (!frame_) frame_ = e_.make_frame().release();
    }
    ~Borrowed() { delete e_.own_slot().exchange(frame_, std::memory_order_acq_rel); }
    Frame& operator*() { return *frame_; }

   private:
    PlanExecutable& e_;
    Frame* frame_;
  };
  // At the end of a call its frame holds nothing of the user's.
  struct ReleasesFrame {
    PlanExecutable& e;
    Frame& frame;
    ~ReleasesFrame() {
      frame.stack.clear();
      for (TensorId t : e.extern_tensors_) frame.tensors[t].reset();
    }
  };
  static constexpr size_t kSlots = 8;
  std::atomic<Frame*>& own_slot() {
    static std::atomic<size_t> next{0};
    thread_local const size_t mine = next.fetch_add(1, std::memory_order_relaxed) % kSlots;
    return frames_[mine];
  }

  std::unique_ptr<Frame> make_frame() {
    auto frame = std::make_unique<Frame>();
    frame->table.resize(table_size_);
    frame->tensors.resize(plan_.tensors.size());
    frame->values.resize(host_values_.size());
    static void* none = nullptr;
    for (const Param& p : params_) {
      switch (p.kind) {
        case plan::ParamKind::kPointer:
          frame->params.push_back(&frame->table[p.index]);
          break;
        case plan::ParamKind::kI32:
          frame->params.push_back(&numbers32_[p.index]);
          break;
        case plan::ParamKind::kI64:
          frame->params.push_back(&numbers_[p.index]);
          break;
        case plan::ParamKind::kGlobalScratch:
          frame->params.push_back(&frame->scratch);
          break;
        case plan::ParamKind::kProfileScratch:
          frame->params.push_back(&none);
          break;
        case plan::ParamKind::kValue32:
        case plan::ParamKind::kValue64:
          frame->params.push_back(&frame->values[p.index]);
          break;
      }
    }
    return frame;
  }

  // Wrappers for the slab tensors that extern operators see, made when first needed.
  at::Tensor& slab_tensor(Frame& frame, TensorId t) {
    at::Tensor& wrapper = frame.tensors[t];
    if (wrapper.defined()) return wrapper;
    const plan::Tensor& entry = plan_.tensors[t];
    // Wrappers outlive the call and its mode.
    c10::InferenceMode normal(false);
    if (entry.home == Home::kView) {
      const TensorId r = roots_[t];
      wrapper = view_of(slab_tensor(frame, r), shapes_[t].dtype, shapes_[t].sizes, shapes_[t].strides,
                        offsets_[t] / static_cast<int64_t>(c10::elementSize(shapes_[t].dtype)));
      return wrapper;
    }
    c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(span_bytes(entry.type)),
                         slab_pointer(frame.slab_base, t), nullptr, /*resizable=*/false);
    const auto key = device_ < 0 ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
    auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key),
                                                     c10::scalarTypeToTypeMeta(shapes_[t].dtype));
    impl->set_sizes_and_strides(shapes_[t].sizes, shapes_[t].strides);
    if (entry.type.wrapped_number) impl->set_wrapped_number(true);
    wrapper = at::Tensor(std::move(impl));
    return wrapper;
  }
  c10::DataPtr slab_pointer(char* base, TensorId t) {
    return {base + plan_.tensors[t].slab_offset.value(), shapes_[t].device};
  }

  void rebase_slab(Frame& frame, char* base) {
    frame.slab_base = base;
    for (const Patch& p : slab_patches_) frame.table[p.slot] = base + p.bytes;
    for (size_t i = 0; i < plan_.tensors.size(); ++i)
      if (plan_.tensors[i].home == Home::kSlab && frame.tensors[i].defined())
        frame.tensors[i].storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
            slab_pointer(base, static_cast<TensorId>(i)));
  }

  void patch_late(Frame& frame, TensorId t, const at::Tensor& value) {
    if (late_patches_.empty() || late_patches_[t].empty()) return;
    char* base = data_of(value.unsafeGetTensorImpl());
    for (const Patch& p : late_patches_[t]) frame.table[p.slot] = base + p.bytes;
  }

  static void patch_inputs(Frame& frame, c10::TensorImpl* const* inputs, const std::vector<Patch>& patches) {
    int32_t last = -1;
    char* base = nullptr;
    for (const Patch& p : patches) {
      if (p.index != last) base = data_of(inputs[last = p.index]);
      frame.table[p.slot] = base + p.bytes;
    }
  }

  void patch_outputs(Frame& frame, std::vector<at::Tensor>& outputs) const {
    int32_t last = -1;
    char* base = nullptr;
    for (const Patch& p : output_patches_) {
      if (p.index != last) base = data_of(outputs[last = p.index].unsafeGetTensorImpl());
      frame.table[p.slot] = base + p.bytes;
    }
  }

  // ---- in pieces ----
  std::shared_ptr<const Code> load_code() const {
    auto code = std::make_shared<Code>();
    if (device_ < 0) {
      for (const plan::Binary& b : plan_.binaries) code->libraries.push_back(Library::load(b.bytes));
      for (const plan::Kernel& k : plan_.kernels)
        code->kernels.push_back(reinterpret_cast<KernelFn>(code->libraries[k.binary]->symbol(k.symbol)));
    } else {
      std::vector<cuda::CuModule> modules;
      for (const plan::Binary& b : plan_.binaries) modules.push_back(cuda::load_module(b.bytes, device_));
      for (const plan::Kernel& k : plan_.kernels)
        code->functions.push_back(cuda::find_function(modules[k.binary], k.symbol, k.cuda.shared, device_));
    }
    return code;
  }

  // Some steps cannot be part of a graph: those between them are recorded by themselves where they are enough.
  void record_parts() {
    if (!graphs_) return;
    const std::string why = apart_.begin()->second, where = plan_.steps[apart_.begin()->first].label;
    std::vector<size_t> ends;
    std::vector<bool> graphs;
    size_t first = 0, work = 0;
    const auto end_piece = [&](size_t end, bool graph) {
      if (end == first) return;
      if (!graphs.empty() && !graph && !graphs.back())
        ends.back() = end;
      else
        ends.push_back(end), graphs.push_back(graph);
      first = end;
      work = 0;
    };
    for (size_t i = 0; i <= plan_.steps.size(); ++i) {
      const bool apart = apart_.count(i) != 0;
      if (apart || i == plan_.steps.size()) end_piece(i, work >= kWorthAGraph);
      if (i == plan_.steps.size()) break;
      if (apart)
        end_piece(i + 1, false);
      else
        work += plan_.steps[i].kind != StepKind::kRelease && !plan::takes_memory(plan_.steps[i]);
    }
    const bool any = std::find(graphs.begin(), graphs.end(), true) != graphs.end();
    if (!any || parts_ >= kMaxParts) return skip_graph(why);
    try {
      if (!run_in_pieces(ends, graphs)) return skip_graph(why);
    } catch (const std::exception& e) {  // the whole goes on as it is
      return skip_graph(why + " (" + e.what() + ")");
    }
    graphs_ = false;
    std::fprintf(stderr, "flashover: CUDA graphs of parts only: %s%s%s\n", why.c_str(), where.empty() ? "" : ", in ",
                 where.c_str());
  }

  // graphs: which pieces are recorded.
  bool run_in_pieces(const std::vector<size_t>& ends, const std::vector<bool>& graphs) {
    std::optional<plan::Pieces> pieces = plan::split(plan_, ends);
    if (!pieces) return false;
    passed_ = static_cast<size_t>(pieces->passed);
    std::vector<bool> lent(passed_);
    std::vector<Piece> made;
    for (size_t i = 0; i < pieces->pieces.size(); ++i) {
      plan::Pieces::Piece& p = pieces->pieces[i];
      LoadOptions how{.graphs = i < graphs.size() && graphs[i], .converts = converts_, .piece = true};
      for (int32_t in : p.inputs)
        how.places.push_back(in < 0            ? lent[-1 - in] ? Place::kLent : Place::kMoves
                             : places_.empty() ? Place::kStays
                                               : places_[in]);
      for (const auto& target : p.outputs) {
        how.lends.push_back(how.graphs && (target.output < 0 || (!lends_.empty() && lends_[target.output])));
        if (target.passed >= 0) lent[target.passed] = how.lends.back();
      }
      made.push_back({std::make_shared<PlanExecutable>(std::move(p.plan), how, code_, parts_ + 1),
                      std::move(p.inputs),
                      std::move(p.outputs),
                      {}});
    }
    std::vector<bool> needed(passed_);
    for (auto piece = made.rbegin(); piece != made.rend(); ++piece)
      for (int32_t in : piece->inputs) {
        piece->last.push_back(in < 0 && !needed[-1 - in]);
        if (in < 0) needed[-1 - in] = true;
      }
    pieces_ = std::move(made);
    in_pieces_.store(true, std::memory_order_release);
    return true;
  }

  int64_t replays_of_pieces() const {
    int64_t most = 0;
    if (in_pieces_.load(std::memory_order_acquire))
      for (const Piece& p : pieces_) most = std::max(most, p.executable->counters().graph_replays);
    return most;
  }

  void execute_pieces(Frame& frame, c10::TensorImpl* const* inputs, std::vector<at::Tensor>& outputs) {
    // The pieces have frozen tensors of their own.
    if (frame.frozen) {
      frame.frozen.reset();
      frame.patched_for = nullptr;
      frozen_.forget();
    }
    std::vector<at::Tensor> passed(passed_), made;
    bool left_a_trace = false;
    for (const Piece& p : pieces_) {
      std::vector<at::Tensor> given;
      for (size_t i = 0; i < p.inputs.size(); ++i) {
        if (p.inputs[i] >= 0) {
          given.push_back(borrow(inputs[p.inputs[i]]));
        } else {
          at::Tensor& t = passed[-1 - p.inputs[i]];
          given.push_back(p.last[i] ? std::move(t) : t);
        }
      }
      try {
        p.executable->run_consuming(std::move(given), made);
      } catch (Mismatch& m) {
        m.clean = m.clean && !left_a_trace;
        m.step = SIZE_MAX;
        throw;
      } catch (...) {
        failure_was_undone() = failure_was_undone() && !left_a_trace;
        throw;
      }
      left_a_trace |= !p.executable->mutated_.empty() || p.executable->random_;
      for (size_t i = 0; i < made.size(); ++i) {
        if (p.outputs[i].passed >= 0) passed[p.outputs[i].passed] = made[i];
        if (p.outputs[i].output >= 0) outputs[p.outputs[i].output] = std::move(made[i]);
      }
    }
    take_parts(outputs);
  }

  // ---- calls that can be taken back ----
  struct Before {
    std::vector<std::pair<int32_t, at::Tensor>>
        contents;          // of inputs that are written before the last step that may raise
    at::Tensor generator;  // state of the random generator
  };
  at::Generator generator() const {
    return at::globalContext().defaultGenerator(
        device_ < 0 ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device_)));
  }
  Before remember(c10::TensorImpl* const* inputs, const std::vector<int32_t>& written) const {
    Before before;
    if (random_) {
      at::Generator g = generator();
      const std::lock_guard<std::mutex> lock(g.mutex());
      before.generator = g.get_state();
    }
    for (int32_t i : written) before.contents.emplace_back(i, flat(i, inputs[i]).clone());
    return before;
  }
  void restore(const Before& before, c10::TensorImpl* const* inputs) const {
    for (const auto& [i, contents] : before.contents) flat(i, inputs[i]).copy_(contents);
    if (!before.generator.defined()) return;
    at::Generator g = generator();
    const std::lock_guard<std::mutex> lock(g.mutex());
    g.set_state(before.generator);
  }

  // ---- running ----
  void execute_on_cpu(Frame& frame, c10::TensorImpl* const* inputs, std::vector<at::Tensor>& outputs,
                      std::vector<at::Tensor>* consumed) {
    struct Held {
      Slab slab;
      ~Held() { give_slab(slab); }
    } held{take_slab(static_cast<size_t>(slab_bytes_))};
    Run run{.frame = frame, .inputs = inputs, .outputs = &outputs, .consumed = consumed};
    if (!frozen_program_.empty()) sync_frozen(frame, inputs, nullptr);
    execute(run, held.slab.data);
  }

  void execute_on_cuda(Frame& frame, c10::TensorImpl* const* inputs, std::vector<at::Tensor>& outputs,
                       std::vector<at::Tensor>* consumed) {
    cuda::enter_context(device_);
    const cuda::Stream stream = cuda::current_stream(device_);
    if (graphs_ && !measured_ && calls_made_.load(std::memory_order_relaxed) > 1) {
      std::optional<at::RecordFunction> range;
      if (profiled()) [[unlikely]]
        range.emplace(at::RecordScope::USER_SCOPE).before("flashover: CUDA graph");
      if (run_graph(inputs, outputs, stream)) return;
    }
    const CudaMemory scratch(static_cast<size_t>(scratch_bytes_)), slab(static_cast<size_t>(slab_bytes_));
    frame.scratch = scratch.get();
    Aligned aligned(*this, inputs, input_patches_);
    Run run{frame, aligned.inputs, &outputs, stream, nullptr};
    if (aligned.copies.empty()) run.consumed = consumed;  // (copies may be written back at the end)
    if (!frozen_program_.empty()) sync_frozen(frame, inputs, stream);
    execute(run, slab.get());
    aligned.copy_back();
    if (graphs_) warm_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }

  // All elements of input i from the first to the last, whatever the strides.
  at::Tensor flat(int32_t i, c10::TensorImpl* impl) const {
    return view_of(borrow(impl), c10::typeMetaToScalarType(impl->dtype()), {constant(plan::span(plan_.inputs[i].type))},
                   {1}, 0);
  }

  bool aligned_enough(int32_t i, c10::TensorImpl* impl) const {
    return plan_.inputs[i].type.device.type == DeviceType::kCPU ||
           reinterpret_cast<uintptr_t>(data_of(impl)) % kCudaAlignment == 0;
  }

  // Inputs whose address does not suit kernels are replaced by copies for the time of the call.
  struct Aligned {
    const PlanExecutable& e;
    c10::TensorImpl* const* given;
    c10::TensorImpl* const* inputs;
    std::vector<c10::TensorImpl*> replaced;
    std::vector<std::pair<int32_t, at::Tensor>> copies;  // by input number

    Aligned(const PlanExecutable& e, c10::TensorImpl* const* given, const std::vector<Patch>& patches)
        : e(e), given(given), inputs(given) {
      int32_t last = -1;
      for (const Patch& p : patches) {
        if (p.index == last) continue;
        last = p.index;
        if (!e.aligned_enough(last, given[last])) replace(last);
      }
      if (!replaced.empty()) inputs = replaced.data();
    }
    void replace(int32_t i) {
      if (replaced.empty()) replaced.assign(given, given + e.plan_.inputs.size());
      copies.emplace_back(i, e.flat(i, given[i]).clone());
      const at::Tensor& copy = copies.back().second;
      const Shape shape(e.plan_.inputs[i].type);
      copies.back().second = view_of(copy, shape.dtype, shape.sizes, shape.strides, 0);
      replaced[i] = copies.back().second.unsafeGetTensorImpl();
    }
    void copy_back() {
      for (auto& [i, copy] : copies)
        if (std::binary_search(e.mutated_.begin(), e.mutated_.end(), i))
          e.flat(i, given[i]).copy_(e.flat(i, copy.unsafeGetTensorImpl()));
    }
  };

  void execute(Run& run, char* slab) {
    Frame& frame = run.frame;
    c10::TensorImpl* const* inputs = run.inputs;
    std::vector<at::Tensor>& outputs = *run.outputs;
    const ReleasesFrame release{*this, frame};
    if (slab != frame.slab_base) rebase_slab(frame, slab);
    patch_inputs(frame, inputs, input_patches_);
    for (int32_t i : owned_outputs_) outputs[i] = shapes_[plan_.outputs[i].tensor].empty();
    patch_outputs(frame, outputs);
    std::optional<Watch> watch;
    if (const bool ranges = profiled(); ranges || measured_) [[unlikely]] {
      watch.emplace(plan_, ranges, measured_ ? &times_ : nullptr, device_);
      run.watch = &*watch;
    }
    constexpr int kFirstCalls = 2;  // what is called once or twice is not worth a graph
    run.stretches = use_stretches_.load(std::memory_order_relaxed) && !run.watch && ++frame.calls > kFirstCalls &&
                    !cuda::is_capturing(run.stream);
    interpret(program_, run);
    for (const LateOutput& o : late_outputs_) finish_output(run, o.index, o.adopt);
    take_parts(outputs);
    if (watch) watch->finish();
  }

  // ---- kernels in a row ----
  // What lies between operators: launches and the memory that they need. Nothing is freed before the kernels are
  // enqueued, and so nothing is made behind what is freed: it would lie beside it.
  struct Stretch {
    size_t first, end;  // instructions
    size_t kernels;
  };
  void find_stretches() {
    constexpr size_t kMostKernels = 256, kMostStretches = 96;
    std::vector<Stretch> found;
    Stretch now{};
    bool freed = false;
    const auto close = [&] {
      if (now.kernels) found.push_back(now);
      now = {};
      freed = false;
    };
    for (size_t i = 0; i < program_.size(); ++i) {
      const Instruction& in = program_[i];
      const bool launch = in.kind == StepKind::kLaunch && plan_.kernels[in.step->kernel].cuda.scratch == 0;
      const bool frees = in.kind == StepKind::kRelease;
      if (!(launch || frees || in.makes >= 0) || (in.makes >= 0 && freed) || now.kernels == kMostKernels) close();
      if (launch && in.launch >= 0) {
        if (!now.kernels++ && now.end == 0) now.first = i;
        now.end = i + 1;
      } else if (in.makes >= 0 && now.end == 0) {
        now.first = i;
        now.end = i + 1;
      }
      freed = now.end > 0 && (freed || frees || !last_reads_[i].empty());
    }
    close();
    if (found.size() > kMostStretches) {
      std::stable_sort(found.begin(), found.end(),
                       [](const Stretch& a, const Stretch& b) { return a.kernels > b.kernels; });
      found.resize(kMostStretches);
    }
    stretches_ = std::move(found);
    for (size_t i = 0; i < stretches_.size(); ++i) program_[stretches_[i].first].stretch = static_cast<int32_t>(i);
    use_stretches_ = !stretches_.empty();
  }

  // False: no kernel was launched.
  bool run_stretch(size_t number, Run& run) {
    Frame& frame = run.frame;
    const Stretch& s = stretches_[number];
    const auto params = [&](const Launch& l) {
      return cuda::KernelNodeParams{.function = l.function,
                                    .grid = {l.grid[0], l.grid[1], l.grid[2]},
                                    .block = {l.threads, 1, 1},
                                    .shared = l.shared,
                                    .params = frame.params.data() + l.params,
                                    .extra = nullptr,
                                    .kernel = nullptr,
                                    .context = nullptr};
    };
    for (size_t i = s.first; i < s.end; ++i) {
      if (program_[i].makes >= 0) make(program_[i], run);
      if (program_[i].launch >= 0) take_values(program_[i].launch, run);
    }
    if (frame.graphs.empty()) {
      frame.graphs.resize(stretches_.size());
      frame.graphs_table.resize(frame.table.size());
      frame.graphs_values.resize(frame.values.size());
    }
    std::unique_ptr<cuda::KernelGraph>& graph = frame.graphs[number];
    const bool fresh = !graph;
    if (fresh) {
      std::vector<cuda::KernelNodeParams> all;
      for (size_t i = s.first; i < s.end; ++i)
        if (program_[i].launch >= 0) all.push_back(params(launches_[program_[i].launch]));
      graph = std::make_unique<cuda::KernelGraph>(all);
    }
    if (!graph->usable()) return give_up_stretches();
    size_t kernel = 0;
    for (size_t i = s.first; i < s.end; ++i) {
      const Instruction& in = program_[i];
      if (in.launch < 0) continue;
      const Launch& l = launches_[in.launch];
      const size_t first = in.table, count = in.step->reads.size() + in.step->writes.size();
      bool same = true;
      for (size_t k = first; k < first + count; ++k)
        if (frame.table[k] != frame.graphs_table[k]) same = false, frame.graphs_table[k] = frame.table[k];
      for (uint32_t k = l.values; k < l.values + l.value_count; ++k)
        if (frame.values[k] != frame.graphs_values[k]) same = false, frame.graphs_values[k] = frame.values[k];
      if (!same && !fresh && !graph->set(kernel, params(l))) return give_up_stretches();
      ++kernel;
    }
    if (!graph->launch(run.stream)) return give_up_stretches();
    for (size_t i = s.first; i < s.end; ++i) {
      if (program_[i].kind == StepKind::kRelease) release(program_[i], run);
      let_go(i, run);
    }
    return true;
  }
  bool give_up_stretches() {
    use_stretches_ = false;
    return false;
  }

  void make(const Instruction& in, Run& run) {
    at::Tensor& memory = run.frame.tensors[in.makes];
    memory = shapes_[in.makes].empty();
    patch_late(run.frame, in.makes, memory);
  }
  static void release(const Instruction& in, Run& run) {
    for (TensorId t : in.step->reads) run.frame.tensors[t].reset();
  }
  // The inputs that nobody reads after that step.
  void let_go(size_t step, Run& run) const {
    if (run.consumed)
      for (int32_t i : last_reads_[step]) (*run.consumed)[i].reset();
  }

  void take_parts(std::vector<at::Tensor>& outputs) {
    for (size_t i = 0; i < part_.size(); ++i)
      if (part_[i]) take_part(outputs[i], i);
  }

  // The memory is the output's own: nobody else sees this tensor object.
  void take_part(at::Tensor& memory, size_t i) {
    c10::TensorImpl* impl = memory.unsafeGetTensorImpl();
    impl->set_storage_offset(impl->storage_offset() + plan_.outputs[i].type.offset.value());
    impl->set_sizes_and_strides(output_shapes_[i].sizes, output_shapes_[i].strides);
  }

  void finish_output(Run& run, size_t i, bool adopt) {
    const TensorId t = plan_.outputs[i].tensor;
    const Shape& shape = shapes_[t];
    if (adopt && shape.same_strides(run.frame.tensors[t])) {
      at::Tensor& out = (*run.outputs)[i] = std::move(run.frame.tensors[t]);
      // Of dimensions of size 1 too: the user sees them, and later operators choose layouts by them.
      if (!shape.opaque && out.strides() != at::IntArrayRef(shape.strides) && is_unique(out))
        out.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes, shape.strides);
      return;
    }
    at::Tensor out = shape.empty();
    out.copy_(tensor(run, t));
    (*run.outputs)[i] = std::move(out);
  }

  // Returns the last of the batch's instructions.
  const Instruction* run_batch(const Instruction* first, const Batch& batch, Run& run) {
    struct Context {
      const Instruction* first;
      const Batch& batch;
      void* const* table;
      const int64_t* numbers;
      std::vector<int32_t> status;
      void launch(int32_t step) {
        const Instruction& in = first[step - batch.first];
        status[static_cast<size_t>(step - batch.first)] = in.fn(table + in.table, numbers + in.sizes);
      }
    } context{first, batch, run.frame.table.data(), numbers_.data(),
              std::vector<int32_t>(static_cast<size_t>(batch.count))};
    for (int32_t step : batch.alone) context.launch(step);
    run_shared(
        batch, at::get_num_threads(), [](void* c, int32_t s) { static_cast<Context*>(c)->launch(s); }, &context);
    for (int32_t i = 0; i < batch.count; ++i) {
      if (context.status[static_cast<size_t>(i)]) fail_index(*first[i].step, context.status[static_cast<size_t>(i)]);
      if (run.consumed)
        for (int32_t r : last_reads_[static_cast<size_t>(batch.first + i)]) (*run.consumed)[r].reset();
    }
    return first + batch.count - 1;
  }

  // CUDA graphs hold what the device does. What operators do on the CPU alone is done before each replay, and the
  // numbers that launches take along are read in its midst.
  enum class Part : uint8_t { kAll, kDevice, kHost };
  void interpret(const std::vector<Instruction>& program, Run& run, Part part = Part::kAll) {
    const Instruction* in = program.data();
    const Instruction* end = in + program.size();
    const auto note = [&](const Instruction* raised) {
      run.frame.at = run.outputs ? static_cast<size_t>(raised - program.data()) : 0;
    };
    try {
      for (; in != end; ++in) {
        if (part != Part::kAll) [[unlikely]] {
          if (in->kind == StepKind::kLaunch && part == Part::kHost) {
            if (in->launch >= 0) take_values(in->launch, run);
            continue;
          }
          if (host_steps_[static_cast<size_t>(in - program.data())] != (part == Part::kHost)) continue;
        }
        if (run.stretches && in->stretch >= 0) {
          if (run_stretch(static_cast<size_t>(in->stretch), run)) {
            in = program.data() + stretches_[static_cast<size_t>(in->stretch)].end - 1;
            continue;
          }
          run.stretches = false;
        }
        if (run.watch) [[unlikely]]
          run.watch->begin(static_cast<size_t>(in - program.data()));
        switch (in->kind) {
          case StepKind::kLaunch:
            if (in->batch >= 0 && !run.watch) {
              in = run_batch(in, batches_[in->batch], run);
              continue;
            }
            if (device_ >= 0) {
              if (in->launch >= 0) {
                if (part == Part::kAll) take_values(in->launch, run);
                launch(launches_[in->launch], run);
              }
            } else if (const int32_t status = in->fn(run.frame.table.data() + in->table, numbers_.data() + in->sizes)) {
              fail_index(*in->step, status);
            }
            break;
          case StepKind::kCall:
            if (in->makes >= 0)
              make(*in, run);
            else
              call(calls_[in->call], run);
            break;
          case StepKind::kCopy:
            tensor(run, in->step->writes[0]).copy_(tensor(run, in->step->reads[0]));
            break;
          case StepKind::kRelease:
            release(*in, run);
            break;
        }
        if (run.watch) [[unlikely]]
          run.watch->end(static_cast<size_t>(in - program.data()));
        let_go(static_cast<size_t>(in - program.data()), run);
      }
    } catch (Mismatch& m) {
      m.step = static_cast<size_t>(in - program.data());
      m.clean = !run.outputs;  // frozen steps write nothing that anybody sees
      throw;
    } catch (c10::Error& e) {
      note(in);
      if (!in->step->label.empty()) e.add_context("in compiled code for " + in->step->label);
      throw;
    } catch (...) {
      note(in);
      throw;
    }
  }

  // ---- CUDA graphs ----
  // Kernels take new addresses at each replay; what operators read and write must stay where it was, and so does what
  // is lent. A plan has several recordings when calls come while memory of the first one is on loan (two forwards, then
  // two backwards), or when operators read what several recordings of another plan lend.
  struct Recording {
    std::shared_ptr<void> graph;
    cuda::GraphExec exec = nullptr;
    cuda::Stream stream = nullptr;
    std::unique_ptr<Frame> frame;  // the parameters that the graph's kernels have now
    std::shared_ptr<CudaMemory> slab, scratch;
    std::shared_ptr<const Frozen> frozen;
    std::vector<cuda::Node> nodes;    // by launch
    std::vector<at::Tensor> inputs;   // by input: a buffer in its place, or undefined
    std::vector<const void*> fixed;   // by input: where operators expect it, or null
    std::vector<at::Tensor> outputs;  // by output: the graph's own memory of it, or undefined
    std::vector<bool> stale;          // by launch: has other parameters than its node
    std::shared_ptr<std::atomic<int>> on_loan = std::make_shared<std::atomic<int>>(0);
    std::unique_ptr<HeldToLend> held;
    bool is_free() const { return on_loan->load(std::memory_order_acquire) == 0; }
  };

  void plan_graph(const LoadOptions& options) {
    graphs_ = true;
    places_ = options.places;
    if (places_.empty())
      for (const plan::InputSpec& i : plan_.inputs) places_.push_back(i.kind != 0 ? Place::kStays : Place::kMoves);
    moved_.assign(plan_.inputs.size(), 0);
    operator_inputs_.assign(plan_.inputs.size(), false);
    operator_outputs_.assign(plan_.outputs.size(), false);
    const auto on_cpu = [&](TensorId t) { return root_tensor(t).type.device.type == DeviceType::kCPU; };
    lends_ = options.lends;
    lends_.resize(plan_.outputs.size());
    for (size_t i = 0; i < lends_.size(); ++i) {
      const TensorId t = plan_.outputs[i].tensor;
      lends_[i] = lends_[i] && t >= 0 && !on_cpu(t) && !shapes_[t].opaque;
      if (lends_[i]) lent_bytes_ += span_bytes(plan_.tensors[t].type);
      lender_ = lender_ || lends_[i];
    }
    size_t at = 0;
    const auto mark = [&](TensorId t) {
      if (t < 0) return;
      const plan::Tensor& root = root_tensor(t);
      if (on_cpu(t)) apart_.try_emplace(at, "operators use CPU and CUDA tensors");
      if (root.home == Home::kInput) operator_inputs_[root.index] = true;
      if (root.home == Home::kOutput) operator_outputs_[root.index] = true;
    };
    host_steps_.assign(plan_.steps.size(), false);
    for (size_t n = 0; n < plan_.steps.size(); ++n) {
      const plan::Step& s = plan_.steps[n];
      at = n;
      if (s.kind == StepKind::kLaunch) continue;
      bool host = true, any = false;
      const auto look = [&](TensorId t) { host &= t < 0 || on_cpu(t), any |= t >= 0; };
      plan::for_each_read(s, look);
      for (TensorId t : s.writes) look(t);
      if (host && any) {
        host_steps_[n] = true;
        continue;
      }
      if (s.kind == StepKind::kCall) {
        const Call& c = calls_[program_[n].call];
        if (c.op->handle.hasTag(at::Tag::cudagraph_unsafe)) apart_.try_emplace(n, s.op + " is not made for them");
        draws_ = draws_ || (ops::find(s.op)->nondeterministic && !draws_nothing(c));
      }
      plan::for_each_read(s, mark);
      plan::for_each_write(s, mark);
    }
    for (const LateOutput& o : late_outputs_) {
      if (on_cpu(plan_.outputs[o.index].tensor)) continue;
      operator_outputs_[o.index] = true;
      mark(plan_.outputs[o.index].tensor);
    }
    slot_launch_.assign(table_size_, -1);
    for (const Instruction& in : program_)
      if (in.kind == StepKind::kLaunch && in.launch >= 0)
        for (size_t i = 0; i < in.step->reads.size() + in.step->writes.size(); ++i)
          slot_launch_[in.table + i] = in.launch;
    if (!cuda::capture_hooks.begin) skip_graph("not loaded by Python");
    if (!apart_.empty()) record_parts();
  }
  // Attention is random when it drops something out.
  static bool draws_nothing(const Call& c) {
    const auto& arguments = c.op->handle.schema().arguments();
    for (size_t i = 0; i < c.pieces.size() && i < arguments.size(); ++i)
      if (arguments[i].name() == "dropout_p" && c.pieces[i].kind == Call::Piece::Kind::kConstant &&
          c.pieces[i].constant.isDouble())
        return c.pieces[i].constant.toDouble() == 0;
    return false;
  }
  void skip_graph(const std::string& why) {
    if (!graphs_) return;
    graphs_ = false;
    std::fprintf(stderr, "flashover: no CUDA graph: %s\n", why.c_str());
  }

  // False: the call is to be made the ordinary way.
  bool run_graph(c10::TensorImpl* const* inputs, std::vector<at::Tensor>& outputs, cuda::Stream stream) {
    std::unique_lock lock(graph_mutex_, std::try_to_lock);
    if (!lock.owns_lock() || cuda::is_capturing(stream)) return false;
    for (const Patch& p : input_patches_)
      if (!aligned_enough(p.index, inputs[p.index])) return false;
    // The program sees what is saved for the backward: that must be memory which torch's allocator knows.
    if (lender_ && !at::SavedTensorDefaultHooks::get_tls_state().stack.empty()) return false;
    Recording* r = find_recording(inputs, stream);
    if (!r && may_record(inputs, stream)) r = record(inputs, stream);
    if (!r) return false;
    std::unique_lock replays(cuda::replays_on_current_stream(device_), std::try_to_lock);
    if (!replays.owns_lock()) return false;
    replay(*r, inputs, outputs);
    ++served_;
    replays_.fetch_add(1, std::memory_order_relaxed);
    all_replays.fetch_add(1, std::memory_order_relaxed);
    return true;
  }

  Recording* find_recording(c10::TensorImpl* const* inputs, cuda::Stream stream) {
    const auto outdated = [&](const std::unique_ptr<Recording>& r) {
      if (r->stream != stream || frozen_program_.empty()) return false;
      sync_frozen(*r->frame, inputs, stream);
      return r->frame->frozen != r->frozen;
    };
    recordings_.erase(std::remove_if(recordings_.begin(), recordings_.end(), outdated), recordings_.end());
    for (const std::unique_ptr<Recording>& r : recordings_)
      if (r->stream == stream && r->is_free() && suits(*r, inputs)) return r.get();
    return nullptr;
  }
  static bool suits(const Recording& r, c10::TensorImpl* const* inputs) {
    for (size_t i = 0; i < r.fixed.size(); ++i)
      if (r.fixed[i] && r.fixed[i] != data_of(inputs[i])) return false;
    return true;
  }

  // There is no recording for this call.
  bool may_record(c10::TensorImpl* const* inputs, cuda::Stream stream) {
    // Libraries set up what they need for a thread at their first call there, which cannot be recorded.
    if (no_more_ || warm_.load(std::memory_order_relaxed) != std::this_thread::get_id()) return false;
    for (size_t i = 0; i < places_.size(); ++i)
      if (places_[i] == Place::kLent && operator_inputs_[i]) {
        // What is never lent, since it comes from a part without a graph, gets a buffer in the end.
        moved_[i] = is_lent(inputs[i]) ? 0 : moved_[i] + 1;
        if (moved_[i] > kNeverLent) places_[i] = Place::kMoves;
        if (moved_[i] > 0) return false;
      }
    for (const std::unique_ptr<Recording>& r : recordings_) {
      if (r->stream != stream) return false;  // one stream at a time
      // All that suit are on loan. Another one costs its memory: only for programs that go on like this.
      if (suits(*r, inputs) && (++busy_ < kBusyCalls || recordings_.size() >= kMaxAlive)) return false;
    }
    busy_ = 0;
    // What did not stay gets a buffer, in the end.
    if (!recordings_.empty())
      for (size_t i = 0; i < places_.size(); ++i) {
        const void* before = recordings_.back()->fixed[i];
        if (places_[i] == Place::kStays && before && before != data_of(inputs[i]) && ++moved_[i] > kMovesAllowed)
          places_[i] = Place::kMoves;
      }
    if (recordings_.size() >= kMaxAlive) recordings_.erase(recordings_.begin());
    if (const int64_t held = HeldToLend::total(device_);
        lender_ && held > 0 && held + lent_bytes_ > cuda::memory_bytes(device_) / kMostHeld) {
      give_up("graphs of other shapes or functions keep too much memory already");
      return false;
    }
    if (std::exchange(served_, 0) >= kWorthIt) recorded_ = 0;
    if (++recorded_ > kMaxRecordings) {
      recordings_.clear();
      skip_graph("memory or parameters that operators read keep changing");
    }
    return graphs_;
  }
  // No more recordings than there are.
  void give_up(const std::string& why) {
    no_more_ = true;
    if (recordings_.empty()) skip_graph(why);
  }

  // Temporaries of graphs that replay on one stream, never two at a time.
  static std::shared_ptr<CudaMemory> shared_memory(int device, cuda::Stream stream, int64_t bytes, bool scratch) {
    struct Kept {
      std::weak_ptr<CudaMemory> memory;
      int64_t bytes = 0;
    };
    static std::mutex mutex;
    static auto* all = new std::map<std::tuple<int, cuda::Stream, bool>, Kept>;
    const std::lock_guard lock(mutex);
    Kept& kept = (*all)[{device, stream, scratch}];
    std::shared_ptr<CudaMemory> memory = kept.memory.lock();
    if (!memory || kept.bytes < bytes) {
      memory = std::make_shared<CudaMemory>(static_cast<size_t>(bytes));
      kept = {memory, bytes};
    }
    return memory;
  }

  Recording* record(c10::TensorImpl* const* inputs, cuda::Stream stream) {
    static std::mutex one_at_a_time;
    const std::unique_lock recording(one_at_a_time, std::try_to_lock);
    if (!recording.owns_lock()) return nullptr;
    auto r = std::make_unique<Recording>();
    try {
      r->stream = stream;
      r->frame = make_frame();
      r->frame->at = SIZE_MAX;
      r->inputs.resize(plan_.inputs.size());
      r->fixed.resize(plan_.inputs.size());
      r->outputs.resize(plan_.outputs.size());
      r->stale.assign(launches_.size(), false);
      r->nodes.resize(launches_.size());
      r->slab = shared_memory(device_, stream, slab_bytes_, false);
      r->scratch = shared_memory(device_, stream, scratch_bytes_, true);
      r->frame->scratch = r->scratch->get();
      std::vector<c10::TensorImpl*> used(inputs, inputs + plan_.inputs.size());
      for (size_t i = 0; i < used.size(); ++i) {
        if (!operator_inputs_[i]) continue;
        if (places_[i] != Place::kMoves) {
          r->fixed[i] = data_of(used[i]);
          continue;
        }
        const Shape shape(plan_.inputs[i].type);
        r->inputs[i] =
            view_of(flat(static_cast<int32_t>(i), used[i]).clone(), shape.dtype, shape.sizes, shape.strides, 0);
        used[i] = r->inputs[i].unsafeGetTensorImpl();
      }
      if (!frozen_program_.empty()) sync_frozen(*r->frame, inputs, stream);
      r->frozen = r->frame->frozen;
      std::vector<at::Tensor> made(plan_.outputs.size());
      for (int32_t i : owned_outputs_) made[i] = shapes_[plan_.outputs[i].tensor].empty();
      std::vector<cuda::Node> nodes;
      {
        cuda::Capture capture(device_, lender_);
        Run run{*r->frame, used.data(), &made, capture.stream(), nullptr, &nodes};
        rebase_slab(*r->frame, r->slab->get());
        patch_inputs(*r->frame, used.data(), input_patches_);
        patch_outputs(*r->frame, made);
        interpret(program_, run, Part::kDevice);
        for (const LateOutput& o : late_outputs_)
          if (operator_outputs_[o.index]) finish_output(run, o.index, o.adopt);
        r->exec = capture.finish(r->graph);
      }
      r->frame->stack.clear();
      for (TensorId t : extern_tensors_) r->frame->tensors[t].reset();
      size_t next = 0;
      for (const Instruction& in : program_)
        if (in.kind == StepKind::kLaunch && in.launch >= 0) r->nodes[in.launch] = nodes.at(next++);
      for (size_t i = 0; i < made.size(); ++i)
        if (operator_outputs_[i] || lends_[i]) r->outputs[i] = std::move(made[i]);
    } catch (const std::exception& e) {
      std::string what = e.what();
      what = "recording failed: " + what.substr(0, what.find('\n'));
      const auto* mismatch = dynamic_cast<const Mismatch*>(&e);
      const size_t at = mismatch ? mismatch->step : r->frame ? r->frame->at : SIZE_MAX;
      if (at < plan_.steps.size() && plan_.steps[at].kind == StepKind::kCall && recordings_.empty() &&
          !dynamic_cast<const c10::OutOfMemoryError*>(&e)) {
        apart_.try_emplace(at, what);
        record_parts();
      } else {
        give_up(what);
      }
      return nullptr;
    }
    if (lender_) r->held = std::make_unique<HeldToLend>(device_, lent_bytes_);
    recordings_.push_back(std::move(r));
    return recordings_.back().get();
  }

  void set_slot(Recording& r, uint32_t slot, void* value) {
    if (r.frame->table[slot] == value) return;
    r.frame->table[slot] = value;
    if (slot_launch_[slot] >= 0) r.stale[slot_launch_[slot]] = true;
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

  void replay(Recording& r, c10::TensorImpl* const* inputs, std::vector<at::Tensor>& outputs) {
    Copies in, out;
    for (size_t i = 0; i < r.inputs.size(); ++i)
      if (r.inputs[i].defined())
        in.add(flat(static_cast<int32_t>(i), r.inputs[i].unsafeGetTensorImpl()),
               flat(static_cast<int32_t>(i), inputs[i]));
    in.run();
    for (const Patch& p : input_patches_)
      if (!r.inputs[p.index].defined()) set_slot(r, p.slot, data_of(inputs[p.index]) + p.bytes);
    for (int32_t i : owned_outputs_)
      if (!lends_[i]) outputs[i] = shapes_[plan_.outputs[i].tensor].empty();
    host_part(r, inputs, outputs);
    for (const Patch& p : output_patches_)
      if (!r.outputs[p.index].defined()) set_slot(r, p.slot, data_of(outputs[p.index].unsafeGetTensorImpl()) + p.bytes);
    for (size_t i = 0; i < r.stale.size(); ++i) {
      if (!r.stale[i]) continue;
      const Launch& l = launches_[i];
      const cuda::KernelNodeParams params{l.function,
                                          {l.grid[0], l.grid[1], l.grid[2]},
                                          {l.threads, 1, 1},
                                          l.shared,
                                          r.frame->params.data() + l.params,
                                          nullptr,
                                          nullptr,
                                          nullptr};
      cuda::check(cuda::driver()->exec_set_kernel(r.exec, r.nodes[i], &params), "cuGraphExecKernelNodeSetParams");
      r.stale[i] = false;
    }
    if (draws_)
      cuda::capture_hooks.replay(r.graph.get());
    else
      cuda::check(cuda::driver()->graph_launch(r.exec, r.stream), "cuGraphLaunch");
    for (size_t i = 0; i < r.outputs.size(); ++i) {
      if (!r.outputs[i].defined()) continue;
      if (lends_[i]) {
        outputs[i] = lend(r.outputs[i], r.on_loan);
        continue;
      }
      if (!outputs[i].defined()) outputs[i] = shapes_[plan_.outputs[i].tensor].empty();
      out.add(outputs[i], r.outputs[i]);
    }
    for (int32_t i : mutated_)
      if (r.inputs[i].defined()) out.add(flat(i, inputs[i]), flat(i, r.inputs[i].unsafeGetTensorImpl()));
    out.run();
    take_parts(outputs);
  }

  void host_part(Recording& r, c10::TensorImpl* const* inputs, std::vector<at::Tensor>& outputs) {
    if (host_values_.empty() && std::find(host_steps_.begin(), host_steps_.end(), true) == host_steps_.end()) return;
    const ReleasesFrame release{*this, *r.frame};
    Run run{.frame = *r.frame, .inputs = inputs, .outputs = &outputs, .stream = r.stream, .stale = &r.stale};
    interpret(program_, run, Part::kHost);
    for (const LateOutput& o : late_outputs_)
      if (!operator_outputs_[o.index]) finish_output(run, o.index, o.adopt);
  }

  void take_values(int32_t launch, Run& run) {
    const Launch& l = launches_[static_cast<size_t>(launch)];
    for (uint32_t i = l.values; i < l.values + l.value_count; ++i) {
      uint64_t value = 0;
      std::memcpy(&value, run.frame.table[host_values_[i].slot], host_values_[i].bytes);
      if (run.frame.values[i] != value && run.stale) (*run.stale)[static_cast<size_t>(launch)] = true;
      run.frame.values[i] = value;
    }
  }

  static void launch(const Launch& l, Run& run) {
    cuda::check(cuda::driver()->launch(l.function, l.grid[0], l.grid[1], l.grid[2], l.threads, 1, 1, l.shared,
                                       run.stream, run.frame.params.data() + l.params, nullptr),
                "cuLaunchKernel");
    if (run.nodes) run.nodes->push_back(cuda::last_node(run.stream));
  }

  [[noreturn]] void fail_index(const plan::Step& s, int32_t status) const {
    const auto& errors = plan_.kernels[s.kernel].errors;
    const auto i = static_cast<size_t>(status) - 1;
    throw c10::IndexError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                          status > 0 && i < errors.size() ? errors[i] : "index out of range");
  }

  // The tensor as an extern operator sees it.
  at::Tensor tensor(Run& run, TensorId t) {
    const TensorId r = roots_[t];
    const plan::Tensor& base = plan_.tensors[r];
    at::Tensor whole;
    switch (base.home) {
      case Home::kSlab:
        return slab_tensor(run.frame, t);
      case Home::kInput:
        whole = borrow(run.inputs[base.index]);
        break;
      case Home::kOutput:
        whole = (*run.outputs)[base.index];
        break;
      case Home::kExtern:
        whole = run.frame.tensors[r];
        break;
      case Home::kFrozen:
        whole = run.frozen ? (*run.frozen)[r] : run.frame.frozen->tensors[r];
        break;
      case Home::kView:
        break;
    }
    if (r == t) return whole;
    return view_of(whole, shapes_[t].dtype, shapes_[t].sizes, shapes_[t].strides,
                   offsets_[t] / static_cast<int64_t>(c10::elementSize(shapes_[t].dtype)));
  }

  void call(const Call& c, Run& run) {
    // A nested call of this frame cannot happen (a nested run borrows another frame), so the stack is ours.
    torch::jit::Stack& stack = run.frame.stack;
    stack.clear();
    c10::SmallVector<at::Tensor, 4> clones;
    const auto given = [&](const Call::Piece& piece, TensorId t) {
      if (!piece.clone) return tensor(run, t);
      const at::Tensor original = tensor(run, t);
      clones.push_back(shapes_[t].opaque ? original.clone() : shapes_[t].empty());
      if (!shapes_[t].opaque) clones.back().copy_(original);
      return clones.back();
    };
    for (const Call::Piece& piece : c.pieces) {
      switch (piece.kind) {
        case Call::Piece::Kind::kConstant:
          stack.emplace_back(piece.constant);
          break;
        case Call::Piece::Kind::kTensor:
          stack.emplace_back(given(piece, piece.tensor));
          break;
        case Call::Piece::Kind::kScalar:
          stack.emplace_back(tensor(run, piece.tensor).item());
          break;
        case Call::Piece::Kind::kList: {
          c10::List<at::Tensor> list;
          list.reserve(piece.list.size());
          for (TensorId t : piece.list) list.push_back(t < 0 ? at::Tensor() : given(piece, t));
          stack.emplace_back(std::move(list));
          break;
        }
        case Call::Piece::Kind::kOptionalList: {
          c10::List<std::optional<at::Tensor>> list;
          list.reserve(piece.list.size());
          for (TensorId t : piece.list) list.push_back(t < 0 ? std::optional<at::Tensor>() : given(piece, t));
          stack.emplace_back(std::move(list));
          break;
        }
      }
    }
    if (run.nodes) [[unlikely]]
      check_recordable(c, stack);
    c.op->handle.callBoxed(stack);
    if (run.nodes) [[unlikely]]
      check_recordable(c, stack);
    if (c.out_variant) {
      stack.clear();
      for (size_t i = 0; i < c.writes.size(); ++i)
        if (!c.shapes[i].fits(tensor(run, c.writes[i]))) throw Mismatch(c.op->name + " resized its output");
    } else {
      size_t next = 0;
      for (c10::IValue& value : stack) {
        if (value.isTensor()) {
          result(c, next++, std::move(value).toTensor(), run);
        } else if (value.isTensorList()) {
          for (at::Tensor& t : value.toTensorVector()) result(c, next++, std::move(t), run);
        }
      }
      for (at::Tensor& t : clones) result(c, next++, std::move(t), run);
      stack.clear();
      if (next != c.writes.size())
        throw Mismatch(c.op->name + " returned " + std::to_string(next) + " tensors, not " +
                       std::to_string(c.writes.size()));
    }
    if (c.may_keep) take_back(c, run);
  }

  // Seeds of attention lie on the device where a graph is recorded, on the CPU elsewhere: as numbers of one call.
  static void check_recordable(const Call& c, const torch::jit::Stack& stack) {
    if (draws_nothing(c)) return;
    for (const c10::IValue& v : stack)
      TORCH_CHECK(!v.isTensor() || !v.toTensor().defined() || !v.toTensor().is_cpu(), c.op->name,
                  " has a seed on the CPU");
  }

  // Result number i of an operator.
  void result(const Call& c, size_t i, at::Tensor value, Run& run) {
    if (i >= c.writes.size()) throw Mismatch(c.op->name + " returned too many tensors");
    const TensorId t = c.writes[i];
    if (t < 0) return;
    const Shape& shape = c.shapes[i];
    if (converts_ && value.defined() && value.scalar_type() != shape.dtype && !shape.opaque)
      value = value.to(shape.dtype);
    if (!value.defined() || !shape.fits(value))
      throw Mismatch("result " + std::to_string(i) + " of " + c.op->name + " is " +
                     (value.defined() ? str(aten::type_of(value)) : "nothing") + ", not " + str(plan_.tensors[t].type));
    const Home home = plan_.tensors[t].home;
    if (home != Home::kExtern && home != Home::kFrozen) {
      at::Tensor target = tensor(run, t);
      if (!value.is_same(target)) target.copy_(value);
      return;
    }
    if (!shape.opaque) {
      // The plan counts on memory that nobody else sees, with the strides that kernels were built for.
      const bool strides = shape.same_strides(value);
      at::Tensor& old = home == Home::kFrozen ? (*run.frozen)[t] : run.frame.tensors[t];
      if (!(old.defined() && value.is_same(old)) && (!strides || !is_unique(value) || value._is_zerotensor())) {
        at::Tensor own = shape.empty();
        own.copy_(value);
        value = std::move(own);
      }
      patch_late(run.frame, t, value);
      old = std::move(value);
    } else {
      (home == Home::kFrozen ? (*run.frozen)[t] : run.frame.tensors[t]) = std::move(value);
    }
  }

  // A custom operator that keeps a slab tensor gets the memory's contents for itself; the plan makes new wrappers.
  void take_back(const Call& c, Run& run) {
    const auto check = [&](TensorId t) {
      if (t < 0 || root_tensor(t).home != Home::kSlab) return;
      const TensorId r = roots_[t];
      at::Tensor& whole = run.frame.tensors[r];
      if (!whole.defined()) return;
      size_t own = 0;
      bool kept = false;
      for (size_t i = 0; i < plan_.tensors.size(); ++i)
        if (roots_[i] == r && run.frame.tensors[i].defined()) {
          ++own;
          kept |= run.frame.tensors[i].use_count() != 1;
        }
      auto* storage = whole.storage().unsafeGetStorageImpl();
      if (!kept && whole.storage().use_count() == own) return;
      c10::DataPtr copy = (device_ < 0 ? c10::GetCPUAllocator() : cuda::allocator())->allocate(storage->nbytes());
      if (device_ < 0) {
        std::memcpy(copy.get(), storage->data_ptr().get(), storage->nbytes());
      } else {
        cuda::check(cuda::driver()->copy(reinterpret_cast<cuda::DevicePointer>(copy.get()),
                                         reinterpret_cast<cuda::DevicePointer>(storage->data_ptr().get()),
                                         storage->nbytes(), run.stream),
                    "cuMemcpyDtoDAsync");
      }
      storage->set_data_ptr_noswap(std::move(copy));
      for (size_t i = 0; i < plan_.tensors.size(); ++i)
        if (roots_[i] == r) run.frame.tensors[i].reset();
    };
    for (const Call::Piece& piece : c.pieces) {
      check(piece.tensor);
      for (TensorId t : piece.list) check(t);
    }
  }

  // ---- frozen part ----
  // What is kept lies in one block: torch's allocator loses up to a tenth where many tensors share its segments.
  void place_frozen(std::vector<at::Tensor>& tensors) const {
    const auto bytes = static_cast<size_t>(frozen_bytes_);
    c10::DataPtr memory;
    try {
      memory = cuda::allocator()->allocate(bytes);
    } catch (const c10::OutOfMemoryError&) {
      return;  // one by one there may be room
    }
    const c10::Storage block(c10::Storage::use_byte_size_t(), bytes, std::move(memory), nullptr, /*resizable=*/false);
    for (const auto& [t, at] : frozen_places_) {
      auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(block), c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                                       c10::scalarTypeToTypeMeta(shapes_[t].dtype));
      impl->set_storage_offset(at / static_cast<int64_t>(impl->itemsize()));
      impl->set_sizes_and_strides(shapes_[t].sizes, shapes_[t].strides);
      tensors[t] = at::Tensor(std::move(impl));
    }
  }

  void sync_frozen(Frame& frame, c10::TensorImpl* const* inputs, cuda::Stream stream) {
    frozen_.sync(frame.frozen, inputs, [&](Frozen& made) {
      // Must not depend on the mode of the call that happens to come first.
      c10::InferenceMode normal(false);
      c10::impl::ExcludeDispatchKeyGuard below(kBelow);
      std::vector<at::Tensor> tensors(plan_.tensors.size());
      frame.patched_for = nullptr;  // the tensors it was patched for may be gone
      if (frozen_bytes_ > 0) place_frozen(tensors);
      for (TensorId t : frozen_allocated_) {
        if (!tensors[t].defined()) tensors[t] = shapes_[t].empty();
        if (plan_.tensors[t].type.wrapped_number) tensors[t].unsafeGetTensorImpl()->set_wrapped_number(true);
        patch_late(frame, t, tensors[t]);
      }
      std::optional<Aligned> aligned;
      if (device_ >= 0) aligned.emplace(*this, inputs, frozen_input_patches_);
      Run run{frame, aligned ? aligned->inputs : inputs, nullptr, stream, &tensors};
      patch_inputs(frame, run.inputs, frozen_input_patches_);
      interpret(frozen_program_, run);
      std::vector<at::Tensor> kept(plan_.tensors.size());
      for (TensorId t : frozen_kept_) kept[t] = std::move(tensors[t]);
      made.tensors = std::move(kept);
      if (device_ >= 0) {
        made.ready = std::make_shared<cuda::ReadyPoint>(device_);
        made.passing = cuda::is_capturing(stream);  // the program records a graph: computed only when that is replayed
      }
    });
    if (device_ >= 0) frame.frozen->ready->enter(stream, frame.frozen->tensors);
    if (frame.frozen.get() != frame.patched_for) {  // an older one stays alive until here, so no address comes twice
      for (TensorId t : frozen_kept_)
        if (!shapes_[t].opaque) patch_late(frame, t, frame.frozen->tensors[t]);
      frame.patched_for = frame.frozen.get();
    }
  }

  plan::Plan plan_;
  std::shared_ptr<const Code> code_;
  int device_ = -1;  // CUDA device, or -1
  std::vector<Stretch> stretches_;
  std::atomic<bool> use_stretches_{false};
  // In pieces
  static constexpr int kMaxParts = 6, kWorthAGraph = 4;
  struct Piece {
    std::shared_ptr<PlanExecutable> executable;
    std::vector<int32_t> inputs;  // as plan::Pieces
    std::vector<plan::Pieces::Piece::Target> outputs;
    std::vector<bool> last;  // by input: the last that needs what is passed on
  };
  int parts_ = 0;                        // how often what this is a piece of was cut
  std::map<size_t, std::string> apart_;  // steps that are no part of a graph, and why
  std::vector<Piece> pieces_;            // never change once there
  size_t passed_ = 0;
  std::atomic<bool> in_pieces_{false};
  std::vector<Launch> launches_;
  std::vector<Param> params_;
  std::vector<int32_t> numbers32_;
  std::vector<HostValue> host_values_;  // by entry of Frame::values
  std::vector<bool> host_steps_;        // CUDA graphs: steps that the CPU does alone
  int64_t scratch_bytes_ = 0;
  // CUDA graphs
  static constexpr int kMaxRecordings = 16, kWorthIt = 50, kBusyCalls = 3, kMovesAllowed = 2, kNeverLent = 8;
  static constexpr int64_t kMostHeld = 3;  // one part in so many of the device's memory, but for a single recording
  static constexpr size_t kMaxAlive = 3;
  std::atomic<bool> graphs_{false};
  bool lender_ = false;  // some output is lent
  bool no_more_ = false;
  int64_t lent_bytes_ = 0;
  bool draws_ = false;                                    // operators draw random numbers on the device
  std::vector<bool> lends_;                               // by output
  std::vector<Place> places_;                             // by input
  std::vector<int> moved_;                                // by input: how often it did not stay
  std::vector<bool> operator_inputs_, operator_outputs_;  // read or written by operators, not only by kernels
  std::vector<int32_t> slot_launch_;                      // by slot of the table
  std::mutex graph_mutex_;
  std::vector<std::unique_ptr<Recording>> recordings_;
  int recorded_ = 0, busy_ = 0;
  int64_t served_ = 0;                 // replays since the last recording
  std::atomic<std::thread::id> warm_;  // the last thread that made a call without a graph
  std::atomic<int64_t> replays_{0};
  std::vector<Shape> shapes_, output_shapes_;
  std::vector<bool> part_;  // by output: its type is not its tensor's
  std::vector<TensorId> roots_;
  std::vector<int64_t> offsets_;  // bytes from the root's first element
  std::vector<Call> calls_;
  std::vector<int64_t> numbers_;
  std::vector<Instruction> frozen_program_, program_;
  std::vector<Batch> batches_;
  uint32_t table_size_ = 0;
  std::vector<Patch> input_patches_, frozen_input_patches_, output_patches_, slab_patches_;
  std::vector<std::vector<Patch>> late_patches_;  // by TensorId; empty when there are none
  std::vector<std::vector<int32_t>> last_reads_;
  std::vector<int32_t> mutated_, owned_outputs_;
  WrittenInputs written_;
  size_t first_effect_ = SIZE_MAX;                     // the first step that may act on more than memory
  size_t first_write_ = SIZE_MAX;                      // the first step that writes an input
  bool random_ = false;                                // operators draw random numbers
  Guarded guarded_first_, guarded_, guarded_failing_;  // the first call, later ones, those that are going to fail
  std::vector<Range> ranges_;
  std::atomic<int> false_alarms_{0};
  std::atomic<bool> proven_{false};  // a call went through
  struct LateOutput {
    size_t index;
    bool adopt;
  };
  std::vector<LateOutput> late_outputs_;
  std::vector<size_t> alias_outputs_;
  std::vector<TensorId> frozen_kept_, frozen_allocated_, extern_tensors_;
  std::vector<std::pair<TensorId, int64_t>> frozen_places_;  // CUDA: bytes from the start of one block
  int64_t frozen_bytes_ = 0;
  FrozenPart frozen_;
  int64_t slab_bytes_ = 0;
  bool heavy_ = false, converts_ = false;
  std::atomic<bool> measured_{false};
  Times times_;
  std::atomic<int64_t> calls_made_{0};
  std::array<std::atomic<Frame*>, kSlots> frames_{};
};

}  // namespace

bool& failure_was_undone() {
  thread_local bool undone = false;
  return undone;
}

int64_t graph_replays() { return all_replays.load(std::memory_order_relaxed); }

std::shared_ptr<Executable> load(plan::Plan plan, const LoadOptions& options) {
  cpu::register_operators();
  cuda::register_operators();
  return std::make_shared<PlanExecutable>(std::move(plan), options);
}

}  // namespace flashover::run
