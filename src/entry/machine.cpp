// Asks the disk cache for the probe's answer, or probes and keeps it.
#include "entry/machine.h"

#include <torch/headeronly/version.h>

#include <cstdlib>
#include <mutex>
#include <optional>

#include "run/probe.h"

namespace flashover::entry {

const target::Providers& machine_providers(compile::Cache& cache) {
  static std::mutex mutex;
  static std::optional<target::Providers> measured;
  std::lock_guard lock(mutex);
  if (measured) return *measured;
  Hasher h;
  h.text(compile::machine_identity()).text(TORCH_VERSION);
  // What the libraries may use of the processor, which they read as well.
  for (const char* name :
       {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"}) {
    const char* limit = std::getenv(name);
    h.text(limit ? limit : "");
  }
  const Hash128 key = h.finish();
  if (const auto bytes = cache.get("probe", key)) measured = run::parse_providers(*bytes);
  if (!measured) {
    measured = run::probe();
    cache.put("probe", key, run::write(*measured));
  }
  return *measured;
}

target::Providers machine_providers(compile::Cache& cache, compile::ChoicesFile* choices) {
  constexpr const char* kMachine = "machine";
  if (!choices) return machine_providers(cache);
  const Hash128 key = Hasher().text(TORCH_VERSION).finish();
  if (const auto chosen = choices->find(kMachine, key)) {
    if (auto found = run::parse_providers(*chosen)) return *found;
    choices->say_unknown(kMachine, *chosen);
  }
  const target::Providers& measured = machine_providers(cache);
  choices->keep(kMachine, key, run::write(measured));
  return measured;
}

}  // namespace flashover::entry
