"""The runtime without torch: packages of own kernels, in a root folder with the runner, the package and libc alone."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.export import Dim

import flashover

RUNTIME = Path(flashover.__file__).parent / "runtime"
RUNNER = RUNTIME / "bin" / "flashover-run-bare"
pytestmark = pytest.mark.skipif(not RUNNER.exists(), reason="the runtime without torch is not built: ./x build")
BARE = {"PATH": "/nonexistent", "HOME": "/nonexistent"}


def run(*command, env=BARE):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=100, env=env)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm = torch.nn.LayerNorm(16)
        self.scale = torch.nn.Parameter(torch.randn(16))
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x, i):
        self.calls.add_(1)
        y = torch.nn.functional.gelu(self.norm(x) * torch.tanh(self.scale))
        return torch.softmax(y, -1), x.t(), self.scale[i], y.sum(0), self.calls * 2, x


@pytest.fixture
def packaged(tmp_path):
    example = torch.randn(5, 16), torch.tensor([3, 4])
    program = flashover.export(Net().eval(), example, dynamic_shapes={"x": {0: Dim("n", max=50)}, "i": None})
    flashover.package(program, tmp_path / "p.flash")
    return tmp_path


def saved(folder, x, i):
    np.save(folder / "x.npy", x.numpy())
    np.save(folder / "i.npy", i.numpy())
    return folder / "x.npy", folder / "i.npy"


def libraries(file):
    return re.findall(r"(?:=> )?(/\S+)", run(shutil.which("ldd"), file, env=os.environ).stdout)


def test_it_links_the_runtimes_of_c_and_cpp_alone():
    names = {Path(p).name.partition(".so")[0] for p in libraries(RUNTIME / "lib" / "libflashover_bare.so")}
    assert names <= {"libstdc++", "libm", "libgomp", "libgcc_s", "libc", "ld-linux-x86-64"} and "libc" in names


def test_results_are_those_beside_torch_bit_for_bit(packaged):
    for n in (7, 1):
        x, i = torch.randn(n, 16), torch.tensor([15, 0])
        files = saved(packaged, x, i)
        threads = str(torch.get_num_threads())
        out = run(RUNNER, packaged / "p.flash", *files, "--out", packaged / "out", "--threads", threads)
        assert out.returncode == 0, out.stderr
        for k, want in enumerate(flashover.load(packaged / "p.flash")(x, i)):
            assert np.array_equal(np.load(packaged / f"out{k}.npy"), want.detach().numpy()), k


def runs_without_torch(path):
    return not flashover.package_info(path)["entries"][0]["needs_torch"]


class Depthwise(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(24, 24, 3, stride=2, padding=1, groups=24)

    def forward(self, x):
        return torch.relu(self.conv(torch.tanh(x)))


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.head = torch.nn.LSTMCell(256, 320), torch.nn.Linear(320, 64)

    def forward(self, x):
        h = c = x.new_zeros(x.shape[1], 320)
        for step in x:
            h, c = self.cell(step, (h, c))
        return self.head(h), c


def products(name):
    """Models whose products, attention and depthwise convolutions have hand-written operators."""
    if name == "depthwise":
        return Depthwise(), (torch.randn(2, 24, 9, 11),)
    if name == "recurrent":
        return Recurrent(), (torch.randn(3, 4, 256),)
    from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

    torch.manual_seed(0)
    kind, config = (BertModel, BertConfig) if name == "bert" else (LlamaModel, LlamaConfig)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_hidden_layers": 1}
    model = kind(config(**sizes, vocab_size=300, use_cache=False))
    return model, (torch.randint(0, 300, (1, 128)),)


@pytest.mark.parametrize("name", ["bert", "llama", "recurrent", "depthwise"])
def test_hand_written_operators_need_no_torch(name, tmp_path):
    model, args = products(name)
    flashover.package(flashover.export(model.eval(), args), tmp_path / "p.flash")
    if not runs_without_torch(tmp_path / "p.flash"):
        pytest.skip("this machine computes it with torch's libraries")
    np.save(tmp_path / "x.npy", np.ascontiguousarray(args[0].numpy()))
    threads = str(torch.get_num_threads())
    out = run(RUNNER, tmp_path / "p.flash", tmp_path / "x.npy", "--out", tmp_path / "out", "--threads", threads)
    assert out.returncode == 0, out.stderr
    given = torch.from_numpy(np.load(tmp_path / "x.npy"))
    want = torch.utils._pytree.tree_leaves(flashover.load(tmp_path / "p.flash")(given))
    assert torch.allclose(want[0], torch.utils._pytree.tree_leaves(model(given))[0], rtol=1e-3, atol=1e-4)
    for k, tensor in enumerate(want):
        if isinstance(tensor, torch.Tensor):
            assert np.array_equal(np.load(tmp_path / f"out{k}.npy"), tensor.detach().numpy()), k


def test_hand_written_operators_for_sizes_that_change(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 32)).eval()
    program = flashover.export(model, (torch.randn(5, 64),), dynamic_shapes=[{0: Dim("n", max=300)}])
    flashover.package(program, tmp_path / "p.flash")
    if not runs_without_torch(tmp_path / "p.flash"):
        pytest.skip("this machine computes it with torch's libraries")
    loaded, threads = flashover.load(tmp_path / "p.flash"), str(torch.get_num_threads())
    for n in (2, 17, 300):
        x = torch.randn(n, 64)
        np.save(tmp_path / "x.npy", x.numpy())
        out = run(RUNNER, tmp_path / "p.flash", tmp_path / "x.npy", "--out", tmp_path / "out", "--threads", threads)
        assert out.returncode == 0, out.stderr
        assert np.array_equal(np.load(tmp_path / "out0.npy"), loaded(x).detach().numpy()), n


def test_changed_prepared_tensors_are_seen_without_torch(tmp_path):
    model, args = products("recurrent")
    flashover.package(flashover.export(model.eval(), args), tmp_path / "p.flash")
    info = flashover.package_info(tmp_path / "p.flash")["entries"][0]
    if info["needs_torch"] or not info["prepared"]:
        pytest.skip("this machine computes it with torch's libraries")
    changed = bytearray((tmp_path / "p.flash").read_bytes())
    changed[-200] ^= 1  # (they come last)
    (tmp_path / "p.flash").write_bytes(changed)
    out = run(RUNNER, tmp_path / "p.flash")
    assert out.returncode == 1 and "wrong checksum of prepared tensors" in out.stderr, out.stderr


def test_in_a_root_folder_of_its_own(packaged):
    """No shell, no /proc, no /usr: the files that ldd names, the runner, its library and the package."""
    root = packaged / "root"
    files = [RUNNER, *libraries(RUNNER)]
    for file in files:
        place = root / ("bin/run" if file == RUNNER else str(file).lstrip("/"))
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    (root / "lib").mkdir(exist_ok=True)
    for name in ("libflashover_bare.so",):
        shutil.copy(RUNTIME / "lib" / name, root / "lib" / name)
    for file in libraries(RUNTIME / "lib" / "libflashover_bare.so"):
        (root / file.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, root / file.lstrip("/"))
    (root / "tmp").mkdir()  # kernels are loaded from a file where there is no /proc
    x, i = torch.randn(6, 16), torch.tensor([1, 2])
    for file in (packaged / "p.flash", *saved(packaged, x, i)):
        shutil.copy(file, root)
    enter = ["/usr/bin/unshare", "--map-root-user", "--root", root]
    if run(*enter, "/bin/run", env=BARE).returncode not in (0, 1) or not Path(enter[0]).exists():
        pytest.skip("this machine lets no process have a root folder of its own")
    out = run(*enter, "/bin/run", "/p.flash", "/x.npy", "/i.npy", "--out", "/out")
    assert out.returncode == 0, out.stderr
    np.testing.assert_allclose(np.load(root / "out0.npy"), Net()(x, i)[0].detach().numpy(), rtol=1e-5, atol=1e-6)


def test_packages_that_need_torch_say_for_what(tmp_path):
    program = flashover.export(lambda x: torch.linalg.inv(x), (torch.eye(4),))
    flashover.package(program, tmp_path / "p.flash")
    out = run(RUNNER, tmp_path / "p.flash")
    assert out.returncode == 1 and "does not run without torch" in out.stderr, out.stderr
    needs = flashover.package_info(tmp_path / "p.flash")["entries"][0]["needs_torch"]
    assert needs and all(name in out.stderr for name in needs)


def test_calls_that_do_not_fit_and_indices_out_of_range(packaged):
    x, i = torch.randn(6, 16), torch.tensor([1, 16])
    out = run(RUNNER, packaged / "p.flash", *saved(packaged, x, i))
    assert out.returncode == 1 and "out of" in out.stderr, out.stderr
    out = run(RUNNER, packaged / "p.flash", *saved(packaged, torch.randn(51, 16), i))
    assert out.returncode == 1 and "s0 <= 50" in out.stderr, out.stderr
