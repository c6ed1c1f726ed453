"""Programs whose sizes change, as users have them: right at each size, and compiled twice."""

from __future__ import annotations

import pytest
import workloads


@pytest.mark.parametrize("name", workloads.NAMES)
def test_two_compiles_serve_the_sizes(name: str) -> None:
    assert workloads.check(name, "cpu", slice(0, 7, 2)) == 2
