// The dispatch key of calls that do not belong to the trace.
#pragma once
#include <c10/core/DispatchKeySet.h>

namespace flashover::trace {

// An input has this key, above everything: a call with it is another thread's, which gets the real tensors
// (recorder.cpp). Excluded in the thread that traces.
constexpr c10::DispatchKey kElsewhere = c10::DispatchKey::TESTING_ONLY_GenericMode;

}  // namespace flashover::trace
