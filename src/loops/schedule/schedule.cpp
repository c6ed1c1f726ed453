// The last step of scheduling: kernels and extern calls become plan steps over tensors with homes.
#include "loops/schedule/schedule.h"
#include "graph/origin.h"
#include "ops/names.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/check.h"
#include "graph/eager_memory.h"
#include "loops/schedule/build.h"
#include "loops/schedule/expand.h"
#include "loops/schedule/failures.h"
#include "loops/schedule/memory.h"
#include "loops/schedule/share.h"
#include "ops/args.h"

namespace flashover::loops {
namespace {

using plan::Home;
using plan::Step;
using plan::StepKind;
using plan::TensorId;

class Planner {
 public:
  Planner(Program& p, const Fused& f, const ScheduleOptions& options)
      : p_(p), g_(p.graph), f_(f), options_(options), tensor_of_(g_.values.size(), -1) {}

  Schedule run() {
    plan_.device = options_.device;
    for (const graph::Input& in : g_.inputs) {
      const auto index = static_cast<int32_t>(plan_.inputs.size());
      plan_.inputs.push_back({g_.type(in.value), static_cast<uint8_t>(in.kind), false});
      tensor_of_[in.value] = add({home_type(in.value), Home::kInput, index});
    }
    find_outputs();
    for (const Unit& u : f_.order) u.node >= 0 ? call(u.node) : launch(f_.groups[u.group]);
    outputs_and_mutations();
    write_inputs_in_place();
    if (options_.processors == 0) write_late(plan_, result_.kernels);
    mark_frozen_inputs();
    if (options_.fuse_products) options_.fuse_products(plan_, result_.kernels);
    write_over_operands();
    reuse_in_place();
    if (options_.processors > 0)
      plan_memory();
    else if (options_.apart > 0 && can_set_apart(uses()))
      set_apart(worth_apart());
    place_slab();
    release();
    return std::move(result_);
  }

 private:
  TensorId add(plan::Tensor t) {
    plan_.tensors.push_back(std::move(t));
    return static_cast<TensorId>(plan_.tensors.size()) - 1;
  }
  TensorType home_type(ValueId v) const {
    TensorType t = p_.facts[v].realised ? p_.memory[v] : g_.type(v);
    t.offset = 0;
    t.wrapped_number = false;
    return t;
  }

  // Which output each value is allocated for. A value returned twice belongs to the first; the second is a copy.
  void find_outputs() {
    for (size_t i = 0; i < g_.outputs.size(); ++i) {
      const graph::Output& o = g_.outputs[i];
      if (o.owns_memory()) output_of_.try_emplace(o.value, static_cast<int32_t>(i));
    }
  }

  TensorId tensor(ValueId v) {
    if (tensor_of_[v] >= 0) return tensor_of_[v];
    if (p_.views[v].base != kNoValue) {
      plan::Tensor t{g_.type(v), Home::kView, tensor(p_.views[v].base)};
      t.type.strides = p_.views[v].strides;
      t.type.offset = p_.views[v].offset;
      t.type.wrapped_number = false;
      return tensor_of_[v] = add(std::move(t));
    }
    plan::Tensor t{home_type(v), Home::kSlab};
    const bool from_extern = !g_.nodes[p_.producers.of[v].node].op->is_prim && !is_clone(v);
    if (p_.facts[v].frozen) {
      t.home = Home::kFrozen;
    } else if (from_extern) {
      t.home = Home::kExtern;
    } else if (auto it = output_of_.find(v); it != output_of_.end()) {
      const auto empty = [](sym::Expr n) { return n.is_const(0); };
      // GPU kernels write to aligned addresses only; what lies elsewhere in its memory is copied there.
      const graph::Output& o = g_.outputs[it->second];
      const bool aligned = plan_.device.type == DeviceType::kCPU || o.kind != graph::Output::Kind::kValue ||
                           sym::known_divisible(o.type.offset * info(t.type.dtype).bytes, 16);
      if (aligned && std::none_of(t.type.sizes.begin(), t.type.sizes.end(), empty))
        return tensor_of_[v] = output_memory(it->second, t.type);
    }
    // Operators promote a number in tensor's clothes differently.
    t.type.wrapped_number = g_.type(v).wrapped_number && !from_extern;
    const bool opaque = t.type.opaque;
    tensor_of_[v] = add(std::move(t));
    if (opaque || from_extern) return tensor_of_[v];
    for (sym::Expr s : plan_.tensors[tensor_of_[v]].type.sizes)
      if (s.is_const(0)) make_empty(v);
    return tensor_of_[v];
  }

  // Memory of output i, and the tensor in it that is written: `type`, which has the output's strides.
  TensorId output_memory(int32_t i, TensorType type) {
    const graph::Output& o = g_.outputs[i];
    type.strides = written_strides(o);
    type.offset = 0;
    const sym::Expr span = plan::span(type);
    sym::Expr offset = 0, memory = span;
    if (o.kind == graph::Output::Kind::kValue && !span.is_const(0)) {
      offset = o.type.offset;
      memory = sym::max(o.memory, offset + span);
    }
    if (offset.is_const(0) && sym::known_eq(memory, span)) return memory_of_[i] = add({type, Home::kOutput, i});
    TensorType all = type;
    all.sizes = {memory};
    all.strides = {1};
    memory_of_[i] = add({std::move(all), Home::kOutput, i});
    type.offset = offset;
    return add({std::move(type), Home::kView, memory_of_[i]});
  }

  // A tensor without elements has no kernel; it still must come from somewhere.
  void make_empty(ValueId v) {
    plan::Tensor& t = plan_.tensors[tensor_of_[v]];
    if (emptied(v)) return;
    emptied_.push_back(v);
    if (t.home != Home::kFrozen) {
      t.home = Home::kExtern;
      t.index = -1;
    }
    (p_.facts[v].frozen ? plan_.frozen_steps : plan_.steps).push_back(empty_step(t.type, tensor_of_[v]));
  }

  // The slab is the device's: what the CPU works on beside it is allocated call by call.
  void make_beside(TensorId to) {
    plan::Tensor& t = plan_.tensors[to];
    if (t.home != Home::kSlab || t.type.device == plan_.device || t.type.opaque) return;
    t.home = Home::kExtern;
    plan_.steps.push_back(empty_step(t.type, to));
  }
  static Step empty_step(const TensorType& t, TensorId to) {
    Step s;
    s.kind = StepKind::kCall;
    s.op = op::empty_strided;
    s.args = {t.sizes, t.strides, t.dtype, Layout::kStrided, t.device, false};
    s.writes = {to};
    return s;
  }

  bool emptied(ValueId v) const { return std::find(emptied_.begin(), emptied_.end(), v) != emptied_.end(); }

  // Whether `have` lies in `whole`, the result of an extern call, as output o lies in its memory.
  static bool lies_as_wanted(const graph::Output& o, const plan::Tensor& have, const plan::Tensor& whole) {
    const sym::Expr offset = o.kind == graph::Output::Kind::kPart ? sym::Expr(0) : o.type.offset;
    const Sizes &strides = written_strides(o), &sizes = have.type.sizes;
    if (!sym::known_eq(have.type.offset, offset) || strides.size() != sizes.size()) return false;
    for (size_t d = 0; d < sizes.size(); ++d)
      if (!sizes[d].is_const(1) && !sym::known_eq(strides[d], have.type.strides[d])) return false;
    // As much memory as in eager.
    return o.memory.is_const(0) || sym::known_eq(o.memory, plan::span(whole.type));
  }

  std::string location(const graph::Node& n) const {
    if (n.location < 0 || n.location >= static_cast<int32_t>(g_.facts.locations.size())) return "";
    const std::string where = graph::without_origin(g_.facts.locations[n.location]);
    return where.empty() ? "" : " " + where;
  }

  // How many of a node's last results are clones that a writing operator filled.
  static size_t clones_of(const graph::Node& n) {
    size_t count = 0;
    if (n.op->on_clones)
      for (size_t i = 0; i < n.args.size() && i < 32; ++i)
        if (n.op->on_clones->mutates >> i & 1) graph::for_each_ref(n.args[i], [&](ValueId) { ++count; });
    return count;
  }
  bool is_clone(ValueId v) const {
    const graph::Node& n = g_.nodes[p_.producers.of[v].node];
    const size_t clones = clones_of(n);
    return std::find(n.outs.end() - static_cast<std::ptrdiff_t>(clones), n.outs.end(), v) != n.outs.end();
  }
  // The operator writes copies of its arguments.
  void call_on_clones(const graph::Node& node) {
    Step s;
    s.kind = StepKind::kCall;
    s.op = node.op->on_clones->name;
    s.label = s.op + location(node);
    const size_t own = node.outs.size() - clones_of(node);
    size_t next = own;
    for (size_t i = 0; i < node.args.size(); ++i) {
      Arg a = node.args[i];
      const bool written = i < 32 && (node.op->on_clones->mutates >> i & 1);
      auto place = [&](Ref& r) {
        if (r.id == kNoValue) return;
        const ValueId original = r.id;
        r.id = tensor(original);
        if (!written) return;
        const ValueId clone = node.outs[next++];
        TensorType type = clone != kNoValue ? home_type(clone) : home_type(original);
        const TensorId to = clone != kNoValue && p_.facts[clone].used ? tensor(clone) : add({type, Home::kSlab});
        make_beside(to);
        Step copy;
        copy.kind = StepKind::kCopy;
        copy.reads = {r.id};
        copy.writes = {to};
        copy.label = "clone";
        plan_.steps.push_back(std::move(copy));
        r.id = to;
      };
      if (auto* r = std::get_if<Ref>(&a)) place(*r);
      if (auto* l = std::get_if<RefList>(&a))
        for (Ref& r : *l) place(r);
      s.args.push_back(std::move(a));
    }
    for (size_t i = 0; i < own; ++i) {
      const ValueId v = node.outs[i];
      s.writes.push_back(v == kNoValue || !p_.facts[v].used ? -1 : tensor(v));
    }
    plan_.steps.push_back(std::move(s));
  }

  void call(int32_t n) {
    const graph::Node& node = g_.nodes[n];
    if (node.op->on_clones) return call_on_clones(node);
    Step s;
    s.kind = StepKind::kCall;
    s.op = node.op->name;
    s.label = node.op->name + location(node);
    s.args = node.args;
    for (Arg& a : s.args) {
      if (auto* r = std::get_if<Ref>(&a)) {
        if (r->id != kNoValue) r->id = tensor(r->id);
      } else if (auto* l = std::get_if<RefList>(&a)) {
        for (Ref& r : *l)
          if (r.id != kNoValue) r.id = tensor(r.id);
      }
    }
    bool frozen = true;
    for (ValueId v : node.outs) {
      // What nobody reads is dropped as it comes: some operators leave such results out.
      s.writes.push_back(v == kNoValue || !p_.facts[v].used ? -1 : tensor(v));
      frozen = frozen && v != kNoValue && p_.facts[v].frozen;
    }
    frozen = frozen && !node.outs.empty();
    if (!frozen && options_.processors == 0) foresee(plan_, s);
    (frozen ? plan_.frozen_steps : plan_.steps).push_back(std::move(s));
  }

  void launch(const Group& group) {
    Built b = build(p_, group, {.gpu = options_.processors > 0});
    if (b.kernel.stages.empty()) return;
    b.kernel.exact = options_.exact;
    verify(b.kernel);
    Step s;
    s.kind = StepKind::kLaunch;
    s.label = b.kernel.label;
    s.operators = b.operators;
    for (size_t i = 0; i < b.params.size(); ++i) {
      const bool written = b.kernel.params[i].written;
      (written ? s.writes : s.reads)
          .push_back(written || b.kernel.params[i].number ? tensor(b.params[i]) : here(b.params[i], group.frozen));
      if (written && plan_.tensors[tensor(b.params[i])].type.device != plan_.device)
        throw Declined("a graph that computes on " + on(plan_.tensors[tensor(b.params[i])].type.device) + " and on " +
                       on(plan_.device));
    }
    const Hash128 key = identity(b.kernel);
    auto [it, fresh] = known_.try_emplace(key, static_cast<int32_t>(result_.kernels.size()));
    // Error texts differ where the code does not; they are in the kernel, so such kernels stay apart.
    if (!fresh && result_.kernels[it->second].errors != b.kernel.errors)
      fresh = true, it->second = static_cast<int32_t>(result_.kernels.size());
    s.kernel = it->second;
    if (fresh) result_.kernels.push_back(std::move(b.kernel));
    if (!group.frozen && options_.processors == 0) foresee(result_.kernels[s.kernel], plan_, s);
    (group.frozen ? plan_.frozen_steps : plan_.steps).push_back(std::move(s));
  }

  static std::string on(Device d) { return d.type == DeviceType::kCPU ? "the CPU" : "a CUDA device"; }
  // A tensor that a kernel reads: a number in a CPU tensor is first copied to the device.
  TensorId here(ValueId v, bool frozen) {
    const TensorId t = tensor(v);
    if (plan_.tensors[t].type.device == plan_.device) return t;
    if (plan_.device.type == DeviceType::kCPU || !g_.type(v).sizes.empty())
      throw Declined("a kernel on " + on(plan_.device) + " reads a tensor on " + on(plan_.tensors[t].type.device));
    if (auto it = here_.find(v); it != here_.end()) return it->second;
    plan::Tensor copy{plan_.tensors[t].type, frozen ? Home::kFrozen : Home::kSlab};
    copy.type.device = plan_.device;
    copy.type.offset = 0;
    Step s;
    s.kind = StepKind::kCopy;
    s.reads = {t};
    s.writes = {add(std::move(copy))};
    s.label = "copy to the device";
    const TensorId made = s.writes[0];
    (frozen ? plan_.frozen_steps : plan_.steps).push_back(std::move(s));
    return here_[v] = made;
  }

  TensorId copy_of(TensorId from, TensorId t) {
    Step s;
    s.kind = StepKind::kCopy;
    s.reads = {from};
    s.writes = {t};
    s.label = "copy";
    plan_.steps.push_back(std::move(s));
    return t;
  }

  void outputs_and_mutations() {
    plan_.outputs.resize(g_.outputs.size());
    for (size_t i = 0; i < g_.outputs.size(); ++i) {
      const graph::Output& o = g_.outputs[i];
      plan::OutputRef& out = plan_.outputs[i];
      out.type = o.type;
      out.type.wrapped_number = false;
      if (o.kind == graph::Output::Kind::kInputAlias) {
        out.alias_input = o.base;
        continue;
      }
      if (o.kind == graph::Output::Kind::kOutputAlias) {
        out.alias_output = o.base;
        continue;
      }
      const TensorId t = tensor(o.value), owner = plan::root(plan_, t);
      const plan::Tensor &have = plan_.tensors[t], &whole = plan_.tensors[owner];
      const bool first = output_of_.at(o.value) == static_cast<int32_t>(i);
      if (first && whole.home == Home::kOutput) {
        out.tensor = owner;
      } else if (first && whole.home == Home::kExtern && (o.type.opaque || lies_as_wanted(o, have, whole))) {
        out.tensor = owner;
      } else {
        TensorType written = have.type;
        copy_of(t, output_memory(static_cast<int32_t>(i), std::move(written)));
        out.tensor = memory_of_[static_cast<int32_t>(i)];
      }
    }
    // All reads of inputs are over here; an input that is another's new value is saved first.
    std::vector<std::pair<TensorId, TensorId>> writes;
    for (const graph::Mutation& m : g_.mutations) {
      TensorId from = tensor(m.value);
      const TensorId to = tensor_of_[g_.inputs[m.input].value];
      if (from == to) continue;
      const plan::Tensor& t = plan_.tensors[from];
      if (t.home == Home::kInput) {
        plan::Tensor save{t.type, Home::kSlab};
        save.type.strides = contiguous_strides(save.type.sizes);
        const TensorId saved = add(std::move(save));
        make_beside(saved);
        from = copy_of(from, saved);
      }
      writes.emplace_back(from, to);
    }
    for (auto [from, to] : writes) {
      Step s;
      s.kind = StepKind::kCopy;
      s.reads = {from};
      s.writes = {to};
      s.label = "write back";
      plan_.steps.push_back(std::move(s));
    }
  }

  // A value that only goes back into an input is made there, when nobody looks at the input's old content any more.
  void write_inputs_in_place() {
    for (size_t n = plan_.steps.size(); n-- > 0;) {
      if (plan_.steps[n].kind != StepKind::kCopy || plan_.steps[n].label != "write back") continue;
      const TensorId from = plan_.steps[n].reads[0], to = plan_.steps[n].writes[0];
      const plan::Tensor &a = plan_.tensors[from], &b = plan_.tensors[to];
      if ((a.home != Home::kSlab && a.home != Home::kExtern) || a.type.opaque || a.type.dtype != b.type.dtype ||
          !same_sizes(a.type.sizes, b.type.sizes) || !same_sizes(a.type.strides, b.type.strides) ||
          !ops::is_dense(b.type.sizes, b.type.strides))
        continue;
      int32_t first_write = -1, last_read = -1;  // of `from`, of `to`
      bool possible = true;
      for (size_t i = 0; i < plan_.steps.size(); ++i) {
        const Step& s = plan_.steps[i];
        if (i == n) continue;
        plan::for_each_read(s, [&](TensorId t) {
          if (plan::root(plan_, t) == to) last_read = static_cast<int32_t>(i);
        });
        for (TensorId t : s.writes) {
          if (t < 0) continue;
          if (plan::root(plan_, t) == to) possible = false;  // a call that mutates it, or another write back
          if (plan::root(plan_, t) == from && first_write < 0) first_write = static_cast<int32_t>(i);
        }
      }
      for (size_t t = 0; t < plan_.tensors.size(); ++t)  // views have addresses of their own
        if (plan_.tensors[t].home == Home::kView && plan::root(plan_, static_cast<TensorId>(t)) == to) possible = false;
      for (const plan::OutputRef& o : plan_.outputs)
        if (o.tensor >= 0 && plan::root(plan_, o.tensor) == from) possible = false;
      if (!possible || first_write < 0 || last_read > first_write) continue;
      Step& maker = plan_.steps[first_write];
      if (a.home == Home::kExtern ? !call_in_place(maker, to) : maker.kind != StepKind::kLaunch) continue;
      bool identity_copy = false;
      if (maker.kind == StepKind::kLaunch && last_read == first_write) {
        const auto in = std::find(maker.reads.begin(), maker.reads.end(), to) - maker.reads.begin();
        const auto out = std::find(maker.writes.begin(), maker.writes.end(), from) - maker.writes.begin();
        const auto out_param = static_cast<int32_t>(maker.reads.size()) + static_cast<int32_t>(out);
        const Kernel& k = result_.kernels[maker.kernel];
        if (std::count(maker.reads.begin(), maker.reads.end(), to) != 1 ||
            !overlay(k, static_cast<int32_t>(in), out_param))
          continue;
        identity_copy = k.params.size() == 2 && k.stages.size() == 1 && k.stages[0].body.size() == 2;
      }
      plan_.tensors[from].home = Home::kView;
      plan_.tensors[from].index = to;
      plan_.steps.erase(plan_.steps.begin() + static_cast<std::ptrdiff_t>(n));
      if (identity_copy) plan_.steps.erase(plan_.steps.begin() + first_write);
    }
  }

  // An operator on the CPU that returns a changed copy of the input `to` (rows put into a large cache) changes the
  // input itself.
  bool call_in_place(Step& call, TensorId to) const {
    constexpr int64_t kLarge = int64_t{1} << 20;
    if (call.kind != StepKind::kCall || call.out_variant || call.writes.size() != 1 || call.args.empty() ||
        options_.processors > 0)
      return false;
    const auto* self = std::get_if<Ref>(&call.args[0]);
    int64_t seen = 0;  // more than once: it reads what it would write
    plan::for_each_read(call, [&](TensorId t) { seen += plan::root(plan_, t) == to; });
    if (!self || self->id != to || seen != 1) return false;
    const size_t dot = call.op.rfind('.');
    const ops::Op* twin = ops::find_existing(call.op.substr(0, dot) + "_" + call.op.substr(dot));
    if (!twin || !twin->functional || twin->functional->name != call.op || twin->mutates != 1 || twin->drops_mutated ||
        twin->nondeterministic)
      return false;
    // Where it may raise, that would have to be undone (failures.h).
    if (plan::may_raise(call.op) && !call.foreseen && bytes_of(static_cast<size_t>(to)) < kLarge) return false;
    call.op = twin->name;
    call.writes = {to};
    return true;
  }

  void mark_frozen_inputs() {
    std::vector<bool> live(plan_.inputs.size());
    auto root_input = [&](TensorId t) {
      t = plan::root(plan_, t);
      return plan_.tensors[t].home == Home::kInput ? plan_.tensors[t].index : -1;
    };
    for (const Step& s : plan_.steps) {
      plan::for_each_read(s, [&](TensorId t) {
        if (int32_t i = root_input(t); i >= 0) live[i] = true;
      });
      for (TensorId t : s.writes)
        if (t >= 0)
          if (int32_t i = root_input(t); i >= 0) live[i] = true;
    }
    for (const plan::OutputRef& o : plan_.outputs)
      if (o.alias_input >= 0) live[o.alias_input] = true;
    for (size_t i = 0; i < plan_.inputs.size(); ++i)
      plan_.inputs[i].frozen = !live[i] && g_.inputs[i].kind != graph::InputKind::kUser;
  }

  // ---- memory
  struct Life {
    int32_t first = -1, last = -1;
  };
  std::vector<Life> lives() const {
    std::vector<Life> life(plan_.tensors.size());
    auto touch = [&](TensorId t, size_t step) {
      Life& l = life[plan::root(plan_, t)];
      if (l.first < 0) l.first = static_cast<int32_t>(step);
      l.last = static_cast<int32_t>(step);
    };
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      plan::for_each_read(plan_.steps[i], [&](TensorId t) { touch(t, i); });
      for (TensorId t : plan_.steps[i].writes)
        if (t >= 0) touch(t, i);
    }
    for (const plan::OutputRef& o : plan_.outputs)
      if (o.tensor >= 0) life[plan::root(plan_, o.tensor)].last = static_cast<int32_t>(plan_.steps.size());
    return life;
  }

  // Whether kernel parameter `out` may lie over parameter `in`: both are touched at one address only, and nothing reads
  // `in` after `out` was stored there.
  static bool overlay(const Kernel& k, int32_t in, int32_t out) {
    std::optional<sym::Expr> address;
    bool stored = false;
    for (const Stage& s : k.stages)
      for (const Instr& i : s.body) {
        if (i.op != Op::k_load && i.op != Op::k_store) continue;
        if (i.slot != in && i.slot != out) continue;
        if (i.slot == in && stored) return false;
        if (i.slot == out) {
          if (i.op == Op::k_load || i.mask != kNone || i.mode != StoreMode::kSet) return false;
          stored = true;
        }
        // Stage loops have their own variables: the same text in two stages is the same element only if their loops
        // agree.
        if (address && !(*address == i.index)) return false;
        address = i.index;
      }
    if (!stored) return false;
    // Every point must have its own address, and all stages that touch it the same loops.
    std::vector<sym::Expr> vars;
    sym::collect_vars(*address, vars);
    for (const Loop& l : k.outer)
      if (std::find(vars.begin(), vars.end(), l.var) == vars.end()) return false;
    const std::vector<Loop>* loops = nullptr;
    for (const Stage& s : k.stages) {
      const bool touches = std::any_of(s.body.begin(), s.body.end(), [&](const Instr& i) {
        return (i.op == Op::k_load || i.op == Op::k_store) && (i.slot == in || i.slot == out);
      });
      if (!touches) continue;
      for (const Loop& l : s.loops)
        if (std::find(vars.begin(), vars.end(), l.var) == vars.end()) return false;
      if (loops) {
        if (loops->size() != s.loops.size()) return false;
        for (size_t i = 0; i < loops->size(); ++i)
          if (!((*loops)[i].var == s.loops[i].var)) return false;
      }
      loops = &s.loops;
    }
    return true;
  }

  // Operators that can write their result over an operand of its type, where nobody reads that afterwards and its
  // memory is the plan's own.
  void write_over_operands() {
    struct Twin {
      std::string_view op;
      size_t operand;
      const char* in_place;
    };
    static constexpr Twin kTwins[] = {
        {"flashover.add_rows.default", 0, "flashover.add_rows_.default"},
    };
    const auto same_type = [](const TensorType& a, const TensorType& b) {
      return a.dtype == b.dtype && a.device == b.device && !a.opaque && !b.opaque && same_sizes(a.sizes, b.sizes) &&
             same_sizes(a.strides, b.strides);
    };
    std::vector<Life> life = lives();
    for (size_t n = 0; n < plan_.steps.size(); ++n) {
      Step& s = plan_.steps[n];
      const auto twin =
          s.kind == StepKind::kCall && !s.out_variant ? std::ranges::find(kTwins, s.op, &Twin::op) : std::end(kTwins);
      if (twin == std::end(kTwins) || s.writes.size() != 1 || s.writes[0] < 0) continue;
      const TensorId over = ops::as_value(s.args[twin->operand]), out = s.writes[0];
      plan::Tensor &memory = plan_.tensors[over], &result = plan_.tensors[out];
      if ((memory.home != Home::kExtern && memory.home != Home::kSlab) || result.home != Home::kExtern || over > out ||
          life[over].first == static_cast<int32_t>(n) || life[over].last != static_cast<int32_t>(n) ||
          !same_type(memory.type, result.type))
        continue;
      int uses = 0;
      plan::for_each_read(s, [&](TensorId t) { uses += plan::root(plan_, t) == over; });
      if (uses != 1) continue;
      const auto output = std::ranges::find(plan_.outputs, out, &plan::OutputRef::tensor);
      if (output != plan_.outputs.end()) {
        output->tensor = over;
        if (memory.home == Home::kSlab)
          memory.home = Home::kOutput, memory.index = static_cast<int32_t>(output - plan_.outputs.begin());
      }
      s.op = twin->in_place;
      s.writes = {over};
      result.home = Home::kView;
      result.index = over;
      life[over].last = life[out].last;
    }
  }

  // What a kernel writes may lie over what it alone still reads: another temporary, or on a GPU what an operator
  // returned (its memory is the plan's own).
  void reuse_in_place() {
    std::vector<Life> life = lives();
    over_.assign(plan_.tensors.size(), -1);
    const auto result_of_operator = [&](TensorId t) {
      const plan::Tensor& tensor = plan_.tensors[t];
      return options_.processors > 0 && tensor.home == Home::kExtern && !tensor.type.opaque &&
             tensor.type.device == plan_.device;
    };
    for (size_t n = 0; n < plan_.steps.size(); ++n) {
      const Step& s = plan_.steps[n];
      // (Products read whole rows and columns while they write.)
      if (s.kind != StepKind::kLaunch || static_cast<size_t>(s.kernel) >= result_.kernels.size()) continue;
      const Kernel& k = result_.kernels[s.kernel];
      std::vector<TensorId> used;
      for (size_t w = 0; w < s.writes.size(); ++w) {
        const TensorId out = s.writes[w];
        const auto out_param = static_cast<int32_t>(s.reads.size() + w);
        if (plan_.tensors[out].home != Home::kSlab || life[out].first != static_cast<int32_t>(n) || over_[out] >= 0)
          continue;
        for (size_t r = 0; r < s.reads.size(); ++r) {
          const TensorId in = s.reads[r];
          sym::Expr offset = 0;
          const TensorId root = plan::root(plan_, in, &offset);
          const bool returned = result_of_operator(root) && offset.is_const(0) && root < out &&
                                plan_.tensors[root].type.dtype == plan_.tensors[out].type.dtype;
          if (!returned && plan_.tensors[in].home != Home::kSlab) continue;
          if (life[root].last != static_cast<int32_t>(n) || life[root].first == static_cast<int32_t>(n)) continue;
          if (std::count_if(s.reads.begin(), s.reads.end(), [&](TensorId t) { return plan::root(plan_, t) == root; }) !=
                  1 ||
              std::find(used.begin(), used.end(), root) != used.end())
            continue;
          if (plan_.tensors[in].type.dtype != plan_.tensors[out].type.dtype ||
              !(k.params[r].numel == k.params[out_param].numel))
            continue;
          if (!overlay(k, static_cast<int32_t>(r), out_param)) continue;
          used.push_back(root);
          if (returned) {
            if (!sym::known_le(plan::span(plan_.tensors[out].type), plan::span(plan_.tensors[root].type))) continue;
            plan::Tensor& over = plan_.tensors[out];
            over.home = Home::kView;
            over.index = root;
            over.type.offset = 0;
            life[root].last = life[out].last;
          } else {
            over_[out] = in;
          }
          break;
        }
      }
    }
  }

  // ---- what is allocated by itself
  // The slab is held for the whole call, beside what operators allocate, and so are results. Where these have their
  // peaks at different times, large ones are allocated when they begin, and temporaries freed when they end: the
  // allocator's cache makes that cheap.
  struct Uses {
    std::vector<Life> life;
    std::vector<TensorId> first_of;  // who shares memory with whom, by the first of them
    std::vector<int32_t> last;       // of those
  };
  Uses uses() const {
    Uses u{lives(), std::vector<TensorId>(plan_.tensors.size()), std::vector<int32_t>(plan_.tensors.size(), -1)};
    for (size_t t = 0; t < plan_.tensors.size(); ++t) {
      TensorId first = static_cast<TensorId>(t);
      while (over_[first] >= 0) first = over_[first];
      u.first_of[t] = first;
      u.last[first] = std::max(u.last[first], u.life[t].last);
    }
    return u;
  }
  int64_t bytes_of(size_t t) const { return plan::bytes(plan_.tensors[t].type).value(); }
  bool slab_root(const Uses& u, size_t t) const {
    return plan_.tensors[t].home == Home::kSlab && u.life[t].first >= 0 && u.first_of[t] == static_cast<TensorId>(t);
  }
  bool late_output(const Uses& u, size_t t) const {
    return (options_.late_outputs || options_.apart > 0) && plan_.tensors[t].home == Home::kOutput &&
           u.life[t].first >= 0 && plan_.tensors[t].type.device == plan_.device;
  }
  bool is_apart(const Uses& u, size_t t, int64_t large) const {
    return (slab_root(u, t) || late_output(u, t)) && bytes_of(t) >= large;
  }

  // The most bytes at one time if what is `large` is apart and the tensors in `thawed` are temporaries.
  int64_t peak(const Uses& u, int64_t large, const std::vector<TensorId>& thawed = {}) const {
    const std::vector<int64_t> all = over_time(u, large, thawed);
    return *std::max_element(all.begin(), all.end());
  }
  std::vector<int64_t> over_time(const Uses& u, int64_t large, const std::vector<TensorId>& thawed = {}) const {
    const size_t steps = plan_.steps.size();
    std::vector<int64_t> change(steps + 2);
    int64_t always = 0;
    std::vector<Lifetime> slab;
    for (size_t t = 0; t < plan_.tensors.size(); ++t) {
      const plan::Tensor& tensor = plan_.tensors[t];
      if (tensor.type.opaque || tensor.type.device != plan_.device) continue;
      const bool thaws = std::find(thawed.begin(), thawed.end(), static_cast<TensorId>(t)) != thawed.end();
      if (u.life[t].first < 0) continue;
      if ((tensor.home == Home::kFrozen && !thaws) || (tensor.home == Home::kOutput && !is_apart(u, t, large))) {
        always += bytes_of(t);
      } else if (tensor.home == Home::kExtern || is_apart(u, t, large) || (thaws && bytes_of(t) >= large)) {
        change[u.life[t].first] += bytes_of(t);
        change[std::min<size_t>(std::max(u.last[t], u.life[t].last), steps) + 1] -= bytes_of(t);
      } else if (slab_root(u, t) || thaws) {
        slab.push_back({bytes_of(t), u.life[t].first, std::max(u.last[t], u.life[t].last)});
      }
    }
    int64_t now = always + place(slab);
    for (int64_t& c : change) c = now += c;
    return change;
  }

  static constexpr int64_t kAllTogether = INT64_MAX, kLarge = int64_t{4} << 20, kLess = int64_t{1} << 20;
  void plan_memory() {
    constexpr int64_t kWorth = int64_t{16} << 20;
    const Uses u = uses();
    if (!can_set_apart(u)) return;
    int64_t large = kAllTogether, bytes = peak(u, large);
    int64_t given = 0;
    for (const plan::InputSpec& i : plan_.inputs)
      if (!i.type.opaque && i.type.device == plan_.device && plan::span(i.type).is_const())
        given += plan::bytes(i.type).value();
    // Eager's variables live longer than their last use.
    const int64_t limit =
        options_.memory_limit > 0 ? options_.memory_limit + (options_.memory_limit + given) / 1024 : 0;
    const auto over = [&] { return limit > 0 && bytes > limit; };
    for (int64_t size : {kLarge, kLess}) {
      const int64_t then = peak(u, size);
      if (size == kLarge && then + kWorth <= bytes ? true : over() && then < bytes) large = size, bytes = then;
    }
    // A slab would have to hold what is thawed; by itself it is there for a while only.
    if (over() && !thaw(u, large, bytes - limit) && large == kAllTogether && thaw(u, kLess, bytes - limit))
      large = kLess;
    if (large != kAllTogether) set_apart(large);
    if (options_.working_limit > 0)
      split_convolutions(options_.working_limit + (options_.working_limit + given) / 1024);
  }

  void split_convolutions(int64_t limit) {
    constexpr int64_t kParts = 4, kWorth = int64_t{8} << 20;
    const Uses u = uses();
    const std::vector<int64_t> held = over_time(u, kAllTogether);
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      Step& s = plan_.steps[i];
      if (s.kind != StepKind::kCall || s.op != op::convolution || s.writes.size() != 1 || s.writes[0] < 0 ||
          !is_none(s.args[2]))
        continue;
      const TensorType& input = plan_.tensors[ops::as_value(s.args[0])].type;
      const int64_t own = graph::working_bytes(s.op, s.args, input, plan_.tensors[ops::as_value(s.args[1])].type,
                                               plan_.tensors[s.writes[0]].type);
      int64_t parts = 1;
      while (parts < kParts && held[i] + own / parts > limit && own / parts >= kWorth) parts *= 2;
      if (parts == 1 || input.sizes[0].value() < parts) continue;
      s.op = "flashover.convolution_in_parts.default";
      s.args = {s.args[0], s.args[1], s.args[3], s.args[4], s.args[5], s.args[8], sym::Expr(parts)};
    }
  }

  bool can_set_apart(const Uses& u) const {
    for (size_t t = 0; t < plan_.tensors.size(); ++t) {  // views come behind their bases
      if (u.first_of[t] > static_cast<TensorId>(t)) return false;
      if (plan_.tensors[t].home != Home::kSlab && plan_.tensors[t].home != Home::kOutput) continue;
      if (!plan::span(plan_.tensors[t].type).is_const()) return false;
    }
    return true;
  }

  // CPU: smaller blocks than asked for, where they make out much of what the plan holds (loops over small tensors).
  int64_t worth_apart() const {
    constexpr int64_t kSmallest = int64_t{4} << 10, kPart = 50;
    const Uses u = uses();
    int64_t given = 0;
    for (const plan::InputSpec& i : plan_.inputs)
      if (!i.type.opaque && plan::span(i.type).is_const()) given += plan::bytes(i.type).value();
    int64_t large = options_.apart;
    const int64_t least = peak(u, kSmallest);
    while (large > kSmallest && peak(u, large) > least + (least + given) / kPart) large /= 2;
    return large;
  }

  void set_apart(int64_t large) {
    const Uses u = uses();
    const size_t steps = plan_.steps.size();
    std::vector<std::vector<TensorId>> begins(steps);
    std::vector<bool> apart(plan_.tensors.size());
    for (size_t t = 0; t < plan_.tensors.size(); ++t) {
      apart[t] = is_apart(u, t, large);
      if (apart[t]) begins[u.life[t].first].push_back(static_cast<TensorId>(t));
    }
    for (size_t t = 0; t < plan_.tensors.size(); ++t) {
      plan::Tensor& tensor = plan_.tensors[t];
      const TensorId first = u.first_of[t];
      if (tensor.home != Home::kSlab || first == static_cast<TensorId>(t) || !apart[first]) continue;
      tensor.home = Home::kView;
      tensor.index = first;
      over_[t] = -1;
    }
    std::vector<Step> with;
    for (size_t s = 0; s < steps; ++s) {
      for (TensorId t : begins[s]) {
        plan_.tensors[t].home = Home::kExtern;
        plan_.tensors[t].index = -1;
        with.push_back(empty_step(plan_.tensors[t].type, t));
      }
      with.push_back(std::move(plan_.steps[s]));
    }
    plan_.steps = std::move(with);
  }

  // Casts of parameters that would be kept from call to call are made where they are first read, until the plan needs
  // `excess` bytes less. Those that do not lie in memory at the peak are as good as gone.
  bool thaw(const Uses& u, int64_t large, int64_t excess) {
    std::vector<TensorId> candidates, chosen;
    std::vector<int32_t> made_by(plan_.tensors.size(), -1);
    std::vector<bool> needed(plan_.tensors.size());  // by other frozen steps, or a result
    const auto root = [&](TensorId t) { return plan::root(plan_, t); };
    for (const Step& s : plan_.frozen_steps) plan::for_each_read(s, [&](TensorId t) { needed[root(t)] = true; });
    for (const plan::OutputRef& o : plan_.outputs)
      if (o.tensor >= 0) needed[root(o.tensor)] = true;
    std::vector<bool> written(plan_.tensors.size());
    for (const Step& s : plan_.steps) plan::for_each_write(s, [&](TensorId t) { written[root(t)] = true; });
    int64_t frozen = 0;
    for (size_t i = 0; i < plan_.frozen_steps.size(); ++i) {
      const Step& s = plan_.frozen_steps[i];
      if (s.kind != StepKind::kLaunch || s.writes.size() != 1) continue;
      const TensorId t = s.writes[0];
      if (plan_.tensors[t].home != Home::kFrozen || u.life[t].first < 0) continue;
      frozen += bytes_of(t);
      if (s.reads.size() != 1 || plan_.tensors[s.reads[0]].home != Home::kInput || written[s.reads[0]] || needed[t] ||
          bytes_of(t) < kLess)
        continue;
      made_by[t] = static_cast<int32_t>(i);
      candidates.push_back(t);
    }
    // Making one is a pass over it and a launch: not for most of them.
    const int64_t most = frozen / 4;
    int64_t taken = 0, before = peak(u, large);
    while (excess > 0 && !candidates.empty()) {
      // The smallest that is enough, else the largest.
      auto best = candidates.end();
      for (auto c = candidates.begin(); c != candidates.end(); ++c) {
        if (best == candidates.end()) {
          best = c;
          continue;
        }
        const int64_t a = bytes_of(*c), b = bytes_of(*best);
        if (b >= excess ? a >= excess && a < b : a > b) best = c;
      }
      const TensorId t = *best;
      candidates.erase(best);
      if (taken + bytes_of(t) > most) continue;
      chosen.push_back(t);
      const int64_t then = peak(u, large, chosen);
      if (before - then < bytes_of(t) / 2) {
        chosen.pop_back();
        continue;
      }
      taken += bytes_of(t);
      excess -= before - then;
      before = then;
    }
    if (chosen.empty()) return false;
    std::vector<std::vector<int32_t>> begins(plan_.steps.size());
    std::vector<bool> gone(plan_.frozen_steps.size());
    for (TensorId t : chosen) {
      begins[u.life[t].first].push_back(made_by[t]);
      gone[made_by[t]] = true;
      plan_.tensors[t].home = Home::kSlab;
    }
    std::vector<Step> with, still;
    for (size_t s = 0; s < plan_.steps.size(); ++s) {
      for (int32_t i : begins[s]) with.push_back(std::move(plan_.frozen_steps[i]));
      with.push_back(std::move(plan_.steps[s]));
    }
    for (size_t i = 0; i < gone.size(); ++i)
      if (!gone[i]) still.push_back(std::move(plan_.frozen_steps[i]));
    plan_.steps = std::move(with);
    plan_.frozen_steps = std::move(still);
    mark_frozen_inputs();
    return true;
  }

  void place_slab() {
    const std::vector<Life> life = lives();
    std::vector<Lifetime> blocks;
    std::vector<int32_t> block_of(plan_.tensors.size(), -1);
    // A tensor over another shares its block; the one below comes first in time.
    std::vector<TensorId> order;
    for (size_t t = 0; t < plan_.tensors.size(); ++t)
      if (plan_.tensors[t].home == Home::kSlab && life[t].first >= 0) order.push_back(static_cast<TensorId>(t));
    std::stable_sort(order.begin(), order.end(), [&](TensorId a, TensorId b) { return life[a].first < life[b].first; });
    for (TensorId t : order) {
      const plan::Tensor& tensor = plan_.tensors[t];
      const int64_t bytes = plan::bytes(tensor.type).value();
      if (static_cast<size_t>(t) < over_.size() && over_[t] >= 0) {
        block_of[t] = block_of[over_[t]];
        blocks[block_of[t]].last = std::max(blocks[block_of[t]].last, life[t].last);
        continue;
      }
      block_of[t] = static_cast<int32_t>(blocks.size());
      blocks.push_back({bytes, life[t].first, life[t].last});
    }
    plan_.slab_bytes = place(blocks);
    for (TensorId t : order) plan_.tensors[t].slab_offset = blocks[block_of[t]].offset;
    // What nobody touches any more (of steps that went away) needs no place.
    for (size_t t = 0; t < plan_.tensors.size(); ++t)
      if (plan_.tensors[t].home == Home::kSlab && life[t].first < 0) plan_.tensors[t].home = Home::kExtern;
  }

  // Extern results go when their last reader has run.
  void release() {
    const std::vector<Life> life = lives();
    std::vector<Step> steps;
    std::vector<std::vector<TensorId>> dying(plan_.steps.size());
    for (size_t t = 0; t < plan_.tensors.size(); ++t)
      if (plan_.tensors[t].home == Home::kExtern && life[t].last >= 0 &&
          life[t].last < static_cast<int32_t>(plan_.steps.size()))
        dying[life[t].last].push_back(static_cast<TensorId>(t));
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      steps.push_back(std::move(plan_.steps[i]));
      if (dying[i].empty()) continue;
      Step s;
      s.kind = StepKind::kRelease;
      s.reads = std::move(dying[i]);
      steps.push_back(std::move(s));
    }
    plan_.steps = std::move(steps);
  }

  struct HashOfHash {
    size_t operator()(const Hash128& h) const { return std::hash<Hash128>()(h); }
  };
  Schedule result_;
  plan::Plan& plan_ = result_.plan;
  Program& p_;
  const graph::Graph& g_;
  const Fused& f_;
  const ScheduleOptions& options_;
  std::vector<TensorId> tensor_of_;
  std::map<ValueId, int32_t> output_of_;
  std::map<int32_t, TensorId> memory_of_;  // by output
  std::map<ValueId, TensorId> here_;
  std::vector<ValueId> emptied_;
  std::unordered_map<Hash128, int32_t> known_;
  std::vector<TensorId> over_;
};

}  // namespace

Schedule schedule(const graph::Graph& core, const ScheduleOptions& options) {
  const graph::Graph expanded = expand(core, {options.threads, options.split_numel, options.processors});
  Program program = make_items(expanded);
  std::string items = options.want_text ? print(program) : std::string();
  const Fused fused = fuse(program, options);
  Schedule s = Planner(program, fused, options).run();
  if (options.share && options.processors == 0) share_kernels(s);
  if (options.want_text) s.text = items + print(fused, program);
  return s;
}

}  // namespace flashover::loops
