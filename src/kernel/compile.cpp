// Kernels into few source files, each function once, and these into binaries.
#include <algorithm>
#include <chrono>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"
#include "kernel/kernel.h"

namespace flashover::kernel {
namespace {

// What every file begins with. Library functions must vanish into their callers.
constexpr const char* kHead = R"(#define inline inline __attribute__((always_inline))
extern "C" void* aligned_alloc(unsigned long, unsigned long);
extern "C" void free(void*);
struct Job { void* const* p; const long* s; const long* c; int error; };
)";

}  // namespace

std::string source_file(std::span<const Emitted> kernels) {
  std::string out = kHead, all;
  std::map<int, std::string> by_lanes;  // width -> functions; the ISA is the same for all
  std::unordered_set<std::string_view> seen;
  Isa isa = Isa::kScalar;
  for (const Emitted& e : kernels) {
    if (seen.insert(e.body_name).second) by_lanes[e.lanes.width] += e.body;
    if (seen.insert(e.symbol).second) by_lanes[e.lanes.width] += e.entry;
    if (e.lanes.isa != Isa::kScalar) isa = e.lanes.isa;
  }
  for (auto& [width, text] : by_lanes) all += text;
  if (std::string scalar = prelude(all, {}, "one"); !scalar.empty()) out += "namespace one {\n" + scalar + "}\n";
  for (auto& [width, text] : by_lanes) {
    Lanes lanes{width == 1 ? Isa::kScalar : isa, width};
    out += "namespace w" + std::to_string(width) + " {\n" + prelude(text, lanes) + text + "}\n";
  }
  return out;
}

Compiled compile(std::span<const loops::Kernel> kernels, const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<Emitted> distinct;
  std::unordered_map<std::string, size_t> number;  // symbol -> distinct
  std::vector<const loops::Kernel*> example;       // of distinct
  std::vector<size_t> which;
  for (const loops::Kernel& k : kernels) {
    Emitted e = emit(k, options.target);
    auto [it, fresh] = number.emplace(e.symbol, distinct.size());
    which.push_back(it->second);
    if (!fresh) continue;
    distinct.push_back(std::move(e));
    example.push_back(&k);
  }
  // Kernels with one body stay together. Long texts first, always to the lightest file: two to four bodies a file, and
  // files a multiple of the cores.
  std::vector<std::vector<size_t>> bodies;
  std::unordered_map<std::string_view, size_t> body_number;
  for (size_t i = 0; i < distinct.size(); ++i) {
    auto [it, fresh] = body_number.emplace(distinct[i].body_name, bodies.size());
    if (fresh) bodies.emplace_back();
    bodies[it->second].push_back(i);
  }
  const size_t cores = static_cast<size_t>(options.compile.jobs > 0 ? options.compile.jobs : usable_cores());
  size_t files = std::max<size_t>(1, (bodies.size() + 3) / 4);
  if (bodies.size() > cores) files = std::min((files + cores - 1) / cores * cores, bodies.size());
  if (bodies.size() <= cores) files = bodies.size();
  auto weight = [&](const std::vector<size_t>& b) { return distinct[b[0]].body.size() + 1500 + 200 * b.size(); };
  std::stable_sort(bodies.begin(), bodies.end(), [&](const auto& a, const auto& b) { return weight(a) > weight(b); });
  std::vector<size_t> load(files), object_of(distinct.size());
  std::vector<std::vector<Emitted>> groups(files);
  for (const auto& b : bodies) {
    size_t lightest = static_cast<size_t>(std::min_element(load.begin(), load.end()) - load.begin());
    load[lightest] += weight(b);
    for (size_t i : b) {
      object_of[i] = lightest;
      groups[lightest].push_back(distinct[i]);
    }
  }
  auto texts = [](const std::vector<std::vector<Emitted>>& g) {
    std::vector<std::string> sources;
    sources.reserve(g.size());
    for (const auto& kernels : g) sources.push_back(source_file(kernels));
    return sources;
  };
  std::vector<std::string> sources = texts(groups), failures;
  std::vector<std::string> objects = try_compile_sources(sources, options.target, options.compile, failures);
  // Compilers have bugs in vector code: what fails is compiled again alone, without vectors.
  std::vector<std::vector<Emitted>> again;
  for (size_t f = 0; f < failures.size(); ++f) {
    if (failures[f].empty()) continue;
    for (size_t i = 0; i < distinct.size(); ++i)
      if (object_of[i] == f) {
        object_of[i] = sources.size() + again.size();
        again.push_back({emit(*example[i], {Isa::kScalar})});
      }
  }
  if (!again.empty()) {
    std::vector<std::string> plain = texts(again);
    for (std::string& o : compile_sources(plain, options.target, options.compile)) objects.push_back(std::move(o));
    sources.insert(sources.end(), plain.begin(), plain.end());
  }
  Compiled out;
  std::string flags;
  for (const std::string& f : compiler_flags(options.target)) flags += f + " ";
  const std::string compiler = sources.empty() ? "" : find_compiler(options.compile.compiler).identity;
  std::vector<int32_t> binary(sources.size(), -1);
  for (size_t i = 0; i < sources.size(); ++i) {
    if (objects[i].empty()) continue;
    binary[i] = static_cast<int32_t>(out.binaries.size());
    out.binaries.push_back({Hasher().text(sources[i]).text(flags).text(compiler).finish(), std::move(objects[i])});
  }
  for (size_t i = 0; i < kernels.size(); ++i)
    out.kernels.push_back({distinct[which[i]].symbol, binary[object_of[which[i]]], kernels[i].errors, {}});
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return out;
}

}  // namespace flashover::kernel
