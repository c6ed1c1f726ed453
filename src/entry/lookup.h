// Which entry serves a call, and what is learned when none does: entries are those of one site (a function's calls, or
// where calls resume after a graph break), most recently used first.
#pragma once
#include <Python.h>

#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "entry/callable.h"
#include "entry/data_cases.h"
#include "entry/run_entry.h"

namespace flashover::entry {

// Code that many modules run has entries for each of them, and the limit is on how often it is compiled for one of
// them. module_in: the module that a slot holds, or null; modules_among: those among the arguments, as a key.
PyObject* module_in(PyObject* slot);
std::string modules_among(PyObject* const* slots, size_t count, const PerCallIdentity& per_call);
void note_modules(Entry& e, PyObject* const* slots, size_t count, const PerCallIdentity& per_call);
// The entries for the same modules; entries of modules that are gone leave `entries`.
std::vector<EntryPtr> entries_of(std::vector<EntryPtr>& entries, const std::string& modules);

// Which objects that entries are guarded on by identity have another one now, and will have again: classes that were
// made in a function; `modules`: modules too.
void note_per_call_identity(const std::vector<EntryPtr>& entries, PyObject* const* slots, bool modules,
                            std::unordered_set<std::string>& out);
// Modules that were arguments of one call and died after it.
void note_per_call_arguments(CallableState& s, PyObject* const* slots, size_t count);
// Which numbers that entries are guarded on have another value now.
void note_varying_numbers(const std::vector<EntryPtr>& entries, PyObject* const* slots,
                          std::unordered_set<std::string>& out);
// Which sizes of tensors have. False: none, nor do guards on sizes fail.
bool note_varying_sizes(const std::vector<EntryPtr>& entries, PyObject* const* slots, frame::VaryingSizes& out);

// The entry for these arguments; its objects in `objects`. clock: the dicts' before this call made any of its own.
EntryPtr find_entry(std::vector<EntryPtr>& entries, PyObject* const* slots, SourceObjects& objects, uint64_t clock = 0);
// The same for a call that versions have run for which do not serve it; else makes one. Null: none serves it, or an
// error is set.
EntryPtr find_case(std::vector<EntryPtr>& entries, PyObject* const* slots, SourceObjects& objects, const DataCase& seen,
                   const std::function<EntryPtr()>& make);
// Why none of these entries is the one for such a call.
Recompile why_recompile(const std::vector<EntryPtr>& entries, PyObject* const* slots, const Settings& settings);
// A version that is there no more, and leaves `entries`: the process that it was being compiled in has forked this one,
// or its sizes could not be symbols and are numbers from now on.
bool drop_stale(std::vector<EntryPtr>& entries, const EntryPtr& entry, SymbolicSizes& sizes, const Settings& settings);
// Compiles and takes note of it; null with an error set when the call must raise.
EntryPtr make_entry(CallableState& s, const Settings& settings, const std::string& name,
                    const frame::CaptureRequest& request, Recompile why, int64_t& made);

// Where the option says nothing, torch._dynamo.config.recompile_limit counts as soon as torch._dynamo is in use.
void look_up_limit(CallableState& s);
// What makes it an error to compile something again; null: nothing does.
const char* what_forbids_recompiling();
std::string limit_text(const std::string& name, size_t limit, const std::string& failed);

inline const std::string kBusy = "something else is being compiled in the background";
inline const std::string kChangedMeanwhile = "the program changed what was captured while it was compiled";

}  // namespace flashover::entry
