// The file of a package: named sections behind a table, all of it checksummed.
//
//   In        named bytes; or a file that anybody may have written
//   Out       one file, replaced as a whole; or the sections' places and bytes
//   Promises  reading: no byte is believed before it was checked; sections lie inside the file, in order, apart from
//             each other, with nothing between them but zeros; what read() gives has the checksum of the table; no name
//             in the file is ever a path
//   Declines  anything else (UserError: "damaged package: ...")
//   Sample    magic "FLASHPKG", u32 version, u32 0, u64 bytes of the file, u64 bytes of the table, the table's hash;
//             the table: list of (name, offset, size, hash); then the sections, at multiples of kAlignment
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace flashover::aot {

constexpr uint32_t kContainerVersion = 3;
constexpr uint64_t kAlignment = 4096;  // sections are mapped one by one

struct Section {
  std::string name;
  uint64_t offset = 0, size = 0;
  Hash128 hash;
};

// Where the bytes of a package come from.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  virtual void read(uint64_t offset, void* to, size_t bytes) const = 0;  // inside of size()
  // The same bytes in memory of this process, which may write there without anyone else seeing it. Stays as long as
  // what is returned. Null: not to be had.
  virtual std::shared_ptr<char> map(uint64_t offset, size_t bytes) const = 0;
};
std::shared_ptr<const ByteSource> open_file(const std::string& path);  // throws UserError
std::shared_ptr<const ByteSource> in_memory(std::string_view bytes);   // which stay

class Container {
 public:
  explicit Container(std::shared_ptr<const ByteSource> source);
  const std::vector<Section>& sections() const { return sections_; }
  const Section& find(std::string_view name) const;  // throws UserError
  std::string read(const Section& section) const;
  // Looks at nothing of it: who maps a section has checksums of its parts.
  std::shared_ptr<char> map(const Section& section) const { return source_->map(section.offset, section.size); }

 private:
  void check_places(uint64_t begin) const;
  std::shared_ptr<const ByteSource> source_;
  std::vector<Section> sections_;
};

// What is to be written: pieces one after the other.
struct Part {
  std::string name;
  std::vector<std::string_view> pieces;
  bool checked_by_parts = false;  // it is only mapped, and has no checksum as a whole
};
// Throws UserError where the file cannot be written; then the one that was there is as before.
void write_container(const std::string& path, const std::vector<Part>& parts);
std::string container_bytes(const std::vector<Part>& parts);  // the same file, in memory

}  // namespace flashover::aot
