"""A loop over tqdm(...) in compiled code gives what eager gives, call after call, and leaves tqdm's locks released."""
# needs: tqdm

import torch
from tqdm import tqdm

import flashover


def f(x):
    for t in tqdm(reversed(range(8)), desc="loop", total=8):
        x = x * 0.9 + t
    return x


x = torch.randn(3)
want = f(x)
c = flashover.compile(f)
for _ in range(3):
    torch.testing.assert_close(c(x), want)
for lock in tqdm.get_lock().locks:
    assert lock.acquire(False), lock
    lock.release()
