// A list of steps over integers: sizes are loaded, expressions computed once, comparisons end it early.
#include "guards/sizes.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "base/check.h"
#include "guards/tensors.h"

namespace flashover::guards {
namespace {

using sym::Expr;
using sym::Relation;

int64_t floor_divided(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

}  // namespace

int64_t symbolic_parts(const TensorType& type) {
  int64_t bits = 0;
  for (size_t d = 0; d < type.rank(); ++d) {
    if (!type.sizes[d].is_const()) bits |= int64_t{1} << d;
    if (!type.strides[d].is_const()) bits |= int64_t{1} << (kMaxSymbolicRank + d);
  }
  return bits;
}

std::string in_words(const std::string& text, const std::vector<std::string>& names) {
  std::string out;
  const auto part_of_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && part_of_word(text[end])) ++end;
    if (end == at) {
      out += text[at++];
      continue;
    }
    const std::string word = text.substr(at, end - at);
    const std::optional<int> symbol = sym::size_symbol_of_name(word);
    if (symbol && static_cast<size_t>(*symbol) < names.size())
      out += names[static_cast<size_t>(*symbol)];
    else
      out += word == "mod" ? "%" : word;
    at = end;
  }
  return out;
}

SizeProgram::SizeProgram(std::vector<Input> inputs, const std::vector<sym::AskedGuard>& guards,
                         std::vector<std::string> names, const std::vector<std::string>& equal_at) {
  const auto words_of = [&](Expr e) { return e.is_const() ? "" : in_words(e.str(), names); };
  const auto equal = [&](const std::string& part, Expr e, std::string where) {
    return Words{part + " == " + in_words(e.str(), names), part, words_of(e), std::move(where)};
  };
  // Each symbol is a size or a stride of some input: it is read where it is met first.
  const auto read = [&](const Input& in, Op op, const Sizes& parts) {
    for (size_t d = 0; d < parts.size(); ++d)
      if (parts[d].kind() == sym::Kind::kVar && !known_.contains(parts[d]))
        known_.emplace(parts[d], add({op, {}, in.object, static_cast<int32_t>(d)}));
  };
  for (const Input& in : inputs) read(in, in.number ? Op::kNumber : Op::kSize, in.type.sizes);
  for (const Input& in : inputs)
    if (!in.number) read(in, Op::kStride, in.type.strides);
  for (const Input& in : inputs) {
    if (in.number) {
      const int32_t expected = compile(in.type.sizes[0]);
      const Step& s = steps_[static_cast<size_t>(expected)];
      if (s.op == Op::kNumber && s.a == in.object) continue;
      const auto symbol = std::find(names.begin(), names.end(), in.name) - names.begin();
      check(Relation::kEqual, add({Op::kNumber, {}, in.object, 0}), expected,
            equal(in.name, in.type.sizes[0],
                  static_cast<size_t>(symbol) < equal_at.size() ? equal_at[static_cast<size_t>(symbol)] : ""));
      continue;
    }
    const Sizes strides = strides_where_empty(in.type);  // (and where it is not)
    for (size_t d = 0; d < in.type.rank(); ++d) {
      const Expr size = in.type.sizes[d], stride = in.type.strides[d];
      const auto at = static_cast<int32_t>(d);
      if (!size.is_const()) {
        const int32_t expected = compile(size);
        const Step& s = steps_[static_cast<size_t>(expected)];
        if (s.op != Op::kSize || s.a != in.object || s.b != at) {
          const std::string part = part_in_words(in.name, d);
          const auto symbol = std::find(names.begin(), names.end(), part) - names.begin();
          const bool known = static_cast<size_t>(symbol) < equal_at.size();
          check(Relation::kEqual, add({Op::kSize, {}, in.object, at}), expected,
                equal(part, size, known ? equal_at[static_cast<size_t>(symbol)] : ""));
        }
      }
      if (!stride.is_const()) {
        const int32_t expected = compile(strides[d]);
        const Step& s = steps_[static_cast<size_t>(expected)];
        if (s.op == Op::kStride && s.a == in.object && s.b == at) continue;
        check(Relation::kEqual, add({Op::kStride, {}, in.object, at}), expected,
              equal(part_in_words(in.name, kMaxSymbolicRank + d), stride, ""));
      }
    }
  }
  for (const auto& [g, where] : guards) {
    const int32_t a = compile(g.a);
    check(g.relation, a, compile(g.b), {in_words(str(g), names), words_of(g.a), words_of(g.b), where});
  }
  known_.clear();
}

int32_t SizeProgram::add(Step step) {
  steps_.push_back(step);
  return static_cast<int32_t>(steps_.size()) - 1;
}

void SizeProgram::check(Relation relation, int32_t a, int32_t b, Words words) {
  add({Op::kCheck, relation, a, b, static_cast<int64_t>(words_.size())});
  words_.push_back(std::move(words));
}

int32_t SizeProgram::compile(Expr e) {
  if (const auto it = known_.find(e); it != known_.end()) return it->second;
  int32_t made = -1;
  if (e.is_const()) {
    made = add({Op::kConstant, {}, 0, 0, e.value()});
  } else {
    static constexpr std::pair<sym::Kind, Op> kOps[] = {
        {sym::Kind::kAdd, Op::kAdd}, {sym::Kind::kMul, Op::kMul}, {sym::Kind::kFloorDiv, Op::kFloorDiv},
        {sym::Kind::kMod, Op::kMod}, {sym::Kind::kMin, Op::kMin}, {sym::Kind::kMax, Op::kMax}};
    const auto* op = std::find_if(std::begin(kOps), std::end(kOps), [&](auto& o) { return o.first == e.kind(); });
    FLASHOVER_CHECK(op != std::end(kOps)) << e.str() << " is a size of no input";
    made = compile(e.operands()[0]);
    for (size_t i = 1; i < e.operands().size(); ++i) {
      const int32_t other = compile(e.operands()[i]);
      made = add({op->second, {}, made, other});
    }
  }
  known_.emplace(e, made);
  return made;
}

int32_t SizeProgram::first_failing(PyObject* const* objects, int64_t* now) const {
  int64_t on_stack[kOnStack];
  std::unique_ptr<int64_t[]> on_heap;
  int64_t* v = on_stack;
  if (steps_.size() > kOnStack) v = (on_heap = std::make_unique<int64_t[]>(steps_.size())).get();
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& s = steps_[i];
    bool overflow = false;
    switch (s.op) {
      case Op::kSize:
        v[i] = size_of(objects[s.a], s.b);
        break;
      case Op::kStride:
        v[i] = stride_of(objects[s.a], s.b);
        break;
      case Op::kNumber:
        v[i] = PyLong_AsLongLong(objects[s.a]);
        break;
      case Op::kConstant:
        v[i] = s.number;
        break;
      case Op::kAdd:
        overflow = __builtin_add_overflow(v[s.a], v[s.b], &v[i]);
        break;
      case Op::kMul:
        overflow = __builtin_mul_overflow(v[s.a], v[s.b], &v[i]);
        break;
      case Op::kFloorDiv:
      case Op::kMod:
        overflow = v[s.b] == 0;
        if (!overflow) v[i] = floor_divided(v[s.a], v[s.b]);
        if (!overflow && s.op == Op::kMod) v[i] = v[s.a] - v[i] * v[s.b];
        break;
      case Op::kMin:
        v[i] = std::min(v[s.a], v[s.b]);
        break;
      case Op::kMax:
        v[i] = std::max(v[s.a], v[s.b]);
        break;
      case Op::kCheck:
        if (sym::satisfied(s.relation, v[s.a], v[s.b])) break;
        if (now) now[0] = v[s.a], now[1] = v[s.b];
        return static_cast<int32_t>(s.number);
    }
    if (overflow) {  // no tensor has such sizes
      if (now) now[0] = now[1] = 0;
      return 0;
    }
  }
  return -1;
}

Failure SizeProgram::failure(PyObject* const* objects) const {
  int64_t now[2] = {0, 0};
  const int32_t failed = first_failing(objects, now);
  if (failed < 0) return {};
  const Words& w = words_[static_cast<size_t>(failed)];
  std::string text;
  if (!w.a.empty()) text = w.a + " is " + std::to_string(now[0]);
  if (!w.b.empty()) text += (text.empty() ? "" : ", ") + w.b + " is " + std::to_string(now[1]);
  return {w.guard, std::move(text), w.where};
}

std::vector<std::string> SizeProgram::describe() const {
  std::vector<std::string> out;
  for (const Words& w : words_) out.push_back(w.guard);
  return out;
}

}  // namespace flashover::guards
