"""Imported first by every generator, so that `python tests/fuzz/fuzz_NAME.py` finds the shared modules, the programs
that tests keep beside them, and the package where PYTHONPATH names no other. (pytest has them from pyproject.toml.)
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [str(ROOT / "tests" / name) for name in ("support", "language", "breaks")]
sys.path[1:1] = [folder for folder in FOLDERS if folder not in sys.path]
sys.path.append(str(ROOT / "python"))
