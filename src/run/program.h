// A plan made ready to run: names resolved to indices, sizes to constants, pointers to slots of one table.
//
//   In        a plan, what it was loaded with (LoadOptions), its code
//   Out       a flat list of instructions, and by what a call patches its pointer table before it walks them
//   Promises  never changes once made, so that all calls of all threads read it without a lock. What calls learn
//             (whether index checks keep failing, which graphs were recorded) lies in the parts of the executable
//             that write it
//   Declines  make_program(): a plan for another machine, sizes that are not constant, memory on the wrong device
//             (Declined); a plan that verify() refuses (InternalError)
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "run/batches.h"
#include "run/call.h"
#include "run/code.h"
#include "run/run.h"
#include "run/written.h"

namespace flashover::run {

// How one entry of the pointer table is made: table[slot] = base of a tensor's memory + bytes.
struct Patch {
  int32_t index;  // input, output or tensor number
  uint32_t slot;
  int64_t bytes;
};

// The alignment of pointers; kernels rely on it (plan::ParamKind).
constexpr int64_t kCudaAlignment = 16;

struct Instruction {
  plan::StepKind kind;
  uint32_t table = 0;         // launch: first slot of its pointers
  uint32_t sizes = 0;         // launch: first of its launch_sizes
  uint32_t call = 0;          // call: index into calls
  KernelFn fn = nullptr;      // launch on the CPU
  int32_t launch = -1;        // launch on CUDA: index into launches; -1: an empty grid
  int32_t batch = -1;         // the first of a batch of launches
  int32_t sequence = -1;      // the first of a launch sequence
  plan::TensorId makes = -1;  // call: of nothing but memory for this tensor
  const plan::Step* step = nullptr;
};

struct Launch {  // CUDA
  cuda::Function function = nullptr;
  std::array<unsigned, 3> grid{};
  unsigned threads = 0, shared = 0;
  uint32_t params = 0;                   // first of its entries in Frame::params
  uint32_t values = 0, value_count = 0;  // its entries in Frame::values
};

// What one entry of Frame::params points to.
struct Param {
  plan::ParamKind kind;
  uint32_t index = 0;  // of the table's slot, of launch_sizes32, of launch_sizes or of Frame::values
};

// A number in a CPU tensor, which a launch takes along.
struct HostValue {
  uint32_t slot, bytes;
};

// Instructions whose kernels are launched as one CUDA graph (cuda/launch_sequences.h).
struct LaunchSequence {
  size_t first, end;
  size_t kernels;
};

// An output that is made from a tensor of the frame when all steps are done.
struct LateOutput {
  size_t index;
  bool adopt;  // the tensor itself; else a copy
};

// The tensors that frozen steps read, make and leave (frozen_tensors.h).
struct FrozenFacts {
  std::vector<int32_t> inputs;  // that they read
  std::vector<plan::TensorId> kept, allocated;
  std::vector<std::pair<plan::TensorId, int64_t>> block_offsets;  // CUDA: bytes from the start of one block
  int64_t block_bytes = 0;
};

struct Program {
  Program() = default;
  Program(const Program&) = delete;  // (instructions point into the plan)

  plan::Plan plan;
  std::shared_ptr<const Code> code;
  int device = -1;  // CUDA device, or -1
  bool converts = false;
  bool heavy = false;  // Executable::heavy()
  int64_t arena_bytes = 0, scratch_bytes = 0;

  // By TensorId.
  std::vector<Shape> shapes;
  std::vector<plan::TensorId> roots;
  std::vector<int64_t> offsets;                  // bytes from the root's first element
  std::vector<std::vector<Patch>> late_patches;  // of what exists only once a step made it; empty: there are none
  std::vector<plan::TensorId> extern_tensors;    // (a list)

  std::vector<Instruction> frozen_instructions, instructions;
  std::vector<Call> calls;
  std::vector<Batch> batches;
  std::vector<int64_t> launch_sizes;
  uint32_t table_size = 0;
  std::vector<Patch> input_patches, frozen_input_patches, output_patches, arena_patches;  // the first three by index

  // By instruction: the inputs that nothing reads after it.
  std::vector<std::vector<int32_t>> last_reads;
  std::vector<int32_t> mutated;  // inputs, ascending
  WrittenInputs written;
  size_t first_write = SIZE_MAX;   // the first step that writes an input
  size_t first_effect = SIZE_MAX;  // the first step that may act on more than memory
  bool random = false;             // operators draw random numbers

  // By output.
  std::vector<Shape> output_shapes;
  std::vector<bool> narrowed;          // its type is not its tensor's; empty: no such output
  std::vector<int32_t> owned_outputs;  // (a list, ascending) allocated before the first step
  std::vector<LateOutput> late_outputs;
  std::vector<size_t> alias_outputs;

  FrozenFacts frozen;

  // CUDA
  std::vector<Launch> launches;
  std::vector<Param> params;
  std::vector<int32_t> launch_sizes32;
  std::vector<HostValue> host_values;  // by entry of Frame::values
  std::vector<LaunchSequence> sequences;

  const plan::Tensor& root_tensor(plan::TensorId t) const { return plan.tensors[roots[t]]; }
  bool on_plan_device(const TensorType& t) const {
    return device < 0 ? t.device.type == DeviceType::kCPU : t.device == plan.device;
  }
};

// code: of the plan that this one is a part of; null: the plan's own binaries are loaded.
std::unique_ptr<const Program> make_program(plan::Plan plan, const LoadOptions& options,
                                            std::shared_ptr<const Code> code);

// Throws Declined when the plan was built for another machine. Returns the CUDA device, or -1.
int device_here(const plan::Plan& plan);
std::vector<int32_t> inputs_of_frozen_part(const plan::Plan& plan);  // ascending

int64_t constant(sym::Expr e);  // throws Declined when it is not
int64_t span_bytes(const TensorType& t);

// All elements of input i from the first to the last, whatever the strides.
at::Tensor flat(const Program& p, int32_t i, c10::TensorImpl* impl);

}  // namespace flashover::run
