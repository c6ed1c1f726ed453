"""Why a program is not captured whole, and why it is compiled again: the one table of reasons, each with a title, what
it means and what helps. tools/reasons_page.py makes docs/user/reasons.md of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

PAGE = "docs/user/reasons.md"


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
BREAKS: tuple[Reason, ...] = (
    Reason(
        "slower",
        "compiled calls took longer",
        r"^it is slower compiled",
        "Its first calls were timed both ways, and the program as it is written was faster; graph breaks cost most.",
        (
            "Take graph breaks out: python -m flashover doctor SCRIPT ranks them.",
            "To keep what is compiled: options={'retreat': 'never'}, or FLASHOVER_RETREAT=0.",
        ),
    ),
    Reason(
        "custom-operator",
        "a custom operator without a shape function",
        r"no shape function|no fake impl|register_fake",
        "Nothing says what this custom operator returns, so it cannot be part of a graph.",
        ("Describe its result with torch.library.register_fake.",),
    ),
    Reason(
        "kernel",
        "a Triton kernel that cannot be part of a graph",
        r"Triton kernel",
        "Its launch is of a kind that is not known, or it reaches memory that is none of its arguments.",
        (
            "Hand it tensors, numbers and constants, and a grid of one to three numbers.",
            "Or register its launch as an operator: torch.library.custom_op, with mutates_args.",
        ),
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
        "kind-of-tensor",
        "a kind of tensor that is not compiled",
        r"tensor subclass|not a strided tensor|^dtype ",
        "Some tensor subclasses, sparse and quantized tensors have operators of their own, which run eager.",
        ("Pass plain tensors: x.to_dense(), x.dequantize(), the tensors that a subclass is made of.",),
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


# A guard that failed, as "what was so; now what is".
RECOMPILES: tuple[Reason, ...] = (
    Reason(
        "another-rank",
        "a tensor with another number of dimensions",
        r"now .*dim\(\) is",
        "Code is for tensors of one number of dimensions; there is a version for each.",
        ("Reshape to one number of dimensions before the call.",),
    ),
    Reason(
        "another-dtype",
        "a tensor of another dtype",
        r"now .*dtype is",
        "Kernels are for one dtype; there is a version for each.",
        ("Convert before the call, once: x.to(dtype).",),
    ),
    Reason(
        "another-device",
        "a tensor on another device",
        r"now .*device is",
        "Kernels are for one device; there is a version for each.",
        ("Move what is passed before the call: x.to(device).",),
    ),
    Reason(
        "another-class",
        "a tensor of another class",
        r"now .*its class is",
        "A Parameter, a Tensor and a subclass may behave differently; there is a version for each.",
        ("Pass the same class in each call.",),
    ),
    Reason(
        "requires-grad",
        "a tensor that requires a gradient, or none any more",
        r"now .*requires_grad is",
        "With a gradient there is a backward pass to compile; there is a version with and one without.",
        ("Nothing, if both are meant: training and evaluation. Else detach() before the call.",),
    ),
    Reason(
        "another-size",
        "a tensor of another size",
        r"now .*size\(\d+\) is|\.shape\[\d+\]",
        "A size was compiled as a number. After its first change it is a symbol, where the program lets it be one.",
        (
            "Mark it before the first call: torch._dynamo.mark_dynamic(x, dim), or compile with dynamic=True.",
            "Where the program asks for its value, at the line that is named: use tensor operations instead.",
        ),
    ),
    Reason(
        "another-layout",
        "a tensor with other strides",
        r"now .*stride\(\d+\) is",
        "Kernels are for one order of the elements in memory; there is a version for each.",
        ("Pass tensors of one layout: x.contiguous(), or one memory_format.",),
    ),
    Reason(
        "torch-state",
        "another state of torch",
        r"grad mode|inference mode|autocast|default dtype|deterministic|num_threads",
        "What operators do depends on this setting; there is a version for each.",
        ("Nothing, if both are meant. Else make the setting the same around each call.",),
    ),
    Reason(
        "another-object",
        "another object",
        r"is the same|is a tensor.*; now (?!size|dim|stride|dtype|device|its|requires)",
        "The program reads an object (a function, a module, a class) by identity, and another one stands there now.",
        ("Make the object once, outside of the loop, and pass or keep the same one.",),
    ),
    Reason(
        "another-structure",
        "a container with other entries",
        r"^len\(|in .*__dict__|has no attribute|keys|^'",
        "The program goes through a container or an object's attributes, and these have changed.",
        ("Keep the number of entries; add attributes before the first call.",),
    ),
    Reason(
        "another-type",
        "a value of another type",
        r"^type\(",
        "Python does other things with another type; there is a version for each.",
        ("Pass one type: always a tensor, always a float.",),
    ),
    Reason(
        "another-value",
        "another value",
        r" == | is None| is True| is False|<|>|!=",
        "The program looks at this value (a branch, a loop, a key), so code is for this value.",
        (
            "Pass it as a tensor, or keep to a few values.",
            "A number that is only computed with is an input after its first change, and costs one recompilation.",
        ),
    ),
    Reason(
        "another-case",
        "something else that the code depends on",
        r"",
        "A fact that the program looked at while it was captured is not so any more.",
        ("Make what the guard names the same in each call.",),
    ),
)


def reason_of(text: str) -> Reason:
    """The row of what the compiler says of a break."""
    return next(r for r in BREAKS if re.search(r.pattern, text))


def recompile_reason_of(text: str) -> Reason:
    """The row of a guard that failed."""
    return next(r for r in RECOMPILES if re.search(r.pattern, text))
