// Matches products with straight pointwise kernels around them, and writes the fused step.
#include "planner/find_products.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "ops/names.h"

namespace flashover::planner {

using loops::Id;
using loops::Instr;
using loops::Kernel;
using loops::kNone;
using loops::Loop;
using loops::Op;
using loops::Param;
using loops::Product;
using loops::Prologue;
using loops::Stage;
using loops::StoreMode;
using plan::Plan;
using plan::Step;
using plan::StepKind;
using plan::StorageKind;
using plan::TensorId;

namespace {

std::optional<TensorId> tensor_arg(const Step& s, size_t i) {
  const auto* r = i < s.args.size() ? std::get_if<Ref>(&s.args[i]) : nullptr;
  if (!r || r->id == kNoValue) return std::nullopt;
  return r->id;
}

bool is_one(const Arg& a) {
  if (const auto* e = std::get_if<sym::Expr>(&a)) return e->is_const(1);
  if (const auto* d = std::get_if<double>(&a)) return *d == 1;
  return false;
}

// Constant sizes and strides of matrices that start where kernels can load them.
struct Matrices {
  int64_t batch = 1, rows = 0, columns = 0;
  std::array<int64_t, 3> strides{};
};
std::optional<Matrices> matrices(const Plan& p, TensorId t, size_t dims) {
  const TensorType& type = p.tensors[static_cast<size_t>(t)].type;
  if (type.sizes.size() != dims || type.strides.size() != dims || type.opaque || type.device != p.device)
    return std::nullopt;
  for (size_t d = 0; d < dims; ++d) {
    if (!type.sizes[d].is_const() || !type.strides[d].is_const()) return std::nullopt;
    if (type.sizes[d].value() <= 0 || type.strides[d].value() < 0) return std::nullopt;
  }
  sym::Expr from = 0;
  plan::root(p, t, &from);
  if (!from.is_const() || from.value() * info(type.dtype).bytes % 16 != 0) return std::nullopt;
  Matrices m{.rows = type.sizes[dims - 2].value(), .columns = type.sizes[dims - 1].value()};
  m.strides = {0, type.strides[dims - 2].value(), type.strides[dims - 1].value()};
  if (dims == 3) m.batch = type.sizes[0].value(), m.strides[0] = type.strides[0].value();
  return m;
}

// The library call as a product with nothing around it; its operands in order a, b, bias.
std::optional<Product> product_of(const Plan& p, const Step& s, std::vector<TensorId>& operands) {
  if (s.kind != StepKind::kCall || s.out_variant || s.writes.size() != 1 || s.writes[0] < 0) return std::nullopt;
  const bool many = s.op == op::bmm, plain = many || s.op == op::mm, activated = s.op == op::_addmm_activation;
  if (!plain && !activated && s.op != op::addmm) return std::nullopt;
  const auto a = tensor_arg(s, plain ? 0 : 1), b = tensor_arg(s, plain ? 1 : 2);
  if (!a || !b) return std::nullopt;
  const size_t dims = many ? 3 : 2;
  const auto x = matrices(p, *a, dims), y = matrices(p, *b, dims), out = matrices(p, s.writes[0], dims);
  if (!x || !y || !out || x->columns != y->rows || x->batch != y->batch) return std::nullopt;
  Product made{.batch = x->batch, .m = x->rows, .n = y->columns, .k = x->columns};
  made.dtype = p.tensors[static_cast<size_t>(*a)].type.dtype;
  // Only types whose products the tensor cores add up in f32 whatever the settings say.
  if (!is_reduced(made.dtype) || p.tensors[static_cast<size_t>(*b)].type.dtype != made.dtype) return std::nullopt;
  if (p.tensors[static_cast<size_t>(s.writes[0])].type.dtype != made.dtype) return std::nullopt;
  if (out->batch != made.batch || out->rows != made.m || out->columns != made.n || out->strides[1] != made.n ||
      out->strides[2] != 1 || (made.batch > 1 && out->strides[0] != made.m * made.n))
    return std::nullopt;
  made.a = x->strides;
  made.b = y->strides;
  operands = {*a, *b};
  if (plain) return made;
  if (s.args.size() < 5 || !is_one(s.args[3]) || !is_one(s.args[4])) return std::nullopt;
  if (activated) {
    const bool* gelu = s.args.size() > 5 ? std::get_if<bool>(&s.args[5]) : nullptr;
    if (!gelu || *gelu) return std::nullopt;
    made.relu = true;
  }
  const auto bias = tensor_arg(s, 0);
  if (!bias) return std::nullopt;
  const TensorType& type = p.tensors[static_cast<size_t>(*bias)].type;
  sym::Expr from = 0;
  plan::root(p, *bias, &from);
  if (type.sizes.size() != 1 || !type.sizes[0].is_const(made.n) || !type.strides[0].is_const(1) ||
      type.device != p.device || !is_floating(type.dtype) || type.dtype == DType::kF64 || !from.is_const() ||
      from.value() * info(type.dtype).bytes % 16 != 0)
    return std::nullopt;
  made.bias = type.dtype;
  operands.push_back(*bias);
  return made;
}

// One straight pass over so many points; flat: the number of the point.
bool is_straight(const Kernel& k, int64_t points, sym::Expr& flat) {
  if (k.stages.size() != 1 || !k.stages[0].loops.empty() || !k.accs.empty() || !k.scratch.empty() || k.serial ||
      !k.sizes.empty() || k.outer.empty() || k.stages[0].ordered)
    return false;
  flat = 0;
  int64_t total = 1;
  for (const Loop& l : k.outer) {
    if (!l.extent.is_const()) return false;
    flat = flat * l.extent + l.var;
    total *= l.extent.value();
  }
  return total == points;
}
bool is_plain(const Instr& i) {
  switch (i.op) {
    case Op::k_load_scratch:
    case Op::k_store_scratch:
    case Op::k_acc:
    case Op::k_reduce:
    case Op::k_scan:
    case Op::k_indirect:
      return false;
    case Op::k_store:
      return i.mode == StoreMode::kSet;
    default:
      return true;
  }
}

// Looks at parameter `slot` only where the point itself is.
bool is_epilogue(const Kernel& k, int32_t slot, int64_t points) {
  sym::Expr flat = 0;
  if (!is_straight(k, points, flat) || k.params[static_cast<size_t>(slot)].written) return false;
  return std::all_of(k.stages[0].body.begin(), k.stages[0].body.end(), [&](const Instr& i) {
    return is_plain(i) && (i.op != Op::k_load || i.slot != slot || (i.mask == kNone && sym::known_eq(i.index, flat)));
  });
}

// Writes nothing but parameter `slot`, once, each element where the point itself is.
bool is_prologue(const Kernel& k, int32_t slot, int64_t points) {
  sym::Expr flat = 0;
  if (!is_straight(k, points, flat)) return false;
  for (size_t i = 0; i < k.params.size(); ++i)
    if (k.params[i].written != (static_cast<int32_t>(i) == slot)) return false;
  int stores = 0;
  for (const Instr& i : k.stages[0].body) {
    if (!is_plain(i) || (i.op == Op::k_load && i.slot == slot)) return false;
    if (i.op != Op::k_store) continue;
    ++stores;
    if (i.mask != kNone || !sym::known_eq(i.index, flat)) return false;
  }
  return stores == 1;
}

// Stores the product as it is.
Kernel only_store(const Product& p) {
  const std::string points = std::to_string(p.batch * p.m * p.n), type = info(p.dtype).name;
  return loops::parse("kernel {\n  p0 = " + type + "[" + points + "] read\n  p1 = " + type + "[" + points +
                      "] write\n  outer i0." + points +
                      "\n  vector outer\n  cost 2\n  stage {\n    v0 = load f32 p0[i0." + points +
                      "]\n    v1 = store p1[i0." + points + "] v0\n  }\n}\n");
}

// The steps that touch a tensor, each once. A result of the plan counts as one more that is none of them.
std::vector<size_t> users(const Plan& p, TensorId root) {
  std::vector<size_t> out;
  for (size_t j = 0; j < p.steps.size(); ++j) {
    if (p.steps[j].kind == StepKind::kRelease) continue;
    bool touches = false;
    plan::for_each_read(p.steps[j], [&](TensorId t) { touches |= plan::root(p, t) == root; });
    plan::for_each_write(p.steps[j], [&](TensorId t) { touches |= plan::root(p, t) == root; });
    if (touches) out.push_back(j);
  }
  for (const plan::OutputRef& o : p.outputs)
    if (o.tensor >= 0 && plan::root(p, o.tensor) == root) out.push_back(kNoStep);
  return out;
}

// The kernel that alone makes an operand which that call alone reads.
bool find_prologue(const Plan& p, std::span<const Kernel> kernels, size_t call, TensorId operand,
                   const std::array<int64_t, 3>& sizes, const std::array<int64_t, 3>& strides, Prologue& made,
                   size_t& step) {
  sym::Expr from = 0;
  const TensorId root = plan::root(p, operand, &from);
  const plan::Tensor& memory = p.tensors[static_cast<size_t>(root)];
  if (memory.storage != StorageKind::kArena || !from.is_const(0) ||
      memory.type.dtype != p.tensors[static_cast<size_t>(operand)].type.dtype)
    return false;
  const int64_t points = sizes[0] * sizes[1] * sizes[2];
  const bool batch = sizes[0] == 1 || strides[0] == sizes[1] * sizes[2];
  const bool straight = strides[1] == sizes[2] && strides[2] == 1, turned = strides[1] == 1 && strides[2] == sizes[1];
  if (!batch || !(straight || turned) || !plan::span(memory.type).is_const(points)) return false;
  const std::vector<size_t> all = users(p, root);
  if (all.size() != 2 || all[1] != call || p.steps[all[0]].kind != StepKind::kLaunch) return false;
  const Step& s = p.steps[all[0]];
  if (s.writes.size() != 1 || s.kernel < 0 || static_cast<size_t>(s.kernel) >= kernels.size()) return false;
  sym::Expr start = 0;
  plan::root(p, s.writes[0], &start);
  const Kernel& k = kernels[static_cast<size_t>(s.kernel)];
  const auto slot = static_cast<int32_t>(s.reads.size());
  if (!start.is_const(0) || k.params.size() != s.reads.size() + 1 || !is_prologue(k, slot, points)) return false;
  for (TensorId t : s.reads)
    if (plan::root(p, t) == root) return false;
  made = {k, slot, !straight};
  step = all[0];
  return true;
}

}  // namespace

std::vector<std::vector<Candidate>> find_products(const Plan& p, std::span<const Kernel> kernels) {
  std::vector<std::vector<Candidate>> out;
  std::vector<bool> behind_one(p.steps.size());  // kernels that may go with an earlier product
  const auto root = [&](TensorId t) { return plan::root(p, t); };
  for (size_t i = 0; i < p.steps.size(); ++i) {
    std::vector<TensorId> operands;
    const std::optional<Product> plain = product_of(p, p.steps[i], operands);
    if (!plain) continue;
    const TensorId result = root(p.steps[i].writes[0]);
    if (result != p.steps[i].writes[0]) continue;
    const StorageKind storage = p.tensors[static_cast<size_t>(result)].storage;
    if (storage != StorageKind::kExtern && storage != StorageKind::kArena) continue;

    Candidate before{.call = i, .product = *plain};
    const std::array<std::array<int64_t, 3>, 2> sizes = {std::array{plain->batch, plain->m, plain->k},
                                                         std::array{plain->batch, plain->k, plain->n}};
    for (size_t side = 0; side < 2 && root(operands[0]) != root(operands[1]); ++side) {
      Prologue& made = before.product.prologue[side];
      size_t& step = before.before[side];
      if (find_prologue(p, kernels, i, operands[side], sizes[side], side ? plain->b : plain->a, made, step) &&
          behind_one[step])
        made = {}, step = kNoStep;
    }
    const bool any_before = before.before != std::array{kNoStep, kNoStep};

    // The kernel behind it.
    std::vector<size_t> readers = users(p, result);
    std::erase(readers, i);
    int32_t slot = -1;
    bool behind =
        readers.size() == 1 && readers[0] != kNoStep && readers[0] > i && p.steps[readers[0]].kind == StepKind::kLaunch;
    if (behind) {
      const Step& launch = p.steps[readers[0]];
      for (size_t r = 0; r < launch.reads.size(); ++r) {
        if (root(launch.reads[r]) != result) continue;
        sym::Expr from = 0;
        plan::root(p, launch.reads[r], &from);
        behind &=
            slot < 0 && from.is_const(0) && p.tensors[static_cast<size_t>(launch.reads[r])].type.dtype == plain->dtype;
        slot = static_cast<int32_t>(r);
      }
      behind = behind && slot >= 0 && launch.kernel >= 0 && static_cast<size_t>(launch.kernel) < kernels.size() &&
               is_epilogue(kernels[static_cast<size_t>(launch.kernel)], slot, plain->batch * plain->m * plain->n);
    }

    // What is read later than before: no step may have written it by then, the kernel behind the product included, nor
    // may that one write what it reads anywhere, while other programs of it still store.
    const auto is_safe = [&](const Candidate& c) {
      const size_t at = c.launch == kNoStep ? i : c.launch;
      size_t first = i;
      std::vector<TensorId> read;
      for (size_t o = 0; o < operands.size(); ++o) {
        if (o >= 2 || c.before[o] == kNoStep) {
          read.push_back(root(operands[o]));
          continue;
        }
        first = std::min(first, c.before[o]);
        for (TensorId t : p.steps[c.before[o]].reads) read.push_back(root(t));
      }
      bool written = false;
      const auto look = [&](TensorId t) { written |= std::find(read.begin(), read.end(), root(t)) != read.end(); };
      for (size_t j = first + 1; j <= at; ++j)
        if (j != c.before[0] && j != c.before[1]) plan::for_each_write(p.steps[j], look);
      if (c.launch != kNoStep)
        for (TensorId w : p.steps[at].writes)
          for (TensorId r : p.steps[at].reads) written |= root(r) == root(w);
      return !written;
    };
    std::vector<Candidate> ways;
    for (const auto& [with_before, with_behind] :
         {std::pair{false, true}, std::pair{true, false}, std::pair{true, true}}) {
      if ((with_before && !any_before) || (with_behind && !behind)) continue;
      Candidate c = with_before ? before : Candidate{.call = i, .product = *plain};
      if (with_behind) {
        c.launch = readers[0];
        c.product.epilogue = kernels[static_cast<size_t>(p.steps[c.launch].kernel)];
        c.product.slot = slot;
      } else {
        // The result needs a place: a temporary, or a result of the plan.
        const auto results = std::count(readers.begin(), readers.end(), kNoStep);
        bool placed = results == 0;
        for (const plan::OutputRef& o : p.outputs)
          if (o.tensor == result && results == 1) placed = o.type.offset.is_const(0);
        if (!placed) continue;
        c.product.epilogue = only_store(*plain);
        c.product.slot = 0;
      }
      if (!is_safe(c)) continue;
      if (c.launch != kNoStep) behind_one[c.launch] = true;
      ways.push_back(std::move(c));
    }
    if (!ways.empty()) out.push_back(std::move(ways));
  }
  return out;
}

Step fused_step(const Plan& p, const Candidate& c, int32_t kernel) {
  const Step& call = p.steps[c.call];
  std::vector<TensorId> operands;
  product_of(p, call, operands);
  Step s;
  s.kind = StepKind::kLaunch;
  s.kernel = kernel;
  for (size_t o = 0; o < operands.size(); ++o) {
    if (o < 2 && c.before[o] != kNoStep)
      s.reads.insert(s.reads.end(), p.steps[c.before[o]].reads.begin(), p.steps[c.before[o]].reads.end());
    else
      s.reads.push_back(operands[o]);
  }
  std::string before, behind, operators, operators_behind;
  for (size_t at : c.before)
    if (at != kNoStep) {
      before += p.steps[at].label.substr(0, p.steps[at].label.find(' ')) + "+";  // (no location)
      if (!p.steps[at].operators.empty()) operators += p.steps[at].operators + "+";
    }
  if (c.launch == kNoStep) {
    s.writes = call.writes;
  } else {
    const Step& launch = p.steps[c.launch];
    for (size_t r = 0; r < launch.reads.size(); ++r)
      if (static_cast<int32_t>(r) != c.product.slot) s.reads.push_back(launch.reads[r]);
    s.writes = launch.writes;
    behind = "+" + launch.label;
    if (!launch.operators.empty()) operators_behind = "+" + launch.operators;
  }
  const char* name = c.product.bias != DType::kUndefined ? "addmm" : c.product.batch > 1 ? "bmm" : "mm";
  s.label = before + name + behind;
  s.operators = operators + name + operators_behind;
  return s;
}

void own_result(Plan& p, const Candidate& c) {
  if (c.launch != kNoStep) return;
  const TensorId t = p.steps[c.call].writes[0];
  plan::Tensor& memory = p.tensors[static_cast<size_t>(t)];
  if (memory.storage != StorageKind::kExtern) return;
  memory.storage = StorageKind::kArena;
  for (size_t i = 0; i < p.outputs.size(); ++i)
    if (p.outputs[i].tensor == t) {
      memory.storage = StorageKind::kOutput;
      memory.index = static_cast<int32_t>(i);
    }
}

}  // namespace flashover::planner
