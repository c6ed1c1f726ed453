"""A hook of mkdocs: the site's navigation is what docs/README.md and docs/benchmarks/README.md say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
_SECTION = re.compile(r"^## (.+)$", re.M)
_ROW = re.compile(r"^\| \[([^]]+)\]\(([^)#]+\.md)\)", re.M)


def navigation() -> list[dict[str, Any]]:
    """One section for each heading of the index; the tables of measurement have an index of their own."""
    parts = _SECTION.split((DOCS / "README.md").read_text(encoding="utf-8"))
    nav: list[dict[str, Any]] = [{"Documentation": "README.md"}]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        pages = [{name[0].upper() + name[1:]: path} for name, path in _ROW.findall(body)]
        if title == "Measured":
            measured = (DOCS / "benchmarks" / "README.md").read_text(encoding="utf-8")
            pages = [{"Index": "benchmarks/README.md"}]
            pages += [{Path(path).stem: f"benchmarks/{path}"} for path in re.findall(r"\]\(([\w-]+\.md)\)", measured)]
        nav.append({title: pages})
    return nav


def on_config(config: Any) -> Any:
    config.nav = navigation()
    return config
