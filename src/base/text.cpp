#include "base/text.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace flashover {

std::string write_text_file(const std::string& path, std::string_view text) {
  std::FILE* f = std::fopen(path.c_str(), "wb");
  if (!f) return std::strerror(errno);
  bool ok = std::fwrite(text.data(), 1, text.size(), f) == text.size();
  int code = errno;
  if (std::fclose(f) != 0 && ok) {
    ok = false;
    code = errno;
  }
  return ok ? "" : std::strerror(code);
}

bool read_text_file(const std::string& path, std::string& text) {
  text.clear();
  std::FILE* f = std::fopen(path.c_str(), "rb");
  if (!f) return false;
  char block[1 << 16];
  size_t n;
  while ((n = std::fread(block, 1, sizeof block, f)) > 0) text.append(block, n);
  bool ok = !std::ferror(f);
  std::fclose(f);
  return ok;
}

}  // namespace flashover
