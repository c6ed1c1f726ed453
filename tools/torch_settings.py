"""Writes docs/user/torch-settings.md: what torch.compile's settings mean here, from flashover/_torch_settings.py.

python tools/torch_settings.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "user" / "torch-settings.md"
sys.path.insert(0, str(ROOT / "python"))

from flashover import _torch_settings as settings  # noqa: E402

OPENING = """# torch.compile's settings

(Written by `python tools/torch_settings.py`.)

Every option of Inductor's is accepted by `flashover.compile(options=)`, and where `flashover.install()` is in effect by
`torch.compile(options=)`. Configuration that the program sets in torch's modules may stay. What each means here:
"""
CLOSING = """`*` stands for the rest of a name. `python -m flashover options --torch` lists every setting of the
installed torch. A pattern above another one goes first.
"""


def lines() -> Iterator[str]:
    yield OPENING
    yield "| effect | |\n|---|---|"
    for effect, meaning in settings.EFFECTS.items():
        yield f"| {effect} | {meaning} |"
    for module in settings.MODULES:
        yield f"\n## {module}\n\n| setting | effect | |\n|---|---|---|"
        for row in settings.rows(module):
            yield f"| `{row.pattern}` | {row.effect} | {row.says} |"
        if module == settings.COMPILER:
            yield "| the others | | names for settings of `torch._dynamo.config`: see there |"
    yield ""
    yield CLOSING


def text() -> str:
    return "\n".join(lines())


if __name__ == "__main__":
    PAGE.write_text(text())
