"""Programs under a locale with a decimal comma and grouped digits, as GUI toolkits set it. By hand, more of them:
`LOCPATH=/tmp/l FLASHOVER_TEST_LOCALE=de_DE.UTF-8 python tests/fuzz_programs.py --count 200`; pytest takes the same two
variables (tests/conftest.py), so that any test can be run so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
NAME = "de_DE.UTF-8"


@pytest.fixture(scope="module")
def comma_locale(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a child that can set such a locale."""
    folder = tmp_path_factory.mktemp("locales")
    made = subprocess.run(
        ["localedef", "-i", "de_DE", "-f", "UTF-8", str(folder / NAME)], capture_output=True, check=False
    )
    child = dict(os.environ) | {"FLASHOVER_TEST_LOCALE": NAME, "FLASHOVER_CACHE_DIR": ""}
    if made.returncode <= 1 and (folder / NAME).exists():  # 1: made, with warnings
        child["LOCPATH"] = str(folder)
    probe = "import locale; locale.setlocale(locale.LC_ALL, 'de_DE.UTF-8'); print(locale.localeconv()['decimal_point'])"
    said = subprocess.run([sys.executable, "-c", probe], env=child, capture_output=True, text=True, check=False)
    if said.stdout.strip() != ",":
        pytest.skip("no locale with a decimal comma can be made here (apt install locales)")
    return child


def test_random_programs(comma_locale: dict[str, str]) -> None:
    arguments = [str(TESTS / "fuzz_programs.py"), "--start", "0", "--count", "40", "--seconds", "300"]
    out = subprocess.run([sys.executable, *arguments], env=comma_locale, capture_output=True, text=True, check=False)
    assert out.returncode == 0, (out.stdout + out.stderr)[-5000:]


def test_option_rows_and_texts(comma_locale: dict[str, str]) -> None:
    """Representations print and parse back (goldens of the passes), numbers as operands, options."""
    tests = ["test_softmax.py", "test_known_elements.py", "test_moving_parts.py"]
    out = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *(str(TESTS / t) for t in tests)],
        env=comma_locale,
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.returncode == 0, (out.stdout + out.stderr)[-5000:]
