// Eight threads serve while the weights change so many times: swap PACKAGE TIMES SIZE WEIGHT WEIGHT. The program is a
// product of both weights, which are k times the identity: each result is k * k everywhere, or of a torn set.
#include <flashover/program.hpp>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

using flashover::runtime::Array, flashover::runtime::Program;

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  flashover_set_threads(1);  // of a call's work
  Program program(argv[1]);
  const int times = std::atoi(argv[2]);
  const long size = std::atol(argv[3]);
  const auto scaled = [&](float k) {
    std::vector<float> matrix(static_cast<size_t>(size * size));
    for (long i = 0; i < size; ++i) matrix[static_cast<size_t>(i * size + i)] = k;
    return matrix;
  };
  std::vector<float> sets[2] = {scaled(1), scaled(2)};
  const auto exchange = [&](int set) {
    program.exchange({{argv[4], Array(sets[set].data(), {size, size})}, {argv[5], Array(sets[set].data(), {size, size})}});
  };
  exchange(0);
  std::atomic<bool> stop{false};
  std::atomic<long> calls{0}, torn{0}, failed{0}, seen[2] = {0, 0};
  const auto serve = [&] {
    std::vector<float> x(static_cast<size_t>(8 * size), 1.0f);
    while (!stop) try {
        const std::vector<Array> results = program.run({Array(x.data(), {8, size})});
        const float* y = results[0].data<const float>();
        for (long i = 1; i < 8 * size; ++i)
          if (y[i] != y[0]) return void(++torn);
        if (y[0] != 1 && y[0] != 4) return void(++torn);
        ++seen[y[0] == 4];
        ++calls;
      } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return void(++failed);
      }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back(serve);
  for (int i = 1; i <= times; ++i) exchange(i % 2);
  stop = true;
  for (std::thread& t : threads) t.join();
  std::printf("%ld calls, %ld torn, %ld failed, both sets: %d\n", calls.load(), torn.load(), failed.load(),
              seen[0] > 0 && seen[1] > 0);
  return torn != 0 || failed != 0;
}
