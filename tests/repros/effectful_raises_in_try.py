"""An error of an operator with effects, which cannot run again, reaches the handlers of the program."""

# open: docs/limits.md
import torch

import flashover


@torch.library.custom_op("repro_raises::checked", mutates_args=())
def checked(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 5:
        raise ValueError("too much")
    return x.clone()


@checked.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def f(x: torch.Tensor) -> object:
    y = x * 2
    try:
        return checked(x) + y
    except ValueError as e:
        return str(e)


compiled = flashover.compile(f)
compiled(torch.ones(2))
assert compiled(torch.full((2,), 10.0)) == "too much"
