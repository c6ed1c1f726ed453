// Which sizes and numbers changed from call to call, kept on disk: the first compile of another process has symbols for
// them, and is the only one.
//
//   In        a function, or where one goes on after a graph break, by its code; what was seen to change there
//   Out       what changed there in earlier processes
//   Promises  nothing that is read is believed: a size that is named is a symbol as if it had changed in this process,
//             and guards see to the rest. A file that is not as expected is not used. Files are replaced as wholes.
//             Files are read once: what this process learns is for others, and its own compiles do not depend on order
//   Declines  nothing
// The text: a first line, then one for each thing that changed: "<site> size <dim> <path>", "<site> number <path>". It
// holds no more than that, and may be taken from one machine to another.
#pragma once
#include <Python.h>

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/hash.h"
#include "entry/entry.h"
#include "frame/sizes.h"

namespace flashover::entry {

struct Changing {
  std::map<std::string, std::set<size_t>> dims;  // by the tensor's path
  std::set<std::string> numbers;                 // paths
  bool operator==(const Changing&) const = default;
};

// By site.
class ChangeTable {
 public:
  static std::optional<ChangeTable> parse(std::string_view text);  // nullopt: no such text
  std::string print() const;
  const Changing* find(const Hash128& site) const;
  // False: it is known already.
  bool add(const Hash128& site, const Changing& changing);
  void forget(const Hash128& site) { sites_.erase(site.hex()); }

 private:
  std::map<std::string, Changing> sites_;  // by the key's digits
};

// code: of the function; module: the first argument, if that is a module, whose parts count as well; next: where it goes
// on after a graph break, or -1. GIL held.
Hash128 site_of(PyObject* code, PyObject* module, int next);

// What a site may remember; nothing where options or the environment say so.
class SizeMemory {
 public:
  explicit SizeMemory(const Settings& settings);
  void recall(const Hash128& site, frame::VaryingSizes& sizes, std::unordered_set<std::string>& numbers) const;
  void remember(const Hash128& site, const frame::VaryingSizes& sizes,
                const std::unordered_set<std::string>& numbers) const;
  void forget(const Hash128& site) const;  // symbols did not work there
  bool on() const { return on_; }

 private:
  bool on_ = false;
  std::string directory_, file_;
};

}  // namespace flashover::entry
