// Prints and parses types and arguments; parsing errors name what was expected.
#include "ops/text.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/decimal.h"
#include "base/quote.h"

namespace flashover {
namespace {

struct FormatName {
  MemoryFormat format;
  const char* name;
};
constexpr FormatName kFormats[] = {{MemoryFormat::kContiguous, "contiguous"},
                                   {MemoryFormat::kPreserve, "preserve"},
                                   {MemoryFormat::kChannelsLast, "channels_last"},
                                   {MemoryFormat::kChannelsLast3d, "channels_last_3d"}};
struct DeviceName {
  DeviceType type;
  const char* name;
};
constexpr DeviceName kDevices[] = {{DeviceType::kCPU, "cpu"}, {DeviceType::kCUDA, "cuda"}, {DeviceType::kMeta, "meta"}};

std::string str(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  char buffer[40];
  auto end = std::to_chars(buffer, buffer + sizeof buffer, d).ptr;  // shortest that reads back equal
  std::string out(buffer, end);
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}
std::string str(Device d) {
  std::string out = "cpu";
  for (const DeviceName& n : kDevices)
    if (n.type == d.type) out = n.name;
  if (d.index >= 0) out += ':' + std::to_string(d.index);
  return out;
}
template <typename List, typename F>
std::string joined(const List& list, F&& print) {
  std::string out = "[";
  for (size_t i = 0; i < list.size(); ++i) {
    if (i) out += ", ";
    out += print(list[i]);
  }
  return out + "]";
}
std::string str(Ref r) { return r.id == kNoValue ? "None" : '%' + std::to_string(r.id); }

struct ArgPrinter {
  std::string operator()(None) const { return "None"; }
  std::string operator()(Ref r) const { return str(r); }
  std::string operator()(const RefList& l) const {
    return '%' + joined(l, [](Ref r) { return str(r); });
  }
  std::string operator()(sym::Expr e) const { return e.str(); }
  std::string operator()(const Sizes& l) const {
    return joined(l, [](sym::Expr e) { return e.str(); });
  }
  std::string operator()(double d) const { return str(d); }
  std::string operator()(const std::vector<double>& l) const {
    return 'f' + joined(l, [](double d) { return str(d); });
  }
  std::string operator()(bool b) const { return b ? "true" : "false"; }
  std::string operator()(const std::vector<bool>& l) const {
    return 'b' + joined(l, [](bool b) { return std::string(b ? "true" : "false"); });
  }
  std::string operator()(std::complex<double> c) const {
    return "complex(" + str(c.real()) + ", " + str(c.imag()) + ")";
  }
  std::string operator()(const std::string& s) const { return quoted(s); }
  std::string operator()(DType d) const { return info(d).name; }
  std::string operator()(Device d) const { return str(d); }
  std::string operator()(Layout l) const { return l == Layout::kStrided ? "strided" : "other_layout"; }
  std::string operator()(MemoryFormat f) const { return std::string(name(f)); }
};

bool is_word(char c) { return is_letter_or_digit(c) || c == '_' || c == '.'; }

}  // namespace

std::string_view name(MemoryFormat f) {
  for (const FormatName& n : kFormats)
    if (n.format == f) return n.name;
  return "?";
}

std::string quoted(std::string_view s) {
  return in_quotes(s, [](unsigned char c) -> std::string {
    if (c == '\n') return "\\n";
    if (c == '\t') return "\\t";
    return c < 0x20 ? "\\x" + hexadecimal(c, 2) : "";
  });
}

std::string str(const Arg& a) { return std::visit(ArgPrinter{}, a); }

void Cursor::skip_spaces() {
  while (!at_end() && (peek() == ' ' || peek() == '\t' || peek() == '\r')) ++pos_;
}
void Cursor::skip_blank_lines() {
  for (;;) {
    skip_spaces();
    if (peek() == '#')
      while (!at_line_end()) ++pos_;
    if (peek() != '\n') return;
    ++pos_;
  }
}
bool Cursor::accept(std::string_view token) {
  skip_spaces();
  if (!text_.substr(std::min(pos_, text_.size())).starts_with(token)) return false;
  pos_ += token.size();
  return true;
}
void Cursor::expect(std::string_view token) {
  if (!accept(token)) fail("expected '" + std::string(token) + "'");
}
bool Cursor::accept_word(std::string_view w) {
  skip_spaces();
  const size_t start = pos_;
  if (accept(w) && !is_word(peek())) return true;
  pos_ = start;
  return false;
}
std::string_view Cursor::word() {
  skip_spaces();
  const size_t start = pos_;
  while (!at_end() && is_word(peek())) ++pos_;
  if (start == pos_) fail("expected a name");
  return text_.substr(start, pos_ - start);
}
int64_t Cursor::integer() {
  skip_spaces();
  int64_t value = 0;
  const char* begin = text_.data() + pos_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
  if (error != std::errc()) fail("expected an integer");
  pos_ += static_cast<size_t>(end - begin);
  return value;
}
std::string Cursor::string() {
  expect("\"");
  std::string out;
  while (!at_line_end() && peek() != '"') {
    char c = text_[pos_++];
    if (c == '\\' && !at_line_end()) {
      c = text_[pos_++];
      if (c == 'n')
        c = '\n';
      else if (c == 't')
        c = '\t';
      else if (c == 'x') {
        int value = 0;
        if (pos_ + 2 > text_.size() ||
            std::from_chars(text_.data() + pos_, text_.data() + pos_ + 2, value, 16).ptr != text_.data() + pos_ + 2)
          fail("bad \\x escape");
        pos_ += 2;
        c = static_cast<char>(value);
      }
    }
    out += c;
  }
  expect("\"");
  return out;
}
std::string_view Cursor::rest_of_line() {
  const size_t start = pos_;
  while (!at_line_end()) ++pos_;
  return text_.substr(start, pos_ - start);
}
std::string_view Cursor::until(std::string_view stops) {
  skip_spaces();
  const size_t start = pos_;
  int depth = 0;
  for (; !at_line_end(); ++pos_) {
    const char c = peek();
    if (depth == 0 && stops.find(c) != std::string_view::npos) break;
    if (c == '(' || c == '[') ++depth;
    if (c == ')' || c == ']') --depth;
  }
  return text_.substr(start, pos_ - start);
}
void Cursor::fail(const std::string& what) const {
  size_t line = 1, column = 1;
  for (size_t i = 0; i < pos_ && i < text_.size(); ++i) {
    ++column;
    if (text_[i] == '\n') {
      ++line;
      column = 1;
    }
  }
  throw UserError(std::to_string(line) + ":" + std::to_string(column) + ": " + what);
}

ValueId Cursor::value() {
  expect("%");
  const int64_t id = integer();
  if (id < 0 || id > INT32_MAX) fail("bad value number");
  return static_cast<ValueId>(id);
}
sym::Expr Cursor::expr(std::string_view stops) {
  const std::string_view text = until(stops);
  if (text.empty()) fail("expected an expression");
  try {
    return sym::parse(text);
  } catch (const UserError& e) {
    fail(e.what());
  }
}
Sizes Cursor::expr_list(char close) {
  Sizes out;
  const std::string stops{',', close};
  skip_spaces();
  if (peek() != close) {
    do out.push_back(expr(stops));
    while (accept(","));
  }
  expect(std::string_view(&close, 1));
  return out;
}

TensorType Cursor::type() {
  TensorType t;
  const std::string_view dtype = word();
  t.dtype = parse_dtype(dtype);
  if (t.dtype == DType::kUndefined) fail("unknown dtype " + std::string(dtype));
  expect("[");
  t.sizes = expr_list(']');
  if (peek() == 'o' && accept("opaque")) {
    t.opaque = true;
  } else if (peek() == '{') {
    ++pos_;
    t.strides = expr_list('}');
    if (t.strides.size() != t.sizes.size()) fail("one stride per size");
  } else {
    t.strides = contiguous_strides(t.sizes);
  }
  if (peek() == '+') {
    ++pos_;
    if (peek() == '(') {
      ++pos_;
      t.offset = expr(")");
      expect(")");
    } else {
      t.offset = integer();
    }
  }
  if (peek() == '@') {
    ++pos_;
    const std::string_view device = word();
    bool known = false;
    for (const DeviceName& n : kDevices)
      if (device == n.name) {
        t.device.type = n.type;
        known = true;
      }
    if (!known) fail("unknown device " + std::string(device));
    if (peek() == ':') {
      ++pos_;
      t.device.index = static_cast<int8_t>(integer());
    }
  }
  if (peek() == 'w') {
    ++pos_;
    t.wrapped_number = true;
  }
  return t;
}

Arg Cursor::arg() {
  skip_spaces();
  const char c = peek();
  const char next = pos_ + 1 < text_.size() ? text_[pos_ + 1] : '\0';
  auto list = [&](auto&& element) {
    pos_ += 2;
    if (accept("]")) return;
    do element();
    while (accept(","));
    expect("]");
  };
  auto number = [&]() -> double {
    const std::string text(until(",]) \n"));
    if (text == "nan") return std::nan("");
    if (text == "inf") return std::numeric_limits<double>::infinity();
    if (text == "-inf") return -std::numeric_limits<double>::infinity();
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) fail("bad number " + text);
    return value;
  };
  if (c == '%' && next == '[') {
    RefList refs;
    list([&] { refs.push_back(accept_word("None") ? Ref{} : Ref{value()}); });
    return refs;
  }
  if (c == '%') return Ref{value()};
  if (c == '"') return string();
  if (c == '[') {
    ++pos_;
    return expr_list(']');
  }
  if (c == 'f' && next == '[') {
    std::vector<double> values;
    list([&] { values.push_back(number()); });
    return values;
  }
  if (c == 'b' && next == '[') {
    std::vector<bool> values;
    list([&] { values.push_back(word() == "true"); });
    return values;
  }
  if (accept_word("None")) return None{};
  if (accept_word("true")) return true;
  if (accept_word("false")) return false;
  if (accept_word("strided")) return Layout::kStrided;
  if (accept_word("other_layout")) return Layout::kOther;
  for (const FormatName& n : kFormats)
    if (accept_word(n.name)) return n.format;
  for (const DeviceName& n : kDevices)
    if (accept_word(n.name)) {
      Device d{.type = n.type};
      if (peek() == ':') {
        ++pos_;
        d.index = static_cast<int8_t>(integer());
      }
      return d;
    }
  if (accept("complex(")) {
    const double real = number();
    expect(",");
    const double imag = number();
    expect(")");
    return std::complex<double>(real, imag);
  }
  const size_t start = pos_;
  const std::string_view text = until(",])");
  pos_ = start;
  if (const DType d = parse_dtype(text); d != DType::kUndefined || text == "undefined") {
    pos_ += text.size();
    return d;
  }
  const bool digits = c == '-' ? is_digit(next) : is_digit(c);
  const bool plain = text.find_first_not_of("0123456789+-.e") == std::string_view::npos;
  if (text == "nan" || text == "inf" || text == "-inf" ||
      (digits && plain && text.find_first_of(".e") != std::string_view::npos))
    return number();
  return expr(",])");
}

}  // namespace flashover
