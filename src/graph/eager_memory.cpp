// Walks the graph as eager would run it, and adds up what is alive.
#include "graph/eager_memory.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

struct Memory {
  int64_t bytes = 0;
  int32_t first = -1, last = -1;
};

std::optional<int64_t> bytes_of(const TensorType& t) {
  int64_t last = t.offset.as_const().value_or(-1);
  if (last < 0) return std::nullopt;
  for (size_t d = 0; d < t.rank(); ++d) {
    const auto size = t.sizes[d].as_const(), stride = t.strides[d].as_const();
    if (!size || !stride) return std::nullopt;
    if (*size == 0) return 0;
    last += (*size - 1) * *stride;
  }
  return (last + 1) * info(t.dtype).bytes;
}

bool channels_first(const TensorType& t) {
  if (t.rank() != 4 || !bytes_of(t)) return false;
  for (int64_t d = 3, stride = 1; d >= 0; --d) {
    const auto i = static_cast<size_t>(d);
    if (!t.sizes[i].is_const(1) && !t.strides[i].is_const(stride)) return false;
    stride *= t.sizes[i].value();
  }
  return true;
}

}  // namespace

int64_t working_bytes(std::string_view op, const std::vector<Arg>& args, const TensorType& input,
                      const TensorType& weight, const TensorType& out) {
  if (op != op::convolution || input.device.type != DeviceType::kCUDA) return 0;
  if (input.dtype != DType::kBF16 && input.dtype != DType::kF16) return 0;
  if (ops::as_bool(args[6]) || !channels_first(input) || !channels_first(out) || !channels_first(weight)) return 0;
  if (input.sizes[1].is_const(1) || out.sizes[1].is_const(1)) return 0;    // (both layouts at once)
  if (ops::as_int(args[8]) == 1 || weight.sizes[1].is_const(1)) return 0;  // (depthwise ones are torch's own)
  return bytes_of(input).value() + bytes_of(out).value();
}

EagerMemory eager_memory(const Graph& g) {
  static const ops::OpRow *const cast = ops::find(op::_to_copy), *const unsafe_view = ops::find(op::_unsafe_view),
                                 *const convolution = ops::find(op::convolution);
  const auto steps = static_cast<int32_t>(g.nodes.size());
  std::unordered_map<int32_t, Memory> by_storage;
  std::vector<bool> given(g.values.size()), lasting(g.values.size());
  std::unordered_map<int32_t, bool> foreign;  // storages of inputs
  std::vector<int32_t> storage(g.values.size());
  for (size_t v = 0; v < storage.size(); ++v)  // (a value without one has its own)
    storage[v] = g.values[v].storage >= 0 ? g.values[v].storage : -2 - static_cast<int32_t>(v);
  for (const Input& i : g.inputs) {
    foreign[storage[i.value]] = true;
    lasting[i.value] = is_lasting(i.kind);
  }
  bool known_sizes = true;
  const auto touch = [&](ValueId v, int32_t step) {
    const TensorType& type = g.type(v);
    if (type.device.type != DeviceType::kCUDA || type.opaque || foreign.count(storage[v])) return;
    const auto bytes = bytes_of(type);
    known_sizes &= bytes.has_value();
    Memory& m = by_storage[storage[v]];
    m.bytes = std::max(m.bytes, bytes.value_or(0));
    if (m.first < 0) m.first = step;
    m.last = std::max(m.last, step);
  };
  std::unordered_map<int64_t, ValueId> copies;  // autocast makes one of each
  std::vector<bool> again(g.values.size());
  std::vector<int64_t> working(g.nodes.size());
  for (int32_t i = 0; i < steps; ++i) {
    const Node& n = g.nodes[static_cast<size_t>(i)];
    if (n.op == cast && std::holds_alternative<Ref>(n.args[0])) {
      const ValueId from = std::get<Ref>(n.args[0]).id, to = n.outs[0];
      if (from != kNoValue && lasting[from]) {
        const int64_t key = int64_t{from} * 256 + static_cast<int64_t>(g.type(to).dtype);
        again[to] = !copies.try_emplace(key, to).second;
        if (!again[to]) touch(to, i), touch(to, steps);
        continue;
      }
    }
    // A view that is declared to be none.
    if (n.op == unsafe_view && std::holds_alternative<Ref>(n.args[0]))
      storage[n.outs[0]] = storage[ops::as_value(n.args[0])];
    const auto use = [&](ValueId v) {
      if (v != kNoValue && !again[v]) touch(v, i);
    };
    if (n.op == convolution)
      working[static_cast<size_t>(i)] = working_bytes(n.op->name, n.args, g.type(ops::as_value(n.args[0])),
                                                      g.type(ops::as_value(n.args[1])), g.type(n.outs[0]));
    for (const Arg& a : n.args) for_each_ref(a, use);
    for (ValueId v : n.outs) use(v);
  }
  for (const Output& o : g.outputs)
    if (o.value != kNoValue) touch(o.value, steps);
  if (!known_sizes) return {};
  std::vector<int64_t> change(static_cast<size_t>(steps) + 2);
  for (const auto& [storage, m] : by_storage) {
    change[static_cast<size_t>(m.first)] += m.bytes;
    change[static_cast<size_t>(m.last) + 1] -= m.bytes;
  }
  EagerMemory most;
  int64_t now = 0;
  for (size_t i = 0; i < change.size(); ++i) {
    most.bytes = std::max(most.bytes, now += change[i]);
    const int64_t own = i < working.size() ? working[i] : 0;
    most.working = std::max(most.working, now + own);
  }
  return most;
}

}  // namespace flashover::graph
