"""A module that holds a compiled one loads its own state_dict, that of the ordinary module and that of torch.compile
(`0._orig_mod.weight`), whether orig_mod_prefix is set or not."""

import torch
from torch import nn

import flashover


def holder(compile) -> nn.Module:
    inner = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    return nn.Sequential(compile(inner), nn.ModuleList([compile(nn.Linear(2, 2))]))


def prefixed(m: nn.Module):
    return flashover.compile(m, options={"orig_mod_prefix": True})


kinds = (lambda m: m, flashover.compile, prefixed, lambda m: torch.compile(m, backend="eager"))
saved = [holder(kind).state_dict() for kind in kinds]
assert "0.0.weight" in saved[1]
assert list(saved[2]) == list(saved[3])
for kind in (flashover.compile, prefixed):
    for state in saved:
        before = dict(state)
        m = holder(kind)
        assert str(m.load_state_dict(state)) == "<All keys matched successfully>"
        assert dict(state).keys() == before.keys()
        for value, want in zip(m.state_dict().values(), state.values(), strict=True):
            assert torch.equal(value, want)
    m = holder(kind)
    wrong = {k.replace("weight", "strange"): v for k, v in saved[3].items()}
    found = m.load_state_dict(wrong, strict=False)
    assert len(found.missing_keys) == 3
    assert len(found.unexpected_keys) == 3
