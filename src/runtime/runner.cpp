// flashover-run: a package from the command line, with arrays in .npy files. A user of program.hpp like any other.
#include <flashover/program.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

using flashover::runtime::Array;
using flashover::runtime::Program;

constexpr const char* kUsage =
    "usage: flashover-run PACKAGE                                  what it holds\n"
    "       flashover-run PACKAGE [options] ARRAY.npy ...          one call\n"
    "  --entry NAME    of several\n"
    "  --out PREFIX    results go to PREFIX0.npy, PREFIX1.npy ...\n"
    "  --repeat N      that many calls more; says the median time of one in microseconds\n"
    "  --threads N     of a call's work\n"
    "  --device D      cpu, cuda or cuda:N; without it a CUDA device where there is one and the package is for it\n"
    "  --no-verify     no checksum of the weights' bytes\n"
    "  --signed-by PEM the file must be what the owner of this public key signed (PACKAGE.sig)\n";

struct NumpyType {
  const char* name;
  flashover_dtype dtype;
  size_t bytes;
};
constexpr NumpyType kTypes[] = {
    {"<f4", FLASHOVER_F32, 4},  {"<f8", FLASHOVER_F64, 8}, {"<f2", FLASHOVER_F16, 2},    {"<i8", FLASHOVER_I64, 8},
    {"<i4", FLASHOVER_I32, 4},  {"<i2", FLASHOVER_I16, 2}, {"|i1", FLASHOVER_I8, 1},     {"|u1", FLASHOVER_U8, 1},
    {"|b1", FLASHOVER_BOOL, 1}, {"<c8", FLASHOVER_C64, 8}, {"<c16", FLASHOVER_C128, 16},
};

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

struct File {
  std::FILE* f;
  File(const std::string& path, const char* mode) : f(std::fopen(path.c_str(), mode)) {
    if (!f) fail("cannot open " + path + ": " + std::strerror(errno));
  }
  ~File() { std::fclose(f); }
  File(const File&) = delete;
};

std::string read_whole(const std::string& path) {
  const File file(path, "rb");
  std::string out;
  char buffer[1 << 16];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, file.f)) out.append(buffer, n);
  return out;
}

// The text behind a key of the header: "'shape': (3, 4), " -> "(3, 4), ".
std::string_view after(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) fail("no .npy file");
  return header.substr(at + key.size());
}

struct Loaded {
  std::string bytes;
  Array array;
};

Loaded read_array(const std::string& path) {
  std::string bytes = read_whole(path);
  if (bytes.size() < 10 || bytes.compare(0, 6, "\x93NUMPY") != 0 || bytes[6] != 1) fail(path + " is no .npy file");
  const size_t length = static_cast<unsigned char>(bytes[8]) | static_cast<size_t>(static_cast<unsigned char>(bytes[9]))
                                                                   << 8;
  if (bytes.size() < 10 + length) fail(path + " is cut short");
  const std::string header = bytes.substr(10, length);
  if (after(header, "'fortran_order': ").substr(0, 5) != "False") fail(path + " is not stored row by row");
  std::string_view type = after(header, "'descr': '");
  type = type.substr(0, type.find('\''));
  const auto* known =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const NumpyType& t) { return type == t.name; });
  if (known == std::end(kTypes)) fail(path + " has a dtype that is not known here");
  std::vector<int64_t> sizes;
  int64_t count = 1;
  std::string_view shape = after(header, "'shape': (");
  for (shape = shape.substr(0, shape.find(')')); !shape.empty();) {
    int64_t n = 0;
    const auto [end, error] = std::from_chars(shape.data(), shape.data() + shape.size(), n);
    if (error != std::errc() || n < 0) fail(path + " has no shape");
    sizes.push_back(n);
    count *= n;
    const size_t next = shape.find_first_of("0123456789", static_cast<size_t>(end - shape.data()));
    shape = next == std::string_view::npos ? std::string_view() : shape.substr(next);
  }
  if (bytes.size() - 10 - length != static_cast<size_t>(count) * known->bytes)
    fail(path + " has another size than it says");
  bytes.erase(0, 10 + length);
  Loaded out{std::move(bytes), Array(nullptr, known->dtype, sizes)};
  out.array = Array(out.bytes.data(), known->dtype, std::move(sizes));
  return out;
}

void write_array(const std::string& path, const Array& a) {
  const auto* known =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const NumpyType& t) { return a.dtype() == t.dtype; });
  if (known == std::end(kTypes)) fail("a result has a dtype that .npy files do not know");
  std::string shape;
  for (int64_t s : a.sizes()) shape += std::to_string(s) + ", ";
  std::string header =
      "{'descr': '" + std::string(known->name) + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  header.append(63 - (10 + header.size()) % 64, ' ') += '\n';
  std::string bytes = std::string("\x93NUMPY\x01") + '\0' + static_cast<char>(header.size() & 255) +
                      static_cast<char>(header.size() >> 8) + header;
  std::vector<int64_t> at(a.sizes().size());
  for (int64_t i = 0, n = a.numel(); i < n; ++i) {  // row by row, whatever the strides
    int64_t offset = 0;
    for (size_t d = 0; d < at.size(); ++d) offset += at[d] * a.strides()[d];
    bytes.append(static_cast<const char*>(a.bytes()) + offset * static_cast<int64_t>(known->bytes), known->bytes);
    for (size_t d = at.size(); d-- > 0;) {
      if (++at[d] < a.sizes()[d]) break;
      at[d] = 0;
    }
  }
  const File file(path, "wb");
  if (std::fwrite(bytes.data(), 1, bytes.size(), file.f) != bytes.size()) fail("cannot write " + path);
}

struct Command {
  std::string package, entry, out;
  std::optional<std::string> key;  // whose signature it must have
  std::optional<Program::Device> device;
  int repeat = 0, threads = 0;
  bool verify = true;
  std::vector<std::string> files;
};

Command parse(int argc, char** argv) {
  Command c;
  const auto value = [&](int& i) -> std::string { return ++i < argc ? argv[i] : (fail(kUsage), ""); };
  const auto number = [&](int& i) {
    const std::string text = value(i);
    int n = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), n).ec != std::errc()) fail(kUsage);
    return n;
  };
  const auto device = [](const std::string& text) -> Program::Device {
    if (text == "cpu") return {FLASHOVER_CPU};
    int index = 0;
    const bool numbered = text.rfind("cuda:", 0) == 0;
    if (numbered && std::from_chars(text.data() + 5, text.data() + text.size(), index).ec != std::errc()) fail(kUsage);
    if (!numbered && text != "cuda") fail(kUsage);
    return {FLASHOVER_CUDA, index};
  };
  for (int i = 1; i < argc; ++i) {
    const std::string_view a = argv[i];
    if (a == "--entry")
      c.entry = value(i);
    else if (a == "--out")
      c.out = value(i);
    else if (a == "--repeat")
      c.repeat = number(i);
    else if (a == "--threads")
      c.threads = number(i);
    else if (a == "--signed-by")
      c.key = value(i);
    else if (a == "--device")
      c.device = device(value(i));
    else if (a == "--no-verify")
      c.verify = false;
    else if (a.substr(0, 2) == "--")
      fail(kUsage);
    else if (c.package.empty())
      c.package = a;
    else
      c.files.emplace_back(a);
  }
  if (c.package.empty()) fail(kUsage);
  return c;
}

void show(const Program& program) {
  for (const std::string& entry : program.entries()) {
    std::printf("%s\n", entry.c_str());
    for (const std::string& argument : program.arguments(entry)) std::printf("  %s\n", argument.c_str());
  }
}

long long microseconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration_cast<std::chrono::microseconds>(d).count();
}

Program program_of(const Command& c) {
  const Program::SignedBy by{c.key.value_or("")};
  if (c.device) return Program(c.package, *c.device, by, c.verify);
  return c.key ? Program(c.package, by, c.verify) : Program(c.package, c.verify);
}

void run(const Command& c) {
  using Clock = std::chrono::steady_clock;
  if (c.threads > 0) flashover_set_threads(c.threads);
  const auto start = Clock::now();
  const Program program = program_of(c);
  const auto loaded = Clock::now();
  if (c.files.empty() && c.out.empty()) return show(program);
  std::vector<Loaded> given;
  std::vector<Array> arguments;
  for (const std::string& path : c.files) given.push_back(read_array(path));
  for (const Loaded& l : given) arguments.emplace_back(l.bytes.data(), l.array.dtype(), l.array.sizes());
  const Program::Device device = program.device(c.entry);
  const std::vector<std::string> types = program.arguments(c.entry);
  for (size_t i = 0; i < arguments.size() && i < types.size(); ++i)
    if (types[i].find("@cuda") != std::string::npos) arguments[i] = arguments[i].to(device.kind, device.index);
  const auto before = Clock::now();
  std::vector<Array> results = program.run(arguments, c.entry);
  program.synchronize(c.entry);
  std::printf("load %lld us, first call %lld us", microseconds(loaded - start), microseconds(Clock::now() - before));
  std::vector<long long> times;
  for (int i = 0; i < c.repeat; ++i) {
    const auto begin = Clock::now();
    program.run(arguments, c.entry);
    program.synchronize(c.entry);
    times.push_back(microseconds(Clock::now() - begin));
  }
  std::sort(times.begin(), times.end());
  if (!times.empty()) std::printf(", then %lld us", times[times.size() / 2]);
  std::printf("\n");
  for (size_t i = 0; !c.out.empty() && i < results.size(); ++i)
    if (results[i].is_tensor() && results[i].device() != FLASHOVER_CPU) results[i] = results[i].to(FLASHOVER_CPU);
  for (size_t i = 0; !c.out.empty() && i < results.size(); ++i)
    if (results[i].is_tensor()) write_array(c.out + std::to_string(i) + ".npy", results[i]);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "flashover-run: %s\n", e.what());
    return 1;
  }
}
