"""Why a program cannot be captured whole: the one table of reasons, each with a title, what it means and what helps."""

from __future__ import annotations

import re
from dataclasses import dataclass

PAGE = "docs/user/graph-breaks.md"


@dataclass(frozen=True)
class Reason:
    """One row: `pattern` finds it in what the compiler says."""

    name: str  # also the anchor of its section in PAGE
    title: str
    pattern: str
    why: str
    hints: tuple[str, ...]

    @property
    def docs(self) -> str:
        return f"{PAGE}#{self.name}"


# The first match counts, so what is special stands before what is general.
REASONS: tuple[Reason, ...] = (
    Reason(
        "custom-operator",
        "a custom operator without a shape function",
        r"no shape function",
        "Nothing says what this custom operator returns, so it cannot be part of a graph.",
        ("Describe its result with torch.library.register_fake.",),
    ),
    Reason(
        "data-dependent",
        "Python needs the value of a tensor",
        r"data-dependent|\.item\(\)|truth of|TensorBase\.(tolist|item|numpy|__bool__|__int__|__float__)",
        "The program needs the value of a tensor while it is captured, and that is known only when the graph runs.",
        (
            "Decide with tensors: torch.where, masks, torch.clamp, torch.cond.",
            "Keep .item(), float(t) and printing out of the compiled function.",
            "Without fullgraph=True the graph ends here and goes on behind this line.",
        ),
    ),
    Reason(
        "requested",
        "the program asks for it",
        r"disabled|not to be part of a graph|graph_break\(\)|is skipped",
        "The program itself says that this call is not to be captured.",
        ("Take flashover.disable, skip, disallow_in_graph or graph_break away, or compile its caller in parts.",),
    ),
    Reason(
        "side-effect",
        "a call with an effect outside of the program",
        r"call of print|builtins\.print|side effect|call of (open|input|logging)",
        "This call has an effect outside of the program, which a graph cannot have.",
        (
            "Move it out of the compiled function, or behind `if not torch.compiler.is_compiling():`.",
            "Of functions that only log: torch._dynamo.config.reorderable_logging_functions.add(print).",
        ),
    ),
    Reason(
        "numpy",
        "NumPy that has no tensor operation",
        r"array of numpy|numpy",
        "Arrays of NumPy are captured where there is a tensor operation for what is done, which there is not here.",
        (
            "Use the torch function of the same name, or convert outside of the compiled function.",
            "See docs/user/numpy.md.",
        ),
    ),
    Reason(
        "backward",
        "something of the backward pass",
        r"^training: |gradient|backward",
        "The backward pass is captured together with the forward one, and this part of it cannot be.",
        ("Move what is named out of the compiled function.", "Call it under torch.no_grad() if no gradient is wanted."),
    ),
    Reason(
        "earlier-object",
        "an object with a state from before the call",
        r"from before the call",
        "An object that has a state (an iterator, a generator, a context) and was made before this call is used.",
        ("Make it inside of the compiled function, or pass a list.",),
    ),
    Reason(
        "generator",
        "a generator or coroutine that outlives the call",
        r"coroutine|generator",
        "Generators and coroutines that outlive the call cannot be part of one graph.",
        ("Use the generator up inside of the compiled function, or return a list.",),
    ),
    Reason(
        "mode",
        "a mode or transform of torch is active",
        r"mode is active|torch's state|transform",
        "A mode of torch (a dispatch or function mode, a torch.func transform) decides what operators do here.",
        ("Put the mode around the compiled function, or all of it inside.",),
    ),
    Reason(
        "call-in-c",
        "a call of a function that cannot be looked into",
        r"call of |TorchScript",
        "This function is written in C or is not known, so it cannot be seen what it does.",
        (
            "If it computes with tensors only: flashover.allow_in_graph(function), or torch.library.custom_op.",
            "If its result does not change: flashover.assume_constant_result(function).",
        ),
    ),
    Reason(
        "other",
        "something that no graph can hold",
        r"",
        "This part of the program cannot be recorded in a graph.",
        ("Without fullgraph=True the graph ends here and goes on behind this line.",),
    ),
)


def reason_of(text: str) -> Reason:
    """The row of what the compiler says."""
    return next(r for r in REASONS if re.search(r.pattern, text))
