"""Mutation testing: puts faults into a copy of the sources, one at a time, and runs the tests until one fails.

    cd tests/mutation_testing
    python mutation_testing.py [--tree FOLDER] [--only WORDS] [--part K/N] [--limit SECONDS] [--list | --check]

The copy (by default the folder `flashover-with-faults` beside this repository) gets every fault below, each behind
`fault("its name")`, which is true when the environment variable FLASHOVER_FAULT says that name; it is built once. The
sources here hold nothing of this. Each fault then has the tests of its group run against it, in processes of their own,
until one fails, crashes or takes too long. The table goes to docs/benchmarks/mutation-testing.md. Exit status 1: a fault that nothing caught.
"""

# ruff: noqa: E501 (pieces of C++ as they stand)
from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

HEADER = """#pragma once
#include <cstdlib>
#include <cstring>
inline bool fault(const char* name) {
  static const char* const on = std::getenv("FLASHOVER_FAULT");
  return on != nullptr && std::strcmp(on, name) == 0;
}
"""

FIRST = "tests/mutation_testing/test_each_mechanism.py"
GUARDS = ["tests/guards/test_guards_soundness.py", "tests/guards/test_guards.py", "tests/fuzz/test_fuzz_guards.py"]
EFFECTS = [
    "tests/language/test_frame_capture.py",
    "tests/language/test_language.py",
    "tests/breaks/test_breaks.py",
    "tests/fuzz/test_fuzz_guards.py",
]
BREAKS = [
    "tests/breaks/test_breaks.py",
    "tests/language/test_language.py",
    "tests/language/test_language_programs.py",
    "tests/fuzz/test_fuzz_metamorphic.py",
    "tests/fuzz/test_fuzz_inserted.py",
    "tests/language/test_objects.py",
    "tests/language/test_effects.py",
    "tests/language/test_exceptions.py",
    "tests/language/test_warnings_and_stacks.py",
]
TENSORS = [
    "tests/trace/test_trace_mutation.py",
    "tests/strides/test_result_layout.py",
    "tests/fuzz/test_fuzz_programs.py",
    "tests/strides/test_shared_memory.py",
    "tests/training/test_gradients.py",
    "tests/ops/test_ops_whole.py",
    "tests/errors/test_checks_that_raise.py",
    "tests/language/test_torch_functions.py",
    "tests/cpu/test_fused_kernels.py",
    "tests/cpu/test_packed_linear.py",
]
TRAINING = [
    "tests/training/test_training.py",
    "tests/training/test_writes_under_autograd.py",
    "tests/training/test_differentiable_results.py",
    "tests/training/test_saved_tensors.py",
    "tests/training/test_backward_hooks.py",
    "tests/training/test_checkpoints.py",
]
FACE = ["tests/python/test_face.py", "tests/guards/test_numbers.py", "tests/guards/test_guards_soundness.py"]
REST = [
    "tests/lifetime/test_lifetime.py",
    "tests/python/test_explain.py",
    "tests/training/test_optimizers.py",
    "tests/trace/test_trace_joint.py",
]


@dataclass(frozen=True)
class Fault:
    name: str
    tests: list[str]  # the likely ones, first; the other groups follow
    edits: list[tuple[str, str, str]]  # file, text that stands there once, what stands there in the copy


def each(file: str, anchor: str, tests: list[str], names: dict[str, str]) -> list[Fault]:
    """Faults at one place: `names` maps the fault to the statement that goes before `anchor`."""
    return [Fault(name, tests, [(file, anchor, code + "\n" + anchor)]) for name, code in names.items()]


FACTS = ["Identity", "TypeIs", "Equals", "Length", "DictLacks", "TypeLacks", "TypeVersion", "Tensor",
         "SameObject", "Distinct", "Written", "NotAliases", "CodeIs", "AddressIs", "Specials", "SubclassIs", "CallGives"]  # fmt: skip
FLAGS = {
    "grad mode": "c10::GradMode::is_enabled()",
    "inference mode": "c10::InferenceMode::is_enabled()",
    "autocast on cpu": "autocast::is_enabled(at::kCPU)",
    "deterministic algorithms": "context().deterministicAlgorithms()",
    "default dtype": "small(c10::get_default_dtype_as_scalartype())",
}
EFFECT_KINDS = "SetItem DiscardItem SetAttr DelAttr ListReplace ListAppend SetReplace DictReplace CellSet DequeReplace"
UNDO_KINDS = "DictItem DictAll List Append Set Deque Cell Slot ClassAttribute"

OBSERVE, CONTENTS = "src/frame/observe.cpp", "src/frame/contents.cpp"
PROGRAM, ARMING, TENSOR = "src/guards/program.cpp", "src/guards/arming.cpp", "src/guards/tensors.cpp"
STATE = "src/guards/global_state.cpp"
REBUILD, RECONSTRUCTION, JOURNAL = "src/frame/rebuild.cpp", "src/frame/reconstruction.cpp", "src/frame/journal.cpp"
RESUME, COMPILE = "src/frame/resume.cpp", "src/entry/compile_call.cpp"
CONTINUATIONS, DISPATCH = "src/entry/continuations.cpp", "src/entry/dispatch.cpp"
FUNCTIONAL, WRITTEN = "src/graph/passes/functionalize.cpp", "src/run/written.cpp"

FAULTS: list[Fault] = [
    # What is observed and not guarded.
    *each(
        OBSERVE,
        "  if (!facts_.insert({kind, source, expected, number}).second) return;",
        GUARDS,
        {
            f"guard dropped: {k}": f'  if (kind == FactKind::k{k} && fault("guard dropped: {k}")) return;'
            for k in FACTS
        },
    ),
    Fault(
        "guard dropped: DictOrder",
        GUARDS,
        [(CONTENTS, "  if (facts_.insert({FactKind::kDictOrder, id, nullptr, n}).second) {",
          '  if (!fault("guard dropped: DictOrder") && facts_.insert({FactKind::kDictOrder, id, nullptr, n}).second) {')],
    ),
    Fault(
        "guard dropped: StorageOffset",
        [*TENSORS, *GUARDS],
        [(COMPILE, "    if (counts_from_storage(c.graph))",
          '    if (!fault("guard dropped: StorageOffset") && counts_from_storage(c.graph))')],
    ),
    Fault(
        "an item of a sequence is not a source",
        GUARDS,
        [(CONTENTS, "      if (!numbers.is(item.get())) reach(SourceKind::kSequenceItem, id, i, nullptr, item.get());\n    }\n  } else if (PyDict_Check(c)) {",
          '      if (!fault("an item of a sequence is not a source") && !numbers.is(item.get())) reach(SourceKind::kSequenceItem, id, i, nullptr, item.get());\n'
          "    }\n  } else if (PyDict_Check(c)) {")],
    ),
    Fault(
        "a closure's cell is not read again",
        GUARDS,
        [(ARMING, "    case SourceKind::kCellContents:\n      add_pointer(",
          '    case SourceKind::kCellContents:\n      if (fault("a closure\'s cell is not read again")) break;\n      add_pointer(')],
    ),
    # Torch's state.
    *[
        Fault(
            f"state not guarded: {flag}",
            GUARDS,
            [
                (STATE, read, f'(fault("state not guarded: {flag}") ? decltype({read})() : {read})'),
                (STATE, "  s.excluded = tls.excluded_.raw_repr();\n",
                 f'  s.excluded = tls.excluded_.raw_repr();\n  if (fault("state not guarded: {flag}")) s.included = s.excluded = 0;\n'),
                (STATE, "  if (included != tls.included_.raw_repr() || excluded",
                 f'  if (!fault("state not guarded: {flag}"))\n  if (included != tls.included_.raw_repr() || excluded'),
            ],
        )
        for flag, read in FLAGS.items()
    ],
    # What is guarded of a tensor.
    Fault("a tensor's class ignored", GUARDS, [(TENSOR, "if (Py_TYPE(object) != s.type) return false;",
          'if (Py_TYPE(object) != s.type && !(fault("a tensor\'s class ignored") && is_tensor(object))) return false;')]),
    Fault("a tensor's dispatch keys ignored", GUARDS, [(TENSOR, "!t || t->key_set().raw_repr() != s.keys)",
          '!t || (t->key_set().raw_repr() != s.keys && !fault("a tensor\'s dispatch keys ignored")))')]),
    Fault("a tensor's dtype ignored", GUARDS, [(TENSOR, "static_cast<int8_t>(t->dtype().toScalarType()) != s.dtype ||",
          '(static_cast<int8_t>(t->dtype().toScalarType()) != s.dtype && !fault("a tensor\'s dtype ignored")) ||')]),
    Fault("a tensor's requires_grad ignored", [*GUARDS, *TRAINING],
          [(TENSOR, "t->requires_grad() != s.requires_grad ||",
            '(t->requires_grad() != s.requires_grad && !fault("a tensor\'s requires_grad ignored")) ||')]),
    Fault("a tensor's sizes ignored", GUARDS, [(TENSOR, "if (differs(sizes[i], want[i])",
          'if ((differs(sizes[i], want[i]) && !fault("a tensor\'s sizes ignored"))')]),
    Fault("a tensor's strides ignored", GUARDS, [(TENSOR, "differs(strides[i], want[s.rank + i])) return",
          '(differs(strides[i], want[s.rank + i]) && !fault("a tensor\'s strides ignored"))) return')]),
    Fault("a tensor's stamp: requires_grad not compared", GUARDS,
          [(TENSOR, "      if (x.autograd && !is_the_same(x.autograd, look)) return i;",
            '      if (x.autograd && !is_the_same(x.autograd, look) && !fault("a tensor\'s stamp: requires_grad not compared")) return i;')]),
    Fault("a tensor's stamp: shape and dtype not compared", GUARDS,
          [(TENSOR, "      if (!_mm256_testz_si256(moved, moved) || layout",
            '      if ((!_mm256_testz_si256(moved, moved) && !fault("a tensor\'s stamp: shape and dtype not compared")) || layout')]),
    # The fast program's compares.
    *[
        Fault(f"fast compare left out: {op}", GUARDS,
              [(PROGRAM, "        const GuardInstr& in = s.code[static_cast<size_t>(w.of[k])];\n",
                "        const GuardInstr& in = s.code[static_cast<size_t>(w.of[k])];\n"
                f'        if (in.op == GuardOp::k{op} && fault("fast compare left out: {op}")) continue;\n')])
        for op in ("Object", "Dict", "Type", "Pointer")
    ],
    *[
        Fault(f"fast compare left out: {op}", GUARDS,
              [(PROGRAM, "  Verdict run(GuardInstr& i, PyObject* const* args) {\n",
                "  Verdict run(GuardInstr& i, PyObject* const* args) {\n"
                f'    if (i.op == GuardOp::k{op} && fault("fast compare left out: {op}")) return Verdict::kYes;\n')])
        for op in ("Item", "Fact", "Resolve")
    ],
    Fault("fast compare left out: Tensor", GUARDS,
          [(PROGRAM, "      if (t == s.tensors.size()) break;\n",
            '      if (t == s.tensors.size() || fault("fast compare left out: Tensor")) break;\n')]),
    Fault("the context's state is read once", GUARDS,
          [(STATE, "    if (precisions.empty() || std::memcmp(",
            '    if (fault("the context\'s state is read once") && !precisions.empty()) return true;\n    if (precisions.empty() || std::memcmp(')]),
    Fault("changed dicts are taken for untouched", GUARDS,
          [(PROGRAM, "    untouched_ = untouched;\n", '    untouched_ = untouched || fault("changed dicts are taken for untouched");\n')]),
    Fault("a dict that changed is not looked at again", GUARDS,
          [(PROGRAM, "    for (SourceId id : s.dicts[i.index]) {",
            '    if (fault("a dict that changed is not looked at again")) return Verdict::kYes;\n    for (SourceId id : s.dicts[i.index]) {')]),
    Fault("a type that changed is not looked at again", GUARDS,
          [(PROGRAM, "    if (checked_type_ == i.a) return Verdict::kYes;",
            '    if (checked_type_ == i.a || fault("a type that changed is not looked at again")) return Verdict::kYes;')]),
    Fault("what keeps moving is not checked at all", GUARDS,
          [(PROGRAM, "    for (SourceId id : s.loose) {",
            '    if (!fault("what keeps moving is not checked at all"))\n    for (SourceId id : s.loose) {')]),
    Fault("a slot that holds again what it held is taken for what it held last", GUARDS,
          [(PROGRAM, "          s.all.words[static_cast<size_t>(in.number >> 32)].is = now;",
            '          if (fault("a slot that holds again what it held is taken for what it held last")) continue;\n'
            "          s.all.words[static_cast<size_t>(in.number >> 32)].is = now;")]),
    Fault("guards are not checked at all", GUARDS,
          [(PROGRAM, "    for (Segment& s : segments_)\n      if (!check(s, args)) return false;\n    if (!table_.subclasses_hold())",
            '    if (!fault("guards are not checked at all"))\n    for (Segment& s : segments_)\n'
            "      if (!check(s, args)) return false;\n    if (!table_.subclasses_hold())")]),
    # Effects that the compiled call does not repeat.
    *[
        Fault(f"effect lost: {k}", EFFECTS,
              [(REBUILD, "  auto item = [&](size_t i) { return r[e.items[i]]; };",
                f'  if (e.kind == Kind::k{k} && fault("effect lost: {k}")) return 0;\n'
                "  auto item = [&](size_t i) { return r[e.items[i]]; };")])
        for k in EFFECT_KINDS.split()
    ],
    Fault("a switch of torch's state is lost", [*BREAKS, *EFFECTS],
          [(REBUILD, "  for (const StateChange& s : capture.state) {",
            '  for (const StateChange& s : capture.state) {\n    if (fault("a switch of torch\'s state is lost")) break;')]),
    # Effects of the trace that stay.
    *[
        Fault(f"not undone after the trace: {k}", EFFECTS,
              [(JOURNAL, "    PyObject* t = e.target.get();\n    switch (e.kind) {",
                f'    if (e.kind == Entry::Kind::k{k} && fault("not undone after the trace: {k}")) continue;\n'
                "    PyObject* t = e.target.get();\n    switch (e.kind) {")])
        for k in UNDO_KINDS.split()
    ],
    Fault("the order of a dict is not put back", EFFECTS,
          [(JOURNAL, "if (e.order && !same_keys(t, e.order.get()))",
            'if (!fault("the order of a dict is not put back") && e.order && !same_keys(t, e.order.get()))')]),
    # Results made again.
    Fault("one list in two places becomes two", EFFECTS,
          [(RECONSTRUCTION, "  if (it != registers_.end()) {\n    if (it->second < 0)",
            '  if (it != registers_.end() && !(it->second >= 0 && PyList_Check(o) && fault("one list in two places becomes two"))) {\n'
            "    if (it->second < 0)")]),
    Fault("a dict is made in another order", EFFECTS,
          [(RECONSTRUCTION, "  Ref list = ordered_items(dict);\n  if (!list) throw",
            '  Ref list = ordered_items(dict);\n  if (list && fault("a dict is made in another order")) PyList_Reverse(list.get());\n'
            "  if (!list) throw")]),
    Fault("a cell is made empty", [*EFFECTS, *BREAKS],
          [(REBUILD, "    PyCell_Set(target, item(1));", '    if (!fault("a cell is made empty")) PyCell_Set(target, item(1));')]),
    Fault("attributes of a new object are lost", EFFECTS,
          [(REBUILD, "    case Kind::kFillDict: {", '    case Kind::kFillDict: {\n      if (fault("attributes of a new object are lost")) return Py_NewRef(Py_None);')]),
    Fault("slots of a new object are lost", EFFECTS,
          [(REBUILD, "    case Kind::kFillSlots:\n", '    case Kind::kFillSlots:\n      if (fault("slots of a new object are lost")) return Py_NewRef(Py_None);\n')]),
    Fault("items of a new container are lost", EFFECTS,
          [(REBUILD, "  PyObject* target = item(0);\n  if (PyCell_Check",
            '  PyObject* target = item(0);\n  if (!PyCell_Check(target) && fault("items of a new container are lost")) return Py_NewRef(Py_None);\n'
            "  if (PyCell_Check")]),
    Fault("defaults of a new function are lost", EFFECTS,
          [(REBUILD, "  set(&f->func_defaults, item(4));",
            '  if (!fault("defaults of a new function are lost")) set(&f->func_defaults, item(4));')]),
    Fault("a bound method has lost its object", EFFECTS,
          [(REBUILD, "      return PyMethod_New(item(0), item(1));",
            '      return PyMethod_New(item(0), fault("a bound method has lost its object") ? Py_None : item(1));')]),
    Fault("an exception loses its cause", [*EFFECTS, *BREAKS],
          [(REBUILD, "  PyException_SetCause(item(0), operand(1));",
            '  if (!fault("an exception loses its cause")) PyException_SetCause(item(0), operand(1));')]),
    Fault("an exception loses its context", [*EFFECTS, *BREAKS],
          [(REBUILD, "  PyException_SetContext(item(0), operand(2));",
            '  if (!fault("an exception loses its context")) PyException_SetContext(item(0), operand(2));')]),
    Fault("an exception loses its traceback", [*EFFECTS, *BREAKS],
          [(REBUILD, "  Ref tb = Ref::steal(operand(3));",
            '  Ref tb = Ref::steal(fault("an exception loses its traceback") ? nullptr : operand(3));')]),
    Fault("an iterator over a dict starts again", [*BREAKS, *EFFECTS],
          [(REBUILD, "for (int32_t i = 0; made && i < s.index; ++i) {",
            'for (int32_t i = 0; made && i < s.index && !fault("an iterator over a dict starts again"); ++i) {')]),
    Fault("an iterator's position is lost", [*BREAKS, *EFFECTS],
          [(REBUILD, "if (!made || s.items.size() == static_cast<size_t>(s.index)) return made.release();",
            'if (!made || s.items.size() == static_cast<size_t>(s.index) || fault("an iterator\'s position is lost")) return made.release();')]),
    Fault("a generator starts again", [*BREAKS, *EFFECTS],
          [(REBUILD, "  load_frame(frame, slots.data(), slots.size(), next);\n  g->gi_frame_state",
            '  if (fault("a generator starts again")) return made.release();\n  load_frame(frame, slots.data(), slots.size(), next);\n'
            "  g->gi_frame_state")]),
    # Going on after a graph break.
    Fault("resume: two locals swapped", BREAKS,
          [(REBUILD, "    frames.push_back(std::move(f));",
            '    if (fault("resume: two locals swapped") && f.slots.size() > 1) std::swap(f.slots[0], f.slots[1]);\n'
            "    frames.push_back(std::move(f));")]),
    Fault("resume: two stack slots swapped", BREAKS,
          [(RESUME, "  load_frame(frame, slots.data(), slots.size(), state.next);",
            '  if (const auto n = slots.size(), base = static_cast<size_t>(frame->f_code->co_nlocalsplus);\n'
            '      fault("resume: two stack slots swapped") && n > base + 1)\n    std::swap(slots[n - 1], slots[n - 2]);\n'
            "  load_frame(frame, slots.data(), slots.size(), state.next);")]),
    Fault("resume: wrong stack depth", BREAKS,
          [(RESUME, "  load_frame(frame, slots.data(), slots.size(), state.next);",
            '  if (fault("resume: wrong stack depth") && slots.size() > static_cast<size_t>(frame->f_code->co_nlocalsplus))\n'
            "    slots.pop_back();\n"
            "  load_frame(frame, slots.data(), slots.size(), state.next);")]),
    Fault("resume: at another instruction", BREAKS,
          [(RESUME, "  load_frame(frame, slots.data(), slots.size(), state.next);",
            '  if (fault("resume: at another instruction")) ++state.next;\n'
            "  load_frame(frame, slots.data(), slots.size(), state.next);")]),
    Fault("resume: the handled exception is lost", BREAKS,
          [(REBUILD, "  if (capture.handled != Capture::kAsBefore) {",
            '  if (capture.handled != Capture::kAsBefore && !fault("resume: the handled exception is lost")) {')]),
    Fault("resume: live locals are taken for dead", BREAKS,
          [(RECONSTRUCTION, "      if (use == LocalUse::kReads) return true;",
            '      if (use == LocalUse::kReads) return !fault("resume: live locals are taken for dead");')]),
    Fault("resume: what the callee returned is lost", BREAKS,
          [(RESUME, "      run.before = [&c, now, at] { return start(*now, at + 1, c); };",
            "      run.before = [&c, now, at] {\n        PyObject* got = start(*now, at + 1, c);\n"
            '        if (got && fault("resume: what the callee returned is lost")) Py_SETREF(got, Py_NewRef(Py_None));\n'
            "        return got;\n      };")]),
    Fault("resume: an exception of the rest is raised past its handlers", BREAKS,
          [(RESUME, "      case Continuations::Outcome::kRaised:\n",
            "      case Continuations::Outcome::kRaised:\n"
            '        if (fault("resume: an exception of the rest is raised past its handlers")) PyErr_SetNone(PyExc_KeyError);\n')]),
    Fault("resume: entries of another instruction are taken", BREAKS,
          [(CONTINUATIONS, "  k.append(reinterpret_cast<const char*>(&resumption.next), sizeof resumption.next);",
            '  if (!fault("resume: entries of another instruction are taken")) k.append(reinterpret_cast<const char*>(&resumption.next), sizeof resumption.next);')]),
    Fault("resume: a record_function is not entered again", [*BREAKS, *REST],
          [(REBUILD, "    case Kind::kEnter:\n",
            '    case Kind::kEnter:\n      if (fault("resume: a record_function is not entered again")) return Py_NewRef(Py_None);\n')]),
    # Entries.
    Fault("a new __call__ of the class is not seen", FACE,
          [(DISPATCH, "    if (tag == 0 || tag != c->state->type_tag) {",
            '    if (!fault("a new __call__ of the class is not seen") || !c->function)\n    if (tag == 0 || tag != c->state->type_tag) {')]),
    Fault("a comparison of numbers is not repeated", FACE,
          [("src/frame/numbers.cpp", "    if (!result || (result.get() == Py_True) != c.expected) return miss();",
            '    if (!fault("a comparison of numbers is not repeated") && (!result || (result.get() == Py_True) != c.expected)) return miss();')]),
    # Tensors written and shared.
    Fault("the write-back of a written input is lost", TENSORS,
          [(FUNCTIONAL, "      if (u.input >= 0 && u.version > 0 &&",
            '      if (!fault("the write-back of a written input is lost") && u.input >= 0 && u.version > 0 &&')]),
    Fault("a write through a view does not reach its base", TENSORS,
          [(FUNCTIONAL, "      value = write_back(b_, t.steps, get(t.parent), value);",
            '      if (fault("a write through a view does not reach its base")) value = get(t.parent);\n'
            "      else value = write_back(b_, t.steps, get(t.parent), value);")]),
    Fault("a view is not made anew after a write", TENSORS,
          [(FUNCTIONAL, "    if (t.version == version) return t.current;",
            '    if (t.version == version || (t.version >= 0 && fault("a view is not made anew after a write"))) return t.current;')]),
    Fault("an output that aliases an input is a copy", TENSORS,
          [(FUNCTIONAL, "    if (u.input >= 0 && in_.inputs[u.input].kind != InputKind::kConstant) {",
            '    if (!fault("an output that aliases an input is a copy") && u.input >= 0 &&\n'
            "        in_.inputs[u.input].kind != InputKind::kConstant) {")]),
    Fault("outputs that alias each other do not", TENSORS,
          [(FUNCTIONAL, "    if (owner != self) {", '    if (owner != self && !fault("outputs that alias each other do not")) {')]),
    Fault("a written input keeps its version", [*TENSORS, *TRAINING],
          [(WRITTEN, "    for (int32_t i = 0; i < steps; ++i) tensor->bump_version();",
            '    if (!fault("a written input keeps its version"))\n    for (int32_t i = 0; i < steps; ++i) tensor->bump_version();')]),
]  # fmt: skip


def faulty_texts() -> dict[str, str]:
    """The files that faults are put into, with every fault. Raises LookupError for one that has lost its place."""
    texts: dict[str, str] = {}
    for fault in FAULTS:
        for file, old, _ in fault.edits:
            text = texts.setdefault(file, (ROOT / file).read_text())
            if text.count(old) != 1:
                raise LookupError(f"{fault.name!r}: its place in {file} is not there any more, or not once:\n{old}")
    for fault in FAULTS:
        for file, old, new in fault.edits:
            kept, text = old, texts[file]
            if text.count(old) != 1:  # another fault has changed the line: both are statements before a common anchor
                kept = old.splitlines()[-1]
                if not new.endswith(old):
                    raise LookupError(f"{fault.name!r} meets another fault in {file}")
                new = new[: -len(old)] + kept
            texts[file] = text.replace(kept, new, 1)
    return texts


def files_of_repository() -> list[str]:
    git = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if git.returncode == 0:
        return git.stdout.split()
    folders = ("src", "python", "tests", "cmake", "tools", "benchmarks", "docs")  # a copy that git does not know
    found = [f for f in ROOT.iterdir() if f.is_file()] + [f for d in folders for f in (ROOT / d).rglob("*")]
    return [str(f.relative_to(ROOT)) for f in found if f.is_file() and f.suffix not in (".so", ".pyc")]


def make_tree(tree: Path) -> None:
    """The repository with every fault in it. Files that are as they were keep their times, so that little is built."""
    files, texts = files_of_repository(), faulty_texts()
    wanted = {f: (ROOT / f).read_bytes() for f in files if (ROOT / f).is_file()}
    for file, text in texts.items():
        wanted[file] = re.sub(r"(#include )", '#include "base/fault.h"\n\\1', text, count=1).encode()
    wanted["src/base/fault.h"] = HEADER.encode()
    for file, content in wanted.items():
        to = tree / file
        if to.exists() and to.read_bytes() == content:
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(content)
        shutil.copymode(ROOT / file if (ROOT / file).exists() else __file__, to)


def run(tree: Path, test: str, name: str, seconds: float, say: bool = False) -> str:
    """What failed, or ''. In a child that has torch already: most of what a small test costs is importing it."""
    with tempfile.TemporaryFile("w+") as output:
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            os.environ["FLASHOVER_FAULT"] = name
            os.chdir(tree)
            for stream in (1, 2):
                os.dup2(output.fileno(), stream)
            import pytest

            os._exit(
                pytest.main(["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--tb=no", "--timeout=60", test])
            )
        end, status = time.monotonic() + seconds, None
        while status is None:
            done, code = os.waitpid(pid, os.WNOHANG)
            if done:
                status = code
            elif time.monotonic() > end:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                # Without the fault too: the machine is busy, which says nothing.
                slow = name == "none" or run(tree, test, "none", seconds) != ""
                return ("slow" if name == "none" else "") if slow else f"{test} (does not end)"
            else:
                time.sleep(0.1)
        output.seek(0)
        text = output.read()
    if say:
        print(text)
    if status == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.MULTILINE)
    if found:
        return found[1]
    return f"{test} ({f'killed by signal {os.WTERMSIG(status)}' if os.WIFSIGNALED(status) else 'failed'})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, default=ROOT.parent / "flashover-with-faults")
    parser.add_argument("--only", default="", help="faults whose name has this in it; several: a|b")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one file of tests")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true", help="only whether every fault has its place in the sources")
    parser.add_argument("--part", default="0/1", help="K/N: every Nth fault from the Kth on, for several processes")
    parser.add_argument("--quick", action="store_true", help="only the tests that are likely to notice")
    parser.add_argument("--skip", default="", help="faults whose name has this in it are left out")
    parser.add_argument("--no-build", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="show what the tests print")
    args = parser.parse_args()
    only = args.only.split("|")
    faults = [f for f in FAULTS if any(o in f.name for o in only) and not (args.skip and args.skip in f.name)]
    if args.list:
        print("\n".join(f.name for f in faults))
        return 0
    if args.check:
        faulty_texts()
        return 0
    part, parts = map(int, args.part.split("/"))
    faults = faults[part::parts]
    if not args.no_build:
        make_tree(args.tree)
        subprocess.run(["./x", "build", "_C"], cwd=args.tree, check=True)
    # Every fault's process starts as a copy of this one.
    os.environ |= {"PYTHONPATH": str(args.tree / "python"), "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, str(args.tree / "python"))
    sys.path = [p for p in sys.path if Path(p).resolve() != ROOT / "python"]
    import pytest  # noqa: F401

    import flashover

    assert Path(flashover.__file__).is_relative_to(args.tree.resolve()), flashover.__file__
    every = list(dict.fromkeys([*GUARDS, *EFFECTS, *BREAKS, *TENSORS, *FACE, *TRAINING, *REST]))
    rows, missed = [], []
    for fault in faults:
        start, caught = time.monotonic(), ""
        for test in dict.fromkeys([FIRST, *(fault.tests[:1] if args.quick else [*fault.tests, *every])]):
            caught = run(args.tree, test, fault.name, args.limit, args.verbose)
            if caught and "::" in caught and all(run(args.tree, caught, "none", args.limit) for _ in range(2)):
                sys.exit(f"mutation testing: {caught} fails without a fault too")
            if caught:
                break
        seconds = time.monotonic() - start
        rows.append(
            f"| {fault.name} | {('`' + caught.removeprefix('tests/') + '`') if caught else '**nothing**'} | {seconds:.0f} |"
        )
        print(rows[-1], flush=True)
        if not caught:
            missed.append(fault.name)
    print(f"{len(faults) - len(missed)} of {len(faults)} faults caught" + "".join(f"\n  missed: {m}" for m in missed))
    if not (args.only or args.skip or parts > 1):
        page = ROOT / "docs" / "benchmarks" / "mutation-testing.md"
        before = page.read_text().split("| fault |")[0] if page.exists() else "# Would the tests notice?\n\n"
        head = "| fault | caught by | seconds |\n|---|---|---|\n"
        page.write_text(before + head + "\n".join(rows) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
