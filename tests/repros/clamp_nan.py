"""A bound that is NaN means what it does in eager: one number alone for clamp bounds nothing, others make NaN."""

import torch

import flashover

x = torch.cat([torch.arange(35.0) - 3, torch.tensor([float("nan"), float("inf"), -float("inf")])])
NAN = float("nan")
for f in (
    lambda x: x.clamp(min=NAN),
    lambda x: x.clamp(max=NAN),
    lambda x: x.clamp(NAN, 1.0),
    lambda x: x.clamp(1.0, NAN),
    lambda x: x.clamp(NAN, NAN),
    lambda x: torch.clamp_min(x, NAN),
    lambda x: torch.clamp_max(x, NAN),
    lambda x: torch.clip(x, NAN),
    lambda x: torch.clamp(x, min=torch.tensor(NAN)),
    lambda x: torch.clamp(x, min=torch.full_like(x, NAN)),
    lambda x: torch.clamp(x, max=torch.tensor(NAN), min=torch.tensor(0.0)),
    lambda x: torch.clone(x).clamp_(min=NAN),
    lambda x: torch.maximum(x, torch.tensor(NAN)),
    lambda x: torch.fmin(x, torch.tensor(NAN)),
):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        a = x.to(dtype).clone().requires_grad_()
        b = a.detach().clone().requires_grad_()
        wanted, got = f(a), flashover.compile(lambda x, f=f: f(x))(b)
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
        wanted.sum().backward()
        got.sum().backward()
        torch.testing.assert_close(b.grad, a.grad, rtol=0, atol=0, equal_nan=True)

# Its gradient is another one in eager's vector code than in its scalar code, so only the result is compared.
bounded = torch.nn.functional.hardtanh(x, NAN, 1.0)
torch.testing.assert_close(
    flashover.compile(lambda x: torch.nn.functional.hardtanh(x, NAN, 1.0))(x), bounded, rtol=0, atol=0, equal_nan=True
)
