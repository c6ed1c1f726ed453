"""tests/sizes on the GPU: tensors that they make without a device lie there, and so do those of the programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
SIZES = Path(__file__).resolve().parents[1] / "sizes"
# Those whose programs say where their tensors lie, or that look at the CPU's kernels, stay out.
FILES = (
    "test_small_sizes.py",
    "test_sizes_from_data.py",
    "test_training_over_data_sizes.py",
    "test_training_at_any_size.py",
    "test_python_on_sizes.py",
    "test_attention_at_any_size.py",
    "test_one_compile.py",
    "test_ints_as_sizes.py",
)
# What is otherwise on CUDA, and why.
OTHERWISE = {
    "test_small_sizes.py::test_of_nothing[attention of no batch]": "attention of no batch is asked for",
    "test_sizes_from_data.py::test_one_compile_serves_every_number_of_elements[nonzero]": "the stride of none is 1",
    "test_training_at_any_size.py::test_gradients[encoder-True]": "size 1 has a compile of its own",
    "test_training_at_any_size.py::test_gradients[encoder-None]": "size 1 has a compile of its own",
    "test_attention_at_any_size.py::test_a_batch_of_any_size[ones, expanded-False]": "batch 1 has its own",
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("file", FILES)
def test_on_the_gpu(file: str) -> None:
    left_out = [f"--deselect=tests/sizes/{name}" for name in OTHERWISE if name.startswith(file)]
    done = subprocess.run(
        [*PYTEST, *left_out, str(SIZES / file)],
        cwd=SIZES.parents[1],
        env={**os.environ, "FLASHOVER_TEST_DEVICE": "cuda"},
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
