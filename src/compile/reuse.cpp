// The keys: what a plan and a binary depend on, the compiler among it. A key that lacks something is a wrong result.
#include "compile/reuse.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "base/check.h"
#include "base/elf.h"
#include "base/interrupt.h"
#include "base/options.h"
#include "graph/checkpoint.h"
#include "kernel/triton/toolchain.h"

namespace flashover::compile {
namespace {

// Where the cache remembers the compiler that filled it.
Hash128 compiler_key(const std::string& wish) {
  const char* named = std::getenv("CXX");
  return Hasher().text("compiler").text(wish).text(named ? named : "").finish();
}

std::string compiler_identity(const std::string& wish, Cache& cache) {
  try {
    return kernel::find_compiler(wish).identity;
  } catch (const Declined&) {
    return cache.get("compiler", compiler_key(wish)).value_or("none");
  }
}

void remember_compiler(const std::string& wish, Cache& cache) {
  try {
    const std::string identity = kernel::find_compiler(wish).identity;
    if (cache.get("compiler", compiler_key(wish)) != identity) cache.put("compiler", compiler_key(wish), identity);
  } catch (const Declined&) {  // what was built came from the cache
  }
}

void toolchain(Hasher& h, const std::string& compiler, Cache& cache) {
  const kernel::Target target = kernel::host_target();
  h.text(kernel::str(target)).text(compiler_identity(compiler, cache)).text(program_identity());
  for (const std::string& flag : kernel::compiler_flags(target)) h.text(flag);
}

// Binaries that are whole; others would end the process when they are loaded.
bool sound(const plan::Plan& p) {
  if (p.device.type != DeviceType::kCPU) return true;
  return std::all_of(p.binaries.begin(), p.binaries.end(),
                     [](const plan::Binary& b) { return why_not_shared_object(b.bytes).empty(); });
}

// A kernel's entry: the key of the binary that holds it.
std::string write_key(const Hash128& key) {
  std::string out(16, '\0');
  std::memcpy(out.data(), &key.lo, 8);
  std::memcpy(out.data() + 8, &key.hi, 8);
  return out;
}
std::optional<Hash128> read_key(const std::optional<std::string>& bytes) {
  if (!bytes || bytes->size() != 16) return std::nullopt;
  Hash128 key;
  std::memcpy(&key.lo, bytes->data(), 8);
  std::memcpy(&key.hi, bytes->data() + 8, 8);
  return key;
}

}  // namespace

Hash128 plan_key(const graph::Graph& traced, const Options& options, const CompileTarget& env, Cache& cache) {
  Hasher h;
  const Hash128 g = graph::hash(traced);
  h.number(plan::kFormatVersion).number(g.lo).number(g.hi);
  for (const graph::Node& n : traced.nodes)
    h.text(n.location >= 0 ? graph::str(traced.facts.locations[static_cast<size_t>(n.location)]) : "");
  for (const auto& [name, value] : options.values) h.text(name).text(value);
  const target::Providers& p = env.providers;
  h.text(env.versions).number(static_cast<uint64_t>(env.threads));
  h.text(target::describe(p));
  if (env.gpu)
    h.text(kernel::triton::str(*env.gpu))
        .number(static_cast<uint64_t>(env.gpu->processors))
        .text(kernel::triton::command().version);
  h.text(machine_identity());
  toolchain(h, option(options.values, "compiler"), cache);
  return h.finish();
}

std::optional<plan::Plan> find_plan(Cache& cache, const Hash128& key) {
  const auto bytes = cache.get("plan", key);
  if (!bytes) return std::nullopt;
  try {
    plan::Plan plan = plan::deserialize(*bytes);
    if (!sound(plan)) return std::nullopt;
    return plan;
  } catch (const UserError&) {  // written by a program with a bug; what replaces it will be right
    return std::nullopt;
  }
}

void keep_plan(Cache& cache, const Hash128& key, const plan::Plan& plan, const std::string& compiler, Report& report) {
  report.keep.emplace_back([&cache, key, compiler, bytes = plan::serialize(plan)] {
    remember_compiler(compiler, cache);
    cache.put("plan", key, bytes);
  });
}

namespace {
// A cubin's entry in the cache: shared, scratch, warps, the length of the symbol, the symbol, the cubin.
std::string write_cubin(const std::string& symbol, const kernel::triton::Cubin& c) {
  const int64_t numbers[] = {c.shared, c.scratch, c.warps, static_cast<int64_t>(symbol.size())};
  return std::string(reinterpret_cast<const char*>(numbers), sizeof numbers) + symbol + c.bytes;
}
bool read_cubin(const std::string& bytes, std::string& symbol, kernel::triton::Cubin& c) {
  int64_t numbers[4];
  if (bytes.size() < sizeof numbers) return false;
  std::memcpy(numbers, bytes.data(), sizeof numbers);
  const auto size = static_cast<uint64_t>(numbers[3]);
  if (size > bytes.size() - sizeof numbers) return false;
  symbol = bytes.substr(sizeof numbers, size);
  c = {bytes.substr(sizeof numbers + size), static_cast<int32_t>(numbers[0]), numbers[1],
       static_cast<int32_t>(numbers[2]), ""};
  return !c.bytes.empty();
}
}  // namespace

kernel::Compiled compile_kernels(std::span<const loops::Kernel> kernels, const kernel::triton::Gpu& gpu, Cache* cache,
                                 int64_t& reused, std::vector<std::pair<std::string, std::string>>* texts,
                                 std::span<const loops::Product> products) {
  namespace triton = kernel::triton;
  const auto start = std::chrono::steady_clock::now();
  kernel::Compiled out;
  std::vector<triton::TritonSource> sources, missing;
  std::vector<Hash128> keys;
  std::vector<size_t> missing_at;
  std::unordered_map<Hash128, size_t> first;  // kernel with that key
  const size_t count = kernels.size() + products.size();
  out.kernels.resize(count);
  for (size_t i = 0; i < count; ++i) {
    check_interrupt();
    const bool product = i >= kernels.size();
    sources.push_back(product ? triton::emit(products[i - kernels.size()], gpu) : triton::emit(kernels[i], gpu));
    if (texts) texts->emplace_back(sources[i].name, sources[i].text);
    const Hash128 text = triton::key(sources[i]);
    keys.push_back(
        Hasher().number(text.lo).number(text.hi).text(triton::str(gpu)).text(triton::command().version).finish());
    if (!product) out.kernels[i].errors = kernels[i].errors;
    out.kernels[i].cuda = sources[i].launch;
  }
  auto finish = [&](size_t i, std::string symbol, triton::Cubin c) {
    plan::Kernel& k = out.kernels[i];
    k.symbol = std::move(symbol);
    k.binary = static_cast<int32_t>(out.binaries.size());
    k.cuda.shared = c.shared;
    k.cuda.scratch = c.scratch;
    k.cuda.threads = 32 * c.warps;
    out.binaries.push_back({keys[i], std::move(c.bytes)});
  };
  for (size_t i = 0; i < count; ++i) {
    if (!first.try_emplace(keys[i], i).second) continue;
    std::string symbol;
    triton::Cubin c;
    if (const auto bytes = cache ? cache->get("cubin", keys[i]) : std::nullopt;
        bytes && read_cubin(*bytes, symbol, c)) {
      finish(i, std::move(symbol), std::move(c));
      ++reused;
    } else {
      missing.push_back(sources[i]);
      missing_at.push_back(i);
    }
  }
  std::vector<triton::Cubin> built = triton::build(missing, gpu);
  for (size_t m = 0; m < built.size(); ++m) {
    if (built[m].bytes.empty()) throw Declined("Triton cannot compile " + missing[m].name + ": " + built[m].error);
    if (cache) cache->put("cubin", keys[missing_at[m]], write_cubin(missing[m].name, built[m]));
    finish(missing_at[m], missing[m].name, std::move(built[m]));
  }
  for (size_t i = 0; i < count; ++i) {
    const size_t same = first.at(keys[i]);
    if (same == i) continue;
    const plan::Kernel& k = out.kernels[same];
    out.kernels[i].symbol = k.symbol;
    out.kernels[i].binary = k.binary;
    // The same code; how many programs of it run is this kernel's own.
    out.kernels[i].cuda.shared = k.cuda.shared;
    out.kernels[i].cuda.scratch = k.cuda.scratch;
    out.kernels[i].cuda.threads = k.cuda.threads;
  }
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return out;
}

Hash128 training_key(const Hash128& plan_key, const graph::Joint& facts) {
  Hasher h;
  const auto list = [&](const auto& l) {
    h.number(l.size());
    for (const auto n : l) h.number(static_cast<uint64_t>(static_cast<int64_t>(n)));
  };
  h.text("training 4").number(plan_key.lo).number(plan_key.hi).number(facts.results.size()).number(facts.zeros);
  for (const graph::Joint::Result& r : facts.results)
    list(std::vector<int64_t>{r.requires_grad, r.tangent, r.view_of_input, r.one_of_several, r.saved});
  list(facts.extra);
  list(facts.tangents);
  list(facts.gradients);
  for (const auto& d : facts.depends) list(d);
  list(facts.saved_inputs);
  return h.finish();
}

// One entry: how long the signature and the plans are, signature, plan, plan, text.
std::optional<Training> find_training(Cache& cache, const Hash128& key) {
  const auto bytes = cache.get("training", key);
  if (!bytes) return std::nullopt;
  uint64_t sizes[3];
  if (bytes->size() < sizeof sizes) return std::nullopt;
  std::memcpy(sizes, bytes->data(), sizeof sizes);
  std::string_view rest = std::string_view(*bytes).substr(sizeof sizes);
  if (sizes[0] > rest.size() / sizeof(int64_t)) return std::nullopt;
  std::vector<int64_t> signature(sizes[0]);
  if (!signature.empty()) std::memcpy(signature.data(), rest.data(), signature.size() * sizeof(int64_t));
  rest.remove_prefix(signature.size() * sizeof(int64_t));
  if (sizes[1] > rest.size() || sizes[2] > rest.size() - sizes[1]) return std::nullopt;
  try {
    Training t;
    graph::decode(signature, t.signature);
    t.forward = plan::deserialize(rest.substr(0, sizes[1]));
    t.backward = plan::deserialize(rest.substr(sizes[1], sizes[2]));
    t.backward_graph = rest.substr(sizes[1] + sizes[2]);
    if (!sound(t.forward) || !sound(t.backward)) return std::nullopt;
    return t;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

void keep_training(Cache& cache, const Hash128& key, const Training& training, const std::string& compiler,
                   Report& report) {
  const std::vector<int64_t> signature = graph::encode(training.signature);
  const std::string forward = plan::serialize(training.forward), backward = plan::serialize(training.backward);
  const uint64_t sizes[3] = {signature.size(), forward.size(), backward.size()};
  std::string bytes(reinterpret_cast<const char*>(sizes), sizeof sizes);
  bytes.append(reinterpret_cast<const char*>(signature.data()), signature.size() * sizeof(int64_t));
  bytes += forward + backward + training.backward_graph;
  report.keep.emplace_back([&cache, key, compiler, bytes = std::move(bytes)] {
    remember_compiler(compiler, cache);
    cache.put("training", key, bytes);
  });
}

kernel::Compiled compile_kernels(std::span<const loops::Kernel> kernels, Cache& cache,
                                 const kernel::CompileOptions& compile_options, Report& report) {
  const auto start = std::chrono::steady_clock::now();
  Hasher tools;
  toolchain(tools, compile_options.compiler, cache);
  const Hash128 base = tools.finish();
  const kernel::Options options{.compile = compile_options};

  struct CachedKernel {
    Hash128 key;
    int32_t binary = -1;  // of the result
  };
  kernel::Compiled out;
  std::unordered_map<std::string, CachedKernel> by_symbol;
  std::unordered_map<Hash128, int32_t> binary_of;  // -1: the cache does not have it
  std::vector<loops::Kernel> missing;
  std::vector<std::string> symbols;
  for (const loops::Kernel& k : kernels) {
    check_interrupt();
    const kernel::Emitted e = kernel::emit(k, options.target);
    symbols.push_back(e.symbol);
    auto [cached, fresh] = by_symbol.try_emplace(e.symbol);
    if (!fresh) continue;
    cached->second.key = Hasher().number(base.lo).number(base.hi).text(e.symbol).text(e.body).text(e.entry).finish();
    if (const auto key = report.rebuild ? std::nullopt : read_key(cache.get("kernel", cached->second.key))) {
      auto [binary, first] = binary_of.try_emplace(*key, -1);
      if (first)
        if (auto bytes = cache.get("binary", *key); bytes && why_not_shared_object(*bytes).empty()) {
          binary->second = static_cast<int32_t>(out.binaries.size());
          out.binaries.push_back({*key, std::move(*bytes)});
        }
      cached->second.binary = binary->second;
    }
    if (cached->second.binary >= 0)
      ++report.kernels_reused;
    else
      missing.push_back(k);
  }
  if (!missing.empty()) {
    kernel::Compiled built = kernel::compile(missing, options);
    const auto first = static_cast<int32_t>(out.binaries.size());
    std::vector<std::pair<Hash128, Hash128>> binary_keys;  // kernel -> binary
    for (const plan::Kernel& k : built.kernels) {
      CachedKernel& cached = by_symbol.at(k.symbol);
      cached.binary = first + k.binary;
      binary_keys.emplace_back(cached.key, built.binaries[static_cast<size_t>(k.binary)].key);
    }
    report.keep.emplace_back([&cache, binary_keys = std::move(binary_keys), binaries = built.binaries] {
      for (const plan::Binary& b : binaries) cache.put("binary", b.key, b.bytes);
      for (const auto& [kernel, binary] : binary_keys) cache.put("kernel", kernel, write_key(binary));
    });
    for (plan::Binary& b : built.binaries) out.binaries.push_back(std::move(b));
  }
  for (size_t i = 0; i < kernels.size(); ++i)
    out.kernels.push_back({symbols[i], by_symbol.at(symbols[i]).binary, kernels[i].errors, {}});
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return out;
}

}  // namespace flashover::compile
