"""The Triton compiler as a service: `python _triton_worker.py`, requests on stdin, answers on stdout.

A server imports Triton once, compiles one small kernel so that everything is loaded, and forks workers as requests come
in. It ends when stdin ends (the process that asked is gone), and its workers die with it. A worker that dies answers
its request with an error; the next request gets a new one.

Request: u32 length, JSON {id, name, text, signature, warps, stages, asserts, contracts, arch}.
Answer: six u32 (id, status, shared bytes,
scratch bytes per program, warps, length) and so many bytes: a cubin (status 0) or what went wrong (status 1: this
source; 2: Triton itself does not work)."""

from __future__ import annotations

import ctypes
import json
import linecache
import os
import select
import signal
import struct
import sys
import time
from typing import Any

HEADER = struct.Struct("<6I")
LENGTH = struct.Struct("<I")
IDLE_SECONDS = 30.0  # after which workers go; the server stays
MAX_WORKERS = 16

_compiler: dict[str, Any] = {}


def load_compiler() -> None:
    """Imports what a compilation needs. Raises whatever a broken installation raises."""
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    os.environ.pop("TRITON_INTERPRET", None)
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import triton
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget, Language
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.compiler.compiler import ASTSource

    _compiler.update(
        version=triton.__version__, ir=ir, target=GPUTarget, language=Language, backend=CUDABackend, source=ASTSource
    )


def build(request: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """One kernel's cubin and its metadata, by the backend's own stages: no cache key, no cache folder, no driver."""
    c = _compiler
    name, text = request["name"], request["text"]
    filename = f"<flashover {name}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    scope: dict[str, Any] = {"__name__": "flashover_kernel"}
    exec(compile(text, filename, "exec"), scope)
    function = scope[name]
    target = c["target"]("cuda", request["arch"], 32)
    backend = c["backend"](target)
    signature = dict(zip(function.arg_names, request["signature"], strict=True))
    attrs = {(i,): [["tt.divisibility", 16]] for i, t in enumerate(request["signature"]) if t.startswith("*")}
    source = c["source"](function, signature, constexprs={}, attrs=attrs)
    options = backend.parse_options(
        {
            "num_warps": request["warps"],
            "num_stages": request["stages"],
            "debug": request["asserts"],
            "enable_fp_fusion": request["contracts"],
            "sanitize_overflow": False,
        }
    )
    context = c["ir"].context()
    c["ir"].load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(
        target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )
    metadata: dict[str, Any] = dict(options.__dict__)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, c["language"].TRITON)
    for stage in stages.values():
        module = stage(module, metadata)
    return bytes(module), metadata


WARM = """
import triton
import triton.language as tl
import _triton_lib as lib

@triton.jit
def warm(p0, p1):
    x = tl.program_id(0)
    r = tl.arange(0, 128)[None, :]
    v = tl.load(p0 + x * 128 + r)
    tl.store(p1 + x + tl.zeros([1, 1], tl.int32), tl.sum(lib.tanh(v), 1, keep_dims=True))
"""


def warm_up() -> None:
    build(
        {
            "name": "warm",
            "text": WARM,
            "signature": ["*fp32", "*fp32"],
            "warps": 1,
            "stages": 2,
            "asserts": False,
            "contracts": True,
            "arch": 90,
        }
    )


def answer(request: dict[str, Any]) -> bytes:
    try:
        cubin, m = build(request)
    except BaseException as e:
        causes: list[str] = []
        cause: BaseException | None = e
        while cause is not None and len(causes) < 8:
            causes.append(f"{type(cause).__name__}: {cause}")
            cause = cause.__cause__ or cause.__context__
        text = "\n".join(causes).encode()[:20000]
        return HEADER.pack(request["id"], 1, 0, 0, 0, len(text)) + text
    numbers = (m.get("shared") or 0, m.get("global_scratch_size") or 0, m["num_warps"])
    return HEADER.pack(request["id"], 0, *numbers, len(cubin)) + cubin


def read_exactly(fd: int, n: int) -> bytes | None:
    parts: list[bytes] = []
    while n:
        part = os.read(fd, min(n, 1 << 20))
        if not part:
            return None
        parts.append(part)
        n -= len(part)
    return b"".join(parts)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Worker:
    """A forked process with a pipe in and a pipe out."""

    def __init__(self) -> None:
        ask_read, self.ask = os.pipe()
        self.reply, reply_write = os.pipe()
        server = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
                if os.getppid() != server:
                    os._exit(0)
                os.close(0)
                os.close(self.ask)
                os.close(self.reply)
                self.serve(ask_read, reply_write)
            finally:
                os._exit(0)
        os.close(ask_read)
        os.close(reply_write)
        self.job: int | None = None

    @staticmethod
    def serve(ask: int, reply: int) -> None:
        while (head := read_exactly(ask, LENGTH.size)) is not None:
            body = read_exactly(ask, LENGTH.unpack(head)[0])
            if body is None:
                return
            write_all(reply, answer(json.loads(body)))

    def start(self, job: int, frame: bytes) -> bool:
        self.job = job
        try:
            write_all(self.ask, frame)
        except OSError:
            return False
        return True

    def finish(self) -> bytes:
        """The answer to its request; an error where it died."""
        job, self.job = self.job, None
        head = read_exactly(self.reply, HEADER.size)
        body = read_exactly(self.reply, HEADER.unpack(head)[5]) if head else None
        if head is None or body is None:
            text = b"the compile worker died"
            return HEADER.pack(job or 0, 1, 0, 0, 0, len(text)) + text
        return head + body

    def end(self) -> None:
        os.close(self.ask)
        os.close(self.reply)
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except OSError:
            pass


def broken(error: str) -> None:
    """Triton cannot be used: every request is answered with the reason."""
    text = error.encode()[:20000]
    while (head := read_exactly(0, LENGTH.size)) is not None:
        body = read_exactly(0, LENGTH.unpack(head)[0])
        if body is None:
            return
        write_all(1, HEADER.pack(json.loads(body)["id"], 2, 0, 0, 0, len(text)) + text)


def serve() -> None:
    try:
        load_compiler()
        warm_up()
    except BaseException as e:
        broken(f"{type(e).__name__}: {e}")
        return
    most = max(1, min(MAX_WORKERS, len(os.sched_getaffinity(0))))
    workers: list[Worker] = []
    queue: list[bytes] = []
    pending = b""
    idle_since = time.monotonic()
    while True:
        readable, _, _ = select.select([0, *(w.reply for w in workers)], [], [], IDLE_SECONDS if workers else None)
        for w in list(workers):
            if w.reply not in readable:
                continue
            dead = w.job is None  # nothing was asked: it can only be the end of the pipe
            if not dead:
                reply = w.finish()
                dead = reply[HEADER.size :] == b"the compile worker died"
                write_all(1, reply)
            if dead:
                w.end()
                workers.remove(w)
        if 0 in readable:
            part = os.read(0, 1 << 20)
            if not part:
                break
            pending += part
            while len(pending) >= LENGTH.size:
                end = LENGTH.size + LENGTH.unpack_from(pending)[0]
                if len(pending) < end:
                    break
                queue.append(pending[:end])
                pending = pending[end:]
        while queue:
            free = next((w for w in workers if w.job is None), None)
            if free is None:
                if len(workers) >= most:
                    break
                free = Worker()
                workers.append(free)
            if free.start(json.loads(queue[0][LENGTH.size :])["id"], queue[0]):
                queue.pop(0)
            else:
                free.end()
                workers.remove(free)
        busy = bool(queue) or any(w.job is not None for w in workers)
        if busy:
            idle_since = time.monotonic()
        elif workers and time.monotonic() - idle_since >= IDLE_SECONDS:
            for w in workers:
                w.end()
            workers.clear()
    for w in workers:
        w.end()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt in the terminal is the asking process's business
    # What anybody prints must not get between the answers.
    out = os.dup(1)
    os.dup2(2, 1)
    os.set_inheritable(out, False)
    _stdout = out
    _write = write_all

    def write_all(fd: int, data: bytes) -> None:  # type: ignore[no-redef]
        _write(_stdout if fd == 1 else fd, data)

    serve()
