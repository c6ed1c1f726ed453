"""Programs in processes of their own that need not import torch themselves: children of one that has.

    done = python("-c", code, env=os.environ | {"FLASHOVER_REPORT": "out"})

It is what subprocess.run([sys.executable, "-c", code]) makes, three seconds of processor time sooner: a server of this
test process has imported torch, and nothing of Flashover, and forks for each program. A program that is run like this
starts, reads its environment, imports flashover and ends as any does, only with torch there already.

What shares a server has its hash seed and its addresses, so that a test of what two processes agree upon (keys of a
cache, say) starts at least one of them as `fresh` does."""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What is read when a program starts or later, not when torch or the interpreter does. Any other variable that differs
# takes a server of its own. FLASHOVER_ISA stands beside variables of the libraries, which read theirs at once.
LATE = ("FLASHOVER_", "PYTEST_", "COMPILER_", "PYTHONPATH", "CXX", "TMPDIR", "HOME", "RANK", "PWD", "REPRO_SCRATCH")


def fresh(*arguments: object, **settings: Any) -> subprocess.CompletedProcess[str]:
    """The same for what must not share anything with another process: torch is imported by the program."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **{"timeout": 150, **settings})


def python(
    *arguments: object, cwd: Path | str | None = None, env: Mapping[str, str] | None = None, timeout: float = 150
) -> subprocess.CompletedProcess[str]:
    """What subprocess.run says of python with these arguments: a file, `-c` and code, or `-m` and a module, and what
    the program finds in sys.argv."""
    words, variables = [*map(str, arguments)], dict(os.environ if env is None else env)
    assert words[0] in ("-c", "-m") or not words[0].startswith("-"), "other options need an interpreter of their own"
    key = tuple(sorted((k, v) for k, v in variables.items() if k == "FLASHOVER_ISA" or not k.startswith(LATE)))
    if key not in _servers:
        _servers[key] = _Server(dict(key))
    try:
        return _servers[key].run(words, str(cwd or Path.cwd()), variables, timeout)
    except BaseException:  # also where the test is interrupted: an answer that comes late is nobody's
        _servers.pop(key).close()
        raise


class _Server:
    """The process that forks, from this side. It and its children are a process group, which ends as one."""

    def __init__(self, variables: dict[str, str]) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
        self.process = subprocess.Popen([sys.executable, __file__], text=True, env=variables, **pipes)  # type: ignore[call-overload]
        self.owner = os.getpid()

    def run(
        self, words: list[str], cwd: str, variables: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        self.process.stdin.write(json.dumps({"words": words, "cwd": cwd, "variables": variables}) + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(words, timeout)
        answer = json.loads(self.process.stdout.readline())
        return subprocess.CompletedProcess(words, answer["code"], answer["out"], answer["err"])

    def close(self) -> None:
        if self.owner != os.getpid():  # in a child of a test: the server is its parent's
            return
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


_servers: dict[tuple[tuple[str, str], ...], _Server] = {}


@atexit.register
def _close_all() -> None:
    while _servers:
        _servers.popitem()[1].close()


# The other side. Nothing below runs in the test process.


def _serve() -> dict[str, Any] | None:
    """Forks for each request, one a line. Comes back with the request in the child, with None when all is done. This
    process runs no parallel region: a child of one that has would wait for threads that only its parent has."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for line in requests:
        request: dict[str, Any] = json.loads(line)
        reads, writes = zip(*(os.pipe() for _ in range(2)), strict=True)  # (a file would count as what may be written)
        pid = os.fork()
        if pid == 0:
            requests.close()
            answers.close()
            ends = [os.open(os.devnull, os.O_RDONLY), *writes]
            for number, file in enumerate(ends):
                os.dup2(file, number)
            for file in (*reads, *ends):
                os.close(file)
            return request
        for file in writes:
            os.close(file)
        out, err = _all_of(*reads)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        answers.write(json.dumps({"code": code, "out": out, "err": err}) + "\n")
        answers.flush()
    return None


def _all_of(*files: int) -> list[str]:
    """What comes out of these pipes until all who write have closed them; they are closed here, too."""
    parts: dict[int, list[bytes]] = {file: [] for file in files}
    open_ones = set(files)
    while open_ones:
        for file in select.select(open_ones, [], [])[0]:
            if part := os.read(file, 1 << 16):
                parts[file].append(part)
            else:
                open_ones.remove(file)
                os.close(file)
    texts = (b"".join(parts[file]).decode(errors="replace") for file in files)
    return [text.replace("\r\n", "\n").replace("\r", "\n") for text in texts]  # as subprocess.run reads text


def _run(request: dict[str, Any]) -> None:
    """What an interpreter does with its arguments."""
    (what, *rest), variables = request["words"], request["variables"]
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(variables)
    own = {"-c": "", "-m": request["cwd"]}.get(what, os.path.dirname(os.path.abspath(what)))
    sys.path[:] = [own, *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep)), *sys.path[1:]]
    sys.orig_argv = [sys.executable, *request["words"]]
    main = types.ModuleType("__main__")
    vars(main).update(__builtins__=__builtins__, __annotations__={})
    sys.modules["__main__"] = main
    if what == "-m":
        sys.argv = ["-m", *rest[1:]]
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    elif what == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = [what, *rest]
        vars(main).update(__file__=what, __cached__=None)
        exec(compile(Path(what).read_bytes(), what, "exec"), main.__dict__)


def _main() -> int:
    """The child's part ends where it would in an interpreter: on the outermost level, so that this one is finalized."""
    import torch  # noqa: F401 - the children's, once

    gc.freeze()  # else each child would visit, and so copy, all that torch has made, when it ends
    request = _serve()
    if request is None:
        os._exit(0)  # the test process is gone, and this one has nothing to finalize
    try:
        _run(request)
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
