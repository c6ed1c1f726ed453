// A table of torch's such operators, and a listener for others as they are registered.
#include "run/untracked_writers.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "ops/names.h"
#include "run/writes.h"

namespace flashover::run {
namespace {

// Writes that no schema tells of: running mean and variance, when the flag `training` is set.
struct Undeclared {
  const char* name;
  int training;  // argument number; -1: always
  int first, last;
};
constexpr Undeclared kUndeclared[] = {
    {"aten::native_batch_norm", 5, 3, 4},        {"aten::cudnn_batch_norm", 5, 3, 4},
    {"aten::miopen_batch_norm", 5, 3, 4},        {"aten::batch_norm_update_stats", -1, 1, 2},
    {"aten::batch_norm_gather_stats", -1, 3, 4}, {"aten::batch_norm_gather_stats_with_counts", -1, 3, 4},
};
const Undeclared* undeclared(std::string_view name) {
  for (const Undeclared& u : kUndeclared)
    if (name == u.name) return &u;
  return nullptr;
}

using Written = std::vector<at::Tensor>;
void add(const c10::IValue& value, Written& out) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) out.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) out.push_back(t);
  } else if (value.isList()) {
    for (const c10::IValue& v : value.toListRef()) add(v, out);
  }
}

// Collectives write what comes first among their arguments, and say nothing of it either. They may still be writing
// when they return.
bool is_collective(std::string_view name) { return name.starts_with("c10d::") && name.ends_with('_'); }

void report(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const auto argument = [&](size_t i) -> const c10::IValue& { return (*stack)[stack->size() - count + i]; };
  Written written;
  const bool collective = is_collective(schema.name());
  if (collective) {
    add(argument(0), written);
  } else if (const Undeclared* u = undeclared(schema.name())) {
    const auto training = static_cast<size_t>(u->training);
    if (u->training < 0 || (argument(training).isBool() && argument(training).toBool()))
      for (int i = u->first; i <= u->last; ++i) add(argument(static_cast<size_t>(i)), written);
  } else {
    for (size_t i = 0; i < count; ++i)
      if (const auto* alias = schema.arguments()[i].alias_info(); alias && alias->isWrite()) add(argument(i), written);
  }
  op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
  for (const at::Tensor& t : written)
    collective ? mark_escaped(t.unsafeGetTensorImpl(), Alias::kAddress) : wrote(t.unsafeGetTensorImpl());
}

struct RegistrationListener final : c10::OpRegistrationListener {
  std::mutex mutex, working;  // of pending (also taken under the dispatcher's lock), of registrations
  std::vector<c10::OperatorName> pending;
  std::atomic<bool> any{false};
  std::vector<c10::RegistrationHandleRAII>& registrations = *new std::vector<c10::RegistrationHandleRAII>;

  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    std::lock_guard lock(mutex);
    pending.push_back(op.operator_name());
    any.store(true, std::memory_order_release);
  }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}

  void work() {
    std::lock_guard one(working);
    std::vector<c10::OperatorName> names;
    {
      std::lock_guard lock(mutex);
      names.swap(pending);
      any.store(false, std::memory_order_release);
    }
    auto& dispatcher = c10::Dispatcher::singleton();
    const size_t before = registrations.size();
    for (const c10::OperatorName& name : names) {
      const auto op = dispatcher.findSchema(name);
      if (!op || !writes_untracked(*op)) continue;
      auto handle = dispatcher.registerImpl(name, c10::DispatchKey::ADInplaceOrView,
                                            c10::KernelFunction::makeFromBoxedFunction<&report>(), std::nullopt,
                                            nullptr, "flashover: reports writes without version bumps");
      registrations.push_back(std::move(handle));
    }
    // They may have been called since they were registered. (The first time nothing is frozen yet.)
    if (before != 0 && registrations.size() != before) wrote_anything();
  }

  static bool writes_untracked(const c10::OperatorHandle& op) {
    const std::string_view name = op.operator_name().name;
    if (!undeclared(name) && !is_collective(name)) {
      bool writes = false;
      for (const c10::Argument& a : op.schema().arguments()) writes |= a.alias_info() && a.alias_info()->isWrite();
      if (!writes || name.starts_with("aten::_foreach_")) return false;  // these bump at the autograd key
    }
    return !op.hasKernelForDispatchKey(c10::DispatchKey::ADInplaceOrView) &&
           !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  }
};

}  // namespace

bool may_write_untold(std::string_view op) {
  constexpr std::string_view kOwn[] = {"flashover.", "mkldnn.", "mkl.", "prims.", "quantized."};
  if (!op::is_aten(op)) return std::ranges::none_of(kOwn, [&](std::string_view own) { return op.starts_with(own); });
  return std::ranges::any_of(kUndeclared, [&](const Undeclared& u) {
    constexpr std::string_view kNamespace = "aten::";
    return op::without_overload(op).ends_with(std::string_view(u.name).substr(kNamespace.size()));
  });
}

void intercept_untracked_writers() {
  // Never destroyed, and neither are the registrations: at exit the dispatcher may be gone first.
  static RegistrationListener* listener = [] {
    auto owned = std::make_unique<RegistrationListener>();
    RegistrationListener* w = owned.get();
    // The dispatcher tells a new listener of everything that is there.
    new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(std::move(owned)));
    return w;
  }();
  if (listener->any.load(std::memory_order_acquire)) listener->work();
}

}  // namespace flashover::run
