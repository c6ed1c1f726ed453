// The text form of types and arguments, shared by every printed representation.
//   types      f32[2,3]  f32[2,3]{1,2}+4@cuda:0w  f32[8,8]opaque
//   arguments  %3 None %[%1, None] 3 s0+1 [2, 3] 1.0 inf f[0.5] true b[true] complex(1.0, 2.0) "text" f32 cpu strided
//   channels_last
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "ops/types.h"

namespace flashover {

std::string str(const Arg& a);
std::string quoted(std::string_view s);  // with \" \\ \n \t \xHH
std::string_view name(MemoryFormat f);

// A position in a text; every reader throws UserError "line:col: what" and leaves the rest for the next.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}
  bool at_end() const { return pos_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[pos_]; }
  bool at_line_end() const { return at_end() || peek() == '\n'; }
  void skip_spaces();                   // not newlines
  void skip_blank_lines();              // spaces, newlines and # comments
  bool accept(std::string_view token);  // after spaces
  void expect(std::string_view token);
  bool accept_word(std::string_view word);  // a whole identifier
  std::string_view word();                  // [A-Za-z0-9_.]+
  int64_t integer();
  std::string string();  // quoted
  std::string_view rest_of_line();
  // Text up to one of `stops` outside parentheses and brackets.
  std::string_view until(std::string_view stops);
  [[noreturn]] void fail(const std::string& what) const;

  ValueId value();  // %3
  sym::Expr expr(std::string_view stops);
  TensorType type();
  Arg arg();

 private:
  Sizes expr_list(char close);
  std::string_view text_;
  size_t pos_ = 0;
};

}  // namespace flashover
