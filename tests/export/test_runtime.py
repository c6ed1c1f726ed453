"""Packages without Python: the runner, the C++ face by find_package and the C ABI, in processes of their own."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import MODELS
from torch.export import Dim

import flashover

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = Path(flashover.__file__).parent / "runtime"
RUNNER = RUNTIME / "bin" / "flashover-run"
pytestmark = pytest.mark.skipif(not RUNNER.exists(), reason="the runtime is not built: ./x build flashover_runner")
BARE = {"PATH": "/nonexistent", "HOME": "/nonexistent"}  # no compiler, no Python, no cache to be found


def run(*command, env=BARE):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300, env=env)


def packaged(model, args, path, **shapes):
    flashover.package(flashover.export(model, args, **shapes), path)


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny", "bert", "llama"])
def test_the_runner_gives_the_compiled_models_results_bit_for_bit(name, tmp_path):
    model, args = MODELS[name]()
    model = model.eval()
    if hasattr(model, "config"):
        model.config.use_cache = False
    packaged(model, args, tmp_path / "m.flash")
    with torch.no_grad():
        want = torch.utils._pytree.tree_leaves(flashover.compile(model)(*args))
    np.save(tmp_path / "in.npy", args[0].numpy())
    threads = str(torch.get_num_threads())
    out = run(RUNNER, tmp_path / "m.flash", tmp_path / "in.npy", "--out", tmp_path / "out", "--threads", threads)
    assert out.returncode == 0, out.stderr
    for i, tensor in enumerate(want):
        if isinstance(tensor, torch.Tensor):
            assert np.array_equal(np.load(tmp_path / f"out{i}.npy"), tensor.numpy())


def test_the_runner_says_what_a_package_holds_and_what_is_wrong(tmp_path):
    path = tmp_path / "p.flash"
    packaged(lambda x, y: x + y, (torch.randn(3, 2), torch.ones(2)), path, dynamic_shapes=[{0: Dim("n", max=9)}, None])
    shown = run(RUNNER, path)
    assert shown.stdout == "forward\n  x: f32[s0,2]\n  y: f32[2]\n"
    np.save(tmp_path / "x.npy", np.zeros((10, 2), np.float32))
    np.save(tmp_path / "y.npy", np.zeros(2, np.float32))
    for arguments, message in (
        ((path, tmp_path / "x.npy", tmp_path / "y.npy"), "s0 <= 9"),
        ((path, tmp_path / "x.npy"), "takes 2 tensors"),
        ((path, "--entry", "other", tmp_path / "x.npy"), "has no entry other"),
        ((tmp_path / "x.npy",), "no package"),
        ((tmp_path / "none",), "cannot open"),
        (("--what",), "usage"),
    ):
        out = run(RUNNER, *arguments)
        assert out.returncode == 1 and message in out.stderr, out.stderr


def test_no_python_is_in_the_process():
    for file in (RUNNER, RUNTIME / "lib" / "libflashover_runtime.so"):
        loaded = [line.split()[0] for line in run(shutil.which("ldd"), file, env=os.environ).stdout.splitlines()]
        assert loaded and not [n for n in loaded if "python" in n.rpartition("/")[2]]


@pytest.fixture(scope="module")
def generate(tmp_path_factory):
    """The example, built as a user would."""
    if not shutil.which("cmake"):
        pytest.skip("cmake is not on PATH")
    build = tmp_path_factory.mktemp("example")
    prefix = run(os.sys.executable, "-m", "flashover", "runtime", env=os.environ).stdout.strip()
    made = run("cmake", "-S", ROOT / "examples" / "cpp", "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", env=os.environ)
    assert made.returncode == 0, made.stderr
    made = run("cmake", "--build", build, env=os.environ)
    assert made.returncode == 0, made.stdout
    return build / "generate"


def test_the_example_generates_what_transformers_does(generate, tmp_path):
    model, _ = MODELS["llama"]()
    model = model.eval()
    model.config.use_cache = False

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(input_ids=ids).logits

    shapes = {"ids": {1: Dim("length", max=64)}}
    packaged(Logits(), (torch.randint(0, 100, (1, 7)),), tmp_path / "m.flash", dynamic_shapes=shapes)
    prompt = torch.tensor([[1, 5, 9]])
    model.generation_config.eos_token_id = None
    want = model.generate(prompt, max_new_tokens=12, do_sample=False, use_cache=False, pad_token_id=0)
    out = run(generate, tmp_path / "m.flash", 12, 1, 5, 9)
    assert out.returncode == 0, out.stderr
    assert [int(t) for t in out.stdout.split()] == want[0].tolist()


C_PROGRAM = r"""
#include <flashover/flashover.h>
#include <stdio.h>
int main(int argc, char** argv) {
  flashover_package* p;
  flashover_tensor x = {0}, out, w = {0};
  float data[4] = {1, 2, 3, 4}, other[4] = {0, 0, 0, 0};
  int64_t sizes[2] = {2, 2}, strides[2] = {1, 2};
  const char* name;
  if (argc < 2 || flashover_load(argv[1], 1, &p)) return printf("%s\n", flashover_last_error()), 1;
  x.data = data, x.dtype = FLASHOVER_F32, x.rank = 2, x.sizes = sizes, x.strides = strides;
  if (flashover_run(p, 0, &x, 1, &out, 1)) return printf("%s\n", flashover_last_error()), 1;
  printf("%g %g %g %g\n", ((float*)out.data)[0], ((float*)out.data)[1], ((float*)out.data)[2], ((float*)out.data)[3]);
  flashover_tensor_free(&out);
  w.data = other, w.dtype = FLASHOVER_F32, w.rank = 2, w.sizes = sizes;
  name = flashover_weight_name(p, 0);
  if (flashover_exchange(p, &name, &w, 1)) return printf("%s\n", flashover_last_error()), 1;
  if (flashover_run(p, 0, &x, 1, &out, 1)) return printf("%s\n", flashover_last_error()), 1;
  printf("%g\n", ((float*)out.data)[3]);
  flashover_tensor_free(&out);
  x.rank = 1;
  if (flashover_run(p, 0, &x, 1, &out, 1) == 0) return 1;
  printf("%s\n", flashover_last_error());
  flashover_free(p);
  return flashover_abi_version() != FLASHOVER_ABI;
}
"""


def test_a_c_program(tmp_path):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.full((2, 2), 10.0))

        def forward(self, x):
            return x * self.w + 1

    packaged(Scaled(), (torch.randn(2, 2),), tmp_path / "p.flash")
    (tmp_path / "main.c").write_text(C_PROGRAM)
    lib = RUNTIME / "lib"
    built = run(
        *("gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", tmp_path / "main.c"),
        *(f"-I{RUNTIME / 'include'}", f"-L{lib}", f"-Wl,-rpath,{lib}", "-Wl,--allow-shlib-undefined"),
        *("-lflashover_runtime", "-o", tmp_path / "main"),
        env=os.environ,
    )
    assert built.returncode == 0, built.stderr
    out = run(tmp_path / "main", tmp_path / "p.flash")
    lines = out.stdout.splitlines()
    assert out.returncode == 0, out.stdout + out.stderr
    assert lines[0] == "11 31 21 41" and lines[1] == "1"  # columns lay one behind the other
    assert "the argument x must be f32[2,2]" in lines[2]
