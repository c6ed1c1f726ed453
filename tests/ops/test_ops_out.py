"""`out=` of any dtype: what eager writes, computed in the dtype that eager computes in, or eager's error."""

import itertools

import pytest
import torch

import flashover

OPERATORS = {
    "sum": lambda x, o, d: torch.sum(x, 0, dtype=d, out=o),
    "mean": lambda x, o, d: torch.mean(x, 0, dtype=d, out=o),
    "prod": lambda x, o, d: torch.prod(x, 0, dtype=d, out=o),
    "cumsum": lambda x, o, d: torch.cumsum(x, 0, dtype=d, out=o),
    "norm": lambda x, o, d: torch.linalg.vector_norm(x, 2, 0, dtype=d, out=o),
    "softmax": lambda x, o, d: torch.softmax(x, 0, dtype=d, out=o),
    "mm": lambda x, o, d: torch.mm(x, x, out=o),
    "addmm": lambda x, o, d: torch.addmm(x, x, x, out=o),
    "matmul": lambda x, o, d: torch.matmul(x, x, out=o),
    "floor": lambda x, o, d: torch.floor(x, out=o),
    "abs": lambda x, o, d: torch.abs(x, out=o),
    "neg": lambda x, o, d: torch.neg(x, out=o),
    "exp": lambda x, o, d: torch.exp(x, out=o),
    "add": lambda x, o, d: torch.add(x, x, out=o),
    "kron": lambda x, o, d: torch.kron(x[:1, 0], x, out=o),
}
OVER_ROWS = ("sum", "mean", "prod", "norm")
TAKE_DTYPE = (*OVER_ROWS, "cumsum", "softmax")
DTYPES = (torch.float32, torch.float64, torch.int64)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPERATORS)
def test_dtypes(name):
    f = OPERATORS[name]
    x = torch.linspace(-3, 3, 64 * 64).view(64, 64).cos()
    checked = 0
    for given, of_out, asked in itertools.product(DTYPES, DTYPES, (None, *DTYPES)):
        if asked is not None and name not in TAKE_DTYPE:
            continue
        a, b = (torch.zeros(64 if name in OVER_ROWS else (64, 64), dtype=of_out) for _ in range(2))
        y = (x if given.is_floating_point else x * 4).to(given)
        try:
            f(y, a, asked)
        except RuntimeError as e:
            with pytest.raises(RuntimeError) as refusal:
                flashover.compile(f)(y, b, asked)
            assert str(refusal.value) == str(e)
            continue
        finally:
            flashover.reset()
        flashover.compile(f)(y, b, asked)
        fine = of_out == torch.float64 and asked != torch.float32 and (given == of_out or name in TAKE_DTYPE)
        tolerance = 1e-12 if fine else 1e-4
        torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance)
        checked += 1
    assert checked > 0


def outer(a, b, o):
    torch.kron(a, b, out=o)
    return o + 1


def outer_into_new(a, b):
    o = torch.zeros(4, 4)
    torch.kron(a, b, out=o[:])
    return o


def through_an_unsafe_view(a):
    torch.ops.aten._unsafe_view(a, [4]).add_(1)
    return a * 2


def behind_an_unsafe_view(a):
    b = a + 1
    c = torch.ops.aten._unsafe_view(b, [-1])
    b.mul_(2)
    return b, c


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("f", [outer, outer_into_new, through_an_unsafe_view, behind_an_unsafe_view])
def test_memory_of_an_unsafe_view_is_that_of_its_argument(f, dynamic):
    a, b = torch.randn(2, 2), torch.randn(2, 2)
    given = (a, b, torch.zeros(4, 4))[: f.__code__.co_argcount]
    copies = [t.clone() for t in given]
    expected, got = f(*given), flashover.compile(f, fullgraph=True, dynamic=dynamic)(*copies)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(copies, list(given))


@pytest.mark.parametrize("number", [int, float])
@pytest.mark.parametrize("sizes", [(3,), (0,), (2, 2)])
def test_no_number_of_several_elements(number, sizes):
    with pytest.raises(ValueError, match="only one element tensors can be converted to Python scalars"):
        flashover.compile(lambda x: number(x.sin()))(torch.ones(sizes))


def test_a_norm_in_a_narrower_dtype_is_refused():
    x = torch.randn(3, 3, dtype=torch.float64)
    for f in (torch.linalg.vector_norm, torch.linalg.norm):
        with pytest.raises(RuntimeError, match="convertible without narrowing"):
            flashover.compile(lambda x, f=f: f(x, 2, 0, dtype=torch.float32))(x)
