// The program for calls of one size: numbers from the symbols' values, and what follows from them. Growing caches ask
// for one in each step, so nothing is looked up by name here, and no expression is made.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <thread>

#include "cpu_kernels/operators.h"
#include "ops/ops.h"
#include "run/cuda/launch_sequences.h"
#include "run/program.h"
#include "run/tensor_memory.h"

namespace flashover::run {
namespace {

using plan::StepKind;
using plan::StorageKind;
using plan::TensorId;

// Sums and products of sizes must not overflow before they are compared with anything.
constexpr int64_t kMostElements = int64_t{1} << 48;

void require_sizes(bool ok, const char* sentence) {
  if (!ok) throw InternalError(std::string("run: for these sizes, ") + sentence);
}
bool within(int64_t n) { return n >= 0 && n <= kMostElements; }

// Elements from the first to one past the last one.
int64_t checked_span(const Shape& s) {
  int64_t last = 1;
  bool empty = false;
  for (size_t i = 0; i < s.sizes.size(); ++i) {
    require_sizes(within(s.sizes[i]), "a size is out of range");
    empty |= s.sizes[i] == 0;
    if (i >= s.strides.size() || s.sizes[i] <= 1) continue;
    require_sizes(within(s.strides[i]) && s.strides[i] <= kMostElements / (s.sizes[i] - 1), "a tensor is too large");
    last += (s.sizes[i] - 1) * s.strides[i];
    require_sizes(empty || last <= kMostElements, "a tensor is too large");
  }
  return empty ? 0 : last;
}

int64_t offset_at(const Program& p, uint32_t place, const Shape& s) {
  return p.numbers[place + s.sizes.size() + s.strides.size()];
}

// Views in bytes, link by link, since one may have another dtype than its base.
void find_sizes(Program& p) {
  const plan::Plan& plan = p.plan;
  const size_t count = plan.tensors.size();
  p.shapes.reserve(count);
  p.tensor_bytes.reserve(count);
  p.offsets.assign(count, 0);
  for (size_t i = 0; i < count; ++i) {
    const plan::Tensor& t = plan.tensors[i];
    const uint32_t place = p.symbols->tensors[i];
    const Shape& shape = p.shapes.emplace_back(t.type, p.numbers.data() + place);
    const int64_t item = info(t.type.dtype).bytes;
    p.tensor_bytes.push_back(checked_span(shape) * item);
    if (t.storage != StorageKind::kView) continue;
    const int64_t offset = offset_at(p, place, shape);
    require_sizes(offset >= -kMostElements && offset <= kMostElements, "an offset is out of range");
    p.offsets[i] = p.offsets[t.index] + offset * item;
    const TensorId root = p.roots[i];
    // (What looks at an input may look at any part of its storage.)
    if (plan.tensors[root].storage != StorageKind::kInput && p.tensor_bytes[i] > 0)
      require_sizes(p.offsets[i] >= 0 && p.offsets[i] + p.tensor_bytes[i] <= p.tensor_bytes[root],
                    "a view reaches outside its base");
  }
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    const TensorType& type = plan.inputs[i].type;
    p.input_shapes.emplace_back(type, p.numbers.data() + p.symbols->inputs[i]);
    p.input_bytes.push_back(checked_span(p.input_shapes.back()) * info(type.dtype).bytes);
  }
}

bool same_layout(const Shape& a, const Shape& b) { return a.sizes == b.sizes && a.strides == b.strides; }

int64_t number_of(const Program& p, sym::Expr e) {
  if (e.is_const()) return e.value();
  plan::NumberTable table;
  table.add(e);
  return table.numbers(p.symbols->sources, p.values)[0];
}

// The user sees the strides of results without elements, too.
void set_strides_of_empty(Program& p, const TensorType& type, uint32_t place) {
  const Sizes strides = strides_where_empty(type);
  for (size_t d = 0; d < strides.size(); ++d) p.numbers[place + type.rank() + d] = number_of(p, strides[d]);
}

void find_outputs(Program& p) {
  const plan::Plan& plan = p.plan;
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    const plan::OutputRef& o = plan.outputs[i];
    const Shape& shape = p.output_shapes.emplace_back(o.type, p.numbers.data() + p.symbols->outputs[i]);
    const int64_t offset = p.output_offsets.emplace_back(offset_at(p, p.symbols->outputs[i], shape));
    const int64_t elements = checked_span(shape);
    if (elements == 0 && !o.type.opaque) set_strides_of_empty(p, o.type, p.symbols->outputs[i]);
    p.narrowed.push_back(false);
    if (o.tensor < 0) continue;
    p.narrowed[i] = !same_layout(shape, p.shapes[o.tensor]) || offset != 0;
    require_sizes(within(offset), "an offset is out of range");
    if (elements > 0 && !o.type.opaque)
      require_sizes((offset + elements) * info(o.type.dtype).bytes <= p.tensor_bytes[o.tensor],
                    "a result reaches outside its tensor");
  }
  if (std::find(p.narrowed.begin(), p.narrowed.end(), true) == p.narrowed.end()) p.narrowed.clear();
}

void place_arena(Program& p) {
  p.arena_offsets.assign(p.plan.tensors.size(), 0);
  if (p.plan.arena_bytes.is_const()) {  // verify() looked
    p.arena_bytes = p.plan.arena_bytes.value();
    for (size_t t = 0; t < p.arena_offsets.size(); ++t)
      if (p.plan.tensors[t].storage == StorageKind::kArena) p.arena_offsets[t] = p.plan.tensors[t].arena_offset.value();
    return;
  }
  auto [blocks, of] = p.symbols->blocks;
  for (size_t t = 0; t < of.size(); ++t)
    if (of[t] >= 0) blocks[of[t]].bytes = std::max(blocks[of[t]].bytes, p.tensor_bytes[t]);
  p.arena_bytes = plan::assign_offsets(blocks);
  for (size_t t = 0; t < of.size(); ++t)
    if (of[t] >= 0) p.arena_offsets[t] = blocks[of[t]].offset;
}

void place_pointers(Program& p) {
  const auto place = [&](std::vector<Patch>& patches) {
    for (Patch& patch : patches) {
      const TensorId t = p.slot_tensors[patch.slot];
      patch.bytes = p.arena_offsets[p.roots[t]] + p.offsets[t];
    }
  };
  place(p.input_patches);
  place(p.frozen_input_patches);
  place(p.output_patches);
  place(p.arena_patches);
  for (std::vector<Patch>& patches : p.late_patches) place(patches);
  if (p.device < 0) return;
  for (const TensorId t : p.slot_tensors)
    if (p.on_plan_device(p.root_tensor(t).type) && p.offsets[t] % kCudaAlignment != 0)
      throw Declined("plan: a kernel's tensor starts off alignment");
}

void make_sized_calls(Program& p) {
  const auto put = [&](sym::Expr& e) { e = number_of(p, e); };
  for (const auto& [call, step] : p.sized_calls) {
    plan::Step s = *step;
    for (Arg& a : s.args) {
      if (auto* e = std::get_if<sym::Expr>(&a)) put(*e);
      if (auto* l = std::get_if<Sizes>(&a))
        for (sym::Expr& e : *l) put(e);
    }
    auto made = std::make_shared<ExternCall>(prepare(s));
    p.random |= made->op->handle.hasTag(at::Tag::nondeterministic_seeded);
    p.calls[call] = std::move(made);
  }
}

// Sets the grid and returns how many programs it has.
int64_t find_grid(const Program& p, const Instruction& in, const plan::CudaLaunch& c, Launch& launch) {
  int64_t programs = 1;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t n = sym::evaluate(c.grid[i], [&](sym::Expr v) {
      for (size_t k = 0; k < in.step->sizes.size(); ++k)
        if (v.name() == "n" + std::to_string(k)) return p.numbers[in.sizes + k];
      throw Declined("plan: sizes are not constant");
    });
    if (n < 0 || n > (i == 0 ? INT32_MAX : 65535)) throw Declined("plan: a kernel's grid is too large");
    launch.grid[i] = static_cast<unsigned>(n);
    programs *= n;
  }
  return programs;
}

void find_launches(Program& p) {
  if (p.device < 0) return;
  for (uint32_t place : p.sizes32) p.launch_sizes32.push_back(static_cast<int32_t>(p.numbers[place]));
  for (std::vector<Instruction>* instructions : {&p.frozen_instructions, &p.instructions})
    for (Instruction& in : *instructions) {
      if (in.kind != StepKind::kLaunch) continue;
      const plan::CudaLaunch& c = p.plan.kernels[in.step->kernel].cuda;
      const int64_t programs = find_grid(p, in, c, p.launches[static_cast<size_t>(in.launch)]);
      p.scratch_bytes = std::max(p.scratch_bytes, c.scratch * programs);
      if (programs == 0) in.launch = -1;
    }
}

bool is_heavy(const Program& p) {
  constexpr int64_t kLarge = 64 << 10;
  constexpr size_t kMany = 16;
  bool heavy = p.device >= 0 || !p.calls.empty() || p.arena_bytes > kLarge || p.instructions.size() > kMany;
  for (size_t t = 0; t < p.plan.tensors.size(); ++t)
    heavy |= p.plan.tensors[t].storage == StorageKind::kOutput && p.tensor_bytes[t] > kLarge;
  return heavy;
}

std::vector<Stretch> find_stretches(const Program& p) {
  std::vector<Stretch> out;
  const auto belongs = [&](const Instruction& in) {
    return in.kind == StepKind::kLaunch || in.kind == StepKind::kRelease ||
           (in.kind == StepKind::kCall && (in.makes >= 0 || cpu::shares_by_team(in.step->op)));
  };
  const auto works = [](const Instruction& in) {
    return in.kind == StepKind::kLaunch || (in.kind == StepKind::kCall && in.makes < 0);
  };
  for (size_t i = 0; i < p.instructions.size(); ++i) {
    size_t end = i, work = 0;
    for (; end < p.instructions.size() && belongs(p.instructions[end]); ++end) work += works(p.instructions[end]);
    if (work >= 2) out.push_back({i, end});
    i = end;
  }
  return out;
}

void group_launches(Program& p, const LoadOptions& options) {
  // (torch.set_num_threads may come later.)
  const int threads = std::max(at::get_num_threads(), static_cast<int>(std::thread::hardware_concurrency()));
  p.batches = find_batches(p.plan, p.tensor_bytes, p.arena_offsets, threads);
  for (size_t i = 0; i < p.batches.size(); ++i) p.instructions[p.batches[i].first].batch = static_cast<int32_t>(i);
  if (p.device < 0) p.stretches = find_stretches(p);
  if (!options.kernel_graphs || p.device < 0) return;
  p.sequences = cuda::find_launch_sequences(p);
  for (size_t i = 0; i < p.sequences.size(); ++i)
    p.instructions[p.sequences[i].first].sequence = static_cast<int32_t>(i);
}

}  // namespace

std::unique_ptr<const Program> make_program(const CommonProgram& common, const LoadOptions& options,
                                            std::span<const int64_t> values) {
  auto made = std::make_unique<Program>(common);
  Program& p = *made;
  p.values.assign(values.begin(), values.end());
  p.numbers = p.symbols->table.numbers(p.symbols->sources, p.values);
  find_sizes(p);
  find_outputs(p);
  place_arena(p);
  place_pointers(p);
  make_sized_calls(p);
  find_launches(p);
  p.heavy = is_heavy(p);
  group_launches(p, options);
  return made;
}

plan::Plan plan_of_sizes(const Program& p) {
  return p.symbols->sources.empty() ? p.plan : plan::with_sizes(p.plan, p.symbols->sources, p.values);
}

at::Tensor flat(const Program& p, int32_t i, c10::TensorImpl* impl) {
  const at::ScalarType dtype = c10::typeMetaToScalarType(impl->dtype());
  return view_of(borrow(impl), dtype, {p.input_bytes[i] / static_cast<int64_t>(c10::elementSize(dtype))}, {1}, 0);
}

}  // namespace flashover::run
