// The plan is cut before and behind each size point (plan/split.h); the operators there are called by themselves.
#include "run/size_points.h"

#include <ATen/Context.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/copy.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/unexpected_size.h"
#include "ops/ops.h"
#include "plan/split.h"
#include "run/call.h"
#include "run/dispatch_level.h"
#include "run/program.h"
#include "run/tensor_memory.h"
#include "run/written.h"

namespace flashover::run {
namespace {

using plan::StorageKind;
using plan::TensorId;

// The values of a call's symbols, by their place in the plan's list of them.
class SizeValues {
 public:
  explicit SizeValues(const std::vector<int>& symbols) : symbols_(symbols), values_(symbols.size()) {}

  void set(int symbol, int64_t value) { values_[place_of(symbol)] = value; }
  int64_t operator[](size_t place) const { return values_[place]; }
  int64_t of(sym::Expr e) const {
    if (e.is_const()) return e.value();
    return sym::evaluate(e, [&](sym::Expr v) {
      const auto k = sym::size_symbol_index(v);
      if (!k) throw InternalError("plan: no value of " + v.str());
      return values_[place_of(*k)];
    });
  }
  std::vector<int64_t> of(const Sizes& list) const {
    std::vector<int64_t> out;
    for (sym::Expr e : list) out.push_back(of(e));
    return out;
  }
  size_t place_of(int symbol) const {
    const auto at = std::ranges::lower_bound(symbols_, symbol);
    if (at == symbols_.end() || *at != symbol) throw InternalError("plan: no such size");
    return static_cast<size_t>(at - symbols_.begin());
  }

 private:
  const std::vector<int>& symbols_;  // ascending
  std::vector<int64_t> values_;
};

// The operator that finds sizes.
class PointCall {
 public:
  PointCall(plan::Plan part, plan::SizePoint point) : plan_(std::move(part)), point_(std::move(point)) {
    if (plan_.steps.size() != 1 || !plan_.frozen_steps.empty() || plan_.steps[0].kind != plan::StepKind::kCall)
      throw Declined("plan: what finds a size depends on more than earlier steps");
    for (const Arg& a : plan_.steps[0].args) {
      if (const auto* e = std::get_if<sym::Expr>(&a)) constant_arguments_ &= e->is_const();
      if (const auto* l = std::get_if<Sizes>(&a))
        for (sym::Expr e : *l) constant_arguments_ &= e.is_const();
    }
    if (constant_arguments_) call_ = prepare(plan_.steps[0]);
    for (TensorId t : plan_.steps[0].writes)
      if (t >= 0 && plan_.tensors[t].storage != StorageKind::kExtern)
        throw Declined("plan: what finds a size writes memory that exists already");
  }

  // The results that its sub-plan hands out.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, SizeValues& values) const {
    torch::jit::Stack stack;
    const ExternCall with_numbers = constant_arguments_ ? ExternCall{} : prepare(numbered(values));
    const ExternCall& call = constant_arguments_ ? call_ : with_numbers;
    for (const ExternCall::Argument& a : call.arguments) push(a, inputs, values, stack);
    {
      const c10::impl::ExcludeDispatchKeyGuard below(kBelowAutograd);
      aten::handle_of(*call.op).callBoxed(stack);
    }
    std::vector<at::Tensor> results;
    for (c10::IValue& v : stack) {
      if (v.isTensor())
        results.push_back(std::move(v).toTensor());
      else if (v.isTensorList())
        for (at::Tensor& t : v.toTensorVector()) results.push_back(std::move(t));
    }
    const std::vector<TensorId>& writes = plan_.steps[0].writes;
    if (results.size() != writes.size()) throw Mismatch(call.op->name + " returned another number of tensors");
    for (const plan::SizePoint::Size& s : point_.sizes) {
      const at::Tensor& t = results[static_cast<size_t>(s.result)];
      if (!t.defined() || t.dim() <= s.dim) throw Mismatch(call.op->name + " returned fewer dimensions");
      values.set(s.symbol, t.size(s.dim));
    }
    std::vector<at::Tensor> out;
    for (const plan::OutputRef& o : plan_.outputs) {
      const auto at = std::ranges::find(writes, o.tensor);
      if (at == writes.end()) throw InternalError("plan: a size point hands out what it did not make");
      out.push_back(as_planned(call.op->name, results[static_cast<size_t>(at - writes.begin())],
                               plan_.tensors[o.tensor].type, values));
    }
    return out;
  }

 private:
  void push(const ExternCall::Argument& a, const std::vector<at::Tensor>& inputs, const SizeValues& values,
            torch::jit::Stack& stack) const {
    switch (a.kind) {
      case ExternCall::Argument::Kind::kConstant:
        stack.emplace_back(a.constant);
        return;
      case ExternCall::Argument::Kind::kTensor:
        stack.emplace_back(operand(a.tensor, inputs, values));
        return;
      case ExternCall::Argument::Kind::kScalar:
        stack.emplace_back(operand(a.tensor, inputs, values).item());
        return;
      case ExternCall::Argument::Kind::kList: {
        c10::List<at::Tensor> list;
        for (TensorId t : a.list) list.push_back(t < 0 ? at::Tensor() : operand(t, inputs, values));
        stack.emplace_back(std::move(list));
        return;
      }
      case ExternCall::Argument::Kind::kOptionalList: {
        c10::List<std::optional<at::Tensor>> list;
        for (TensorId t : a.list) list.push_back(t < 0 ? std::optional<at::Tensor>() : operand(t, inputs, values));
        stack.emplace_back(std::move(list));
        return;
      }
    }
  }

  at::Tensor operand(TensorId t, const std::vector<at::Tensor>& inputs, const SizeValues& values) const {
    const plan::Tensor& tensor = plan_.tensors[t];
    if (tensor.storage == StorageKind::kInput) return inputs[static_cast<size_t>(tensor.index)];
    if (tensor.storage != StorageKind::kView) throw InternalError("plan: an operand that was not handed on");
    return view_of(operand(tensor.index, inputs, values), aten::to_aten(tensor.type.dtype),
                   values.of(tensor.type.sizes), values.of(tensor.type.strides), values.of(tensor.type.offset));
  }

  // In memory of its own, as the kernels that follow count on. Sizes that the trace took for other sizes may differ: an
  // error of this call, not of the operator.
  static at::Tensor as_planned(const std::string& op, const at::Tensor& t, const TensorType& type,
                               const SizeValues& values) {
    const std::vector<int64_t> numbers = shape_numbers(type, [&](sym::Expr e) { return values.of(e); });
    const Shape shape(type, numbers.data());
    if (!t.defined() || t.scalar_type() != shape.dtype || t.device() != shape.device)
      throw Mismatch(op + " returned a tensor of another kind");
    if (!shape.fits(t))
      throw UnexpectedSize(op + " found " + str(aten::type_of(t)) + " where compiled code needs " + str(type));
    if (shape.same_strides(t) && t.storage().use_count() == 1) return t;
    at::Tensor own = shape.empty();
    own.copy_(t);
    return own;
  }

  // The operator's arguments are sizes that change.
  plan::Step numbered(const SizeValues& values) const {
    plan::Step step = plan_.steps[0];
    for (Arg& a : step.args) {
      if (auto* e = std::get_if<sym::Expr>(&a)) *e = sym::Expr(values.of(*e));
      if (auto* l = std::get_if<Sizes>(&a))
        for (sym::Expr& e : *l) e = sym::Expr(values.of(e));
    }
    return step;
  }

  plan::Plan plan_;
  plan::SizePoint point_;
  bool constant_arguments_ = true;
  ExternCall call_;
};

class ExecutableInParts final : public Executable {
 public:
  ExecutableInParts(plan::Plan plan, const LoadOptions& options, std::shared_ptr<const Code> code, MakePrograms make)
      : plan_(std::move(plan)), symbols_(plan::size_symbols(plan_)), sources_(plan::size_sources(plan_)) {
    std::vector<plan::SizePoint> points = plan::size_points(plan_);
    plan::check_frozen_part(plan_);
    std::vector<size_t> ends;
    for (const plan::SizePoint& p : points) {
      if (p.step > (ends.empty() ? 0 : ends.back())) ends.push_back(p.step);
      ends.push_back(p.step + 1);
    }
    if (ends.back() < plan_.steps.size()) ends.push_back(plan_.steps.size());
    auto partition = plan::split(plan_, ends);
    if (!partition) throw Declined("plan: a tensor cannot be handed on across a size point");
    passed_ = static_cast<size_t>(partition->passed);
    LoadOptions how{.converts = options.converts, .sub_plan = true};
    how.kernel_graphs = options.kernel_graphs;
    auto point = points.begin();
    for (size_t i = 0; i < partition->sub_plans.size(); ++i) {
      plan::PlanPartition::SubPlan& sub = partition->sub_plans[i];
      Part part{.inputs = std::move(sub.inputs), .outputs = std::move(sub.outputs)};
      if (point != points.end() && ends[i] == point->step + 1) {
        part.point = std::make_unique<PointCall>(std::move(sub.plan), std::move(*point++));
      } else {
        std::vector<plan::SizeSource> sources;
        for (int symbol : plan::size_symbols(sub.plan)) sources.push_back({symbol, 0, 0});
        part.programs = make(std::move(sub.plan), std::move(sources), how, code);
      }
      parts_.push_back(std::move(part));
    }
    find_last_readers();
    find_writes(options);
    for (plan::Binary& b : plan_.binaries) b.bytes = {};
  }

  const plan::Plan& plan() const override { return plan_; }
  // Each part has a frozen part of its own.
  std::vector<at::Tensor> frozen_tensors(c10::TensorImpl* const*) override { return {}; }
  bool supply_frozen(c10::TensorImpl* const*, std::vector<at::Tensor>) override { return false; }
  bool heavy() const override { return true; }
  void measure(bool on) override {
    for (const Part& p : parts_)
      if (p.programs) p.programs->measure(on);
  }
  std::vector<double> times() const override { return std::vector<double>(plan_.steps.size(), -1.0); }
  Counters counters() const override {
    Counters sum{.calls = calls_.load(std::memory_order_relaxed)};
    for (const Part& p : parts_)
      if (p.programs) {
        const Counters c = p.programs->counters();
        sum.frozen_runs += c.frozen_runs;
        sum.graph_replays += c.graph_replays;
        sum.content_checks += c.content_checks;
      }
    return sum;
  }

  void run_consuming(std::vector<at::Tensor>&& inputs, std::vector<at::Tensor>& outputs) override {
    std::vector<c10::TensorImpl*> pointers;
    for (const at::Tensor& t : inputs) pointers.push_back(t.unsafeGetTensorImpl());
    run(pointers.data(), pointers.size(), outputs);
  }

  void run(c10::TensorImpl* const* inputs, size_t count, std::vector<at::Tensor>& outputs) override {
    if (count != plan_.inputs.size())
      throw InternalError("run: " + std::to_string(count) + " inputs for a plan of " +
                          std::to_string(plan_.inputs.size()));
    calls_.fetch_add(1, std::memory_order_relaxed);
    written_.check(inputs);
    const Kept kept = keep(inputs);
    failure_was_undone() = false;
    size_t at = 0;
    try {
      run_parts(inputs, outputs, at);
    } catch (Mismatch& m) {
      m.clean = (m.clean || parts_[at].point) && undo(kept, at, inputs);
      m.step = SIZE_MAX;
      throw;
    } catch (...) {
      failure_was_undone() = (failure_was_undone() || !parts_[at].leaves_a_trace) && undo(kept, at, inputs);
      throw;
    }
    written_.tell(inputs);
  }

 private:
  struct Part {
    std::unique_ptr<PointCall> point;    // or
    std::unique_ptr<Programs> programs;  // of the steps between two points
    std::vector<int32_t> inputs;         // as plan::PlanPartition
    std::vector<plan::PlanPartition::SubPlan::Target> outputs;
    std::vector<bool> last;       // by input: the last that needs what is passed on
    bool leaves_a_trace = false;  // it writes inputs, draws numbers, or has an effect
    bool acts = false;            // it has an effect, which nothing undoes
  };
  struct Kept {
    std::vector<at::Tensor> contents;  // by entry of kept_
    at::Tensor generator;
  };

  void find_last_readers() {
    std::vector<bool> needed(passed_);
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part)
      for (int32_t in : part->inputs) {
        part->last.push_back(in < 0 && !needed[static_cast<size_t>(-1 - in)]);
        if (in < 0) needed[static_cast<size_t>(-1 - in)] = true;
      }
  }

  // What must be put back where a later part raises.
  void find_writes(const LoadOptions& options) {
    std::vector<int32_t> all;
    for (size_t i = 0; i < parts_.size(); ++i) {
      Part& part = parts_[i];
      if (part.point) continue;
      const plan::Plan& plan = part.programs->plan();
      for (const plan::Step& s : plan.steps) {
        if (s.kind == plan::StepKind::kCall) {
          const ops::OpRow* op = ops::find(s.op);
          part.acts |= op->effectful && !op->check;
          random_ |= op->nondeterministic;
          part.leaves_a_trace |= part.acts || op->nondeterministic;
        }
        plan::for_each_write(s, [&](TensorId t) {
          const plan::Tensor& base = plan.tensors[plan::root(plan, t)];
          if (base.storage != StorageKind::kInput || part.inputs[static_cast<size_t>(base.index)] < 0) return;
          part.leaves_a_trace = true;
          all.push_back(part.inputs[static_cast<size_t>(base.index)]);
          if (i + 1 < parts_.size()) kept_.push_back(all.back());
        });
      }
    }
    for (std::vector<int32_t>* list : {&all, &kept_}) {
      std::ranges::sort(*list);
      list->erase(std::unique(list->begin(), list->end()), list->end());
    }
    if (!options.sub_plan) written_.set(all, options.version_steps);
  }

  at::Generator generator() const {
    const Device d = plan_.device;
    return at::globalContext().defaultGenerator(aten::to_aten(d));
  }

  Kept keep(c10::TensorImpl* const* inputs) const {
    Kept kept;
    const c10::impl::ExcludeDispatchKeyGuard below(kBelowAutograd);
    for (int32_t i : kept_) kept.contents.push_back(borrow(inputs[i]).clone());
    if (random_) {
      at::Generator g = generator();
      const std::lock_guard<std::mutex> lock(g.mutex());
      kept.generator = g.get_state();
    }
    return kept;
  }

  // False: what an earlier part did stays.
  bool undo(const Kept& kept, size_t failed, c10::TensorImpl* const* inputs) const {
    const c10::impl::ExcludeDispatchKeyGuard below(kBelowAutograd);
    for (size_t i = 0; i < kept_.size(); ++i) borrow(inputs[kept_[i]]).copy_(kept.contents[i]);
    if (random_) {
      at::Generator g = generator();
      const std::lock_guard<std::mutex> lock(g.mutex());
      g.set_state(kept.generator);
    }
    written_.tell_restored(inputs);
    return std::none_of(parts_.begin(), parts_.begin() + static_cast<std::ptrdiff_t>(failed),
                        [](const Part& p) { return p.acts; });
  }

  void run_parts(c10::TensorImpl* const* inputs, std::vector<at::Tensor>& outputs, size_t& at) const {
    outputs.clear();
    outputs.resize(plan_.outputs.size());
    SizeValues values(symbols_);
    for (const plan::SizeSource& s : sources_)
      values.set(s.symbol,
                 (s.stride ? inputs[s.input]->strides() : inputs[s.input]->sizes()).at(static_cast<size_t>(s.dim)));
    std::vector<at::Tensor> passed(passed_), made;
    for (at = 0; at < parts_.size(); ++at) {
      const Part& p = parts_[at];
      std::vector<at::Tensor> given;
      for (size_t i = 0; i < p.inputs.size(); ++i) {
        if (p.inputs[i] >= 0) {
          given.push_back(borrow(inputs[p.inputs[i]]));
        } else {
          at::Tensor& t = passed[static_cast<size_t>(-1 - p.inputs[i])];
          given.push_back(p.last[i] ? std::move(t) : t);
        }
      }
      if (p.point) {
        made = p.point->run(given, values);
      } else {
        Programs::Values own;
        for (const plan::SizeSource& s : p.programs->sources()) own.push_back(values[values.place_of(s.symbol)]);
        p.programs->of(own)->run_consuming(std::move(given), made);
        p.programs->went_through();
      }
      for (size_t i = 0; i < made.size(); ++i) {
        if (p.outputs[i].passed >= 0) passed[static_cast<size_t>(p.outputs[i].passed)] = made[i];
        if (p.outputs[i].output >= 0) outputs[static_cast<size_t>(p.outputs[i].output)] = std::move(made[i]);
      }
    }
    at = parts_.size() - 1;
    finish_outputs(inputs, outputs, values);
  }

  // Parts hand out whole tensors: the results are what the program sees of them, or of inputs.
  void finish_outputs(c10::TensorImpl* const* inputs, std::vector<at::Tensor>& outputs,
                      const SizeValues& values) const {
    for (size_t i = 0; i < plan_.outputs.size(); ++i) {
      const plan::OutputRef& o = plan_.outputs[i];
      if (o.tensor < 0 || o.type.opaque) continue;
      const std::vector<int64_t> sizes = values.of(o.type.sizes), strides = values.of(o.type.strides);
      const int64_t offset = values.of(o.type.offset);
      at::Tensor& out = outputs[i];
      if (out.sizes() == at::IntArrayRef(sizes) && out.strides() == at::IntArrayRef(strides) && offset == 0) continue;
      c10::TensorImpl* impl = out.unsafeGetTensorImpl();
      impl->set_storage_offset(impl->storage_offset() + offset);
      impl->set_sizes_and_strides(sizes, strides);
    }
    for (size_t i = 0; i < plan_.outputs.size(); ++i) {
      const plan::OutputRef& o = plan_.outputs[i];
      if (o.tensor >= 0) continue;
      at::Tensor base =
          o.alias_input >= 0 ? borrow(inputs[o.alias_input]) : outputs[static_cast<size_t>(o.alias_output)];
      if (base.requires_grad() && c10::GradMode::is_enabled()) base = base.detach();
      outputs[i] = at::as_strided(base, values.of(o.type.sizes), values.of(o.type.strides),
                                  base.storage_offset() + values.of(o.type.offset));
    }
  }

  plan::Plan plan_;
  const std::vector<int> symbols_;
  const std::vector<plan::SizeSource> sources_;  // but of those that points find
  std::vector<Part> parts_;
  size_t passed_ = 0;
  std::vector<int32_t> kept_;  // inputs that a part writes before the last one
  bool random_ = false;
  WrittenInputs written_;
  std::atomic<int64_t> calls_{0};
};

}  // namespace

std::shared_ptr<Executable> load_in_parts(plan::Plan plan, const LoadOptions& options, std::shared_ptr<const Code> code,
                                          MakePrograms make) {
  return std::make_shared<ExecutableInParts>(std::move(plan), options, std::move(code), make);
}

}  // namespace flashover::run
