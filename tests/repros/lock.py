"""A multiprocessing lock and an RLock that are taken together, by `with`, by calls, across a graph break: nothing
raises, and after each call both are free, as in eager."""

import multiprocessing
import threading

import torch

import flashover

th, mpl = threading.RLock(), multiprocessing.RLock()


class Both:
    def __init__(self, locks):
        self.locks = locks

    def acquire(self):
        for lock in self.locks:
            lock.acquire()

    def release(self):
        for lock in self.locks[::-1]:
            lock.release()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *e):
        self.release()


both = Both([mpl, th])


def f(x):
    with both:
        pass
    return x * 2


def g(x):
    mpl.acquire()
    th.acquire()
    th.release()
    mpl.release()
    return x * 2


def h(x):
    mpl.acquire()
    x = x + 1
    th.acquire()
    x = x + 1
    th.release()
    print(end="")
    x = x + 1
    mpl.release()
    return x * 2


def k(x):
    """The lock is held where the graph ends, and by this thread."""
    with th:
        x = x + 1
        print(end="")
        assert th._is_owned()
        x = x * 3
    assert not th._is_owned()
    return x


for fn in (h, g, f, k):
    c = flashover.compile(fn)
    for _ in range(3):
        x = torch.randn(3)
        torch.testing.assert_close(c(x), fn(x))
        assert mpl._semlock._is_zero() is False and mpl._semlock._count() == 0, (fn.__name__, mpl)
        assert "count=0" in repr(th), (fn.__name__, th)
