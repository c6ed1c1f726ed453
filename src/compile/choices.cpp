// Read once, appended to with one write a line.
#include "compile/choices.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/diagnostics.h"
#include "base/text.h"

namespace flashover::compile {
namespace {

constexpr const char* kHeading = "flashover choices 1";

// Nothing where there is no such file.
std::optional<std::string> contents_of(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    if (errno == ENOENT) return std::nullopt;
    throw UserError("choices_file " + path + ": " + std::strerror(errno));
  }
  std::string text;
  char part[4096];
  ssize_t n;
  while ((n = ::read(file, part, sizeof part)) > 0 || (n < 0 && errno == EINTR))
    if (n > 0) text.append(part, static_cast<size_t>(n));
  const int failure = n < 0 ? errno : 0;
  ::close(file);
  if (failure) throw UserError("choices_file " + path + ": " + std::strerror(failure));
  return text;
}

std::string entry_of(std::string_view kind, const Hash128& key) { return std::string(kind) + "\t" + key.hex(); }

}  // namespace

ChoicesFile* ChoicesFile::at(const std::string& path, const std::string& written_by) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<ChoicesFile>> files;
  const std::lock_guard lock(mutex);
  const auto found = files.find(path);
  if (found != files.end()) return found->second.get();
  std::unique_ptr<ChoicesFile> file(new ChoicesFile(path));
  file->read(written_by);
  return files.emplace(path, std::move(file)).first->second.get();
}

void ChoicesFile::read(const std::string& written_by) {
  const auto text = contents_of(path_);
  if (!text || text->empty()) {
    append(std::string(kHeading) + "\n" + written_by + "\n");
    return;
  }
  const std::vector<std::string> lines = split(*text, '\n');
  if (lines[0] != kHeading) throw UserError("choices_file " + path_ + ": no file of choices");
  if (lines.size() > 1 && lines[1] != written_by)
    say("the choices of " + path_ + " were made by " + lines[1] + ", and this is " + written_by);
  for (size_t i = 2; i < lines.size(); ++i) {
    const size_t second = lines[i].find('\t', lines[i].find('\t') + 1);
    if (second == std::string::npos)
      throw UserError("choices_file " + path_ + ":" + std::to_string(i + 1) + ": no choice");
    choices_.emplace(lines[i].substr(0, second), lines[i].substr(second + 1));
  }
}

std::optional<std::string> ChoicesFile::find(std::string_view kind, const Hash128& key) {
  const std::lock_guard lock(mutex_);
  const auto at = choices_.find(entry_of(kind, key));
  return at == choices_.end() ? std::nullopt : std::optional(at->second);
}

void ChoicesFile::keep(std::string_view kind, const Hash128& key, std::string_view value) {
  const std::lock_guard lock(mutex_);
  const std::string entry = entry_of(kind, key);
  if (choices_.emplace(entry, value).second) append(entry + "\t" + std::string(value) + "\n");
}

void ChoicesFile::say_unknown(std::string_view kind, std::string_view value) {
  say("the choice of " + std::string(kind) + " in " + path_ +
      " is none of those that there are here: " + std::string(value));
}

void ChoicesFile::append(const std::string& text) {
  const int file = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const ssize_t done = file < 0 ? -1 : ::write(file, text.data(), text.size());
  const int failure = errno;
  if (file >= 0) ::close(file);
  if (done == static_cast<ssize_t>(text.size()) || cannot_write_) return;
  cannot_write_ = true;
  say("choices are not kept in " + path_ + ": " + std::strerror(failure));
}

}  // namespace flashover::compile
