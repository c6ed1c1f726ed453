"""Plans on a CUDA device, written by hand: launches, parameters, arenas, streams, alignment, externs, frozen values."""

from __future__ import annotations

import contextlib
import threading
import warnings

import pytest
import torch

from flashover import _C

pytestmark = pytest.mark.gpu

NONE = "00000000000000000000000000000000"


def _kernels() -> dict[str, bytes]:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    @triton.jit
    def add(a, b, out, n, X: tl.constexpr):
        i = tl.program_id(0) * X + tl.arange(0, X)
        m = i < n
        tl.store(out + i, tl.load(a + i, mask=m) + tl.load(b + i, mask=m), mask=m)

    @triton.jit
    def twice(a, out, X: tl.constexpr):
        i = tl.program_id(0) * X + tl.arange(0, X)
        tl.store(out + i, 2 * tl.load(a + i))

    @triton.jit
    def total(a, out, n, X: tl.constexpr):
        i = tl.arange(0, X)
        tl.store(out, tl.sum(tl.load(a + i, mask=i < n, other=0.0)))

    major, minor = torch.cuda.get_device_capability()
    target = GPUTarget("cuda", major * 10 + minor, 32)

    def build(fn, signature: dict[str, str], pointers: int) -> bytes:
        attrs = {(i,): [["tt.divisibility", 16]] for i in range(pointers)}
        made = triton.compile(
            ASTSource(fn, signature | {"X": "constexpr"}, {"X": 1024}, attrs), target=target, options={"num_warps": 4}
        )
        return made.asm["cubin"], made.metadata.shared

    return {
        "add": build(add, {"a": "*fp32", "b": "*fp32", "out": "*fp32", "n": "i32"}, 3),
        "twice": build(twice, {"a": "*fp32", "out": "*fp32"}, 2),
        "total": build(total, {"a": "*fp32", "out": "*fp32", "n": "i64"}, 2),
    }


@pytest.fixture(scope="module")
def kernels() -> dict[str, bytes]:
    return _kernels()


def load(
    kernels: dict[str, bytes], used: list[str], inputs: str, body: str, arena: int = 0, graphs: bool = False
) -> _C._Plan:
    major, minor = torch.cuda.get_device_capability()
    head = f'plan "sm_{major * 10 + minor}" {{\n  device cuda:0\n'
    if arena:
        head += f"  arena {arena}\n"
    params = {
        "add": "grid [(n0 + 1023) // 1024, 1, 1] threads 128 shared {} params [pointer, pointer, pointer, i32, scratch, profile]",
        "twice": "grid [1, 1, 1] threads 128 shared {} params [pointer, pointer, scratch, profile]",
        "total": "grid [1, 1, 1] threads 128 shared {} params [pointer, pointer, i64, scratch, profile]",
    }
    text = head + inputs
    for i in range(len(used)):
        text += f"  binary b{i} {i:032x}\n"
    for i, name in enumerate(used):
        text += f'  kernel k{i} = "{name}" in b{i} cuda {params[name].format(kernels[name][1])}\n'
    return _C._load_plan(text + body + "}\n", [kernels[name][0] for name in used], graphs)


ADD_IN = "  input 0 : f32[3000]@cuda:0 user\n  input 1 : f32[3000]@cuda:0 user\n"
ADD = """  t0 : f32[3000]@cuda:0 = input 0
  t1 : f32[3000]@cuda:0 = input 1
  t2 : f32[3000]@cuda:0 = output 0
  launch k0(t0, t1 -> t2) sizes [3000]
  return t2 : f32[3000]@cuda:0
"""


def test_adds(kernels: dict[str, bytes]) -> None:
    plan = load(kernels, ["add"], ADD_IN, ADD)
    a, b = torch.randn(3000, device="cuda"), torch.randn(3000, device="cuda")
    for _ in range(3):
        assert torch.equal(plan(a, b)[0], a + b)


def test_inputs_off_alignment(kernels: dict[str, bytes]) -> None:
    plan = load(kernels, ["add"], ADD_IN, ADD)
    a, b = torch.randn(3001, device="cuda")[1:], torch.randn(3000, device="cuda")
    assert torch.equal(plan(a, b)[0], a + b)


def test_mutated_input_off_alignment(kernels: dict[str, bytes]) -> None:
    body = """  t0 : f32[3000]@cuda:0 = input 0
  t1 : f32[3000]@cuda:0 = input 1
  launch k0(t0, t1 -> t0) sizes [3000]
"""
    plan = load(kernels, ["add"], ADD_IN, body)
    a, b = torch.randn(3003, device="cuda")[3:], torch.randn(3000, device="cuda")
    expected, version = a + b, a._version
    plan(a, b)
    assert torch.equal(a, expected) and a._version > version


def test_side_stream_and_threads(kernels: dict[str, bytes]) -> None:
    plan = load(kernels, ["add"], ADD_IN, ADD)
    a, b = torch.randn(3000, device="cuda"), torch.randn(3000, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        c = a * 3
        out = plan(c, b)[0]
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(out, a * 3 + b)
    wrong: list[str] = []

    def work() -> None:
        try:
            for _ in range(50):
                if not torch.equal(plan(a, b)[0], a + b):
                    wrong.append("values")
        except Exception as e:
            wrong.append(repr(e))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_arena_extern_and_reduction(kernels: dict[str, bytes]) -> None:
    body = """  t0 : f32[32,32]@cuda:0 = input 0
  t1 : f32[32,32]@cuda:0 = arena 0
  t2 : f32[32,32]@cuda:0 = arena 4096
  t3 : f32[]@cuda:0 = output 0
  launch k0(t0 -> t1)
  call out aten.mm.out(t1, t0) -> t2
  launch k1(t2 -> t3) sizes [1024]
  return t3 : f32[]@cuda:0
"""
    plan = load(kernels, ["twice", "total"], "  input 0 : f32[32,32]@cuda:0 user\n", body, arena=8192)
    x = torch.randn(32, 32, device="cuda")
    for _ in range(3):
        torch.testing.assert_close(plan(x)[0], (2 * x @ x).sum(), rtol=1e-3, atol=1e-2)


# x @ (2 * parameter), the second factor frozen: inputs and body of the plan
PRODUCT_WITH_FROZEN = (
    "  input 0 : f32[32,32]@cuda:0 user\n  input 1 : f32[32,32]@cuda:0 param frozen\n",
    """  t0 : f32[32,32]@cuda:0 = input 0
  t1 : f32[32,32]@cuda:0 = input 1
  t2 : f32[32,32]@cuda:0 = frozen
  t3 : f32[32,32]@cuda:0 = output 0
  frozen launch k0(t1 -> t2)
  call out aten.mm.out(t0, t2) -> t3
  return t3 : f32[32,32]@cuda:0
""",
)


def test_frozen_on_another_stream(kernels: dict[str, bytes]) -> None:
    plan = load(kernels, ["twice"], *PRODUCT_WITH_FROZEN)
    x, w = torch.randn(32, 32, device="cuda"), torch.nn.Parameter(torch.randn(32, 32, device="cuda"))
    torch.cuda._sleep(20_000_000)
    with torch.no_grad():
        first = plan(x, w)[0]
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            second = plan(x, w)[0]
        torch.cuda.synchronize()
        assert torch.equal(first, second) and plan.counters["frozen_runs"] == 1
        torch.testing.assert_close(first, 2 * x @ w, rtol=1e-3, atol=1e-2)
        w.add_(1)
        torch.testing.assert_close(plan(x, w)[0], 2 * x @ w, rtol=1e-3, atol=1e-2)
        assert plan.counters["frozen_runs"] == 2
        alias = w.data
        alias.mul_(3)  # no version moves
        torch.testing.assert_close(plan(x, w)[0], 2 * x @ w, rtol=1e-3, atol=1e-2)


def test_graph_takes_each_calls_addresses(kernels: dict[str, bytes]) -> None:
    plan = load(kernels, ["add"], ADD_IN, ADD, graphs=True)
    kept, expected = [], []
    for i in range(6):
        a, b = torch.randn(3000, device="cuda"), torch.randn(3000, device="cuda")
        kept.append(plan(a, b)[0])
        expected.append(a + b)
        if i % 2:
            del a, b
    assert plan.counters["graph_replays"] == 5
    for x, y in zip(kept, expected, strict=True):
        assert torch.equal(x, y), "an output was written again"
    a = torch.randn(3001, device="cuda")[1:]  # off alignment: the ordinary way
    assert torch.equal(plan(a, expected[0])[0], a + expected[0])
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        out = plan(expected[1], expected[2])[0]
    stream.synchronize()
    assert torch.equal(out, expected[1] + expected[2])


def test_graph_with_operators_and_mutation(kernels: dict[str, bytes]) -> None:
    body = """  t0 : f32[32,32]@cuda:0 = input 0
  t1 : f32[32,32]@cuda:0 = arena 0
  t2 : f32[32,32]@cuda:0 = output 0
  t3 : f32[32,32]@cuda:0 = extern
  launch k0(t0 -> t1)
  call out aten.mm.out(t1, t0) -> t2
  call aten.mm.default(t2, t1) -> t3
  launch k0(t3 -> t0)
  return t2 : f32[32,32]@cuda:0
  return t3 : f32[32,32]@cuda:0
"""
    plan = load(kernels, ["twice"], "  input 0 : f32[32,32]@cuda:0 user\n", body, arena=4096, graphs=True)
    kept = []
    for _ in range(4):
        x = torch.randn(32, 32, device="cuda")
        first = 2 * x @ x
        second = first @ (2 * x)
        expected = [first, second, 2 * second]
        out = plan(x)
        kept.append(([*out, x], expected))
    assert plan.counters["graph_replays"] == 3
    for got, want in kept:
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-2)


def test_graph_follows_parameters(kernels: dict[str, bytes]) -> None:
    plan = load(kernels, ["twice"], *PRODUCT_WITH_FROZEN, graphs=True)
    w = torch.nn.Parameter(torch.randn(32, 32, device="cuda"))
    with torch.no_grad():
        for i in range(6):
            x = torch.randn(32, 32, device="cuda")
            torch.testing.assert_close(plan(x, w)[0], 2 * x @ w, rtol=1e-3, atol=1e-2)
            if i == 3:
                w.mul_(-1)
    assert plan.counters["graph_replays"] == 5


def test_graph_of_the_users_own(kernels: dict[str, bytes]) -> None:
    """The program records: the plan is recorded with it."""
    plan = load(kernels, ["add"], ADD_IN, ADD, graphs=True)
    a, b = torch.randn(3000, device="cuda"), torch.randn(3000, device="cuda")
    plan(a, b), plan(a, b)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = plan(a, b)[0]
    a.fill_(1)
    b.fill_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((out == 3).all())


def books_are_right(kernels: dict[str, bytes]) -> None:
    """Torch's allocators believe in no recording that is none, and graphs can be made."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # (asserts that each pool is used as often as it says)
    host = torch.empty(1 << 16, pin_memory=True)
    del host
    torch._C._host_emptyCache()
    torch.rand(4, device="cuda")
    plan = load(kernels, ["add"], ADD_IN, ADD, graphs=True)
    a, b = torch.randn(3000, device="cuda"), torch.randn(3000, device="cuda")
    for _ in range(4):
        assert torch.equal(plan(a, b)[0], a + b)
    assert plan.counters["graph_replays"] == 3


def test_a_pools_last_graph_goes_before_the_next_is_recorded(
    kernels: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = torch.randn(3000, device="cuda"), torch.randn(3000, device="cuda")
    plans = [load(kernels, ["add"], ADD_IN, ADD, graphs=True) for _ in range(3)]
    for _ in range(3):
        plans[0](a, b)
    assert plans[0].counters["graph_replays"] == 2
    plans[1](a, b)
    asked = torch.cuda.mem_get_info

    def forgets() -> tuple[int, int]:  # asked right before a graph is recorded
        if len(plans) == 3:
            del plans[0]
        return asked()

    monkeypatch.setattr(torch.cuda, "mem_get_info", forgets)
    for _ in range(3):
        assert torch.equal(plans[-2](a, b)[0], a + b)
    assert len(plans) == 2 and plans[0].counters["graph_replays"] == 3
    books_are_right(kernels)


def test_a_graph_goes_while_another_is_recorded(kernels: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    from flashover import recording

    a, b = torch.randn(3000, device="cuda"), torch.randn(3000, device="cuda")
    plans = [load(kernels, ["add"], ADD_IN, ADD, graphs=True) for _ in range(2)]
    for _ in range(3):
        plans[0](a, b)
    other = plans[1]
    other(a, b)
    end = recording.Recording.end

    def forgets(self: recording.Recording) -> int:
        del plans[0]
        return end(self)

    monkeypatch.setattr(recording.Recording, "end", forgets)
    for _ in range(3):
        assert torch.equal(other(a, b)[0], a + b)
    assert len(plans) == 1 and other.counters["graph_replays"] == 3
    monkeypatch.undo()
    books_are_right(kernels)


@pytest.mark.unsanitized
@pytest.mark.parametrize("where", ["begin", "midst", "end"])
@pytest.mark.parametrize("alone", [True, False])
def test_a_recording_that_fails(
    kernels: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, where: str, alone: bool
) -> None:
    """The call is made the ordinary way, and torch's allocators know of no recording."""
    from flashover import recording

    a, b = torch.randn(3000, device="cuda"), torch.randn(3000, device="cuda")
    good = load(kernels, ["add"], ADD_IN, ADD, graphs=True)
    if not alone:
        for _ in range(3):
            good(a, b)
    begin, end = recording.Recording.__init__, recording.Recording.end

    def midst(self: recording.Recording, pool: recording.Pool) -> None:
        begin(self, pool)
        try:
            a.sum().item()  # waits: what a recording stream must not
        except RuntimeError:
            self.abandon()
            raise

    def at_end(self: recording.Recording) -> int:
        with contextlib.suppress(RuntimeError):
            a.sum().item()
        return end(self)

    class Graph(torch.cuda.CUDAGraph):
        def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
            raise RuntimeError("not today")

    if where == "midst":
        monkeypatch.setattr(recording.Recording, "__init__", midst)
    elif where == "end":
        monkeypatch.setattr(recording.Recording, "end", at_end)
    else:
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    bad = load(kernels, ["add"], ADD_IN, ADD, graphs=True)
    for _ in range(4):
        assert torch.equal(bad(a, b)[0], a + b)
    assert bad.counters["graph_replays"] == 0
    monkeypatch.undo()
    books_are_right(kernels)
    before = good.counters["graph_replays"]
    for _ in range(3):
        assert torch.equal(good(a, b)[0], a + b)
    assert good.counters["graph_replays"] >= before + 2
    del good, bad
    books_are_right(kernels)


def test_wrong_device_or_binary_declines(kernels: dict[str, bytes]) -> None:
    with pytest.raises(Exception, match="cubin"):
        _C._load_plan(
            'plan "sm_90" {\n  device cuda:0\n' + ADD_IN + f"  binary b0 {NONE}\n"
            '  kernel k0 = "add" in b0 cuda grid [1, 1, 1] threads 128 shared 0 params [pointer, pointer, pointer, i32, scratch, profile]\n'
            + ADD
            + "}\n",
            [b"no cubin"],
        )


@pytest.mark.unsanitized
def test_launch_overhead(kernels: dict[str, bytes]) -> None:
    """Not a benchmark: a call of 20 launches must stay in the range of the driver's own cost."""
    import time

    lines = "".join("  launch k0(t0, t1 -> t2) sizes [3000]\n" for _ in range(20))
    plan = load(kernels, ["add"], ADD_IN, ADD.replace("  launch k0(t0, t1 -> t2) sizes [3000]\n", lines))
    one = load(kernels, ["add"], ADD_IN, ADD)
    a, b = torch.randn(3000, device="cuda"), torch.randn(3000, device="cuda")

    def per_call(p: _C._Plan) -> float:
        best = 1e9
        for _ in range(10):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(20):
                p(a, b)
            best = min(best, (time.perf_counter() - start) / 20 * 1e6)
        return best

    single, twenty = per_call(one), per_call(plan)
    print(f"\none launch {single:.1f} us a call, twenty {twenty:.1f} us: {(twenty - single) / 19:.2f} us a launch")
    if twenty > 150:
        warnings.warn(f"20 launches take {twenty:.0f} us", stacklevel=1)
    assert twenty < 400
