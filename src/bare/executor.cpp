// A plan of constant sizes is made for each size that comes; a call is a walk over its steps.
#include "bare/executor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <set>

#include "base/check.h"
#include "cpu_kernels/team.h"
#include "plan/contents.h"
#include "target/features.h"

namespace flashover::bare {

using plan::Step;
using plan::StepKind;
using plan::StorageKind;
using plan::TensorId;

namespace {

int64_t item_bytes(DType d) { return info(d).bytes; }

// Bytes from the first element to one past the last.
int64_t span_bytes(const Array& a) {
  int64_t last = 1;
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.sizes[d] == 0) return 0;
    last += (a.sizes[d] - 1) * a.strides[d];
  }
  return last * item_bytes(a.dtype);
}

// Element by element, in the order of their indices.
void copy_elements(const Array& from, const Array& to) {
  const auto bytes = static_cast<size_t>(item_bytes(from.dtype));
  std::vector<int64_t> at(from.sizes.size());
  if (std::ranges::find(from.sizes, 0) != from.sizes.end()) return;
  for (;;) {
    int64_t a = 0, b = 0;
    for (size_t d = 0; d < at.size(); ++d) a += at[d] * from.strides[d], b += at[d] * to.strides[d];
    std::memcpy(to.data + b * static_cast<int64_t>(bytes), from.data + a * static_cast<int64_t>(bytes), bytes);
    size_t d = at.size();
    while (d > 0 && ++at[d - 1] == from.sizes[d - 1]) at[--d] = 0;
    if (d == 0) return;
  }
}

std::vector<int64_t> numbers(const std::vector<sym::Expr>& expressions) {
  std::vector<int64_t> out;
  for (sym::Expr e : expressions) out.push_back(e.value());
  return out;
}

Array array_of(const TensorType& type, char* data, std::shared_ptr<char> memory) {
  return {std::move(memory), data, type.dtype, numbers(type.sizes), numbers(type.strides)};
}

// Memory of this thread that calls use for what does not outlive them.
char* arena_of_thread(int64_t bytes) {
  thread_local std::shared_ptr<char> memory;
  thread_local int64_t size = -1;
  if (bytes > size) memory = make_memory(bytes), size = bytes;
  return memory.get();
}

}  // namespace

std::shared_ptr<char> make_memory(int64_t bytes) {
  constexpr size_t kAlign = 64;
  const size_t rounded = (static_cast<size_t>(std::max<int64_t>(bytes, 1)) + kAlign - 1) / kAlign * kAlign;
  void* p = std::aligned_alloc(kAlign, rounded);
  if (!p) throw std::bad_alloc();
  return {static_cast<char*>(p), [](char* at) { std::free(at); }};
}

Array copy_of(const Array& a) {
  Array out = a;
  const int64_t bytes = span_bytes(a);
  out.memory = make_memory(bytes);
  out.data = out.memory.get();
  if (bytes > 0) std::memcpy(out.data, a.data, static_cast<size_t>(bytes));
  return out;
}

Array in_strides(const Array& a, std::vector<int64_t> strides) {
  Array out = a;
  out.strides = std::move(strides);
  out.memory = make_memory(span_bytes(out));
  out.data = out.memory.get();
  copy_elements(a, out);
  return out;
}

std::string why_not(const plan::Plan& p) {
  if (p.device.type != DeviceType::kCPU) return "it is for a GPU";
  if (const std::string missing = target::missing_feature(p.target); !missing.empty())
    return "this machine lacks " + missing;
  const std::vector<std::string> called = plan::operators_called(p);
  std::set<std::string> operators(called.begin(), called.end());
  for (const std::vector<Step>* steps : {&p.frozen_steps, &p.steps})
    for (const Step& s : *steps) {
      if (s.kind != StepKind::kCopy) continue;
      const auto dtype = [&](TensorId t) { return p.tensors[static_cast<size_t>(t)].type.dtype; };
      if (dtype(s.reads[0]) != dtype(s.writes[0])) operators.insert("a copy that converts");
    }
  for (const plan::Tensor& t : p.tensors)
    if (t.storage == StorageKind::kExtern || t.type.opaque) operators.insert("memory of a library's");
  std::string out;
  for (const std::string& name : operators) out += (out.empty() ? "it needs torch for " : ", ") + name;
  return out;
}

struct Executor::Sized {
  plan::Plan plan;
  std::vector<TensorId> roots;
  std::vector<int64_t> offsets;  // bytes from the root's first element
  explicit Sized(plan::Plan p) : plan(std::move(p)) {
    for (size_t t = 0; t < plan.tensors.size(); ++t) {
      sym::Expr elements = 0;
      roots.push_back(plan::root(plan, static_cast<TensorId>(t), &elements));
      offsets.push_back(elements.value() * item_bytes(plan.tensors[static_cast<size_t>(roots.back())].type.dtype));
    }
  }
  char* address(TensorId t, const Memory& m) const {
    const TensorId r = roots[static_cast<size_t>(t)];
    const plan::Tensor& root = plan.tensors[static_cast<size_t>(r)];
    const auto index = static_cast<size_t>(root.index);
    char* base = nullptr;
    if (root.storage == StorageKind::kInput) base = m.inputs[index];
    if (root.storage == StorageKind::kArena) base = m.arena + root.arena_offset.value();
    if (root.storage == StorageKind::kOutput) base = m.outputs[index].get();
    if (root.storage == StorageKind::kFrozen) base = m.frozen[static_cast<size_t>(r)];
    return base ? base + offsets[static_cast<size_t>(t)] : nullptr;
  }
  Array array(TensorId t, const Memory& m) const {
    return array_of(plan.tensors[static_cast<size_t>(t)].type, address(t, m), nullptr);
  }
  const plan::Tensor& tensor(TensorId t) const { return plan.tensors[static_cast<size_t>(t)]; }
};

Executor::Executor(plan::Plan p) : plan_(std::move(p)), sources_(plan::size_sources(plan_)) {
  plan::verify(plan_);
  plan::check_frozen_part(plan_);
  for (plan::Binary& b : plan_.binaries) {
    libraries_.push_back(run::Library::load(b.bytes));
    b.bytes.clear();
  }
  for (const plan::Kernel& k : plan_.kernels)
    kernels_.push_back(reinterpret_cast<KernelFn>(libraries_[static_cast<size_t>(k.binary)]->symbol(k.symbol)));
}

std::shared_ptr<const Executor::Sized> Executor::sized(std::span<const int64_t> values) const {
  constexpr size_t kMost = 256;
  const std::vector<int64_t> key(values.begin(), values.end());
  const std::lock_guard lock(mutex_);
  if (const auto known = sized_.find(key); known != sized_.end()) return known->second;
  if (sized_.size() >= kMost) sized_.clear();
  auto made = std::make_shared<const Sized>(plan::with_sizes(plan_, sources_, values));
  sized_.emplace(key, made);
  return made;
}

void Executor::walk(const Sized& s, const std::vector<Step>& steps, const Memory& memory) const {
  std::vector<void*> pointers;
  std::vector<int64_t> sizes;
  for (const Step& step : steps) {
    if (step.kind == StepKind::kCopy) copy_elements(s.array(step.reads[0], memory), s.array(step.writes[0], memory));
    if (step.kind != StepKind::kLaunch) continue;
    pointers.clear();
    for (const std::vector<TensorId>* tensors : {&step.reads, &step.writes})
      for (TensorId t : *tensors) pointers.push_back(s.address(t, memory));
    sizes = numbers(step.sizes);
    const auto kernel = static_cast<size_t>(step.kernel);
    if (const int32_t failed = kernels_[kernel](pointers.data(), sizes.data(), &cpu::share); failed != 0) {
      const std::vector<std::string>& errors = s.plan.kernels[kernel].errors;
      throw UserError(step.label + ": " +
                      (static_cast<size_t>(failed) <= errors.size() ? errors[static_cast<size_t>(failed) - 1]
                                                                    : std::string("a check failed")));
    }
  }
}

FrozenMemory Executor::compute_frozen(std::span<char* const> inputs) const {
  FrozenMemory out;
  out.tensors.resize(plan_.tensors.size());
  if (plan_.frozen_steps.empty()) return out;
  // (Sizes do not matter: nothing of it depends on them.)
  constexpr int64_t kSome = 2;
  std::vector<int64_t> values;
  for (const plan::SizeSource& source : sources_)
    values.push_back(std::max(kSome, sym::size_symbol(source.symbol).range().lo));
  const std::shared_ptr<const Sized> s = sized(values);
  int64_t bytes = 0;
  std::vector<int64_t> at(plan_.tensors.size(), -1);
  for (size_t t = 0; t < at.size(); ++t) {
    if (s->plan.tensors[t].storage != StorageKind::kFrozen) continue;
    at[t] = bytes;
    bytes += (plan::bytes(s->plan.tensors[t].type).value() + 63) / 64 * 64;
  }
  out.memory = make_memory(bytes);
  for (size_t t = 0; t < at.size(); ++t)
    if (at[t] >= 0) out.tensors[t] = out.memory.get() + at[t];
  walk(*s, s->plan.frozen_steps, {.inputs = inputs, .frozen = out.tensors});
  return out;
}

std::vector<Array> Executor::run(std::span<char* const> inputs, std::span<const std::vector<int64_t>> sizes,
                                 const FrozenMemory& frozen) const {
  std::vector<int64_t> values;
  for (const plan::SizeSource& source : sources_)
    values.push_back(sizes[static_cast<size_t>(source.input)][static_cast<size_t>(source.dim)]);
  const std::shared_ptr<const Sized> s = sized(values);
  std::vector<std::shared_ptr<char>> owned(s->plan.outputs.size());
  for (const plan::Tensor& t : s->plan.tensors)
    if (t.storage == StorageKind::kOutput)
      owned[static_cast<size_t>(t.index)] = make_memory(plan::bytes(t.type).value());
  const Memory memory{inputs, arena_of_thread(s->plan.arena_bytes.value()), owned, frozen.tensors};
  walk(*s, s->plan.steps, memory);
  std::vector<Array> out(s->plan.outputs.size());
  const auto behind = [](char* data, const plan::OutputRef& o) {
    return data + o.type.offset.value() * item_bytes(o.type.dtype);
  };
  for (size_t i = 0; i < out.size(); ++i) {
    const plan::OutputRef& o = s->plan.outputs[i];
    if (o.tensor < 0) continue;
    const plan::Tensor& root = s->tensor(s->roots[static_cast<size_t>(o.tensor)]);
    const bool own = root.storage == StorageKind::kOutput;
    const Array lying = array_of(o.type, behind(s->address(o.tensor, memory), o),
                                 own ? owned[static_cast<size_t>(root.index)] : nullptr);
    out[i] = own ? lying : copy_of(lying);
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const plan::OutputRef& o = s->plan.outputs[i];
    if (o.alias_input >= 0)
      out[i] = copy_of(array_of(o.type, behind(inputs[static_cast<size_t>(o.alias_input)], o), nullptr));
    if (o.alias_output >= 0) {
      const Array& base = out[static_cast<size_t>(o.alias_output)];
      out[i] = array_of(o.type, behind(base.data, o), base.memory);
    }
  }
  return out;
}

}  // namespace flashover::bare
