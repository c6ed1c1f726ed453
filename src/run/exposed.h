// Writes that autograd's version counters do not see.
//
// `p.data`, `p.numpy()`, `p.untyped_storage()`, `p.data_ptr()`, dlpack, memory shared with another process: each gives
// somebody the means to change a parameter without bumping its version. Such a storage is *exposed*, and what was
// computed from it is trusted only after a look at the bytes (a hash at memory speed). The Python side (bind_run.cpp)
// reports exposures here.
//
//   kOwner    the alias is another owner of the storage (`.data`, untyped_storage): over when it is gone, seen by the
//   use count kHandle   the alias keeps alive the tensor object it was made from (numpy, dlpack): as kOwner if that was
//   a detached copy,
//             for ever if it was the parameter itself
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

// Moves on whenever any storage is exposed: as long as it stands still, nothing new has to be looked at.
extern std::atomic<uint64_t> exposure_epoch;

// Cleared when the Python side could not install its hooks: then every storage counts as exposed.
extern std::atomic<bool> exposure_tracked;

enum class Alias : uint8_t { kOwner, kHandle, kAddress };
void expose(const c10::TensorImpl* tensor, Alias alias);
void expose_all();  // anything may have been written: every storage is kOver once

enum class Exposure : uint8_t {
  kNone,
  kOver,  // was exposed after `since`, but nobody can write any more: look at the bytes once
  kLive,  // somebody may write at any time: look at the bytes on every call
};
// Of the storage of `tensor`. owners: how many references to it are known to be harmless. since: an epoch at which it
// was last found not live.
Exposure exposure_of(const c10::TensorImpl* tensor, uint32_t owners, uint64_t since);

// Memory that did not come from torch's CPU allocator belongs to somebody else (numpy, another process), who may write
// it at any time. Not so a private mapping of a file: weights read with mmap (safetensors, torch.load(mmap=True)).
class ForeignMemory {
 public:
  bool holds(const c10::StorageImpl& s);

 private:
  void read();
  struct Range {
    uintptr_t from, to;
    bool private_file;
  };
  std::vector<Range> ranges_;  // of this process, read when first needed, in order
};

uint64_t content_hash(const void* data, size_t bytes);

}  // namespace flashover::run
