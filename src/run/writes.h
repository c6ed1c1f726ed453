// How a write to memory that something was computed from becomes known: one rule for all writers, and for all that is
// kept.
//
//   A writer  moves the version counter of the tensor on (as autograd's kernels do), or calls wrote() when it is done.
//   A storage escapes where a caller gets the means to write it untracked (`p.data`, numpy(), untyped_storage(),
//   data_ptr(), dlpack): mark_escaped() is called there and then. Writers are:
//     eager's operators     versions; those without, untracked_writers.h
//     compiled plans        as eager's operators would have, once the call is over: written.h (forward, backward,
//                           sub-plans, replayed CUDA graphs, what is restored after a failure)
//     graphs of operators   entry/versions.h (backends other than ours)
//     CUDA graphs that the program recorded itself, torch's switch that sets versions back, the hooks on `data`,
//     numpy(), ...          python/bind_run.cpp
//   A cache of anything computed from a tensor's memory remembers the tensor, its storage, offset and version, and
//   asks escape_of(). There is one: FrozenCache (frozen.h), for all that follows from parameters, buffers and
//   constants: packed weights, folded norms, converted copies. Recorded CUDA graphs hold addresses and frozen
//   tensors, no other contents; guards on elements and numbers read memory in every call.
//
// An escaped storage is trusted only after a look at the bytes (a hash at memory speed).
//   kOwner    the alias is another owner of the storage (`.data`, untyped_storage): over when it is gone, seen by the
//             use count
//   kHandle   the alias keeps alive the tensor object it was made from (numpy, dlpack): as kOwner if that was a
//             detached copy, for ever if it was the parameter itself
//   kAddress  a bare address was handed out: for ever
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

namespace c10 {
struct StorageImpl;
struct TensorImpl;
}  // namespace c10

namespace flashover::run {

// Moves on whenever any storage escapes or is written: as long as it stands still, nothing new has to be looked at.
extern std::atomic<uint64_t> escape_epoch;

// Cleared when the Python side could not install its hooks: then every storage counts as escaped.
extern std::atomic<bool> escapes_tracked;

// Set before the first look at memory that something is computed from. Writers that are done before that need not
// report.
extern std::atomic<bool> anything_kept;

enum class Alias : uint8_t { kOwner, kHandle, kAddress };
void mark_escaped(const c10::TensorImpl* tensor, Alias alias);
// The memory of `tensor` was written without a new version; nothing writes it any more.
inline void wrote(const c10::TensorImpl* tensor) {
  if (anything_kept.load(std::memory_order_seq_cst)) mark_escaped(tensor, Alias::kOwner);
}
void wrote_anything();  // any memory may have been written

enum class Escape : uint8_t {
  kNone,
  kOver,  // escaped or was written after `since`, but no alias is left that could write: look at the bytes once
  kLive,  // an alias may write at any time: look at the bytes on every call
};
// Of the storage of `tensor`. owners: how many references to it are known to be harmless. since: an epoch at which it
// was last found not live.
Escape escape_of(const c10::TensorImpl* tensor, uint32_t owners, uint64_t since);

// Memory that did not come from torch's CPU allocator belongs to another owner (numpy, another process), which may
// write it at any time. Not so a private mapping of a file: weights read with mmap (safetensors,
// torch.load(mmap=True)).
class ForeignMemory {
 public:
  struct Range {
    uintptr_t from, to;
    bool private_file;
  };
  bool holds(const c10::StorageImpl& s);

 private:
  void read();
  std::vector<Range> ranges_;  // of this process, read when first needed, in order
};

}  // namespace flashover::run
