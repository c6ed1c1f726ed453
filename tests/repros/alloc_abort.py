"""An allocation that fails in a call that has to be compiled again does not end the process: the call gives the right
result or raises MemoryError, and the next one is right."""

# process: fresh
# limit: 300

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fuzz"))
import failing_calls

if failing_calls.LIBRARY not in os.environ:
    failing_calls.run_again_with_library()

import torch

import flashover

SITES = 120

torch.set_num_threads(1)


def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.relu(x + 2).softmax(-1) @ w).sigmoid()


x, more, w = torch.randn(8, 32), torch.randn(16, 32), torch.randn(32, 16)
right = f(more, w)
failing = failing_calls.Failing()
compiled = flashover.compile(f)
compiled(x, w)


def is_survived(n: int) -> bool:
    """In a child: the n-th allocation of the next call fails."""
    result = right
    failing.arm(failing_calls.NEW, n)
    try:
        result = compiled(more, w)
    except MemoryError:
        pass
    finally:
        failing.disarm()
    return torch.allclose(result, right) and torch.allclose(compiled(more, w), right)


try:
    for n in range(1, SITES + 1):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if is_survived(n) else 1)
        status = os.waitpid(pid, 0)[1]
        assert status == 0, f"allocation {n}: wait status {status}"
finally:
    failing.remove_folder()
