"""Libraries that call torch.compile themselves: a whole program for each, which checks itself. Where a library is not
installed its test says so."""

import importlib.util
from pathlib import Path

import pytest
from interpreters import python

RECIPES = {
    "trainer": ("transformers", "accelerate"),
    "accelerated": ("accelerate",),
    "with_lightning": ("lightning",),
    "diffused": ("diffusers",),
    "per_block": (),
}


def test_every_recipe_is_run() -> None:
    assert {p.stem for p in (Path(__file__).parent / "recipes").glob("*.py")} == set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_recipe(name: str) -> None:
    for needs in RECIPES[name]:
        if importlib.util.find_spec(needs) is None:
            pytest.skip(f"{needs} is not installed")
    program = Path(__file__).parent / "recipes" / f"{name}.py"
    done = python(program, timeout=170)
    assert done.returncode == 0, done.stderr[-4000:]
