"""Python numbers that differ from call to call: inputs of the compiled code, not a compilation a value."""

import collections
import math

import pytest
import torch
from comparing import same

import flashover

X = torch.linspace(-2, 2, 12).reshape(3, 4)


def frames():
    return flashover.compile_stats()["frames"]


def agree(f, calls, compiles=2, tol=1e-6):
    flashover.reset()
    fast = flashover.compile(f)
    before = frames()
    for args in calls:
        same(fast(*args), f(*args), rtol=tol, atol=tol)
    assert frames() - before <= compiles, frames() - before


@pytest.mark.parametrize(
    "f",
    [
        lambda x, a: x * a,
        lambda x, a: a - x,
        lambda x, a: a / (x + 5),
        lambda x, a: (x + 3) / a,
        lambda x, a: torch.add(x, x, alpha=a),
        lambda x, a: torch.addcmul(x, x, x, value=-a),
        lambda x, a: torch.lerp(x, x * 2, a),
        lambda x, a: torch.where(x > a, x, a),
        lambda x, a: x.masked_fill(x > 0, a),
        lambda x, a: x * (1 - a**3) + math.sqrt(a) / 2,
        lambda x, a: torch.full_like(x, a) + x,
        lambda x, a: x + torch.tensor(a),
        lambda x, a: x.clone().fill_(a),
        lambda x, a: torch.clamp(x, -a, a),
        lambda x, a: torch.nn.functional.leaky_relu(x, a),
        lambda x, a: torch.nn.functional.dropout(x, 0.0) * a + max(a, 0.5),
        lambda x, a: (x * a, a * 2, [a]),
        lambda x, a: x.double() * a,
        lambda x, a: (x > 0).sum() * a,
        lambda x, a: x.to(torch.int64) * 2 + a,
        lambda x, a: a**x,
        lambda x, a: x**2 * a % 3,
        lambda x, a: torch._foreach_add([x, x], [a, 2.0]),
        lambda x, a: torch._foreach_mul([x, x * 2], a),
    ],
)
def test_a_float_argument(f):
    agree(f, [(X, v) for v in (0.25, 0.5, 0.75, 0.125, 0.3, 0.7, 0.9, 0.1, 0.2, 0.35, 0.45)], compiles=20)


def test_it_compiles_twice():
    agree(lambda x, a: x * a + a, [(X, 0.1 * i) for i in range(1, 15)])
    agree(lambda x, a: torch.add(x, x, alpha=-a / 2), [(X, 0.1 * i) for i in range(1, 15)])


def test_specials_and_dtypes():
    calls = [(X, v) for v in (1.0, 2.0, math.inf, -math.inf, math.nan, -0.0, 0.0, 1e-40, 3e38)]
    flashover.reset()
    f = lambda x, a: (x * a, a - x, 1.0 / (x + a))  # noqa: E731
    fast = flashover.compile(f)
    for args in calls:
        for got, wanted in zip(fast(*args), f(*args), strict=True):
            torch.testing.assert_close(got, wanted, equal_nan=True)
            assert (torch.signbit(got) == torch.signbit(wanted)).logical_or(torch.isnan(wanted)).all()
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert fast(X.to(dtype), 0.7)[0].dtype == dtype


def test_overflow_is_eagers():
    f = lambda x, a: x.masked_fill(x > 0, a)  # noqa: E731
    fast = flashover.compile(f)
    for v in (1.0, 2.0, 3.0):
        fast(X.half(), v)
    with pytest.raises(RuntimeError, match="overflow"):
        fast(X.half(), 1e6)


def test_comparisons_are_guards():
    def f(x, a):
        return x * a if a > 0.5 else x - a

    agree(f, [(X, v) for v in (0.1, 0.2, 0.9, 0.8, 0.3, 0.7, 0.6, 0.15, 0.95, 0.5)], compiles=4)


def test_zero_division_is_raised():
    f = lambda x, a: x * (1 / a)  # noqa: E731
    fast = flashover.compile(f)
    for v in (1.0, 2.0, 3.0):
        fast(X, v)
    with pytest.raises(ZeroDivisionError):
        fast(X, 0.0)
    torch.testing.assert_close(fast(X, 4.0), f(X, 4.0))


def test_what_is_looked_at_is_guarded():
    for f in (
        lambda x, a: (x * a, f"{a:.3f}"),
        lambda x, a: (x * a, str(a), {a: 1}, a in (0.5, 0.25)),
        lambda x, a: (x * a, sorted([a, 0.3])[0], sum([a, 1.0])),
        lambda x, a: (x * a, [1, 2, 3][int(a)], int(a) + 1),
        lambda x, a: (x * a, (a, 2.0) == (0.5, 2.0), hash(a)),
        lambda x, a: (x * a, round(a, 1), float(a).is_integer(), a == 0.5),
        lambda x, a: (x * a, "%.2f" % a, repr([a])),  # noqa: UP031
    ):
        agree(f, [(X, v) for v in (0.25, 0.5, 1.75, 0.5, 2.0)], compiles=6)


def test_attributes_globals_and_counters():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.count, self.total = 1.0, 0, 0.0

        def forward(self, x):
            self.count += 1
            self.total = self.total + self.scale
            return x * self.scale + x / (1 - 0.9**self.count) + self.total

    flashover.reset()
    a, b = Model(), Model()
    fast = flashover.compile(a)
    before = frames()
    for i in range(15):
        a.scale = b.scale = 0.1 * i + 0.05
        torch.testing.assert_close(fast(X), b(X))
        assert (a.count, a.total) == (b.count, b.total)
    assert frames() - before <= 4


def test_items_that_flow_back():
    def f(x, step, decay):
        step += 1
        n = step.item()
        return x * (1 - decay**n) / n

    flashover.reset()
    s, t = torch.tensor(0.0), torch.tensor(0.0)
    fast = flashover.compile(f)
    before = frames()
    for _ in range(12):
        torch.testing.assert_close(fast(X, s, 0.9), f(X, t, 0.9))
        assert s == t
    assert frames() - before <= 1


def test_items_after_a_break_do_not_compile_each_time():
    def f(x):
        n = x.abs().max().item()
        return x / n

    flashover.reset()
    fast = flashover.compile(f)
    before = frames()
    for i in range(1, 14):
        torch.testing.assert_close(fast(X * i), f(X * i))
    assert frames() - before <= 4


def test_ints_stay_right():
    f = lambda x, n: (x * n, x[:n], x.repeat(n, 1), list(range(n)), torch.zeros(n), n // 2)  # noqa: E731
    agree(f, [(X, n) for n in (1, 2, 3, 1, 2, 3)], compiles=8)
    agree(lambda x, n: x * n + n, [(X, n) for n in range(-3, 12)])
    agree(lambda x, n: x.to(torch.int8) + n, [(X, n) for n in (1, 2, 3, 4)], compiles=8)


def test_gradients_through_a_number():
    f = lambda x, a: ((x * a) ** 2 / (1 + a)).sum()  # noqa: E731
    flashover.reset()
    fast = flashover.compile(f)
    for v in (0.5, 0.6, 0.7, 0.8):
        x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
        # Two forwards before the backward: the first one's number is kept.
        first = fast(x, v)
        fast(x.detach().requires_grad_(), v + 1)
        first.backward()
        f(y, v).backward()
        torch.testing.assert_close(x.grad, y.grad)


def test_cells_and_lists_that_count():
    def make():
        n = 0
        last = None
        items = [0, 5, 1.5]

        def count(x, i):
            nonlocal n, last
            n += 1
            last = i
            items[0] += 1
            items[2] *= 2
            return x + n, last, list(items), items[0] + [1][0]

        return count, items

    flashover.reset()
    (plain, items), (other, others) = make(), make()
    fast = flashover.compile(other)
    before = frames()
    for i in range(8):
        same(fast(X, i), plain(X, i), rtol=1e-6, atol=1e-6)
        assert items == others
    assert frames() - before <= 2


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: (x + 1, f"step {i}", f"{i:03}", str(i), f"{i!r:>5}|{i}"),
        lambda x, i: (x * (i & 3), x * (1 << i), divmod(i, 3), +i, ~i, i | 8, i ^ 1, i >> 1),
        lambda x, i: (x * max(i, 2, 5), min(i, 3, 1), bool(i + 1)),
        lambda x, i: (x, [i] + [1], (i,) + (2,), {"a": i} if "b" not in {"c": i} else None),  # noqa: RUF005
        lambda x, i: (torch.full((3,), i), torch.full((2,), float(i)), torch.tensor(i), x),
        lambda x, i: (torch.arange(4) + i, torch.arange(4) < i, (torch.arange(4) * i) % 7, x),
    ],
)
def test_more_of_what_ints_go_through(f):
    agree(f, [(X, i) for i in range(1, 9)])


def test_strings_of_numbers_that_are_looked_at():
    kinds = {"k1": 2.0, "k2": 3.0, "k3": 5.0}

    def f(x, i):
        name = f"k{i}"
        return x * kinds[name] + len(name * i) + (name == "k2") + ("3" in name), name.upper(), dict([(name, i)])  # noqa: C406

    flashover.reset()
    fast = flashover.compile(f)
    for i in (1, 2, 3, 2, 1, 3, 3):
        same(fast(X, i), f(X, i), rtol=1e-6, atol=1e-6)


class Layers:
    def __init__(self):
        self.l1, self.l2 = 2.0, 3.0


def test_names_made_of_numbers():
    def f(o, x, i):
        setattr(o, f"seen{i}", i)
        return x * getattr(o, f"l{i}")

    flashover.reset()
    fast = flashover.compile(f)
    o, p = Layers(), Layers()
    for i in (1, 2, 1, 2, 2):
        same(fast(o, X, i), f(p, X, i), rtol=1e-6, atol=1e-6)
        assert vars(o) == vars(p)


def test_new_of_sizes():
    def f(x, n):
        made = x.new(n, 2).fill_(1), x.new(x.shape).zero_(), x.new(), torch.Tensor.new(x, 3).fill_(n)
        return (*made, collections.OrderedDict.fromkeys("ab", x + n))

    fast = flashover.compile(f, fullgraph=True)
    for n in (1, 2, 3):
        x = torch.ones(2, 3, dtype=torch.float64)
        torch.testing.assert_close(fast(x, n), f(x, n))


def test_new_tensor():
    def f(x, i):
        return x.new_tensor(i) + x, x.new_tensor([1, 2]), x.new_tensor([i, 1.0], dtype=torch.int64)

    agree(f, [(X, i) for i in range(4)], compiles=4)
    assert flashover.compile(f, fullgraph=True)(X, 1)[1].dtype == X.dtype


class Scaled(torch.nn.Module):
    scale = 1.0

    def forward(self, x):
        return x * self.scale + x / Constants.STEP


class Constants:
    STEP = 1


def test_numbers_of_classes():
    flashover.reset()
    model = Scaled()
    fast = flashover.compile(model)
    before = frames()
    try:
        for i in range(1, 25):
            Scaled.scale, Constants.STEP = i / 7, i
            torch.testing.assert_close(fast(X), model(X))
        assert frames() - before <= 4
        model.scale = 5.0  # in the object now, not in its class
        torch.testing.assert_close(fast(X), X * 5 + X / Constants.STEP)
        del model.scale
        Scaled.scale = 2  # another type
        torch.testing.assert_close(fast(X), model(X))
        Scaled.scale = property(lambda self: 3.0)
        torch.testing.assert_close(fast(X), X * 3 + X / Constants.STEP)
    finally:
        Scaled.scale, Constants.STEP = 1.0, 1


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: x.narrow(0, i, 1) + 1,
        lambda x, i: x[i] * 2,
        lambda x, i: x[:, i : i + 2],
        lambda x, i: x.select(1, i) + i,
        lambda x, i: torch.roll(x, i, 0),
        lambda x, i: x**i,
        lambda x, i: x.repeat(i + 1, 1),
        lambda x, i: x.unfold(1, i + 1, 1) * 2,
        lambda x, i: x.new_zeros(i, 4) + i,
    ],
)
def test_integers_that_torch_computes_with(f):
    """Compiled for each value (their symbols are read), and compiled at all."""
    flashover.reset()
    fast = flashover.compile(f, fullgraph=True)
    for i in (0, 1, 2, 0, 1):
        torch.testing.assert_close(fast(X, i), f(X, i))


def test_a_result_that_is_a_view_of_an_input_behind_numbers() -> None:
    def f(x: torch.Tensor, i: int, n: float) -> tuple[torch.Tensor, ...]:
        return x[i] * n, x[i : i + 2], x[:, 1], x.narrow(0, i, 1).sum()

    c = flashover.compile(f, fullgraph=True)
    for i, n in ((1, 2.5), (2, 3.5), (3, 4.5), (0, 5.5)):
        a, b = (torch.arange(25.0).reshape(5, 5).requires_grad_() for _ in range(2))
        got, want = c(a, i, n), f(b, i, n)
        torch.testing.assert_close(got, want)
        torch.stack([t.sum() for t in got]).sum().backward()
        torch.stack([t.sum() for t in want]).sum().backward()
        torch.testing.assert_close(a.grad, b.grad)


def test_numbers_that_c_code_looks_at() -> None:
    """What a Python function returns to C (a key of sorted, __getitem__ under sum) is seen: its value is guarded."""
    order, values = [1], collections.UserList([0.5, 2.0])

    def program(x: torch.Tensor) -> torch.Tensor:
        first = sorted([(3, 1.0), (1, 2.0), (2, 3.0)], key=lambda p: p[0] * order[0])[0]
        few = list(filter(lambda v: v * order[0] > 1, values))
        return x * first[1] + sum(values) + max(values) + len(few)

    for backend in ("eager", "flashover"):
        fast = flashover.compile(program, backend=backend, options={"recompile_limit": 64})
        for sign, value in zip([1, -1, 2, -2, 3, -3, 1], [0.5, 0.7, 3.0, 0.1, 0.2, 5.0, 0.3], strict=True):
            order[0], values.data[0] = sign, value
            assert torch.equal(fast(torch.ones(2)), program(torch.ones(2)))


def test_parts_by_methods() -> None:
    def f(x: torch.Tensor, i: int) -> torch.Tensor:
        return (
            x.select(0, i) * 2
            + x.narrow(-1, i, 2).sum()
            + torch.select(x, 1, i).sum()
            + torch.narrow(x, 0, i, 3).mean()
        )

    c = flashover.compile(f, fullgraph=True)
    x = torch.arange(64.0).view(8, 8)
    for i in range(6):
        torch.testing.assert_close(c(x, i), f(x, i))
    assert len(c.entries()) <= 2
    d = flashover.compile(f)
    for i in (0, 1, 6):
        try:
            want = f(x, i)
        except RuntimeError as e:
            with pytest.raises(RuntimeError, match=r"narrow|start"):
                d(x, i)
            assert i == 6, e
        else:
            torch.testing.assert_close(d(x, i), want)
