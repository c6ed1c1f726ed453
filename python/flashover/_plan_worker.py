"""A process that compiles programs for a machine that has less: `python -m flashover._plan_worker FOLDER`.

FOLDER/request.json has the programs' texts, options and threads; plans go to FOLDER/NUMBER.plan. What the process may
use of the processor, its environment says (_library_levels.py).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from flashover import _C


def main(folder: Path) -> None:
    request = json.loads((folder / "request.json").read_text())
    torch.set_num_threads(request["threads"])
    for number, text in enumerate(request["programs"]):
        (folder / f"{number}.plan").write_bytes(_C.plan_of_program(text, request["options"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
