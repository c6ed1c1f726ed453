// Compares parameters with what they were, and computes the tensors again where one is another.
#include "run/frozen.h"

#include <unordered_map>

#include "base/content_hash.h"
#include "run/writes.h"

namespace flashover::run {

PythonLock python_lock;

namespace {

uint64_t hash_of(const Frozen::Source& w) {
  const auto* impl = w.impl;
  if (impl->numel() == 0) return 0;
  size_t elements = 1;
  for (int64_t i = 0; i < impl->dim(); ++i)
    elements += static_cast<size_t>((impl->sizes()[i] - 1) * impl->strides()[i]);
  const auto* data = static_cast<const char*>(w.storage->data_ptr().get());
  return content_hash(data + w.offset * static_cast<int64_t>(impl->itemsize()), elements * impl->itemsize());
}

c10::StorageImpl* storage_of(const c10::TensorImpl* impl) { return impl->unsafe_storage().unsafeGetStorageImpl(); }

}  // namespace

bool FrozenCache::same(const Frozen& f, c10::TensorImpl* const* inputs) {
  for (const Frozen::Source& w : f.sources) {
    const c10::TensorImpl* impl = inputs[w.input];
    if (impl != w.impl || storage_of(impl) != w.storage || impl->storage_offset() != w.offset) return false;
    if (w.counter && impl->version_counter().current_version() != w.version) return false;
  }
  return true;
}

bool FrozenCache::none_escaped(const Frozen& f) {
  return f.epoch.load(std::memory_order_acquire) == escape_epoch.load(std::memory_order_acquire) &&
         !f.any_live.load(std::memory_order_relaxed);
}

// Under the lock: asks about every source's storage anew. False: some bytes changed, or were not hashed before.
bool FrozenCache::contents_same(const Frozen& f) {
  const uint64_t now = escape_epoch.load(std::memory_order_acquire);
  bool any_live = false, looked = false;
  for (size_t i = 0; i < f.sources.size(); ++i) {
    const Frozen::Source& w = f.sources[i];
    Frozen::Note& n = f.notes[i];
    if (!w.storage) continue;
    if (w.storage->data_ptr().get() != n.data) return false;
    Escape e = w.counter && !n.foreign ? escape_of(w.impl, n.owners, n.settled) : Escape::kLive;
    if (e == Escape::kNone && n.live) e = Escape::kOver;  // the alias is gone: its last write may not have been seen
    if (e == Escape::kNone) {
      n.settled = now;
      continue;
    }
    looked = true;
    if (!n.hashed || !w.impl->device().is_cpu() || hash_of(w) != n.hash) return false;
    n.live = e == Escape::kLive;
    any_live |= n.live;
    if (!n.live) n.settled = now;
  }
  if (looked) content_checks_.fetch_add(1, std::memory_order_relaxed);
  f.any_live.store(any_live, std::memory_order_relaxed);
  f.epoch.store(now, std::memory_order_release);
  return true;
}

// Everything there is to know about the inputs, read before they are computed with: a write in between shows up later.
std::shared_ptr<Frozen> FrozenCache::look(c10::TensorImpl* const* inputs) {
  auto f = std::make_shared<Frozen>();
  anything_kept.store(true, std::memory_order_seq_cst);
  const uint64_t now = escape_epoch.load(std::memory_order_acquire);
  std::unordered_map<c10::StorageImpl*, uint32_t> owners;
  std::unordered_map<c10::TensorImpl*, bool> seen;
  for (int32_t i : inputs_) {
    c10::TensorImpl* impl = inputs[i];
    if (seen.try_emplace(impl, true).second) ++owners[storage_of(impl)];
  }
  bool any_live = false;
  ForeignMemory foreign;
  for (int32_t i : inputs_) {
    c10::TensorImpl* impl = inputs[i];
    c10::StorageImpl* storage = storage_of(impl);
    const c10::VariableVersion& counter = impl->version_counter();
    // Inference tensors count no versions: their bytes are looked at every time.
    const bool counted = counter.enabled();
    f->sources.push_back({i, impl, storage, impl->storage_offset(), counted ? &counter : nullptr,
                          counted ? counter.current_version() : 0});
    if (storage) f->storages.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
    Frozen::Note n{owners[storage], now, 0, nullptr, false, false, false};
    if (storage) {
      n.data = storage->data_ptr().get();
      n.foreign = watched() && foreign.holds(*storage);
    }
    n.live = storage && (!counted || n.foreign || escape_of(impl, n.owners, now) == Escape::kLive);
    // A storage that escaped since the last look may do so again: hash it, or each time would mean computing anew.
    if (!impl->device().is_cpu()) {
      // Its memory cannot be read here.
    } else if (n.live || (owner_ && storage && escape_of(impl, n.owners, 0) != Escape::kNone)) {
      n.hash = hash_of(f->sources.back());
      n.hashed = true;
    }
    any_live |= n.live;
    f->notes.push_back(n);
  }
  f->epoch.store(now, std::memory_order_relaxed);
  f->any_live.store(any_live, std::memory_order_relaxed);
  return f;
}

void FrozenCache::supply(c10::TensorImpl* const* inputs, std::vector<at::Tensor> tensors) {
  if (watched()) intercept_untracked_writers();
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Frozen> made = look(inputs);
  made->tensors = std::move(tensors);
  supplied_ = made;
}

void FrozenCache::sync_slowly(std::shared_ptr<const Frozen>& mine, c10::TensorImpl* const* inputs,
                              const std::function<void(Frozen& made)>& compute) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    void* python = python_lock.release ? python_lock.release() : nullptr;
    lock.lock();
    if (python) python_lock.acquire(python);
  }
  mine = owner_;
  if (mine && same(*mine, inputs) && (none_escaped(*mine) || contents_same(*mine))) return;
  auto fresh = look(inputs);
  // What no other call has in hand makes room.
  if (mine && mine == owner_ && mine.use_count() == 2) {
    current_.store(nullptr, std::memory_order_release);
    mine.reset();
    owner_.reset();
  }
  if (supplied_ && same(*supplied_, inputs) && (none_escaped(*supplied_) || contents_same(*supplied_)))
    fresh->tensors = supplied_->tensors;
  compute(*fresh);
  runs_.fetch_add(1, std::memory_order_relaxed);
  mine = fresh;
  if (fresh->passing) return;
  owner_ = std::move(fresh);
  current_.store(owner_.get(), std::memory_order_release);
}

}  // namespace flashover::run
