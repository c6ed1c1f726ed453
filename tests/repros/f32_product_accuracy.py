"""f32 products of our own (through the bf16x3 split with AMX, by panels elsewhere) are as near to the fp64 product as
eager's, within a factor of two: the largest and the rms error, for ordinary, ill-scaled and cancelling rows."""

import torch

import flashover

ROWS, INNER, COLUMNS = 256, 1024, 1600


def operands() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    half = torch.randn(ROWS, INNER // 2)
    twin = torch.randn(INNER // 2, COLUMNS)
    return {
        "randn": (torch.randn(ROWS, INNER), torch.randn(INNER, COLUMNS)),
        "rand": (torch.rand(ROWS, INNER), torch.rand(INNER, COLUMNS)),
        "scaled rows": (
            torch.randn(ROWS, INNER) * torch.logspace(-12, 12, ROWS)[:, None],
            torch.randn(INNER, COLUMNS),
        ),
        "cancelling": (torch.cat([half, -half], 1), torch.cat([twin, twin + 1e-3 * torch.randn_like(twin)])),
    }


def errors(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[float, float]:
    """The largest and the rms error, each element by its own scale."""
    scale = a.double().abs() @ b.double().abs()
    error = (result.double() - a.double() @ b.double()).abs() / scale
    return error.max().item(), error.square().mean().sqrt().item()


torch.manual_seed(0)
for name, (a, b) in operands().items():
    layer = torch.nn.Linear(INNER, COLUMNS, bias=False)
    layer.weight = torch.nn.Parameter(b.t().contiguous(), requires_grad=False)
    with torch.no_grad():
        pairs = {
            "mm": (torch.mm(a, b), flashover.compile(torch.mm)(a, b)),
            "linear": (layer(a), flashover.compile(layer)(a)),
        }
    for what, (eager, compiled) in pairs.items():
        ours, theirs = errors(compiled, a, b), errors(eager, a, b)
        assert all(x <= 2 * y + 1e-9 for x, y in zip(ours, theirs, strict=True)), f"{name}, {what}: {ours}, {theirs}"
