// The binary form of a manifest (base/bytes.h), and what must hold in one.
#include "package/manifest.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "package/cubin.h"
#include "plan/contents.h"
#include "plan/sizes.h"

namespace flashover::aot {
namespace {

constexpr size_t kMostExpression = 4096;  // characters: the text goes to a recursive parser
constexpr size_t kMostRank = 64;

[[noreturn]] void wrong(const std::string& what) { throw UserError("damaged package: " + what); }

sym::Expr expression_of(const std::string& text) {
  if (text.size() > kMostExpression || std::ranges::count(text, '(') > 64 || std::ranges::count(text, '-') > 256)
    wrong("an expression is too long");
  return sym::parse(text);
}

void write(ByteWriter& w, const Binding& b) {
  w.integer(static_cast<int>(b.kind));
  w.integer(b.index);
  w.text(b.value);
}

Binding read_binding(ByteReader& r) {
  Binding b;
  b.kind = r.enumeration<Binding::Kind>(4);
  b.index = r.small();
  b.value = r.text();
  return b;
}

void write(ByteWriter& w, const std::vector<int64_t>& numbers) {
  w.list(numbers, [&](int64_t n) { w.integer(n); });
}
std::vector<int64_t> read_numbers(ByteReader& r) {
  return r.list<int64_t>(1, [&] { return r.integer(); });
}

DType read_dtype(ByteReader& r) {
  const auto dtype = static_cast<DType>(r.enumeration<int8_t>(static_cast<int>(DType::kUndefined)));
  if (info(dtype).bytes == 0) r.fail("unknown dtype");
  return dtype;
}

// Where a tensor's bytes lie: of a Weight or a Prepared.
template <typename T>
void write_place(ByteWriter& w, const T& t) {
  w.unsigned_(t.offset);
  w.unsigned_(t.bytes);
  w.raw(t.checksum, 8);
}
template <typename T>
void read_place(ByteReader& r, T& t) {
  t.offset = r.unsigned_();
  t.bytes = r.unsigned_();
  t.checksum = r.raw(8);
}

void write(ByteWriter& w, const Weight& t) {
  w.text(t.name);
  w.integer(static_cast<int>(t.dtype));
  write(w, t.sizes);
  write(w, t.strides);
  write_place(w, t);
}

Weight read_weight(ByteReader& r) {
  Weight t;
  t.name = r.text();
  t.dtype = read_dtype(r);
  t.sizes = read_numbers(r);
  t.strides = read_numbers(r);
  read_place(r, t);
  return t;
}

void write(ByteWriter& w, const PackagedPlan& p) {
  w.text(p.section);
  w.list(p.prepared, [&](const Prepared& t) {
    w.integer(t.tensor);
    w.integer(static_cast<int>(t.dtype));
    write(w, t.sizes);
    write(w, t.strides);
    w.text(t.layout);
    write_place(w, t);
  });
}

PackagedPlan read_plan(ByteReader& r) {
  PackagedPlan p;
  p.section = r.text();
  p.prepared = r.list<Prepared>(15, [&] {
    Prepared t;
    t.tensor = r.small();
    t.dtype = read_dtype(r);
    t.sizes = read_numbers(r);
    t.strides = read_numbers(r);
    t.layout = r.text();
    read_place(r, t);
    return t;
  });
  return p;
}

void write(ByteWriter& w, const PackagedEntry& e) {
  w.text(e.name);
  w.integer(static_cast<int>(e.device));
  w.list(e.plans, [&](const PackagedPlan& p) { write(w, p); });
  w.list(e.inputs, [&](const Binding& b) { write(w, b); });
  w.list(e.arguments, [&](const Argument& a) {
    w.text(a.name);
    w.raw(a.tensor, 1);
    w.text(a.value);
    w.integer(a.storage_offset);
  });
  w.list(e.results, [&](const Binding& b) { write(w, b); });
  w.list(e.guards, [&](const sym::SizeGuard& g) {
    w.integer(static_cast<int>(g.relation));
    w.text(g.a.str());
    w.text(g.b.str());
  });
  w.text(e.arguments_spec);
  w.text(e.results_spec);
}

PackagedEntry read_entry(ByteReader& r) {
  PackagedEntry e;
  e.name = r.text();
  e.device = static_cast<DeviceType>(r.enumeration<int8_t>(2));
  e.plans = r.list<PackagedPlan>(2, [&] { return read_plan(r); });
  e.inputs = r.list<Binding>(3, [&] { return read_binding(r); });
  e.arguments = r.list<Argument>(4, [&] {
    Argument a;
    a.name = r.text();
    a.tensor = r.boolean();
    a.value = r.text();
    a.storage_offset = r.integer();
    return a;
  });
  e.results = r.list<Binding>(3, [&] { return read_binding(r); });
  e.guards = r.list<sym::SizeGuard>(3, [&] {
    const auto relation = r.enumeration<sym::Relation>(4);
    const sym::Expr a = expression_of(r.text());
    return sym::SizeGuard{relation, a, expression_of(r.text())};
  });
  e.arguments_spec = r.text();
  e.results_spec = r.text();
  return e;
}

// Elements from the first to one past the last; throws where that is more than memory holds.
uint64_t span_of(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, const std::string& what) {
  constexpr int64_t kMost = int64_t{1} << 48;
  if (sizes.size() != strides.size() || sizes.size() > kMostRank) wrong("sizes of " + what);
  int64_t last = 1;
  bool empty = false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] < 0 || sizes[d] > kMost || strides[d] < 0 || strides[d] > kMost) wrong("sizes of " + what);
    empty |= sizes[d] == 0;
    if (sizes[d] <= 1) continue;
    if (strides[d] > kMost / sizes[d]) wrong("sizes of " + what);
    last += (sizes[d] - 1) * strides[d];
    if (last > kMost) wrong("sizes of " + what);
  }
  return empty ? 0 : static_cast<uint64_t>(last);
}

// t: a Weight or a Prepared.
template <typename T>
bool lies_inside(const T& t, uint64_t section_bytes) {
  return t.offset % kWeightAlignment == 0 && t.offset <= section_bytes && t.bytes <= section_bytes - t.offset;
}

void check(const Prepared& t, uint64_t section_bytes) {
  const std::string what = "a prepared tensor";
  if (!lies_inside(t, section_bytes)) wrong(what + " does not lie in its section");
  if (t.layout.empty() && t.bytes != span_of(t.sizes, t.strides, what) * info(t.dtype).bytes)
    wrong(what + " has another number of bytes than its sizes");
  if (!t.layout.empty() && !t.strides.empty()) wrong("strides of " + what);
}

void check_binding(const Manifest& m, const PackagedEntry& e, const Binding& b) {
  using Kind = Binding::Kind;
  const size_t most = b.kind == Kind::kArgument ? e.arguments.size() : m.weights.size();
  if (b.index < 0 || static_cast<size_t>(b.index) >= most) wrong("entry " + e.name + ": a number is out of range");
  if (b.kind == Kind::kArgument && !e.arguments[static_cast<size_t>(b.index)].tensor)
    wrong("entry " + e.name + ": an argument is no tensor");
}

// The plan's type of an input and the weight that stands for it.
bool fits(const TensorType& type, const Weight& w) {
  if (type.dtype != w.dtype || type.rank() != w.sizes.size() || type.opaque) return false;
  for (size_t d = 0; d < w.sizes.size(); ++d)
    if (type.sizes[d].as_const() != w.sizes[d] || type.strides[d].as_const() != w.strides[d]) return false;
  return true;
}

// What the driver parses without knowing where it ends.
void check_cubins(const PackagedEntry& e, const plan::Plan& p) {
  const std::string where = "entry " + e.name + ": ";
  if (p.kernels.empty() && p.binaries.empty()) return;
  const int architecture = cubin_architecture(p.target);
  if (architecture == 0) wrong(where + "the target " + p.target.substr(0, 40));
  std::vector<std::set<std::string>> symbols(p.binaries.size());
  for (const plan::Kernel& k : p.kernels) symbols[static_cast<size_t>(k.binary)].insert(k.symbol);
  for (size_t b = 0; b < p.binaries.size(); ++b)
    if (const std::string why = why_no_cubin(p.binaries[b].bytes, architecture, symbols[b]); !why.empty())
      wrong(where + "a cubin: " + why);
}

// Each is the tensor that the plan means. (What a library lays out for itself may have other sizes.)
void check_prepared(const PackagedEntry& e, const PackagedPlan& section, const plan::Plan& p) {
  const std::vector<plan::TensorId> kept = plan::kept_frozen(p);
  for (const Prepared& t : section.prepared) {
    const bool known = std::ranges::binary_search(kept, t.tensor);
    const TensorType* type = known ? &p.tensors[static_cast<size_t>(t.tensor)].type : nullptr;
    bool same = known && type->dtype == t.dtype && type->device.type == DeviceType::kCPU;
    for (size_t d = 0; same && !type->opaque && d < type->rank(); ++d)
      same = type->rank() == t.sizes.size() && type->sizes[d].as_const() == t.sizes[d] &&
             type->strides.size() == t.strides.size() && type->strides[d].as_const() == t.strides[d];
    if (!same || (!type->opaque && type->rank() != t.sizes.size()) || (!type->opaque && !t.layout.empty()))
      wrong("entry " + e.name + ": a prepared tensor does not fit its plan");
  }
}

}  // namespace

std::string device_name(Device d) { return d.type == DeviceType::kCUDA ? "cuda:" + std::to_string(d.index) : "cpu"; }

std::string encode(const Manifest& m) {
  ByteWriter w;
  w.text(m.torch);
  w.text(m.flashover);
  w.text(m.machine);
  w.list(m.weights, [&](const Weight& t) { write(w, t); });
  w.list(m.entries, [&](const PackagedEntry& e) { write(w, e); });
  return std::move(w.out);
}

Manifest decode(std::string_view bytes) {
  ByteReader r(bytes, "package");
  Manifest m;
  try {
    m.torch = r.text();
    m.flashover = r.text();
    m.machine = r.text();
    m.weights = r.list<Weight>(15, [&] { return read_weight(r); });
    m.entries = r.list<PackagedEntry>(9, [&] { return read_entry(r); });
  } catch (const InternalError& e) {  // an expression that overflows
    wrong(e.what());
  }
  if (r.left() != 0) r.fail("bytes behind the manifest");
  return m;
}

sym::SizeGuard parse_guard(const std::string& relation, const std::string& a, const std::string& b) {
  static constexpr std::string_view kRelations[] = {"==", "!=", "<", "<="};
  const auto found = std::ranges::find(kRelations, relation);
  if (found == std::end(kRelations)) throw UserError("unknown relation " + relation);
  return {static_cast<sym::Relation>(found - std::begin(kRelations)), expression_of(a), expression_of(b)};
}

void check(const Manifest& m, uint64_t weight_bytes, uint64_t prepared_bytes) {
  std::set<std::string_view> names;
  for (const Weight& t : m.weights) {
    if (!names.insert(t.name).second) wrong("two weights are named " + t.name);
    const std::string what = "the weight " + t.name;
    if (!lies_inside(t, weight_bytes) || t.bytes != span_of(t.sizes, t.strides, what) * info(t.dtype).bytes)
      wrong(what + " does not lie in its section");
  }
  std::set<std::pair<std::string_view, DeviceType>> entries;
  for (const PackagedEntry& e : m.entries) {
    if (!entries.insert({e.name, e.device}).second) wrong("two entries are named " + e.name);
    if (e.plans.empty()) wrong("entry " + e.name + " has no plan");
    for (const PackagedPlan& p : e.plans)
      for (const Prepared& t : p.prepared) check(t, prepared_bytes);
  }
  if (m.entries.empty()) wrong("it has no entries");
}

void check(const Manifest& m, const PackagedEntry& e, const PackagedPlan& section, const plan::Plan& p) {
  check_prepared(e, section, p);
  if (p.device.type != e.device) wrong("entry " + e.name + ": a plan is for another kind of device");
  if (e.device == DeviceType::kCUDA) check_cubins(e, p);
  using Kind = Binding::Kind;
  if (e.inputs.size() != p.inputs.size()) wrong("entry " + e.name + " has another number of inputs than its plan");
  std::set<std::string> known;
  for (size_t i = 0; i < e.inputs.size(); ++i) {
    const Binding& b = e.inputs[i];
    const TensorType& type = p.inputs[i].type;
    if (b.kind != Kind::kArgument && b.kind != Kind::kWeight) wrong("entry " + e.name + ": an input is a result");
    check_binding(m, e, b);
    if (b.kind == Kind::kWeight && !fits(type, m.weights[static_cast<size_t>(b.index)]))
      wrong("entry " + e.name + ": the weight " + m.weights[static_cast<size_t>(b.index)].name + " does not fit");
    if (type.opaque || type.strides.size() != type.sizes.size()) wrong("entry " + e.name + ": the type of an input");
    for (sym::Expr size : type.sizes)
      if (size.kind() == sym::Kind::kVar) known.insert(std::string(size.name()));
  }
  // What a call is checked by is computed of the sizes of its tensors alone.
  std::vector<sym::Expr> met;
  for (const plan::InputSpec& in : p.inputs) {
    for (sym::Expr size : in.type.sizes) sym::collect_vars(size, met);
    for (sym::Expr stride : in.type.strides) sym::collect_vars(stride, met);
  }
  for (const sym::SizeGuard& g : e.guards) sym::collect_vars(g.a, met), sym::collect_vars(g.b, met);
  for (sym::Expr v : met)
    if (!known.contains(std::string(v.name()))) wrong("entry " + e.name + ": the size " + std::string(v.name()));
  for (const Binding& b : e.results) {
    if (b.kind == Kind::kValue) continue;
    if (b.kind != Kind::kOutput) {
      check_binding(m, e, b);
    } else if (b.index < 0 || static_cast<size_t>(b.index) >= p.outputs.size()) {
      wrong("entry " + e.name + ": a number is out of range");
    }
  }
}

std::vector<Device> weight_devices(const Manifest& m, const std::vector<const plan::Plan*>& plans) {
  std::vector<std::optional<Device>> found(m.weights.size());
  for (size_t e = 0; e < plans.size(); ++e)
    for (size_t i = 0; i < plans[e]->inputs.size(); ++i) {
      const Binding& b = m.entries[e].inputs[i];
      if (b.kind != Binding::Kind::kWeight) continue;
      const auto w = static_cast<size_t>(b.index);
      const Device device = plans[e]->inputs[i].type.device;
      if (found[w] && *found[w] != device)
        throw UserError("the weight " + m.weights[w].name + " is on two devices, as entry " + m.entries[e].name +
                        " and another one have it: put these entries into packages of their own");
      found[w] = device;
    }
  std::vector<Device> devices;
  for (const std::optional<Device>& d : found) devices.push_back(d.value_or(Device{}));
  return devices;
}

size_t find_entry(const Manifest& m, const std::string& entry) {
  if (entry.empty() && m.entries.size() == 1) return 0;
  std::string known;
  for (size_t i = 0; i < m.entries.size(); ++i) {
    if (m.entries[i].name == entry) return i;
    known += (i ? ", " : "") + m.entries[i].name;
  }
  throw UserError(entry.empty() ? "the package has several entries, name one: " + known
                                : "the package has no entry " + entry + "; there are " + known);
}

size_t find_weight(const Manifest& m, const std::string& name) {
  const auto found = std::ranges::find_if(m.weights, [&](const Weight& w) { return w.name == name; });
  if (found == m.weights.end()) throw UserError("the package has no weight " + name);
  return static_cast<size_t>(found - m.weights.begin());
}

bool is_complete(const std::vector<Prepared>& prepared, const plan::Plan& p) {
  return std::ranges::all_of(plan::kept_frozen(p), [&](plan::TensorId t) {
    return std::ranges::any_of(prepared, [&](const Prepared& q) { return q.tensor == t; });
  });
}

void mark_read(const PackagedEntry& e, const plan::Plan& p, const std::vector<Prepared>& prepared,
               std::vector<bool>& read) {
  const bool complete = is_complete(prepared, p);
  for (size_t i = 0; i < e.inputs.size(); ++i)
    if (e.inputs[i].kind == Binding::Kind::kWeight && !(complete && p.inputs[i].frozen))
      read[static_cast<size_t>(e.inputs[i].index)] = true;
  for (const Binding& b : e.results)
    if (b.kind == Binding::Kind::kWeight) read[static_cast<size_t>(b.index)] = true;
}

std::vector<bool> written_inputs(const plan::Plan& p) {
  std::vector<bool> written(p.inputs.size());
  for (const plan::Step& s : p.steps)
    plan::for_each_write(s, [&](plan::TensorId t) {
      const plan::Tensor& root = p.tensors[static_cast<size_t>(plan::root(p, t))];
      if (root.storage == plan::StorageKind::kInput) written[static_cast<size_t>(root.index)] = true;
    });
  return written;
}

}  // namespace flashover::aot
