"""Other threads call methods of a tensor while a function that reads it is captured, and get eager's results."""

import sys
import threading

import torch

import flashover

CAPTURES = int(sys.argv[1]) if len(sys.argv) > 1 else 300
x, over, wrong = torch.ones(64, 64), threading.Event(), []


def work() -> None:
    while not over.is_set():
        try:
            x.mul(2.0)
        except RuntimeError as e:
            wrong.append(e)
            over.set()


torch.set_num_threads(1)
threads = [threading.Thread(target=work) for _ in range(3)]
for t in threads:
    t.start()
for _ in range(CAPTURES):
    flashover.compile(lambda x: x.sin(), backend="eager")(x)
    if over.is_set():
        break
over.set()
for t in threads:
    t.join()
assert not wrong, wrong[0]
