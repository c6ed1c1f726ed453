// The ELF tables of a cubin, read once from front to back.
#include "package/cubin.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/decimal.h"

namespace flashover::aot {
namespace {

constexpr uint16_t kCudaMachine = 190;  // EM_CUDA

class Cubin {
 public:
  explicit Cubin(std::string_view bytes) : bytes_(bytes) {}

  std::string why_not(int architecture, const std::set<std::string>& symbols) {
    if (!read(0, header_) || std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0 ||
        header_.e_ident[EI_CLASS] != ELFCLASS64 || header_.e_ident[EI_DATA] != ELFDATA2LSB ||
        header_.e_machine != kCudaMachine)
      return "it is none";
    if (built_for() != architecture) return "it is for sm_" + std::to_string(built_for());
    if (!read_table(header_.e_shoff, header_.e_shnum, header_.e_shentsize, sections_) || sections_.empty())
      return "its sections";
    std::vector<Elf64_Phdr> segments;
    if (!read_table(header_.e_phoff, header_.e_phnum, header_.e_phentsize, segments)) return "its segments";
    for (const Elf64_Phdr& s : segments)
      if (!inside(s.p_offset, s.p_filesz)) return "a segment is cut short";
    for (const Elf64_Shdr& s : sections_)
      if (s.sh_type != SHT_NOBITS && !inside(s.sh_offset, s.sh_size)) return "a section is cut short";
    if (header_.e_shstrndx >= sections_.size()) return "its names";
    for (const Elf64_Shdr& s : sections_)
      if (!name(header_.e_shstrndx, s.sh_name)) return "the name of a section";
    return why_not_symbols(symbols);
  }

 private:
  bool inside(uint64_t offset, uint64_t size) const {
    return offset <= bytes_.size() && size <= bytes_.size() - offset;
  }
  template <typename T>
  bool read(uint64_t offset, T& to) const {
    if (!inside(offset, sizeof(T))) return false;
    std::memcpy(&to, bytes_.data() + offset, sizeof(T));
    return true;
  }
  template <typename T>
  bool read_table(uint64_t offset, uint64_t count, uint64_t entry, std::vector<T>& to) const {
    if (count == 0) return true;
    if (entry != sizeof(T) || !inside(offset, count * sizeof(T))) return false;
    to.resize(count);
    std::memcpy(to.data(), bytes_.data() + offset, count * sizeof(T));
    return true;
  }
  // Where it lies among the flags depends on the version of the format.
  int built_for() const {
    const uint32_t flags = header_.e_flags;
    return static_cast<int>((header_.e_ident[EI_ABIVERSION] >= 8 ? flags >> 8 : flags) & 0xff);
  }
  // What begins there in a section of texts, if it ends there as well.
  std::optional<std::string_view> name(size_t section, uint32_t at) const {
    const Elf64_Shdr& s = sections_[section];
    if (s.sh_type != SHT_STRTAB || at >= s.sh_size) return std::nullopt;
    const std::string_view rest = bytes_.substr(s.sh_offset + at, s.sh_size - at);
    const size_t end = rest.find('\0');
    if (end == std::string_view::npos) return std::nullopt;
    return rest.substr(0, end);
  }
  std::string why_not_symbols(const std::set<std::string>& wanted) const {
    std::set<std::string> found;
    for (const Elf64_Shdr& s : sections_) {
      if (s.sh_type != SHT_SYMTAB) continue;
      std::vector<Elf64_Sym> table;
      if (s.sh_link >= sections_.size() || s.sh_size % sizeof(Elf64_Sym) != 0 ||
          !read_table(s.sh_offset, s.sh_size / sizeof(Elf64_Sym), s.sh_entsize, table))
        return "its symbols";
      for (const Elf64_Sym& symbol : table) {
        const auto text = name(s.sh_link, symbol.st_name);
        if (!text) return "the name of a symbol";
        if (symbol.st_shndx >= sections_.size() && symbol.st_shndx < SHN_LORESERVE) return "the section of a symbol";
        if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx >= sections_.size()) continue;
        if (symbol.st_value > sections_[symbol.st_shndx].sh_size ||
            symbol.st_size > sections_[symbol.st_shndx].sh_size - symbol.st_value)
          return "a function is cut short";
        found.insert(std::string(*text));
      }
    }
    for (const std::string& symbol : wanted)
      if (!found.contains(symbol)) return "it has no kernel " + symbol.substr(0, 200);
    return "";
  }

  std::string_view bytes_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Shdr> sections_;
};

}  // namespace

int cubin_architecture(std::string_view target) {
  if (!target.starts_with("sm_")) return 0;
  const auto number = parse_number<int>(target.substr(3));
  return number && *number >= 50 && *number < 256 ? *number : 0;
}

std::string why_no_cubin(std::string_view bytes, int architecture, const std::set<std::string>& symbols) {
  return Cubin(bytes).why_not(architecture, symbols);
}

}  // namespace flashover::aot
