// The door to ATen: value types both ways, operator calls by name, the reference evaluator (eval.h).
//
//   In        flashover values (TensorType, Arg, "aten.add.Tensor")
//   Out       ATen values (tensor options, IValue, OperatorHandle) and back
//   Promises  a round trip Arg -> IValue -> Arg gives the same Arg; enum numbers are c10's (static_asserts in
//             convert.cpp)
//   Declines  arguments that no Arg can hold (generators, streams, storages, custom classes, symbolic ints): Declined
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <cstdint>

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/names.h"
#include "ops/ops.h"
#include "ops/types.h"

namespace flashover::aten {

inline at::ScalarType to_aten(DType d) {
  return d == DType::kUndefined ? at::ScalarType::Undefined : static_cast<at::ScalarType>(d);
}
inline DType from_aten(at::ScalarType d) {
  return d == at::ScalarType::Undefined ? DType::kUndefined : static_cast<DType>(d);
}
inline at::Device to_aten(Device d) { return at::Device(static_cast<at::DeviceType>(d.type), d.index); }
inline Device from_aten(at::Device d) { return Device{static_cast<DeviceType>(d.type()), d.index()}; }
inline at::MemoryFormat to_aten(MemoryFormat f) { return static_cast<at::MemoryFormat>(f); }
inline MemoryFormat from_aten(at::MemoryFormat f) { return static_cast<MemoryFormat>(f); }

bool is_known_dtype(at::ScalarType d);    // one that DType names
TensorType type_of(const at::Tensor& t);  // strided tensors with concrete sizes; throws Declined otherwise
std::vector<int64_t> to_ints(const Sizes& sizes);

// What a schema says of one argument or return.
enum class ArgKind : uint8_t {
  kTensor,
  kTensorList,  // also optional ones
  kInt,
  kIntList,
  kFloat,
  kFloatList,
  kBool,
  kBoolList,
  kScalar,
  kScalarList,
  kString,
  kDType,
  kLayout,
  kDevice,
  kMemoryFormat,
  kGenerator,  // only None can be recorded
  kOther,      // storages, streams, dimnames, custom classes: only None can be recorded
};
struct ArgSpec {
  ArgKind kind = ArgKind::kOther;
  bool optional = false;
  bool list_of_optional = false;  // Tensor?[]
  bool written = false;           // (a!)
  int16_t alias = -1;             // of a return: the argument in whose alias set it is
  int32_t fixed_length = 0;       // int[2]
  bool operator==(const ArgSpec&) const = default;
};

// One registered operator, with its schema digested. Never freed; find by name or by handle.
struct Operator {
  std::string name;            // op::add_Tensor
  c10::OperatorHandle handle;  // of an operator that may be gone: see handle_of
  std::vector<ArgSpec> args, returns;
  bool any_written = false;
  // Null for torch's own. Set when torch has removed it: its library was let go, as by a notebook's cell that runs again.
  std::shared_ptr<std::atomic<bool>> gone;
};
// Null when torch has no such operator (or it has no schema).
const Operator* find_operator(std::string_view name);
// The handle to call, which is that of a successor that takes and returns the same where the operator is gone; raises a
// RuntimeError where there is none.
c10::OperatorHandle handle_of(const Operator& op);
uint64_t removed_operators();  // how many torch has removed: the next of that name may be another, at the same address
std::string flashover_name(const c10::OperatorName& name);  // aten::add.Tensor -> aten.add.Tensor
Operator digest(const c10::OperatorHandle& handle);

// Everything but tensors (those are the caller's: Ref and RefList are not produced). Throws Declined.
Arg from_ivalue(const c10::IValue& value, const ArgSpec& spec, const char* op_name);
// `tensor_of` is asked for Ref and RefList entries other than kNoValue.
using TensorOf = std::function<at::Tensor(ValueId)>;
c10::IValue to_ivalue(const Arg& arg, const ArgSpec& spec, const TensorOf& tensor_of);
at::Scalar to_scalar(const Arg& arg);  // Expr, double, bool, complex
Arg from_scalar(const at::Scalar& scalar);

// Calls through the dispatcher under whatever thread state is set. Tensors in the results, lists flattened, undefined
// kept.
std::vector<at::Tensor> call(const Operator& op, std::span<const Arg> args, const TensorOf& tensor_of);

}  // namespace flashover::aten
