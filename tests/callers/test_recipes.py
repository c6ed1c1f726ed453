"""Libraries that call torch.compile themselves: a whole program for each, which checks itself. Where a library is not
installed its test says so."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

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
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
