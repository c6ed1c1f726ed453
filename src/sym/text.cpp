// Printing and parsing. Grammar, loosest first; all binary operators associate to the left:
//   sum  = term { ("+" | "-") term }      term = unary { ("*" | "//" | "mod") unary }
//   unary = "-" unary | number | name | "min" "(" sum "," sum { "," sum } ")" | "max" "(" ... ")" | "(" sum ")"
#include <charconv>

#include "base/check.h"
#include "base/decimal.h"
#include "sym/sym.h"

namespace flashover::sym {

std::optional<Expr> find_variable_for_parser(std::string_view name);

namespace {

void print(Expr e, std::string& out);

void print_operand(Expr e, std::string& out) {
  bool atom =
      e.kind() == Kind::kVar || e.kind() == Kind::kMin || e.kind() == Kind::kMax || (e.is_const() && e.value() >= 0);
  if (!atom) out += '(';
  print(e, out);
  if (!atom) out += ')';
}

void print_joined(std::span<const Expr> operands, const char* between, std::string& out) {
  for (size_t i = 0; i < operands.size(); ++i) {
    if (i) out += between;
    print_operand(operands[i], out);
  }
}

// The magnitude of a term of a sum, its sign written by the caller.
void print_term(Expr e, bool negate, std::string& out) {
  if (!negate) return print(e, out);
  if (e.is_const()) {
    out += std::to_string(-e.value());
  } else {
    auto ops = e.operands();  // a product with a negative coefficient
    if (ops[0].value() != -1) {
      out += std::to_string(-ops[0].value());
      out += '*';
    }
    if (ops.size() == 2 && ops[0].value() == -1) {
      print(ops[1], out);
    } else {
      print_joined(ops.subspan(1), "*", out);
    }
  }
}
bool is_negative(Expr e) {
  if (e.is_const()) return e.value() < 0 && e.value() != INT64_MIN;
  return e.kind() == Kind::kMul && e.operands()[0].is_const() && e.operands()[0].value() < 0 &&
         e.operands()[0].value() != INT64_MIN;
}

void print(Expr e, std::string& out) {
  auto ops = e.operands();
  switch (e.kind()) {
    case Kind::kConst:
      out += std::to_string(e.value());
      return;
    case Kind::kVar:
      out += e.name();
      return;
    case Kind::kAdd:
      for (size_t i = 0; i < ops.size(); ++i) {
        bool negative = is_negative(ops[i]);
        if (i) {
          out += negative ? " - " : " + ";
        } else if (negative) {
          out += '-';
        }
        // -(a // b) as a first term needs its parentheses: unary minus binds tighter than "//"
        if (i == 0 && negative) {
          std::string body;
          print_term(ops[i], true, body);
          bool simple = body.find(' ') == std::string::npos;
          out += simple ? body : "(" + body + ")";
        } else {
          print_term(ops[i], negative, out);
        }
      }
      return;
    case Kind::kMul:
      if (ops[0].is_const() && ops[0].value() < 0) {
        out += std::to_string(ops[0].value());
        out += '*';
        print_joined(ops.subspan(1), "*", out);
      } else {
        print_joined(ops, "*", out);
      }
      return;
    case Kind::kFloorDiv:
      print_joined(ops, " // ", out);
      return;
    case Kind::kMod:
      print_joined(ops, " mod ", out);
      return;
    case Kind::kMin:
    case Kind::kMax:
      out += e.kind() == Kind::kMin ? "min(" : "max(";
      for (size_t i = 0; i < ops.size(); ++i) {
        if (i) out += ", ";
        print(ops[i], out);
      }
      out += ')';
      return;
  }
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}
  Expr all() {
    Expr e = sum();
    skip();
    if (at_ != text_.size()) fail("unexpected text");
    return e;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw UserError("column " + std::to_string(at_ + 1) + ": " + what + " in expression \"" + std::string(text_) +
                    "\"");
  }
  void skip() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }
  bool word_char(size_t i) const {
    if (i >= text_.size()) return false;
    char c = text_[i];
    return is_letter_or_digit(c) || c == '_' || c == '.';
  }
  bool accept(std::string_view token) {
    skip();
    if (text_.substr(at_, token.size()) != token) return false;
    if (is_letter(token[0]) && word_char(at_ + token.size())) return false;
    at_ += token.size();
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) fail("expected '" + std::string(token) + "'");
  }
  Expr sum() {
    Expr e = term();
    for (;;) {
      if (accept("+")) {
        e = e + term();
      } else if (accept("-")) {
        e = e - term();
      } else {
        return e;
      }
    }
  }
  Expr term() {
    Expr e = unary();
    for (;;) {
      if (accept("*")) {
        e = e * unary();
      } else if (accept("//")) {
        e = floordiv(e, divisor());
      } else if (accept("mod")) {
        e = mod(e, divisor());
      } else {
        return e;
      }
    }
  }
  Expr divisor() {
    Expr e = unary();
    if (e.is_const(0)) fail("division by zero");
    return e;
  }
  Expr unary() {
    if (++depth_ > 200) fail("nested too deeply");
    Expr e = unary_unchecked();
    --depth_;
    return e;
  }
  Expr unary_unchecked() {
    if (accept("-")) return -unary();
    if (accept("(")) {
      Expr e = sum();
      expect(")");
      return e;
    }
    bool is_min = accept("min");
    if (is_min || accept("max")) {
      expect("(");
      Expr e = sum();
      while (accept(",")) e = is_min ? min(e, sum()) : max(e, sum());
      expect(")");
      return e;
    }
    skip();
    size_t begin = at_;
    if (at_ < text_.size() && is_digit(text_[at_])) {
      int64_t v = 0;
      auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), v);
      if (error != std::errc()) fail("number out of range");
      at_ = static_cast<size_t>(end - text_.data());
      return Expr(v);
    }
    while (word_char(at_)) ++at_;
    if (begin == at_) fail("expected a number, a variable or '('");
    auto v = find_variable_for_parser(text_.substr(begin, at_ - begin));
    if (!v) {
      at_ = begin;
      fail("unknown variable");
    }
    return *v;
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::string Expr::str() const {
  std::string out;
  print(*this, out);
  return out;
}

Expr parse(std::string_view text) { return Parser(text).all(); }

}  // namespace flashover::sym
