// A kernel binary in this process. Equal binaries are loaded once, however many plans hold them, and unloaded with the
// last.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace flashover::run {

class Library {
 public:
  static std::shared_ptr<Library> load(std::string_view elf);  // throws Declined
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  void* symbol(const std::string& name) const;  // throws Declined

 private:
  explicit Library(void* handle) : handle_(handle) {}
  void* handle_;
};

}  // namespace flashover::run
