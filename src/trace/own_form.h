// How a form of ours takes the place of a composite operator of ATen's, above autograd.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <type_traits>

#include "trace/tensor.h"

namespace flashover::trace {

inline bool is_symbolic(const at::Tensor& t) {
  const TraceImpl* impl = trace_impl(t);
  return impl && impl->is_symbolic();
}

// Of a class with __torch_dispatch__.
inline bool is_wrapper(const at::Tensor& t) { return t.defined() && t.key_set().has(c10::DispatchKey::Python); }
inline bool is_wrapper(const std::optional<at::Tensor>& t) { return t && is_wrapper(*t); }
inline bool is_wrapper(at::TensorList list) {
  return std::any_of(list.begin(), list.end(), [](const at::Tensor& t) { return is_wrapper(t); });
}
template <typename T>
bool is_wrapper(const T&) {
  return false;
}

// While it lives operators are ATen's own.
struct Below {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::DispatchKey::TESTING_ONLY_GenericWrapper};
};

// Where ATen's own form of an operator is looked for.
constexpr c10::DispatchKeySet kAfterOurs(c10::DispatchKeySet::FULL_AFTER,
                                         c10::DispatchKey::TESTING_ONLY_GenericWrapper);

// Our own form of an operator. A tensor of a class that sees operators is to see what it sees in eager.
template <typename Op, auto form, typename Schema = typename Op::schema>
struct OwnForm;
template <typename Op, auto form, typename Result, typename... Args>
struct OwnForm<Op, form, Result(Args...)> {
  static Result call(c10::DispatchKeySet keys, Args... args) {
    if ((is_wrapper(args) || ...)) return Op::redispatch(keys & kAfterOurs, args...);
    if constexpr (std::is_invocable_v<decltype(form), c10::DispatchKeySet, Args...>) {
      return form(keys, args...);
    } else {
      return form(args...);
    }
  }
};
template <typename Op, auto form>
void own(torch::Library& m, const char* name) {
  m.impl(name, OwnForm<Op, form>::call);
}

void link_sized_composites();  // sized_composites.cpp
void link_recurrent();         // recurrent.cpp

// at::lstm, written with operators of ours; nullopt: these do not take it (recurrent.cpp).
std::optional<std::tuple<at::Tensor, at::Tensor, at::Tensor>> record_lstm(const at::Tensor& input, at::TensorList hx,
                                                                          at::TensorList params, bool has_biases,
                                                                          int64_t layers, double dropout, bool train,
                                                                          bool bidirectional, bool batch_first);

}  // namespace flashover::trace
