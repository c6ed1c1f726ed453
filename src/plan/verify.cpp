// The rules a plan keeps, checked. Everything the executor relies on without looking is checked here.
#include <algorithm>
#include <limits>

#include "base/check.h"
#include "ops/names.h"
#include "plan/plan.h"
#include "plan/sizes.h"

namespace flashover::plan {

TensorId root(const Plan& p, TensorId t, sym::Expr* elements) {
  sym::Expr offset = 0;
  while (p.tensors[t].storage == StorageKind::kView) {
    offset += p.tensors[t].type.offset;
    t = p.tensors[t].index;
  }
  if (elements) *elements = offset;
  return t;
}

namespace {

// Where all sizes and strides are constants, which programs for new sizes are made of; -1: they are not, or too large.
int64_t constant_span(const TensorType& t) {
  int64_t last = 1;
  for (size_t i = 0; i < t.sizes.size(); ++i) {
    const auto size = t.sizes[i].as_const();
    if (!size) return -1;
    if (*size == 0) return 0;
    if (i >= t.strides.size()) continue;
    const auto stride = t.strides[i].as_const();
    int64_t reach = 0;
    if (!stride || __builtin_mul_overflow(*size - 1, *stride, &reach) || __builtin_add_overflow(last, reach, &last) ||
        last < 0)
      return -1;
  }
  return last;
}

}  // namespace

sym::Expr span(const TensorType& t) {
  if (const int64_t known = constant_span(t); known >= 0) return known;
  sym::Expr last = 1;
  for (size_t i = 0; i < t.sizes.size(); ++i) {
    if (t.sizes[i].is_const(0)) return 0;
    if (i < t.strides.size()) last += (t.sizes[i] - 1) * t.strides[i];
  }
  return last;
}

sym::Expr bytes(const TensorType& t) { return span(t) * info(t.dtype).bytes; }

bool takes_memory(const Step& s) { return s.kind == StepKind::kCall && s.op == op::empty_strided; }

namespace {

// Sums and products of hostile sizes must not overflow before they are compared with anything.
constexpr int64_t kMaxElements = int64_t{1} << 48;

class Verifier {
 public:
  explicit Verifier(const Plan& p) : p_(p) {}

  void run() {
    where_ = "arena ";
    require(!p_.arena_bytes.is_const() || (p_.arena_bytes.value() >= 0 && p_.arena_bytes.value() <= 8 * kMaxElements),
            "arena size out of range");
    for (where_ = "input ", at_ = 0; at_ < p_.inputs.size(); ++at_) {
      check_type(p_.inputs[at_].type);
      require(p_.inputs[at_].kind <= 3, "unknown input kind");
    }
    for (where_ = "kernel k", at_ = 0; at_ < p_.kernels.size(); ++at_) {
      require(in_range(p_.kernels[at_].binary, p_.binaries.size()), "no such binary");
      require(!p_.kernels[at_].symbol.empty(), "no symbol");
      check_cuda(p_.kernels[at_].cuda);
    }
    roots_.resize(p_.tensors.size());
    for (where_ = "tensor t", at_ = 0; at_ < p_.tensors.size(); ++at_) check_tensor(p_.tensors[at_]);
    state_.assign(p_.tensors.size(), Life{});
    for (size_t i = 0; i < p_.tensors.size(); ++i) state_[i].written = p_.tensors[i].storage == StorageKind::kInput;
    for (where_ = "frozen step ", at_ = 0; at_ < p_.frozen_steps.size(); ++at_) check_step(p_.frozen_steps[at_], true);
    for (where_ = "step ", at_ = 0; at_ < p_.steps.size(); ++at_) check_step(p_.steps[at_], false);
    for (where_ = "output ", at_ = 0; at_ < p_.outputs.size(); ++at_) check_output(p_.outputs[at_]);
    where_ = "arena of t";
    check_arena();
  }

 private:
  struct Life {
    bool written = false, released = false;
    int64_t first = std::numeric_limits<int64_t>::max(), last = -1;  // steps that touch it (roots only)
  };

  void require(bool ok, const char* sentence) const {
    if (!ok) throw InternalError("plan: " + where_ + std::to_string(at_) + ": " + sentence);
  }
  static bool in_range(int64_t i, size_t size) { return i >= 0 && static_cast<size_t>(i) < size; }

  void check_type(const TensorType& t) const {
    require(t.dtype != DType::kUndefined && info(t.dtype).bytes > 0, "a dtype is needed");
    require(t.sizes.size() <= 64, "too many dimensions");
    require(t.opaque || t.strides.size() == t.sizes.size(), "as many strides as sizes");
    int64_t elements = 1;
    bool empty = false;
    for (size_t i = 0; i < t.sizes.size(); ++i) {
      const auto size = t.sizes[i].as_const();
      if (!size) continue;
      require(*size >= 0 && *size <= kMaxElements, "size out of range");
      empty |= *size == 0;
      if (t.opaque) continue;
      const auto stride = t.strides[i].as_const();
      if (!stride) continue;
      require(*stride >= 0 && *stride <= kMaxElements, "stride out of range");
      require(*size <= 1 || *stride <= kMaxElements / (*size - 1), "tensor too large");
      if (*size > 1) elements += (*size - 1) * *stride;
      require(elements <= kMaxElements || empty, "tensor too large");
    }
    require(!t.offset.is_const() || (t.offset.value() >= -kMaxElements && t.offset.value() <= kMaxElements),
            "offset out of range");
  }

  void check_tensor(const Tensor& t) {
    check_type(t.type);
    roots_[at_] = {static_cast<TensorId>(at_), 0};
    const bool owner =
        t.storage == StorageKind::kExtern || t.storage == StorageKind::kFrozen || t.storage == StorageKind::kInput;
    require(!t.type.opaque || owner, "only extern calls make opaque tensors");
    if (t.storage != StorageKind::kView) require(t.type.offset.is_const(0), "only a view has an offset");
    switch (t.storage) {
      case StorageKind::kInput:
        require(in_range(t.index, p_.inputs.size()), "no such input");
        break;
      case StorageKind::kOutput:
        require(in_range(t.index, p_.outputs.size()), "no such output");
        require(p_.outputs[t.index].tensor == static_cast<TensorId>(at_), "the output names another owner");
        break;
      case StorageKind::kArena: {
        const auto offset = t.arena_offset.as_const(), bytes = p_.arena_bytes.as_const();
        if (!offset || !bytes) break;
        require(*offset >= 0 && *offset % 64 == 0, "arena offset is a multiple of 64");
        const auto elements = span(t.type).as_const();
        require(!elements || (*offset <= *bytes && *elements * info(t.type.dtype).bytes <= *bytes - *offset),
                "reaches over the end of the arena");
        break;
      }
      case StorageKind::kFrozen:
      case StorageKind::kExtern:
        break;
      case StorageKind::kView: {
        // Bases come first, so chains end.
        require(t.index >= 0 && static_cast<size_t>(t.index) < at_, "the base of a view comes before it");
        require(!p_.tensors[t.index].type.opaque, "no view of an opaque tensor");
        roots_[at_] = {roots_[t.index].id, roots_[t.index].offset + t.type.offset};
        const sym::Expr offset = roots_[at_].offset;
        const Tensor& base = p_.tensors[roots_[at_].id];
        require(!base.type.opaque, "no view of an opaque tensor");
        if (base.storage == StorageKind::kInput)
          break;  // may look at any part of the input's storage, before and behind it
        const auto first = offset.as_const(), own = span(t.type).as_const(), whole = span(base.type).as_const();
        if (!first || !own || !whole || *own == 0) break;
        const int64_t size = info(t.type.dtype).bytes, base_size = info(base.type.dtype).bytes;
        require(*first >= 0 && *first <= kMaxElements && (*first + *own) * size <= *whole * base_size,
                "reaches outside its base");
        break;
      }
    }
  }

  // The launcher hands these numbers to the driver and fills a parameter array without looking again.
  void check_cuda(const CudaLaunch& c) const {
    require((c.threads > 0) == (p_.device.type == DeviceType::kCUDA), "kernels and plan are for one kind of device");
    if (c.threads == 0) return;
    require(c.threads % 32 == 0 && c.threads <= 1024, "a block has 1 to 32 warps");
    require(c.shared >= 0 && c.shared <= 1 << 20 && c.scratch >= 0 && c.scratch <= 1 << 30,
            "shared or scratch size out of range");
    for (size_t i = 0; i < c.grid.size(); ++i)
      require(!c.grid[i].is_const() || (c.grid[i].value() >= 0 && c.grid[i].value() <= (i == 0 ? INT32_MAX : 65535)),
              "grid out of range");
    for (size_t i = 0; i + 1 < c.params.size(); ++i) {
      const auto rank = [](ParamKind k) {
        return k == ParamKind::kI64 ? ParamKind::kI32 : k > ParamKind::kProfileScratch ? ParamKind::kPointer : k;
      };
      require(rank(c.params[i]) <= rank(c.params[i + 1]), "parameters are pointers, then sizes, then scratch");
    }
  }
  void check_params(const Step& s, const CudaLaunch& c) const {
    if (c.threads == 0) return;
    size_t pointers = 0, sizes = 0;
    for (ParamKind k : c.params) {
      if (k == ParamKind::kValue32 || k == ParamKind::kValue64) {
        require(pointers < s.reads.size() && in_range(s.reads[pointers], p_.tensors.size()), "values are read");
        const TensorType& t = p_.tensors[s.reads[pointers]].type;
        require(t.device.type == DeviceType::kCPU && t.sizes.empty() && !t.opaque &&
                    info(t.dtype).bytes == (k == ParamKind::kValue32 ? 4 : 8),
                "a value is that of a 0-d CPU tensor of its size");
        ++pointers;
      }
      pointers += k == ParamKind::kPointer;
      sizes += k == ParamKind::kI32 || k == ParamKind::kI64;
    }
    require(pointers == s.reads.size() + s.writes.size() && sizes == s.sizes.size(),
            "a launch has the kernel's parameters");
    for (sym::Expr e : c.grid) {
      std::vector<sym::Expr> vars;
      sym::collect_vars(e, vars);
      for (sym::Expr v : vars) {
        bool own = false;
        for (size_t i = 0; i < sizes; ++i) own |= v.name() == "n" + std::to_string(i);
        require(own, "grids are over the launch's sizes");
      }
    }
  }

  void touch(TensorId r) {
    const auto step = static_cast<int64_t>(at_);
    state_[r].first = std::min(state_[r].first, step);
    state_[r].last = std::max(state_[r].last, step);
  }

  void check_step(const Step& s, bool frozen) {
    const bool call = s.kind == StepKind::kCall;
    switch (s.kind) {
      case StepKind::kLaunch:
        require(in_range(s.kernel, p_.kernels.size()), "no such kernel");
        check_params(s, p_.kernels[static_cast<size_t>(s.kernel)].cuda);
        break;
      case StepKind::kCall:
        require(!s.op.empty(), "no operator");
        break;
      case StepKind::kCopy:
        require(s.reads.size() == 1 && s.writes.size() == 1, "a copy has one source and one target");
        break;
      case StepKind::kRelease:
        require(s.writes.empty(), "a release writes nothing");
        break;
    }
    for (const Bounds& b : s.bounds) {
      bool read = false;
      for_each_read(s, [&](TensorId t) { read |= t == b.tensor; });
      require(read && in_range(b.tensor, p_.tensors.size()), "bounds are of what a step reads");
      const Tensor& t = p_.tensors[b.tensor];
      const bool index = t.type.dtype == DType::kI64 || t.type.dtype == DType::kI32;
      require(t.storage == StorageKind::kInput && index && !t.type.opaque && b.lo <= b.hi,
              "bounds are of indices in inputs");
    }
    if (s.out_variant) require(call && !s.writes.empty(), "out variants are calls with results");
    check_mutated(s, frozen);
    for_each_read(s, [&](TensorId t) {
      require(in_range(t, p_.tensors.size()), "no such tensor");
      const TensorId r = roots_[t].id;
      const Tensor& base = p_.tensors[r];
      require(state_[r].written, "reads a tensor that no step wrote");
      require(!state_[r].released, "reads a released tensor");
      require(call || s.kind == StepKind::kRelease || !p_.tensors[t].type.opaque,
              "only extern calls read opaque tensors");
      if (frozen) {
        require(base.storage == StorageKind::kFrozen || base.storage == StorageKind::kInput,
                "frozen steps read inputs and frozen tensors");
        require(base.storage != StorageKind::kInput || p_.inputs[base.index].kind != 0,
                "frozen steps read no user input");
      } else {
        require(base.storage != StorageKind::kInput || !p_.inputs[base.index].frozen,
                "reads an input that is said to be frozen");
      }
      if (s.kind == StepKind::kRelease) {
        require(base.storage == StorageKind::kExtern && r == t, "only extern tensors are released");
        state_[t].released = true;
        return;
      }
      if (!frozen) touch(r);
    });
    for (TensorId t : s.writes) {
      require(t >= 0 || (call && !s.out_variant), "only results of calls are dropped");
      if (t < 0) continue;
      require(in_range(t, p_.tensors.size()), "no such tensor");
      const TensorId r = roots_[t].id;
      const Tensor& base = p_.tensors[r];
      require(!state_[r].released, "writes a released tensor");
      if (base.storage == StorageKind::kExtern) {
        const bool fresh = r == t && !state_[r].written;
        require(call ? fresh || s.out_variant || state_[r].written : state_[r].written,
                "an extern tensor is made by an extern call");
        require(!s.out_variant || state_[r].written, "out variants write existing memory");
      }
      if (frozen) {
        require(base.storage == StorageKind::kFrozen, "frozen steps write frozen tensors");
      } else {
        require(base.storage != StorageKind::kFrozen, "only frozen steps write frozen tensors");
        require(base.storage != StorageKind::kInput || !p_.inputs[base.index].frozen,
                "writes an input that is said to be frozen");
      }
      require(call || !p_.tensors[t].type.opaque, "only extern calls write opaque tensors");
      state_[r].written = true;
      if (!frozen) touch(r);
    }
  }

  // The memory may be new: a call is the first that writes it.
  void check_mutated(const Step& s, bool frozen) {
    if (s.mutates == 0) return;
    require(s.kind == StepKind::kCall && !frozen, "only calls that run each time write arguments");
    require(s.args.size() >= 32 || s.mutates >> s.args.size() == 0, "a written argument is missing");
    for_each_mutated(s, [&](TensorId t) {
      require(in_range(t, p_.tensors.size()), "no such tensor");
      const StorageKind storage = p_.tensors[roots_[t].id].storage;
      require(storage != StorageKind::kFrozen, "only frozen steps write frozen tensors");
      require(storage != StorageKind::kInput || !p_.inputs[p_.tensors[roots_[t].id].index].frozen,
              "writes an input that is said to be frozen");
      if (storage != StorageKind::kExtern) state_[roots_[t].id].written = true;
    });
  }

  void check_output(const OutputRef& o) {
    const int kinds = (o.tensor >= 0) + (o.alias_input >= 0) + (o.alias_output >= 0);
    require(kinds == 1, "an output is a tensor, an alias of an input or an alias of an output");
    check_type(o.type);
    if (o.alias_input >= 0) require(in_range(o.alias_input, p_.inputs.size()), "no such input");
    if (o.alias_output >= 0)
      require(static_cast<size_t>(o.alias_output) < p_.outputs.size() && p_.outputs[o.alias_output].tensor >= 0,
              "an alias is a view of an output that owns its memory");
    if (o.tensor < 0) return;
    require(in_range(o.tensor, p_.tensors.size()), "no such tensor");
    const TensorType& t = p_.tensors[o.tensor].type;
    require(t.opaque == o.type.opaque && (!t.opaque || p_.tensors[o.tensor].storage == StorageKind::kExtern),
            "an opaque tensor is returned as it is");
    require(t.dtype == o.type.dtype, "dtype equals the tensor's");
    if (t.opaque) {
      require(o.type.offset.is_const(0), "an opaque tensor is returned as it is");
    } else {
      const auto first = o.type.offset.as_const(), own = span(o.type).as_const(), all = span(t).as_const();
      if (first && own && all && *own != 0)
        require(*first >= 0 && *first <= kMaxElements && *first + *own <= *all, "reaches outside its tensor");
      if (own && *own == 0) require(first && *first >= 0 && *first <= kMaxElements, "offset out of range");
    }
    const TensorId r = roots_[o.tensor].id;
    require(state_[r].written && !state_[r].released, "no step wrote it");
    state_[r].last = static_cast<int64_t>(p_.steps.size());
  }

  // Two arena tensors that are alive at the same time lie apart. A launch may write over what it reads for the last
  // time, at exactly the same place (the kernel's author saw to the order); an extern call may not. While some size is a
  // symbol, offsets are 64 times the number of a block (place_blocks), and another block is another place.
  void check_arena() {
    const bool blocks = !p_.arena_bytes.is_const();
    std::vector<TensorId> ids;
    for (size_t i = 0; i < p_.tensors.size(); ++i) {
      const Tensor& t = p_.tensors[i];
      if (t.storage == StorageKind::kArena && state_[i].last >= 0 && t.arena_offset.is_const() &&
          (blocks || span(t.type).is_const()))
        ids.push_back(static_cast<TensorId>(i));
    }
    const auto from = [&](TensorId t) { return p_.tensors[t].arena_offset.value(); };
    const auto end = [&](TensorId t) { return from(t) + (blocks ? 1 : bytes(p_.tensors[t].type).value()); };
    std::sort(ids.begin(), ids.end(), [&](TensorId a, TensorId b) { return state_[a].first < state_[b].first; });
    std::vector<TensorId> alive;
    for (TensorId t : ids) {
      at_ = static_cast<size_t>(t);
      std::erase_if(alive, [&](TensorId o) { return state_[o].last < state_[t].first; });
      for (TensorId o : alive) {
        if (from(t) >= end(o) || from(o) >= end(t)) continue;
        const auto handover = static_cast<size_t>(state_[t].first);
        const bool in_place = state_[o].last == state_[t].first && state_[o].first < state_[t].first &&
                              from(o) == from(t) && handover < p_.steps.size() &&
                              p_.steps[handover].kind == StepKind::kLaunch;
        require(in_place, "overlaps another live tensor of the arena");
      }
      alive.push_back(t);
    }
  }

  struct Root {  // as root() finds them, but each in one step
    TensorId id;
    sym::Expr offset;
  };

  const Plan& p_;
  std::vector<Root> roots_;
  std::vector<Life> state_;
  std::string where_;
  size_t at_ = 0;
};

}  // namespace

void verify(const Plan& p) {
  verify_part(p);
  check_size_points(p);
}

void verify_part(const Plan& p) { Verifier(p).run(); }

}  // namespace flashover::plan
