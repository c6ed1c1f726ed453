// Type rules as text, for tests: a call with its operands' types in, the results' types out.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "ops/ops.h"
#include "ops/text.h"

namespace flashover::ops {

// "prim.permute(%f32[2,3], [1, 0])" gives "f32[3,2]{1,3}". A tensor operand is % and its type, lists of them are
// %[...]; "unknown" where the rule does not know the case, "error: ..." with the end of its message where it throws.
inline std::string inferred(std::string_view call) {
  Cursor in(call);
  const std::string_view name = in.word();
  const OpRow* op = find_existing(name);
  if (!op || !op->infer) return "no rule";
  std::vector<TensorType> types;
  const auto tensor = [&] {
    if (in.accept_word("None")) return Ref{};
    types.push_back(in.type());
    return Ref{static_cast<ValueId>(types.size() - 1)};
  };
  std::vector<Arg> args;
  in.expect("(");
  while (!in.accept(")")) {
    if (in.accept("%[")) {
      RefList list;
      while (!in.accept("]")) {
        list.push_back(tensor());
        in.accept(",");
      }
      args.emplace_back(std::move(list));
    } else if (in.accept("%")) {
      args.emplace_back(tensor());
    } else {
      args.push_back(in.arg());
    }
    in.accept(",");
  }
  const auto type_of = [](const void* user, ValueId id) -> const TensorType& {
    return (*static_cast<const std::vector<TensorType>*>(user))[id];
  };
  std::vector<TensorType> outs;
  try {
    if (!op->infer({args, type_of, &types}, outs)) return "unknown";
  } catch (const InternalError& e) {
    const std::string what = e.what();
    return "error: " + what.substr(what.find("check failed"));
  } catch (const UserError& e) {
    return std::string("error: ") + e.what();
  }
  std::string out;
  for (const TensorType& t : outs) out += (out.empty() ? "" : ", ") + str(t);
  return out;
}

}  // namespace flashover::ops
