// The binary form: a header (magic, format version, payload size, payload hash), then the payload in one pass
// (base/bytes.h).
#include <algorithm>
#include <cstring>
#include <map>

#include "base/bytes.h"
#include "base/check.h"
#include "plan/plan.h"

namespace flashover::plan {
namespace {

constexpr char kMagic[8] = {'F', 'L', 'A', 'S', 'H', 'P', 'L', 'N'};
constexpr size_t kHeader = sizeof kMagic + 4 + 8 + 16;

Hash128 hash_of(std::string_view payload) { return Hasher().bytes(payload.data(), payload.size()).finish(); }

// ---- writing ----
class Writer : public ByteWriter {
 public:
  void real(double d) {
    uint64_t bits;
    std::memcpy(&bits, &d, 8);
    raw(bits, 8);
  }
  // A constant is 0 and its value; anything else is 1 and its text over the variables of the table (written first).
  void expr(sym::Expr e) {
    if (e.is_const()) {
      out += '\0';
      integer(e.value());
    } else {
      out += '\1';
      text(e.str());
    }
  }
  void sizes(const Sizes& s) {
    list(s, [&](sym::Expr e) { expr(e); });
  }
  void device(Device d) {
    integer(static_cast<int>(d.type));
    integer(d.index);
  }
  void type(const TensorType& t) {
    integer(static_cast<int>(t.dtype));
    device(t.device);
    sizes(t.sizes);
    sizes(t.strides);
    expr(t.offset);
    out += static_cast<char>(t.wrapped_number | (t.opaque << 1));
  }
  void ids(const std::vector<TensorId>& l) {
    list(l, [&](TensorId t) { integer(t); });
  }
  void arg(const Arg& a) {
    unsigned_(a.index());
    std::visit([&](const auto& v) { value(v); }, a);
  }
  void step(const Step& s) {
    out += static_cast<char>(s.kind);
    integer(s.kernel);
    text(s.op);
    out += static_cast<char>(s.out_variant);
    list(s.args, [&](const Arg& a) { arg(a); });
    integer(s.mutates);
    ids(s.reads);
    ids(s.writes);
    sizes(s.sizes);
    out += static_cast<char>(s.foreseen);
    list(s.bounds, [&](const Bounds& b) { integer(b.tensor), integer(b.lo), integer(b.hi); });
    text(s.label);
    text(s.operators);
  }

 private:
  void value(None) {}
  void value(Ref r) { integer(r.id); }
  void value(const RefList& l) {
    list(l, [&](Ref r) { integer(r.id); });
  }
  void value(sym::Expr e) { expr(e); }
  void value(const Sizes& s) { sizes(s); }
  void value(double d) { real(d); }
  void value(const std::vector<double>& l) {
    list(l, [&](double d) { real(d); });
  }
  void value(bool b) { out += static_cast<char>(b); }
  void value(const std::vector<bool>& l) {
    list(l, [&](bool b) { out += static_cast<char>(b); });
  }
  void value(std::complex<double> c) {
    real(c.real());
    real(c.imag());
  }
  void value(const std::string& s) { text(s); }
  void value(DType d) { integer(static_cast<int>(d)); }
  void value(Device d) { device(d); }
  void value(Layout l) { integer(static_cast<int>(l)); }
  void value(MemoryFormat f) { integer(static_cast<int>(f)); }
};

void collect_variables(const Plan& p, std::vector<sym::Expr>& vars) {
  const auto one = [&](sym::Expr e) {
    if (!e.is_const()) sym::collect_vars(e, vars);
  };
  const auto many = [&](const Sizes& s) {
    for (sym::Expr e : s) one(e);
  };
  const auto type = [&](const TensorType& t) {
    many(t.sizes);
    many(t.strides);
    one(t.offset);
  };
  for (const InputSpec& i : p.inputs) type(i.type);
  for (const Tensor& t : p.tensors) type(t.type), one(t.arena_offset);
  for (const OutputRef& o : p.outputs) type(o.type);
  one(p.arena_bytes);
  for (const Kernel& k : p.kernels)
    for (sym::Expr e : k.cuda.grid) one(e);
  for (const auto* steps : {&p.frozen_steps, &p.steps})
    for (const Step& s : *steps) {
      many(s.sizes);
      for (const Arg& a : s.args) {
        if (auto* e = std::get_if<sym::Expr>(&a)) one(*e);
        if (auto* l = std::get_if<Sizes>(&a)) many(*l);
      }
    }
}

// ---- reading ----
class Reader : public ByteReader {
 public:
  explicit Reader(std::string_view in) : ByteReader(in, "plan") {}

  double real() {
    const uint64_t bits = raw(8);
    double d;
    std::memcpy(&d, &bits, 8);
    return d;
  }
  sym::Expr expr() {
    if (byte() == 0) return integer();
    const std::string s = text();
    // The text goes to a recursive parser: bound its depth.
    if (s.size() > 4096 || std::count(s.begin(), s.end(), '(') > 64 || std::count(s.begin(), s.end(), '-') > 256)
      fail("expression too long");
    return sym::parse(s);
  }
  Sizes sizes() {
    return list<sym::Expr>(2, [&] { return expr(); });
  }
  DType dtype() {
    const auto d = static_cast<DType>(enumeration<int8_t>(static_cast<int>(DType::kUndefined) + 1));
    if (d != DType::kUndefined && info(d).bytes == 0) fail("unknown dtype");
    return d;
  }
  Device device() {
    Device d;
    const int64_t type = integer();
    if (type != 0 && type != 1 && type != 14) fail("unknown device");
    d.type = static_cast<DeviceType>(type);
    const int64_t index = integer();
    if (index < -1 || index > 127) fail("device index out of range");
    d.index = static_cast<int8_t>(index);
    return d;
  }
  TensorType type() {
    TensorType t;
    t.dtype = dtype();
    t.device = device();
    t.sizes = sizes();
    t.strides = sizes();
    t.offset = expr();
    const uint8_t flags = byte();
    if (flags > 3) fail("unknown type flags");
    t.wrapped_number = flags & 1;
    t.opaque = (flags & 2) != 0;
    return t;
  }
  std::vector<TensorId> ids() {
    return list<TensorId>(1, [&] { return small(); });
  }
  Arg arg() {
    switch (unsigned_()) {
      case 0:
        return None();
      case 1:
        return Ref{small()};
      case 2:
        return list<Ref>(1, [&] { return Ref{small()}; });
      case 3:
        return expr();
      case 4:
        return sizes();
      case 5:
        return real();
      case 6:
        return list<double>(8, [&] { return real(); });
      case 7:
        return boolean();
      case 8:
        return list<bool>(1, [&] { return boolean(); });
      case 9: {
        const double re = real();
        return std::complex<double>(re, real());
      }
      case 10:
        return text();
      case 11:
        return dtype();
      case 12:
        return device();
      case 13:
        return enumeration<Layout>(2);
      case 14:
        return enumeration<MemoryFormat>(4);
      default:
        fail("unknown argument kind");
    }
  }
  Step step() {
    Step s;
    const uint8_t kind = byte();
    if (kind > static_cast<uint8_t>(StepKind::kRelease)) fail("unknown step kind");
    s.kind = static_cast<StepKind>(kind);
    s.kernel = small();
    s.op = text();
    s.out_variant = boolean();
    s.args = list<Arg>(1, [&] { return arg(); });
    const int64_t mutates = integer();
    if (mutates < 0 || mutates > UINT32_MAX) fail("mutated arguments out of range");
    s.mutates = static_cast<uint32_t>(mutates);
    s.reads = ids();
    s.writes = ids();
    s.sizes = sizes();
    s.foreseen = boolean();
    s.bounds = list<Bounds>(3, [&] {
      Bounds b;
      b.tensor = small();
      b.lo = integer();
      b.hi = integer();
      return b;
    });
    s.label = text();
    s.operators = text();
    return s;
  }
};
static_assert(std::variant_size_v<Arg> == 15, "teach Reader::arg the new kind");

Plan read(std::string_view payload) {
  Reader r(payload);
  Plan p;
  r.list<int>(4, [&] {
    const std::string name = r.text();
    sym::Range range;
    range.lo = r.integer();
    range.hi = r.integer();
    const int64_t hint = r.integer();
    if (name.empty() || name.size() > 64 || range.lo > range.hi) r.fail("bad size variable");
    if (sym::size_symbol_of_name(name)) r.fail("a size symbol is declared");  // known by name, with its range
    sym::var(name, range, hint);
    return 0;
  });
  p.target = r.text();
  p.device = r.device();
  p.arena_bytes = r.expr();
  p.inputs = r.list<InputSpec>(8, [&] {
    InputSpec i;
    i.type = r.type();
    i.kind = r.byte();
    i.frozen = r.boolean();
    return i;
  });
  p.tensors = r.list<Tensor>(8, [&] {
    Tensor t;
    t.type = r.type();
    const uint8_t storage = r.byte();
    if (storage > static_cast<uint8_t>(StorageKind::kView)) r.fail("unknown storage");
    t.storage = static_cast<StorageKind>(storage);
    t.index = r.small();
    t.arena_offset = r.expr();
    return t;
  });
  p.frozen_steps = r.list<Step>(8, [&] { return r.step(); });
  p.steps = r.list<Step>(8, [&] { return r.step(); });
  p.outputs = r.list<OutputRef>(8, [&] {
    OutputRef o;
    o.tensor = r.small();
    o.alias_input = r.small();
    o.alias_output = r.small();
    o.type = r.type();
    return o;
  });
  p.kernels = r.list<Kernel>(3, [&] {
    Kernel k;
    k.symbol = r.text();
    k.binary = r.small();
    k.errors = r.list<std::string>(1, [&] { return r.text(); });
    k.cuda.threads = r.small();
    if (k.cuda.threads == 0) return k;
    for (sym::Expr& e : k.cuda.grid) e = r.expr();
    k.cuda.shared = r.small();
    k.cuda.scratch = r.integer();
    k.cuda.early = r.small() != 0;
    k.cuda.params =
        r.list<ParamKind>(1, [&] { return r.enumeration<ParamKind>(static_cast<int>(ParamKind::kValue64) + 1); });
    return k;
  });
  p.binaries = r.list<Binary>(17, [&] {
    Binary b;
    b.key = r.hash();
    b.bytes = r.text();
    return b;
  });
  if (r.left() != 0) r.fail("bytes after the end");
  return p;
}

}  // namespace

std::string serialize(const Plan& p) {
  Writer w;
  std::vector<sym::Expr> vars;
  collect_variables(p, vars);
  std::erase_if(vars, [](sym::Expr v) { return sym::size_symbol_index(v).has_value(); });
  w.list(vars, [&](sym::Expr v) {
    w.text(v.name());
    w.integer(v.range().lo);
    w.integer(v.range().hi);
    w.integer(v.hint());
  });
  w.text(p.target);
  w.device(p.device);
  w.expr(p.arena_bytes);
  w.list(p.inputs, [&](const InputSpec& i) {
    w.type(i.type);
    w.raw(i.kind, 1);
    w.raw(i.frozen, 1);
  });
  w.list(p.tensors, [&](const Tensor& t) {
    w.type(t.type);
    w.raw(static_cast<uint8_t>(t.storage), 1);
    w.integer(t.index);
    w.expr(t.arena_offset);
  });
  w.list(p.frozen_steps, [&](const Step& s) { w.step(s); });
  w.list(p.steps, [&](const Step& s) { w.step(s); });
  w.list(p.outputs, [&](const OutputRef& o) {
    w.integer(o.tensor);
    w.integer(o.alias_input);
    w.integer(o.alias_output);
    w.type(o.type);
  });
  w.list(p.kernels, [&](const Kernel& k) {
    w.text(k.symbol);
    w.integer(k.binary);
    w.list(k.errors, [&](const std::string& e) { w.text(e); });
    w.integer(k.cuda.threads);
    if (k.cuda.threads == 0) return;
    for (sym::Expr e : k.cuda.grid) w.expr(e);
    w.integer(k.cuda.shared);
    w.integer(k.cuda.scratch);
    w.integer(k.cuda.early);
    w.list(k.cuda.params, [&](ParamKind kind) { w.integer(static_cast<int>(kind)); });
  });
  w.list(p.binaries, [&](const Binary& b) {
    w.hash(b.key);
    w.text(b.bytes);
  });

  const Hash128 hash = hash_of(w.out);
  Writer header;
  header.out.reserve(kHeader + w.out.size());
  header.out.append(kMagic, sizeof kMagic);
  header.raw(kFormatVersion, 4);
  header.raw(w.out.size(), 8);
  header.hash(hash);
  return std::move(header.out) + w.out;
}

Plan deserialize(std::string_view bytes) {
  Reader header(bytes.substr(0, std::min(bytes.size(), kHeader)));
  if (header.take(sizeof kMagic) != std::string_view(kMagic, sizeof kMagic)) header.fail("not a plan");
  if (header.raw(4) != kFormatVersion) header.fail("written by another version");
  const uint64_t size = header.raw(8);
  const Hash128 hash = header.hash();
  const std::string_view payload = bytes.substr(kHeader);
  if (size != payload.size()) header.fail("wrong size");
  if (hash != hash_of(payload)) header.fail("wrong checksum");
  return deserialize_payload(payload);
}

Plan deserialize_payload(std::string_view payload) {
  try {
    Plan p = read(payload);
    verify(p);
    return p;
  } catch (const InternalError& e) {  // a broken rule, or an expression that overflows
    throw UserError(std::string("damaged plan: ") + e.what());
  }
}

}  // namespace flashover::plan
