// The program's own operators whose results' sizes follow from data: their shape functions (torch.library.register_fake)
// ask torch.library.get_ctx() for such a size, and get a symbol as nonzero's is.
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>

#include "base/check.h"
#include "ops/names.h"
#include "torch/size_node.h"
#include "trace/map_tensors.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

// What the function returned, as the operator would have. nullopt: something else than tensors of known sizes.
std::optional<Stack> results_of_user(const OpFacts& facts, const py::object& made) {
  std::vector<py::object> values;
  if (facts.schema.returns.size() == 1)
    values.push_back(made);
  else
    for (const py::handle v : made) values.push_back(py::reinterpret_borrow<py::object>(v));
  if (values.size() != facts.schema.returns.size()) return std::nullopt;
  Stack out;
  for (size_t i = 0; i < values.size(); ++i) {
    const bool list = facts.schema.returns[i].kind == aten::ArgKind::kTensorList;
    if (!list && facts.schema.returns[i].kind != aten::ArgKind::kTensor) return std::nullopt;
    std::vector<at::Tensor> tensors;
    if (list)
      tensors = values[i].cast<std::vector<at::Tensor>>();
    else
      tensors.push_back(values[i].cast<at::Tensor>());
    if (!std::ranges::all_of(tensors, [](const at::Tensor& t) { return t.defined() && has_known_geometry(t); }))
      return std::nullopt;
    if (list)
      out.emplace_back(std::move(tensors));
    else
      out.emplace_back(std::move(tensors[0]));
  }
  return out;
}

// Each symbol is the whole size of a result, from which it is read in a call.
bool all_found(const std::vector<AskedSize>& asked, const Stack& results) {
  return std::ranges::all_of(asked, [&](const AskedSize& size) {
    bool found = false;
    for (const c10::IValue& v : results)
      for_each_tensor(v, [&](const at::Tensor& t) {
        found = found || std::ranges::any_of(t.sym_sizes(), [&](const c10::SymInt& s) {
                  return sym::known_eq(*aten::expr_of(s), size.symbol);
                });
      });
    return found;
  });
}

}  // namespace

c10::SymInt Recorder::new_data_size(int64_t least, std::optional<int64_t> most) {
  if (!asks_for_sizes_) throw Declined("torch.library.get_ctx() outside of a shape function");
  const sym::Expr size = sizes_->add_data_size();
  asked_sizes_.push_back({size, least, most});
  return aten::to_symint(sizes_, size);
}

// nullopt: it asks for no size, or raises; whoever calls it otherwise says why.
std::optional<Stack> Recorder::call_shape_function_of_user(const OpFacts& facts, const Stack& stack, size_t base) {
  asked_sizes_.clear();
  if (!data_sizes || in_backward_ || !facts.python_meta || facts.schema.any_written || op::is_aten(facts.schema.name))
    return std::nullopt;
  for (Operand& o : operands_) o.companion = at::Tensor();
  symbolic_companions_ = asks_for_sizes_ = true;
  std::optional<Stack> out;
  const py::gil_scoped_acquire gil;
  try {
    py::list args;
    py::dict named;
    const auto& arguments = facts.schema.handle.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::IValue value =
          map_tensors(stack[base + i], facts.schema.args[i], [&](const at::Tensor& t) { return companion_of(t); });
      if (arguments[i].kwarg_only())
        named[arguments[i].name().c_str()] = torch::jit::toPyObject(value);
      else
        args.append(torch::jit::toPyObject(value));
    }
    const py::object call = py::module_::import("flashover._fake_sizes").attr("call");
    const BelowEverything plain;
    const InternalScope internal;
    out = results_of_user(facts, call(c10::toString(facts.schema.handle.operator_name()), args, named));
  } catch (const py::error_already_set&) {  // it is called again, and then heard
  } catch (const py::cast_error&) {
  } catch (const c10::Error&) {
  }
  symbolic_companions_ = asks_for_sizes_ = false;
  if (out && !asked_sizes_.empty() && all_found(asked_sizes_, *out)) {
    ops::note_data_sized(facts.op->name);
    return out;
  }
  for (Operand& o : operands_) o.companion = at::Tensor();
  asked_sizes_.clear();
  return std::nullopt;
}

// What the function promised of them is checked in each call.
void Recorder::check_asked_sizes(const OpFacts& facts) {
  for (const AskedSize& size : std::exchange(asked_sizes_, {})) {
    const auto promise = [&](const sym::SizeGuard& fact, const char* words, int64_t bound) {
      sizes_->know(fact);
      assume_of_data(fact, "a size that " + facts.schema.name + " finds is " + words + std::to_string(bound));
    };
    if (size.least > 0) promise({sym::Relation::kLessEqual, size.least, size.symbol}, "at least ", size.least);
    if (size.most) promise({sym::Relation::kLessEqual, size.symbol, *size.most}, "at most ", *size.most);
  }
}

}  // namespace flashover::trace
