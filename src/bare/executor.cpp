// A plan of constant sizes is made for each size that comes; a call is a walk over its steps.
#include "bare/executor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>

#include "base/check.h"
#include "base/pages.h"
#include "cpu_kernels/library_operators.h"
#include "cpu_kernels/plain.h"
#include "cpu_kernels/team.h"
#include "plan/blocks.h"
#include "plan/contents.h"
#include "plan/lifetimes.h"
#include "run/without_torch.h"
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
  prefer_huge_pages(p, rounded);
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
  std::string out;
  for (const std::string& name : run::needs_torch(p)) out += (out.empty() ? "it needs torch for " : ", ") + name;
  if (!out.empty()) return out;
  for (const std::string& op : plan::operators_called(p))
    for (const std::string_view missing : {cpu::missing_for(op), cpu::missing_without_library(op)})
      if (!missing.empty()) return op + " needs " + std::string(missing) + ", which this machine lacks";
  return "";
}

// The step's argument as the operator takes it.
static cpu::PlainArgument plain_argument(const Arg& a, const std::function<cpu::Plain(TensorId)>& tensor) {
  if (const auto* r = std::get_if<Ref>(&a)) return r->id == kNoValue ? cpu::PlainArgument() : tensor(r->id);
  if (const auto* l = std::get_if<RefList>(&a)) {
    std::vector<cpu::Plain> tensors;
    for (const Ref& r : *l) tensors.push_back(tensor(r.id));
    return tensors;
  }
  if (const auto* e = std::get_if<sym::Expr>(&a)) return e->value();
  if (const auto* s = std::get_if<Sizes>(&a)) return numbers(*s);
  if (const auto* d = std::get_if<double>(&a)) return *d;
  if (const auto* b = std::get_if<bool>(&a)) return *b;
  if (const auto* t = std::get_if<std::string>(&a)) return std::string_view(*t);
  return {};
}

static std::vector<cpu::PlainArgument> plain_arguments(const Step& step,
                                                       const std::function<cpu::Plain(TensorId)>& tensor) {
  std::vector<cpu::PlainArgument> out;
  for (const Arg& a : step.args) out.push_back(plain_argument(a, tensor));
  return out;
}

// Elements of a tensor in an operator's own order.
static int64_t packed_elements(const plan::Plan& p, TensorId t) {
  const Step* made = run::packing_of(p, t);
  FLASHOVER_CHECK(made) << "a tensor in a library's order";
  std::map<TensorId, std::vector<int64_t>> sizes;
  const auto without_data = [&](TensorId id) {
    const TensorType& type = p.tensors[static_cast<size_t>(id)].type;
    const std::vector<int64_t>& of = sizes[id] = numbers(type.sizes);
    return cpu::Plain{nullptr, type.dtype, of, {}};
  };
  const int64_t n = cpu::find_plain(made->op)->packed_elements(plain_arguments(*made, without_data));
  if (n < 0) throw UserError("damaged plan: what is packed has another rank");
  return n;
}

struct Executor::Sized {
  plan::Plan plan;
  std::vector<TensorId> roots;
  std::vector<int64_t> offsets;  // bytes from the root's first element
  // What operators make lies behind the arena.
  std::vector<int64_t> results_at;  // by tensor; -1 for others
  int64_t arena_bytes = 0;
  std::vector<std::vector<int64_t>> sizes, strides;  // by tensor, as operators see it
  explicit Sized(plan::Plan p) : plan(std::move(p)), results_at(plan.tensors.size(), -1) {
    for (size_t t = 0; t < plan.tensors.size(); ++t) {
      sym::Expr elements = 0;
      roots.push_back(plan::root(plan, static_cast<TensorId>(t), &elements));
      offsets.push_back(elements.value() * item_bytes(plan.tensors[static_cast<size_t>(roots.back())].type.dtype));
      const TensorType& type = plan.tensors[t].type;
      sizes.push_back(type.opaque ? std::vector{packed_elements(plan, static_cast<TensorId>(t))} : numbers(type.sizes));
      strides.push_back(type.opaque ? std::vector<int64_t>{1} : numbers(type.strides));
    }
    place_results();
  }
  void place_results() {
    const std::vector<plan::Lifetime> lives = plan::lifetimes(plan);
    std::vector<plan::Block> blocks;
    std::vector<size_t> of;
    for (size_t t = 0; t < plan.tensors.size(); ++t)
      if (plan.tensors[t].storage == StorageKind::kExtern && lives[t].first >= 0) {
        blocks.push_back({.bytes = bytes(static_cast<TensorId>(t)), .first = lives[t].first, .last = lives[t].last});
        of.push_back(t);
      }
    const int64_t begin = (plan.arena_bytes.value() + 63) / 64 * 64;
    arena_bytes = begin + plan::assign_offsets(blocks);
    for (size_t i = 0; i < of.size(); ++i) results_at[of[i]] = begin + blocks[i].offset;
  }
  int64_t bytes(TensorId t) const {
    const TensorType& type = tensor(t).type;
    return type.opaque ? sizes[static_cast<size_t>(t)][0] * item_bytes(type.dtype) : plan::bytes(type).value();
  }
  char* address(TensorId t, const Memory& m) const {
    const TensorId r = roots[static_cast<size_t>(t)];
    const plan::Tensor& root = plan.tensors[static_cast<size_t>(r)];
    const auto index = static_cast<size_t>(root.index);
    char* base = nullptr;
    if (root.storage == StorageKind::kInput) base = m.inputs[index];
    if (root.storage == StorageKind::kArena) base = m.arena + root.arena_offset.value();
    if (root.storage == StorageKind::kExtern) base = m.arena + results_at[static_cast<size_t>(r)];
    if (root.storage == StorageKind::kOutput) base = m.outputs[index].get();
    if (root.storage == StorageKind::kFrozen) base = m.frozen[static_cast<size_t>(r)];
    return base ? base + offsets[static_cast<size_t>(t)] : nullptr;
  }
  Array array(TensorId t, const Memory& m) const {
    return array_of(plan.tensors[static_cast<size_t>(t)].type, address(t, m), nullptr);
  }
  const plan::Tensor& tensor(TensorId t) const { return plan.tensors[static_cast<size_t>(t)]; }
  cpu::Plain plain(TensorId t, const Memory& m) const {
    const auto i = static_cast<size_t>(t);
    return {address(t, m), plan.tensors[i].type.dtype, sizes[i], strides[i]};
  }
  void call(const Step& step, const Memory& memory) const;
};

void Executor::Sized::call(const Step& step, const Memory& memory) const {
  const auto tensor = [&](TensorId t) { return plain(t, memory); };
  std::vector<cpu::Plain> results;
  for (const TensorId t : step.writes) results.push_back(t < 0 ? cpu::Plain() : tensor(t));
  if (const cpu::Wrong wrong = cpu::find_plain(step.op)->call(plain_arguments(step, tensor), results); !wrong.empty())
    throw UserError(step.label + ": " + std::string(wrong));
}

Executor::Executor(plan::Plan p) : plan_(std::move(p)), sources_(plan::size_sources(plan_)) {
  plan::verify(plan_);
  plan::check_frozen_part(plan_);
  if (std::ranges::any_of(sources_, &plan::SizeSource::stride))
    throw UserError("a plan whose inputs may have any strides does not run without torch");
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
    if (step.kind == StepKind::kCall) s.call(step, memory);
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

// For what does not depend on sizes.
std::shared_ptr<const Executor::Sized> Executor::some_size() const {
  constexpr int64_t kSome = 2;
  std::vector<int64_t> values;
  for (const plan::SizeSource& source : sources_)
    values.push_back(std::max(kSome, sym::size_symbol(source.symbol).range().lo));
  return sized(values);
}

std::optional<FrozenMemory> Executor::take_frozen(
    std::shared_ptr<char> memory, const std::vector<std::pair<TensorId, std::span<char>>>& tensors) const {
  FrozenMemory out{std::move(memory), std::vector<char*>(plan_.tensors.size())};
  const std::shared_ptr<const Sized> s = some_size();
  for (const auto& [t, bytes] : tensors)
    if (static_cast<int64_t>(bytes.size()) == s->bytes(t)) out.tensors[static_cast<size_t>(t)] = bytes.data();
  for (const TensorId t : plan::kept_frozen(plan_))
    if (!out.tensors[static_cast<size_t>(t)]) return std::nullopt;
  return out;
}

FrozenMemory Executor::compute_frozen(std::span<char* const> inputs) const {
  FrozenMemory out;
  out.tensors.resize(plan_.tensors.size());
  if (plan_.frozen_steps.empty()) return out;
  const std::shared_ptr<const Sized> s = some_size();
  // What later steps read stays; the rest shares memory, and goes.
  std::vector<bool> stays(plan_.tensors.size());
  for (const TensorId t : plan::kept_frozen(plan_)) stays[static_cast<size_t>(s->roots[static_cast<size_t>(t)])] = true;
  const std::vector<plan::Lifetime> lives = plan::frozen_lifetimes(s->plan);
  std::vector<plan::Block> kept, passing;
  std::vector<size_t> kept_of, passing_of;
  for (size_t t = 0; t < stays.size(); ++t) {
    if (s->plan.tensors[t].storage != StorageKind::kFrozen) continue;
    const int32_t last = stays[t] ? static_cast<int32_t>(s->plan.frozen_steps.size()) : lives[t].last;
    (stays[t] ? kept : passing)
        .push_back({.bytes = s->bytes(static_cast<TensorId>(t)),
                    .first = stays[t] ? 0 : std::max(lives[t].first, 0),
                    .last = std::max(last, 0)});
    (stays[t] ? kept_of : passing_of).push_back(t);
  }
  out.memory = make_memory(plan::assign_offsets(kept));
  const std::shared_ptr<char> scratch = make_memory(plan::assign_offsets(passing));
  for (size_t i = 0; i < kept.size(); ++i) out.tensors[kept_of[i]] = out.memory.get() + kept[i].offset;
  for (size_t i = 0; i < passing.size(); ++i) out.tensors[passing_of[i]] = scratch.get() + passing[i].offset;
  walk(*s, s->plan.frozen_steps, {.inputs = inputs, .frozen = out.tensors});
  for (const size_t t : passing_of) out.tensors[t] = nullptr;
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
  const Memory memory{inputs, arena_of_thread(s->arena_bytes), owned, frozen.tensors};
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
