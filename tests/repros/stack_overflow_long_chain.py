"""A chain of 20,000 pointwise operators compiles, and one of 600 on a thread with the smallest stack that eager runs it
on, in inference and in training.
"""
# limit: 300

import threading
from functools import partial

import torch

import flashover


def chain(n: int):
    lines = "".join(" x = (x + 1).relu()\n" if i % 2 else " x = x * 1.001\n" for i in range(n * 2 // 3))
    space: dict = {}
    exec("def f(x):\n" + lines + " return x\n", space)
    return space["f"]


def inference(function) -> None:
    x = torch.randn(16, 64)
    want = function(x)
    torch.testing.assert_close(flashover.compile(function)(x), want)


def training(function) -> None:
    x = torch.randn(16, 64, requires_grad=True)
    (want,) = torch.autograd.grad(function(x).sum(), x)
    (got,) = torch.autograd.grad(flashover.compile(function)(x).sum(), x)
    torch.testing.assert_close(got, want)


def on_thread(work, stack: int) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as e:
            failures.append(e)

    before = threading.stack_size(stack)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    threading.stack_size(before)
    assert not failures, failures


for size in (64 << 10, 256 << 10):
    for work in (inference, training):
        on_thread(partial(work, chain(600)), size)
inference(chain(20_000))
training(chain(20_000))
assert flashover.compile_stats()["graphs"] >= 6, flashover.compile_stats()
