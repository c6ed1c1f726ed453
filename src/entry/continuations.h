// Compiles what is left of a call after a graph break, and what it calls there: finds or makes the entry for it.
#pragma once
#include "entry/callable.h"
#include "entry/data_cases.h"
#include "entry/run_entry.h"
#include "frame/resume.h"

namespace flashover::entry {

class CompiledContinuations final : public frame::Continuations {
 public:
  explicit CompiledContinuations(CallableState& s) : s_(s) {}
  bool accepts(PyObject* function) override;
  Outcome resume(const frame::CaptureRequest& resumption, PyObject* code, PyObject** result,
                 std::vector<frame::FrameState>& frames) override;
  bool gives_up(const frame::CaptureRequest& resumption, PyObject* code, const char* reason) override;

 private:
  // CPython runs what is left of this frame. Where it has no tensors at hand, and is not the compiled function's own,
  // that is counted only: most such functions (loggers, progress bars) have nothing to compile.
  Outcome leave(const frame::CaptureRequest& resumption, PyObject* code, EagerCause cause, const std::string& reason,
                const std::string& where);
  Outcome enter(const frame::CaptureRequest& resumption, PyObject* code, PyObject** result,
                std::vector<frame::FrameState>& frames);
  std::shared_ptr<Continuation> begin(const std::string& site, const frame::CaptureRequest& resumption, PyObject* code,
                                      const PerCallIdentity& per_call);
  // Modules that were made and died in the course of one call will have another identity in the next one, too. What was
  // compiled for modules that are gone is dropped.
  void find_per_call_modules(const std::string& site, const frame::CaptureRequest& resumption,
                             PerCallIdentity& per_call);
  EntryPtr make(Continuation& here, const frame::CaptureRequest& resumption, PyObject* code, PerCallIdentity& per_call,
                SourceObjects& objects, Outcome& failed_how);
  // Where sizes that follow from data are otherwise than the versions that ran take them. Null: none serves the frame,
  // or an error is set.
  EntryPtr other_case(Continuation& here, const frame::CaptureRequest& resumption, PyObject* code,
                      const PerCallIdentity& per_call, SourceObjects& objects, const DataCase& seen);
  // By what is known so far. sizes: lives as long as it.
  static frame::CaptureRequest request_of(const Continuation& here, const frame::CaptureRequest& resumption,
                                          const PerCallIdentity& per_call,
                                          const std::optional<frame::VaryingSizes>& sizes);
  std::string name_at(const std::string& where) const;

  // Parts of the call in a row without an operator. Behind many of them (pandas breaks the graph some hundred times)
  // only the function's own frame and those with tensors at hand are taken on.
  int fruitless_ = 0;
  bool computes_ = false;  // the part that was resumed last had operators
  bool eager_ = false;     // the frame resumed last was given up, though there is something to compile
  CallableState& s_;
};

}  // namespace flashover::entry
