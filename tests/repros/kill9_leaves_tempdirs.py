"""What killed processes leave in the temporary folder is removed by the next one that builds; folders in use stay."""

import os
import random
import signal
import sys
import tempfile
import time

import torch

import flashover

folder = tempfile.mkdtemp()
os.environ["TMPDIR"] = folder
x = torch.randn(8, 32)


def build(number: int) -> None:
    torch.testing.assert_close(flashover.compile(lambda x: (x * number).sigmoid() + 1)(x), (x * number).sigmoid() + 1)


draw = random.Random(1)
seen = 0
for number in range(24):
    pid = os.fork()
    if pid == 0:
        build(number)
        os._exit(0)
    end = time.monotonic() + 20
    while not os.listdir(folder) and time.monotonic() < end:  # what the one before left is swept first
        time.sleep(0.001)
    time.sleep(draw.uniform(0, 0.05))
    seen += bool(os.listdir(folder))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
assert seen > 12, "the processes were not killed while they built"
# (The killed one's compilers are told of it, and hold their folder until they are gone.)
end = time.monotonic() + 10
for number in range(100, 200):
    build(number)
    if not os.listdir(folder) or time.monotonic() > end:
        break
    time.sleep(0.05)
assert os.listdir(folder) == [], os.listdir(folder)

# One that is stopped while it builds keeps its folder. (It may have built before the signal reached it, or be about to
# lock its folder: one that is taken away then is made again. What has files in it is locked.)
held: list[str] = []
for number in range(200, 250):
    pid = os.fork()
    if pid == 0:
        build(number)
        os._exit(0)
    while not os.listdir(folder):
        time.sleep(0.001)
    os.kill(pid, signal.SIGSTOP)
    status = os.waitpid(pid, os.WUNTRACED)[1]
    if os.WIFSTOPPED(status) and any(os.listdir(os.path.join(folder, name)) for name in os.listdir(folder)):
        held = os.listdir(folder)
        break
    if os.WIFSTOPPED(status):
        os.kill(pid, signal.SIGCONT)
        status = os.waitpid(pid, 0)[1]
    assert status == 0
assert held, "no process was stopped while it built"
other = os.fork()
if other == 0:
    build(300)
    os._exit(0)
assert os.waitpid(other, 0)[1] == 0
assert os.listdir(folder) == held, (os.listdir(folder), held)
os.kill(pid, signal.SIGCONT)
assert os.waitpid(pid, 0)[1] == 0
assert os.listdir(folder) == []
sys.exit(0)
