// Times pairs of operators turn by turn, and rounds their ratio so that noise does not change it.
#include "run/probe.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/decimal.h"
#include "cpu_kernels/attention.h"
#include "cpu_kernels/linear.h"
#include "cpu_kernels/panels.h"
#include "cpu_kernels/product.h"
#include "ops/names.h"
#include "torch/convert.h"

// Of the runtimes inside torch; declared by hand, since neither header ships with it.
extern "C" {
__attribute__((weak)) void omp_set_num_threads(int);
__attribute__((weak)) int MKL_Set_Num_Threads_Local(int);
}

namespace flashover::run {
namespace {

using Work = std::function<void()>;

// How many times as quick b is. The two run in turns, so that a busy moment hits both; of two estimates - least times,
// and the middle one of the ratios round by round - the one nearer to "the same" counts. 0 when one of them is missing.
double speed_ratio(const Work& a, const Work& b, int rounds) {
  if (!a || !b) return 0;
  const auto time = [](const Work& w) {
    const auto start = std::chrono::steady_clock::now();
    w();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  double least_a = HUGE_VAL, least_b = HUGE_VAL, spent = 0;
  std::vector<double> ratios;
  time(a), time(b);
  for (int i = 0; i < rounds && (i < 5 || spent < 0.03); ++i) {
    const double ta = time(a), tb = time(b);
    spent += ta + tb;
    least_a = std::min(least_a, ta);
    least_b = std::min(least_b, tb);
    ratios.push_back(ta / tb);
  }
  std::nth_element(ratios.begin(), ratios.begin() + static_cast<ptrdiff_t>(ratios.size() / 2), ratios.end());
  const double least = least_a / least_b, middle = ratios[ratios.size() / 2];
  return std::abs(std::log(least)) < std::abs(std::log(middle)) ? least : middle;
}

// An operator call over given tensors; empty when torch has no such operator or it does not take these tensors.
Work work(const char* name, std::vector<Arg> args, const std::vector<at::Tensor>& tensors) {
  const aten::Operator* op = aten::find_operator(name);
  if (!op) return {};
  const auto tensor_of = [tensors](ValueId id) { return tensors[static_cast<size_t>(id)]; };
  Work w = [op, args = std::move(args), tensor_of] { aten::call(*op, args, tensor_of); };
  try {
    w();
  } catch (const std::exception&) {  // not on this CPU
    return {};
  }
  return w;
}

// act(x w^T) by panels.
Work panels_work(const at::Tensor& x, const at::Tensor& w) {
  if (!cpu::vector_kernels()) return {};
  const int64_t columns = w.size(0), inner = w.size(1);
  const at::Tensor packed = at::empty({cpu::panel_elements(columns, inner)}, x.options());
  const at::Tensor out = at::empty({x.size(0), columns}, x.options());
  cpu::pack_panels(w.const_data_ptr<float>(), inner, 1, columns, inner, packed.mutable_data_ptr<float>());
  return [x, packed, out, columns] {
    cpu::linear(cpu::PanelLinear{.x = x.const_data_ptr<float>(),
                                 .row_stride = x.stride(0),
                                 .packed = packed.const_data_ptr<float>(),
                                 .bias = nullptr,
                                 .added = nullptr,
                                 .added_stride = 0,
                                 .out = out.mutable_data_ptr<float>(),
                                 .rows = x.size(0),
                                 .inner = x.size(1),
                                 .columns = columns});
  };
}

// x w^T on the AMX unit, in the bf16x3 split.
Work split_work(const at::Tensor& x, const at::Tensor& w) {
  if (!cpu::has_amx_bf16()) return {};
  const at::Tensor out = at::empty({x.size(0), w.size(0)}, x.options());
  return [x, w, out] {
    cpu::product(cpu::ProductOf<float>{.a = x.const_data_ptr<float>(),
                                       .a_batch = 0,
                                       .a_row = x.stride(0),
                                       .a_inner = 1,
                                       .b = w.const_data_ptr<float>(),
                                       .b_batch = 0,
                                       .b_inner = 1,
                                       .b_column = w.stride(0),
                                       .out = out.mutable_data_ptr<float>(),
                                       .batch = 1,
                                       .rows = x.size(0),
                                       .inner = x.size(1),
                                       .columns = w.size(0)});
  };
}

target::Providers measure() {
  c10::InferenceMode inference;
  target::Providers p;
  // 34 MFLOP: far above the operators' fixed costs, short enough to fit between two interruptions.
  constexpr int64_t kRows = 64, kInner = 512, kColumns = 512;
  // A generator of our own: the program's random numbers stay as they are.
  const auto generator = at::globalContext().defaultGenerator(c10::kCPU).clone();
  const auto numbers = [&](int64_t rows) {  // f32, whatever the program's default is
    return at::randn({rows, kInner}, generator, at::kFloat);
  };
  const at::Tensor x = numbers(kRows), w = numbers(kColumns);
  const Arg none = None();
  const auto linear = [&](const at::Tensor& a, const at::Tensor& b) {
    return work(op::linear, {Ref{0}, Ref{1}, none}, {a, b});
  };
  const auto onednn = [&](const at::Tensor& a, const at::Tensor& b) {
    return work("mkldnn._linear_pointwise.default",
                {Ref{0}, Ref{1}, none, std::string("none"), std::vector<double>{}, std::string()}, {a, b});
  };
  const double f32 = speed_ratio(linear(x, w), onednn(x, w), 20);
  p.onednn = f32 > 0;
  // (Where the two are level, ours takes activations along and writes where it is told.)
  p.quick_panels = speed_ratio(f32 > 1 ? onednn(x, w) : linear(x, w), panels_work(x, w), 20) > 0.9;
  // Around one it is noise, and the library that eager uses has the better claim.
  if (p.onednn) p.onednn_f32_ratio = f32 < 1.4 && f32 > 0.7 ? 1.0 : std::clamp(std::round(f32 * 2) / 2, 0.5, 4.0);
  // (Of a training step: nothing is packed beforehand. 20 ms where the two are level.)
  const at::Tensor rows = numbers(4 * kRows);
  p.split_f32 = speed_ratio(linear(rows, w), split_work(rows, w), 12) > 1;
  const auto reduced = [&](at::ScalarType type) {
    const at::Tensor a = x.to(type), b = w.to(type);
    return speed_ratio(linear(a, b), onednn(a, b), 10) > 0.9;
  };
  p.onednn_bf16 = p.onednn && reduced(at::kBFloat16);
  p.onednn_f16 = p.onednn && reduced(at::kHalf);
  const auto slower = [&](at::ScalarType type) {
    return speed_ratio(linear(x.to(type), w.to(type)), linear(x, w), 10) > 2;
  };
  p.slow_bf16 = slower(at::kBFloat16);
  p.slow_f16 = slower(at::kHalf);
  p.mkl = aten::find_operator("mkl._mkl_linear.default") != nullptr && at::Context::hasMKL();
  return p;
}

// Not measured, so not kept either: the processor says.
void ask_processor(target::Providers& p) {
  p.panels = cpu::vector_kernels() != nullptr;
  p.own_f32 = p.onednn_strided_points = cpu::has_avx512();
  p.own_bf16 = cpu::has_amx_bf16();
  p.split_f32 = p.split_f32 && p.own_bf16;
}

// The text: a version, each of these, the ratio.
constexpr const char* kVersion = "4";
constexpr bool target::Providers::*kMeasured[] = {
    &target::Providers::mkl,          &target::Providers::onednn,    &target::Providers::onednn_bf16,
    &target::Providers::onednn_f16,   &target::Providers::slow_bf16, &target::Providers::slow_f16,
    &target::Providers::quick_panels, &target::Providers::split_f32,
};

}  // namespace

target::Providers probe() {
  target::Providers p;
  // On a thread of its own, with one worker: teams of threads on a busy machine measure each other. The settings are
  // per thread.
  std::thread([&p] {
    try {
      at::internal::lazy_init_num_threads();
      if (omp_set_num_threads) omp_set_num_threads(1);
      if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(1);
      p = measure();
    } catch (const std::exception&) {  // the defaults are safe everywhere
      p = {};
    }
  }).join();
  ask_processor(p);
  return p;
}

std::string write(const target::Providers& p) {
  std::string out = kVersion;
  for (const auto has : kMeasured) out += p.*has ? " 1" : " 0";
  return out + " " + fixed_decimal(p.onednn_f32_ratio, 1);
}

std::optional<target::Providers> parse_providers(std::string_view text) {
  const std::vector<std::string> words = split(text, ' ');
  if (words.size() != std::size(kMeasured) + 2 || words[0] != kVersion) return std::nullopt;
  target::Providers p;
  for (size_t i = 0; i < std::size(kMeasured); ++i) {
    const std::string& word = words[i + 1];
    if (word != "0" && word != "1") return std::nullopt;
    p.*kMeasured[i] = word == "1";
  }
  const std::optional<double> ratio = parse_number<double>(words.back());
  if (!ratio || !(*ratio >= 0.5 && *ratio <= 4)) return std::nullopt;
  p.onednn_f32_ratio = *ratio;
  ask_processor(p);
  return p;
}

}  // namespace flashover::run
