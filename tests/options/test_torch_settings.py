"""torch.compile's own settings: all of them are accepted, those that count here do, and the page says so."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # its configuration counts once it is imported
import torch._functorch.config
import torch._inductor.config
from interpreters import python

import flashover
from flashover import _torch_settings as settings
from flashover import exc, options

ROOT = Path(__file__).parent.parent.parent


def f(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def another_value(value: Any) -> Any:
    return not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else value


def test_every_option_of_inductors_is_accepted() -> None:
    names = settings.names(settings.INDUCTOR)
    assert len(names) > 500
    for name in names:
        value: Any = torch._inductor.config
        for part in name.split(".") if name != "guard_filter_fn" else ():
            value = getattr(value, part)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            settings._said.discard(name)
            options.resolve(None, {name: value})
            kept = options.resolve(None, {name: another_value(value)})
        effect = settings.row_of(settings.INDUCTOR, name).effect
        assert not kept or effect == "mapped", name
        assert {w.category for w in said} <= {exc.IgnoredOption}
        if isinstance(value, (bool, int)):  # a value of its own
            assert len(said) == (effect == "none"), name


@pytest.mark.parametrize("module", settings.MODULES)
def test_every_setting_has_a_row(module: str) -> None:
    for name in settings.names(module):
        row = settings.row_of(module, name)
        assert row.effect in settings.EFFECTS and row.says, name


@pytest.mark.parametrize("module", settings.MODULES)
def test_no_row_is_for_nothing(module: str) -> None:
    names = settings.names(module)
    used = {settings.row_of(module, name).pattern for name in names}
    for row in settings.rows(module):
        assert row.pattern in used, f"{module}: {row.pattern}"


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"triton.cudagraphs": True}, {"cuda_graphs": "True"}),
        ({"max_autotune": True, "triton.cudagraphs": False}, {"max_autotune": "True", "cuda_graphs": "False"}),
        ({"max_autotune_gemm": True}, {"max_autotune": "True"}),
        ({"max_autotune_gemm": True, "max_autotune": False}, {"max_autotune": "False"}),
        ({"emulate_precision_casts": True, "keep_text": True}, {"eager_roundings": "True", "keep_text": "True"}),
        ({"fx_graph_cache": False}, {"cache": "False"}),
        ({"force-disable-caches": True}, {"cache": "False"}),
        ({"epilogue_fusion": True, "shape_padding": True}, {}),
    ],
)
def test_options_that_are_mapped(given: dict[str, Any], ours: dict[str, str]) -> None:
    assert options.resolve(None, given) == ours
    assert flashover.compile(f, options=given)._flashover_settings.values == ours


def test_what_has_no_effect_is_said_once() -> None:
    settings._said.discard("coordinate_descent_tuning")
    with pytest.warns(exc.IgnoredOption, match="coordinate_descent_tuning"):
        flashover.compile(f, options={"coordinate_descent_tuning": True})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flashover.compile(f, options={"coordinate_descent_tuning": True})
    with pytest.raises(exc.InvalidOptions, match="unknown option"):
        flashover.compile(f, options={"no_such_thing": True})
    with pytest.raises(exc.InvalidOptions, match="must be bool"):
        flashover.compile(f, options={"triton.cudagraphs": 3})


def test_configuration_that_becomes_options() -> None:
    with torch._functorch.config.patch(activation_memory_budget=0.5), torch._inductor.config.patch(max_autotune=True):
        assert options.resolve(None, None) == {"memory_budget": "50", "max_autotune": "True"}
        assert options.resolve(None, {"memory_budget": 70})["memory_budget"] == "70"
    with torch._inductor.config.patch({"cpp.weight_prepack": False}):
        assert options.resolve(None, None) == {"weight_copies": "0"}
    assert options.resolve(None, None) == {}


def sizes(compiled: Any) -> list[int]:
    for n in (3, 4, 5):
        assert torch.equal(compiled(torch.ones(n)), torch.full((n,), 2.0))
    return [len(v.sizes) for v in compiled.versions]


def test_dynamic_by_configuration() -> None:
    assert sizes(flashover.compile(f)) == [0, 1]
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        assert sizes(flashover.compile(f)) == [0, 0, 0]
        assert sizes(flashover.compile(f, dynamic=True)) == [1]
    with torch._dynamo.config.patch(assume_static_by_default=False):
        assert sizes(flashover.compile(f)) == [1]
        assert sizes(flashover.compile(f, dynamic=False)) == [0, 0, 0]


def test_recompiling_is_an_error() -> None:
    compiled = flashover.compile(f)
    compiled(torch.ones(2))
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled(torch.ones(2))
        with pytest.raises(exc.WouldRecompile, match="error_on_recompile"):
            compiled(torch.ones(2, dtype=torch.float64))
    assert torch.equal(compiled(torch.ones(2, dtype=torch.float64)), torch.full((2,), 2.0, dtype=torch.float64))


def test_the_limit_is_an_error() -> None:
    compiled = flashover.compile(f, dynamic=False, options={"recompile_limit": 1})
    compiled(torch.ones(2))
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for _ in range(2):
            with pytest.raises(exc.RecompileLimitExceeded):
                compiled(torch.ones(3))
    with pytest.warns(exc.EagerWarning, match="recompile_limit"):
        compiled(torch.ones(3))


def test_switched_off() -> None:
    compiled, other = flashover.compile(f), flashover.compile(f)
    compiled(torch.ones(2))
    with torch._dynamo.config.patch(disable=True):
        assert torch.equal(other(torch.ones(2)), torch.full((2,), 2.0))
        compiled(torch.ones(2))
    assert other.stats().eager_calls == 1 and not other.versions
    assert compiled.stats().eager_calls == 0


def test_the_page_is_made_anew() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        made = importlib.import_module("torch_settings")
    finally:
        sys.path.remove(str(ROOT / "tools"))
    assert made.PAGE.read_text() == made.text(), "python tools/torch_settings.py"


def test_the_command() -> None:
    def run(*arguments: str) -> Any:
        return python("-m", "flashover", "options", "--torch", *arguments)

    printed = run().stdout
    for module in settings.MODULES:
        for name in settings.names(module):
            assert f"{module}.{name}: " in printed
    done = run("no_such")
    assert done.returncode == 2 and "no_such" in done.stderr
