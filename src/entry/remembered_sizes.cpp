// The table is text, a line a fact; it lies in the folder of the disk cache, which is ours alone.
#include "entry/remembered_sizes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/decimal.h"
#include "base/notice.h"
#include "base/options.h"
#include "base/safe_path.h"
#include "compile/cache.h"
#include "entry/torch_config.h"
#include "frame/resume.h"

namespace flashover::entry {
namespace {

constexpr std::string_view kFirstLine = "flashover: sizes that change, 1";
constexpr size_t kLargestFile = 1 << 20, kLongestPath = 500, kMostSites = 4096, kMostDims = 64;
const std::string kFileName = "changing_sizes.txt";

// The next word of a line, up to a blank.
std::string_view take_word(std::string_view& line) {
  const size_t end = std::min(line.find(' '), line.size());
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

bool is_key(std::string_view word) {
  return word.size() == 32 && word.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}
// What a line can hold.
bool is_path(std::string_view path) {
  return !path.empty() && path.size() <= kLongestPath &&
         std::ranges::none_of(path, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 127; });
}

std::optional<std::string> read_whole(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // (there may be a pipe)
  struct stat s;
  if (fd < 0 || ::fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) return std::nullopt;
  std::string text(kLargestFile + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t n = ::read(fd, text.data() + size, text.size() - size);
    if (n < 0) return std::nullopt;
    if (n == 0) break;
    size += static_cast<size_t>(n);
  }
  if (size > kLargestFile) return std::nullopt;
  text.resize(size);
  return text;
}

// What stood in the folder when this process looked there first, and in a file that the user named.
const ChangeTable& read_once(const std::string& directory, const std::string& file) {
  static std::map<std::pair<std::string, std::string>, ChangeTable> known;  // GIL held
  const auto [it, first] = known.try_emplace({directory, file});
  if (!first) return it->second;
  const std::optional<std::string> text =
      file.empty() ? compile::Cache::at(directory).read_text(kFileName, kLargestFile) : read_whole(file);
  std::optional<ChangeTable> table = text ? ChangeTable::parse(*text) : std::nullopt;
  if (table)
    it->second = std::move(*table);
  else if (!file.empty())
    notice("flashover: " + file +
           " is not used: " + (text ? "it is no file of sizes that change" : "it cannot be read, or is too large"));
  return it->second;
}

// Reads what other processes wrote meanwhile, changes it, writes it.
template <typename Change>
void rewrite(const std::string& directory, const Change& change) {
  compile::Cache& cache = compile::Cache::at(directory);
  const std::optional<std::string> text = cache.read_text(kFileName, kLargestFile);
  ChangeTable table = (text ? ChangeTable::parse(*text) : std::nullopt).value_or(ChangeTable());
  if (!change(table)) return;
  if (const std::string made = table.print(); made.size() <= kLargestFile) cache.write_text(kFileName, made);
}

void add_object(Hasher& h, PyObject* o);

void add_code(Hasher& h, PyObject* object) {
  auto* code = reinterpret_cast<PyCodeObject*>(object);
  PyObject* bytes = PyCode_GetCode(code);  // as it was compiled
  if (bytes) h.text({PyBytes_AS_STRING(bytes), static_cast<size_t>(PyBytes_GET_SIZE(bytes))});
  Py_XDECREF(bytes);
  add_object(h, code->co_qualname);
  add_object(h, code->co_names);
  add_object(h, code->co_localsplusnames);
  add_object(h, code->co_consts);
}

// (Sets are left out, whose order is another one in each process.)
void add_object(Hasher& h, PyObject* o) {
  h.text(Py_TYPE(o)->tp_name);
  if (PyCode_Check(o)) return add_code(h, o);
  if (PyTuple_CheckExact(o)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) add_object(h, PyTuple_GET_ITEM(o, i));
    return;
  }
  if (!PyUnicode_CheckExact(o) && !PyLong_CheckExact(o) && !PyFloat_CheckExact(o) && !PyBytes_CheckExact(o)) return;
  PyObject* text = PyObject_Repr(o);
  Py_ssize_t size = 0;
  if (const char* utf8 = text ? PyUnicode_AsUTF8AndSize(text, &size) : nullptr)
    h.text({utf8, static_cast<size_t>(size)});
  PyErr_Clear();
  Py_XDECREF(text);
}

// The classes of a module and of all in it: one forward serves many (Sequential's does).
void add_module(Hasher& h, PyObject* module, int depth) {
  constexpr int kDeepest = 64;
  h.text(Py_TYPE(module)->tp_name);
  PyObject* const own = depth < kDeepest ? PyObject_GenericGetDict(module, nullptr) : nullptr;
  PyObject* const parts = own ? PyDict_GetItemString(own, "_modules") : nullptr;
  PyErr_Clear();
  PyObject *key = nullptr, *part = nullptr;
  if (parts && PyDict_Check(parts))
    for (Py_ssize_t at = 0; PyDict_Next(parts, &at, &key, &part);) {
      add_object(h, key);
      if (part != Py_None) add_module(h, part, depth + 1);
    }
  h.number(0);
  Py_XDECREF(own);
}

bool switched_off() {
  static const bool off = [] {
    const char* variable = std::getenv("FLASHOVER_REMEMBER_SIZES");
    return variable && std::string_view(variable) == "0";
  }();
  return off;
}

}  // namespace

std::optional<ChangeTable> ChangeTable::parse(std::string_view text) {
  ChangeTable out;
  bool first = true;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return std::nullopt;  // cut off
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (std::exchange(first, false)) {
      if (line != kFirstLine) return std::nullopt;
      continue;
    }
    const std::string_view site = take_word(line), kind = take_word(line);
    const bool size = kind == "size";
    const auto dim = size ? parse_number<size_t>(take_word(line)) : std::optional<size_t>(0);
    if (!is_key(site) || !(size || kind == "number") || !dim || *dim >= kMostDims || !is_path(line))
      return std::nullopt;
    Changing& c = out.sites_[std::string(site)];
    if (size)
      c.dims[std::string(line)].insert(*dim);
    else
      c.numbers.insert(std::string(line));
  }
  return first ? std::nullopt : std::optional(std::move(out));
}

std::string ChangeTable::print() const {
  std::string out = std::string(kFirstLine) + "\n";
  for (const auto& [site, changing] : sites_) {
    for (const auto& [path, dims] : changing.dims)
      for (const size_t dim : dims) out += site + " size " + std::to_string(dim) + " " + path + "\n";
    for (const std::string& path : changing.numbers) out += site + " number " + path + "\n";
  }
  return out;
}

const Changing* ChangeTable::find(const Hash128& site) const {
  const auto it = sites_.find(site.hex());
  return it == sites_.end() ? nullptr : &it->second;
}

bool ChangeTable::add(const Hash128& site, const Changing& changing) {
  const std::string key = site.hex();
  if (!sites_.contains(key) && sites_.size() >= kMostSites) sites_.clear();  // most of it is long out of use
  Changing& c = sites_[key];
  const Changing before = c;
  for (const auto& [path, dims] : changing.dims)
    for (const size_t dim : dims)
      if (is_path(path) && dim < kMostDims) c.dims[path].insert(dim);
  for (const std::string& path : changing.numbers)
    if (is_path(path)) c.numbers.insert(path);
  return !(c == before);
}

Hash128 site_of(PyObject* code, PyObject* module, int next) {
  Hasher h;
  add_code(h, code);
  h.number(static_cast<uint64_t>(next));
  if (module && frame::is_module(module)) add_module(h, module, 0);
  return h.finish();
}

SizeMemory::SizeMemory(const Settings& settings) {
  const OptionValues& options = settings.options.values;
  on_ = dynamic_of(settings) != false && settings.backend == "flashover" && !settings.custom && !switched_off() &&
        bool_option(options, "remember_sizes") && bool_option(options, "cache");
  if (!on_) return;
  directory_ = option(options, "cache_dir");
  file_ = option(options, "sizes_file");
}

void SizeMemory::recall(const Hash128& site, frame::VaryingSizes& sizes,
                        std::unordered_set<std::string>& numbers) const {
  if (!on_) return;
  std::vector<const ChangeTable*> tables{&read_once(directory_, "")};
  if (!file_.empty()) tables.push_back(&read_once(directory_, file_));
  for (const ChangeTable* table : tables)
    if (const Changing* c = table->find(site)) {
      for (const auto& [path, dims] : c->dims) sizes.dims[path].insert(dims.begin(), dims.end());
      numbers.insert(c->numbers.begin(), c->numbers.end());
    }
}

void SizeMemory::remember(const Hash128& site, const frame::VaryingSizes& sizes,
                          const std::unordered_set<std::string>& numbers) const {
  if (!on_ || (sizes.dims.empty() && numbers.empty())) return;
  const Changing changing{{sizes.dims.begin(), sizes.dims.end()}, {numbers.begin(), numbers.end()}};
  rewrite(directory_, [&](ChangeTable& table) { return table.add(site, changing); });
}

void SizeMemory::forget(const Hash128& site) const {
  if (!on_) return;
  rewrite(directory_, [&](ChangeTable& table) {
    const bool known = table.find(site) != nullptr;
    table.forget(site);
    return known;
  });
}

}  // namespace flashover::entry
