// The table of dtypes, and small questions about tensor types.
#include "ops/types.h"

#include <algorithm>
#include <array>

namespace flashover {
namespace {

constexpr DTypeInfo kInfos[] = {
    // dtype, name, bytes, floating, integral, complex, signed
    {DType::kU8, "u8", 1, false, true, false, false},        {DType::kI8, "i8", 1, false, true, false, true},
    {DType::kI16, "i16", 2, false, true, false, true},       {DType::kI32, "i32", 4, false, true, false, true},
    {DType::kI64, "i64", 8, false, true, false, true},       {DType::kF16, "f16", 2, true, false, false, true},
    {DType::kF32, "f32", 4, true, false, false, true},       {DType::kF64, "f64", 8, true, false, false, true},
    {DType::kC32, "c32", 4, false, false, true, true},       {DType::kC64, "c64", 8, false, false, true, true},
    {DType::kC128, "c128", 16, false, false, true, true},    {DType::kBool, "b8", 1, false, false, false, false},
    {DType::kBF16, "bf16", 2, true, false, false, true},     {DType::kF8E5M2, "f8e5m2", 1, true, false, false, true},
    {DType::kF8E4M3, "f8e4m3", 1, true, false, false, true}, {DType::kU16, "u16", 2, false, true, false, false},
    {DType::kU32, "u32", 4, false, true, false, false},      {DType::kU64, "u64", 8, false, true, false, false},
};
constexpr DTypeInfo kUndefinedInfo = {DType::kUndefined, "undefined", 0, false, false, false, false};

constexpr size_t kTableSize = 30;  // by number; kU64 is the largest
constexpr std::array<const DTypeInfo*, kTableSize> make_table() {
  std::array<const DTypeInfo*, kTableSize> table{};
  for (auto& entry : table) entry = &kUndefinedInfo;
  for (const DTypeInfo& i : kInfos) table[static_cast<size_t>(i.dtype)] = &i;
  return table;
}
constexpr auto kByNumber = make_table();

}  // namespace

const DTypeInfo& info(DType d) {
  const auto number = static_cast<size_t>(static_cast<uint8_t>(d));
  return number < kTableSize ? *kByNumber[number] : kUndefinedInfo;
}

DType parse_dtype(std::string_view name) {
  for (const DTypeInfo& i : kInfos)
    if (name == i.name) return i.dtype;
  return DType::kUndefined;
}

Sizes contiguous_strides(const Sizes& sizes) {
  Sizes strides(sizes.size());
  sym::Expr stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    // As ATen: an empty dimension counts as one, so strides stay positive.
    stride = stride * (sizes[i].is_const() ? sym::Expr(std::max<int64_t>(sizes[i].value(), 1)) : sizes[i]);
  }
  return strides;
}

Sizes strides_where_empty(const TensorType& t) {
  if (t.opaque) return t.strides;  // it has none
  Sizes out = t.strides;
  std::vector<bool> placed(t.sizes.size());
  sym::Expr span = 1, span_where_empty = 1;
  for (size_t n = 0; n < t.sizes.size(); ++n) {
    size_t d = t.sizes.size();
    while (d-- > 0 && (placed[d] || !(t.strides[d] == span))) {
    }
    if (d >= t.sizes.size()) {  // not dense, but for dimensions of size 1, which lie anywhere
      for (size_t left = 0; left < t.sizes.size(); ++left)
        if (!placed[left] && !t.sizes[left].is_const(1)) return t.strides;
      break;
    }
    placed[d] = true;
    out[d] = span_where_empty;
    span = span * (t.sizes[d].is_const() ? sym::max(t.sizes[d], 1) : t.sizes[d]);
    span_where_empty = span_where_empty * sym::max(t.sizes[d], 1);
  }
  return out;
}

bool is_contiguous(const TensorType& t) {
  if (t.opaque || t.strides.size() != t.sizes.size()) return false;
  for (sym::Expr size : t.sizes)
    if (size.is_const(0)) return true;
  sym::Expr expected = 1;
  for (size_t i = t.sizes.size(); i-- > 0;) {
    if (t.sizes[i].is_const(1)) continue;
    if (!sym::known_eq(t.strides[i], expected)) return false;
    expected = expected * t.sizes[i];
  }
  return true;
}

bool same_sizes(const Sizes& a, const Sizes& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!sym::known_eq(a[i], b[i])) return false;
  return true;
}

namespace {
std::string join(const Sizes& list) {
  std::string out;
  for (size_t i = 0; i < list.size(); ++i) {
    if (i) out += ',';
    out += list[i].str();
  }
  return out;
}
}  // namespace

std::string str(const TensorType& t) {
  std::string out = info(t.dtype).name;
  out += '[' + join(t.sizes) + ']';
  if (t.opaque) {
    out += "opaque";
  } else if (t.strides != contiguous_strides(t.sizes)) {
    out += '{' + join(t.strides) + '}';
  }
  if (!t.offset.is_const(0)) out += t.offset.is_const() ? '+' + t.offset.str() : "+(" + t.offset.str() + ')';
  if (t.device.type != DeviceType::kCPU) {
    out += t.device.type == DeviceType::kCUDA ? "@cuda" : "@meta";
    if (t.device.index >= 0) out += ':' + std::to_string(t.device.index);
  }
  if (t.wrapped_number) out += 'w';
  return out;
}

bool is_none(const Arg& a) {
  if (std::holds_alternative<None>(a)) return true;
  const Ref* ref = std::get_if<Ref>(&a);
  return ref && ref->id == kNoValue;
}

}  // namespace flashover
