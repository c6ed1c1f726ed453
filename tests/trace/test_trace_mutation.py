"""In-place programs: the replayed trace equals eager in outputs and written inputs."""

from __future__ import annotations

import pytest
import torch
from in_place_programs import PROGRAMS
from trace_tools import check

from flashover import _C


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "grad"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_replay_equals_eager(name: str, mode: str) -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    with {"no_grad": torch.no_grad(), "inference_mode": torch.inference_mode(), "grad": torch.enable_grad()}[mode]:
        traced = check(PROGRAMS[name], (x, y))
    assert not traced.python_meta_ops or name in {
        "index_put",
        "masked_index_put",
        "foreach",
        "conj_views",
        "view_as_int",
    }, traced.python_meta_ops


def test_shared_storage() -> None:
    x = torch.randn(3, 3)

    def f(a, b):
        a.mul_(2)
        return b + 1

    with torch.no_grad():
        traced = _C.trace_function(lambda: [f(x, y)], [("x", "user", x), ("y", "user", y := x.t())])
    x2 = x.clone()
    assert torch.equal(traced.run([x2, x2.t()])[0], x2.t() + 1) and torch.equal(x2, x * 2)


def test_input_metadata_changes_decline() -> None:
    for change in (
        lambda x: x.t_(),
        lambda x: x.resize_(1),
        lambda x: x.set_(x * 2),
        lambda x: setattr(x, "data", x * 2),
        lambda x: x.requires_grad_(),
    ):
        x = torch.randn(3, 4)
        version, strides = x._version, x.stride()
        with pytest.raises(_C.Declined):
            _C.trace_function(lambda: [change(x), x + 1][1:], [("x", "user", x)])  # noqa: B023
        assert x._version == version and x.stride() == strides and not x.requires_grad
        assert (x + 1).sum().item() is not None
