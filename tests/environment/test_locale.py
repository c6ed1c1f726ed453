"""Programs under a locale with a decimal comma and grouped digits; by hand, more of them: see comma_locale.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import comma_locale
import pytest

TESTS = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a child that sets such a locale."""
    folder = tmp_path_factory.mktemp("locales")
    name = comma_locale.make(folder)
    if not name:
        pytest.skip("no locale with a decimal comma can be made here (apt install locales)")
    child = dict(os.environ) | {"FLASHOVER_TEST_LOCALE": name, "FLASHOVER_CACHE_DIR": "", "LOCPATH": str(folder)}
    probe = f"import locale; locale.setlocale(locale.LC_ALL, '{name}'); print(locale.localeconv()['decimal_point'])"
    said = subprocess.run([sys.executable, "-c", probe], env=child, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == ","
    return child


def test_random_programs(environment: dict[str, str]) -> None:
    arguments = [str(TESTS / "fuzz" / "fuzz_programs.py"), "--start", "0", "--count", "40", "--seconds", "300"]
    out = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert out.returncode == 0, (out.stdout + out.stderr)[-5000:]


def test_option_rows_and_texts(environment: dict[str, str]) -> None:
    """Representations print and parse back (goldens of the passes), numbers as operands, options."""
    tests = [
        "cpu/test_softmax.py",
        "guards/test_values_of_small_buffers.py",
        "guards/test_subscripts_by_numbers.py",
        "errors/test_checks_that_raise.py",
        "language/test_func_transforms.py::test_an_ensemble_over_a_module_without_data",
    ]
    out = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *(str(TESTS / t) for t in tests)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.returncode == 0, (out.stdout + out.stderr)[-5000:]
