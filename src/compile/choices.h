// The option choices_file: what a stopwatch decides is written down and read back, so that the same file gives the same
// choices in another run: which libraries this machine's are (kind "machine"), the libraries of a graph and the kernels
// of products under max_autotune ("libraries", "product").
//
//   In        a path, the machine and versions of this process
//   Out       lines "kind TAB key TAB value" behind two lines of heading; a choice that is missing is appended when it is
//             made
//   Promises  one table a path and process, from any thread; other processes may append to the same file. Of two lines
//             of one kind and key the first counts
//   Declines  a file that is none of ours: UserError. One of another machine or version is used and said; a choice that
//             there is no more is made anew and said; a file that cannot be written is said
#pragma once
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/hash.h"

namespace flashover::compile {

class ChoicesFile {
 public:
  static ChoicesFile* at(const std::string& path, const std::string& written_by);

  std::optional<std::string> find(std::string_view kind, const Hash128& key);
  void keep(std::string_view kind, const Hash128& key, std::string_view value);
  // A choice of the file's is none of those that there are now.
  void say_unknown(std::string_view kind, std::string_view value);

 private:
  explicit ChoicesFile(std::string path) : path_(std::move(path)) {}
  void read(const std::string& written_by);
  void append(const std::string& text);

  std::string path_;
  std::mutex mutex_;
  std::map<std::string, std::string> choices_;  // by "kind TAB key"
  bool cannot_write_ = false;
};

}  // namespace flashover::compile
