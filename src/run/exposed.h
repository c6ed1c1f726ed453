// Writes that autograd's version counters do not see.
//
// `p.data`, `p.numpy()`, `p.untyped_storage()`, `p.data_ptr()`, dlpack, memory shared with another process: each gives
// somebody the means to change a parameter without bumping its version. Such a storage is *exposed*, and what was
// computed from it is trusted only after a look at the bytes (a hash at memory speed). The Python side (bind_run.cpp)
// reports exposures here.
//
//   transient   the alias owns the storage (`.data`, untyped_storage): over when the alias is gone, seen by the use
//   count lasting     an address was handed out: for ever
#pragma once
#include <atomic>
#include <cstdint>

namespace c10 {
struct StorageImpl;
}

namespace flashover::run {

// Moves on whenever any storage is exposed: as long as it stands still, nothing new has to be looked at.
extern std::atomic<uint64_t> exposure_epoch;

void expose(c10::StorageImpl* storage, bool lasting);

enum class Exposure : uint8_t {
  kNone,
  kOver,  // was exposed after `since`, but nobody can write any more: look at the bytes once
  kLive,  // somebody may write at any time: look at the bytes on every call
};
// owners: how many references to the storage are known to be harmless. since: an epoch at which it was last found not
// live.
Exposure exposure_of(c10::StorageImpl* storage, uint32_t owners, uint64_t since);

uint64_t content_hash(const void* data, size_t bytes);

}  // namespace flashover::run
