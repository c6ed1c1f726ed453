"""Several threads that do something at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


def together(run: Callable[[int], None], threads: int, seconds: float = 240) -> None:
    """Calls `run` with 0, 1, ... in threads that begin together. Raises what one of them raised, and AssertionError if
    one is not done in time."""
    start = threading.Barrier(threads)
    failed: list[BaseException] = []

    def body(k: int) -> None:
        try:
            start.wait()
            run(k)
        except BaseException as e:
            failed.append(e)

    all_threads = [threading.Thread(target=body, args=(k,)) for k in range(threads)]
    for t in all_threads:
        t.start()
    for t in all_threads:
        t.join(seconds)
    assert not any(t.is_alive() for t in all_threads), "a thread hangs"
    if failed:
        raise failed[0]
