"""Programs that draw, through the pipeline to Triton kernels in Triton's interpreter (TRITON_INTERPRET=1): prints one
JSON object, name -> what is wrong, or null."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import philox_reference as reference
import torch
from trace_tools import Program, tensors_of, trace, trained
from triton_tools import Runner

from flashover import _C

MOST = 512  # threads of a pretended GPU: grids that go round
SEED, OFFSET = 0x123456789ABCDEF, 4 * ((1 << 32) - 2)  # the counter's carry is on the way
CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor], dict[str, int]]] = {}


def add(name: str, function: Callable[..., Any], *args: torch.Tensor, operators: int = 0) -> None:
    CASES[name] = (function, list(args), {"operators": operators})


class Drawing(Runner):
    """Answers for the generator."""

    def __init__(self, program: dict[str, Any]) -> None:
        super().__init__(program)
        self.offset, self.states = OFFSET, 0

    def step(self, step: dict[str, Any], tensors: list[Any]) -> None:
        if step["kind"] != "call" or step["op"] != "flashover.philox_state.default":
            return super().step(step, tensors)
        tensors[step["writes"][0]] = torch.tensor([SEED, self.offset])
        self.offset += step["args"][0]
        self.states += 1
        return None


class Eager(torch.utils._python_dispatch.TorchDispatchMode):
    """Eager as a CUDA device of MOST threads would draw."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = OFFSET

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func)

        def draw(numel: int) -> int:
            at = self.offset
            self.offset += reference.increment(numel, MOST)
            return at

        if name == "aten.native_dropout.default":
            x, p, _ = args
            mask = reference.kept(x, p, MOST, SEED, draw(x.numel()))
            m = torch.float64 if x.dtype == torch.float64 else torch.float32
            keep = torch.tensor(1 - p, dtype=m)
            scale = (1.0 / keep.double()).to(m)
            return (x.to(m) * mask.to(m) * scale).to(x.dtype), mask
        if name in ("aten.bernoulli.p", "aten.bernoulli_.float"):
            x, p = args[0], args[1]
            u = reference.uniform(x.numel(), 1, MOST, SEED, draw(x.numel())).view(x.shape)
            out = (u < torch.tensor(p, dtype=torch.float32)).to(x.dtype)
            return x.copy_(out) if name.endswith("float") else out
        if name in ("aten.rand.default", "aten.rand_like.default", "aten.randn.default", "aten.randn_like.default"):
            like = func(*args, **kwargs)
            at = draw(like.numel())
            if "randn" in name:
                return reference.normal(like.numel(), MOST, SEED, at).view(like.shape).to(like.dtype)
            u = reference.uniform(like.numel(), 1, MOST, SEED, at).view(like.shape).to(like.dtype)
            return torch.where(u == 1, torch.zeros_like(u), u)
        if name in ("aten.uniform_.default", "aten.normal_.default"):
            x, a, b = (*args, *(0.0, 1.0)[len(args) - 1 :])[:3]
            at = draw(x.numel())
            if "normal" in name:
                return x.copy_(reference.normal(x.numel(), MOST, SEED, at).view(x.shape) * b + a)
            lo, hi = (torch.tensor(v, dtype=torch.float32) for v in (a, b))
            u = reference.uniform(x.numel(), 1, MOST, SEED, at).view(x.shape)
            v = (u.double() * (hi - lo).double() + lo.double()).float()
            return x.copy_(torch.where(v == hi, lo, v))
        return func(*args, **kwargs)


@torch.library.custom_op("flashover_random::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def drop(x: torch.Tensor, p: float = 0.1) -> torch.Tensor:
    return torch.native_dropout(x, p, True)[0]


def given(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*sizes).to(dtype)


torch.manual_seed(0)
for d in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
    for n in (1, 7, 1024, 4098, 8200) if d in (torch.float32, torch.bfloat16) else (255, 5000):
        add(f"dropout {d} {n}", lambda x: torch.native_dropout(x * 2, 0.3, True), given(n, dtype=d))
add("rows", lambda x: torch.softmax(drop(x), -1), given(30, 64))
add(
    "rows bf16",
    lambda x, r: torch.nn.functional.layer_norm(drop(x) + r, (768,)),
    *(given(9, 768, dtype=torch.bfloat16) for _ in "xr"),
)
add("long rows", lambda x: torch.softmax(drop(x), -1), given(2, 20000, dtype=torch.bfloat16))
add("odd rows", lambda x: drop(torch.softmax(x, -1)), given(12, 33))
add("turned", lambda x: drop(x).transpose(0, 1).contiguous() + 1, given(64, 96))
add("turned before", lambda x: drop(x.transpose(0, 1).contiguous()), given(64, 96))
add("columns", lambda x: drop(x).sum(0), given(300, 40))
add("channels last", lambda x: drop(x, 0.5) * 2, given(2, 8, 6, 10).to(memory_format=torch.channels_last))
add("reshaped", lambda x: drop(x).view(40, 3, 8).permute(1, 0, 2).reshape(3, 320) * 2, given(24, 40))
add("several", lambda x: drop(drop(drop(x) + 1, 0.5) * 2, 0.7), given(100, 20))
add(
    "one state on each side",
    lambda x: drop(x) * torch.multinomial(torch.ones(1), 1) + drop(x),
    given(64, 8),
    operators=1,
)
add("an operator that may draw", lambda x: drop(twice(drop(x))), given(64, 8), operators=1)
add("unused", lambda x: (drop(x), torch.bernoulli(x, 0.5))[1] + drop(x), given(64, 8))
add("a part", lambda x: drop(x[1:]), given(65, 8), operators=1)
add("trained", trained(lambda x, w: torch.tanh(drop(x @ w) + x)), *(given(64, 64).requires_grad_() for _ in "xw"))
add("trained bf16", trained(lambda x: drop(torch.softmax(x, -1))), given(64, 40, dtype=torch.bfloat16).requires_grad_())
for n in (1, 100, 3000, 5001):
    add(f"bernoulli {n}", lambda x: torch.bernoulli(x, 0.3), given(n))
    add(f"bernoulli_ {n}", lambda x: x * x.new_empty(x.shape).bernoulli_(0.7), given(n, dtype=torch.bfloat16))
    add(f"rand {n}", lambda x: torch.rand_like(x) + torch.rand(x.shape, dtype=torch.float16), given(n))
    add(f"randn {n}", lambda x: torch.randn_like(x) * 2 + torch.randn(x.shape), given(n))
    add(f"uniform_ {n}", lambda x: torch.empty(x.shape).uniform_(-0.3, 1.7) + x, given(n))
    add(f"normal_ {n}", lambda x: torch.empty(x.shape).normal_(2, 0.5) + x, given(n))


def copies(args: list[torch.Tensor]) -> list[torch.Tensor]:
    return [a.detach().clone(memory_format=torch.preserve_format).requires_grad_(a.requires_grad) for a in args]


def check(name: str) -> str | None:
    function, args, facts = CASES[name]
    traced = trace(Program(function, copies(args)))
    program = _C.triton_program(traced.text, processors=8, random_threads=MOST)
    random = [s["op"] for s in program["steps"] if s["kind"] == "call" and "mm" not in s["op"]]
    operators = sum(op != "flashover.philox_state.default" for op in random)
    if operators != facts["operators"]:
        return f"operators {random}"
    if facts["operators"]:
        if name == "a part":
            return None  # eager's numbers depend on where it begins
        if len(random) - operators != 2:
            return f"one state must not stand for both sides of another operator: {random}"
    elif len(random) != 1:
        return f"more than one state: {random}"
    runner = Drawing(program)
    try:
        got = runner.run(list(traced.inputs))
    except Exception:
        return traceback.format_exc() + "\n".join(k["text"] for k in program["kernels"])
    with Eager() as eager:
        want = tensors_of(function(*copies(args)))
    if eager.offset != runner.offset:
        return f"offset {runner.offset}, not {eager.offset}"
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 2e-5}
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"{i}: {a.dtype} {tuple(a.shape)} for {b.dtype} {tuple(b.shape)}"
        # (Triton's interpreter does not round bf16 as the device does.)
        exact = name.startswith(("dropout", "bernoulli", "rand ", "uniform", "unused")) and a.dtype != torch.bfloat16
        t = 0 if exact else tolerance.get(a.dtype, 1e-7)
        if not torch.allclose(a, b, rtol=t, atol=t):
            wrong = int((a != b).sum())
            return f"{i}: {wrong} of {a.numel()} differ\n" + "\n".join(
                [*program["loops"], *(k["text"] for k in program["kernels"])]
            )
    return None


if __name__ == "__main__":
    result = {}
    for n in sys.argv[1:] or list(CASES):
        try:
            result[n] = check(n)
        except Exception:
            result[n] = traceback.format_exc()
    print("RESULT" + json.dumps(result))
