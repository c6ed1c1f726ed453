// The fast program.
//
// Sources are split into segments: one for everything that hangs off objects known by address, one for each argument,
// one for each object with attributes inside an argument's containers. When a segment has passed the plain check, it is
// *armed*: compiled to a list of compares of addresses and version tags that, while they hold, prove that the plain
// check would pass again. A compare that fails ends in one of three ways: a surely false guard; a dict whose facts
// still hold (its tag is updated), a type likewise, or a slot whose new object meets them; or the plain check over that
// segment, which decides, and arms it again. What keeps being another object is taken out of the compares, with all
// that hangs off it (loose_), and checked plainly. Segments that still keep changing (argument tuples made on each
// call) are not armed again but checked plainly, which is quick when they are small.
//
// Compares run level by level: an object before what hangs off it.
//
// Why addresses suffice: version tags of dicts and types are unique for all times, so an address with its tag proves
// that it is the same live object with the same contents; whatever hangs off it without a tag (list items, cells,
// slots) is compared each time, parent before child, and identity facts there check a weak reference too.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "guards/arming.h"
#include "guards/facts.h"
#include "guards/global_state.h"
#include "guards/guards.h"

namespace flashover::guards {
namespace {

constexpr int32_t kMaxArms = 16;     // then a segment is taken to be different on each call,
constexpr int32_t kRest = 64;        // and armed only this seldom
constexpr size_t kSmallSegment = 3;  // not worth arming
constexpr int32_t kMaxMoves = 3;     // then a source is taken to be another object on each call
constexpr size_t kMaxMoved = 64;     // objects that moved are remembered one by one up to here

enum class Verdict { kYes, kNo, kUnsure };

bool is_container_step(SourceKind k) {
  return k == SourceKind::kArgument || k == SourceKind::kSequenceItem || k == SourceKind::kDictItem ||
         k == SourceKind::kDictValueAt || k == SourceKind::kSetItem;
}

class CompiledGuards final : public GuardProgram, private ProgramState {
 public:
  CompiledGuards(Observations observations, std::vector<SourceId> required)
      : ProgramState(std::move(observations)), required_(std::move(required)), state_(GlobalState::read()) {
    size_t n = table_.sources().size();
    for (SourceId w : required_)
      FLASHOVER_CHECK(w >= 0 && w < static_cast<SourceId>(n)) << "wanted source " << w << " of " << n;
    current_ = table_.seen();
    positions_.resize(n);
    moves_.resize(n);
    loose_.resize(n);
    split();
    take_required();
    for (size_t i = 0; i < segments_.size(); i++)
      if (!plain(segments_[i]))
        throw Declined("guard: does not hold right after the trace: " + plain_failure(segments_[i]).text());
    for (int32_t fact : table_.between())
      if (!table_.holds_between(fact, current_.data()))
        throw Declined("guard: does not hold right after the trace: " + table_.describe(fact));
    for (int32_t fact : table_.between()) {
      const Fact& f = table_.facts()[fact];
      if (f.kind == FactKind::kSameObject || f.kind == FactKind::kDistinct)
        pairs_.push_back({f.source, static_cast<SourceId>(f.number), f.kind == FactKind::kSameObject});
      else if (f.kind == FactKind::kWritten)
        written_.push_back(fact);
      else
        others_.push_back(fact);
    }
    for (Segment& s : segments_)
      if (s.root == kNoSource || s.sources.size() > kSmallSegment) arm(*this, s);
  }

  bool worth_a_clock() const override {
    size_t dicts = 0;
    for (const Segment& s : segments_) dicts += s.dicts.size();
    return dicts > 100 && !watched_;
  }

  bool check(PyObject* const* args, PyObject** objects, bool untouched) override {
    untouched_ = untouched;
    bool yes = false;
    try {
      yes = check_fast(args, objects);
    } catch (...) {  // no memory, half way: what was noted so far is not all that moved
      distrust();
      throw;
    }
    static const bool twice = std::getenv("FLASHOVER_CHECK_GUARDS") != nullptr;  // for tests
    if (twice) {
      FLASHOVER_CHECK(yes == check_plainly(args))
          << "the fast guards say " << (yes ? "yes" : "no") << ", the plain ones: " << explain_failure(args);
    }
    return yes;
  }

  void let_go() override { keep_.clear(); }

  bool check_fast(PyObject* const* args, PyObject** objects) {
    keep_.clear();
    if (!state_.holds()) return false;
    const uint64_t changes = watched_changes();
    untouched_ |= watched_ && seen_changes_ == changes && ever_;
    for (Segment& s : segments_)
      if (!check(s, args)) return false;
    if (!table_.subclasses_hold()) return false;
    for (const Pair& p : pairs_)
      if ((current_[p.a] == current_[p.b]) != p.same) return false;
    for (int32_t fact : others_)
      if (!table_.holds_between(fact, current_.data())) return false;
    if (all_moved_) {
      for (int32_t fact : written_)
        if (!table_.holds_between(fact, current_.data())) return false;
      take_required();
    } else {
      for (int32_t fact : written_)
        for (SourceId id : moved_)
          if (!table_.still_alone(fact, id, current_.data())) return false;
      if (required_twice_ && !moved_.empty()) take_required();
      for (SourceId id : moved_)
        if (positions_[id].required >= 0) required_objects_[positions_[id].required] = current_[id];
    }
    moved_.clear();
    all_moved_ = false;
    seen_changes_ = changes;
    ever_ = true;
    std::copy(required_objects_.begin(), required_objects_.end(), objects);
    return true;
  }

  Failure failure(PyObject* const* args) const override {
    if (const std::string d = state_.difference(GlobalState::read()); !d.empty()) {
      const size_t now = d.rfind(", now ");
      return now == std::string::npos ? Failure{d, "not so", ""} : Failure{d.substr(0, now), d.substr(now + 6), ""};
    }
    Keep keep;
    std::vector<PyObject*> current;
    const int32_t first = check_all(table_, args, current, keep);
    if (first == -1) return {};
    if (first <= -2) {
      const SourceId gone = -2 - first;
      const auto& facts = table_.facts_of(gone);
      return {str(table_.observations(), gone) + " is there", "gone",
              facts.empty() ? "" : location_of(table_.observations(), table_.facts()[facts.front()])};
    }
    return table_.failure(first, current[std::max(0, table_.facts()[first].source)], current.data());
  }

  std::vector<std::string> changed_numbers(PyObject* const* args) const override {
    std::vector<std::string> out;
    for_each_changed(args, [&](SourceId id, int32_t fact, PyObject* now) {
      const Fact& f = table_.facts()[fact];
      const bool number =
          f.kind == FactKind::kEquals && (PyFloat_CheckExact(f.expected) || PyLong_CheckExact(f.expected));
      if (number && Py_TYPE(now) == Py_TYPE(f.expected)) out.push_back(str(table_.observations(), id));
    });
    return out;
  }

  std::vector<std::pair<std::string, size_t>> changed_geometry(PyObject* const* args) const override {
    std::vector<std::pair<std::string, size_t>> out;
    for_each_changed(args, [&](SourceId id, int32_t fact, PyObject* now) {
      if (table_.facts()[fact].kind != FactKind::kTensor || !is_tensor(now)) return;
      for (size_t part : other_parts(table_.spec(fact), now)) out.emplace_back(str(table_.observations(), id), part);
    });
    return out;
  }

  std::vector<std::pair<std::string, PyObject*>> changed_objects(PyObject* const* args) const override {
    std::vector<std::pair<std::string, PyObject*>> out;
    for_each_changed(args, [&](SourceId id, int32_t fact, PyObject* now) {
      const Fact& f = table_.facts()[fact];
      const std::string path = str(table_.observations(), id);
      PyObject* was = f.expected && PyWeakref_CheckRefExact(f.expected) ? PyWeakref_GET_OBJECT(f.expected) : f.expected;
      const auto same_name = [was](PyObject* a) {
        return !was || !PyType_Check(was) || !PyType_Check(a) ||
               std::strcmp(reinterpret_cast<PyTypeObject*>(was)->tp_name,
                           reinterpret_cast<PyTypeObject*>(a)->tp_name) == 0;
      };
      auto* type = reinterpret_cast<PyObject*>(Py_TYPE(now));
      if (f.kind == FactKind::kIdentity && same_name(now)) out.emplace_back(path, now);
      if (f.kind == FactKind::kTypeIs ? same_name(type)
                                      : f.kind == FactKind::kIdentity && table_.type_of_identity(fact) != Py_TYPE(now))
        out.emplace_back("type(" + path + ")", type);
    });
    return out;
  }

  // For the first fact of each path that does not hold; what hangs below such a path means something else now.
  template <typename F>
  void for_each_changed(PyObject* const* args, F f) const {
    Keep keep;
    const size_t n = table_.sources().size();
    std::vector<PyObject*> current(n);
    for (size_t i = 0; i < n; ++i) {
      const auto id = static_cast<SourceId>(i);
      const SourceId parent = table_.sources()[i].parent;
      if (parent != kNoSource && !current[parent]) continue;
      current[i] = table_.resolve(id, parent == kNoSource ? nullptr : current[parent], args, keep);
      if (!current[i]) continue;
      for (int32_t fact : table_.facts_of(id)) {
        if (table_.holds(fact, current[i])) continue;
        f(id, fact, current[i]);
        current[i] = nullptr;
        break;
      }
    }
  }

  std::vector<std::string> describe() const override {
    std::vector<std::string> out;
    for (size_t i = 0; i < table_.facts().size(); i++) out.push_back(table_.describe(static_cast<int32_t>(i)));
    return out;
  }

  bool check_plainly(PyObject* const* args) const override {
    Keep keep;
    std::vector<PyObject*> current;
    return GlobalState::read() == state_ && check_all(table_, args, current, keep) == -1;
  }

  std::string composition() const override {
    static constexpr const char* kNames[] = {"objects", "dicts",   "types", "pointers",
                                             "items",   "tensors", "facts", "paths"};
    std::array<size_t, std::size(kNames)> counts{};
    size_t plain = 0, in_full = 0;
    for (const Segment& s : segments_) {
      for (const TensorCompare& t : s.tensors) in_full += s.armed && !t.impl;
      plain += s.armed ? s.loose.size() : s.sources.size();
      for (const GuardInstr& i : s.code) counts[static_cast<size_t>(i.op)] += s.armed;
    }
    std::string out;
    const auto add = [&](size_t n, const char* what) {
      if (n) out += (out.empty() ? "" : ", ") + std::to_string(n) + " " + what;
    };
    for (size_t i = 0; i < counts.size(); i++) add(counts[i], kNames[i]);
    if (in_full) out += " (" + std::to_string(in_full) + " tensors in full)";
    add(plain, "one by one");
    add(table_.between().size(), "between objects");
    return out;
  }

  size_t size() const override {
    size_t n = table_.between().size();
    for (const Segment& s : segments_) n += s.armed ? s.code.size() + s.loose.size() : s.sources.size();
    return n;
  }

 private:
  void split() {
    size_t n = table_.sources().size();
    std::vector<int32_t> segment(n, 0);
    std::vector<bool> containers(n, false);  // the path from the argument runs through plain containers only
    segments_.emplace_back();
    for (size_t i = 0; i < n; i++) {
      SourceId id = static_cast<SourceId>(i);
      const Source& s = source(id);
      if (s.parent != kNoSource) positions_[i].depth = positions_[s.parent].depth + 1;
      bool root = s.kind == SourceKind::kArgument;
      int32_t outer = -1;
      if (root) {
        containers[i] = true;
      } else if (s.parent != kNoSource) {
        segment[i] = outer = segment[s.parent];
        containers[i] = containers[s.parent] && is_container_step(s.kind);
        bool has_dict = false;
        for (SourceId c : table_.children_of(id)) has_dict |= source(c).kind == SourceKind::kInstanceDict;
        root = containers[i] && has_dict;
      }
      if (root) {
        segment[i] = static_cast<int32_t>(segments_.size());
        segments_.emplace_back();
        segments_.back().root = id;
        segments_.back().parent = outer;
      }
      segments_[segment[i]].sources.push_back(id);
    }
    // Cheap ones first: most calls that do not match differ in their arguments. A parent still comes before its
    // children.
    std::vector<int32_t> depth(segments_.size(), 0), order(segments_.size());
    for (size_t i = 0; i < segments_.size(); i++) {
      if (segments_[i].parent >= 0) depth[i] = depth[segments_[i].parent] + 1;
      order[i] = static_cast<int32_t>(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return std::pair(depth[a], segments_[a].sources.size()) < std::pair(depth[b], segments_[b].sources.size());
    });
    std::vector<Segment> sorted;
    for (int32_t i : order) sorted.push_back(std::move(segments_[i]));
    segments_ = std::move(sorted);
    for (size_t i = 0; i < segments_.size(); i++)
      for (SourceId id : segments_[i].sources) positions_[id].segment = static_cast<int32_t>(i);
  }

  // The next check looks at everything, one by one, and takes all required objects again.
  void distrust() {
    for (Segment& s : segments_) s.armed = false;
    all_moved_ = true;
    ever_ = false;
  }

  // The object of a source, which may be another one than before.
  void now_is(SourceId id, PyObject* object) {
    if (current_[id] == object) return;
    current_[id] = object;
    const SourcePosition& p = positions_[id];
    if (p.tensor >= 0) segments_[p.segment].tensors[p.tensor].object = object;
    if (moved_.size() < kMaxMoved)
      moved_.push_back(id);
    else
      all_moved_ = true;
  }
  void take_required() {
    required_objects_.resize(required_.size());
    for (size_t i = 0; i < required_.size(); i++) {
      SourcePosition& p = positions_[required_[i]];
      required_twice_ |= p.required >= 0 && p.required != static_cast<int32_t>(i);
      p.required = static_cast<int32_t>(i);
      required_objects_[i] = current_[required_[i]];
    }
  }

  // ---- the plain check of one segment ----

  PyObject* fetch(SourceId id, PyObject* const* args) {
    const Source& s = source(id);
    return table_.resolve(id, s.parent == kNoSource ? nullptr : current_[s.parent], args, keep_);
  }
  bool plain(Segment& s) {  // with the objects that current_ has (build)
    for (SourceId id : s.sources)
      for (int32_t fact : table_.facts_of(id))
        if (!table_.holds(fact, current_[id])) return false;
    return true;
  }
  Failure plain_failure(Segment& s) {
    for (SourceId id : s.sources)
      for (int32_t fact : table_.facts_of(id))
        if (!table_.holds(fact, current_[id])) return table_.failure(fact, current_[id], current_.data());
    return {};
  }
  bool plain(Segment& s, PyObject* const* args) {
    for (SourceId id : s.sources) {
      PyObject* object = fetch(id, args);
      if (!object) return false;
      now_is(id, object);
      for (int32_t fact : table_.facts_of(id))
        if (!table_.holds(fact, object)) return false;
    }
    return true;
  }

  // ---- the armed check ----

  bool check(Segment& s, PyObject* const* args) {
    if (s.armed) {
      Verdict v = Verdict::kUnsure;
      if (s.root == kNoSource) {
        v = run(s, args);
      } else if (fetch(s.root, args) == current_[s.root]) {
        v = run(s, args);
      }
      if (v != Verdict::kUnsure) return v == Verdict::kYes;
      loosen(s);
      s.armed = false;  // current_ is about to be overwritten; a failure half way leaves it mixed
    }
    if (!plain(s, args)) return false;
    if (s.arms > 0 && (s.arms < kMaxArms || ++s.rests % kRest == 0)) arm(*this, s);
    return true;
  }

  // The source that made a compare unsure is another object too often.
  void loosen(Segment& s) {
    const SourceId moved = std::exchange(unsure_, kNoSource);
    if (moved == kNoSource || ++moves_[moved] < kMaxMoves) return;
    size_t below = 0;
    std::unordered_set<SourceId> with{moved};
    for (SourceId id : s.sources)
      if (with.contains(id) || with.contains(source(id).parent)) with.insert(id), ++below;
    moves_[moved] = 0;
    if (below * 4 > s.sources.size()) return;
    loose_[moved] = true;
    s.arms = 1;
  }
  SourceId source_of(const Segment& s, const void* object) const {
    for (SourceId id : s.sources)
      if (current_[id] == object && !loose_[id]) return id;
    return kNoSource;
  }

  Verdict run(Segment& s, PyObject* const* args) {
    size_t done = 0;
    unsure_ = kNoSource;
    checked_type_ = nullptr;
    for (const Phase& p : s.phases) {
      if (const Verdict v = run(s, done, untouched_ ? p.still : p.all, args); v != Verdict::kYes) return v;
      done = untouched_ ? p.still : p.all;
      for (uint32_t i = p.begin; i != p.end; ++i)
        if (const Verdict v = run(s.code[i], args); v != Verdict::kYes) return v;
    }
    for (SourceId id : s.loose) {
      PyObject* now = fetch(id, args);
      if (!now || !facts_hold(id, now)) return Verdict::kNo;
      now_is(id, now);
    }
    for (size_t t = 0;; ++t) {
      t += look_the_same(s.tensors.data() + t, s.tensors.size() - t);
      if (t == s.tensors.size()) break;
      PyObject* now = s.tensors[t].object;
      if (!matches(now, *s.tensor_of[t].spec)) return Verdict::kNo;
      take_look(now, looks_, s.tensors[t]);
    }
    return Verdict::kYes;
  }
  Verdict run(Segment& s, size_t begin, size_t end, PyObject* const* args) {
    Words& w = untouched_ ? s.still : s.all;
    for (size_t i = begin; i != end; i += kBlock) {
      const Word* word = w.words.data() + i;
      uint64_t moved = 0;
#pragma GCC unroll 4
      for (size_t k = 0; k < kBlock; ++k) moved |= read(word[k].where) ^ word[k].is;
      if (!moved) [[likely]]
        continue;
      for (size_t k = i; k < i + kBlock; ++k) {
        const uint64_t now = read(w.words[k].where);
        if (now == w.words[k].is) continue;
        const GuardInstr& in = s.code[static_cast<size_t>(w.of[k])];
        if (const Verdict v = recheck(s, in, args); v != Verdict::kYes) return v;
        const char* where = w.words[k].where;
        if (in.op == GuardOp::kPointer) {  // it may hold again what it held before: both must know
          s.all.words[static_cast<size_t>(in.number >> 32)].is = now;
          s.still.words[static_cast<size_t>(in.number & 0xFFFFFFFF)].is = now;
          continue;
        }
        // All of a type's flags but that it has a tag are as they were.
        if (in.op == GuardOp::kType &&
            where == reinterpret_cast<const char*>(&static_cast<PyTypeObject*>(in.a)->tp_flags) &&
            read(where) != w.words[k].is)
          return Verdict::kUnsure;
        w.words[k].is = read(where);
      }
    }
    return Verdict::kYes;
  }
  Verdict run(GuardInstr& i, PyObject* const* args) {
    if (i.op == GuardOp::kItem) {
      auto* list = static_cast<PyObject*>(i.a);
      if (i.index < PyList_GET_SIZE(list) && PyList_GET_ITEM(list, i.index) == i.b) return Verdict::kYes;
      const Verdict v = recheck_child(static_cast<SourceId>(i.number), args);
      if (v == Verdict::kYes) i.b = current_[i.number];
      return v;
    }
    if (i.op == GuardOp::kFact)
      return table_.holds(static_cast<int32_t>(i.number), current_[i.index]) ? Verdict::kYes : Verdict::kNo;
    PyObject* now = fetch(i.index, args);
    if (!now) return Verdict::kNo;
    if (now != i.a && i.number) {
      unsure_ = i.index;
      return Verdict::kUnsure;
    }
    now_is(i.index, now);
    return Verdict::kYes;
  }
  bool facts_hold(SourceId id, PyObject* object) const {
    for (int32_t fact : table_.facts_of(id))
      if (!table_.holds(fact, object)) return false;
    return true;
  }

  // Memory changed: do the facts that the compare stands for still hold?
  Verdict recheck(Segment& s, const GuardInstr& i, PyObject* const* args) {
    if (i.op == GuardOp::kDict) {
      for (SourceId id : s.dicts[i.index]) {
        if (!facts_hold(id, static_cast<PyObject*>(i.a))) return Verdict::kNo;
        for (SourceId child : table_.children_of(id))
          if (const Verdict v = recheck_child(child, args); v != Verdict::kYes) return v;
      }
      auto* dict = static_cast<PyObject*>(i.a);  // it may be another one at the old address
      if (!compat::tag_all_changes(dict)) return Verdict::kUnsure;
      watched_ = watched_ && watch_dict(dict);
      return Verdict::kYes;
    }
    if (i.op == GuardOp::kType) return recheck_type(s, i, args);
    if (i.op == GuardOp::kPointer && i.level == link_level(i.index)) {
      const Verdict v = recheck_child(i.index, args);
      // A constant is known by its address while it is held, which another one is not.
      if (v != Verdict::kYes || !is_constant(current_[i.index])) return v;
    }
    unsure_ = i.op == GuardOp::kPointer ? i.index : source_of(s, i.a);
    return Verdict::kUnsure;
  }
  Verdict recheck_type(Segment& s, const GuardInstr& i, PyObject* const* args) {
    if (checked_type_ == i.a) return Verdict::kYes;  // two words tell of it
    for (SourceId id : s.types[i.index]) {
      if (id == kNoSource) return Verdict::kUnsure;
      if (!facts_hold(id, static_cast<PyObject*>(i.a))) return Verdict::kNo;
      for (SourceId child : table_.children_of(id))
        if (source(child).kind == SourceKind::kTypeLookup)
          if (const Verdict v = recheck_child(child, args); v != Verdict::kYes) return v;
    }
    if (!armed_type_tag(static_cast<PyTypeObject*>(i.a))) return Verdict::kUnsure;
    checked_type_ = i.a;
    return Verdict::kYes;
  }
  // What hangs off something that is there may be another object now.
  Verdict recheck_child(SourceId child, PyObject* const* args) {
    if (loose_[child]) return Verdict::kYes;  // comes later
    PyObject* now = fetch(child, args);
    if (!now || !facts_hold(child, now)) return Verdict::kNo;
    // A tuple's items have no compares of their own values (a reused address could hide others).
    if (by_address(child) && (now != current_[child] || PyTuple_Check(now))) {
      unsure_ = child;
      return Verdict::kUnsure;
    }
    now_is(child, now);
    return Verdict::kYes;
  }

  // Facts between two objects, densely; those about more are others_.
  struct Pair {
    SourceId a, b;
    bool same;
  };
  std::vector<Pair> pairs_;
  std::vector<int32_t> written_;  // kWritten, which look at many sources: asked of those that moved
  std::vector<int32_t> others_;
  std::vector<PyObject*> required_objects_;  // by required_; borrowed
  std::vector<SourceId> moved_;              // whose object is another one since the last call that matched
  bool all_moved_ = false;                   // or any may be
  bool required_twice_ = false;              // some source
  bool untouched_ = false;                   // what hangs off dicts and types is as the last check found it
  bool ever_ = false;                        // said yes, when watched_changes() were so many
  uint64_t seen_changes_ = 0;
  std::vector<SourceId> required_;
  GlobalState state_;
  std::vector<Segment> segments_;
  std::vector<int32_t> moves_;          // by source: how often it was another object than the compares were made for
  SourceId unsure_ = kNoSource;         // which one was, just now
  const void* checked_type_ = nullptr;  // whose facts hold, though its tag is another one
  Keep keep_;
};

}  // namespace

const uint64_t kDictTick = compat::kDictTick;

std::string Failure::text() const {
  if (guard.empty()) return "";
  return guard + (where.empty() ? "" : ", guarded at " + where) + (now.empty() ? "" : "; now " + now);
}

uint64_t dict_clock() {
  if (!compat::kTagsAreAClock) return 0;
  PyObject* dict = PyDict_New();
  if (!dict) {
    PyErr_Clear();
    return 0;
  }
  const uint64_t now = dict_tag(dict);
  Py_DECREF(dict);
  return now;
}

std::unique_ptr<GuardProgram> build(Observations observations, const std::vector<SourceId>& required) {
  Keep made;  // nobody else holds them, and what they are is read off them
  for (const Source& s : observations.sources)
    if (s.kind == SourceKind::kTensorAttr) made.hold(Py_XNewRef(s.object));
  return std::make_unique<CompiledGuards>(std::move(observations), required);
}

}  // namespace flashover::guards
