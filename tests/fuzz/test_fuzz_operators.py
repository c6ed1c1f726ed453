"""Operators at other sizes than the first call's, a part of fuzz_operators.py: one sample each, and more of those that
it found wrong."""

import fuzz_operators
import pytest
from op_samples import op_db

# select_scatter at an index that is not there, masks and weights of other sizes, ...: compiled code went on.
FOUND = {
    "select_scatter", "slice_scatter", "diagonal_scatter", "gather", "scatter", "scatter_add", "index_put",
    "nonzero_static", "nn.functional.nll_loss", "nn.functional.cross_entropy", "nn.functional.avg_pool3d",
    "__getitem__", "masked_select", "nn.functional.mse_loss", "broadcast_tensors",
}  # fmt: skip
PARTS = 24
SWEPT = fuzz_operators.swept()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("alone", [False, True], ids=["all tensors", "one of them"])
@pytest.mark.parametrize("part", range(PARTS))
def test_one_sample_of_each(part: int, alone: bool) -> None:
    report = fuzz_operators.Report()
    for op in SWEPT[part::PARTS]:
        fuzz_operators.check(op, report, samples=1, alone=alone)
    assert report.count["samples"] > 5
    assert report.wrong == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [True, False], ids=["symbols", "numbers"])
@pytest.mark.parametrize("name", sorted(FOUND))
def test_what_was_found(name: str, dynamic: bool) -> None:
    report = fuzz_operators.Report()
    for op in (op for op in op_db if op.name == name):
        for alone in (False, True):
            fuzz_operators.check(op, report, samples=6, alone=alone, dynamic=dynamic)
    assert report.count["samples"] > 0
    assert report.wrong == []
