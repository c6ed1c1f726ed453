"""The source that a failing compiler was given is kept under a name that nobody can foresee; no link is followed."""

import os
import tempfile
import warnings

import torch

import flashover

root = tempfile.mkdtemp()
shared, compiler, precious = root + "/sticky", root + "/cc", root + "/precious"
os.mkdir(shared)
os.chmod(shared, 0o1777)
with open(compiler, "w") as f:
    f.write("#!/bin/sh\nexit 1\n")
os.chmod(compiler, 0o755)
with open(precious, "w") as f:
    f.write("precious\n")
os.environ["TMPDIR"] = shared
os.environ["FLASHOVER_CACHE_DIR"] = ""


def compile_it(program: str) -> None:
    """In a process of its own, with that compiler."""
    pid = os.fork()
    if pid == 0:
        os.environ["CXX"] = program
        warnings.simplefilter("ignore")
        flashover.compile(lambda x: (x + 1).sin())(torch.randn(4))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


kept: list[str] = []
for _ in range(3):
    compile_it(compiler)
    (name,) = [n for n in os.listdir(shared) if "failed" in n and not os.path.islink(f"{shared}/{n}")]
    kept.append(name)
    with open(f"{shared}/{name}") as f:
        assert "sin" in f.read()
    assert os.stat(f"{shared}/{name}").st_mode & 0o777 == 0o600
    os.unlink(f"{shared}/{name}")
    for old in kept:  # what another user would plant
        if not os.path.lexists(f"{shared}/{old}"):
            os.symlink(precious, f"{shared}/{old}")
assert len(set(kept)) == 3, kept

# Dumps have names that can be foreseen: they follow no links either.
dump = root + "/dump"
os.mkdir(dump)
os.environ["FLASHOVER_DUMP"] = dump
compile_it("g++")
first = sorted(os.listdir(dump))[0]
os.unlink(f"{dump}/{first}")
os.symlink(precious, f"{dump}/{first}")
compile_it("g++")
with open(precious) as f:
    assert f.read() == "precious\n"
