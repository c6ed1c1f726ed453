"""For errors about a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """The middle of a sentence: what stands before the list of names there are."""
    near = difflib.get_close_matches(str(given), list(known), n=1)
    return f"did you mean {near[0]!r}? There are" if near else "there are"
