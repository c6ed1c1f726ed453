// Counts what tells whether a recording is worth its memory.
#include "run/cuda/graph_cache.h"

#include <ATen/SavedTensorHooks.h>

#include <algorithm>
#include <utility>

#include "base/diagnostics.h"
#include "run/cuda/aligned_inputs.h"
#include "run/cuda/record.h"
#include "run/frozen_tensors.h"
#include "run/tensor_memory.h"

namespace flashover::run {
namespace cuda {

static std::atomic<int64_t> all_replays{0};

GraphCache::GraphCache(const Program& p, FrozenCache& frozen, SubPlans& sub_plans, const LoadOptions& options)
    : program_(p),
      frozen_(frozen),
      sub_plans_(sub_plans),
      graph_plan_(plan_graph(p, options)),
      addresses_(graph_plan_.addresses),
      moved_(p.plan.inputs.size()),
      apart_(graph_plan_.apart) {
  if (!capture_hooks.begin) turn_off("not loaded by Python");
  if (!apart_.empty()) record_sub_plans();
}

bool GraphCache::run(c10::TensorImpl* const* inputs, std::vector<at::Tensor>& outputs, Stream stream) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || is_capturing(stream)) return false;
  for (const Patch& patch : program_.input_patches)
    if (!aligned_enough(program_, patch.index, inputs[patch.index])) return false;
  // The program sees what is saved for the backward: that must be memory which torch's allocator knows.
  if (graph_plan_.any_pool_outputs && !at::SavedTensorDefaultHooks::get_tls_state().stack.empty()) return false;
  Recording* r = find(inputs, stream);
  if (!r && may_record(inputs, stream)) r = record(inputs, stream);
  if (!r) return false;
  std::unique_lock replays(replays_on_current_stream(program_.device), std::try_to_lock);
  if (!replays.owns_lock()) return false;
  replay(program_, graph_plan_, *r, inputs, outputs);
  ++served_;
  replays_.fetch_add(1, std::memory_order_relaxed);
  all_replays.fetch_add(1, std::memory_order_relaxed);
  return true;
}

Recording* GraphCache::find(c10::TensorImpl* const* inputs, Stream stream) {
  const auto outdated = [&](const std::unique_ptr<Recording>& r) {
    if (r->stream != stream || program_.frozen_instructions.empty()) return false;
    sync_frozen(program_, frozen_, *r->frame, inputs, stream);
    return r->frame->frozen != r->frozen;
  };
  recordings_.erase(std::remove_if(recordings_.begin(), recordings_.end(), outdated), recordings_.end());
  for (const std::unique_ptr<Recording>& r : recordings_)
    if (r->stream == stream && r->is_free() && r->suits(inputs)) return r.get();
  return nullptr;
}

// There is no recording for this call.
bool GraphCache::may_record(c10::TensorImpl* const* inputs, Stream stream) {
  // Libraries set up what they need for a thread at their first call there, which cannot be recorded.
  if (no_more_ || warm_.load(std::memory_order_relaxed) != std::this_thread::get_id()) return false;
  if (!pool_inputs_are_there(inputs)) return false;
  for (const std::unique_ptr<Recording>& r : recordings_) {
    if (r->stream != stream) return false;  // one stream at a time
    // The pool outputs of all that suit are alive. Another one costs its memory: only for programs that go on like
    // this.
    if (r->suits(inputs) && (++busy_ < kBusyCalls || recordings_.size() >= kMaxAlive)) return false;
  }
  busy_ = 0;
  note_moves(inputs);
  if (recordings_.size() >= kMaxAlive) recordings_.erase(recordings_.begin());
  if (const int64_t reserved = PoolReservation::total(program_.device);
      graph_plan_.any_pool_outputs && reserved > 0 &&
      reserved + graph_plan_.pool_bytes > memory_bytes(program_.device) / kMostReserved) {
    give_up("graphs of other shapes or functions keep too much memory already");
    return false;
  }
  if (std::exchange(served_, 0) >= kWorthIt) recorded_ = 0;
  if (++recorded_ > kMaxRecordings) {
    recordings_.clear();
    turn_off("memory or parameters that operators read keep changing");
  }
  return on();
}

// Whether inputs that are to be pool outputs of another plan are.
bool GraphCache::pool_inputs_are_there(c10::TensorImpl* const* inputs) {
  for (size_t i = 0; i < addresses_.size(); ++i)
    if (addresses_[i] == InputAddress::kGraphPool && graph_plan_.operator_inputs[i]) {
      // What never is one, since it comes from a part without a graph, gets a buffer in the end.
      moved_[i] = is_pool_output(inputs[i]) ? 0 : moved_[i] + 1;
      if (moved_[i] > kNeverInPool) addresses_[i] = InputAddress::kVaries;
      if (moved_[i] > 0) return false;
    }
  return true;
}

// An input whose address turned out to vary gets a buffer, in the end.
void GraphCache::note_moves(c10::TensorImpl* const* inputs) {
  if (recordings_.empty()) return;
  for (size_t i = 0; i < addresses_.size(); ++i) {
    const void* before = recordings_.back()->fixed[i];
    if (addresses_[i] == InputAddress::kStatic && before && before != data_of(inputs[i]) &&
        ++moved_[i] > kChangesAllowed)
      addresses_[i] = InputAddress::kVaries;
  }
}

Recording* GraphCache::record(c10::TensorImpl* const* inputs, Stream stream) {
  static std::mutex one_at_a_time;
  const std::unique_lock recording(one_at_a_time, std::try_to_lock);
  if (!recording.owns_lock()) return nullptr;
  size_t failed_at = SIZE_MAX;
  try {
    recordings_.push_back(cuda::record(program_, graph_plan_, addresses_, frozen_, inputs, stream, failed_at));
    return recordings_.back().get();
  } catch (const std::exception& e) {
    std::string what = e.what();
    what = "recording failed: " + what.substr(0, what.find('\n'));
    const std::vector<plan::Step>& steps = program_.plan.steps;
    if (failed_at < steps.size() && steps[failed_at].kind == plan::StepKind::kCall && recordings_.empty() &&
        !dynamic_cast<const c10::OutOfMemoryError*>(&e)) {
      apart_.try_emplace(failed_at, what);
      record_sub_plans();
    } else {
      give_up(what);
    }
    return nullptr;
  }
}

// Some steps cannot be part of a graph: those between them are recorded by themselves where they are enough.
void GraphCache::record_sub_plans() {
  if (!on()) return;
  const std::string why = apart_.begin()->second, where = program_.plan.steps[apart_.begin()->first].label;
  const std::optional<Cuts> cuts = cuts_around(program_.plan, apart_);
  if (!cuts || !sub_plans_.may_be_cut()) return turn_off(why);
  try {
    if (!sub_plans_.cut(*cuts, addresses_, graph_plan_.pool_outputs)) return turn_off(why);
  } catch (const std::exception& e) {  // the whole goes on as it is
    return turn_off(why + " (" + e.what() + ")");
  }
  on_.store(false, std::memory_order_relaxed);
  say("CUDA graphs of sub-plans only: " + why + (where.empty() ? "" : ", in " + where));
}

// No more recordings than there are.
void GraphCache::give_up(const std::string& why) {
  no_more_ = true;
  if (recordings_.empty()) turn_off(why);
}

void GraphCache::turn_off(const std::string& why) {
  if (on_.exchange(false)) say("no CUDA graph: " + why);
}

}  // namespace cuda

int64_t graph_replays() { return cuda::all_replays.load(std::memory_order_relaxed); }

}  // namespace flashover::run
