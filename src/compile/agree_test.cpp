// Random programs: the compiled kernels of a schedule agree with the plain evaluator of the graph.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "kernel/kernel.h"
#include "kernel/load_for_test.h"
#include "planner/evaluator_for_test.h"
#include "planner/random_graph_for_test.h"

namespace flashover {
namespace {

using planner::testing::Array;
using KernelFunction = int32_t(void* const*, const int64_t*, void* share);

// FLASHOVER_FUZZ=n: that many times more programs.
int batches() {
  const char* more = std::getenv("FLASHOVER_FUZZ");
  return more ? std::max(1, std::atoi(more)) : 1;
}

TEST(Agree, CompiledKernelsAndThePlainEvaluator) {
  constexpr uint32_t kPrograms = 12;
  for (int batch = 0; batch < batches(); ++batch) {
    std::vector<graph::Graph> graphs;
    std::vector<planner::Schedule> schedules;
    std::vector<loops::Kernel> kernels;
    std::vector<size_t> first;
    for (uint32_t i = 0; i < kPrograms; ++i) {
      graphs.push_back(planner::testing::Generator(50000 + static_cast<uint32_t>(batch) * kPrograms + i).make());
      schedules.push_back(planner::schedule(graphs.back()));
      first.push_back(kernels.size());
      kernels.insert(kernels.end(), schedules.back().kernels.begin(), schedules.back().kernels.end());
    }
    const kernel::Compiled built = kernel::compile(kernels);
    std::vector<kernel::Loaded> libraries;
    for (const plan::Binary& b : built.binaries) libraries.emplace_back(b.bytes);
    for (uint32_t i = 0; i < kPrograms; ++i) {
      const graph::Graph& g = graphs[i];
      SCOPED_TRACE("program " + std::to_string(batch * static_cast<int>(kPrograms) + static_cast<int>(i)));
      const auto inputs = planner::testing::random_inputs(g, i);
      const auto expected = planner::testing::evaluate(g, inputs);
      const auto got = planner::testing::run_plan(
          schedules[i], inputs, [&](int32_t k, std::span<void* const> pointers, std::span<const int64_t> sizes) {
            const plan::Kernel& code = built.kernels[first[i] + static_cast<size_t>(k)];
            return libraries[static_cast<size_t>(code.binary)].symbol<KernelFunction>(code.symbol)(
                pointers.data(), sizes.data(), nullptr);
          });
      ASSERT_EQ(got.error, 0);
      for (size_t o = 0; o < g.outputs.size(); ++o) {
        const Array& want = expected[g.outputs[o].value];
        for (size_t e = 0; e < want.data.size(); ++e) {
          const double a = got.outputs[o].data[e], b = want.data[e];
          if (a == b || (std::isnan(a) && std::isnan(b)) || std::fabs(a - b) <= 5e-4 * (1 + std::fabs(b))) continue;
          std::string text;
          for (const loops::Kernel& k : schedules[i].kernels) text += loops::print(k);
          FAIL() << "output " << o << " [" << e << "]: " << a << " expected " << b << "\n"
                 << graph::print(g) << schedules[i].text << text;
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashover
