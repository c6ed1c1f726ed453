"""Compilers that are not as they should be: scripts in the place of g++."""

import os
import tempfile


def use(script: str) -> str:
    """Kernels are compiled by this shell script from now on; {folder} in it is the folder that is returned."""
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "cxx")
    with open(path, "w") as f:
        f.write("#!/bin/sh\n" + script.replace("{folder}", folder) + "\n")
    os.chmod(path, 0o755)
    os.environ["CXX"] = path
    return folder
