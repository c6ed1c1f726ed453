// Looks at the header, the segments, the sections and the dynamic table, all of which must lie within the file.
#include "base/elf.h"

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace flashover {
namespace {

// The ranges of memory that the file fills or zeroes, by address.
struct Segments {
  std::vector<Elf64_Phdr> loads;
  bool holds(uint64_t address, uint64_t bytes) const {
    for (const Elf64_Phdr& p : loads)
      if (address >= p.p_vaddr && bytes <= p.p_filesz && address - p.p_vaddr <= p.p_filesz - bytes) return true;
    return false;
  }
};

bool within(uint64_t offset, uint64_t bytes, size_t size) { return offset <= size && bytes <= size - offset; }

// `i`-th of a table of T at `offset`, which lies within the file.
template <typename T>
T entry(std::string_view bytes, uint64_t offset, uint64_t i) {
  T out;
  std::memcpy(&out, bytes.data() + offset + i * sizeof(T), sizeof out);
  return out;
}

std::string check_dynamic(std::string_view bytes, const Elf64_Phdr& dynamic, const Segments& segments) {
  uint64_t strings = 0, string_bytes = 0, symbols = 0, hash = 0;
  bool ends = false;
  for (uint64_t i = 0; i < dynamic.p_filesz / sizeof(Elf64_Dyn) && !ends; ++i) {
    const auto d = entry<Elf64_Dyn>(bytes, dynamic.p_offset, i);
    if (d.d_tag == DT_STRTAB) strings = d.d_un.d_ptr;
    if (d.d_tag == DT_STRSZ) string_bytes = d.d_un.d_val;
    if (d.d_tag == DT_SYMTAB) symbols = d.d_un.d_ptr;
    if (d.d_tag == DT_HASH || d.d_tag == DT_GNU_HASH) hash = d.d_un.d_ptr;
    ends = d.d_tag == DT_NULL;
  }
  if (!ends) return "its dynamic table has no end";
  if (!segments.holds(strings, string_bytes) || string_bytes == 0 || !segments.holds(symbols, sizeof(Elf64_Sym)) ||
      !segments.holds(hash, 16))
    return "its symbols are not in it";
  return {};
}

std::string check_segments(std::string_view bytes, const Elf64_Ehdr& h) {
  if (h.e_phentsize != sizeof(Elf64_Phdr) || h.e_phnum == 0 || h.e_phnum == PN_XNUM ||
      !within(h.e_phoff, uint64_t{h.e_phnum} * sizeof(Elf64_Phdr), bytes.size()))
    return "its segments are not in it";
  Segments segments;
  Elf64_Phdr dynamic{};
  for (uint64_t i = 0; i < h.e_phnum; ++i) {
    const auto p = entry<Elf64_Phdr>(bytes, h.e_phoff, i);
    if (!within(p.p_offset, p.p_filesz, bytes.size())) return "a segment ends behind the end of the file";
    if (p.p_type == PT_DYNAMIC) dynamic = p;
    if (p.p_type != PT_LOAD) continue;
    if (p.p_memsz < p.p_filesz || p.p_memsz > (uint64_t{1} << 40) || p.p_vaddr > (uint64_t{1} << 40) ||
        p.p_vaddr % 4096 != p.p_offset % 4096)
      return "a segment has no place in memory";
    segments.loads.push_back(p);
  }
  if (segments.loads.empty() || dynamic.p_filesz == 0) return "nothing in it is to be loaded";
  return check_dynamic(bytes, dynamic, segments);
}

std::string check_sections(std::string_view bytes, const Elf64_Ehdr& h) {
  if (h.e_shnum == 0) return {};
  if (h.e_shentsize != sizeof(Elf64_Shdr) || !within(h.e_shoff, uint64_t{h.e_shnum} * sizeof(Elf64_Shdr), bytes.size()))
    return "its sections are not in it";
  for (uint64_t i = 0; i < h.e_shnum; ++i) {
    const auto s = entry<Elf64_Shdr>(bytes, h.e_shoff, i);
    if (s.sh_type != SHT_NULL && s.sh_type != SHT_NOBITS && !within(s.sh_offset, s.sh_size, bytes.size()))
      return "a section ends behind the end of the file";
  }
  return {};
}

}  // namespace

std::string why_not_shared_object(std::string_view bytes) {
  Elf64_Ehdr h;
  if (bytes.size() < sizeof h) return "too short for an ELF file";
  std::memcpy(&h, bytes.data(), sizeof h);
  if (std::memcmp(h.e_ident, ELFMAG, SELFMAG) != 0) return "not an ELF file";
  if (h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_ident[EI_DATA] != ELFDATA2LSB || h.e_ident[EI_VERSION] != EV_CURRENT)
    return "an ELF file of another kind of machine";
#if defined(__x86_64__)
  constexpr Elf64_Half kMachine = EM_X86_64;
#elif defined(__aarch64__)
  constexpr Elf64_Half kMachine = EM_AARCH64;
#endif
  if (h.e_machine != kMachine) return "an ELF file of another kind of machine";
  if (h.e_type != ET_DYN) return "not a shared object";
  std::string why = check_segments(bytes, h);
  return why.empty() ? check_sections(bytes, h) : why;
}

}  // namespace flashover
