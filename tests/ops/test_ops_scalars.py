"""Operators with a Python number or a tensor of one element, and functions at the ends of their range."""

import pytest
import torch

import flashover

F = torch.nn.functional
WHOLE_QUOTIENTS = {
    "trunc": lambda x, s: torch.div(x, s, rounding_mode="trunc"),
    "floor": lambda x, s: torch.div(x, s, rounding_mode="floor"),
    "floor_divide": lambda x, s: x // s,
    "remainder": lambda x, s: x % s,
    "fmod": lambda x, s: torch.fmod(x, s),
}
DIVISORS = {
    "number": lambda v: v,
    "f32 0-d": torch.tensor,
    "f64 0-d": lambda v: torch.tensor(v, dtype=torch.float64),
    "bf16 0-d": lambda v: torch.tensor(v, dtype=torch.bfloat16),
    "i64 of one element": lambda v: torch.tensor([max(int(v), 259)]),
}


def numbers(dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(801, generator=torch.Generator().manual_seed(0)) * 30).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("form", DIVISORS)
@pytest.mark.parametrize("name", WHOLE_QUOTIENTS)
def test_whole_quotients_are_eagers(name, form, dtype):
    """A divisor that is rounded to 16 bits before it is used moves quotients by one and more."""
    x = numbers(dtype)
    for value in (0.1, 0.3, 0.7, 2.5, 7.0):
        divisor = DIVISORS[form](value)

        def f(x, s=divisor):
            return WHOLE_QUOTIENTS[name](x, s)

        torch.testing.assert_close(flashover.compile(f)(x), f(x), rtol=0, atol=0, msg=lambda m, v=value: f"{v}: {m}")


REFUSED = {
    "alpha is a bool": (lambda x: torch.add(x, x, alpha=True), torch.float32),
    "alpha is no whole number": (lambda x: torch.add(x, x, alpha=0.5), torch.int64),
    "alpha overflows": (lambda x: torch.sub(x, x, alpha=1e30), torch.float16),
    "a bool is subtracted": (lambda x: torch.rsub(x, True), torch.float32),
    "from a bool": (lambda x: torch.rsub(x, 1.5), torch.bool),
    "fill is negative": (lambda x: torch.full_like(x, -0.1) + x, torch.uint8),
    "fill is above the largest": (lambda x: torch.full_like(x, 127.5) + x, torch.int8),
    "masked_fill is negative": (lambda x: x.masked_fill(x > 3, -0.1), torch.uint8),
    "fill_ is above the largest": (lambda x: x.clone().fill_(300), torch.int8),
    "fill_ is above the largest half": (lambda x: x.clone().fill_(70000.0), torch.float16),
    "eps overflows": (lambda x: x.logit(1e9), torch.float16),
    "lambda is infinite": (lambda x: F.softshrink(x, float("inf")), torch.float32),
    "lambda overflows": (lambda x: F.hardshrink(x, 1e30), torch.float16),
    "delta is NaN": (lambda x: F.huber_loss(x, x, delta=float("nan")), torch.float32),
    "beta is NaN": (lambda x: F.smooth_l1_loss(x, x, beta=float("nan")), torch.float32),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_number_that_eager_refuses_is_refused(why):
    f, dtype = REFUSED[why]
    x = numbers(torch.float32).to(dtype)
    with pytest.raises(Exception) as eager:
        f(x)
    with pytest.raises(type(eager.value)):
        flashover.compile(f)(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("f", [torch.sigmoid, lambda x: torch.log(torch.sigmoid(x)), F.silu])
def test_sigmoid_goes_on_to_the_smallest_numbers(f, dtype):
    """Down to -103 the result is a denormal number, of which the logarithm is finite. Eager's ends at -89."""
    x = torch.arange(-95, -1, 0.25).to(dtype)
    got = flashover.compile(lambda x: f(x))(x)
    want = f(x.double()).to(got.dtype)
    torch.testing.assert_close(got, want, rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=2e-43)


def test_erfinv_near_one():
    """The start of its iteration was made for floats: from 1 - 1e-13 on, doubles were wrong by up to 8 percent."""
    x = 1 - torch.logspace(-16, -1, 200, dtype=torch.float64).clamp_min(2**-53)
    x = torch.cat([x, -x, torch.linspace(-0.9, 0.9, 50, dtype=torch.float64)])
    got = flashover.compile(lambda x: torch.erfinv(x))(x)
    torch.testing.assert_close(got, torch.erfinv(x), rtol=1e-15, atol=0)


@pytest.mark.parametrize("first", [1.5, 2.5])
def test_whole_numbers_hold_no_nan(first):
    """A float that changes was converted by the kernel, whatever it was."""
    f = flashover.compile(lambda s: torch.full((3,), s, dtype=torch.int32))
    for value in (first, 3.5, 4.5):
        assert torch.equal(f(value), torch.full((3,), value, dtype=torch.int32))
    with pytest.raises(RuntimeError, match="overflow"):
        f(float("nan"))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("order", [2, 3, 0.5, -1, 1e10])
def test_norm_of_one_element_has_no_power(order, dynamic):
    """Powers of large numbers are infinite, those of small ones zero: eager takes none of a single element."""
    x = torch.tensor([[1e30], [1e-30], [-3.0]])
    f = flashover.compile(lambda x: torch.linalg.vector_norm(x, order, dim=1), dynamic=dynamic)
    assert torch.equal(f(x), x.abs().flatten())
    wide = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
    torch.testing.assert_close(f(wide), torch.linalg.vector_norm(wide, order, dim=1))


def test_padding_of_bytes_takes_no_negative_number():
    """The number is a float to `F.pad`, and a negative one of those is refused where an int would wrap."""
    f = flashover.compile(lambda x, s: F.pad(x, (1, 0), value=s))
    x = torch.arange(3, dtype=torch.uint8)
    for value in (1, 3, 7, 200):
        assert torch.equal(f(x, value), F.pad(x, (1, 0), value=value))
    with pytest.raises(RuntimeError, match="overflow"):
        f(x, -1)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("size", [1e30, 1e-30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [None, 0, 1])
def test_variances_are_summed_in_double(dim, dtype, size, training):
    """Squares of large floats are infinite and those of small ones zero; eager sums in double on the CPU."""

    def f(x):
        return x.std(dim), x.var(dim), *torch.std_mean(x, dim), x.var(dim, correction=0, keepdim=True)

    torch.manual_seed(0)
    x = (torch.randn(6, 40) * size).to(dtype).requires_grad_(training)
    for got, expected in zip(flashover.compile(f)(x), f(x), strict=True):
        torch.testing.assert_close(got, expected, atol=0, rtol=1e-2 if dtype is torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "norm", [lambda x: F.layer_norm(x, (10,)), lambda x: F.batch_norm(x, None, None, training=True)]
)
def test_an_infinite_variance_is_no_nan(norm, training):
    torch.manual_seed(0)
    x = (torch.randn(6, 10) * 1e30).requires_grad_(training)
    torch.testing.assert_close(flashover.compile(norm)(x), norm(x))
