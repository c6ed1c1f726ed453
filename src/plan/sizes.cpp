// One walk over all expressions of a plan; it collects the symbols, or puts constants in their place.
#include "plan/sizes.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "plan/arena.h"

namespace flashover::plan {
namespace {

// Calls f(Expr&) for all expressions of a type, of a step, of a plan. (Grids are over a launch's sizes.)
template <typename List, typename F>
void each_in_sizes(List& s, const F& f) {
  for (auto& e : s) f(e);
}
template <typename Type, typename F>
void each_in_type(Type& t, const F& f) {
  each_in_sizes(t.sizes, f);
  each_in_sizes(t.strides, f);
  f(t.offset);
}
template <typename AnyStep, typename F>
void each_in_step(AnyStep& s, const F& f) {
  each_in_sizes(s.sizes, f);
  for (auto& a : s.args) {
    if (auto* e = std::get_if<sym::Expr>(&a)) f(*e);
    if (auto* l = std::get_if<Sizes>(&a)) each_in_sizes(*l, f);
  }
}
template <typename AnyPlan, typename F>
void each_expression(AnyPlan& p, const F& f) {
  for (auto& i : p.inputs) each_in_type(i.type, f);
  for (auto& t : p.tensors) each_in_type(t.type, f);
  for (auto& s : p.frozen_steps) each_in_step(s, f);
  for (auto& s : p.steps) each_in_step(s, f);
  for (auto& o : p.outputs) each_in_type(o.type, f);
}
// And for all that a step depends on: its own, and those of the types that it reads and writes.
template <typename F>
void each_met_by_step(const Plan& p, const Step& s, const F& f) {
  const auto of_tensor = [&](TensorId t) {
    if (t >= 0 && static_cast<size_t>(t) < p.tensors.size())
      each_in_type(p.tensors[t].type, f);  // else verify() says so
  };
  for_each_read(s, of_tensor);
  for_each_write(s, of_tensor);
  each_in_step(s, f);
}

// "... with size 2*s0" with the number.
template <typename Value, typename Known>
void put_size(std::string& error, const Value& value_of, const Known& is_known) {
  constexpr std::string_view kSize = " with size ";
  const size_t at = error.rfind(kSize);
  if (at == std::string::npos) return;
  try {
    const sym::Expr e = sym::parse(std::string_view(error).substr(at + kSize.size()));
    std::vector<sym::Expr> vars;
    sym::collect_vars(e, vars);
    // (A kernel of another part of the plan has sizes of its own.)
    if (!e.is_const() && std::ranges::all_of(vars, is_known))
      error = error.substr(0, at) + std::string(kSize) + std::to_string(sym::evaluate(e, value_of));
  } catch (const UserError&) {  // no expression: the message stays
  }
}

}  // namespace

std::vector<int> size_symbols(const Plan& p) {
  std::vector<sym::Expr> vars;
  each_expression(p, [&](sym::Expr e) {
    if (!e.is_const()) sym::collect_vars(e, vars);
  });
  std::vector<int> out;
  for (sym::Expr v : vars) {
    const auto k = sym::size_symbol_index(v);
    if (!k) throw Declined("plan: " + std::string(v.name()) + " is no size of an input");
    out.push_back(*k);
  }
  std::ranges::sort(out);
  return out;
}

std::vector<SizePoint> size_points(const Plan& p) {
  std::vector<SizePoint> out;
  std::set<int> known;
  for (const InputSpec& in : p.inputs)
    for (sym::Expr e : in.type.sizes)
      if (const auto k = sym::size_symbol_index(e)) known.insert(*k);
  for (size_t i = 0; i < p.steps.size(); ++i) {
    const Step& s = p.steps[i];
    if (s.kind != StepKind::kCall || s.out_variant || takes_memory(s)) continue;
    SizePoint point{.step = i};
    for (size_t r = 0; r < s.writes.size(); ++r) {
      if (s.writes[r] < 0 || static_cast<size_t>(s.writes[r]) >= p.tensors.size() ||  // (verify() will say so)
          p.tensors[s.writes[r]].storage != StorageKind::kExtern)
        continue;
      const Sizes& sizes = p.tensors[s.writes[r]].type.sizes;
      for (size_t d = 0; d < sizes.size(); ++d) {
        const auto k = sym::size_symbol_index(sizes[d]);
        if (k && sym::has_data_size(sizes[d]) && known.insert(*k).second)
          point.sizes.push_back({*k, static_cast<int32_t>(r), static_cast<int32_t>(d)});
      }
    }
    if (!point.sizes.empty()) out.push_back(std::move(point));
  }
  return out;
}

void check_size_points(const Plan& p) {
  const std::vector<SizePoint> points = size_points(p);
  if (points.empty()) return;
  std::set<int> open;  // that later steps find
  for (const SizePoint& point : points)
    for (const SizePoint::Size& s : point.sizes) open.insert(s.symbol);
  auto next = points.begin();
  for (size_t i = 0; i < p.steps.size(); ++i) {
    if (next != points.end() && next->step == i)
      for (const SizePoint::Size& s : (next++)->sizes) open.erase(s.symbol);
    if (p.steps[i].kind == StepKind::kRelease) continue;
    each_met_by_step(p, p.steps[i], [&](sym::Expr e) {
      if (e.is_const() || !sym::has_data_size(e)) return;
      std::vector<sym::Expr> vars;
      sym::collect_vars(e, vars);
      for (sym::Expr v : vars)
        if (const auto k = sym::size_symbol_index(v); k && open.contains(*k))
          throw InternalError("plan: step " + std::to_string(i) + ": " + v.str() + " is found by a later step");
    });
  }
}

std::vector<SizeSource> size_sources(const Plan& p) {
  std::set<int> found;
  for (const SizePoint& point : size_points(p))
    for (const SizePoint::Size& s : point.sizes) found.insert(s.symbol);
  std::vector<SizeSource> out;
  for (int symbol : size_symbols(p)) {
    if (found.contains(symbol)) continue;
    const sym::Expr s = sym::size_symbol(symbol);
    const size_t before = out.size();
    for (const bool stride : {false, true})
      for (size_t i = 0; i < p.inputs.size() && out.size() == before; ++i) {
        const TensorType& type = p.inputs[i].type;
        const Sizes& parts = stride ? type.strides : type.sizes;
        const auto at = std::ranges::find(parts, s);
        if (at != parts.end())
          out.push_back({symbol, static_cast<int32_t>(i), static_cast<int32_t>(at - parts.begin()), stride});
      }
    if (out.size() == before) throw Declined("symbolic size: " + s.str() + " is no size of an input");
  }
  return out;
}

void check_frozen_part(const Plan& p) {
  for (const Step& s : p.frozen_steps)
    each_met_by_step(p, s, [](sym::Expr e) {
      if (sym::has_size_symbol(e)) throw Declined("symbolic size: " + e.str() + " in what is computed from parameters");
    });
}

namespace {

auto values_by_symbol(std::span<const SizeSource> sources, std::span<const int64_t> values) {
  return [sources, values](sym::Expr v) {
    const auto k = sym::size_symbol_index(v);
    for (size_t i = 0; i < sources.size(); ++i)
      if (sources[i].symbol == k) return values[i];
    throw InternalError("plan: no value of " + v.str());
  };
}

auto symbols_among(std::span<const SizeSource> sources) {
  return [sources](sym::Expr v) {
    const auto k = sym::size_symbol_index(v);
    return std::ranges::any_of(sources, [&](const SizeSource& s) { return s.symbol == k; });
  };
}

}  // namespace

Plan with_sizes(const Plan& p, std::span<const SizeSource> sources, std::span<const int64_t> values) {
  const auto value_of = values_by_symbol(sources, values);
  const auto is_known = symbols_among(sources);
  const auto put = [&](sym::Expr& e) {
    if (!e.is_const()) e = sym::evaluate(e, value_of);
  };
  Plan out;
  out.inputs = p.inputs;
  out.tensors = p.tensors;
  out.frozen_steps = p.frozen_steps;
  out.steps = p.steps;
  out.outputs = p.outputs;
  out.kernels = p.kernels;
  out.binaries.resize(p.binaries.size());
  out.target = p.target;
  out.device = p.device;
  each_expression(out, put);
  for (Kernel& k : out.kernels)
    for (std::string& error : k.errors) put_size(error, value_of, is_known);
  if (p.arena_bytes.is_const()) {
    out.arena_bytes = p.arena_bytes;
    return out;
  }
  for (const Tensor& t : out.tensors) {
    const auto block = t.arena_offset.as_const();
    if (t.storage == StorageKind::kArena &&
        !(block && *block >= 0 && *block / 64 < static_cast<int64_t>(p.tensors.size())))
      throw InternalError("plan: no such block of the arena");
  }
  place_blocks(out);
  return out;
}

std::string with_sizes(std::string error, std::span<const SizeSource> sources, std::span<const int64_t> values) {
  put_size(error, values_by_symbol(sources, values), symbols_among(sources));
  return error;
}

uint32_t NumberTable::add(sym::Expr e) {
  const auto place = static_cast<uint32_t>(constants_.size());
  constants_.push_back(e.as_const().value_or(0));
  if (e.is_const()) return place;
  const auto [known, first] = known_.try_emplace(e, static_cast<uint32_t>(expressions_.size()));
  if (first) expressions_.push_back(e);
  open_.push_back({place, known->second});
  return place;
}

std::vector<int64_t> NumberTable::numbers(std::span<const SizeSource> sources, std::span<const int64_t> values) const {
  const auto value_of = values_by_symbol(sources, values);
  std::vector<int64_t> results, out = constants_;
  results.reserve(expressions_.size());
  for (sym::Expr e : expressions_) results.push_back(sym::evaluate(e, value_of));
  for (const Open& o : open_) out[o.place] = results[o.expression];
  return out;
}

}  // namespace flashover::plan
