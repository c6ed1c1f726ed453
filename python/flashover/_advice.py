"""What to say beside the reason why a program cannot be captured whole: an explanation, and what one can do."""

from __future__ import annotations

import re

DOCS = "docs/user/graph-breaks.md"

# A reason's pattern, what it means, what helps. The first match counts.
_ADVICE: list[tuple[str, str, list[str]]] = [
    (
        r"no shape function",
        "Nothing says what this custom operator returns, so it cannot be part of a graph.",
        ["Describe its result with torch.library.register_fake."],
    ),
    (
        r"data-dependent|\.item\(\)|truth of|TensorBase\.(tolist|item|numpy|__bool__|__int__|__float__)",
        "The program needs the value of a tensor while it is captured, and that is known only when the graph runs.",
        [
            "Decide with tensors: torch.where, masks, torch.clamp, torch.cond.",
            "Keep .item(), float(t) and printing out of the compiled function.",
            "Without fullgraph=True the graph ends here and goes on behind this line.",
        ],
    ),
    (
        r"disabled|not to be part of a graph|graph_break\(\)|is skipped",
        "The program itself says that this call is not to be captured.",
        ["Take flashover.disable, skip, disallow_in_graph or graph_break away, or compile its caller in parts."],
    ),
    (
        r"call of print|builtins\.print|side effect|call of (open|input|logging)",
        "This call has an effect outside of the program, which a graph cannot have.",
        ["Move it out of the compiled function, or behind `if not torch.compiler.is_compiling():`."],
    ),
    (
        r"array of numpy|numpy",
        "Arrays of NumPy are captured where there is a tensor operation for what is done, which there is not here.",
        [
            "Use the torch function of the same name, or convert outside of the compiled function.",
            "See docs/user/numpy.md.",
        ],
    ),
    (
        r"^training: |gradient|backward",
        "The backward pass is captured together with the forward one, and this part of it cannot be.",
        ["Move what is named out of the compiled function.", "Call it under torch.no_grad() if no gradient is wanted."],
    ),
    (
        r"from before the call",
        "An object that has a state (an iterator, a generator, a context) and was made before this call is used.",
        ["Make it inside of the compiled function, or pass a list."],
    ),
    (
        r"coroutine|generator",
        "Generators and coroutines that outlive the call cannot be part of one graph.",
        ["Use the generator up inside of the compiled function, or return a list."],
    ),
    (
        r"mode is active|torch's state|transform",
        "A mode of torch (a dispatch or function mode, a torch.func transform) decides what operators do here.",
        ["Put the mode around the compiled function, or all of it inside."],
    ),
    (
        r"call of |TorchScript",
        "This function is written in C or is not known, so it cannot be seen what it does.",
        [
            "If it computes with tensors only: flashover.allow_in_graph(function), or torch.library.custom_op.",
            "If its result does not change: flashover.assume_constant_result(function).",
        ],
    ),
]
_OTHERWISE = (
    "This part of the program cannot be recorded in a graph.",
    ["Without fullgraph=True the graph ends here and goes on behind this line."],
)


def advice(reason: str) -> tuple[str, list[str]]:
    """The explanation of a reason, and hints."""
    for pattern, explanation, hints in _ADVICE:
        if re.search(pattern, reason):
            return explanation, list(hints)
    return _OTHERWISE[0], list(_OTHERWISE[1])
