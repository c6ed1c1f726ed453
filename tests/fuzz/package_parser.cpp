// A libFuzzer target: manifests and plans of packages, sealed with the checksums of what they are, so that coverage
// leads behind them. Input: u32 bytes of the manifest, the manifest, the plan's payload. What is read must end in a
// result or a UserError, under ASan and UBSan. tests/fuzz/package_parser.py builds and feeds it.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "package/check.h"
#include "package/choice.h"
#include "package/signature.h"
#include "plan/contents.h"

using namespace flashover;

static std::string sealed_plan(std::string payload) {
  ByteWriter w;
  w.out = "FLASHPLN";
  w.raw(plan::kFormatVersion, 4);
  w.raw(payload.size(), 8);
  w.hash(Hasher().bytes(payload.data(), payload.size()).finish());
  return w.out + payload;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint32_t bytes = 0;
  if (size < sizeof bytes) return 0;
  std::memcpy(&bytes, data, sizeof bytes);
  const std::string all(reinterpret_cast<const char*>(data) + sizeof bytes, size - sizeof bytes);
  if (bytes > all.size()) return 0;
  const std::string manifest = all.substr(0, bytes), plan = sealed_plan(all.substr(bytes));
  try {
    const aot::Manifest m = aot::decode(manifest);
    uint64_t weights = 0, prepared = 0;  // sections as large as it says, within reason
    for (const aot::Weight& w : m.weights)
      if (w.offset < 1 << 20 && w.bytes < 1 << 20) weights = std::max(weights, w.offset + w.bytes);
    std::vector<aot::Part> parts{{"manifest", {manifest}}};
    for (const aot::PackagedEntry& e : m.entries)
      for (const aot::PackagedPlan& p : e.plans) {
        parts.push_back({p.section, {plan}});
        for (const aot::Prepared& t : p.prepared)
          if (t.offset < 1 << 20 && t.bytes < 1 << 20) prepared = std::max(prepared, t.offset + t.bytes);
      }
    const std::string weight_bytes(weights, '\1'), prepared_bytes(prepared, '\1');
    parts.push_back({"weights", {weight_bytes}, true});
    parts.push_back({"prepared", {prepared_bytes}, true});
    const std::string file = aot::container_bytes(parts);
    std::vector<std::vector<plan::Plan>> plans;
    const aot::Manifest read = aot::check_package(aot::Container(aot::in_memory(file)), &plans);
    // What passed is looked at as a loader does, of a machine with a GPU and of one without.
    for (const bool cuda : {false, true}) {
      try {
        aot::choose(read, plans, {.why_not = [](const plan::Plan&) { return std::string(); }, .cuda = cuda}, {});
      } catch (const UserError&) {
      }
    }
    for (size_t i = 0; i < read.entries.size(); ++i)
      for (const plan::Plan& p : plans[i]) {
        const aot::EntrySignature signature(read.entries[i], p);
        plan::kept_frozen(p);
        plan::operators_called(p);
        try {
          signature.check({});
        } catch (const UserError&) {
        }
      }
  } catch (const UserError&) {
  }
  return 0;
}
