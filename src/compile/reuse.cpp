#include "compile/reuse.h"

#include <chrono>
#include <cstring>
#include <unordered_map>

#include "base/check.h"

namespace flashover::compile {
namespace {

std::string compiler_identity() {
  try {
    return kernel::find_compiler().identity;
  } catch (const Declined&) {
    return "none";
  }
}

void toolchain(Hasher& h) {
  const kernel::Target target = kernel::host_target();
  h.text(kernel::str(target)).text(compiler_identity()).text(program_identity());
  for (const std::string& flag : kernel::compiler_flags(target)) h.text(flag);
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

Hash128 plan_key(const graph::Graph& traced, const Options& options, const Environment& env) {
  Hasher h;
  const Hash128 g = graph::hash(traced);
  h.number(plan::kFormatVersion).number(g.lo).number(g.hi);
  for (const graph::Node& n : traced.nodes)
    h.text(n.location >= 0 ? traced.locations[static_cast<size_t>(n.location)] : "");
  for (const auto& [name, value] : options.values) h.text(name).text(value);
  const graph::Providers& p = env.providers;
  h.text(env.versions).number(static_cast<uint64_t>(env.threads));
  h.text(graph::describe(p));
  h.text(machine_identity());
  toolchain(h);
  return h.finish();
}

std::optional<plan::Plan> find_plan(Cache& cache, const Hash128& key) {
  const auto bytes = cache.get("plan", key);
  if (!bytes) return std::nullopt;
  try {
    return plan::deserialize(*bytes);
  } catch (const UserError&) {  // written by a program with a bug; what replaces it will be right
    return std::nullopt;
  }
}

void keep_plan(Cache& cache, const Hash128& key, const plan::Plan& plan) {
  cache.put("plan", key, plan::serialize(plan));
}

kernel::Compiled compile_kernels(std::span<const loops::Kernel> kernels, Cache& cache, int64_t& reused) {
  const auto start = std::chrono::steady_clock::now();
  Hasher tools;
  toolchain(tools);
  const Hash128 base = tools.finish();
  const kernel::Options options;

  struct Known {
    Hash128 key;
    int32_t binary = -1;  // of the result
  };
  kernel::Compiled out;
  std::unordered_map<std::string, Known> by_symbol;
  std::unordered_map<Hash128, int32_t> binary_of;  // -1: the cache does not have it
  std::vector<loops::Kernel> missing;
  std::vector<std::string> symbols;
  for (const loops::Kernel& k : kernels) {
    const kernel::Emitted e = kernel::emit(k, options.target);
    symbols.push_back(e.symbol);
    auto [known, fresh] = by_symbol.try_emplace(e.symbol);
    if (!fresh) continue;
    known->second.key = Hasher().number(base.lo).number(base.hi).text(e.symbol).text(e.body).text(e.entry).finish();
    if (const auto key = read_key(cache.get("kernel", known->second.key))) {
      auto [binary, first] = binary_of.try_emplace(*key, -1);
      if (first)
        if (auto bytes = cache.get("binary", *key)) {
          binary->second = static_cast<int32_t>(out.binaries.size());
          out.binaries.push_back({*key, std::move(*bytes)});
        }
      known->second.binary = binary->second;
    }
    if (known->second.binary >= 0)
      ++reused;
    else
      missing.push_back(k);
  }
  if (!missing.empty()) {
    kernel::Compiled built = kernel::compile(missing, options);
    const auto first = static_cast<int32_t>(out.binaries.size());
    for (const plan::Binary& b : built.binaries) cache.put("binary", b.key, b.bytes);
    for (const plan::Kernel& k : built.kernels) {
      Known& known = by_symbol.at(k.symbol);
      known.binary = first + k.binary;
      cache.put("kernel", known.key, write_key(built.binaries[static_cast<size_t>(k.binary)].key));
    }
    for (plan::Binary& b : built.binaries) out.binaries.push_back(std::move(b));
  }
  for (size_t i = 0; i < kernels.size(); ++i)
    out.kernels.push_back({symbols[i], by_symbol.at(symbols[i]).binary, kernels[i].errors, {}});
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return out;
}

}  // namespace flashover::compile
