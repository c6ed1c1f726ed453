# limit: 400
"""FLASHOVER_LOGS=plan prints the plans of calls that train, too; FLASHOVER_DUMP writes the source of each kernel."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import torch, flashover
w = torch.ones(4, requires_grad=%s)
flashover.compile(lambda x: (x * w).sin())(torch.ones(4))
"""


def run(grad, **variables):
    env = {**os.environ, **variables}
    return subprocess.run([sys.executable, "-c", PROGRAM % grad], env=env, capture_output=True, text=True, check=True)


for grad in (False, True):
    lines = run(grad, FLASHOVER_LOGS="plan").stderr
    assert lines.count("[flashover plan]") > 3, lines
    assert ("plan_backward" in lines) == grad, lines
    with tempfile.TemporaryDirectory() as folder:
        run(grad, FLASHOVER_DUMP=folder, FLASHOVER_CACHE_DIR="")
        sources = [n for n in os.listdir(folder) if 'extern "C"' in Path(folder, n).read_text()]
        assert len(sources) >= 1 + grad, os.listdir(folder)
