// Notices wait here until somebody can say them. Callers hold the host's lock or are single-threaded tests; the mutex
// is held for a push or a swap only.
#include "base/notice.h"

#include <cctype>
#include <mutex>
#include <utility>

namespace flashover {
namespace {
std::mutex& mutex() {
  static auto* m = new std::mutex;
  return *m;
}
std::vector<std::string>& waiting() {
  static auto* w = new std::vector<std::string>;
  return *w;
}
}  // namespace

void notice(std::string text) {
  const std::lock_guard lock(mutex());
  waiting().push_back(std::move(text));
}

std::vector<std::string> take_notices() {
  const std::lock_guard lock(mutex());
  return std::exchange(waiting(), {});
}

std::string cause_of(const std::string& text) {
  const auto in_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-'; };
  // Names that mkdtemp, gcc and Python's tempfile draw.
  const auto drawn = [](const std::string& name) {
    return name.starts_with("flashover-") || (name.starts_with("cc") && name.size() == 8) ||
           (name.starts_with("tmp") && name.size() == 11);
  };
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (!in_name(text[i])) {
      out += text[i++];
      continue;
    }
    std::string name;
    while (i < text.size() && in_name(text[i])) name += text[i++];
    if (drawn(name)) {
      out += '*';
      continue;
    }
    for (size_t k = 0; k < name.size(); ++k)
      if (!std::isdigit(static_cast<unsigned char>(name[k])))
        out += name[k];
      else if (out.empty() || out.back() != '#')
        out += '#';
  }
  return out;
}

}  // namespace flashover
