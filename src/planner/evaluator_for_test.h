// A plain evaluator of core graphs on row-major doubles, and a runner of plans (through loops::interpret or compiled
// kernels): the two sides of the scheduling tests. Nothing here shares code with lowering.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "graph/graph.h"
#include "loops/half.h"
#include "ops/args.h"
#include "planner/planner.h"

namespace flashover::planner::testing {

struct Array {
  std::vector<int64_t> sizes;
  std::vector<double> data;  // row major, rounded to the dtype it stands for
};
struct PlanResult {
  std::vector<Array> outputs;
  std::vector<Array> inputs_after;
  int32_t error = 0;
};
// Runs kernel number k on pointers.
using Launch = std::function<int32_t(int32_t k, std::span<void* const> pointers, std::span<const int64_t> sizes)>;

namespace detail {

inline int64_t product(const std::vector<int64_t>& v) {
  int64_t n = 1;
  for (int64_t x : v) n *= x;
  return n;
}
inline std::vector<int64_t> constant(const Sizes& s) {
  std::vector<int64_t> out;
  for (sym::Expr e : s) out.push_back(e.value());
  return out;
}
inline std::vector<int64_t> coords(int64_t flat, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> c(sizes.size());
  for (size_t i = sizes.size(); i-- > 0;) {
    c[i] = flat % sizes[i];
    flat /= sizes[i];
  }
  return c;
}
inline int64_t flat(const std::vector<int64_t>& c, const std::vector<int64_t>& sizes) {
  int64_t f = 0;
  for (size_t i = 0; i < sizes.size(); ++i) f = f * sizes[i] + c[i];
  return f;
}
inline double round_to(DType d, double v) {
  switch (d) {
    case DType::kF32:
      return static_cast<float>(v);
    case DType::kI64:
    case DType::kI32:
      return std::trunc(v);
    case DType::kBool:
      return v != 0;
    default:
      return v;  // 16-bit floats: fused chains keep f32, so no rounding here; tests compare loosely
  }
}

inline double unary(const std::string& op, double a) {
  if (op == "neg") return -a;
  if (op == "abs") return std::fabs(a);
  if (op == "exp") return std::exp(a);
  if (op == "sqrt") return std::sqrt(a);
  if (op == "rsqrt") return 1 / std::sqrt(a);
  if (op == "tanh") return std::tanh(a);
  if (op == "sigmoid") return 1 / (1 + std::exp(-a));
  if (op == "relu") return a < 0 ? 0 : a;
  if (op == "erf") return std::erf(a);
  if (op == "logical_not") return a == 0;
  if (op == "convert" || op == "copy") return a;
  FLASHOVER_CHECK(false) << "evaluator: " << op;
  return 0;
}
inline double binary(const std::string& op, double a, double b) {
  if (op == "add") return a + b;
  if (op == "sub") return a - b;
  if (op == "mul") return a * b;
  if (op == "div") return a / b;
  if (op == "maximum") return std::max(a, b);
  if (op == "minimum") return std::min(a, b);
  if (op == "lt") return a < b;
  if (op == "gt") return a > b;
  if (op == "le") return a <= b;
  if (op == "eq") return a == b;
  FLASHOVER_CHECK(false) << "evaluator: " << op;
  return 0;
}

class Evaluator {
 public:
  Evaluator(const graph::Graph& g, const std::vector<Array>& inputs) : g_(g), values_(g.values.size()) {
    for (size_t i = 0; i < g.inputs.size(); ++i) values_[g.inputs[i].value] = inputs[i];
  }
  std::vector<Array> run() {
    for (const graph::Node& n : g_.nodes) node(n);
    return std::move(values_);
  }

 private:
  const Array& in(const graph::Node& n, size_t i) const { return values_[ops::as_value(n.args[i])]; }
  template <typename F>
  void fill(const graph::Node& n, F&& f) {
    Array& out = values_[n.outs[0]];
    const TensorType& t = g_.type(n.outs[0]);
    out.sizes = constant(t.sizes);
    out.data.resize(static_cast<size_t>(product(out.sizes)));
    for (size_t i = 0; i < out.data.size(); ++i)
      out.data[i] = round_to(t.dtype, f(coords(static_cast<int64_t>(i), out.sizes), i));
  }
  static double get(const Array& a, const std::vector<int64_t>& c) {
    return a.data[static_cast<size_t>(flat(c, a.sizes))];
  }

  void node(const graph::Node& n) {
    const std::string op = n.op->name.substr(n.op->is_prim() ? 5 : 0);
    if (!n.op->is_prim()) {  // any extern of the tests: its operand, negated
      fill(n, [&](const auto&, size_t i) { return -in(n, 0).data[i]; });
      return;
    }
    if (n.op->kind == ops::OpKind::kPointwise) {
      if (op == "where")
        return fill(n, [&](const auto&, size_t i) { return in(n, 0).data[i] ? in(n, 1).data[i] : in(n, 2).data[i]; });
      const bool two = n.args.size() > 1 && std::holds_alternative<Ref>(n.args[1]);
      return fill(n, [&](const auto&, size_t i) {
        return two ? binary(op, in(n, 0).data[i], in(n, 1).data[i]) : unary(op, in(n, 0).data[i]);
      });
    }
    if (n.op->kind == ops::OpKind::kReduction) return reduce(n, op);
    if (op == "full") return fill(n, [&](const auto&, size_t) { return ops::as_double(n.args[1]); });
    if (op == "iota")
      return fill(n, [&](const auto& c, size_t) {
        return ops::as_double(n.args[1]) + static_cast<double>(c[0]) * ops::as_double(n.args[2]);
      });
    if (op == "broadcast") {
      auto dims = ops::as_ints(n.args[2]);
      return fill(n, [&](const auto& c, size_t) {
        std::vector<int64_t> from;
        for (size_t i = 0; i < dims.size(); ++i) from.push_back(in(n, 0).sizes[i] == 1 ? 0 : c[dims[i]]);
        return get(in(n, 0), from);
      });
    }
    if (op == "permute") {
      auto dims = ops::as_ints(n.args[1]);
      return fill(n, [&](const auto& c, size_t) {
        std::vector<int64_t> from(dims.size());
        for (size_t i = 0; i < dims.size(); ++i) from[dims[i]] = c[i];
        return get(in(n, 0), from);
      });
    }
    if (op == "reshape") return fill(n, [&](const auto&, size_t i) { return in(n, 0).data[i]; });
    if (op == "slice") {
      auto starts = ops::as_ints(n.args[1]), steps = ops::as_ints(n.args[3]);
      return fill(n, [&](const auto& c, size_t) {
        std::vector<int64_t> from;
        for (size_t i = 0; i < c.size(); ++i) from.push_back(starts[i] + c[i] * steps[i]);
        return get(in(n, 0), from);
      });
    }
    if (op == "flip") {
      auto dims = ops::as_ints(n.args[1]);
      return fill(n, [&](const auto& c, size_t) {
        std::vector<int64_t> from(c);
        for (int64_t d : dims) from[d] = in(n, 0).sizes[d] - 1 - c[d];
        return get(in(n, 0), from);
      });
    }
    if (op == "pad") {
      auto lo = ops::as_ints(n.args[1]);
      return fill(n, [&](const auto& c, size_t) {
        std::vector<int64_t> from;
        for (size_t i = 0; i < c.size(); ++i) {
          from.push_back(c[i] - lo[i]);
          if (from[i] < 0 || from[i] >= in(n, 0).sizes[i]) return ops::as_double(n.args[3]);
        }
        return get(in(n, 0), from);
      });
    }
    if (op == "cat") {
      auto list = ops::as_values(n.args[0]);
      auto dim = static_cast<size_t>(ops::as_int(n.args[1]));
      return fill(n, [&](const auto& c, size_t) {
        std::vector<int64_t> from(c);
        for (const Ref& r : list) {
          if (from[dim] < values_[r.id].sizes[dim]) return get(values_[r.id], from);
          from[dim] -= values_[r.id].sizes[dim];
        }
        return 0.0;
      });
    }
    if (op == "gather") {
      auto dim = static_cast<size_t>(ops::as_int(n.args[1]));
      return fill(n, [&](const auto& c, size_t i) {
        std::vector<int64_t> from(c);
        from[dim] = static_cast<int64_t>(in(n, 2).data[i]);
        return get(in(n, 0), from);
      });
    }
    if (op == "index") {  // one index tensor, in front
      const Array& index = values_[ops::as_values(n.args[1])[0].id];
      return fill(n, [&](const auto& c, size_t) {
        std::vector<int64_t> where(c.begin(), c.begin() + static_cast<std::ptrdiff_t>(index.sizes.size()));
        std::vector<int64_t> from{static_cast<int64_t>(get(index, where))};
        from.insert(from.end(), c.begin() + static_cast<std::ptrdiff_t>(index.sizes.size()), c.end());
        return get(in(n, 0), from);
      });
    }
    if (op == "scatter") {
      auto dim = static_cast<size_t>(ops::as_int(n.args[1]));
      values_[n.outs[0]] = in(n, 0);
      Array& out = values_[n.outs[0]];
      for (size_t i = 0; i < in(n, 2).data.size(); ++i) {
        auto c = coords(static_cast<int64_t>(i), in(n, 2).sizes);
        auto from = c;
        c[dim] = static_cast<int64_t>(in(n, 2).data[i]);
        double& d = out.data[static_cast<size_t>(flat(c, out.sizes))];
        d = std::get<std::string>(n.args[4]) == "add" ? static_cast<float>(d + get(in(n, 3), from))
                                                      : get(in(n, 3), from);
      }
      return;
    }
    if (op == "slice_scatter") {
      auto starts = ops::as_ints(n.args[2]), steps = ops::as_ints(n.args[4]);
      values_[n.outs[0]] = in(n, 0);
      const Array& src = in(n, 1);
      for (size_t i = 0; i < src.data.size(); ++i) {
        auto c = coords(static_cast<int64_t>(i), src.sizes);
        for (size_t d = 0; d < c.size(); ++d) c[d] = starts[d] + c[d] * steps[d];
        values_[n.outs[0]].data[static_cast<size_t>(flat(c, values_[n.outs[0]].sizes))] = src.data[i];
      }
      return;
    }
    if (op == "cumsum") {
      auto dim = static_cast<size_t>(ops::as_int(n.args[1]));
      return fill(n, [&](const auto& c, size_t) {
        double s = 0;
        std::vector<int64_t> from(c);
        for (int64_t k = 0; k <= c[dim]; ++k) {
          from[dim] = k;
          s += get(in(n, 0), from);
        }
        return s;
      });
    }
    if (op == "max_pool" || op == "avg_pool") {
      auto kernel = ops::as_ints(n.args[1]), stride = ops::as_ints(n.args[2]), padding = ops::as_ints(n.args[3]);
      const Array& x = in(n, 0);
      return fill(n, [&](const auto& c, size_t) {
        double best = op == "max_pool" ? -INFINITY : 0;
        int64_t windows = product(kernel), valid = 0;
        for (int64_t w = 0; w < windows; ++w) {
          auto k = coords(w, kernel);
          std::vector<int64_t> from(c);
          bool inside = true;
          for (size_t i = 0; i < k.size(); ++i) {
            size_t d = c.size() - k.size() + i;
            from[d] = c[d] * stride[i] - padding[i] + k[i];
            inside &= from[d] >= 0 && from[d] < x.sizes[d];
          }
          if (!inside) continue;
          ++valid;
          best = op == "max_pool" ? std::max(best, get(x, from)) : best + get(x, from);
        }
        return op == "max_pool" ? best : best / static_cast<double>(ops::as_bool(n.args[5]) ? windows : valid);
      });
    }
    FLASHOVER_CHECK(false) << "evaluator: " << op;
  }

  void reduce(const graph::Node& n, const std::string& op) {
    const Array& x = in(n, 0);
    auto dims = ops::as_ints(n.args[1]);
    std::vector<int64_t> reduced_sizes;
    for (int64_t d : dims) reduced_sizes.push_back(x.sizes[d]);
    auto each = [&](const std::vector<int64_t>& c, auto&& f) {
      for (int64_t r = 0; r < product(reduced_sizes); ++r) {
        auto rc = coords(r, reduced_sizes);
        std::vector<int64_t> from;
        size_t i = 0, j = 0;
        for (size_t d = 0; d < x.sizes.size(); ++d) {
          const bool is = j < dims.size() && dims[j] == static_cast<int64_t>(d);
          from.push_back(is ? rc[j] : c[i]);
          is ? ++j : ++i;
        }
        f(get(x, from), r);
      }
    };
    auto mean_of = [&](const std::vector<int64_t>& c) {
      double s = 0;
      each(c, [&](double v, int64_t) { s += v; });
      return s / static_cast<double>(product(reduced_sizes));
    };
    if (op == "var") {
      fill(n, [&](const auto& c, size_t) {
        double m = mean_of(c), s = 0;
        each(c, [&](double v, int64_t) { s += (v - m) * (v - m); });
        return s / (static_cast<double>(product(reduced_sizes)) - ops::as_double(n.args[2]));
      });
      Array var = std::move(values_[n.outs[0]]);
      fill(n, [&](const auto& c, size_t) { return mean_of(c); });
      values_[n.outs[1]] = std::move(values_[n.outs[0]]);
      values_[n.outs[0]] = std::move(var);
      return;
    }
    fill(n, [&](const auto& c, size_t) {
      double s = op == "amax" || op == "argmax" ? -INFINITY : op == "amin" ? INFINITY : op == "prod" ? 1 : 0;
      int64_t at = 0;
      each(c, [&](double v, int64_t r) {
        if (op == "sum")
          s += v;
        else if (op == "amax")
          s = std::max(s, v);
        else if (op == "amin")
          s = std::min(s, v);
        else if (op == "argmax") {
          if (v > s) s = v, at = r;
        } else
          FLASHOVER_CHECK(false) << "evaluator: " << op;
      });
      return op == "argmax" ? static_cast<double>(at) : s;
    });
  }

  const graph::Graph& g_;
  std::vector<Array> values_;
};

// ---- plans
struct Memory {
  std::vector<char> owned;
  char* data = nullptr;
};
inline double load(DType d, const char* p, int64_t i) {
  switch (d) {
    case DType::kF32: {
      float v;
      std::memcpy(&v, p + i * 4, 4);
      return v;
    }
    case DType::kF64: {
      double v;
      std::memcpy(&v, p + i * 8, 8);
      return v;
    }
    case DType::kBF16: {
      uint16_t v;
      std::memcpy(&v, p + i * 2, 2);
      return loops::bf16_to_float(v);
    }
    case DType::kI64: {
      int64_t v;
      std::memcpy(&v, p + i * 8, 8);
      return static_cast<double>(v);
    }
    case DType::kI32: {
      int32_t v;
      std::memcpy(&v, p + i * 4, 4);
      return v;
    }
    case DType::kBool:
      return p[i];
    default:
      FLASHOVER_CHECK(false) << "test dtype";
      return 0;
  }
}
inline void store(DType d, char* p, int64_t i, double x) {
  switch (d) {
    case DType::kF32: {
      float v = static_cast<float>(x);
      std::memcpy(p + i * 4, &v, 4);
      return;
    }
    case DType::kF64:
      std::memcpy(p + i * 8, &x, 8);
      return;
    case DType::kBF16: {
      uint16_t v = loops::float_to_bf16(static_cast<float>(x));
      std::memcpy(p + i * 2, &v, 2);
      return;
    }
    case DType::kI64: {
      auto v = static_cast<int64_t>(x);
      std::memcpy(p + i * 8, &v, 8);
      return;
    }
    case DType::kI32: {
      auto v = static_cast<int32_t>(x);
      std::memcpy(p + i * 4, &v, 4);
      return;
    }
    case DType::kBool:
      p[i] = x != 0;
      return;
    default:
      FLASHOVER_CHECK(false) << "test dtype";
  }
}

class Runner {
 public:
  Runner(const Schedule& s, const std::vector<Array>& inputs, const Launch& launch)
      : s_(s), p_(s.plan), launch_(launch), memory_(p_.tensors.size()) {
    arena_.resize(static_cast<size_t>(p_.arena_bytes.value()) + 64, static_cast<char>(0x7f));  // stale memory must show
    for (size_t t = 0; t < p_.tensors.size(); ++t) {
      const plan::Tensor& x = p_.tensors[t];
      if (x.storage == plan::StorageKind::kView) {
        memory_[t].data = memory_[x.index].data + x.type.offset.value() * info(x.type.dtype).bytes;
      } else if (x.storage == plan::StorageKind::kArena) {
        memory_[t].data = arena_.data() + x.arena_offset.value();
      } else {
        memory_[t].owned.assign(static_cast<size_t>(plan::span(x.type).value()) * info(x.type.dtype).bytes + 64,
                                static_cast<char>(0x7f));
        memory_[t].data = memory_[t].owned.data();
      }
      if (x.storage == plan::StorageKind::kInput) write(static_cast<plan::TensorId>(t), inputs[x.index]);
    }
  }
  PlanResult run() {
    PlanResult r;
    for (const auto* steps : {&p_.frozen_steps, &p_.steps})
      for (const plan::Step& s : *steps) {
        if (s.kind == plan::StepKind::kLaunch) {
          std::vector<void*> pointers;
          for (plan::TensorId t : s.reads) pointers.push_back(memory_[t].data);
          for (plan::TensorId t : s.writes) pointers.push_back(memory_[t].data);
          const std::vector<int64_t> sizes = constant(s.sizes);
          if (int32_t e = launch_ ? launch_(s.kernel, pointers, sizes)
                                  : loops::interpret(s_.kernels[s.kernel], pointers, sizes)) {
            r.error = e;
            return r;
          }
        } else if (s.kind == plan::StepKind::kCopy) {
          write(s.writes[0], read(s.reads[0]));
        } else if (s.kind == plan::StepKind::kCall && s.op.starts_with("test.")) {
          Array a = read(std::get<Ref>(s.args[0]).id);
          for (double& d : a.data) d = -d;
          if (s.writes[0] >= 0) write(s.writes[0], a);  // else nothing reads it
        }
      }
    for (const plan::OutputRef& o : p_.outputs) r.outputs.push_back(read(o.tensor, o.type));
    for (size_t t = 0; t < p_.tensors.size(); ++t)
      if (p_.tensors[t].storage == plan::StorageKind::kInput)
        r.inputs_after.push_back(read(static_cast<plan::TensorId>(t)));
    return r;
  }

 private:
  template <typename F>
  static void each(const TensorType& type, F&& f) {
    auto sizes = constant(type.sizes), strides = constant(type.strides);
    for (int64_t i = 0; i < product(sizes); ++i) {
      auto c = coords(i, sizes);
      int64_t at = 0;
      for (size_t d = 0; d < c.size(); ++d) at += c[d] * strides[d];
      f(static_cast<size_t>(i), at);
    }
  }
  Array read(plan::TensorId t) {
    TensorType type = p_.tensors[t].type;
    type.offset = 0;
    return read(t, type);
  }
  Array read(plan::TensorId t, const TensorType& type) {  // type: a part of the tensor
    Array a{constant(type.sizes), {}};
    a.data.resize(static_cast<size_t>(product(a.sizes)));
    each(type, [&](size_t i, int64_t at) { a.data[i] = load(type.dtype, memory_[t].data, at + type.offset.value()); });
    return a;
  }
  void write(plan::TensorId t, const Array& a) {
    each(p_.tensors[t].type,
         [&](size_t i, int64_t at) { store(p_.tensors[t].type.dtype, memory_[t].data, at, a.data[i]); });
  }
  const Schedule& s_;
  const plan::Plan& p_;
  const Launch& launch_;
  std::vector<char> arena_;
  std::vector<Memory> memory_;
};

}  // namespace detail

// Values of all graph values. Inputs by position.
inline std::vector<Array> evaluate(const graph::Graph& g, const std::vector<Array>& inputs) {
  return detail::Evaluator(g, inputs).run();
}
inline PlanResult run_plan(const Schedule& s, const std::vector<Array>& inputs, const Launch& launch = {}) {
  return detail::Runner(s, inputs, launch).run();
}

}  // namespace flashover::planner::testing
