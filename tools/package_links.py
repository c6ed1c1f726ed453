"""A package around a core that is built elsewhere (FLASHOVER_PACKAGE): links to the daily one's Python files."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def make_package(package: Path) -> Path:
    """The folder to put on the path. The core lies in `package`, or will."""
    package.mkdir(parents=True, exist_ok=True)
    for source in (ROOT / "python" / "flashover").iterdir():
        link = package / source.name
        if source.suffix == ".so" or source.name == "__pycache__" or link.exists():
            continue
        link.unlink(missing_ok=True)  # of a file that is gone
        link.symlink_to(source)
    return package.parent


def pythonpath(package: Path) -> list[str]:
    """pyproject.toml's, with this package in the daily one's place."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    return [str(make_package(package)) if folder == "python" else folder for folder in settings["pythonpath"]]
