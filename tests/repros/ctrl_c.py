"""Ctrl-C while a kernel is built is answered at once, also with a compiler that takes its time, and the next call is
right."""

import os
import signal
import threading
import time

import _compilers
import torch

import flashover

folder = _compilers.use('[ -e {folder}/slow ] && sleep 6\nexec g++ "$@"')
flashover.compile(lambda x: x + 1)(torch.ones(2))
open(folder + "/slow", "w").close()
sent: list[float] = []


def interrupt() -> None:
    time.sleep(1)
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)


signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread(target=interrupt, daemon=True).start()
compiled = flashover.compile(lambda x: (x * 2).relu().softmax(-1))
x = torch.ones(4, 4)
try:
    compiled(x)
    raise AssertionError("no KeyboardInterrupt")
except KeyboardInterrupt:
    took = time.monotonic() - sent[0]
assert took < 1, f"KeyboardInterrupt after {took:.1f} s"
os.unlink(folder + "/slow")
torch.testing.assert_close(compiled(x), (x * 2).relu().softmax(-1))
assert flashover.compile_stats()["kernels"] >= 2
