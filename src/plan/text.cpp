// Printing and parsing of plans: one line an entity, numbered in order.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "base/check.h"
#include "base/decimal.h"
#include "base/quote.h"
#include "plan/plan.h"

namespace flashover::plan {
namespace {

// ---- words shared by both directions ----
constexpr const char* kInputKinds[] = {"user", "param", "buffer", "constant"};  // graph::InputKind
constexpr const char* kFormats[] = {"contiguous", "preserve", "channels_last", "channels_last_3d"};
constexpr const char* kLayouts[] = {"strided", "other"};
constexpr const char* kParamKinds[] = {"pointer", "i32", "i64", "scratch", "profile", "value32", "value64"};

std::string quote(std::string_view s) {
  return in_quotes(s, [](unsigned char c) { return c < 0x20 || c == 0x7f ? "\\x" + hexadecimal(c, 2) : ""; });
}

std::string number(double d) {
  if (std::isnan(d)) return std::signbit(d) ? "-nan" : "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  std::string out = decimal(d, 17);
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

std::string name(TensorId t) { return t < 0 ? "_" : "t" + std::to_string(t); }
std::string device(Device d) {
  std::string out = d.type == DeviceType::kCPU ? "cpu" : d.type == DeviceType::kCUDA ? "cuda" : "meta";
  if (d.index >= 0) out += ':' + std::to_string(d.index);
  return out;
}

template <typename List, typename F>
std::string join(const List& list, F&& f) {
  std::string out;
  for (const auto& x : list) {
    if (!out.empty()) out += ", ";
    out += f(x);
  }
  return out;
}
std::string expr(sym::Expr e) { return e.str(); }
std::string boolean(bool b) { return b ? "true" : "false"; }

struct ArgPrinter {
  std::string operator()(None) const { return "none"; }
  std::string operator()(Ref r) const { return name(r.id); }
  std::string operator()(const RefList& l) const {
    return "tensors[" + join(l, [](Ref r) { return name(r.id); }) + "]";
  }
  std::string operator()(sym::Expr e) const { return e.is_const() ? expr(e) : "(" + expr(e) + ")"; }
  std::string operator()(const Sizes& s) const { return "[" + join(s, expr) + "]"; }
  std::string operator()(double d) const { return number(d); }
  std::string operator()(const std::vector<double>& v) const { return "floats[" + join(v, number) + "]"; }
  std::string operator()(bool b) const { return boolean(b); }
  std::string operator()(const std::vector<bool>& v) const { return "bools[" + join(v, boolean) + "]"; }
  std::string operator()(std::complex<double> c) const {
    return "complex[" + number(c.real()) + ", " + number(c.imag()) + "]";
  }
  std::string operator()(const std::string& s) const { return quote(s); }
  std::string operator()(DType d) const { return std::string("dtype.") + info(d).name; }
  std::string operator()(Device d) const { return "device." + device(d); }
  std::string operator()(Layout l) const { return std::string("layout.") + kLayouts[static_cast<int>(l) & 1]; }
  std::string operator()(MemoryFormat f) const { return std::string("format.") + kFormats[static_cast<int>(f) & 3]; }
};

std::string storage(const Tensor& t) {
  switch (t.storage) {
    case StorageKind::kInput:
      return "input " + std::to_string(t.index);
    case StorageKind::kArena:
      return "arena " + t.arena_offset.str();
    case StorageKind::kOutput:
      return "output " + std::to_string(t.index);
    case StorageKind::kFrozen:
      return "frozen";
    case StorageKind::kExtern:
      return "extern";
    case StorageKind::kView:
      return "view " + name(t.index);
  }
  return "?";
}

void print_launch(const CudaLaunch& c, std::string& out) {
  out += " cuda grid [" + join(c.grid, expr) + "] threads " + std::to_string(c.threads) + " shared " +
         std::to_string(c.shared);
  if (c.scratch != 0) out += " scratch " + std::to_string(c.scratch);
  if (c.early) out += " early";
  out +=
      " params [" + join(c.params, [](ParamKind k) { return std::string(kParamKinds[static_cast<size_t>(k)]); }) + "]";
}

std::string bounds(const Bounds& b) { return name(b.tensor) + " " + std::to_string(b.lo) + " " + std::to_string(b.hi); }

std::string mutated(const Step& s) {
  std::vector<int> arguments;
  for (int i = 0; i < 32; ++i)
    if (s.mutates >> i & 1) arguments.push_back(i);
  return "[" + join(arguments, [](int i) { return std::to_string(i); }) + "]";
}

void print_step(const Step& s, bool frozen, std::string& out) {
  out += frozen ? "  frozen " : "  ";
  switch (s.kind) {
    case StepKind::kLaunch:
      out += "launch k" + std::to_string(s.kernel) + "(" + join(s.reads, name) + " -> " + join(s.writes, name) + ")";
      if (!s.sizes.empty()) out += " sizes [" + join(s.sizes, expr) + "]";
      break;
    case StepKind::kCall:
      out += s.out_variant ? "call out " : "call ";
      if (s.mutates != 0) out += "writes " + mutated(s) + " ";
      out += s.op + "(" + join(s.args, [](const Arg& a) { return std::visit(ArgPrinter(), a); }) + ")";
      out += " -> " + join(s.writes, name);
      break;
    case StepKind::kCopy:
      out += "copy " + join(s.reads, name) + " -> " + join(s.writes, name);
      break;
    case StepKind::kRelease:
      out += "release " + join(s.reads, name);
      break;
  }
  if (s.foreseen) out += " bounds [" + join(s.bounds, bounds) + "]";
  if (!s.label.empty() || !s.operators.empty()) out += " " + quote(s.label);
  if (!s.operators.empty()) out += " of " + quote(s.operators);
  out += '\n';
}

// ---- parsing ----
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Plan plan() {
    word("plan");
    p_.target = string();
    expect('{');
    while (!accept('}')) line();
    if (skip(); at_ != text_.size()) fail("text after the plan");
    return std::move(p_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    size_t line = 1;
    for (size_t i = 0; i < at_ && i < text_.size(); ++i) line += text_[i] == '\n';
    throw UserError("line " + std::to_string(line) + ": " + what);
  }
  void skip() {
    while (at_ < text_.size()) {
      if (text_[at_] == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (is_space(text_[at_])) {
        ++at_;
      } else {
        return;
      }
    }
  }
  char peek() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(std::string("'") + c + "' expected");
  }
  bool accept(std::string_view s) {
    skip();
    if (text_.substr(at_, s.size()) != s) return false;
    at_ += s.size();
    return true;
  }
  void expect(std::string_view s) {
    if (!accept(s)) fail("'" + std::string(s) + "' expected");
  }
  static bool is_word(char c) { return is_letter_or_digit(c) || c == '_' || c == '.' || c == ':'; }
  std::string_view word() {
    skip();
    const size_t start = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    if (at_ == start) fail("a word expected");
    return text_.substr(start, at_ - start);
  }
  void word(std::string_view w) {
    if (word() != w) fail("'" + std::string(w) + "' expected");
  }
  bool accept_word(std::string_view w) {
    const size_t start = at_;
    skip();
    if (at_ < text_.size() && is_word(text_[at_]) && word() == w) return true;
    at_ = start;
    return false;
  }
  template <typename Int>
  Int integer(std::string_view digits) {
    Int value = 0;
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size())
      fail("number expected, not '" + std::string(digits) + "'");
    return value;
  }
  int32_t index(std::string_view w, char prefix) {
    if (w.size() < 2 || w[0] != prefix)
      fail(std::string(1, prefix) + "<number> expected, not '" + std::string(w) + "'");
    return integer<int32_t>(w.substr(1));
  }
  int32_t plain_number() { return integer<int32_t>(word()); }
  int64_t signed_number() {
    skip();
    const size_t start = at_;
    at_ += at_ < text_.size() && text_[at_] == '-';
    word();
    return integer<int64_t>(text_.substr(start, at_ - start));
  }
  std::string string() {
    expect('"');
    std::string out;
    for (;;) {
      if (at_ >= text_.size()) fail("string without end");
      char c = text_[at_++];
      if (c == '"') return out;
      if (c != '\\') {
        out += c;
        continue;
      }
      if (at_ >= text_.size()) fail("string without end");
      c = text_[at_++];
      if (c == 'x') {
        if (at_ + 2 > text_.size()) fail("string without end");
        int value = 0;
        auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + at_ + 2, value, 16);
        if (error != std::errc() || end != text_.data() + at_ + 2) fail("\\x takes two digits");
        at_ += 2;
        c = static_cast<char>(value);
      }
      out += c;
    }
  }
  // An expression runs to the first ',' or closing bracket outside its own parentheses, or to the end of the line.
  sym::Expr expression() {
    skip();
    const size_t start = at_;
    int depth = 0;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '(') ++depth;
      if (depth == 0 && (c == ',' || c == ')' || c == ']' || c == '}' || c == '\n' || c == '"')) break;
      if (c == ')') --depth;
    }
    try {
      return sym::parse(text_.substr(start, at_ - start));
    } catch (const UserError& e) {
      at_ = start;
      fail(e.what());
    }
  }
  template <typename F>
  void list(char close, F&& item) {
    if (accept(close)) return;
    do item();
    while (accept(','));
    expect(close);
  }
  Sizes expressions(char close) {
    Sizes out;
    list(close, [&] { out.push_back(expression()); });
    return out;
  }
  double real() {
    const bool minus = accept('-');
    if (accept_word("nan")) return minus ? -std::nan("") : std::nan("");
    if (accept_word("inf")) return minus ? -HUGE_VAL : HUGE_VAL;
    skip();
    double d = 0;
    auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), d);
    if (error != std::errc()) fail("number expected");
    at_ = static_cast<size_t>(end - text_.data());
    return minus ? -d : d;
  }
  bool boolean() {
    const auto w = word();
    if (w != "true" && w != "false") fail("true or false expected");
    return w == "true";
  }
  Device device(std::string_view w) {
    Device d;
    const size_t colon = w.find(':');
    if (colon != std::string_view::npos) d.index = integer<int8_t>(w.substr(colon + 1));
    const auto type = w.substr(0, colon);
    if (type == "cuda")
      d.type = DeviceType::kCUDA;
    else if (type == "meta")
      d.type = DeviceType::kMeta;
    else if (type != "cpu")
      fail("unknown device '" + std::string(w) + "'");
    return d;
  }
  DType dtype(std::string_view w) {
    const DType d = parse_dtype(w);
    if (d == DType::kUndefined && w != info(DType::kUndefined).name) fail("unknown dtype '" + std::string(w) + "'");
    return d;
  }
  // dtype[sizes]{strides}+offset@device, as ops/types.cpp prints it
  TensorType type() {
    TensorType t;
    t.dtype = dtype(word());
    expect('[');
    t.sizes = expressions(']');
    if (text_.substr(at_, 6) == "opaque") {
      at_ += 6;
      t.opaque = true;
    } else if (at_ < text_.size() && text_[at_] == '{') {
      ++at_;
      t.strides = expressions('}');
      if (t.strides.size() != t.sizes.size()) fail("as many strides as sizes expected");
    } else {
      t.strides = contiguous_strides(t.sizes);
    }
    if (at_ < text_.size() && text_[at_] == '+') {
      ++at_;
      const size_t start = at_;  // to a blank or '@' outside of parentheses
      for (int depth = 0; at_ < text_.size() && (depth > 0 || (!is_space(text_[at_]) && text_[at_] != '@')); ++at_)
        depth += (text_[at_] == '(') - (text_[at_] == ')');
      t.offset = sym::parse(text_.substr(start, at_ - start));
    }
    if (at_ < text_.size() && text_[at_] == '@') {
      ++at_;
      std::string_view w = word();
      if (w.ends_with('w')) {
        w.remove_suffix(1);
        t.wrapped_number = true;
      }
      t.device = device(w);
    }
    if (at_ < text_.size() && text_[at_] == 'w') {
      ++at_;
      t.wrapped_number = true;
    }
    return t;
  }
  TensorId tensor() { return tensor(word()); }
  TensorId tensor(std::string_view w) { return w == "_" ? -1 : index(w, 't'); }
  std::vector<TensorId> tensors() {
    std::vector<TensorId> out;
    do out.push_back(tensor());
    while (accept(','));
    return out;
  }

  Arg arg() {
    const char c = peek();
    if (c == '"') return string();
    if (c == '[') {
      ++at_;
      return expressions(']');
    }
    if (c == '(') {
      ++at_;
      const sym::Expr e = expression();
      expect(')');
      return e;
    }
    const size_t start = at_;
    const bool minus = accept('-');
    const auto w = word();
    if (w == "inf" || w == "nan" || is_digit(w[0])) {
      at_ = start;
      const bool floating =
          w.find_first_of(".en") != std::string_view::npos;  // "1e+30" stops the word at '+', after the e
      if (floating) return real();
      word_with_sign();
      return sym::Expr(integer<int64_t>(text_.substr(start_of_number_, at_ - start_of_number_)));
    }
    if (minus) fail("number expected");
    if (w == "none") return None();
    if (w == "true" || w == "false") return w == "true";
    if (w.starts_with("dtype.")) return dtype(w.substr(6));
    if (w.starts_with("device.")) return device(w.substr(7));
    if (w.starts_with("layout.")) return static_cast<Layout>(one_of(w.substr(7), kLayouts));
    if (w.starts_with("format.")) return static_cast<MemoryFormat>(one_of(w.substr(7), kFormats));
    if (w == "tensors") {
      RefList out;
      expect('[');
      list(']', [&] { out.push_back(Ref{tensor()}); });
      return out;
    }
    if (w == "floats" || w == "complex") {
      std::vector<double> out;
      expect('[');
      list(']', [&] { out.push_back(real()); });
      if (w == "floats") return out;
      if (out.size() != 2) fail("complex takes two numbers");
      return std::complex<double>(out[0], out[1]);
    }
    if (w == "bools") {
      std::vector<bool> out;
      expect('[');
      list(']', [&] { out.push_back(boolean()); });
      return out;
    }
    return Ref{tensor(w)};
  }
  void word_with_sign() {
    skip();
    start_of_number_ = at_;
    accept('-');
    word();
  }
  template <size_t N>
  int one_of(std::string_view w, const char* const (&names)[N]) {
    for (size_t i = 0; i < N; ++i)
      if (w == names[i]) return static_cast<int>(i);
    fail("unknown word '" + std::string(w) + "'");
  }

  void line() {
    const auto w = word();
    if (w == "arena") {
      p_.arena_bytes = expression();
    } else if (w == "device") {
      p_.device = device(word());
    } else if (w == "input") {
      in_order(plain_number(), p_.inputs.size());
      InputSpec in;
      expect(':');
      in.type = type();
      in.kind = static_cast<uint8_t>(one_of(word(), kInputKinds));
      in.frozen = accept_word("frozen");
      p_.inputs.push_back(std::move(in));
    } else if (w == "binary") {
      in_order(index(word(), 'b'), p_.binaries.size());
      Binary b;
      const auto key = word();
      if (key.size() != 32) fail("a key of 32 digits expected");
      b.key.hi = hex(key.substr(0, 16));
      b.key.lo = hex(key.substr(16));
      p_.binaries.push_back(std::move(b));
    } else if (w == "kernel") {
      in_order(index(word(), 'k'), p_.kernels.size());
      Kernel k;
      expect('=');
      k.symbol = string();
      word("in");
      k.binary = index(word(), 'b');
      if (accept_word("errors")) {
        expect('[');
        list(']', [&] { k.errors.push_back(string()); });
      }
      if (accept_word("cuda")) launch(k.cuda);
      p_.kernels.push_back(std::move(k));
    } else if (w == "return") {
      output();
    } else if (w == "frozen") {
      step(word(), p_.frozen_steps);
    } else if (w.size() > 1 && w[0] == 't' && is_digit(w[1])) {
      in_order(index(w, 't'), p_.tensors.size());
      tensor_line();
    } else {
      step(w, p_.steps);
    }
  }
  void launch(CudaLaunch& c) {
    for (int i = 0; i < 10; ++i) sym::var("n" + std::to_string(i), {1, sym::Range::kInf}, 16);  // may be named here
    word("grid");
    expect('[');
    const Sizes grid = expressions(']');
    if (grid.size() != 3) fail("a grid has three sizes");
    std::copy(grid.begin(), grid.end(), c.grid.begin());
    word("threads");
    c.threads = plain_number();
    word("shared");
    c.shared = plain_number();
    if (accept_word("scratch")) c.scratch = plain_number();
    c.early = accept_word("early");
    word("params");
    expect('[');
    list(']', [&] { c.params.push_back(static_cast<ParamKind>(one_of(word(), kParamKinds))); });
  }
  uint64_t hex(std::string_view digits) {
    uint64_t value = 0;
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (error != std::errc() || end != digits.data() + digits.size()) fail("hexadecimal digits expected");
    return value;
  }
  void in_order(int32_t got, size_t want) {
    if (got < 0 || static_cast<size_t>(got) != want) fail("number " + std::to_string(want) + " expected here");
  }
  void tensor_line() {
    Tensor t;
    expect(':');
    t.type = type();
    expect('=');
    const auto w = word();
    if (w == "input" || w == "output") {
      t.storage = w == "input" ? StorageKind::kInput : StorageKind::kOutput;
      t.index = plain_number();
    } else if (w == "arena") {
      t.storage = StorageKind::kArena;
      t.arena_offset = expression();
    } else if (w == "frozen") {
      t.storage = StorageKind::kFrozen;
    } else if (w == "extern") {
      t.storage = StorageKind::kExtern;
    } else if (w == "view") {
      t.storage = StorageKind::kView;
      t.index = tensor();
    } else {
      fail("unknown storage '" + std::string(w) + "'");
    }
    p_.tensors.push_back(std::move(t));
  }
  void output() {
    OutputRef o;
    if (accept_word("alias")) {
      const auto w = word();
      if (w == "input")
        o.alias_input = plain_number();
      else if (w == "output")
        o.alias_output = plain_number();
      else
        fail("input or output expected");
    } else {
      o.tensor = tensor();
    }
    expect(':');
    o.type = type();
    p_.outputs.push_back(std::move(o));
  }
  void step(std::string_view w, std::vector<Step>& steps) {
    Step s;
    if (w == "launch") {
      s.kind = StepKind::kLaunch;
      s.kernel = index(word(), 'k');
      expect('(');
      if (!accept("->")) {
        s.reads = tensors();
        expect("->");
      }
      if (peek() != ')') s.writes = tensors();
      expect(')');
      if (accept_word("sizes")) {
        expect('[');
        s.sizes = expressions(']');
      }
    } else if (w == "call") {
      s.kind = StepKind::kCall;
      auto op = word();
      if (op == "out") {
        s.out_variant = true;
        op = word();
      }
      if (op == "writes") {
        expect('[');
        list(']', [&] {
          const int32_t i = plain_number();
          if (i < 0 || i > 31) fail("arguments 0 to 31 may be written");
          s.mutates |= uint32_t{1} << i;
        });
        op = word();
      }
      s.op = std::string(op);
      expect('(');
      list(')', [&] { s.args.push_back(arg()); });
      expect("->");
      // An empty list of results ends the line.
      while (at_ < text_.size() && text_[at_] == ' ') ++at_;
      if (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '"' && text_[at_] != '}' &&
          text_.substr(at_, 7) != "bounds ")
        s.writes = tensors();
    } else if (w == "copy") {
      s.kind = StepKind::kCopy;
      s.reads = {tensor()};
      expect("->");
      s.writes = {tensor()};
    } else if (w == "release") {
      s.kind = StepKind::kRelease;
      s.reads = tensors();
    } else {
      fail("unknown line '" + std::string(w) + "'");
    }
    if ((s.foreseen = accept_word("bounds"))) {
      expect('[');
      list(']', [&] {
        const TensorId t = tensor();
        const int64_t lo = signed_number();
        s.bounds.push_back({t, lo, signed_number()});
      });
    }
    if (peek() == '"') s.label = string();
    if (accept_word("of")) s.operators = string();
    steps.push_back(std::move(s));
  }

  std::string_view text_;
  size_t at_ = 0, start_of_number_ = 0;
  Plan p_;
};

}  // namespace

std::string print(const Plan& p) {
  std::string out = "plan " + quote(p.target) + " {\n";
  const auto n = [](size_t i) { return std::to_string(i); };
  if (p.device != Device{}) out += "  device " + device(p.device) + "\n";
  if (!p.arena_bytes.is_const(0)) out += "  arena " + p.arena_bytes.str() + "\n";
  for (size_t i = 0; i < p.inputs.size(); ++i)
    out += "  input " + n(i) + " : " + str(p.inputs[i].type) + " " + kInputKinds[p.inputs[i].kind & 3] +
           (p.inputs[i].frozen ? " frozen\n" : "\n");
  for (size_t i = 0; i < p.binaries.size(); ++i)
    out += "  binary b" + n(i) + " " + p.binaries[i].key.hex() + "  # " + n(p.binaries[i].bytes.size()) + " bytes\n";
  for (size_t i = 0; i < p.kernels.size(); ++i) {
    const Kernel& k = p.kernels[i];
    out += "  kernel k" + n(i) + " = " + quote(k.symbol) + " in b" + std::to_string(k.binary);
    if (!k.errors.empty()) out += " errors [" + join(k.errors, quote) + "]";
    if (k.cuda.threads != 0) print_launch(k.cuda, out);
    out += '\n';
  }
  for (size_t i = 0; i < p.tensors.size(); ++i)
    out += "  t" + n(i) + " : " + str(p.tensors[i].type) + " = " + storage(p.tensors[i]) + "\n";
  for (const Step& s : p.frozen_steps) print_step(s, true, out);
  for (const Step& s : p.steps) print_step(s, false, out);
  for (const OutputRef& o : p.outputs) {
    out += "  return ";
    if (o.alias_input >= 0)
      out += "alias input " + std::to_string(o.alias_input);
    else if (o.alias_output >= 0)
      out += "alias output " + std::to_string(o.alias_output);
    else
      out += name(o.tensor);
    out += " : " + str(o.type) + "\n";
  }
  return out + "}\n";
}

Plan parse(std::string_view text) { return Parser(text).plan(); }

}  // namespace flashover::plan
