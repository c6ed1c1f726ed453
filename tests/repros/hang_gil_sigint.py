"""A compiler that hangs stops nothing: other threads run, Ctrl-C is answered at once, and a process that is killed
leaves no compiler behind."""

import os
import signal
import subprocess
import sys
import threading
import time

import _compilers
import torch

import flashover

_compilers.use("sleep 751 &\nexec sleep 751")


def sleepers() -> int:
    out = subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True).stdout
    return out.split("\n").count("sleep 751")


longest = 0.0


def tick() -> None:
    global longest
    last = time.monotonic()
    while True:
        time.sleep(0.01)
        now = time.monotonic()
        longest, last = max(longest, now - last), now


def build(x: torch.Tensor) -> torch.Tensor:
    return flashover.compile(lambda x: x.sin() + 1)(x)


x = torch.randn(4)
flashover.compile(lambda x: x.cos())  # nothing yet
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread(target=tick, daemon=True).start()
threading.Timer(2.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
start = time.monotonic()
try:
    build(x)
    raise AssertionError("no KeyboardInterrupt")
except KeyboardInterrupt:
    took = time.monotonic() - start
assert took < 3, f"sent after 2 s, back after {took:.1f} s"
assert longest < 0.9, f"another thread stood still for {longest:.1f} s"
assert sleepers() == 0, "the compiler still runs"

for number in (signal.SIGKILL, signal.SIGTERM):
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        build(x)
        os._exit(0)
    for _ in range(200):
        time.sleep(0.05)
        if sleepers() == 2:
            break
    assert sleepers() == 2
    os.kill(pid, number)
    os.waitpid(pid, 0)
    time.sleep(0.5)
    assert sleepers() == 0, f"signal {number} left the compiler running"
sys.exit(0)
