"""In place, a result may be of a dtype that the written tensor does not take: eager's error, no other numbers."""

import pytest
import torch

import flashover

aten = torch.ops.aten
PROGRAMS = {
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
    "div_": lambda x: aten.div_.Scalar(x.clone(), 2),
    "mul_": lambda x: aten.mul_.Scalar(x.clone(), 0.5),
    "foreach": lambda x: torch._foreach_mul_([x.clone()], 0.5),
    "sqrt_": lambda x: x.clone().sqrt_(),
    "out": lambda x: torch.div(x, 2, out=torch.empty_like(x)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("fullgraph", [False, True])
def test_it_is_eagers_error(name, fullgraph):
    x = torch.tensor([1, 2, 3])
    fast = flashover.compile(PROGRAMS[name], fullgraph=fullgraph)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="result type Float can't be cast to the desired output type Long"):
            fast(x)
    assert fast(x.float()) is not None


def test_operands_are_not_read_for_the_text_of_an_error():
    """The overload that does not take the arguments words an error, with their repr, before another one is chosen."""

    def f(a, dim, index, b):
        return aten.scatter(a, dim, index, b)

    given = torch.zeros(2, 3), -1, torch.tensor([[0]]), torch.ones(2, 3)
    assert torch.equal(flashover.compile(f, fullgraph=True)(*given), f(*given))
