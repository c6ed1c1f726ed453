// Tensors computed from parameters, kept until a parameter changed.
//
// Changed means: another TensorImpl, another storage or offset under it (`p.data = t`), another version - or, for
// storages that escaped (writes.h), other bytes. (Bytes on a CUDA device are not looked at: while such a
// storage is escaped, the tensors are computed anew on every call.) The usual check is three compares a parameter and
// one of the escape epoch.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "run/untracked_writers.h"

namespace flashover::run {

namespace cuda {
class ReadyPoint;
}

// One set of frozen tensors; never changes after it was published (but for the notes on escapes, under FrozenCache's
// lock).
struct Frozen {
  struct Source {
    int32_t input;
    c10::TensorImpl* impl;
    c10::StorageImpl* storage;
    int64_t offset;
    const c10::VariableVersion* counter;  // inside impl
    uint32_t version;
  };
  struct Note {
    uint32_t owners;   // references to the storage held by the inputs themselves
    uint64_t settled;  // epoch at which the storage was last found not escaped
    uint64_t hash;     // of the bytes that went into the tensors
    const void* data;  // of the storage; it can be exchanged under it
    bool foreign, hashed, live;
  };
  std::vector<at::Tensor> tensors;  // by TensorId; only those that are needed
  std::vector<Source> sources;
  // Keep the storage addresses in `sources` from being given to new objects, without keeping memory alive. (Not so for
  // the tensors: torch.utils.swap_tensors refuses those with weak references. A new tensor at an old address has a new
  // storage, or shares the old one: then the version, or the escape, tells.)
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
  // CUDA: the stream they were computed on and the moment they were ready; other streams wait for it once (stream.h).
  std::shared_ptr<cuda::ReadyPoint> ready;
  bool passing = false;  // for this call only
  mutable std::vector<Note> notes;
  mutable std::atomic<uint64_t> epoch{0};
  mutable std::atomic<bool> any_live{false};
};

// Waiting for a lock with Python's lock in hand can be a deadlock: the holder may be in an operator written in Python.
// Set by the Python side; release returns what acquire needs, null when the lock was not held.
struct PythonLock {
  void* (*release)() = nullptr;
  void (*acquire)(void*) = nullptr;
};
extern PythonLock python_lock;

class FrozenCache {
 public:
  // seen: LoadOptions::inputs_seen.
  void depend_on(std::vector<int32_t> inputs, std::shared_ptr<const std::atomic<bool>> seen) {
    inputs_ = std::move(inputs);
    seen_ = std::move(seen);
  }

  // Makes `mine` the set for these inputs; `compute` runs (under a lock) when there is none yet. It finds the tensors
  // that were supplied in place, if any were.
  template <typename Compute>
  void sync(std::shared_ptr<const Frozen>& mine, c10::TensorImpl* const* inputs, const Compute& compute) {
    if (watched()) intercept_untracked_writers();
    if (mine.get() == current_.load(std::memory_order_acquire) && mine && same(*mine, inputs) && none_escaped(*mine))
      return;
    sync_slowly(mine, inputs, compute);
  }
  // Sets for these inputs begin with these tensors; undefined ones are left to `compute`.
  void supply(c10::TensorImpl* const* inputs, std::vector<at::Tensor> tensors);
  void forget() {
    const std::lock_guard lock(mutex_);
    current_.store(nullptr, std::memory_order_release);
    owner_.reset();
  }
  int64_t runs() const { return runs_.load(std::memory_order_relaxed); }
  int64_t content_checks() const { return content_checks_.load(std::memory_order_relaxed); }

 private:
  bool watched() const { return !seen_ || seen_->load(std::memory_order_acquire); }
  static bool same(const Frozen& f, c10::TensorImpl* const* inputs);
  static bool none_escaped(const Frozen& f);
  bool contents_same(const Frozen& f);
  void sync_slowly(std::shared_ptr<const Frozen>& mine, c10::TensorImpl* const* inputs,
                   const std::function<void(Frozen& made)>& compute);
  std::shared_ptr<Frozen> look(c10::TensorImpl* const* inputs);

  std::vector<int32_t> inputs_;
  std::shared_ptr<const std::atomic<bool>> seen_;
  std::mutex mutex_;
  std::shared_ptr<const Frozen> owner_, supplied_;
  std::atomic<const Frozen*> current_{nullptr};
  std::atomic<int64_t> runs_{0}, content_checks_{0};
};

}  // namespace flashover::run
