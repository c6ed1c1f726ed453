// What programs of one plan have in common. Goes over the plan once for each kind of fact that calls need.
#include "run/program.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string>

#include "base/decimal.h"
#include "cpu_kernels/plain.h"
#include "ops/ops.h"
#include "plan/contents.h"
#include "run/cuda/driver.h"
#include "run/cuda/kernel_graph.h"
#include "target/features.h"

namespace flashover::run {
namespace {

using plan::StepKind;
using plan::StorageKind;
using plan::TensorId;

uint32_t add_type(plan::NumberTable& table, const TensorType& t) {
  const auto first = static_cast<uint32_t>(table.size());
  for (sym::Expr e : t.sizes) table.add(e);
  for (sym::Expr e : t.strides) table.add(e);
  table.add(t.offset);
  return first;
}

void find_types(const plan::Plan& plan, Symbols& s) {
  for (const plan::Tensor& t : plan.tensors) s.tensors.push_back(add_type(s.table, t.type));
  for (const plan::InputSpec& i : plan.inputs) s.inputs.push_back(add_type(s.table, i.type));
  for (const plan::OutputRef& o : plan.outputs) s.outputs.push_back(add_type(s.table, o.type));
  if (!plan.arena_bytes.is_const()) s.blocks = plan::arena_blocks(plan);
}

void find_tensors(CommonProgram& p) {
  for (size_t i = 0; i < p.plan.tensors.size(); ++i) {
    const plan::Tensor& t = p.plan.tensors[i];
    if (t.storage == StorageKind::kExtern) p.extern_tensors.push_back(static_cast<TensorId>(i));
    p.roots.push_back(plan::root(p.plan, static_cast<TensorId>(i)));
    // (Outputs and frozen tensors may be what operators on the CPU write.)
    if (t.storage == StorageKind::kArena && !p.on_plan_device(t.type) && !t.type.opaque)
      throw Declined("plan: memory that is not on the plan's device");
  }
}

// The next slot of the pointer table is for t. value: a launch takes its number along.
void add_pointer(CommonProgram& p, TensorId t, std::vector<Patch>& inputs, bool value) {
  const uint32_t slot = p.table_size++;
  p.slot_tensors.push_back(t);
  const TensorId r = p.roots[t];
  const plan::Tensor& base = p.plan.tensors[r];
  if (value) {
    if (base.type.device.type != DeviceType::kCPU) throw Declined("plan: a number that is not on the CPU");
  } else if (p.device >= 0 && !p.on_plan_device(base.type)) {
    throw Declined("plan: a kernel's tensor is not on the plan's device");
  }
  switch (base.storage) {
    case StorageKind::kInput:
      inputs.push_back({base.index, slot, 0});
      break;
    case StorageKind::kOutput:
      p.output_patches.push_back({base.index, slot, 0});
      break;
    case StorageKind::kArena:
      p.arena_patches.push_back({0, slot, 0});
      break;
    case StorageKind::kFrozen:
    case StorageKind::kExtern:
      p.late_patches.resize(p.plan.tensors.size());
      p.late_patches[r].push_back({r, slot, 0});
      break;
    case StorageKind::kView:
      break;
  }
}

// The index of the new launch. Its grid is of one size.
int32_t add_cuda_launch(CommonProgram& p, const plan::Step& s, const Instruction& in) {
  const plan::CudaLaunch& c = p.plan.kernels[s.kernel].cuda;
  Launch launch{.function = p.code->functions[s.kernel],
                .threads = static_cast<unsigned>(c.threads),
                .shared = static_cast<unsigned>(c.shared),
                .params = static_cast<uint32_t>(p.params.size()),
                .values = static_cast<uint32_t>(p.host_values.size()),
                .early = c.early};
  uint32_t slot = in.table, number = in.sizes;
  for (const plan::ParamKind kind : c.params) {
    LaunchParam param{kind, 0};
    if (kind == plan::ParamKind::kPointer) {
      param.index = slot++;
    } else if (kind == plan::ParamKind::kValue32 || kind == plan::ParamKind::kValue64) {
      param.index = static_cast<uint32_t>(p.host_values.size());
      p.host_values.push_back({slot++, kind == plan::ParamKind::kValue32 ? 4U : 8U});
      ++launch.value_count;
    } else if (kind == plan::ParamKind::kI64) {
      param.index = number++;
    } else if (kind == plan::ParamKind::kI32) {
      param.index = static_cast<uint32_t>(p.sizes32.size());
      p.sizes32.push_back(number++);
    }
    p.params.push_back(param);
  }
  p.launches.push_back(launch);
  return static_cast<int32_t>(p.launches.size()) - 1;
}

bool has_symbols(const plan::Step& s) {
  return std::ranges::any_of(s.args, [](const Arg& a) {
    const auto* e = std::get_if<sym::Expr>(&a);
    const auto* l = std::get_if<Sizes>(&a);
    return (e && !e->is_const()) || (l && !std::ranges::all_of(*l, [](sym::Expr x) { return x.is_const(); }));
  });
}

void translate(CommonProgram& p, plan::NumberTable& table, const std::vector<plan::Step>& steps,
               std::vector<Instruction>& instructions, std::vector<Patch>& inputs) {
  for (const plan::Step& s : steps) {
    Instruction in{s.kind};
    in.step = &s;
    if (s.kind == StepKind::kLaunch) {
      in.table = p.table_size;
      in.sizes = static_cast<uint32_t>(table.size());
      for (sym::Expr e : s.sizes) table.add(e);
      const std::vector<plan::ParamKind>& kinds = p.plan.kernels[s.kernel].cuda.params;
      for (size_t i = 0; i < s.reads.size(); ++i)
        add_pointer(p, s.reads[i], inputs, p.device >= 0 && kinds[i] != plan::ParamKind::kPointer);
      for (TensorId t : s.writes) add_pointer(p, t, inputs, false);
      if (p.device < 0)
        in.fn = p.code->kernels[s.kernel];
      else
        in.launch = add_cuda_launch(p, s, in);
    } else if (s.kind == StepKind::kCall) {
      in.call = static_cast<uint32_t>(p.calls.size());
      if (has_symbols(s)) {
        p.sized_calls.emplace_back(in.call, &s);
        p.calls.push_back(nullptr);
      } else {
        p.calls.push_back(std::make_shared<ExternCall>(prepare(s)));
      }
      if (plan::takes_memory(s) && s.writes.size() == 1 && s.writes[0] >= 0 &&
          p.plan.tensors[s.writes[0]].storage == StorageKind::kExtern)
        in.makes = s.writes[0];
    }
    instructions.push_back(in);
  }
}

void by_index(std::vector<Patch>& patches) {
  std::stable_sort(patches.begin(), patches.end(), [](const Patch& a, const Patch& b) { return a.index < b.index; });
}

void find_frozen_tensors(CommonProgram& p) {
  p.frozen.kept = plan::kept_frozen(p.plan);
  // Frozen tensors that a kernel writes need memory of their own; what an operator returns brings its own.
  std::vector<bool> made(p.plan.tensors.size());
  for (const plan::Step& s : p.plan.frozen_steps) {
    const bool brings = s.kind == StepKind::kCall && !s.out_variant;
    plan::for_each_write(s, [&](TensorId t) {
      const TensorId r = p.roots[t];
      if (!made[r] && !(brings && r == t)) p.frozen.allocated.push_back(r);
      made[r] = true;
    });
  }
  if (p.device < 0) return;
  for (TensorId t : p.frozen.allocated) {
    const bool kept = std::find(p.frozen.kept.begin(), p.frozen.kept.end(), t) != p.frozen.kept.end();
    const TensorType& type = p.plan.tensors[t].type;
    if (!kept || type.opaque || !p.on_plan_device(type)) continue;
    constexpr int64_t kApart = 256;
    p.frozen.block_offsets.emplace_back(t, p.frozen.block_bytes);
    p.frozen.block_bytes += (plan::bytes(type).value() + kApart - 1) / kApart * kApart;
  }
}

// Not those inputs that become results, or that the caller is told of when they were written.
void find_last_reads(CommonProgram& p) {
  std::vector<int64_t> last(p.plan.inputs.size(), -1);
  const auto touch = [&](TensorId t, int64_t at) {
    if (t >= 0 && p.root_tensor(t).storage == StorageKind::kInput) last[p.root_tensor(t).index] = at;
  };
  for (size_t s = 0; s < p.plan.steps.size(); ++s) {
    plan::for_each_read(p.plan.steps[s], [&](TensorId t) { touch(t, static_cast<int64_t>(s)); });
    plan::for_each_write(p.plan.steps[s], [&](TensorId t) { touch(t, static_cast<int64_t>(s)); });
  }
  for (const plan::Step& s : p.plan.frozen_steps) plan::for_each_read(s, [&](TensorId t) { touch(t, -1); });
  for (const plan::OutputRef& o : p.plan.outputs) {
    touch(o.tensor, -1);
    if (o.alias_input >= 0) last[o.alias_input] = -1;
  }
  for (int32_t i : p.written.inputs()) last[i] = -1;
  p.last_reads.resize(p.plan.steps.size());
  for (size_t i = 0; i < last.size(); ++i)
    if (last[i] >= 0) p.last_reads[last[i]].push_back(static_cast<int32_t>(i));
}

void find_mutations(CommonProgram& p, const LoadOptions& options) {
  for (const plan::Step& s : p.plan.steps)
    plan::for_each_write(s, [&](TensorId t) {
      const plan::Tensor& base = p.root_tensor(t);
      if (base.storage != StorageKind::kInput) return;
      p.mutated.push_back(base.index);
      p.first_write = std::min(p.first_write, static_cast<size_t>(&s - p.plan.steps.data()));
    });
  std::sort(p.mutated.begin(), p.mutated.end());
  p.mutated.erase(std::unique(p.mutated.begin(), p.mutated.end()), p.mutated.end());
  if (!options.sub_plan) p.written.set(p.mutated, options.version_steps);
  for (const auto& c : p.calls) p.random |= c && c->op->handle.hasTag(at::Tag::nondeterministic_seeded);
  for (size_t i = p.plan.steps.size(); i-- > 0;)
    if (p.plan.steps[i].kind == StepKind::kCall)
      if (const ops::OpRow* op = ops::find(p.plan.steps[i].op); op->effectful && !op->check) p.first_effect = i;
}

void plan_outputs(CommonProgram& p) {
  const plan::Plan& plan = p.plan;
  for (const plan::Tensor& t : plan.tensors)
    if (t.storage == StorageKind::kOutput) p.owned_outputs.push_back(t.index);
  // Allocation in ascending order is what the patches are sorted by.
  std::sort(p.owned_outputs.begin(), p.owned_outputs.end());
  std::vector<bool> handed_over(plan.tensors.size());
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    const plan::OutputRef& o = plan.outputs[i];
    if (o.tensor < 0) {
      const TensorType& base = o.alias_input >= 0 ? plan.inputs[o.alias_input].type : plan.outputs[o.alias_output].type;
      if (base.dtype != o.type.dtype) throw Declined("plan: an output is a view with another dtype");
      p.alias_outputs.push_back(i);
      continue;
    }
    const plan::Tensor& t = plan.tensors[o.tensor];
    if (t.storage == StorageKind::kOutput && t.index == static_cast<int32_t>(i)) continue;
    const bool adopt = t.storage == StorageKind::kExtern && !handed_over[o.tensor];
    if (adopt) handed_over[o.tensor] = true;
    p.late_outputs.push_back({i, adopt});
  }
  // Copies first: a tensor that is handed over is gone from the frame.
  std::stable_sort(p.late_outputs.begin(), p.late_outputs.end(),
                   [](const LateOutput& a, const LateOutput& b) { return a.adopt < b.adopt; });
}

}  // namespace

// Cubins run on their architecture and on later ones of the same generation. From sm_90 on they use what is of one
// architecture alone (sm_90a).
static bool runs_on(const std::string& target, int capability) {
  constexpr int kFirstOfItsOwn = 90;
  if (target == "sm_" + std::to_string(capability)) return true;
  const auto built_for = target.starts_with("sm_") ? parse_number<int>(target.substr(3)) : std::nullopt;
  return built_for && *built_for < kFirstOfItsOwn && *built_for <= capability && *built_for / 10 == capability / 10;
}

int device_here(const plan::Plan& plan) {
  if (plan.device.type != DeviceType::kCUDA) {
    if (const std::string missing = target::missing_feature(plan.target); !missing.empty())
      throw Declined("plan: this machine lacks " + missing);
    for (const std::vector<plan::Step>* steps : {&plan.frozen_steps, &plan.steps})
      for (const plan::Step& s : *steps)
        if (const std::string_view missing = cpu::missing_for(s.op); !missing.empty())
          throw Declined("plan: " + s.op + " needs " + std::string(missing) + ", which this machine lacks");
    return -1;
  }
  if (!cuda::driver()) throw Declined("plan: " + cuda::why_no_driver());
  const cuda::DeviceFacts facts = cuda::facts(plan.device.index);
  if (!plan.kernels.empty() && !runs_on(plan.target, facts.capability))
    throw Declined("plan: built for " + plan.target + ", not sm_" + std::to_string(facts.capability));
  for (const plan::Kernel& k : plan.kernels)
    if (k.cuda.shared > facts.shared_bytes)
      throw Declined("plan: " + k.symbol + " needs " + std::to_string(k.cuda.shared) +
                     " bytes of shared memory, and this device has " + std::to_string(facts.shared_bytes));
  return plan.device.index;
}

std::string why_not_here(const plan::Plan& plan) {
  try {
    device_here(plan);
    return "";
  } catch (const Declined& d) {
    return d.reason;
  }
}

std::vector<int32_t> inputs_of_frozen_part(const plan::Plan& plan) {
  std::vector<bool> read(plan.inputs.size());
  for (const plan::Step& s : plan.frozen_steps)
    plan::for_each_read(s, [&](TensorId t) {
      const plan::Tensor& base = plan.tensors[plan::root(plan, t)];
      if (base.storage == StorageKind::kInput) read[base.index] = true;
    });
  std::vector<int32_t> inputs;
  for (size_t i = 0; i < read.size(); ++i)
    if (read[i]) inputs.push_back(static_cast<int32_t>(i));
  return inputs;
}

std::shared_ptr<const CommonProgram> make_common(plan::Plan plan, const LoadOptions& options,
                                                 std::shared_ptr<const Code> code,
                                                 std::optional<std::vector<plan::SizeSource>> sources) {
  sources ? plan::verify_part(plan) : plan::verify(plan);
  const int device = device_here(plan);
  if (!code) code = load_code(plan, device);
  for (plan::Binary& b : plan.binaries) b.bytes = {};  // loaded; the text and the cache have their own
  auto made = std::make_shared<CommonProgram>(std::make_shared<const plan::Plan>(std::move(plan)));
  auto symbols = std::make_shared<Symbols>();
  CommonProgram& p = *made;
  p.code = std::move(code);
  p.converts = options.converts;
  p.device = device;
  symbols->sources = sources ? std::move(*sources) : plan::size_sources(p.plan);
  if (device >= 0 && !symbols->sources.empty()) p.spare_graphs = std::make_shared<cuda::SpareGraphs>();
  if (!symbols->sources.empty()) plan::check_frozen_part(p.plan);
  find_types(p.plan, *symbols);
  find_tensors(p);
  translate(p, symbols->table, p.plan.frozen_steps, p.frozen_instructions, p.frozen_input_patches);
  translate(p, symbols->table, p.plan.steps, p.instructions, p.input_patches);
  p.symbols = std::move(symbols);
  p.frozen.inputs = inputs_of_frozen_part(p.plan);
  find_frozen_tensors(p);
  find_mutations(p, options);
  plan_outputs(p);
  find_last_reads(p);
  by_index(p.input_patches);
  by_index(p.frozen_input_patches);
  by_index(p.output_patches);
  return made;
}

}  // namespace flashover::run
