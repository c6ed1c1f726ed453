// The table of storages that escaped or were written untracked, and the hash that tells whether bytes changed.
#include "run/writes.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/decimal.h"

namespace flashover::run {

std::atomic<uint64_t> escape_epoch{1};
std::atomic<bool> escapes_tracked{true};
std::atomic<bool> anything_kept{false};

namespace {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// Storages whose address was handed out. Weak references keep the address of a dead storage from being taken again.
struct Table {
  std::mutex mutex;
  struct Mark {
    WeakStorage storage;
    bool lasting = false;
    std::vector<const c10::TensorImpl*> handles;  // tensors that arrays were made from; compared, never followed
    uint64_t epoch = 0;                           // of the last escape
  };
  std::unordered_map<c10::StorageImpl*, Mark> marks;
  size_t prune_at = 1024;
  uint64_t all = 0;  // epoch of the last wrote_anything
};
Table& table() {
  static Table* t = new Table;
  return *t;
}

// "from-to access offset device inode name", a line of /proc/self/maps.
std::optional<ForeignMemory::Range> parse_range(std::string_view line) {
  const auto word = [&] {
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    const std::string_view w = line.substr(0, line.find_first_of(" \n"));
    line.remove_prefix(w.size());
    return w;
  };
  const std::string_view ends = word(), access = word();
  word();  // offset
  word();  // device
  const std::string_view inode = word();
  const size_t dash = ends.find('-');
  if (dash == std::string_view::npos || access.size() < 4 || inode.empty()) return std::nullopt;
  const auto from = parse_number<uintptr_t>(ends.substr(0, dash), 16),
             to = parse_number<uintptr_t>(ends.substr(dash + 1), 16);
  if (!from || !to) return std::nullopt;
  return ForeignMemory::Range{*from, *to, access[3] == 'p' && inode != "0"};
}

}  // namespace

void ForeignMemory::read() {
  FILE* maps = std::fopen("/proc/self/maps", "re");
  if (!maps) return;
  char line[512];
  while (std::fgets(line, sizeof line, maps)) {
    if (const std::optional<Range> range = parse_range(line)) ranges_.push_back(*range);
  }
  std::fclose(maps);
}

bool ForeignMemory::holds(const c10::StorageImpl& s) {
  const c10::DataPtr& data = s.data_ptr();
  if (!data.get()) return false;
  if (!s.device().is_cpu()) return data.get_deleter() != c10::GetAllocator(s.device_type())->raw_deleter();
  if (data.get_deleter() == c10::GetCPUAllocator()->raw_deleter()) return false;
  if (ranges_.empty()) read();
  const auto address = reinterpret_cast<uintptr_t>(data.get());
  const auto it =
      std::upper_bound(ranges_.begin(), ranges_.end(), address, [](uintptr_t a, const Range& r) { return a < r.to; });
  return it == ranges_.end() || address < it->from || !it->private_file;
}

void mark_escaped(const c10::TensorImpl* tensor, Alias alias) {
  if (!tensor->has_storage()) return;
  c10::StorageImpl* storage = tensor->unsafe_storage().unsafeGetStorageImpl();
  if (!storage) return;
  Table& t = table();
  std::lock_guard lock(t.mutex);
  if (t.marks.size() >= t.prune_at) {
    std::erase_if(t.marks, [](const auto& m) { return m.second.storage.expired(); });
    t.prune_at = std::max<size_t>(1024, 2 * t.marks.size());
  }
  auto it = t.marks.find(storage);
  if (it == t.marks.end()) {
    auto strong = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage);
    it = t.marks.emplace(storage, Table::Mark{WeakStorage(strong), false, {}, 0}).first;
  }
  Table::Mark& mark = it->second;
  if (alias == Alias::kHandle && std::find(mark.handles.begin(), mark.handles.end(), tensor) == mark.handles.end()) {
    mark.handles.push_back(tensor);
    if (mark.handles.size() > 64) alias = Alias::kAddress;  // enough: it is a habit
  }
  if (alias == Alias::kAddress) {
    mark.lasting = true;
    mark.handles.clear();
  }
  mark.epoch = escape_epoch.fetch_add(1, std::memory_order_release) + 1;
}

void wrote_anything() {
  Table& t = table();
  std::lock_guard lock(t.mutex);
  t.all = escape_epoch.fetch_add(1, std::memory_order_release) + 1;
}

Escape escape_of(const c10::TensorImpl* tensor, uint32_t owners, uint64_t since) {
  c10::StorageImpl* storage = tensor->unsafe_storage().unsafeGetStorageImpl();
  if (!escapes_tracked.load(std::memory_order_relaxed)) return Escape::kLive;
  // A Python storage object that once existed is kept by its StorageImpl and counts as an owner; nothing holds it if
  // its own reference count is one.
  const uint32_t idle = storage->pyobj_slot()->has_unique_reference() ? 1 : 0;
  const bool shared = c10::raw::intrusive_ptr::use_count(storage) > owners + idle;
  // numpy() makes what it shares not resizable: seen also when that was before this library was imported. (torch.load
  // makes such storages too, hence the question for other owners.)
  if (shared && !storage->resizable()) return Escape::kLive;
  Table& t = table();
  std::lock_guard lock(t.mutex);
  const Escape once = t.all > since ? Escape::kOver : Escape::kNone;
  const auto it = t.marks.find(storage);
  if (it == t.marks.end()) return once;
  const Table::Mark& mark = it->second;
  if (shared || mark.lasting || std::find(mark.handles.begin(), mark.handles.end(), tensor) != mark.handles.end())
    return Escape::kLive;
  return mark.epoch > since ? Escape::kOver : once;
}

}  // namespace flashover::run
