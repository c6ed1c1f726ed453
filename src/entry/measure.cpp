// Runs each plan on made-up inputs; torch's generators are put back behind it.
#include "entry/measure.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>
#include <optional>

#include "base/check.h"
#include "run/call.h"
#include "run/cuda/driver.h"
#include "run/cuda/record.h"
#include "run/run.h"
#include "torch/convert.h"

namespace flashover::entry {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Memory of that type with numbers of ordinary size in it; zeros for integers, which may be indices.
at::Tensor made_up(const TensorType& t) {
  const std::vector<int64_t> numbers = run::shape_numbers(t, [](sym::Expr e) { return e.value(); });
  const run::Shape shape(t, numbers.data());
  const int64_t n = std::max<int64_t>(1, plan::span(t).value());
  const auto options = at::TensorOptions().device(shape.device);
  at::Tensor flat = is_floating(t.dtype) ? at::arange(n, options.dtype(at::kFloat)).mul_(0.7).sin_().to(shape.dtype)
                                         : at::zeros({n}, options.dtype(shape.dtype));
  return run::view_of(flat, shape.dtype, shape.sizes, shape.strides, 0);
}

double once(const plan::Plan& plan) {
  std::shared_ptr<run::Executable> executable = run::load(plan);
  std::vector<at::Tensor> inputs, outputs;
  for (const plan::InputSpec& in : plan.inputs) inputs.push_back(made_up(in.type));
  const auto call = [&] { executable->run(inputs.data(), inputs.size(), outputs); };
  if (plan.device.type == DeviceType::kCPU) {
    using Clock = std::chrono::steady_clock;
    double least = kNever, total = 0;
    for (int i = 0; i < 30 && (i < 4 || total < 0.1); ++i) {
      const auto start = Clock::now();
      call();
      const double s = std::chrono::duration<double>(Clock::now() - start).count();
      if (i > 0) least = std::min(least, s), total += s;
    }
    return least;
  }
  const auto device = static_cast<c10::DeviceIndex>(plan.device.index);
  const c10::Stream stream = c10::impl::VirtualGuardImpl(c10::kCUDA).getStream({c10::kCUDA, device});
  const auto lap = [&](int calls) {
    c10::Event before(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT), after(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    // Something long first: what is timed is queued behind it, so the CPU's pace does not count.
    static thread_local int64_t side = 4096;
    try {
      const at::Tensor long_one = at::zeros({side, side}, at::TensorOptions().device(stream.device()).dtype(at::kHalf));
      for (int i = 0; i < 4; ++i) at::mm(long_one, long_one);
    } catch (const c10::Error&) {
      side = 64;
    }
    before.record(stream);
    for (int i = 0; i < calls; ++i) call();
    after.record(stream);
    after.synchronize();
    return before.elapsedTime(after) / 1e3 / calls;
  };
  const double rough = std::max(lap(2), 1e-7);
  const int calls = static_cast<int>(std::clamp(1e-3 / rough, 2.0, 40.0));
  double least = kNever;
  for (int i = 0; i < 4; ++i) least = std::min(least, lap(calls));
  return least;
}

}  // namespace

std::vector<double> measure(std::span<const plan::Plan> plans) {
  std::vector<double> out(plans.size(), kNever);
  if (plans.empty()) return out;
  std::optional<c10::DeviceGuard> guard;
  if (const Device d = plans[0].device; d.type == DeviceType::kCUDA) {
    guard.emplace(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(d.index)));
    if (run::cuda::is_capturing(run::cuda::current_stream(d.index))) return out;
  }
  // Operators that draw random numbers draw them from where the program does.
  struct Generators {
    std::vector<std::pair<at::Generator, at::Tensor>> before;
    explicit Generators(Device d) {
      keep(c10::Device(c10::kCPU));
      if (d.type == DeviceType::kCUDA) keep(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(d.index)));
    }
    void keep(c10::Device d) {
      at::Generator g = at::globalContext().defaultGenerator(d);
      const std::lock_guard<std::mutex> lock(g.mutex());
      before.emplace_back(g, g.get_state());
    }
    ~Generators() {
      for (auto& [g, state] : before) {
        const std::lock_guard<std::mutex> lock(g.mutex());
        g.set_state(state);
      }
    }
  } generators(plans[0].device);
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                                 c10::autocast_dispatch_keyset);
  for (size_t i = 0; i < plans.size(); ++i) {
    try {
      out[i] = once(plans[i]);
    } catch (const std::exception&) {  // out of memory, above all; whatever it is, this plan is not chosen
    }
  }
  return out;
}

}  // namespace flashover::entry
