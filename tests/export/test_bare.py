"""The runtime without torch: packages of own kernels, in a root folder with the runner, the package and libc alone."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from cpu_features import HAS
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
    if name in ("bert", "llama") and not HAS[torch.float32]:
        pytest.skip("attention is torch's where there is no AVX-512")
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


class Convolutions(torch.nn.Module):
    """Groups, strides, dilation, one dim, images that lie otherwise; a batched product and attention of few tokens."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        conv = torch.nn.Conv2d
        self.first = torch.nn.Sequential(conv(3, 24, 7, 2, 3), torch.nn.BatchNorm2d(24), torch.nn.SiLU())
        self.grouped, self.wide = conv(24, 40, 3, padding=2, dilation=2, groups=4), conv(40, 17, (1, 3), (2, 1))
        self.line, self.point = torch.nn.Conv1d(17, 8, 5), conv(17, 8, 1, 2)

    def forward(self, x):
        y = self.wide(torch.tanh(self.grouped(self.first(x))))
        line = self.line(y.flatten(2))
        q = self.point(y).flatten(2).transpose(1, 2)[:, None]
        tokens = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        return line, y, torch.bmm(line, line.transpose(1, 2)), tokens


def error(got, exact):
    return ((got.double() - exact).abs().max() / exact.abs().max()).item()


@pytest.mark.parametrize("dynamic", [False, True])
def test_operators_of_libraries_by_own_kernels(dynamic, tmp_path):
    model, x = Convolutions().eval(), torch.randn(2, 3, 32, 40)
    shapes = [{0: Dim("batch", max=8), 2: Dim("rows", min=24, max=64)}] if dynamic else None
    flashover.package(flashover.export(model, (x,), dynamic_shapes=shapes), tmp_path / "p.flash")
    info = flashover.package_info(tmp_path / "p.flash")["entries"][0]
    if info["needs_torch"]:
        pytest.skip(f"torch is needed here for {info['needs_torch']}")
    assert info["replaced_without_torch"]
    for given in (x, *([torch.randn(5, 3, 48, 40), torch.randn(1, 3, 24, 40)] if dynamic else [])):
        np.save(tmp_path / "x.npy", given.numpy())
        out = run(RUNNER, tmp_path / "p.flash", tmp_path / "x.npy", "--out", tmp_path / "out")
        assert out.returncode == 0, out.stderr
        with torch.no_grad():
            eager, exact = Convolutions().eval()(given), Convolutions().eval().double()(given.double())
        for k, (e, want) in enumerate(zip(eager, exact, strict=True)):
            got = torch.from_numpy(np.load(tmp_path / f"out{k}.npy"))
            assert error(got, want) < max(4 * error(e, want), 2e-6), k


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


def in_root_folder(root, *files):
    """Runs the runner there: no shell, no /proc, no /usr; what ldd names, the runner, its library and `files`."""
    library = RUNTIME / "lib" / "libflashover_bare.so"
    places = {RUNNER: "bin/run", library: "lib/libflashover_bare.so"}
    for file in {*libraries(RUNNER), *libraries(library)} - {str(library)}:
        places[file] = str(file).lstrip("/")
    for file in files:
        places[file] = Path(file).name
    for file, place in places.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, root / place)
    (root / "tmp").mkdir()  # kernels are loaded from a file where there is no /proc
    enter = ["/usr/bin/unshare", "--map-root-user", "--root", root]
    if not Path(enter[0]).exists() or run(*enter, "/bin/run").returncode not in (0, 1):
        pytest.skip("this machine lets no process have a root folder of its own")
    out = run(*enter, "/bin/run", *(f"/{Path(f).name}" for f in files), "--out", "/out")
    assert out.returncode == 0, out.stderr
    return root / "out0.npy"


def test_in_a_root_folder_of_its_own(packaged):
    x, i = torch.randn(6, 16), torch.tensor([1, 2])
    out = in_root_folder(packaged / "root", packaged / "p.flash", *saved(packaged, x, i))
    np.testing.assert_allclose(np.load(out), Net()(x, i)[0].detach().numpy(), rtol=1e-5, atol=1e-6)


ARCHITECTURES = [
    *("resnet50", "vit_small_patch16_224", "mobilenetv3_large_100", "efficientnet_b0", "convnext_tiny"),
    *("swin_tiny_patch4_window7_224", "densenet121", "regnety_008", "bert", "gpt2"),
]


def architecture(name):
    torch.manual_seed(0)
    if name == "bert":
        from transformers import BertConfig, BertModel

        return BertModel(BertConfig(num_hidden_layers=2, use_cache=False)).eval(), torch.randint(0, 30000, (1, 128))
    if name == "gpt2":
        from transformers import GPT2Config, GPT2Model

        return GPT2Model(GPT2Config(n_layer=2, use_cache=False)).eval(), torch.randint(0, 50000, (1, 128))
    import timm

    return timm.create_model(name, pretrained=False).eval(), torch.randn(1, 3, 224, 224)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_in_a_root_folder_of_their_own(name, tmp_path):
    model, x = architecture(name)
    with torch.no_grad():
        flashover.package(flashover.export(model, (x,)), tmp_path / "p.flash")
        info = flashover.package_info(tmp_path / "p.flash")["entries"][0]
        assert not info["needs_torch"]
        np.save(tmp_path / "x.npy", x.numpy())
        got = torch.from_numpy(np.load(in_root_folder(tmp_path / "root", tmp_path / "p.flash", tmp_path / "x.npy")))
        leaf = torch.utils._pytree.tree_leaves
        compiled = leaf(flashover.load(tmp_path / "p.flash")(x))[0]
        exact = leaf(model.double()(x if x.dtype == torch.int64 else x.double()))[0]
    if not info["replaced_without_torch"]:
        assert torch.equal(got, compiled)

    assert error(got, exact) < max(2 * error(compiled, exact), 1e-6)


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


class ReadsOneRow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(12.0).reshape(3, 4))

    def forward(self, x, i):
        return x + self.table[i][:1]


def test_an_index_of_what_nobody_reads_is_checked(tmp_path):
    good, bad = torch.tensor([2, 0]), torch.tensor([2, 9])
    flashover.package(flashover.export(ReadsOneRow(), (torch.ones(4), good)), tmp_path / "p.flash")
    assert runs_without_torch(tmp_path / "p.flash")
    out = run(RUNNER, tmp_path / "p.flash", *saved(tmp_path, torch.ones(4), good), "--out", tmp_path / "out")
    assert out.returncode == 0, out.stderr
    assert np.array_equal(np.load(tmp_path / "out0.npy"), [[9, 10, 11, 12]])
    out = run(RUNNER, tmp_path / "p.flash", *saved(tmp_path, torch.ones(4), bad), "--out", tmp_path / "out")
    assert out.returncode != 0 and "out of bounds" in out.stderr
