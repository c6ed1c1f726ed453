// Hostile packages: whatever the bytes, checking one ends in a result or a UserError. FLASHOVER_FUZZ_PACKAGES: how many
// of each kind (2,000; the long mode: 1,000,000, under ./x asan).
#include "aot/package.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "base/bytes.h"
#include "package/check.h"

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
