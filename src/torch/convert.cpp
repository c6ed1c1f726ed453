// Digests schemas once; the static_asserts hold our numbers to c10's.
#include "torch/convert.h"

#include <ATen/ScalarOps.h>

#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "base/check.h"
#include "ops/names.h"
#include "ops/ops.h"
#include "torch/size_node.h"

namespace flashover::aten {
namespace {

template <typename Ours, typename Theirs>
constexpr bool same(Ours a, Theirs b) {
  return static_cast<int>(a) == static_cast<int>(b);
}
static_assert(same(DType::kU8, at::kByte) && same(DType::kI8, at::kChar) && same(DType::kI16, at::kShort));
static_assert(same(DType::kI32, at::kInt) && same(DType::kI64, at::kLong) && same(DType::kF16, at::kHalf));
static_assert(same(DType::kF32, at::kFloat) && same(DType::kF64, at::kDouble) && same(DType::kBool, at::kBool));
static_assert(same(DType::kC32, at::kComplexHalf) && same(DType::kC64, at::kComplexFloat));
static_assert(same(DType::kC128, at::kComplexDouble) && same(DType::kBF16, at::kBFloat16));
static_assert(same(DType::kF8E5M2, at::kFloat8_e5m2) && same(DType::kF8E4M3, at::kFloat8_e4m3fn));
static_assert(same(DType::kU16, at::kUInt16) && same(DType::kU32, at::kUInt32) && same(DType::kU64, at::kUInt64));
static_assert(static_cast<int>(DType::kUndefined) > static_cast<int>(at::ScalarType::NumOptions));
static_assert(same(DeviceType::kCPU, at::kCPU) && same(DeviceType::kCUDA, at::kCUDA));
static_assert(same(DeviceType::kMeta, at::kMeta));
static_assert(same(MemoryFormat::kContiguous, at::MemoryFormat::Contiguous));
static_assert(same(MemoryFormat::kPreserve, at::MemoryFormat::Preserve));
static_assert(same(MemoryFormat::kChannelsLast, at::MemoryFormat::ChannelsLast));
static_assert(same(MemoryFormat::kChannelsLast3d, at::MemoryFormat::ChannelsLast3d));
static_assert(same(Layout::kStrided, at::kStrided));

ArgSpec spec_of(const c10::Argument& argument) {
  ArgSpec spec;
  c10::TypePtr type = argument.real_type();
  if (auto optional = type->cast<c10::OptionalType>()) {
    spec.optional = true;
    type = optional->getElementType();
  }
  if (argument.N()) spec.fixed_length = *argument.N();
  bool list = false;
  if (auto list_type = type->cast<c10::ListType>()) {
    list = true;
    type = list_type->getElementType();
    if (auto optional = type->cast<c10::OptionalType>()) {
      spec.list_of_optional = true;
      type = optional->getElementType();
    }
  }
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      spec.kind = list ? ArgKind::kTensorList : ArgKind::kTensor;
      break;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      spec.kind = list ? ArgKind::kIntList : ArgKind::kInt;
      break;
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
      spec.kind = list ? ArgKind::kFloatList : ArgKind::kFloat;
      break;
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      spec.kind = list ? ArgKind::kBoolList : ArgKind::kBool;
      break;
    case c10::TypeKind::NumberType:
      spec.kind = list ? ArgKind::kScalarList : ArgKind::kScalar;
      break;
    default:
      if (list) break;
      switch (type->kind()) {
        case c10::TypeKind::StringType:
          spec.kind = ArgKind::kString;
          break;
        case c10::TypeKind::ScalarTypeType:
          spec.kind = ArgKind::kDType;
          break;
        case c10::TypeKind::LayoutType:
          spec.kind = ArgKind::kLayout;
          break;
        case c10::TypeKind::DeviceObjType:
          spec.kind = ArgKind::kDevice;
          break;
        case c10::TypeKind::MemoryFormatType:
          spec.kind = ArgKind::kMemoryFormat;
          break;
        case c10::TypeKind::GeneratorType:
          spec.kind = ArgKind::kGenerator;
          break;
        default:
          break;
      }
  }
  if (argument.alias_info()) spec.written = argument.alias_info()->isWrite();
  return spec;
}

bool names_set(const c10::AliasInfo& info, c10::Symbol set) {
  if (info.beforeSets().count(set)) return true;
  for (const c10::AliasInfo& inner : info.containedTypes())  // Tensor(a)[]
    if (names_set(inner, set)) return true;
  return false;
}
bool shares_alias_set(const c10::Argument& a, const c10::Argument& b) {
  if (!a.alias_info() || !b.alias_info()) return false;
  for (const auto& set : a.alias_info()->beforeSets())
    if (names_set(*b.alias_info(), set)) return true;
  // (a -> *): the result is a list of views
  for (const auto& set : a.alias_info()->afterSets())
    if (names_set(*b.alias_info(), set)) return true;
  return false;
}

sym::Expr int_of(const c10::IValue& value, const char* op_name) {
  if (const auto size = expr_of(value)) return *size;
  if (value.isBool()) return int64_t{value.toBool()};
  throw Declined(std::string("symbolic or non-integer size in ") + op_name);
}

struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<std::string, std::unique_ptr<Operator>> by_name;
  std::vector<std::unique_ptr<Operator>> gone;  // compiled functions may still hold them
  std::atomic<uint64_t> removed = 0;
};

// (Under the dispatcher's lock: nothing here asks it.)
struct RemovalListener final : c10::OpRegistrationListener {
  explicit RemovalListener(Registry& r) : registry(r) {}
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    const std::string name = flashover_name(op.operator_name());
    ops::forget(name);
    std::unique_lock lock(registry.mutex);
    if (auto known = registry.by_name.extract(name)) {
      if (known.mapped()->gone) known.mapped()->gone->store(true, std::memory_order_release);
      registry.gone.push_back(std::move(known.mapped()));
    }
    registry.removed.fetch_add(1, std::memory_order_release);
  }
  Registry& registry;
};

Registry& registry() {
  static Registry* r = [] {
    auto* made = new Registry;  // outlives static destruction of others
    static auto* listening = new c10::RegistrationHandleRAII(
        c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<RemovalListener>(*made)));
    static_cast<void>(listening);
    return made;
  }();
  return *r;
}

}  // namespace

bool is_known_dtype(at::ScalarType d) { return info(from_aten(d)).bytes != 0; }

TensorType type_of(const at::Tensor& t) {
  if (!t.defined()) return {};
  if (t.layout() != at::kStrided) throw Declined("tensor layout is not strided");
  if (!is_known_dtype(t.scalar_type())) throw Declined(std::string("dtype ") + c10::toString(t.scalar_type()));
  if (t.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) throw Declined("tensor with symbolic sizes");
  TensorType out;
  out.dtype = from_aten(t.scalar_type());
  out.device = from_aten(t.device());
  out.sizes.assign(t.sizes().begin(), t.sizes().end());
  out.strides.assign(t.strides().begin(), t.strides().end());
  out.offset = t.storage_offset();
  out.wrapped_number = t.unsafeGetTensorImpl()->is_wrapped_number();
  return out;
}

std::vector<int64_t> to_ints(const Sizes& sizes) {
  std::vector<int64_t> out(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) out[i] = sizes[i].value();
  return out;
}

std::string flashover_name(const c10::OperatorName& name) {
  std::string out = name.name;
  if (auto colons = out.find("::"); colons != std::string::npos) out.replace(colons, 2, ".");
  out += '.';
  out += name.overload_name.empty() ? "default" : name.overload_name;
  return out;
}

Operator digest(const c10::OperatorHandle& handle) {
  Operator op{flashover_name(handle.operator_name()), handle, {}, {}, false, nullptr};
  const c10::FunctionSchema& schema = handle.schema();
  if (!op::is_aten(op.name)) op.gone = std::make_shared<std::atomic<bool>>(false);
  for (const c10::Argument& a : schema.arguments()) {
    op.args.push_back(spec_of(a));
    op.any_written |= op.args.back().written;
  }
  for (const c10::Argument& r : schema.returns()) {
    ArgSpec spec = spec_of(r);
    for (size_t i = 0; i < schema.arguments().size(); ++i)
      if (shares_alias_set(schema.arguments()[i], r)) {
        spec.alias = static_cast<int16_t>(i);
        break;
      }
    op.returns.push_back(spec);
  }
  return op;
}

const Operator* find_operator(std::string_view name) {
  Registry& r = registry();
  std::string key(name);
  {
    std::shared_lock lock(r.mutex);
    if (auto it = r.by_name.find(key); it != r.by_name.end()) return it->second.get();
  }
  const size_t first = name.find('.'), last = name.rfind('.');
  if (first == std::string_view::npos || first == last) return nullptr;
  std::string overload(name.substr(last + 1));
  if (overload == "default") overload.clear();
  std::string qualified = key.substr(0, first) + "::" + key.substr(first + 1, last - first - 1);
  auto handle = c10::Dispatcher::singleton().findSchema({qualified, overload});
  if (!handle) return nullptr;
  auto op = std::make_unique<Operator>(digest(*handle));
  std::unique_lock lock(r.mutex);
  return r.by_name.emplace(key, std::move(op)).first->second.get();
}

c10::OperatorHandle handle_of(const Operator& op) {
  if (!op.gone || !op.gone->load(std::memory_order_acquire)) [[likely]]
    return op.handle;
  const Operator* next = find_operator(op.name);
  TORCH_CHECK(next != nullptr, "flashover: the operator ", op.name, ", which a compiled function calls, was removed.");
  TORCH_CHECK(next->args == op.args && next->returns == op.returns, "flashover: the operator ", op.name,
              ", which a compiled function calls, was defined anew since, with another schema. Compile the function "
              "again, or call flashover.reset().");
  return next->handle;
}

uint64_t removed_operators() { return registry().removed.load(std::memory_order_acquire); }

Arg from_scalar(const at::Scalar& s) {
  if (s.isSymbolic()) throw Declined("symbolic scalar");
  if (s.isBoolean()) return s.toBool();
  if (s.isIntegral(false)) return sym::Expr(s.toLong());
  if (s.isComplex()) {
    const auto c = s.toComplexDouble();
    return std::complex<double>(c.real(), c.imag());
  }
  return s.toDouble();
}

at::Scalar to_scalar(const Arg& arg) {
  if (auto* e = std::get_if<sym::Expr>(&arg)) return at::Scalar(e->value());
  if (auto* d = std::get_if<double>(&arg)) return at::Scalar(*d);
  if (auto* b = std::get_if<bool>(&arg)) return at::Scalar(*b);
  if (auto* c = std::get_if<std::complex<double>>(&arg)) return at::Scalar(c10::complex<double>(c->real(), c->imag()));
  FLASHOVER_CHECK(false) << "argument is not a scalar";
  return {};
}

Arg from_ivalue(const c10::IValue& value, const ArgSpec& spec, const char* op_name) {
  if (value.isNone()) return None{};
  switch (spec.kind) {
    case ArgKind::kInt:
      return int_of(value, op_name);
    case ArgKind::kIntList: {
      if (!value.isList()) return Sizes(std::max(spec.fixed_length, 1), int_of(value, op_name));
      Sizes out;
      const auto list = value.toListRef();
      out.reserve(list.size());
      for (const c10::IValue& v : list) out.push_back(int_of(v, op_name));
      return out;
    }
    case ArgKind::kFloat:
      if (value.isDouble()) return value.toDouble();
      if (value.isInt()) return static_cast<double>(value.toInt());
      break;
    case ArgKind::kFloatList: {
      if (!value.isList()) return std::vector<double>(std::max(spec.fixed_length, 1), value.toScalar().toDouble());
      std::vector<double> out;
      for (const c10::IValue& v : value.toListRef()) out.push_back(v.toScalar().toDouble());
      return out;
    }
    case ArgKind::kBool:
      if (value.isBool()) return value.toBool();
      if (value.isInt()) return value.toInt() != 0;
      break;
    case ArgKind::kBoolList: {
      if (!value.isList()) return std::vector<bool>(std::max(spec.fixed_length, 1), value.toBool());
      std::vector<bool> out;
      for (const c10::IValue& v : value.toListRef()) out.push_back(v.toBool());
      return out;
    }
    case ArgKind::kScalar:
      // A size as a number to compute with is this call's.
      if (is_size(value)) return sym::Expr(value.toSymInt().guard_int(__FILE__, __LINE__));
      // A float of sizes, which are numbers by that.
      if (value.isSymFloat() && value.toSymFloat().toSymNodeImpl()->is_constant())
        return value.toSymFloat().guard_float(__FILE__, __LINE__);
      return from_scalar(value.toScalar());
    case ArgKind::kScalarList: {
      // Kept by value: integers stay integers only when all of them are.
      bool all_int = true, any_complex = false;
      const auto list = value.toListRef();
      for (const c10::IValue& v : list) {
        all_int &= v.isInt();
        any_complex |= v.isComplexDouble();
      }
      if (any_complex) throw Declined(std::string("list of complex numbers in ") + op_name);
      if (all_int) {
        Sizes out;
        for (const c10::IValue& v : list) out.emplace_back(v.toInt());
        return out;
      }
      std::vector<double> out;
      for (const c10::IValue& v : list) {
        if (!v.isDouble()) throw Declined(std::string("list of mixed numbers in ") + op_name);
        out.push_back(v.toDouble());
      }
      return out;
    }
    case ArgKind::kString:
      return value.toStringRef();
    case ArgKind::kDType: {
      const auto dtype = value.toScalarType();
      if (!is_known_dtype(dtype)) throw Declined(std::string("dtype ") + c10::toString(dtype) + " in " + op_name);
      return from_aten(dtype);
    }
    case ArgKind::kLayout:
      return value.toLayout() == at::kStrided ? Layout::kStrided : Layout::kOther;
    case ArgKind::kDevice:
      return from_aten(value.toDevice());
    case ArgKind::kMemoryFormat:
      return from_aten(value.toMemoryFormat());
    case ArgKind::kTensor:
    case ArgKind::kTensorList:
      FLASHOVER_CHECK(false) << "tensor argument in " << op_name;
      break;
    case ArgKind::kGenerator:
      throw Declined(std::string("random generator argument in ") + op_name);
    case ArgKind::kOther:
      break;
  }
  throw Declined(std::string("argument of type ") + value.tagKind() + " in " + op_name);
}

c10::IValue to_ivalue(const Arg& arg, const ArgSpec& spec, const TensorOf& tensor_of) {
  if (std::holds_alternative<None>(arg)) return {};
  const auto tensor = [&](Ref r) { return r.id == kNoValue ? at::Tensor() : tensor_of(r.id); };
  switch (spec.kind) {
    case ArgKind::kTensor: {
      if (std::holds_alternative<sym::Expr>(arg) || std::holds_alternative<double>(arg) ||
          std::holds_alternative<bool>(arg) ||
          std::holds_alternative<std::complex<double>>(
              arg)) {  // a number in a tensor's place, as Python's numbers arrive
        at::Tensor number = c10::scalar_to_tensor(to_scalar(arg));
        number.unsafeGetTensorImpl()->set_wrapped_number(true);
        return number;
      }
      const Ref r = std::get<Ref>(arg);
      if (r.id == kNoValue) return {};
      return tensor_of(r.id);
    }
    case ArgKind::kTensorList: {
      const auto& refs = std::get<RefList>(arg);
      if (spec.list_of_optional) {
        c10::List<std::optional<at::Tensor>> list;
        list.reserve(refs.size());
        for (Ref r : refs) list.push_back(r.id == kNoValue ? std::optional<at::Tensor>() : tensor(r));
        return list;
      }
      c10::List<at::Tensor> list;
      list.reserve(refs.size());
      for (Ref r : refs) list.push_back(tensor(r));
      return list;
    }
    case ArgKind::kInt:
      return std::get<sym::Expr>(arg).value();
    case ArgKind::kIntList:
      return to_ints(std::get<Sizes>(arg));
    case ArgKind::kFloat:
      return std::get<double>(arg);
    case ArgKind::kFloatList:
      return std::get<std::vector<double>>(arg);
    case ArgKind::kBool:
      return std::get<bool>(arg);
    case ArgKind::kBoolList: {
      c10::List<bool> list;
      for (bool b : std::get<std::vector<bool>>(arg)) list.push_back(b);
      return list;
    }
    case ArgKind::kScalar:
      if (auto* r = std::get_if<Ref>(&arg)) return tensor_of(r->id).item();  // a number that is known when it runs
      return to_scalar(arg);
    case ArgKind::kScalarList: {
      const auto fill = [&](auto list) -> c10::IValue {
        if (auto* ints = std::get_if<Sizes>(&arg)) {
          for (sym::Expr e : *ints) list.push_back(at::Scalar(e.value()));
        } else {
          for (double d : std::get<std::vector<double>>(arg)) list.push_back(at::Scalar(d));
        }
        return list;
      };
      return spec.list_of_optional ? fill(c10::List<std::optional<at::Scalar>>()) : fill(c10::List<at::Scalar>());
    }
    case ArgKind::kString:
      return std::get<std::string>(arg);
    case ArgKind::kDType:
      return to_aten(std::get<DType>(arg));
    case ArgKind::kLayout:
      return std::get<Layout>(arg) == Layout::kStrided ? at::kStrided : at::kSparse;
    case ArgKind::kDevice:
      return to_aten(std::get<Device>(arg));
    case ArgKind::kMemoryFormat:
      return to_aten(std::get<MemoryFormat>(arg));
    case ArgKind::kGenerator:
    case ArgKind::kOther:
      break;
  }
  FLASHOVER_CHECK(false) << "argument cannot be given to ATen";
  return {};
}

std::vector<at::Tensor> call(const Operator& op, std::span<const Arg> args, const TensorOf& tensor_of) {
  FLASHOVER_CHECK(args.size() == op.args.size())
      << op.name << " takes " << op.args.size() << " arguments, not " << args.size();
  torch::jit::Stack stack;
  stack.reserve(args.size());
  for (size_t i = 0; i < args.size(); ++i) stack.push_back(to_ivalue(args[i], op.args[i], tensor_of));
  handle_of(op).callBoxed(stack);
  std::vector<at::Tensor> out;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      out.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) out.push_back(t);
    }
  }
  return out;
}

}  // namespace flashover::aten
