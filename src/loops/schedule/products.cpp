#include "loops/schedule/products.h"

#include <algorithm>
#include <optional>

namespace flashover::loops {

using plan::Home;
using plan::Plan;
using plan::Step;
using plan::StepKind;
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

// Constant sizes and strides of a matrix that starts where kernels can load it.
struct Matrix {
  int64_t rows, columns, row_stride, column_stride;
};
std::optional<Matrix> matrix(const Plan& p, TensorId t) {
  const TensorType& type = p.tensors[static_cast<size_t>(t)].type;
  if (type.sizes.size() != 2 || type.strides.size() != 2 || type.opaque || type.device != p.device) return std::nullopt;
  for (size_t d = 0; d < 2; ++d)
    if (!type.sizes[d].is_const() || !type.strides[d].is_const()) return std::nullopt;
  sym::Expr from = 0;
  plan::root(p, t, &from);
  if (!from.is_const() || from.value() * info(type.dtype).bytes % 16 != 0) return std::nullopt;
  const Matrix m{type.sizes[0].value(), type.sizes[1].value(), type.strides[0].value(), type.strides[1].value()};
  if (m.rows <= 0 || m.columns <= 0 || m.row_stride < 0 || m.column_stride < 0) return std::nullopt;
  return m;
}

// The library call as a product without an epilogue; its operands in order a, b, bias.
std::optional<Product> product_of(const Plan& p, const Step& s, std::vector<TensorId>& operands) {
  if (s.kind != StepKind::kCall || s.out_variant || s.writes.size() != 1 || s.writes[0] < 0) return std::nullopt;
  const bool plain = s.op == "aten.mm.default", activated = s.op == "aten._addmm_activation.default";
  if (!plain && !activated && s.op != "aten.addmm.default") return std::nullopt;
  const auto a = tensor_arg(s, plain ? 0 : 1), b = tensor_arg(s, plain ? 1 : 2);
  if (!a || !b) return std::nullopt;
  const auto x = matrix(p, *a), y = matrix(p, *b), out = matrix(p, s.writes[0]);
  if (!x || !y || !out || x->columns != y->rows) return std::nullopt;
  Product made{.m = x->rows, .n = y->columns, .k = x->columns};
  made.dtype = p.tensors[static_cast<size_t>(*a)].type.dtype;
  // Only types whose products the tensor cores add up in f32 whatever the settings say.
  if (!is_reduced(made.dtype) || p.tensors[static_cast<size_t>(*b)].type.dtype != made.dtype) return std::nullopt;
  if (p.tensors[static_cast<size_t>(s.writes[0])].type.dtype != made.dtype) return std::nullopt;
  if (out->rows != made.m || out->columns != made.n || out->row_stride != made.n || out->column_stride != 1)
    return std::nullopt;
  made.a = {x->row_stride, x->column_stride};
  made.b = {y->row_stride, y->column_stride};
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

// One straight pass over m * n points that looks at parameter `slot` only where the point itself is.
bool is_epilogue(const Kernel& k, int32_t slot, int64_t m, int64_t n) {
  if (k.stages.size() != 1 || !k.stages[0].loops.empty() || !k.accs.empty() || !k.scratch.empty() || k.serial ||
      !k.sizes.empty() || k.outer.empty() || k.stages[0].ordered)
    return false;
  sym::Expr flat = 0;
  int64_t points = 1;
  for (const Loop& l : k.outer) {
    if (!l.extent.is_const()) return false;
    flat = flat * l.extent + l.var;
    points *= l.extent.value();
  }
  if (points != m * n || k.params[static_cast<size_t>(slot)].written) return false;
  return std::all_of(k.stages[0].body.begin(), k.stages[0].body.end(), [&](const Instr& i) {
    switch (i.op) {
      case Op::k_load:
        return i.slot != slot || (i.mask == kNone && sym::known_eq(i.index, flat));
      case Op::k_store:
        return i.mode == StoreMode::kSet;
      case Op::k_load_scratch:
      case Op::k_store_scratch:
      case Op::k_acc:
      case Op::k_reduce:
      case Op::k_scan:
      case Op::k_indirect:
        return false;
      default:
        return true;
    }
  });
}

}  // namespace

std::string text(const Product& p) {
  std::string out = "product " + std::to_string(p.m) + " " + std::to_string(p.n) + " " + std::to_string(p.k) + " " +
                    info(p.dtype).name;
  for (int64_t s : {p.a[0], p.a[1], p.b[0], p.b[1]}) out += " " + std::to_string(s);
  out += std::string(" bias ") + (p.bias == DType::kUndefined ? "none" : info(p.bias).name) + (p.relu ? " relu" : "");
  const ProductTile& t = p.tile;
  for (int32_t v : {t.m, t.n, t.k, t.warps, t.stages}) out += " " + std::to_string(v);
  return out + " slot " + std::to_string(p.slot) + "\n" + text(p.epilogue);
}

std::vector<Candidate> find_products(const Plan& p, std::span<const Kernel> kernels) {
  std::vector<Candidate> out;
  const auto root = [&](TensorId t) { return plan::root(p, t); };
  for (size_t i = 0; i < p.steps.size(); ++i) {
    std::vector<TensorId> operands;
    std::optional<Product> made = product_of(p, p.steps[i], operands);
    if (!made) continue;
    const TensorId result = root(p.steps[i].writes[0]);
    if (result != p.steps[i].writes[0]) continue;
    const Home home = p.tensors[static_cast<size_t>(result)].home;
    if (home != Home::kExtern && home != Home::kSlab) continue;
    // Who reads it.
    size_t readers = 0, reader = 0;
    for (size_t j = 0; j < p.steps.size(); ++j) {
      if (j == i || p.steps[j].kind == StepKind::kRelease) continue;
      bool touches = false;
      plan::for_each_read(p.steps[j], [&](TensorId t) { touches |= root(t) == result; });
      plan::for_each_write(p.steps[j], [&](TensorId t) { touches |= root(t) == result; });
      if (touches) ++readers, reader = j;
    }
    for (const plan::OutputRef& o : p.outputs) readers += o.tensor >= 0 && root(o.tensor) == result;
    if (readers != 1 || reader < i || p.steps[reader].kind != StepKind::kLaunch) continue;
    const Step& launch = p.steps[reader];
    int32_t slot = -1;
    bool once = true;
    for (size_t r = 0; r < launch.reads.size(); ++r) {
      if (root(launch.reads[r]) != result) continue;
      sym::Expr from = 0;
      plan::root(p, launch.reads[r], &from);
      once &= slot < 0 && from.is_const(0) && p.tensors[static_cast<size_t>(launch.reads[r])].type.dtype == made->dtype;
      slot = static_cast<int32_t>(r);
    }
    if (slot < 0 || !once || launch.kernel < 0 || static_cast<size_t>(launch.kernel) >= kernels.size()) continue;
    const Kernel& k = kernels[static_cast<size_t>(launch.kernel)];
    if (!is_epilogue(k, slot, made->m, made->n)) continue;
    // The operands are read later than before: nobody may have written them by then, the kernel itself included.
    bool written = false;
    for (size_t j = i + 1; j <= reader; ++j)
      plan::for_each_write(p.steps[j], [&](TensorId t) {
        for (TensorId o : operands) written |= root(o) == root(t);
      });
    // Nor what the kernel reads anywhere, while other programs of it still store.
    for (TensorId w : launch.writes)
      for (size_t r = 0; r < launch.reads.size(); ++r) written |= root(launch.reads[r]) == root(w);
    if (written) continue;
    made->epilogue = k;
    made->slot = slot;
    out.push_back({i, reader, std::move(*made)});
  }
  return out;
}

Step fused_step(const Plan& p, const Candidate& c, int32_t kernel) {
  const Step &call = p.steps[c.call], &launch = p.steps[c.launch];
  std::vector<TensorId> operands;
  product_of(p, call, operands);
  Step s;
  s.kind = StepKind::kLaunch;
  s.kernel = kernel;
  s.reads = std::move(operands);
  for (size_t r = 0; r < launch.reads.size(); ++r)
    if (static_cast<int32_t>(r) != c.product.slot) s.reads.push_back(launch.reads[r]);
  s.writes = launch.writes;
  s.label = (c.product.bias == DType::kUndefined ? "mm+" : "addmm+") + launch.label;
  return s;
}

}  // namespace flashover::loops
