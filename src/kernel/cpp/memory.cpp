// Of a tail's vector only the first lanes are accessed; nothing beyond them is touched.
#include "kernel/cpp/memory.h"

#include <cstdlib>
#include <functional>
#include <optional>

#include "base/check.h"
#include "kernel/cpp/index.h"
#include "kernel/cpp/values.h"

namespace flashover::kernel::cpp {
namespace {

using loops::Id;
using loops::Instr;
using loops::kNone;
using loops::Op;
using loops::StoreMode;

bool has_masked_access(DType d) {
  return d == DType::kF32 || d == DType::kI32 || d == DType::kBF16 || d == DType::kF16;
}

// Is a value in memory as it is in a register?
bool is_plain_in_memory(DType d) {
  return d == DType::kF32 || d == DType::kF64 || d == DType::kI32 || d == DType::kI64 || d == DType::kI8 ||
         d == DType::kU8 || d == DType::kI16;
}

// Scratch of a vector kernel holds whole vectors, `unroll` for each element.
std::string scratch_vector(Emission& e, const Scope& s, const MemoryAccess& m, const Instr& in, int copy) {
  return m.pointer + "[(" + index(e, s, in.index) + ") * " + num(e.iteration.unroll) + " + " + num(copy) + "]";
}

std::string load_one(const Emission& e, const MemoryAccess& m, const std::string& at) {
  return is_plain_in_memory(m.dtype) ? m.pointer + "[" + at + "]"
                                     : e.ns(false) + "load_" + m.suffix + "(" + m.pointer + " + " + at + ")";
}

// The lanes of this run, or those of them where the mask is set, which differs from lane to lane.
std::string load_run(const Scope& s, const MemoryAccess& m, const std::string& at) {
  return s.run.count.empty() ? "load_" + m.suffix + "(" + at + ")"
                             : "load_" + m.suffix + "_n(" + at + ", " + s.run.count + ")";
}
std::string masked_lanes(const Scope& s, const Instr& in, int copy) {
  return mask_text(s, in, copy) + (s.run.count.empty() ? "" : " & lanes_below(" + s.run.count + ")");
}
std::string load_masked(const Scope& s, const MemoryAccess& m, const Instr& in, const std::string& at, int copy) {
  return "load_" + m.suffix + "_m(" + at + ", " + masked_lanes(s, in, copy) + ")";
}

// A uniform mask chooses between what was loaded and zero.
std::string or_zero(const Scope& s, const Instr& in, int copy, const std::string& loaded, const std::string& zero) {
  return in.mask == kNone ? loaded : mask_text(s, in, copy) + " ? " + loaded + " : " + zero;
}

// Of the lanes that a run with a count has, and a mask that varies leaves.
std::string gather_mask(const Scope& s, const Instr& in, int copy) {
  const std::string mask = s.run.count.empty() ? "" : "lanes_below(" + s.run.count + ")";
  if (!varies(s, in.mask)) return mask;
  return mask.empty() ? mask_text(s, in, copy) : "(" + mask_text(s, in, copy) + " & " + mask + ")";
}
std::string gathered(Emission& e, const Scope& s, const MemoryAccess& m, const Instr& in, int64_t stride, int copy) {
  const std::string at = m.pointer + " + " + index_of_copy(e, s, in.index, copy), mask = gather_mask(s, in, copy);
  const std::string gather =
      "gather_f32(" + at + ", iota(0) * splat_i(" + num(stride) + "), " + (mask.empty() ? "splat_m(true)" : mask) + ")";
  if (stride != 2) return gather;
  const std::string fast = "load_f32_2(" + at + ")";
  if (mask.empty()) return fast;
  return s.run.count.empty() ? "all_lanes(" + mask + ") ? " + fast + " : " + gather : gather;
}
std::string gathered_by(Emission& e, const Scope& s, const MemoryAccess& m, const Instr& in, sym::Expr stride,
                        int copy) {
  const std::string mask = gather_mask(s, in, copy);
  return "gather_by_f32(" + m.pointer + " + " + index_of_copy(e, s, in.index, copy) + ", " + index(e, s, stride) +
         ", " + (mask.empty() ? "splat_m(true)" : mask) + ")";
}

// Null where the lanes are loaded one by one.
std::function<std::string(int copy)> gather_of(Emission& e, const Scope& s, const MemoryAccess& m, const Instr& in) {
  const LaneStep step = step_of(s, in.index);
  if (is_reduced(m.dtype) && step.kind == LaneStep::kStride && step.stride == 2 && gather_mask(s, in, 0).empty())
    return [&e, &s, &in, m](int u) {
      return "load_" + m.suffix + "_2(" + m.pointer + " + " + index_of_copy(e, s, in.index, u) + ")";
    };
  if (m.dtype != DType::kF32) return nullptr;
  if (step.kind == LaneStep::kStride && std::abs(step.stride) < (1 << 24))
    return [&e, &s, &in, m, step](int u) { return gathered(e, s, m, in, step.stride, u); };
  const auto stride = step.kind == LaneStep::kVarying ? symbolic_step_of(s, in.index) : std::nullopt;
  if (!stride) return nullptr;
  return [&e, &s, &in, m, stride](int u) { return gathered_by(e, s, m, in, *stride, u); };
}

std::string combined(const Emission& e, StoreMode mode, DType d, const std::string& old, const std::string& value,
                     bool vector) {
  static const Op ops[] = {Op::k_add, Op::k_add, Op::k_mul, Op::k_maximum, Op::k_minimum};
  if (is_reduced(d)) d = DType::kF32;
  return operation(ops[static_cast<size_t>(mode)], d, "(" + old + ")", "(" + value + ")", "", vector, e.ns(vector));
}

void store_scratch_vectors(Emission& e, Scope& s, const Instr& in, const MemoryAccess& m) {
  for (int u = 0; u < s.run.copies; ++u) {
    const std::string at = scratch_vector(e, s, m, in, u),
                      value = operand(e, s, in.args[0], u, class_of(m.dtype), true);
    if (in.mask == kNone) {
      e.out.line(at + " = " + value + ";");
    } else if (!varies(s, in.mask)) {
      e.out.line("if (" + mask_text(s, in, u) + ") " + at + " = " + value + ";");
    } else {
      e.out.line(at + " = " + operation(Op::k_where, m.dtype, mask_text(s, in, u), value, at, true, "") + ";");
    }
  }
}

void store_vectors(Emission& e, Scope& s, const Instr& in, const MemoryAccess& m) {
  const bool mask_varies = varies(s, in.mask);
  for (int u = 0; u < s.run.copies; ++u) {
    const std::string at = m.pointer + " + " + index_of_copy(e, s, in.index, u);
    std::string value = operand(e, s, in.args[0], u, class_of(m.dtype), true);
    if (in.mode != StoreMode::kSet) {
      const std::string old = mask_varies ? load_masked(s, m, in, at, u) : load_run(s, m, at);
      value = combined(e, in.mode, m.dtype, old, value, true);
    }
    std::string text;
    if (mask_varies) {
      text = "store_" + m.suffix + "_m(" + at + ", " + value + ", " + masked_lanes(s, in, u) + ");";
    } else {
      text = s.run.count.empty() ? "store_" + m.suffix + "(" + at + ", " + value + ");"
                                 : "store_" + m.suffix + "_n(" + at + ", " + value + ", " + s.run.count + ");";
      if (in.mask != kNone) text = "if (" + mask_text(s, in, u) + ") " + text;
    }
    e.out.line(text);
  }
}

// One element, of lane `lane` of a vector value.
void store_one(Emission& e, const Scope& s, const Instr& in, const MemoryAccess& m, int copy, const std::string& at,
               const std::string& lane, const std::string& mask) {
  const RegisterClass c = class_of(m.dtype);
  const EmittedValue& v = s.values[in.args[0]];
  std::string value = v.varying ? v.name(copy) + "[" + lane + "]" : operand(e, s, in.args[0], copy, c, false);
  if (v.varying && c == RegisterClass::kB) value = "(" + value + " != 0)";
  if (in.mode != StoreMode::kSet) value = combined(e, in.mode, m.dtype, load_one(e, m, at), value, false);
  const std::string text = is_plain_in_memory(m.dtype)
                               ? m.pointer + "[" + at + "] = (" + memory_type(m.dtype) + ")(" + value + ");"
                               : e.ns(false) + "store_" + m.suffix + "(" + m.pointer + " + " + at + ", " + value + ");";
  e.out.line(mask.empty() ? text : "if (" + mask + ") " + text);
}

}  // namespace

const char* memory_type(DType d) {
  switch (d) {
    case DType::kF32:
      return "float";
    case DType::kF64:
      return "double";
    case DType::kF16:
    case DType::kBF16:
    case DType::kU16:
      return "unsigned short";
    case DType::kBool:
      return "bool";
    case DType::kU8:
      return "unsigned char";
    case DType::kI8:
      return "signed char";
    case DType::kI16:
      return "short";
    case DType::kI32:
      return "int";
    case DType::kU32:
      return "unsigned";
    case DType::kI64:
      return "long";
    default:
      throw Declined(std::string("kernel: no memory access for ") + info(d).name);
  }
}

MemoryAccess memory_of(const loops::Kernel& k, const Instr& in) {
  const bool scratch = in.op == Op::k_load_scratch || in.op == Op::k_store_scratch;
  const DType d = scratch ? k.scratch[in.slot].dtype : k.params[in.slot].dtype;
  return {(scratch ? "r" : "p") + num(in.slot), d, info(d).name};
}

void load(Emission& e, Scope& s, Id i) {
  const Instr& in = s.stage->body[i];
  const MemoryAccess m = memory_of(e.k, in);
  const DType d = in.dtype;
  const RegisterClass c = class_of(d);
  if (in.op == Op::k_load_scratch && e.outer())
    return define(e, s, i, true, d, [&](int u) { return scratch_vector(e, s, m, in, u); });
  if (auto tile = e.tile_names.find(i); tile != e.tile_names.end())
    return define(e, s, i, true, d, [&](int) {
      return c == RegisterClass::kI ? "bits(" + tile->second + "[row])" : tile->second + "[row]";
    });
  const LaneStep step = step_of(s, in.index);
  const bool mask_varies = varies(s, in.mask);
  const std::string zeros = e.constant(c, 0, 0, true);
  if (step.uniform() && !mask_varies) {
    define(e, s, i, false, d,
           [&](int) { return or_zero(s, in, 0, load_one(e, m, index(e, s, in.index)), e.constant(c, 0, 0, false)); });
  } else if (step.contiguous() && (!mask_varies || has_masked_access(m.dtype))) {
    define(e, s, i, true, d, [&](int u) {
      const std::string at = m.pointer + " + " + index_of_copy(e, s, in.index, u);
      return mask_varies ? load_masked(s, m, in, at, u) : or_zero(s, in, u, load_run(s, m, at), zeros);
    });
  } else if (const auto gather = gather_of(e, s, m, in)) {
    define(e, s, i, true, d, [&](int u) { return mask_varies ? gather(u) : or_zero(s, in, u, gather(u), zeros); });
  } else {
    define_by_lane(
        e, s, i, d, [&](int u) { return load_one(e, m, index_of_lane(e, s, in.index, u)); },
        in.mask == kNone ? TextOfCopy() : [&](int u) { return mask_text(s, in, u) + (mask_varies ? "[l]" : ""); });
  }
}

void store(Emission& e, Scope& s, Id i) {
  Instr in = s.stage->body[i];
  const MemoryAccess m = memory_of(e.k, in);
  if (in.op == Op::k_store && in.mode == StoreMode::kSet && is_reduced(m.dtype))
    in.args[0] = unrounded(s, in.args[0], m.dtype);
  if (in.op == Op::k_store_scratch && e.outer()) return store_scratch_vectors(e, s, in, m);
  if (!s.vector)
    return store_one(e, s, in, m, 0, index(e, s, in.index), "", in.mask == kNone ? "" : mask_text(s, in, 0));
  const bool mask_varies = varies(s, in.mask);
  if (step_of(s, in.index).contiguous() && (!mask_varies || has_masked_access(m.dtype)))
    return store_vectors(e, s, in, m);
  for (int u = 0; u < s.run.copies; ++u) {  // lane by lane, in order
    e.out.open("for (int l = 0; l < " + lane_count(s) + "; ++l)");
    store_one(e, s, in, m, u, index_of_lane(e, s, in.index, u), "l",
              in.mask == kNone ? "" : mask_text(s, in, u) + (mask_varies ? "[l]" : ""));
    e.out.close();
  }
}

}  // namespace flashover::kernel::cpp
