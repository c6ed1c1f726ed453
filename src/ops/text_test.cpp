// The text form of types and arguments: printing parses back, and an error says where it is and what was expected.
#include "ops/text.h"

#include <gtest/gtest.h>

#include "base/check.h"

namespace flashover {
namespace {

std::string type_again(std::string_view text) { return str(Cursor(text).type()); }
std::string arg_again(std::string_view text) { return str(Cursor(text).arg()); }

TEST(Text, TypesPrintAsTheyParse) {
  for (const char* text :
       {"f32[]", "f32[2,3]", "f32[2,3]{1,2}", "bf16[4]{2}+4", "i64[2]@cuda:1", "b8[1]@meta", "u8[3]@cuda", "f64[]w",
        "f32[2,3]{1,2}+4@cuda:0w", "f32[8,8]opaque", "f8e4m3[2]", "c64[0,3]"})
    EXPECT_EQ(type_again(text), text);
  EXPECT_EQ(type_again("f32[2,3]{3,1}"), "f32[2,3]") << "contiguous strides go without saying";
}

TEST(Text, TypesHoldSizesThatAreExpressions) {
  const sym::Expr n = sym::var("rows", {1, 1 << 20}, 8);
  const TensorType t = Cursor("f32[rows,4]+(2*rows)").type();
  EXPECT_EQ(t.sizes[0], n);
  EXPECT_EQ(t.offset, 2 * n);
  EXPECT_EQ(t.strides[0], sym::Expr(4));
  EXPECT_EQ(type_again(str(t)), str(t));
}

TEST(Text, ArgumentsPrintAsTheyParse) {
  for (const char* text : {"None",
                           "%3",
                           "%[]",
                           "%[%1, None]",
                           "3",
                           "-3",
                           "[]",
                           "[2, 3]",
                           "1.0",
                           "-0.0",
                           "1e+30",
                           "inf",
                           "-inf",
                           "nan",
                           "f[0.5]",
                           "f[]",
                           "true",
                           "false",
                           "b[true, false]",
                           "complex(1.0, -2.0)",
                           "\"text\"",
                           "\"\"",
                           "f32",
                           "bf16",
                           "cpu",
                           "cuda:1",
                           "strided",
                           "other_layout",
                           "channels_last",
                           "channels_last_3d",
                           "contiguous",
                           "preserve"})
    EXPECT_EQ(arg_again(text), text);
}

// Words that begin alike, and numbers that look like others, keep their kind.
TEST(Text, ArgumentsKeepTheirKind) {
  EXPECT_TRUE(std::holds_alternative<sym::Expr>(Cursor("1").arg()));
  EXPECT_TRUE(std::holds_alternative<double>(Cursor("1.0").arg()));
  EXPECT_TRUE(std::holds_alternative<bool>(Cursor("true").arg()));
  EXPECT_EQ(std::get<MemoryFormat>(Cursor("channels_last_3d").arg()), MemoryFormat::kChannelsLast3d);
  EXPECT_EQ(std::get<DType>(Cursor("f32, 1").arg()), DType::kF32);
  EXPECT_EQ(std::get<double>(Cursor(str(Arg(0.1))).arg()), 0.1);
  EXPECT_EQ(std::get<double>(Cursor(str(Arg(5e-324))).arg()), 5e-324);
  EXPECT_EQ(std::get<ValueId>(std::variant<ValueId>(std::get<Ref>(Cursor("%7").arg()).id)), 7);
}

TEST(Text, StringsOfAnyBytes) {
  for (const std::string& s : {std::string("a\"b\\c"), std::string("line\nnext\tend"), std::string("\x01\x1f"),
                               std::string("\0zero", 5), std::string("\xc3\xa9")}) {
    const std::string text = flashover::quoted(s);
    EXPECT_EQ(text.find('\n'), std::string::npos) << "a string stays on its line";
    Cursor in(text);
    EXPECT_EQ(in.string(), s);
    EXPECT_TRUE(in.at_end());
  }
}

TEST(Text, ReadersStopBehindWhatTheyRead) {
  Cursor in("  add(%1, [2, 3]) # rest\n\n # a comment\n next");
  EXPECT_EQ(in.word(), "add");
  in.expect("(");
  EXPECT_EQ(in.value(), 1);
  EXPECT_TRUE(in.accept(","));
  EXPECT_EQ(str(in.arg()), "[2, 3]");
  EXPECT_FALSE(in.accept("]"));
  in.expect(")");
  in.skip_blank_lines();
  EXPECT_FALSE(in.accept_word("nex")) << "a part of a word is not the word";
  EXPECT_TRUE(in.accept_word("next"));
  EXPECT_TRUE(in.at_end());
}

TEST(Text, UntilMindsBrackets) {
  Cursor in("f(a, b)[1, 2], rest");
  EXPECT_EQ(in.until(","), "f(a, b)[1, 2]");
}

template <typename Read>
std::string error_of(std::string_view text, Read read) {
  Cursor in(text);
  try {
    read(in);
  } catch (const UserError& e) {
    return e.what();
  }
  return "no error";
}
std::string type_error(std::string_view text) {
  return error_of(text, [](Cursor& in) { in.type(); });
}
std::string arg_error(std::string_view text) {
  return error_of(text, [](Cursor& in) { in.arg(); });
}

TEST(Text, ErrorsSayWhereAndWhat) {
  EXPECT_EQ(type_error("f99[2]"), "1:4: unknown dtype f99");
  EXPECT_EQ(type_error("\n f32[2"), "1:1: expected a name") << "a type does not start on the next line";
  EXPECT_EQ(type_error("f32[2"), "1:6: expected ']'");
  EXPECT_EQ(type_error("f32[2,]"), "1:7: expected an expression");
  EXPECT_EQ(type_error("f32[2,3]{1}"), "1:12: one stride per size");
  EXPECT_EQ(type_error("f32[2]@tpu"), "1:11: unknown device tpu");
  EXPECT_EQ(type_error("f32[2]+x"), "1:8: expected an integer");
  EXPECT_EQ(arg_error("%x"), "1:2: expected an integer");
  EXPECT_EQ(arg_error("%-1"), "1:4: bad value number");
  EXPECT_EQ(arg_error("%99999999999"), "1:13: bad value number");
  EXPECT_EQ(arg_error("\"open"), "1:6: expected '\"'");
  EXPECT_EQ(arg_error("\"\\xZZ\""), "1:4: bad \\x escape");
  EXPECT_EQ(arg_error("f[1.0, x]"), "1:9: bad number x");
  EXPECT_NE(arg_error("complex(1.0 2.0)"), "no error");
  EXPECT_NE(arg_error("no_such_symbol"), "no error");
  EXPECT_NE(arg_error(""), "no error");
  EXPECT_EQ(error_of("a\nb",
                     [](Cursor& in) {
                       in.word();
                       in.skip_blank_lines();
                       in.expect("c");
                     }),
            "2:1: expected 'c'");
}

}  // namespace
}  // namespace flashover
