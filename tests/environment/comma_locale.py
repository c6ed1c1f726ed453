"""Makes a locale with a decimal comma and grouped digits, as GUI toolkits set it: nothing but its numbers differs from
the C locale, so that localedef takes a blink instead of half a minute.

    python tests/environment/comma_locale.py /tmp/l
    LOCPATH=/tmp/l FLASHOVER_TEST_LOCALE=comma python tests/fuzz/fuzz_programs.py --count 200

pytest takes the same two variables (tests/conftest.py), so that any test can be run so.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAME = "comma"
SOURCE = """comment_char %
escape_char /
LC_NUMERIC
decimal_point ","
thousands_sep "."
grouping 3;3
END LC_NUMERIC
"""


def make(folder: Path) -> str:
    """The name of the locale made in `folder`, which LOCPATH has to name; empty where it cannot be made here."""
    source = folder / "comma.src"
    source.write_text(SOURCE)
    command = ["localedef", "-c", "-i", str(source), "-f", "ANSI_X3.4-1968", str(folder / NAME)]
    try:
        subprocess.run(command, capture_output=True, check=False)  # 1: made, with warnings
    except FileNotFoundError:
        return ""
    return NAME if (folder / NAME / "LC_NUMERIC").exists() else ""


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    print(make(Path(sys.argv[1])) or sys.exit("localedef cannot make it here (apt install locales)"))
