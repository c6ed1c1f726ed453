// Tables are written and read by base/bytes.h; files are read by pread and mmap, written beside and renamed.
#include "package/container.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "base/bytes.h"
#include "base/safe_path.h"

namespace flashover::aot {
namespace {

constexpr std::string_view kMagic = "FLASHPKG";
constexpr size_t kHeader = 8 + 4 + 4 + 8 + 8 + 16;
constexpr uint64_t kMostTable = uint64_t{1} << 24;

[[noreturn]] void damaged(const std::string& what) { throw UserError("damaged package: " + what); }
[[noreturn]] void failed(const std::string& what, const std::string& path) {
  throw UserError(what + " " + path + ": " + std::strerror(errno));
}

uint64_t aligned(uint64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

class FileSource final : public ByteSource {
 public:
  explicit FileSource(const std::string& path) : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) failed("cannot open the package", path);
    struct stat s {};
    if (::fstat(fd_, &s) != 0) failed("cannot look at the package", path);
    if (!S_ISREG(s.st_mode)) throw UserError("the package " + path + " is no regular file");
    size_ = static_cast<uint64_t>(s.st_size);
  }
  uint64_t size() const override { return size_; }
  void read(uint64_t offset, void* to, size_t bytes) const override {
    auto* at = static_cast<char*>(to);
    while (bytes > 0) {
      const ssize_t n = ::pread(fd_, at, bytes, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) failed("cannot read the package", path_);
      if (n == 0) damaged("cut short");
      at += n, offset += static_cast<uint64_t>(n), bytes -= static_cast<size_t>(n);
    }
  }
  std::shared_ptr<char> map(uint64_t offset, size_t bytes) const override {
    if (bytes == 0) return std::make_shared<char>();
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd_, static_cast<off_t>(offset));
    if (at == MAP_FAILED) failed("cannot map the package", path_);
    return {static_cast<char*>(at), [bytes](char* p) { ::munmap(p, bytes); }};
  }

 private:
  std::string path_;
  Fd fd_;
  uint64_t size_ = 0;
};

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::string_view bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t offset, void* to, size_t bytes) const override {
    if (bytes > 0) std::memcpy(to, bytes_.data() + offset, bytes);
  }
  std::shared_ptr<char> map(uint64_t offset, size_t bytes) const override {
    std::shared_ptr<char> copy(new char[bytes + 1], std::default_delete<char[]>());
    read(offset, copy.get(), bytes);
    return copy;
  }

 private:
  std::string_view bytes_;
};

Hash128 hash_of(std::string_view bytes) { return Hasher().bytes(bytes.data(), bytes.size()).finish(); }

// A file beside `path` that takes its place, or goes.
class NewFile {
 public:
  explicit NewFile(const std::string& path)
      : path_(path),
        new_(path + ".new" + std::to_string(::getpid())),
        fd_(::open(new_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644)) {
    if (fd_ < 0) failed("cannot write the package", path);
  }
  ~NewFile() {
    if (!kept_) ::unlink(new_.c_str());
  }
  NewFile(const NewFile&) = delete;
  void write(std::string_view bytes) {
    at_ += bytes.size();
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) failed("cannot write the package", path_);
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  void fill_to(uint64_t offset) {
    static const std::string zeros(kAlignment, '\0');
    write(std::string_view(zeros).substr(0, offset - at_));
  }
  void keep() {
    if (::fsync(fd_) != 0 || ::rename(new_.c_str(), path_.c_str()) != 0) failed("cannot write the package", path_);
    kept_ = true;
  }

 private:
  std::string path_, new_;
  Fd fd_;
  uint64_t at_ = 0;
  bool kept_ = false;
};

std::string table_of(const std::vector<Section>& sections) {
  ByteWriter w;
  w.list(sections, [&](const Section& s) {
    w.text(s.name);
    w.raw(s.offset, 8);
    w.raw(s.size, 8);
    w.hash(s.hash);
  });
  return std::move(w.out);
}

// Where everything of a file lies, and what stands before the first section.
struct Layout {
  std::vector<Section> sections;
  std::string head;
  explicit Layout(const std::vector<Part>& parts) {
    for (const Part& p : parts) {
      Section& s = sections.emplace_back();
      s.name = p.name;
      Hasher hasher;
      for (std::string_view piece : p.pieces) {
        if (!p.checked_by_parts) hasher.bytes(piece.data(), piece.size());
        s.size += piece.size();
      }
      s.hash = hasher.finish();
    }
    const uint64_t table_bytes = table_of(sections).size();  // which does not depend on what the numbers are
    uint64_t at = kHeader + table_bytes;
    for (Section& s : sections) {
      s.offset = aligned(at);
      at = s.offset + s.size;
    }
    const std::string table = table_of(sections);
    ByteWriter w;
    w.out = kMagic;
    w.raw(kContainerVersion, 4);
    w.raw(0, 4);
    w.raw(at, 8);
    w.raw(table_bytes, 8);
    w.hash(hash_of(table));
    head = w.out + table;
  }
};

}  // namespace

std::shared_ptr<const ByteSource> open_file(const std::string& path) { return std::make_shared<FileSource>(path); }
std::shared_ptr<const ByteSource> in_memory(std::string_view bytes) { return std::make_shared<MemorySource>(bytes); }

Container::Container(std::shared_ptr<const ByteSource> source) : source_(std::move(source)) {
  std::string head(kHeader, '\0');
  if (source_->size() < kHeader) damaged("cut short");
  source_->read(0, head.data(), head.size());
  ByteReader h(head, "package");
  if (h.take(kMagic.size()) != kMagic) throw UserError("this is no package of Flashover's");
  if (const uint64_t version = h.raw(4); version != kContainerVersion)
    throw UserError("the package has format " + std::to_string(version) + ", this version of Flashover reads format " +
                    std::to_string(kContainerVersion) + ": package the program again");
  if (h.raw(4) != 0) h.fail("unknown flags");
  if (h.raw(8) != source_->size()) h.fail("it has another size than it says (cut short?)");
  const uint64_t bytes = h.raw(8);
  const Hash128 hash = h.hash();
  if (bytes > kMostTable || bytes > source_->size() - kHeader) h.fail("its table is too large");
  std::string table(bytes, '\0');
  source_->read(kHeader, table.data(), table.size());
  if (hash_of(table) != hash) h.fail("wrong checksum of the table");
  ByteReader t(table, "package");
  sections_ = t.list<Section>(33, [&] {
    Section s;
    s.name = t.text();
    s.offset = t.raw(8);
    s.size = t.raw(8);
    s.hash = t.hash();
    return s;
  });
  if (t.left() != 0) t.fail("bytes behind the table");
  check_places(kHeader + bytes);
}

void Container::check_places(uint64_t at) const {
  std::set<std::string_view> names;
  std::string gap;
  const auto skip_zeros = [&](uint64_t to) {
    gap.resize(to - at);
    source_->read(at, gap.data(), gap.size());
    if (gap.find_first_not_of('\0') != std::string::npos) damaged("bytes between the sections");
  };
  for (const Section& s : sections_) {
    if (!names.insert(s.name).second) damaged("two sections are named " + s.name);
    if (s.offset != aligned(at)) damaged("the section " + s.name + " is not where it has to be");
    if (s.offset > source_->size() || s.size > source_->size() - s.offset)
      damaged("the section " + s.name + " is cut short");
    skip_zeros(s.offset);
    at = s.offset + s.size;
  }
  if (at != source_->size()) damaged("bytes behind the last section");
}

const Section& Container::find(std::string_view name) const {
  for (const Section& s : sections_)
    if (s.name == name) return s;
  damaged("there is no section " + std::string(name));
}

std::string Container::read(const Section& section) const {
  std::string bytes(section.size, '\0');
  source_->read(section.offset, bytes.data(), bytes.size());
  if (hash_of(bytes) != section.hash) damaged("wrong checksum of the section " + section.name);
  return bytes;
}

void write_container(const std::string& path, const std::vector<Part>& parts) {
  const Layout layout(parts);
  NewFile file(path);
  file.write(layout.head);
  for (size_t i = 0; i < parts.size(); ++i) {
    file.fill_to(layout.sections[i].offset);
    for (std::string_view piece : parts[i].pieces) file.write(piece);
  }
  file.keep();
}

std::string container_bytes(const std::vector<Part>& parts) {
  const Layout layout(parts);
  std::string out = layout.head;
  for (size_t i = 0; i < parts.size(); ++i) {
    out.resize(layout.sections[i].offset);
    for (std::string_view piece : parts[i].pieces) out += piece;
  }
  return out;
}

}  // namespace flashover::aot
