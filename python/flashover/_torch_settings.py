"""What torch.compile's own settings mean here: every Inductor option, and torch._dynamo, torch.compiler and functorch
configuration. All of them are accepted; this table says which count."""

from __future__ import annotations

import fnmatch
import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from flashover.exc import IgnoredOption

INDUCTOR, DYNAMO, COMPILER, FUNCTORCH = (
    "torch._inductor.config",
    "torch._dynamo.config",
    "torch.compiler.config",
    "torch._functorch.config",
)
MODULES = (INDUCTOR, DYNAMO, COMPILER, FUNCTORCH)

Effect = Literal["mapped", "counts", "always", "none"]
EFFECTS: dict[Effect, str] = {
    "mapped": "becomes an option of flashover.compile",
    "counts": "is read here, too, once its module is imported",
    "always": "what it asks for is always so, whatever its value",
    "none": "has no effect; a warning says so, once, where it is an option with another value than torch's default",
}


@dataclass(frozen=True)
class Row:
    """Of settings whose names match `pattern`."""

    pattern: str
    effect: Effect
    says: str


def _on(option: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {option: True} if value else {}


# Inductor's name, or another module's -> our options for a value.
_MAPPED: dict[str, dict[str, tuple[str, Callable[[Any], dict[str, Any]]]]] = {
    INDUCTOR: {
        "max_autotune": ("max_autotune", lambda value: {"max_autotune": value}),
        "max_autotune_gemm": ("max_autotune", _on("max_autotune")),
        "max_autotune_pointwise": ("max_autotune", _on("max_autotune")),
        "triton.cudagraphs": ("cuda_graphs", lambda value: {"cuda_graphs": value}),
        "emulate_precision_casts": ("eager_roundings", lambda value: {"eager_roundings": value}),
        "fx_graph_cache": ("cache", lambda value: {} if value else {"cache": False}),
        "force_disable_caches": ("cache=False", lambda value: {"cache": False} if value else {}),
        "cpp.weight_prepack": ("weight_copies=0", lambda value: {} if value else {"weight_copies": 0}),
        "trace.enabled": ("keep_text", _on("keep_text")),
    },
    DYNAMO: {
        "automatic_dynamic_local_pgo": ("remember_sizes", lambda value: {} if value else {"remember_sizes": False}),
    },
    COMPILER: {
        "force_disable_caches": ("cache=False", lambda value: {"cache": False} if value else {}),
    },
    FUNCTORCH: {
        "activation_memory_budget": ("memory_budget", lambda value: {"memory_budget": round(100 * value)}),
    },
}
_ONLY_AS_OPTIONS = {"trace.enabled"}  # of a whole process it would cost every warm start

_RECOMPILE = "option recompile_limit"
_TABLE: dict[str, list[Row]] = {
    INDUCTOR: [
        Row("guard_filter_fn", "counts", "what it drops is not compared; ways to inputs and their types stay"),
        Row("fallback_random", "always", "random numbers are eager's"),
        Row("eager_numerics.*", "always", "division and denormal numbers as in eager"),
        Row("freezing", "always", "weights that do not train are laid out for their kernels when compiling"),
        Row("cpp_wrapper*", "always", "compiled calls run no Python"),
        Row("implicit_fallbacks", "always", "an operator without a kernel of its own is torch's"),
        Row("deterministic", "always", "what is chosen by measuring (max_autotune) computes the same"),
        Row(
            "*custom*pass*", "none", "the pass is not run: these graphs are not Inductor's. A custom backend gets them"
        ),
        Row("nan_asserts", "none", "no results are searched for NaN"),
        Row("*TESTING_ONLY", "none", "for Inductor's own tests"),
        Row("test_configs.*", "none", "for Inductor's own tests"),
        Row("aot_inductor*", "none", "for packages that Inductor makes"),
        Row("triton.cudagraph*", "none", "how Inductor records CUDA graphs; here it is option cuda_graphs alone"),
        Row("triton.*", "none", "how Inductor writes kernels for a GPU"),
        Row("cpp.*", "none", "how Inductor writes kernels for a CPU"),
        Row("cutlass.*", "none", "a library that is not used here"),
        Row("cuda.*", "none", "a library that is not used here"),
        Row("xpu.*", "none", "a device that is not supported"),
        Row("rocm.*", "none", "a device that is not supported"),
        Row("halide.*", "none", "a compiler that is not used here"),
        Row("trace.*", "none", "what Inductor writes for debugging: FLASHOVER_DUMP and .explain() here"),
        Row("*cache*", "none", "Inductor's own caches; here option cache and FLASHOVER_CACHE_DIR"),
        Row("*bucket*", "none", "how Inductor arranges collectives"),
        Row("aten_distributed_optimizations.*", "none", "how Inductor arranges collectives"),
        Row("max_autotune*", "none", "how Inductor measures its kernels"),
        Row("*", "none", "about code that Inductor makes: there is none here"),
    ],
    DYNAMO: [
        Row("recompile_limit", "counts", f"{_RECOMPILE} goes first"),
        Row("cache_size_limit", "counts", f"recompile_limit's old name; {_RECOMPILE} goes first"),
        Row("accumulated_recompile_limit", "counts", "the recompile_limit is no larger"),
        Row("specialize_int", "counts", "for backends of others: a version for each value"),
        Row("force_parameter_static_shapes", "counts", "for backends of others: a version for each size of one"),
        Row("fail_on_recompile_limit_hit", "counts", "the limit is an error then"),
        Row("fail_on_cache_limit_hit", "counts", "the limit is an error then"),
        Row("error_on_recompile", "counts", "as the stance fail_on_recompile"),
        Row("disable", "counts", "nothing new is compiled; what is compiled serves"),
        Row("automatic_dynamic_shapes", "counts", "where compile(dynamic=) says nothing: off is dynamic=False"),
        Row("assume_static_by_default", "counts", "where compile(dynamic=) says nothing: off is dynamic=True"),
        Row("reorderable_logging_functions", "counts", "their calls wait until the graph has run"),
        Row("allow_ignore_mark_dynamic", "counts", "a program that contradicts a mark is no error"),
        Row("capture_scalar_outputs", "always", "numbers of tensors are part of graphs where they can be"),
        Row("capture_dynamic_output_shape_ops", "always", "sizes that follow from data are symbols"),
        Row("dynamic_shapes", "always", "sizes may be symbols"),
        Row("guard_nn_modules", "always", "modules are guarded"),
        Row("inline_inbuilt_nn_modules", "always", "modules are looked into, torch's own as well"),
        Row("allow_rnn", "always", "recurrent modules are captured"),
        Row("trace_numpy", "always", "NumPy's arrays are captured"),
        Row("capture_autograd_function", "always", "autograd Functions are captured"),
        Row("capture_func_transforms", "always", "torch.func's transforms are captured"),
        Row("enable_cpp_*", "always", "guards are C++"),
        Row("dead_code_elimination", "always", "what has no effect goes"),
        Row("replay_side_effects", "always", "the program's writes happen"),
        Row("suppress_errors", "counts", "a backend of yours may fail; the rest runs eager anyway but for fullgraph"),
        Row("allow_empty_graphs", "always", "a function without operators on tensors runs as it is"),
        Row("enable_trace_contextlib", "always", "context managers are captured"),
        Row("enable_faithful_generator_behavior", "always", "generators are captured, as lazy as they are"),
        Row("*", "none", "about Dynamo's own capture"),
    ],
    COMPILER: [
        Row("dynamic_sources", "counts", "as option dynamic_sources"),
        Row("unbacked_sources", "counts", "as option dynamic_sources"),
        Row("job_id", "none", "names caches that torch shares between machines"),
        Row("pgo_*", "none", "names caches that torch shares between machines"),
        Row("cache_key_tag", "none", "names entries of torch's caches"),
        Row("force_cudagraph_gc", "none", "no collection is made before CUDA graphs are recorded"),
    ],
    FUNCTORCH: [
        Row("cse", "always", "equal computations are done once"),
        Row("*recompute*", "none", "what the backward computes again is decided by cost, and by option memory_budget"),
        Row("*", "none", "about AOTAutograd, which is not used here"),
    ],
}


def _alias(module: str, name: str) -> tuple[str, str] | None:
    """Settings of torch.compiler.config are those of torch._dynamo.config under another name."""
    entry = importlib.import_module(module)._config[name]
    alias = getattr(entry, "alias", None)
    return tuple(alias.rsplit(".", 1)) if alias else None  # type: ignore[return-value]


def _mapped_row(module: str, name: str) -> Row:
    only = ", where it is given as an option" if name in _ONLY_AS_OPTIONS else ""
    return Row(name, "mapped", f"option {_MAPPED[module][name][0]}{only}")


def row_of(module: str, name: str) -> Row:
    """What a setting means here."""
    if name in _MAPPED[module]:
        return _mapped_row(module, name)
    for row in _TABLE[module]:
        if fnmatch.fnmatchcase(name, row.pattern) and (row.pattern != "*" or not _alias(module, name)):
            return row
    aliased = _alias(module, name)
    if aliased is None:
        return Row(name, "none", "new in this torch")
    row = row_of(*aliased)
    return Row(name, row.effect, row.says)


def rows(module: str) -> list[Row]:
    """Those of the table, not of the names that torch has: for people."""
    return [*(_mapped_row(module, name) for name in _MAPPED[module]), *_TABLE[module]]


@functools.cache
def names(module: str) -> list[str]:
    """All that the installed torch has."""
    loaded = importlib.import_module(module)
    internal = {"TYPE_CHECKING", *(n for n in loaded._config if n.startswith("_"))}
    own = {"guard_filter_fn"} if module == INDUCTOR else set()  # torch.compile's, among Inductor's options
    return sorted(loaded._config.keys() - internal | own)


def is_inductor_option(name: str) -> bool:
    return name in _MAPPED[INDUCTOR] or name in names(INDUCTOR)


_said: set[str] = set()


def from_inductor(name: str, value: Any) -> dict[str, Any]:
    """An Inductor option as ours. What has no effect is said once."""
    if name in _MAPPED[INDUCTOR]:
        return _MAPPED[INDUCTOR][name][1](value)
    row = row_of(INDUCTOR, name)
    if row.effect == "none" and name not in _said and not _is_default(name, value):
        _said.add(name)
        warnings.warn(
            IgnoredOption(f"flashover.compile: Inductor's option {name!r} has no effect here: {row.says}"),
            stacklevel=5,
        )
    return {}


def _is_default(name: str, value: Any) -> bool:
    entry = importlib.import_module(INDUCTOR)._config.get(name)
    default = getattr(entry, "default", None)
    return type(default) is type(value) and bool(default == value)


def set_in_torch() -> Iterator[tuple[str, Any]]:
    """Our options that torch's configuration asks for, as far as its modules are imported."""
    for module, mapped in _MAPPED.items():
        loaded = sys.modules.get(module)
        if loaded is not None:
            for name, (_, translate) in mapped.items():
                if name not in _ONLY_AS_OPTIONS and (value := _read(loaded, name)) is not None:
                    yield from translate(value).items()


def _read(module: ModuleType, name: str) -> Any:
    """A setting's value, None where this torch does not have it."""
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def with_torchs(values: Mapping[str, Any], defaults: Mapping[str, str]) -> dict[str, Any]:
    """`values` and, where they say nothing, what torch's configuration asks for that is not our default."""
    torchs = {k: v for k, v in set_in_torch() if str(v) != defaults[k]}
    return {**torchs, **values}
