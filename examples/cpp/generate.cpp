// Greedy generation without Python: a package of a language model (token ids in, logits out, both of any length).
//
//   generate MODEL.flash 16 1 5 9      sixteen tokens behind the prompt 1 5 9
#include <flashover/program.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

using flashover::runtime::Array;
using flashover::runtime::Program;

int main(int argc, char** argv) try {
  if (argc < 4) {
    std::fprintf(stderr, "usage: generate MODEL.flash COUNT TOKEN ...\n");
    return 2;
  }
  const Program model(argv[1]);
  std::vector<int64_t> tokens;
  for (int i = 3; i < argc; ++i) tokens.push_back(std::atoll(argv[i]));
  for (long n = std::atol(argv[2]); n > 0; --n) {
    const auto length = static_cast<int64_t>(tokens.size());
    const Array logits = model.run({Array(tokens.data(), {1, length})}).at(0);
    const int64_t vocabulary = logits.sizes().at(2), stride = logits.strides().at(2);
    const float* last = logits.data<float>() + (length - 1) * logits.strides().at(1);
    int64_t best = 0;
    for (int64_t v = 1; v < vocabulary; ++v)
      if (last[v * stride] > last[best * stride]) best = v;
    tokens.push_back(best);
  }
  for (int64_t t : tokens) std::printf("%lld ", static_cast<long long>(t));
  std::printf("\n");
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "generate: %s\n", e.what());
  return 1;
}
