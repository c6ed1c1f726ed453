// loops::Kernel -> the text of one Triton function. See triton.h for the shape of it.
//
// points.h and product.h write what a program computes of the outer points, stage.h the stages' loops, instructions.h,
// reductions.h and memory.h their bodies; this file is what stands around them.
#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/decimal.h"
#include "kernel/triton/attention.h"
#include "kernel/triton/points.h"
#include "kernel/triton/product.h"
#include "kernel/triton/stage.h"
#include "ops/floats.h"

namespace flashover::kernel::triton {
namespace {

using loops::Id;
using loops::Instr;
using loops::kNone;
using loops::Op;
using loops::Product;
using loops::Stage;
using sym::Expr;

std::string function_name(const Emission& e) {
  const Product* p = e.role.epilogue_of;
  std::string name = "k_";
  if (p) {
    name = p->bias != DType::kUndefined ? "addmm_" : p->batch > 1 ? "bmm_" : "mm_";
    if (p->prologue[0].given() || p->prologue[1].given()) name = "of_" + name;
  }
  for (char c : e.k.label) {
    if (c == ' ' || name.size() > 40) break;  // the location follows
    name += is_letter_or_digit(c) ? c : '_';
  }
  const Hash128 id = p ? Hasher().text(loops::text(*p)).finish() : loops::identity(e.k);
  return name + "_" + id.hex().substr(0, 8);
}

// Parameters of the function in order, as the launch passes them.
struct Parameters {
  TritonSource& source;
  std::string names;

  void add(const std::string& name, const std::string& type, plan::ParamKind kind) {
    names += (names.empty() ? "" : ", ") + name;
    source.signature.push_back(type);
    source.launch.params.push_back(kind);
  }
  void add_pointer(const std::string& name, DType d) {
    add(name, std::string("*") + signature_name(d), plan::ParamKind::kPointer);
  }
  void add(const std::string& name, const loops::Param& p) {
    if (!p.number) return add_pointer(name, p.dtype);
    add(name, signature_name(p.dtype),
        info(p.dtype).bytes == 4 ? plan::ParamKind::kValue32 : plan::ParamKind::kValue64);
  }
  // All of a kernel but what the product hands over in a register.
  void add_all(const std::string& prefix, const std::vector<loops::Param>& params, int32_t but = -1) {
    for (size_t i = 0; i < params.size(); ++i)
      if (static_cast<int32_t>(i) != but) add(prefix + num(i), params[i]);
  }
};

std::string add_parameters(const Emission& e, TritonSource& source) {
  Parameters parameters{source, ""};
  const Product* p = e.role.epilogue_of;
  for (size_t side = 0; p && side < 2; ++side) {
    const loops::Prologue& before = p->prologue[side];
    if (before.given())
      parameters.add_all(side ? "q" : "o", before.kernel.params, before.slot);
    else
      parameters.add_pointer(side ? "b" : "a", p->dtype);
  }
  if (p && p->bias != DType::kUndefined) parameters.add_pointer("bias", p->bias);
  parameters.add_all("p", e.k.params, p ? p->slot : -1);
  for (size_t i = 0; i < e.k.sizes.size(); ++i) parameters.add("n" + num(i), "i64", plan::ParamKind::kI64);
  source.launch.params.push_back(plan::ParamKind::kGlobalScratch);
  source.launch.params.push_back(plan::ParamKind::kProfileScratch);
  return parameters.names;
}

// The grid in the plan's names for the kernel's sizes.
Expr launch_grid(const Emission& e) {
  return sym::substitute(e.grid, [&](Expr v) -> std::optional<Expr> {
    for (size_t i = 0; i < e.k.sizes.size(); ++i)
      if (e.k.sizes[i] == v) return sym::var("n" + num(i), {1, sym::Range::kInf}, 16);
    return std::nullopt;
  });
}

// They have a value for one sign of their operand only (or, of zero, infinity).
constexpr Op kOfOneSign[] = {Op::k_sqrt, Op::k_rsqrt, Op::k_log,  Op::k_log2,  Op::k_log10, Op::k_log1p,
                             Op::k_pow,  Op::k_asin,  Op::k_acos, Op::k_acosh, Op::k_atanh, Op::k_reciprocal};
// Zero stays zero, or is chosen.
constexpr Op kPassesOn[] = {Op::k_neg,     Op::k_abs,     Op::k_mul,  Op::k_where,
                            Op::k_maximum, Op::k_minimum, Op::k_fmax, Op::k_fmin};
// To and from accumulators and scratch.
constexpr Op kPutsDown[] = {Op::k_reduce, Op::k_store_scratch}, kTakesUp[] = {Op::k_acc, Op::k_load_scratch};
constexpr Op kScratch[] = {Op::k_store_scratch, Op::k_load_scratch};

// Whether what is left of a difference of products, of which eager rounds each, decides if there is a number: of
// b * b - k * k, zero where they are equal, an fma leaves what was rounded off, which may be below zero.
bool needs_each_rounding(const loops::Kernel& k) {
  const auto is = [](Op op, const auto& list) { return std::ranges::find(list, op) != std::end(list); };
  std::set<std::pair<bool, int32_t>> kept;  // accumulators and scratch that hold differences
  for (const Stage& s : k.stages) {
    std::vector<bool> product(s.body.size()), difference(s.body.size());
    for (size_t i = 0; i < s.body.size(); ++i) {
      const Instr& in = s.body[i];
      const auto holds = [](const std::vector<bool>& of, Id a) { return a != kNone && of[static_cast<size_t>(a)]; };
      const auto any = [&](const std::vector<bool>& of) {
        return std::ranges::any_of(in.args, [&](Id a) { return holds(of, a); });
      };
      if (is(in.op, kOfOneSign) ? any(difference) : in.op == Op::k_div && holds(difference, in.args[1])) return true;
      const bool sum = in.op == Op::k_add || in.op == Op::k_sub, scratch = is(in.op, kScratch);
      product[i] = in.op == Op::k_mul || (in.op == Op::k_neg && any(product));
      difference[i] = (sum && any(product)) || ((sum || is(in.op, kPassesOn)) && any(difference)) ||
                      (is(in.op, kTakesUp) && kept.contains({scratch, in.slot}));
      if (is(in.op, kPutsDown) && any(difference)) kept.insert({scratch, in.slot});
    }
  }
  return false;
}

TritonSource source_of(const Emission& e) {
  TritonSource s;
  s.name = function_name(e);
  const std::string parameters = add_parameters(e, s);
  std::string comment = e.k.label;
  std::replace(comment.begin(), comment.end(), '\n', ' ');
  s.text = "import triton\nimport triton.language as tl\nimport _triton_lib as lib\n\n\n";
  if (!comment.empty()) s.text += "# " + comment + "\n";
  s.text += "@triton.jit\ndef " + s.name + "(" + parameters + "):\n" + (e.out.empty() ? "    pass\n" : e.out);
  s.warps = e.tile.warps;
  if (e.role.epilogue_of) s.stages = e.role.epilogue_of->tile.stages;
  if (e.k.attention) s.stages = attention_stages(e.k);
  s.asserts = e.asserts;
  s.contracts = !e.k.exact && !needs_each_rounding(e.k);
  s.launch.early = e.early;
  s.launch.grid[0] = launch_grid(e);
  s.launch.threads = 32 * e.tile.warps;
  return s;
}

bool has_shared_random_numbers(const loops::Kernel& k) {
  return std::any_of(k.stages.begin(), k.stages.end(), [](const Stage& s) {
    return std::any_of(s.body.begin(), s.body.end(),
                       [](const Instr& i) { return loops::is_random(i.op) && i.integer >= 4; });
  });
}

TritonSource emit_function(Emission&& e, const Gpu& gpu) {
  constexpr int kKnowsEarlyStarts = 90;
  e.early = gpu.arch >= kKnowsEarlyStarts;
  if (e.early) line(e, "lib.let_next_start()");
  e.wide = needs_int64(e.k, e.tile.points);
  for (size_t i = 0; i < e.k.sizes.size(); ++i) e.at.names[e.k.sizes[i].node()] = {"n" + num(i), 0};
  e.random = has_shared_random_numbers(e.k);
  e.fast = !e.k.exact && std::all_of(e.k.params.begin(), e.k.params.end(), [](const loops::Param& p) {
    return !p.written || !is_floating(p.dtype) || is_reduced(p.dtype);
  });
  if (e.k.attention) {
    e.over_keys = e.k.attention->result != loops::FlexAttention::Result::kColumns;
    wait_for_kernels_before(e);
    attention(e);
    return source_of(e);
  }
  if (e.role.epilogue_of) {
    wait_for_kernels_before(e);
    product(e);
  } else {
    program_points(e);
  }
  for (size_t s = 0; s < e.k.stages.size(); ++s) stage(e, s);
  return source_of(e);
}

}  // namespace

std::string str(const Gpu& gpu) { return "sm_" + num(gpu.arch); }

Hash128 key(const TritonSource& s) {
  const size_t body = s.text.find("):\n");
  Hasher h;
  h.text(std::string_view(s.text).substr(body == std::string::npos ? 0 : body))
      .number(static_cast<uint64_t>(s.warps))
      .number(static_cast<uint64_t>(s.stages))
      .number(s.asserts)
      .number(s.contracts);
  for (const std::string& t : s.signature) h.text(t);
  return h.finish();
}

TritonSource emit(const loops::Kernel& k, const Gpu& gpu) {
  if (k.serial) throw Declined("triton: a nest that runs in order");
  return emit_function(Emission(k, k.attention ? attention_tile(k) : choose_tile(k, gpu)), gpu);
}

TritonSource emit(const Product& p, const Gpu& gpu) { return emit_function(emission_of(p), gpu); }

}  // namespace flashover::kernel::triton
