"""The time of a first call grows about as the program does: four times the chained pointwise operators, parameters of a
training step or independent results take at most eight times the CPU time.

The seconds that an idle machine takes are measured by benchmarks/growth.py, which also has the programs.
"""
# process: fresh
# limit: 400

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))
import growth
import torch

import flashover

torch.set_num_threads(1)
growth.results(3)  # what the first of all calls takes besides
for program, sizes, bar in growth.ROWS:
    few, many = (program(n) for n in sizes[-2:])
    print(f"{program.__name__}: {few.cpu:.2f} s, {many.cpu:.2f} s of CPU time", flush=True)
    assert many.cpu <= 8 * few.cpu, f"{program.__name__}: {few.cpu:.2f} s of CPU time, then {many.cpu:.2f} s"
    assert many.cpu <= 6 * bar, f"{program.__name__}: {many.cpu:.2f} s of CPU time"  # six: neighbours slow a core down

before = flashover.compile_stats()["kernels"]
growth.results(1000)
assert flashover.compile_stats()["kernels"] - before <= 60, flashover.compile_stats()
