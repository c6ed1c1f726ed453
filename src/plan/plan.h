// A plan says what to run, as plain data.
//
// A Plan is a flat list of steps over numbered tensors, with the kernel binaries beside it. The just-in-time path
// runs it, the cache stores it, an ahead-of-time package holds it: one artifact, one executor.
//
//   In        scheduled kernels, extern calls, a memory plan
//   Out       plain data: no pointer to anything of the compiler, no Python object, no torch type
//   Promises  verify(): every tensor written before it is read, live ranges of overlapping arena regions disjoint,
//             indices in range; serialize/deserialize round-trips; deserialize treats its input as hostile (bounds,
//             sizes, enums checked)
//   Sample    plan "x86-64 avx512f" {
//               arena 1024
//               input 0 : f32[2,3] user
//               kernel k0 = "add_relu" in b0
//               t0 : f32[2,3] = input 0
//               t1 : f32[2,3] = arena 256
//               t2 : f32[2,2] = output 0
//               launch k0(t0 -> t1) "add+relu model.py:31"
//               call out aten.mm.out(t1, t1) -> t2
//               return t2 : f32[2,2]
//             }
//
// Addresses: the pointer of a tensor is the address of its first element (element [0,0,...]). `type.offset` means
// something for views only: elements from the first element of the base. (So an input's storage offset is not part of a
// plan.)
//
// Frozen part: tensors that depend only on parameters, buffers and constants (folded batch norms, packed weights,
// casts) are computed by `frozen_steps` into tensors of storage kFrozen, and again when a parameter changed (identity,
// storage, version).
//
// CUDA: `device` is a CUDA device and `target` is "sm_90" (the cubins' architecture). Arena, outputs, frozen tensors
// and kernel parameters are on that device. A CPU tensor takes part only in kCall steps (which may mix devices as eager
// does), in kCopy steps from or to the device, and as a number that a launch takes along (ParamKind::kValue32).
// Kernels of such a plan have Kernel::cuda.threads > 0 and are launched with the driver API:
//   cuLaunchKernel(function, grid[0], grid[1], grid[2], cuda.threads, 1, 1, cuda.shared, torch's current stream,
//   params)
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "ops/names.h"
#include "ops/types.h"

namespace flashover::plan {

using TensorId = int32_t;

enum class StorageKind : uint8_t {
  kInput,   // index = input number
  kArena,   // byte offset in the arena, the one block of this call's temporaries
  kOutput,  // own allocation, handed to the caller; index = output number that owns it
  kFrozen,  // produced by frozen_steps; kept if `steps` or an output use it, else dropped when they have run
  kExtern,  // whatever tensor the extern call returned; only other externs may read it if type.opaque (mkldnn); see
            // kRelease
  kView,    // of tensor `base`: same memory, own sizes, strides, offset
};

struct Tensor {
  TensorType type;
  StorageKind storage = StorageKind::kArena;
  int32_t index = -1;          // input or output number; tensor id of the base for kView
  sym::Expr arena_offset = 0;  // bytes, multiple of 64
};

enum class StepKind : uint8_t {
  kLaunch,   // run kernel `kernel` on `reads` then `writes` (pointers in that order), `sizes` as int64 arguments
  kCall,     // call operator `op`. args refer to TensorIds (`reads` is ignored). writes: its tensor results in order,
             // lists flattened, -1 = dropped. A result whose storage is not kExtern / kFrozen is copied there unless it
             // is that tensor.
  kCopy,     // writes[0] <- reads[0] (strided copy, casting)
  kRelease,  // reads: extern tensors that die here
};

// Every element of a tensor, an i32 or i64 input without gaps, is in [lo, hi].
struct Bounds {
  TensorId tensor = -1;
  int64_t lo = 0, hi = 0;
};

struct Step {
  StepKind kind = StepKind::kLaunch;
  int32_t kernel = -1;
  std::string op;            // op::mm, "mkldnn._linear_pointwise.default"
  bool out_variant = false;  // `op` is an out= overload and takes all of `writes` as its last arguments (not in args)
  std::vector<Arg> args;     // kCall: Ref ids are TensorIds
  uint32_t mutates = 0;      // kCall: bit i: argument i is written, whatever it held
  std::vector<TensorId> reads, writes;
  std::vector<sym::Expr> sizes;
  // Whether its index checks hold can be told before the first step: they do if all `bounds` do.
  bool foreseen = false;
  std::vector<Bounds> bounds;
  std::string label;      // for people and profilers: "layer_norm+add model.py:31"
  std::string operators;  // for people: the program's operators that a kernel computes, in order: "gelu+mul"
};

// One parameter of a CUDA kernel. Pointers and values come first (the step's reads, then its writes), then `sizes`,
// then the rest.
enum class ParamKind : uint8_t {
  kPointer,  // device address of the tensor's first element. Kernels rely on its being a multiple of 16: the executor
             // clones an input whose address is not before the first step (and copies it back after the last if a step
             // writes it)
  kI32,      // the next of Step::sizes as int32_t (known to fit)
  kI64,      // the next of Step::sizes as int64_t
  kGlobalScratch,  // device address, 128-aligned, of cuda.scratch bytes for each program of the grid; null when that is
                   // 0
  kProfileScratch,  // null
  kValue32,         // in a pointer's place among the reads: the value of a 0-d CPU tensor of 4 bytes ...
  kValue64,         // ... or of 8 bytes, as it is when the kernel is launched
};

// The launch of a Triton cubin.
struct CudaLaunch {
  // In programs. Over variables n0, n1, ... = Step::sizes[0], [1], ... of the launching step; constant where the kernel
  // takes no sizes. A grid with a 0 in it is not launched.
  std::array<sym::Expr, 3> grid{1, 1, 1};
  int32_t threads = 0;  // of a block: 32 * num_warps, always x 1 x 1. 0: not a CUDA kernel
  int32_t shared = 0;   // dynamic shared bytes: pass exactly this; above 48 KB set
                        // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES first
  int64_t scratch = 0;  // global scratch bytes per program
  bool early = false;   // waits itself for the kernels in front, so that it may be started while they still run
  std::vector<ParamKind> params;
};

struct Kernel {
  std::string symbol;   // C symbol in the binary
  int32_t binary = -1;  // index into Plan::binaries
  // CPU signature: extern "C" int32_t symbol(void* const* pointers, const int64_t* sizes, Share share); `share` is
  // cpu::share (cpu_kernels/team.h), or null for one thread. Returns 0, or i + 1 when check i failed (an index out of range): outputs are then unspecified but no memory
  // was touched outside the tensors, and the caller raises IndexError with errors[i].
  // CUDA: nothing is returned; an index out of range is a device-side assert, as in eager.
  std::vector<std::string> errors;
  CudaLaunch cuda;
};

struct Binary {
  Hash128 key;        // of source text, compiler, flags, ISA
  std::string bytes;  // an ELF shared object (CPU) or a cubin (CUDA)
};

struct OutputRef {
  TensorId tensor = -1;       // the memory, of which type may be a part only
  int32_t alias_input = -1;   // >= 0: a view of this input, geometry in type
  int32_t alias_output = -1;  // >= 0: a view of this output, which has a tensor
  TensorType type;            // sizes, strides, offset (in the tensor, or from the base's first element) as in eager
};

struct InputSpec {
  TensorType type;      // what the plan was built for; the guards promise it
  uint8_t kind = 0;     // graph::InputKind
  bool frozen = false;  // only frozen_steps read it (or nothing does)
};

struct Plan {
  std::vector<InputSpec> inputs;
  std::vector<Tensor> tensors;
  std::vector<Step> frozen_steps, steps;
  std::vector<OutputRef> outputs;
  std::vector<Kernel> kernels;
  std::vector<Binary> binaries;
  sym::Expr arena_bytes = 0;
  std::string
      target;     // what the binaries need, blank separated as in /proc/cpuinfo: "x86-64 avx512f avx512_bf16"; "sm_90"
  Device device;  // where kernels run and the arena lives
};

std::string print(const Plan& p);
Plan parse(std::string_view text);  // binaries: key and size only. Throws UserError "line N: what"
void verify(const Plan& p);         // throws InternalError
// Of a plan that split() made: sizes that follow from data are its caller's, who may know them before its first step.
void verify_part(const Plan& p);
std::string serialize(const Plan& p);
// Throws UserError on anything malformed; never reads out of bounds, never allocates more than a small multiple of the
// input.
Plan deserialize(std::string_view bytes);
Plan deserialize_payload(std::string_view payload);  // without header and checksum: the part that fuzz tests attack
constexpr uint32_t kFormatVersion = 9;               // of the binary form; part of cache keys

// Calls f(TensorId) for every tensor that a step reads / writes (a mutated argument of an extern call is a write).
template <typename F>
void for_each_read(const Step& s, F&& f) {
  if (s.kind != StepKind::kCall) {
    for (TensorId t : s.reads) f(t);
    return;
  }
  for (const Arg& a : s.args) {
    if (auto* r = std::get_if<Ref>(&a)) {
      if (r->id != kNoValue) f(r->id);
    } else if (auto* l = std::get_if<RefList>(&a)) {
      for (const Ref& r : *l)
        if (r.id != kNoValue) f(r.id);
    }
  }
}
template <typename F>
void for_each_mutated(const Step& s, F&& f) {
  for (size_t i = 0; s.mutates != 0 && i < s.args.size() && i < 32; ++i) {
    if (!(s.mutates >> i & 1)) continue;
    if (auto* r = std::get_if<Ref>(&s.args[i])) {
      if (r->id != kNoValue) f(r->id);
    } else if (auto* l = std::get_if<RefList>(&s.args[i])) {
      for (const Ref& r : *l)
        if (r.id != kNoValue) f(r.id);
    }
  }
}
template <typename F>
void for_each_write(const Step& s, F&& f) {
  for (TensorId t : s.writes)
    if (t >= 0) f(t);
  for_each_mutated(s, f);
}
// The tensor whose memory `t` lies in, through views; `elements` (if asked) receives the offset from its first element.
TensorId root(const Plan& p, TensorId t, sym::Expr* elements = nullptr);
// Elements from the first to one past the last element of a strided tensor; 0 when empty.
sym::Expr span(const TensorType& t);
sym::Expr bytes(const TensorType& t);  // of that
// A call that allocates memory for a tensor and does no work.
bool takes_memory(const Step& s);
// Whether an operator may raise for what its operands hold: all but those that are known to take any numbers.
bool may_raise(std::string_view op);

}  // namespace flashover::plan
