// Reads the text form of kernels back; an error names the line.
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <tuple>

#include "base/check.h"
#include "base/decimal.h"
#include "loops/loops.h"

namespace flashover::loops {

extern const char* const kReduceNames[8];
extern const char* const kStoreNames[5];

namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Kernel kernel() {
    Kernel k;
    std::optional<FlexAttention> attention;
    next_line();
    expect("kernel");
    if (peek('"')) k.label = string();
    expect("{");
    end_line();
    for (;;) {
      next_line();
      if (accept("}")) break;
      std::string w = word();
      if (w == "size") {
        std::string name = word();
        if (const auto symbol = sym::size_symbol_of_name(name)) {
          k.sizes.push_back(sym::size_symbol(*symbol));
          end_line();
          continue;
        }
        sym::Range r{integer(), 0};
        r.hi = integer();
        k.sizes.push_back(sym::var(name, r, integer()));
      } else if (w == "outer") {
        k.outer = loops();
      } else if (w == "acc") {
        numbered('a', k.accs.size());
        expect("=");
        Accumulator& a = k.accs.emplace_back();
        a.kind = static_cast<Reduce>(name_in(kReduceNames, 8, "accumulator kind"));
        a.dtype = dtype();
      } else if (w == "scratch") {
        numbered('r', k.scratch.size());
        expect("=");
        Scratch& s = k.scratch.emplace_back();
        s.dtype = dtype();
        s.size = bracket();
      } else if (w == "error") {
        if (integer() != static_cast<int64_t>(k.errors.size())) fail("errors must be numbered in order");
        k.errors.push_back(peek('"') ? string() : "");
      } else if (w == "vector") {
        k.vector = accept("inner") ? Vector::kInner : Vector::kOuter;
        if (k.vector == Vector::kOuter) expect("outer");
      } else if (w == "transpose") {
        k.transpose = static_cast<int32_t>(integer());
      } else if (w == "serial") {
        k.serial = true;
      } else if (w == "exact") {
        k.exact = true;
      } else if (w == "cost") {
        k.cost = integer();
      } else if (w == "attention") {
        static const char* const kResults[] = {"softmax", "rows", "columns"};
        attention.emplace();
        attention->result = static_cast<FlexAttention::Result>(name_in(kResults, 3, "result"));
        expect("group");
        attention->group = integer();
        expect("values");
        attention->values = operand(4);
        expect("width");
        attention->value_width = integer();
      } else if (attention && attention_line(w, *attention)) {
        // read
      } else if (w == "stage") {
        k.stages.push_back(stage());
        continue;
      } else if (w == "p" + std::to_string(k.params.size())) {
        expect("=");
        Param& p = k.params.emplace_back();
        p.dtype = dtype();
        p.numel = bracket();
        p.read = accept("read");
        p.written = accept("write");
        p.number = accept("number");
        p.steady = accept("steady");
      } else {
        fail("unexpected '" + w + "'");
      }
      end_line();
    }
    end_line();
    if (attention) k.attention = std::make_shared<const FlexAttention>(std::move(*attention));
    return k;
  }

 private:
  FlexOperand operand(size_t dims) {
    FlexOperand o;
    o.slot = letter_number('p');
    for (size_t d = 0; d < dims; ++d) o.strides.push_back(bracket());
    if (accept("at")) o.offset = bracket();
    return o;
  }
  bool attention_line(const std::string& word, FlexAttention& a) {
    const std::tuple<std::string_view, FlexOperand*, size_t> operands[] = {{"partial", &a.partial.counts, 3},
                                                                           {"partial_indices", &a.partial.indices, 4},
                                                                           {"full", &a.full.counts, 3},
                                                                           {"full_indices", &a.full.indices, 4},
                                                                           {"out", &a.out, 4},
                                                                           {"log_sum", &a.log_sum, 3},
                                                                           {"largest", &a.largest, 3}};
    for (const auto& [name, to, dims] : operands)
      if (word == name) {
        *to = operand(dims);
        return true;
      }
    for (const auto& [name, to] : {std::pair{"most_partial", &a.partial}, {"most_full", &a.full}})
      if (word == name) {
        to->rows = bracket();
        to->most = bracket();
        return true;
      }
    if (word == "blocks") {
      a.query_block = integer();
      a.key_block = integer();
      return true;
    }
    if (word != "score") return false;
    FlexAttention::Score& s = a.scores.emplace_back();
    s.left = operand(4);
    s.right = operand(4);
    expect("width");
    s.width = integer();
    expect("scale");
    s.scale = floating();
    return true;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw UserError("line " + std::to_string(line_number_) + ": " + what);
  }
  void next_line() {
    do {
      if (text_.empty()) fail("unexpected end of the kernel");
      size_t n = text_.find('\n');
      line_ = text_.substr(0, n);
      text_ = n == std::string_view::npos ? std::string_view() : text_.substr(n + 1);
      ++line_number_;
      skip();
    } while (line_.empty() || line_[0] == '#');
  }
  void skip() {
    while (!line_.empty() && line_[0] == ' ') line_.remove_prefix(1);
  }
  bool peek(char c) {
    skip();
    return !line_.empty() && line_[0] == c;
  }
  void end_line() {
    skip();
    if (!line_.empty()) fail("unexpected '" + std::string(line_) + "'");
  }
  bool accept(std::string_view w) {
    skip();
    if (line_.substr(0, w.size()) != w) return false;
    bool is_word = is_letter(w[0]);
    if (is_word && line_.size() > w.size() && (is_letter_or_digit(line_[w.size()]) || line_[w.size()] == '_'))
      return false;
    line_.remove_prefix(w.size());
    return true;
  }
  void expect(std::string_view w) {
    if (!accept(w)) fail("expected '" + std::string(w) + "'");
  }
  std::string word() {
    skip();
    size_t n = 0;
    while (n < line_.size() && (is_letter_or_digit(line_[n]) || std::strchr("_.+-", line_[n]))) ++n;
    if (n == 0) fail("expected a word");
    std::string w(line_.substr(0, n));
    line_.remove_prefix(n);
    return w;
  }
  std::string string() {
    expect("\"");
    std::string s;
    for (size_t i = 0; i < line_.size(); ++i) {
      if (line_[i] == '"') {
        line_.remove_prefix(i + 1);
        return s;
      }
      if (line_[i] == '\\' && i + 1 < line_.size()) ++i;
      s += line_[i];
    }
    fail("string without an end");
  }
  int64_t integer() {
    std::string w = word();
    if (w == "inf") return sym::Range::kInf;
    if (w == "-inf") return -sym::Range::kInf;
    int64_t v = 0;
    auto [end, error] = std::from_chars(w.data(), w.data() + w.size(), v);
    if (error != std::errc() || end != w.data() + w.size()) fail("expected an integer, not '" + w + "'");
    return v;
  }
  double floating() {
    std::string w = word();
    const std::optional<double> v = parse_number<double>(w);
    if (!v) fail("expected a number, not '" + w + "'");
    return *v;
  }
  DType dtype() {
    std::string w = word();
    DType d = parse_dtype(w);
    if (d == DType::kUndefined) fail("unknown dtype '" + w + "'");
    return d;
  }
  int name_in(const char* const* names, int count, const char* what) {
    std::string w = word();
    for (int i = 0; i < count; ++i)
      if (w == names[i]) return i;
    fail("unknown " + std::string(what) + " '" + w + "'");
  }
  int32_t letter_number(char letter) {
    skip();
    if (!peek(letter)) fail("expected '" + std::string(1, letter) + "<number>'");
    line_.remove_prefix(1);
    size_t n = 0;
    while (n < line_.size() && is_digit(line_[n])) ++n;
    int32_t v = 0;
    if (std::from_chars(line_.data(), line_.data() + n, v).ec != std::errc()) fail("expected a number");
    line_.remove_prefix(n);
    return v;
  }
  void numbered(char letter, size_t expected) {
    if (letter_number(letter) != static_cast<int32_t>(expected)) fail("must be numbered in order");
  }
  sym::Expr bracket() {
    expect("[");
    size_t n = line_.find(']');
    if (n == std::string_view::npos) fail("missing ']'");
    std::string_view inside = line_.substr(0, n);
    line_.remove_prefix(n + 1);
    try {
      return sym::parse(inside);
    } catch (const UserError& e) {
      fail(e.what());
    }
  }
  // "j0.768" or "j0.s0[s0]"
  Loop loop() {
    std::string name = word();
    Loop l;
    size_t dot = name.find('.');
    if (dot == std::string::npos || dot < 2 || !is_letter(name[0])) fail("bad loop '" + name + "'");
    int position = 0;
    if (std::from_chars(name.data() + 1, name.data() + dot, position).ptr != name.data() + dot)
      fail("bad loop '" + name + "'");
    if (peek('[')) {
      l.extent = bracket();
    } else {
      int64_t extent = 0;
      auto [end, error] = std::from_chars(name.data() + dot + 1, name.data() + name.size(), extent);
      if (error != std::errc() || end != name.data() + name.size()) fail("bad loop '" + name + "'");
      l.extent = extent;
    }
    l.var = loop_var(name[0], position, l.extent);
    return l;
  }
  std::vector<Loop> loops() {
    std::vector<Loop> result;
    for (skip(); !line_.empty() && is_letter(line_[0]) && line_.substr(0, 7) != "ordered"; skip())
      result.push_back(loop());
    return result;
  }
  Stage stage() {
    Stage s;
    s.loops = loops();
    s.ordered = accept("ordered");
    expect("{");
    end_line();
    for (;;) {
      next_line();
      if (accept("}")) break;
      numbered('v', s.body.size());
      expect("=");
      s.body.push_back(instr());
      end_line();
    }
    end_line();
    return s;
  }
  Op op() {
    std::string w = word();
    for (int i = 0; i <= static_cast<int>(Op::k_scan); ++i)
      if (w == info(static_cast<Op>(i)).name) return static_cast<Op>(i);
    fail("unknown operation '" + w + "'");
  }
  Instr instr() {
    Instr in;
    in.op = op();
    const OpInfo& facts = info(in.op);
    if (facts.has_result) in.dtype = dtype();
    switch (in.op) {
      case Op::k_const:
        if (is_floating(in.dtype)) {
          in.number = floating();
        } else {
          in.integer = integer();
        }
        break;
      case Op::k_index:
        in.index = bracket();
        break;
      case Op::k_in_range:
        in.index = bracket();
        in.lo = bracket();
        in.hi = bracket();
        break;
      case Op::k_uniform:
      case Op::k_normal:
        in.index = bracket();
        in.lo = bracket();
        in.hi = bracket();
        in.integer = integer();
        break;
      case Op::k_indirect: {
        std::string name = word();
        in.hi = bracket();
        int position = 0;
        std::from_chars(name.data() + 1, name.data() + name.size(), position);
        in.index = loop_var('t', position, in.hi);
        if (in.index.name() != name) fail("bad indirect variable '" + name + "'");
        break;
      }
      case Op::k_load:
      case Op::k_store:
        in.slot = letter_number('p');
        in.index = bracket();
        break;
      case Op::k_load_scratch:
      case Op::k_store_scratch:
        in.slot = letter_number('r');
        in.index = bracket();
        break;
      case Op::k_acc:
      case Op::k_reduce:
      case Op::k_scan:
        in.slot = letter_number('a');
        break;
      case Op::k_round_to:
        in.narrow = dtype();
        break;
      default:
        break;
    }
    for (int i = 0; i < 3 && peek('v'); ++i) in.args[i] = letter_number('v');
    in.wrap = accept("wrap");
    if (accept("error")) in.slot = static_cast<int32_t>(integer());
    if (in.op == Op::k_store)
      for (int i = 1; i < 5; ++i)
        if (accept(kStoreNames[i])) in.mode = static_cast<StoreMode>(i);
    if (accept("if")) in.mask = letter_number('v');
    return in;
  }

  std::string_view text_, line_;
  int line_number_ = 0;
};

}  // namespace

Kernel parse(std::string_view text) { return Parser(text).kernel(); }

}  // namespace flashover::loops
