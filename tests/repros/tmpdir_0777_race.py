"""Another user who may write TMPDIR cannot make us run code: such a folder is not used, and that is said once."""

import os
import shutil
import subprocess
import sys
import tempfile
import time

OTHER = 54321
if os.geteuid() != 0:
    print("only root can play two users")
    sys.exit(0)
root = tempfile.mkdtemp()
os.chmod(root, 0o755)
opened, evil = root + "/open", root + "/evil"
for folder in (opened, evil):
    os.mkdir(folder)
    os.chmod(folder, 0o777)
mark = evil + "/owned"
with open(evil + "/e.c", "w") as f:
    body = '{FILE*o=fopen("' + mark + '","w");fclose(o);}'
    f.write("#include <stdio.h>\n__attribute__((constructor)) static void f(void)" + body + "\n")
subprocess.check_call(["gcc", "-shared", "-fPIC", "-o", evil + "/e.so", evil + "/e.c"])
with open(evil + "/e.so", "rb") as f:
    library = f.read()

attacker = os.fork()
if attacker == 0:  # takes every folder that appears and puts its library into each of its own
    os.setgroups([])
    os.setresgid(OTHER, OTHER, OTHER)
    os.setresuid(OTHER, OTHER, OTHER)
    os.umask(0)
    mine: set[str] = set()
    while True:
        for name in os.listdir(opened):
            try:
                if name not in mine and not name.startswith("_"):
                    os.rename(f"{opened}/{name}", f"{opened}/_{name}")
                    os.mkdir(f"{opened}/{name}", 0o777)
                    mine.add(name)
                if name in mine:
                    with open(f"{opened}/{name}/.e", "wb") as f:
                        f.write(library)
                    os.chmod(f"{opened}/{name}/.e", 0o777)
                    os.rename(f"{opened}/{name}/.e", f"{opened}/{name}/k0.so")
            except OSError:
                pass

code = """
import warnings, torch, flashover
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for i in range(4):
        flashover.compile(eval(f"lambda x: (x * {i} + 1).sin()"))(torch.randn(4))
assert len([w for w in said if "temporary files do not go to" in str(w.message)]) == 1, [str(w.message) for w in said]
assert flashover.compile_stats()["kernels"] == 4
"""
try:
    env = dict(os.environ, TMPDIR=opened, FLASHOVER_CACHE_DIR="")
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    time.sleep(0.1)
finally:
    os.kill(attacker, 9)
    os.waitpid(attacker, 0)
owned = os.path.exists(mark)
shutil.rmtree(root)
assert not owned, "the other user's code ran"
assert done.returncode == 0, done.stderr
