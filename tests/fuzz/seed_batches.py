"""Seeds of a generator, judged in processes of their own: a crash names its seed, and the rest goes on."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import torch
from processes import forked

# Of a seed: what is wrong ('': nothing; None: it says nothing about compiled code), and what a person needs beside it.
Judge = Callable[[int], tuple[str | None, str]]


def judge_all(seeds: range, judge: Judge, writer: int) -> None:
    """In the child: prints what is wrong; writes each seed, and then what became of it."""
    import flashover

    torch.set_num_threads(1)
    for seed in seeds:
        os.write(writer, f"{seed}\n".encode())
        before = flashover.compile_stats()["graphs"]
        problem, source = judge(seed)
        mark = "skipped" if problem is None else "wrong" if problem else "right"
        if mark == "right" and flashover.compile_stats()["graphs"] == before:
            mark = "eager"
        if problem:
            print(f"seed {seed}: {problem}" + (f"\n{source}" if source else ""), flush=True)
        os.write(writer, f"{mark}\n".encode())
        flashover.reset()


def run_batch(seeds: range, judge: Judge, counts: dict[str, int]) -> None:
    """Adds to counts: right, wrong, eager (nothing was compiled), skipped, crashed."""
    while seeds:
        reader, writer = os.pipe()
        pid = forked(functools.partial(judge_all, seeds, judge, writer))
        os.close(writer)
        with os.fdopen(reader) as lines:
            said = [line.strip() for line in lines]
        status = os.waitpid(pid, 0)[1]
        for mark in said:
            if not mark.isdigit():
                counts[mark] = counts.get(mark, 0) + 1
        if not status:
            return
        counts["crashed"] = counts.get("crashed", 0) + 1
        last = next((int(s) for s in reversed(said) if s.isdigit()), seeds.start)
        print(f"seed {last}: the process ended with status {status}", flush=True)
        seeds = range(last + 1, seeds.stop)
