// Hostile packages: whatever the bytes, checking one ends in a result or a UserError. FLASHOVER_FUZZ_PACKAGES: how many
// of each kind (2,000; the long mode: 1,000,000, under ./x asan).
#include "aot/package.h"

#include <ATen/ops/ones.h>
#include <elf.h>
#include <gtest/gtest.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>

#include "base/bytes.h"
#include "package/check.h"
#include "package/choice.h"
#include "package/cubin.h"

namespace flashover::aot {
namespace {

constexpr const char* kPlan = R"(plan "x86-64" {
  arena 0
  input 0 : f32[s0,3] user
  input 1 : f32[3] param
  t0 : f32[s0,3] = input 0
  t1 : f32[3] = input 1
  t2 : f32[s0,3] = output 0
  call out aten.add.out(t0, t1, 1) -> t2
  return t2 : f32[s0,3]
}
)";

struct Sample {
  std::string manifest, plan, weights;
  Sample() {
    plan = plan::serialize(plan::parse(kPlan));
    Manifest m;
    m.torch = TORCH_VERSION;
    m.weights.push_back({.name = "bias", .dtype = DType::kF32, .sizes = {3}, .strides = {1}, .bytes = 12});
    PackagedEntry e;
    e.name = "forward";
    e.plans = {{"plan forward", {}}};
    e.inputs = {{Binding::Kind::kArgument, 0, ""}, {Binding::Kind::kWeight, 0, ""}};
    e.arguments = {{"x", true, "", -1}, {"n", false, "4", -1}};
    e.results = {{Binding::Kind::kOutput, 0, ""}, {Binding::Kind::kValue, -1, "null"}};
    e.guards = {parse_guard("<=", "s0", "64"), parse_guard("!=", "(2*s0) mod 3", "1")};
    m.entries.push_back(e);
    manifest = encode(m);
    const float ones[16] = {1, 1, 1};
    weights.assign(reinterpret_cast<const char*>(ones), sizeof ones);
  }
  std::string bytes() const {
    return container_bytes(
        {{"manifest", {manifest}}, {"plan forward", {plan}}, {"weights", {weights}}, {"prepared", {}}});
  }
};

// What stood there is replaced, cut out or doubled.
void mutate(std::string& bytes, std::mt19937_64& random) {
  for (int n = 1 + static_cast<int>(random() % 4); n > 0 && !bytes.empty(); --n) {
    const size_t at = random() % bytes.size();
    static constexpr unsigned char kTelling[] = {0, 1, 0x7f, 0x80, 0xff};
    switch (random() % 5) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(kTelling[random() % 5]);
        break;
      case 2:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        break;
      case 3:
        bytes.erase(at, random() % 8);
        break;
      default:
        bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 16));
    }
  }
}

// A plan whose payload was changed has the checksum of what it is now: else nothing behind it would be looked at.
void seal(std::string& plan) {
  constexpr size_t kPayload = 8 + 4 + 8 + 16;
  if (plan.size() < kPayload) return;
  ByteWriter w;
  w.raw(plan.size() - kPayload, 8);
  w.hash(Hasher().bytes(plan.data() + kPayload, plan.size() - kPayload).finish());
  plan.replace(12, w.out.size(), w.out);
}

int64_t times() {
  const char* asked = std::getenv("FLASHOVER_FUZZ_PACKAGES");
  return asked ? std::atoll(asked) : 2000;
}

template <typename Change>
void attack(uint64_t seed, Change&& change) {
  std::mt19937_64 random(seed);
  const Sample sample;
  int64_t refused = 0;
  for (int64_t i = 0; i < times(); ++i) {
    const std::string bytes = change(sample, random);
    try {
      check_package(Container(in_memory(bytes)));
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, times() / 2);
}

}  // namespace

TEST(Package, TheSampleIsOne) {
  const Sample sample;
  const std::string bytes = sample.bytes();
  std::vector<std::vector<plan::Plan>> plans;
  const Manifest m = check_package(Container(in_memory(bytes)), &plans);
  EXPECT_EQ(encode(m), sample.manifest);
  EXPECT_EQ(plans.at(0).at(0).inputs.size(), 2u);
}

TEST(Package, BytesAnywhere) {
  attack(1, [](const Sample& s, std::mt19937_64& random) {
    std::string bytes = s.bytes();
    mutate(bytes, random);
    return bytes;
  });
}

TEST(Package, ManifestsWithAChecksum) {
  attack(2, [](Sample s, std::mt19937_64& random) {
    mutate(s.manifest, random);
    return s.bytes();
  });
}

TEST(Package, PlansWithAChecksum) {
  attack(3, [](Sample s, std::mt19937_64& random) {
    std::string payload = s.plan.substr(36);
    mutate(payload, random);
    s.plan.replace(36, std::string::npos, payload);
    seal(s.plan);
    return s.bytes();
  });
}

// A cubin with one function, "k", as the driver's tools lay them out: names, symbols, code.
static std::string cubin() {
  const std::string names("\0k\0", 3), code(64, '\1');
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_ABIVERSION] = 7;
  header.e_machine = 190;
  header.e_flags = 0x5a055a;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 4;
  header.e_shstrndx = 1;
  std::array<Elf64_Sym, 2> symbols{};
  symbols[1].st_name = 1;
  symbols[1].st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
  symbols[1].st_shndx = 3;
  symbols[1].st_size = code.size();
  std::array<Elf64_Shdr, 4> sections{};
  std::string body;
  const auto add = [&](size_t i, uint32_t type, std::string_view bytes) {
    sections[i].sh_type = type;
    sections[i].sh_offset = sizeof header + body.size();
    sections[i].sh_size = bytes.size();
    body += bytes;
  };
  add(1, SHT_STRTAB, names);
  add(2, SHT_SYMTAB, {reinterpret_cast<const char*>(symbols.data()), sizeof symbols});
  sections[2].sh_link = 1;
  sections[2].sh_entsize = sizeof(Elf64_Sym);
  add(3, SHT_PROGBITS, code);
  header.e_shoff = sizeof header + body.size();
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + body +
         std::string(reinterpret_cast<const char*>(sections.data()), sizeof sections);
}

TEST(Cubin, WhatIsAskedOfOne) {
  const std::string good = cubin();
  EXPECT_EQ(why_no_cubin(good, 90, {"k"}), "");
  EXPECT_EQ(why_no_cubin(good, 80, {"k"}), "it is for sm_90");
  EXPECT_EQ(why_no_cubin(good, 90, {"other"}), "it has no kernel other");
  EXPECT_EQ(why_no_cubin("", 90, {}), "it is none");
  for (size_t n = 0; n < good.size(); ++n) EXPECT_NE(why_no_cubin(std::string_view(good).substr(0, n), 90, {"k"}), "");
  EXPECT_EQ(cubin_architecture("sm_100"), 100);
  for (const char* wrong : {"", "sm_", "sm_9", "sm_9x", "x86-64", "sm_-90", "sm_1000"})
    EXPECT_EQ(cubin_architecture(wrong), 0);
}

TEST(Cubin, BytesAnywhere) {
  std::mt19937_64 random(4);
  for (int64_t i = 0; i < times(); ++i) {
    std::string bytes = cubin();
    mutate(bytes, random);
    // (On the heap, without a byte behind it, where ASan sees.)
    const std::vector<char> exact(bytes.begin(), bytes.end());
    why_no_cubin({exact.data(), exact.size()}, 90, {"k"});
  }
}

// Two entries of one name; the plans' targets tell them apart.
static std::pair<Manifest, std::vector<std::vector<plan::Plan>>> for_both() {
  Manifest m = decode(Sample().manifest);
  const auto plan = [](const char* target, Device device) {
    plan::Plan p = plan::parse(kPlan);
    p.target = target, p.device = device;
    for (plan::InputSpec& i : p.inputs) i.type.device = device;
    return p;
  };
  const Device cuda{DeviceType::kCUDA, 0};
  m.entries.push_back(m.entries[0]);
  m.entries[1].device = DeviceType::kCUDA;
  return {m, {{plan("avx512", {}), plan("avx2", {})}, {plan("sm_90", cuda), plan("sm_80", cuda)}}};
}

static std::string taken(std::vector<std::string> runs_here, bool cuda, std::optional<Device> device = {}) {
  auto [m, plans] = for_both();
  const auto why_not = [&](const plan::Plan& p) {
    return std::ranges::find(runs_here, p.target) != runs_here.end() ? "" : "not here";
  };
  try {
    const Choice c = choose(std::move(m), std::move(plans), {.why_not = why_not, .cuda = cuda}, device);
    EXPECT_EQ(c.manifest.entries.size(), 1u);
    EXPECT_EQ(c.placements.at(0), c.plans.at(0).device);
    return c.plans[0].target + " " + std::to_string(c.chosen.at(0));
  } catch (const UserError& e) {
    return e.what();
  }
}

TEST(Choice, OfEntriesAndPlans) {
  const Device cuda{DeviceType::kCUDA, 0};
  EXPECT_EQ(taken({"avx512", "avx2"}, false), "avx512 0");
  EXPECT_EQ(taken({"avx2"}, false), "avx2 1");
  EXPECT_EQ(taken({"avx2", "sm_90", "sm_80"}, true), "sm_90 0");
  EXPECT_EQ(taken({"avx2", "sm_80"}, true), "sm_80 1");
  EXPECT_EQ(taken({"avx2", "sm_80"}, true, Device{}), "avx2 1");
  EXPECT_EQ(
      taken({"avx2"}, false, cuda),
      "entry forward of the package does not run on this machine, on CUDA devices:\n- for avx512: not here\n- for "
      "avx2: this one would\n- for sm_90: not here\n- for sm_80: not here");
  EXPECT_NE(taken({"avx2"}, true).find("device=\"cpu\""), std::string::npos);
}

TEST(Package, WrittenLoadedAndCalledWithoutPython) {
  const std::string path = "/tmp/flashover_package_test_" + std::to_string(::getpid()) + ".flash";
  const Sample sample;
  Manifest m = decode(sample.manifest);
  m.weights = {{.name = "bias"}};
  write_package(path, m, {at::ones({3})}, {{"plan forward", sample.plan}});
  const std::shared_ptr<Package> p = Package::load(path);
  ::unlink(path.c_str());
  const std::vector<at::Tensor> arguments{at::ones({3, 3})};
  const std::vector<at::Tensor> results = p->run(find_entry(p->manifest(), ""), arguments);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_TRUE(results[0].equal(at::ones({3, 3}).add_(1)));
  EXPECT_FALSE(results[1].defined());
  EXPECT_THROW(p->run(0, std::vector<at::Tensor>{at::ones({65, 3})}), UserError);
  EXPECT_THROW(p->run(0, std::vector<at::Tensor>{at::ones({3, 4})}), UserError);
  EXPECT_THROW(p->run(0, std::vector<at::Tensor>{}), UserError);
}

}  // namespace flashover::aot
