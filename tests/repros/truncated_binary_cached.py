"""A compiler that once leaves a cut shared object and says all is well: the object is not loaded and not cached, and
the result is right in this process and in the next."""

import os
import tempfile

import torch

import flashover

folder = tempfile.mkdtemp()
compiler, flag = folder + "/cc", folder + "/once"
with open(compiler, "w") as f:
    f.write(
        f'#!/bin/sh\ng++ "$@"\n'
        f'[ -e {flag} ] && while [ $# -gt 0 ]; do [ "$1" = -o ] && truncate -s 9000 "$2"; shift; done\n'
        f"rm -f {flag}; exit 0\n"
    )
os.chmod(compiler, 0o755)
open(flag, "w").close()
os.environ["CXX"] = compiler
x = torch.randn(8, 33)
for i in range(3):
    pid = os.fork()
    if pid == 0:
        torch.testing.assert_close(
            flashover.compile(lambda x: torch.relu(x + 1).softmax(-1) * 2)(x), torch.relu(x + 1).softmax(-1) * 2
        )
        assert flashover.compile_stats()["kernels"] > 0
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, i
    assert not os.path.exists(flag)
