// The disk cache: bytes by kind and key, for plans, kernel binaries and probes.
//
//   In        a directory of our own, content hashes as keys
//   Out       the bytes that were put, or nothing
//   Promises  what get() returns is what some put() of that kind and key wrote (checksum); a reader sees a whole entry
//             or none (rename); a damaged, foreign or half-written entry is a miss and goes away; nothing outside the
//             directory is touched; several processes may share it; no locks are waited for, so a killed process blocks
//             nothing
//   Declines  a directory that others can write, that is not ours or cannot be made: no cache, one warning, never an
//             error. A full disk or quota: what fits stays, one warning
//
// The directory is FLASHOVER_CACHE_DIR, else $XDG_CACHE_HOME/flashover, else ~/.cache/flashover; FLASHOVER_CACHE_DIR=
// (empty) is no cache. An entry is one file "<kind>-<key>"; readers open one name and list nothing. Entries hold
// machine code: a user who can write the directory can run code as us, hence the checks. FLASHOVER_CACHE_MB bounds its
// size (default 2048), oldest use goes first.
#pragma once
#include <ctime>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace flashover::compile {

class Cache {
 public:
  // Of this process, from the environment as it is at the first call.
  static Cache& process();
  static Cache& at(const std::string& directory);  // another one, also for the rest of the process; empty: process()

  // Empty path: no cache. Nothing is opened or made before the first get or put.
  explicit Cache(std::string directory, size_t max_bytes = size_t{2048} << 20, size_t max_entries = 20000);
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // kind: a short word of letters.
  std::optional<std::string> get(std::string_view kind, const Hash128& key);
  void put(std::string_view kind, const Hash128& key, std::string_view bytes);
  void evict();  // down to the bounds, now
  // What is there, by kind.
  struct Usage {
    size_t entries = 0, bytes = 0;
  };
  std::map<std::string, Usage> contents();
  // Each entry there is, what was used last first.
  std::vector<std::pair<std::string, Hash128>> entries();
  // Removes the entries, and the files beside them of these names. How many files went.
  size_t clear(const std::vector<std::string>& texts = {});
  // A file beside the entries, without a checksum: who reads it looks at what it says. name: without "-".
  std::optional<std::string> read_text(const std::string& name, size_t most);
  void write_text(const std::string& name, std::string_view text);

  const std::string& directory() const { return directory_; }
  // Why the cache does not work (fully), once; empty when there is nothing (new) to say.
  std::string take_warning();

 private:
  int open_directory();  // -1: no cache
  void warn(const std::string& what);
  struct File {
    std::string name;
    time_t used;
    size_t bytes;
  };
  static std::vector<File> files(int directory);  // entries; what processes left that died goes away
  bool write(int directory, const std::string& name, std::string_view header, std::string_view bytes, int& error);

  std::string directory_;
  size_t max_bytes_, max_entries_;
  std::mutex mutex_;
  int fd_ = -1;
  bool opened_ = false, warned_ = false;
  std::string warning_;
  std::atomic<bool> read_only_{false};
  std::atomic<size_t> written_bytes_{0}, written_entries_{0};
};

// This machine and this program, as far as code from another one must not be used here: CPU identity, our own binary.
std::string machine_identity();
std::string program_identity();

}  // namespace flashover::compile
