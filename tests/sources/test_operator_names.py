"""The operators that stages name are constants (src/ops/names.h): each is one of torch's, and nobody quotes them."""

from __future__ import annotations

import re
from pathlib import Path

import torch

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())
ROW = re.compile(r'ATEN_NAME\((\w+), "aten\.(\w+)\.(\w+)"\)')


def test_each_name_is_an_operator_of_torch() -> None:
    rows = ROW.findall((ROOT / "src" / "ops" / "aten_names.def").read_text())
    assert len(rows) > 300
    for constant, name, overload in rows:
        assert overload in getattr(torch.ops.aten, name).overloads(), (name, overload)
        plain = name.strip("_") if name.startswith("__") else name
        assert constant == (plain if overload == "default" else f"{plain}_{overload}")


def test_names_are_quoted_in_ops_alone() -> None:
    """But for beginnings of names, which are no operators ("aten.index."), and torch's own operator prim::device."""
    quoted = []
    for path in [*(ROOT / "src").rglob("*.cpp"), *(ROOT / "src").rglob("*.h")]:
        if "ops" in path.relative_to(ROOT / "src").parts[:1] or path.stem.endswith("_test"):
            continue
        for line in path.read_text().splitlines():
            code = line.split("//")[0]
            quoted += [(path.name, q) for q in re.findall(r'"((?:aten|prim)\.\w+\.\w+|prim\.\w+)"', code)]
    assert quoted == [("selection.cpp", "prim.device.default")]
