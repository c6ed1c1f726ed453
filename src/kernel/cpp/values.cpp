// A vector value is one constant per copy, v7_0, v7_1 ...; a literal stands where it is used.
#include "kernel/cpp/values.h"

namespace flashover::kernel::cpp {

using loops::Id;
using loops::Op;

std::string operand(const Emission& e, const Scope& s, Id a, int copy, RegisterClass cls, bool vector) {
  const EmittedValue& v = s.values[a];
  std::string t = v.name(copy);
  if (v.literal) return e.constant(cls, v.number, v.integer, vector);
  if (v.cls == RegisterClass::kI && cls == RegisterClass::kL) t = v.varying ? "i_to_l(" + t + ")" : "(long)" + t;
  if (v.cls == RegisterClass::kL && cls == RegisterClass::kI)
    t = v.varying ? "l_to_i(" + t + ")" : "(int)" + t;  // it provably fits
  if (vector && !v.varying) {
    static const char* const splats[] = {"splat", "splat_d", "splat_i", "splat_l", "splat_m"};
    t = std::string(splats[static_cast<size_t>(cls)]) + "(" + t + ")";
  }
  return t;
}

namespace {
EmittedValue& name_value(Scope& s, Id i, bool varying, DType dtype) {
  EmittedValue& v = s.values[i];
  v.varying = varying;
  v.dtype = dtype;
  v.cls = class_of(dtype);
  v.text = "v" + num(i);
  return v;
}
}  // namespace

void define(Emission& e, Scope& s, Id i, bool varying, DType dtype, const TextOfCopy& text) {
  const EmittedValue& v = name_value(s, i, varying, dtype);
  for (int u = 0; u < (varying ? s.run.copies : 1); ++u)
    e.out.line(std::string("const ") + type_name(v.cls, varying) + " " + v.name(u) + " = " + text(u) + ";");
}

void define_by_lane(Emission& e, Scope& s, Id i, DType dtype, const TextOfCopy& text, const TextOfCopy& condition) {
  const EmittedValue& v = name_value(s, i, true, dtype);
  for (int u = 0; u < s.run.copies; ++u) {
    e.out.line(std::string(type_name(v.cls, true)) + " " + v.name(u) + "{};");
    const std::string test = condition ? "if (" + condition(u) + ") " : "";
    std::string value = text(u);
    if (v.cls == RegisterClass::kB) value = "-(int)(" + value + ")";
    e.out.line("for (int l = 0; l < " + lane_count(s) + "; ++l) " + test + v.name(u) + "[l] = " + value + ";");
  }
}

void set_literal(Emission& e, Scope& s, Id i, double number, int64_t integer) {
  EmittedValue& v = s.values[i];
  v.literal = true;
  v.dtype = narrowed(*s.facts, *s.stage, i);
  v.cls = class_of(v.dtype);
  v.number = v.dtype == DType::kF32 ? static_cast<float>(number) : number;
  v.integer = integer;
  v.text = e.constant(v.cls, v.number, integer, false);
}

Id unrounded(const Scope& s, Id i, DType narrow) {
  const std::vector<loops::Instr>& body = s.stage->body;
  while (body[i].op == Op::k_round_to && body[i].narrow == narrow) i = body[i].args[0];
  return i;
}

bool varies(const Scope& s, Id i) { return i != loops::kNone && s.values[i].varying; }

std::string mask_text(const Scope& s, const loops::Instr& in, int copy) { return s.values[in.mask].name(copy); }

std::string lane_count(const Scope& s) { return s.run.count.empty() ? "W" : s.run.count; }

}  // namespace flashover::kernel::cpp
