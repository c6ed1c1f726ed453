// The node of such a SymInt: each operation of torch's, on expressions.
#include "torch/size_node.h"

#include <c10/core/ConstantSymNodeImpl.h>
#include <c10/core/SymNodeImpl.h>

#include <algorithm>
#include <cmath>

#include "sym/quotient.h"

namespace flashover::aten {
namespace {

using sym::Environment;
using sym::Expr;
using sym::Relation;

c10::SymNode truth(bool value) { return c10::make_intrusive<c10::ConstantSymNodeImpl<bool>>(value); }

thread_local int open_questions = 0;

// A comparison that is decided when it is known how it is asked. `open`: as OpenQuestions says.
class AskedNode final : public c10::SymNodeImpl {
 public:
  AskedNode(std::shared_ptr<Environment> environment, sym::SizeGuard what, bool open)
      : environment_(std::move(environment)), what_(what), open_(open) {}

  bool is_int() override { return false; }
  bool is_bool() override { return true; }
  bool is_float() override { return false; }
  bool has_hint() override { return true; }
  bool guard_bool(const char*, int64_t) override { return environment_->holds(what_.relation, what_.a, what_.b); }
  // The way it is now would do as well, and is not worth a guard.
  bool statically_known_true(const char*, int64_t) override {
    return environment_->follows(what_.relation, what_.a, what_.b);
  }
  bool guard_or_false(const char* file, int64_t line) override { return usual(file, line); }
  bool guard_or_true(const char* file, int64_t line) override { return usual(file, line); }
  bool guard_size_oblivious(const char* file, int64_t line) override { return usual(file, line); }
  bool expect_true(const char* file, int64_t line) override { return guard_bool(file, line); }
  bool bool_() override { return guard_bool("", 0); }
  c10::SymNode sym_not() override { return truth(!bool_()); }
  c10::SymNode sym_and(const c10::SymNode& other) override { return truth(bool_() && other->guard_bool("", 0)); }
  c10::SymNode sym_or(const c10::SymNode& other) override { return truth(bool_() || other->guard_bool("", 0)); }
  c10::SymNode wrap_bool(bool b) override { return truth(b); }
  c10::SymNode clone() override { return c10::make_intrusive<AskedNode>(environment_, what_, open_); }
  std::string str() override { return sym::str(what_); }

 private:
  bool usual(const char* file, int64_t line) {
    std::optional<sym::PresumeScope> presume;
    if (open_) presume.emplace();
    return guard_bool(file, line);
  }

  std::shared_ptr<Environment> environment_;
  sym::SizeGuard what_;
  bool open_;
};

// Of a size that follows from data: whoever asks says what to do where it is not known.
class Question : public c10::SymNodeImpl {
 public:
  enum class Unknown : uint8_t { kUsual, kFalse, kTrue };
  virtual bool ask(Unknown unknown) = 0;

  bool is_int() override { return false; }
  bool is_float() override { return false; }
  bool is_bool() override { return true; }
  bool has_hint() override { return true; }
  bool bool_() override { return ask(Unknown::kUsual); }
  bool guard_bool(const char*, int64_t) override { return ask(Unknown::kUsual); }
  bool expect_true(const char*, int64_t) override { return ask(Unknown::kUsual); }
  bool guard_size_oblivious(const char*, int64_t) override { return ask(Unknown::kFalse); }
  bool guard_or_false(const char*, int64_t) override { return ask(Unknown::kFalse); }
  bool guard_or_true(const char*, int64_t) override { return ask(Unknown::kTrue); }
  bool statically_known_true(const char*, int64_t) override { return ask(Unknown::kFalse); }
  c10::SymNode wrap_bool(bool b) override { return truth(b); }
  c10::SymNode sym_not() override;
  c10::SymNode sym_and(const c10::SymNode& other) override;
  c10::SymNode sym_or(const c10::SymNode& other) override;
  std::string str() override { return "a question about a size"; }
};

bool answer_of(const c10::SymNode& node, Question::Unknown unknown) {
  auto* question = dynamic_cast<Question*>(node.get());
  return question ? question->ask(unknown) : node->guard_bool(__FILE__, __LINE__);
}

enum class Connective : uint8_t { kNot, kAnd, kOr };
class ConnectedQuestion final : public Question {
 public:
  ConnectedQuestion(Connective how, c10::SymNode a, c10::SymNode b) : how_(how), a_(std::move(a)), b_(std::move(b)) {}
  bool ask(Unknown unknown) override {
    switch (how_) {
      case Connective::kNot:
        return !answer_of(a_, unknown == Unknown::kFalse  ? Unknown::kTrue
                              : unknown == Unknown::kTrue ? Unknown::kFalse
                                                          : Unknown::kUsual);
      case Connective::kAnd:
        return answer_of(a_, unknown) && answer_of(b_, unknown);
      case Connective::kOr:
        return answer_of(a_, unknown) || answer_of(b_, unknown);
    }
    return false;
  }

 private:
  Connective how_;
  c10::SymNode a_, b_;
};

c10::SymNode itself(Question* q) { return c10::SymNode(c10::intrusive_ptr<c10::SymNodeImpl>::reclaim_copy(q)); }
c10::SymNode Question::sym_not() {
  return c10::make_intrusive<ConnectedQuestion>(Connective::kNot, itself(this), c10::SymNode());
}
c10::SymNode Question::sym_and(const c10::SymNode& other) {
  return c10::make_intrusive<ConnectedQuestion>(Connective::kAnd, itself(this), other);
}
c10::SymNode Question::sym_or(const c10::SymNode& other) {
  return c10::make_intrusive<ConnectedQuestion>(Connective::kOr, itself(this), other);
}

class SizeQuestion final : public Question {
 public:
  SizeQuestion(std::shared_ptr<Environment> environment, Relation r, Expr a, Expr b)
      : environment_(std::move(environment)), relation_(r), a_(a), b_(b) {}
  bool ask(Unknown unknown) override {
    if (unknown == Unknown::kUsual) return environment_->holds(relation_, a_, b_);
    return environment_->known_of_data(relation_, a_, b_).value_or(unknown == Unknown::kTrue);
  }
  // An operator's own condition.
  bool expect_true(const char*, int64_t) override {
    if (!environment_->known_of_data(relation_, a_, b_)) environment_->expect(relation_, a_, b_, true);
    return environment_->known_of_data(relation_, a_, b_).value_or(true);
  }

 private:
  std::shared_ptr<Environment> environment_;
  Relation relation_;
  Expr a_, b_;
};

double float_of(const c10::SymNode& node) { return node->guard_float(__FILE__, __LINE__); }

using Formula = std::shared_ptr<const FloatOfSizes>;
Formula constant(double value) { return std::make_shared<FloatOfSizes>(FloatOfSizes{.constant = value}); }

// A float that was computed of sizes. Who asks for its value gets this call's, and the sizes are numbers by that.
class FloatNode final : public c10::SymNodeImpl {
 public:
  using Kind = FloatOfSizes::Kind;
  FloatNode(std::shared_ptr<Environment> environment, Formula formula)
      : environment_(std::move(environment)), formula_(std::move(formula)) {}
  static c10::SymNode of(double value) { return c10::make_intrusive<FloatNode>(nullptr, constant(value)); }
  static c10::SymNode of(const std::shared_ptr<Environment>& environment, Expr size) {
    if (const auto n = size.as_const()) return of(static_cast<double>(*n));
    return c10::make_intrusive<FloatNode>(
        environment, std::make_shared<FloatOfSizes>(FloatOfSizes{.kind = Kind::kSize, .size = size}));
  }
  const Formula& formula() const { return formula_; }

  bool is_int() override { return false; }
  bool is_bool() override { return false; }
  bool is_float() override { return true; }
  bool is_constant() override { return formula_->kind == Kind::kConstant; }
  bool is_symbolic() override { return !is_constant(); }
  bool has_hint() override { return true; }
  c10::SymNode add(const c10::SymNode& other) override { return combined(Kind::kAdd, other); }
  c10::SymNode sub(const c10::SymNode& other) override { return combined(Kind::kSub, other); }
  c10::SymNode mul(const c10::SymNode& other) override { return combined(Kind::kMul, other); }
  c10::SymNode truediv(const c10::SymNode& other) override { return combined(Kind::kDiv, other); }
  c10::SymNode pow(const c10::SymNode& other) override { return of(std::pow(value(), float_of(other))); }
  c10::SymNode neg() override { return combined(Kind::kMul, of(-1)); }
  c10::SymNode sym_min(const c10::SymNode& other) override { return of(std::min(value(), float_of(other))); }
  c10::SymNode sym_max(const c10::SymNode& other) override { return of(std::max(value(), float_of(other))); }
  c10::SymNode eq(const c10::SymNode& other) override { return compared(Relation::kEqual, other, false); }
  c10::SymNode ne(const c10::SymNode& other) override { return compared(Relation::kNotEqual, other, false); }
  c10::SymNode lt(const c10::SymNode& other) override { return compared(Relation::kLess, other, false); }
  c10::SymNode le(const c10::SymNode& other) override { return compared(Relation::kLessEqual, other, false); }
  c10::SymNode gt(const c10::SymNode& other) override { return compared(Relation::kLess, other, true); }
  c10::SymNode ge(const c10::SymNode& other) override { return compared(Relation::kLessEqual, other, true); }
  c10::SymNode sym_float() override { return clone(); }
  c10::SymNode clone() override { return c10::make_intrusive<FloatNode>(environment_, formula_); }
  c10::SymNode wrap_int(int64_t n) override { return of(static_cast<double>(n)); }
  c10::SymNode wrap_float(double d) override { return of(d); }
  c10::SymNode wrap_bool(bool b) override { return truth(b); }
  double guard_float(const char*, int64_t) override { return value(); }
  std::string str() override { return is_constant() ? std::to_string(formula_->constant) : "a float of sizes"; }

 private:
  double value() const { return value(*formula_); }
  double value(const FloatOfSizes& f) const {
    switch (f.kind) {
      case Kind::kConstant:
        return f.constant;
      case Kind::kSize:
        return static_cast<double>(environment_->specialize(f.size));
      case Kind::kAdd:
        return value(*f.a) + value(*f.b);
      case Kind::kSub:
        return value(*f.a) - value(*f.b);
      case Kind::kMul:
        return value(*f.a) * value(*f.b);
      case Kind::kDiv:
        return value(*f.a) / value(*f.b);
    }
    return 0;
  }
  static const FloatNode* node_of(const c10::SymNode& other) { return dynamic_cast<const FloatNode*>(other.get()); }
  c10::SymNode combined(Kind kind, const c10::SymNode& other) const {
    const FloatNode* node = node_of(other);
    const Formula with = node ? node->formula_ : constant(float_of(other));
    const auto& environment = environment_ ? environment_ : node ? node->environment_ : environment_;
    const auto made = std::make_shared<FloatOfSizes>(FloatOfSizes{.kind = kind, .a = formula_, .b = with});
    if (!environment) return of(value(*made));
    return c10::make_intrusive<FloatNode>(environment, made);
  }
  // An expression that it is exactly.
  static bool whole(const FloatOfSizes& f, Expr& e) {
    constexpr double kLargest = 1 << 30;
    if (f.kind == Kind::kConstant) {
      if (!(std::fabs(f.constant) < kLargest) || f.constant != std::floor(f.constant)) return false;
      e = static_cast<int64_t>(f.constant);
      return true;
    }
    if (f.kind == Kind::kSize) {
      e = f.size;
      return true;
    }
    Expr a = 0, b = 0;
    if ((f.kind != Kind::kAdd && f.kind != Kind::kSub) || !whole(*f.a, a) || !whole(*f.b, b)) return false;
    e = f.kind == Kind::kAdd ? a + b : a - b;
    return true;
  }
  c10::SymNode compared(Relation r, const c10::SymNode& other, bool exchanged) const {
    const FloatNode* node = node_of(other);
    if (const auto& environment = environment_ ? environment_ : node ? node->environment_ : environment_) {
      Expr a = 0, b = 0;
      if (node && whole(*formula_, a) && whole(*node->formula_, b))
        return c10::make_intrusive<AskedNode>(environment, sym::SizeGuard{r, exchanged ? b : a, exchanged ? a : b},
                                              open_questions > 0);
    }
    double a = value(), b = float_of(other);
    if (exchanged) std::swap(a, b);
    return truth(r == Relation::kEqual      ? a == b
                 : r == Relation::kNotEqual ? a != b
                 : r == Relation::kLess     ? a < b
                                            : a <= b);
  }

  std::shared_ptr<Environment> environment_;  // null: a constant
  Formula formula_;
};

class SizeNode final : public c10::SymNodeImpl {
 public:
  SizeNode(std::shared_ptr<Environment> environment, Expr e) : environment_(std::move(environment)), e_(e) {}

  Expr expr() const { return environment_->canonical(e_); }

  bool is_int() override { return true; }
  bool is_bool() override { return false; }
  bool is_float() override { return false; }
  bool has_hint() override { return true; }
  c10::SymNode add(const c10::SymNode& other) override { return made(expr() + of(other)); }
  c10::SymNode sub(const c10::SymNode& other) override { return made(expr() - of(other)); }
  c10::SymNode mul(const c10::SymNode& other) override { return made(expr() * of(other)); }
  c10::SymNode floordiv(const c10::SymNode& other) override {
    const Expr by = divisor(other);
    return made(sym::quotient(expr(), by));
  }
  c10::SymNode mod(const c10::SymNode& other) override { return made(sym::mod(expr(), divisor(other))); }
  c10::SymNode neg() override { return made(-expr()); }
  c10::SymNode ceil() override { return made(expr()); }
  c10::SymNode floor() override { return made(expr()); }
  c10::SymNode sym_min(const c10::SymNode& other) override { return made(sym::min(expr(), of(other))); }
  c10::SymNode sym_max(const c10::SymNode& other) override { return made(sym::max(expr(), of(other))); }
  c10::SymNode eq(const c10::SymNode& other) override { return ask(Relation::kEqual, expr(), of(other)); }
  c10::SymNode ne(const c10::SymNode& other) override { return ask(Relation::kNotEqual, expr(), of(other)); }
  c10::SymNode lt(const c10::SymNode& other) override { return ask(Relation::kLess, expr(), of(other)); }
  c10::SymNode le(const c10::SymNode& other) override { return ask(Relation::kLessEqual, expr(), of(other)); }
  c10::SymNode gt(const c10::SymNode& other) override { return ask(Relation::kLess, of(other), expr()); }
  c10::SymNode ge(const c10::SymNode& other) override { return ask(Relation::kLessEqual, of(other), expr()); }
  c10::SymNode truediv(const c10::SymNode& other) override {
    const c10::SymNode by = other->is_float() ? other : other->sym_float();
    return sym_float()->truediv(by);
  }
  c10::SymNode pow(const c10::SymNode& other) override {
    const int64_t n = other->is_float() ? -1 : other->guard_int(__FILE__, __LINE__);
    if (n < 0 || n > 8) return FloatNode::of(std::pow(static_cast<double>(value()), float_of(other)));
    Expr out = 1;
    for (int64_t i = 0; i < n; ++i) out = out * expr();
    return made(out);
  }
  c10::SymNode sym_float() override { return FloatNode::of(environment_, expr()); }
  c10::SymNode clone() override { return made(e_); }
  c10::SymNode wrap_int(int64_t n) override { return made(Expr(n)); }
  c10::SymNode wrap_float(double d) override { return FloatNode::of(d); }
  c10::SymNode wrap_bool(bool b) override { return truth(b); }
  int64_t guard_int(const char*, int64_t) override { return value(); }
  double guard_float(const char*, int64_t) override { return static_cast<double>(value()); }
  int64_t int_() override { return value(); }
  std::string str() override { return expr().str(); }
  std::optional<int64_t> constant_int() override { return expr().as_const(); }
  std::optional<int64_t> maybe_as_int() override { return expr().as_const(); }

 private:
  int64_t value() const { return environment_->specialize(e_); }
  c10::SymNode made(Expr e) const { return c10::make_intrusive<SizeNode>(environment_, e); }
  c10::SymNode ask(Relation r, Expr a, Expr b) const {
    if ((sym::has_data_size(a) || sym::has_data_size(b)) && !environment_->known_of_data(r, a, b))
      return c10::make_intrusive<SizeQuestion>(environment_, r, a, b);
    return c10::make_intrusive<AskedNode>(environment_, sym::SizeGuard{r, a, b}, open_questions > 0);
  }
  Expr of(const c10::SymNode& other) const {
    if (const auto* size = dynamic_cast<const SizeNode*>(other.get())) return size->expr();
    if (const auto n = other->constant_int()) return Expr(*n);
    return Expr(other->guard_int(__FILE__, __LINE__));
  }
  // No expression divides by what may be zero.
  Expr divisor(const c10::SymNode& other) const {
    const Expr by = of(other);
    environment_->holds(Relation::kLess, Expr(0), by);
    TORCH_CHECK(environment_->now(by) != 0, "division by zero");
    return by;
  }

  std::shared_ptr<Environment> environment_;
  Expr e_;
};

}  // namespace

OpenQuestions::OpenQuestions() { ++open_questions; }
OpenQuestions::~OpenQuestions() { --open_questions; }

c10::SymInt to_symint(const std::shared_ptr<Environment>& environment, Expr e) {
  if (environment) e = environment->canonical(e);
  if (e.is_const()) return c10::SymInt(e.value());
  return c10::SymInt(c10::SymNode(c10::make_intrusive<SizeNode>(environment, e)));
}

std::optional<Expr> expr_of(const c10::SymInt& value) {
  if (const auto n = value.maybe_as_int()) return Expr(*n);
  if (!value.is_symbolic()) return Expr(value.expect_int());
  const auto* size = dynamic_cast<const SizeNode*>(value.toSymNodeImplUnowned());
  return size ? std::optional(size->expr()) : std::nullopt;
}

std::optional<Expr> expr_of(const c10::IValue& value) {
  if (value.isInt()) return Expr(value.toInt());
  return value.isSymInt() ? expr_of(value.toSymInt()) : std::nullopt;
}

Formula float_of_sizes(const c10::IValue& value) {
  if (!value.isSymFloat() || !value.toSymFloat().is_symbolic()) return nullptr;
  const c10::SymNode held = value.toSymFloat().toSymNodeImpl();
  const auto* node = dynamic_cast<const FloatNode*>(held.get());
  return node && node->formula()->kind != FloatOfSizes::Kind::kConstant ? node->formula() : nullptr;
}

bool is_size(const c10::IValue& value) {
  if (!value.isSymInt()) return false;
  const c10::SymInt n = value.toSymInt();
  return n.is_symbolic() && dynamic_cast<const SizeNode*>(n.toSymNodeImplUnowned()) != nullptr;
}

}  // namespace flashover::aten
