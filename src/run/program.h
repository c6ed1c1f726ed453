// A plan made ready to run: names resolved to indices, sizes to numbers, pointers to slots of one table.
//
//   In        a plan, what it was loaded with (LoadOptions), its code; the values of its size symbols
//   Out       a flat list of instructions, and by what a call patches its pointer table before it walks them
//   Promises  never changes once made, so that all calls of all threads read it without a lock. What calls learn
//             (whether index checks keep failing, which graphs were recorded) lies in the parts of the executable
//             that write it
//   Declines  make_common(), make_program(): a plan for another machine, memory on the wrong device (Declined); a plan
//             that verify() refuses, sizes that lead outside of memory (InternalError)
// What a plan's programs for all sizes have in common is made once (CommonProgram). Of one size are the numbers, and
// what follows from them.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "plan/arena.h"
#include "plan/plan.h"
#include "plan/sizes.h"
#include "run/batches.h"
#include "run/call.h"
#include "run/code.h"
#include "run/run.h"
#include "run/written.h"

namespace flashover::run::cuda {
class SpareGraphs;
}

namespace flashover::run {

// How one entry of the pointer table is made: table[slot] = base of a tensor's memory + bytes.
struct Patch {
  int32_t index;  // input, output or tensor number
  uint32_t slot;
  int64_t bytes;  // (in a program of one size)
};

// The alignment of pointers; kernels rely on it (plan::ParamKind).
constexpr int64_t kCudaAlignment = 16;

struct Instruction {
  plan::StepKind kind;
  uint32_t table = 0;         // launch: first slot of its pointers
  uint32_t sizes = 0;         // launch: first of its sizes in Program::numbers
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
  uint32_t params = 0;                   // first of its entries in CallFrame::params
  uint32_t values = 0, value_count = 0;  // its entries in CallFrame::values
  bool early = false;                    // plan::CudaLaunch::early
};

// What one entry of CallFrame::params points to.
struct LaunchParam {
  plan::ParamKind kind;
  uint32_t index = 0;  // of the table's slot, of launch_sizes32, of Program::numbers or of CallFrame::values
};

// A number in a CPU tensor, which a launch takes along.
struct LaunchValue {
  uint32_t slot, bytes;
};

// Instructions whose kernels are launched as one CUDA graph (cuda/launch_sequences.h).
struct LaunchSequence {
  size_t first, end;
  size_t kernels;
};

// Instructions without a library's: all that is shared out in them is shared out by cpu::share and cpu::in_parallel, so
// that one team of threads can stand by for them (CPU).
struct Stretch {
  size_t first, end;
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

// A plan's expressions over size symbols, as places among Program::numbers.
struct Symbols {
  std::vector<plan::SizeSource> sources;  // empty: there are none
  plan::NumberTable table;
  // A type's sizes come first, then its strides, then its offset.
  std::vector<uint32_t> tensors, inputs, outputs;
  plan::ArenaBlocks blocks;  // empty: the plan says where arena tensors lie
};

struct CommonProgram {
  explicit CommonProgram(std::shared_ptr<const plan::Plan> p) : owner(std::move(p)), plan(*owner) {}

  std::shared_ptr<const plan::Plan> owner;  // (instructions point into it)
  const plan::Plan& plan;                   // its numbers are looked up below, where it may hold symbols
  std::shared_ptr<const Symbols> symbols;
  std::shared_ptr<const Code> code;
  int device = -1;  // CUDA device, or -1
  bool converts = false;

  // By TensorId.
  std::vector<plan::TensorId> roots;
  std::vector<std::vector<Patch>> late_patches;  // of what exists only once a step made it; empty: there are none
  std::vector<plan::TensorId> extern_tensors;    // (a list)

  std::vector<Instruction> frozen_instructions, instructions;
  std::vector<std::shared_ptr<const ExternCall>> calls;
  std::vector<std::pair<uint32_t, const plan::Step*>> sized_calls;  // those with sizes as arguments: made for each size
  uint32_t table_size = 0;
  std::vector<plan::TensorId> slot_tensors;                                               // by slot of the table
  std::vector<Patch> input_patches, frozen_input_patches, output_patches, arena_patches;  // the first three by index

  // By instruction: the inputs that nothing reads after it.
  std::vector<std::vector<int32_t>> last_reads;
  std::vector<int32_t> mutated;  // inputs, ascending
  WrittenInputs written;
  size_t first_write = SIZE_MAX;   // the first step that writes an input
  size_t first_effect = SIZE_MAX;  // the first step that may act on more than memory
  bool random = false;             // operators draw random numbers

  std::vector<int32_t> owned_outputs;  // (a list, ascending) allocated before the first step
  std::vector<LateOutput> late_outputs;
  std::vector<size_t> alias_outputs;

  FrozenFacts frozen;

  // CUDA
  std::vector<Launch> launches;  // by launch instruction, the frozen part's first
  std::vector<LaunchParam> params;
  std::vector<uint32_t> sizes32;                    // by entry of launch_sizes32: its place among the numbers
  std::vector<LaunchValue> host_values;             // by entry of CallFrame::values
  std::shared_ptr<cuda::SpareGraphs> spare_graphs;  // of all programs of a plan over symbols, else null

  const plan::Tensor& root_tensor(plan::TensorId t) const { return plan.tensors[roots[t]]; }
  bool on_plan_device(const TensorType& t) const {
    return device < 0 ? t.device.type == DeviceType::kCPU : t.device == plan.device;
  }
};

struct Program : CommonProgram {
  explicit Program(const CommonProgram& common) : CommonProgram(common) {}
  Program(const Program&) = delete;  // (shapes point into the numbers)

  std::vector<int64_t> values;   // of the symbols, by source
  std::vector<int64_t> numbers;  // sizes, strides and offsets of types; sizes of launches
  bool heavy = false;            // Executable::heavy()
  int64_t arena_bytes = 0, scratch_bytes = 0;

  // By TensorId.
  std::vector<Shape> shapes;
  std::vector<int64_t> tensor_bytes;   // from the first element to one past the last
  std::vector<int64_t> offsets;        // bytes from the root's first element
  std::vector<int64_t> arena_offsets;  // bytes; 0 for what is not in the arena

  // By input, by output.
  std::vector<Shape> input_shapes, output_shapes;
  std::vector<int64_t> input_bytes;     // as tensor_bytes
  std::vector<int64_t> output_offsets;  // elements
  std::vector<bool> narrowed;           // its type is not its tensor's; empty: no such output

  std::vector<Batch> batches;
  std::vector<Stretch> stretches;  // ascending
  // CUDA
  std::vector<int32_t> launch_sizes32;
  std::vector<LaunchSequence> sequences;
};

// code: of the plan that this one is a part of; null: the plan's own binaries are loaded.
// sources: of the plan's symbols, where they are not all sizes of its inputs.
std::shared_ptr<const CommonProgram> make_common(plan::Plan plan, const LoadOptions& options,
                                                 std::shared_ptr<const Code> code,
                                                 std::optional<std::vector<plan::SizeSource>> sources = std::nullopt);
// values: of the plan's size symbols.
std::unique_ptr<const Program> make_program(const CommonProgram& common, const LoadOptions& options,
                                            std::span<const int64_t> values);
plan::Plan plan_of_sizes(const Program& p);  // with numbers for all sizes

// Throws Declined when the plan was built for another machine. Returns the CUDA device, or -1.
int device_here(const plan::Plan& plan);
std::string why_not_here(const plan::Plan& plan);                    // empty: it was built for machines like this one
std::vector<int32_t> inputs_of_frozen_part(const plan::Plan& plan);  // ascending

// All elements of input i from the first to the last, whatever the strides.
at::Tensor flat(const Program& p, int32_t i, c10::TensorImpl* impl);

}  // namespace flashover::run
