// The few value types that every stage shares: dtype, device, tensor type, operator argument.
// Numbers equal c10's (ScalarType, DeviceType, Layout, MemoryFormat), so the adapters in src/torch are casts; a
// static_assert there holds them together.
#pragma once
#include <complex>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sym/sym.h"

namespace flashover {

enum class DType : int8_t {
  kU8 = 0,
  kI8 = 1,
  kI16 = 2,
  kI32 = 3,
  kI64 = 4,
  kF16 = 5,
  kF32 = 6,
  kF64 = 7,
  kC32 = 8,
  kC64 = 9,
  kC128 = 10,  // complex of f16, f32, f64
  kBool = 11,
  kBF16 = 15,
  kF8E5M2 = 23,
  kF8E4M3 = 24,
  kU16 = 27,
  kU32 = 28,
  kU64 = 29,
  kUndefined = 100,  // ours: c10's moves with each dtype that torch gets
};
struct DTypeInfo {
  DType dtype;
  const char* name;  // "f32", "bf16", "i64", "b8" (bool) ...
  uint8_t bytes;
  bool floating, integral, complex, is_signed;  // bool is neither floating nor integral
};
const DTypeInfo& info(DType d);
DType parse_dtype(std::string_view name);  // kUndefined when unknown
inline bool is_floating(DType d) { return info(d).floating; }
inline bool is_integral(DType d) { return info(d).integral; }
inline bool is_reduced(DType d) { return d == DType::kF16 || d == DType::kBF16; }

enum class DeviceType : int8_t { kCPU = 0, kCUDA = 1, kMeta = 14 };
struct Device {
  DeviceType type = DeviceType::kCPU;
  int8_t index = -1;
  bool operator==(const Device&) const = default;
};

enum class Layout : int8_t { kStrided = 0, kOther = 1 };
enum class MemoryFormat : int8_t { kContiguous = 0, kPreserve = 1, kChannelsLast = 2, kChannelsLast3d = 3 };

using Sizes = std::vector<sym::Expr>;

// What is known of a tensor without its data. Strides and offset are in elements.
struct TensorType {
  DType dtype = DType::kUndefined;
  Device device;
  Sizes sizes;
  Sizes strides;
  sym::Expr offset = 0;
  bool wrapped_number = false;  // a 0-d tensor made from a Python number: weak in type promotion
  bool opaque = false;  // memory in a library's own layout (mkldnn): strides empty, only extern operators take it
  size_t rank() const { return sizes.size(); }
  sym::Expr numel() const { return sym::product(sizes); }
};
Sizes contiguous_strides(const Sizes& sizes);
// Its strides in eager where sizes that are symbols are 0: where it is dense, an empty dimension counts as one.
Sizes strides_where_empty(const TensorType& t);
bool is_contiguous(const TensorType& t);  // provably; size-1 dims are ignored
// Elementwise equality by known_eq.
bool same_sizes(const Sizes& a, const Sizes& b);
std::string str(const TensorType& t);  // "f32[2,3]{3,1}"; strides left out when contiguous; "+offset", "@cuda:0" when
                                       // not cpu, "w" = wrapped number

using ValueId = int32_t;  // index into Graph::values
constexpr ValueId kNoValue = -1;

struct Ref {  // a tensor argument
  ValueId id = kNoValue;
  bool operator==(const Ref&) const = default;
};
using RefList = std::vector<Ref>;  // Tensor[] / Tensor?[]; kNoValue = None

// Not std::monostate: where no alternative can leave a variant without a value, libstdc++ (12, 13) takes for granted
// that there is one, and a copy of the variant that throws destroys the value that it has not made.
struct None {
  constexpr None() noexcept = default;
  constexpr None(const None&) noexcept {}
  constexpr None& operator=(const None&) noexcept { return *this; }
  bool operator==(const None&) const = default;
};

// One operator argument, by schema position, defaults filled in. A Scalar is an Expr, double, bool or complex.
using Arg = std::variant<None, Ref, RefList, sym::Expr, Sizes,  // int / SymInt and their lists
                         double, std::vector<double>, bool, std::vector<bool>, std::complex<double>, std::string, DType,
                         Device, Layout, MemoryFormat>;
bool is_none(const Arg& a);

}  // namespace flashover
