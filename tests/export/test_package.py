"""flashover.package and flashover.load: the compiled program's results bit for bit, from one file that is checked."""

import copy
import inspect
import os
import random
import stat
import struct
import threading

import numpy as np
import pytest
import torch
import torch.utils._pytree as pytree
from interpreters import python
from small_models import MODELS, PartlyPrepared
from torch.export import Dim

import flashover
from flashover import _C, exc
from flashover._library_levels import LIBRARY_LEVELS


def assert_equal_bits(got, want):
    (a, spec), (b, other) = pytree.tree_flatten(got), pytree.tree_flatten(want)
    assert spec == other
    for x, y in zip(a, b, strict=True):
        if isinstance(y, torch.Tensor):
            assert torch.equal(x, y) and x.stride() == y.stride() and x.dtype == y.dtype
        else:
            assert x == y


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.zeros(3), persistent=False)

    def forward(self, x, scale=2, *, more=None):
        self.calls.add_(1)
        z = self.norm(self.lin(x)) * scale
        return {"sum": z + more["k"], "flat": z.reshape(-1), "given": x, "plain": (None, 3)}


def call_of(n):
    return (torch.randn(n, 4),), {"more": {"k": torch.randn(n, 3)}}


@pytest.fixture
def net(tmp_path):
    model, batch = Net(), Dim("batch", max=100)
    program = flashover.export(model, *call_of(5), dynamic_shapes={"x": {0: batch}, "more": {"k": {0: batch}}})
    path = tmp_path / "net.flash"
    flashover.package(program, path)
    return model, path


def test_results_and_written_buffers_are_the_compiled_ones_bit_for_bit(net):
    model, path = net
    loaded, jit = flashover.load(path), flashover.compile(copy.deepcopy(model), dynamic=True)
    with torch.no_grad():
        for n in (5, 9, 2):
            args, kwargs = call_of(n)
            assert_equal_bits(loaded(*args, **kwargs), jit(*args, **kwargs))
    weights = loaded.weights()
    assert torch.equal(weights["calls"], torch.full((3,), 3.0))
    assert torch.equal(weights["norm.running_mean"], jit.norm.running_mean)
    assert torch.equal(flashover.load(path).weights()["calls"], torch.zeros(3)), "the file was written"


def test_calls_that_do_not_fit_are_errors_before_anything_runs(net):
    loaded = flashover.load(net[1])

    def call(n, m=None, scale=None, dtype=torch.float32):
        (x,), kwargs = call_of(n)
        kwargs["more"]["k"] = torch.randn(n if m is None else m, 3)
        return loaded(x.to(dtype), **kwargs) if scale is None else loaded(x, scale, **kwargs)

    for arguments, message in (
        ((1,), "s0 != 1"),
        ((101,), "s0 <= 100"),
        ((5, 6), "with size 6 in dimension 0"),
        ((5, None, 3), "takes arguments like"),
        ((5, None, None, torch.float64), "must be f32"),
    ):
        with pytest.raises(exc.UserError, match=message):
            call(*arguments)
    assert torch.equal(loaded.weights()["calls"], torch.zeros(3))


def test_constants_are_part_of_the_program(tmp_path):
    program = flashover.export(lambda x, n: x * n, (torch.ones(3), 4))
    flashover.package(program, tmp_path / "p.flash")
    loaded = flashover.load(tmp_path / "p.flash")
    assert torch.equal(loaded(torch.ones(3), 4), torch.full((3,), 4.0))
    with pytest.raises(exc.UserError, match="n is 4 in the program, not 5"):
        loaded(torch.ones(3), 5)


def test_entries_share_weights(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).eval()
    one = flashover.export(model, (torch.randn(1, 64),))
    many = flashover.export(model, (torch.randn(4, 64),), dynamic_shapes=[{0: Dim("n", min=2)}])
    flashover.package({"one": one, "many": many}, tmp_path / "both.flash", prepare=False)
    flashover.package(one, tmp_path / "one.flash", prepare=False)
    loaded = flashover.load(tmp_path / "both.flash")
    assert set(loaded.weights()) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    bytes_of = sum(p.numel() * 4 for p in model.parameters())
    both, single = (os.path.getsize(tmp_path / f) for f in ("both.flash", "one.flash"))
    assert both - single < bytes_of
    x, y = torch.randn(1, 64), torch.randn(7, 64)
    with torch.no_grad():
        torch.testing.assert_close(loaded["one"](x), model(x))
        torch.testing.assert_close(loaded["many"](y), model(y))
    with pytest.raises(exc.UserError, match="one, many"):
        loaded(x)
    with pytest.raises(KeyError, match="there are one, many"):
        loaded["two"]


def test_a_program_of_torch_export(tmp_path):
    model = Net().eval()
    batch = Dim("batch", min=2, max=100)
    args, kwargs = call_of(5)
    program = torch.export.export(model, args, kwargs, dynamic_shapes={"x": {0: batch}, "more": {"k": {0: batch}}})
    flashover.package(program, tmp_path / "p.flash")
    loaded = flashover.load(tmp_path / "p.flash")
    for n in (3, 100):
        args, kwargs = call_of(n)
        with torch.no_grad():
            torch.testing.assert_close(loaded(*args, **kwargs), model(*args, **kwargs))


def test_sizes_that_were_said_to_be_equal_are_asked_for(tmp_path):
    half = Dim("half", max=50)
    args = torch.randn(4, 2), torch.randn(8, 2)
    program = flashover.export(lambda x, y: (x * 2, y + 1), args, dynamic_shapes=[{0: half}, {0: 2 * half}])
    flashover.package(program, tmp_path / "p.flash")
    loaded = flashover.load(tmp_path / "p.flash")
    assert loaded(torch.randn(3, 2), torch.randn(6, 2))[1].shape == (6, 2)
    with pytest.raises(exc.UserError, match="alone"):
        loaded(torch.randn(3, 2), torch.randn(5, 2))


def test_other_strides_are_copied_and_written_arguments_must_fit(tmp_path):
    def f(x, y):
        y.add_(1)
        return x * 2 + y

    flashover.package(flashover.export(f, (torch.randn(3, 4), torch.randn(3, 4))), tmp_path / "p.flash")
    loaded = flashover.load(tmp_path / "p.flash")
    x, y = torch.randn(4, 3).t(), torch.zeros(3, 4)
    assert torch.equal(loaded(x, y), x * 2 + 1) and torch.equal(y, torch.ones(3, 4))
    with pytest.raises(exc.UserError, match="since it is written"):
        loaded(y, torch.zeros(4, 3).t())
    with pytest.raises(exc.UserError, match="shares memory"):
        loaded(y, y)
    assert torch.equal(y, torch.ones(3, 4))


def test_weights_are_exchanged_as_a_whole(tmp_path):
    """Eight threads serve while weights change; each result is of one set."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 16, bias=False), torch.nn.Linear(16, 16, bias=False)).eval()
    flashover.package(flashover.export(model, (torch.ones(1, 16),)), tmp_path / "p.flash")
    loaded = flashover.load(tmp_path / "p.flash")
    names, eye, x = list(loaded.weights()), torch.eye(16), torch.ones(1, 16)
    loaded.exchange(dict.fromkeys(names, eye))
    seen, stop, failures = set(), threading.Event(), []

    def serve():
        try:
            while not stop.is_set():
                seen.add(float(loaded(x)[0, 0]))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=serve) for _ in range(8)]
    for t in threads:
        t.start()
    for i in range(300):
        loaded.exchange(dict.fromkeys(names, eye * (1 + i % 2)))
    stop.set()
    for t in threads:
        t.join()
    assert not failures and seen <= {1.0, 4.0}
    with pytest.raises(exc.UserError, match="no weight"):
        loaded.exchange({"other": eye})
    with pytest.raises(exc.UserError, match="other sizes"):
        loaded.exchange({names[0]: torch.ones(2)})


def test_weights_that_were_handed_out_are_watched(tmp_path):
    """In a process in which nothing was compiled: operators that write without a word are watched from then on."""
    program = flashover.export(torch.nn.Linear(256, 256, bias=False), (torch.ones(8, 256),))
    flashover.package(program, tmp_path / "p.flash")
    source = """
import sys, torch, flashover
net, x = flashover.load(sys.argv[1]), torch.ones(8, 256)
before = net(x)
w = net.weights()["weight"]
torch._fused_sgd_([w], [torch.ones_like(w)], [], weight_decay=0.0, momentum=0.0, lr=1.0, dampening=0.0, nesterov=False,
                  maximize=False, is_first_step=True)
torch.testing.assert_close(net(x), before - 256, rtol=1e-4, atol=1e-3)
"""
    done = python("-c", source, tmp_path / "p.flash")
    assert done.returncode == 0, done.stderr


def test_constants_of_the_program_are_not_exchanged(tmp_path):
    program = flashover.export(lambda x: x * torch.tensor([2.0, 3.0]), (torch.ones(2),))
    flashover.package(program, tmp_path / "p.flash")
    loaded = flashover.load(tmp_path / "p.flash")
    for name in loaded.weights():
        try:
            loaded.exchange({name: torch.tensor([5.0, 7.0])})
        except exc.UserError as error:
            assert "constant of the program" in str(error)
            assert torch.equal(loaded(torch.ones(2)), torch.tensor([2.0, 3.0]))
        else:
            assert torch.equal(loaded(torch.ones(2)), torch.tensor([5.0, 7.0]))


def test_a_training_step(tmp_path):
    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

        def forward(self, x, y):
            parameters = list(self.model.parameters())
            with torch.enable_grad():
                loss = torch.nn.functional.mse_loss(self.model(x), y)
                gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for p, g in zip(parameters, gradients, strict=True):
                    p.sub_(0.1 * g)
            return loss.detach(), gradients

    step, batch = Step(), {0: Dim("batch", min=2)}
    want = copy.deepcopy(step)
    program = flashover.export(step, (torch.randn(5, 4), torch.randn(5, 2)), dynamic_shapes=[batch, batch])
    flashover.package(program, tmp_path / "p.flash")
    loaded = flashover.load(tmp_path / "p.flash")
    for n in (5, 7, 3):
        args = torch.randn(n, 4), torch.randn(n, 2)
        torch.testing.assert_close(loaded(*args), want(*args))
    for name, parameter in want.named_parameters():
        torch.testing.assert_close(loaded.weights()[name], parameter.detach())


def test_a_program_that_counts_from_the_start_of_a_storage(tmp_path):
    def f(x):
        return x.as_strided((2, 2), (2, 1), 1) * 2

    flashover.package(flashover.export(f, (torch.arange(8.0),)), tmp_path / "p.flash")
    loaded = flashover.load(tmp_path / "p.flash")
    x = torch.randn(8)
    assert torch.equal(loaded(x), f(x))
    with pytest.raises(exc.UserError, match="offset 0 of its storage"):
        loaded(torch.randn(9)[1:])


@pytest.mark.parametrize("name", sorted(MODELS))
def test_models(name, tmp_path):
    model, args = MODELS[name]()
    model = model.eval()
    if hasattr(model, "config"):
        model.config.use_cache = False  # a DynamicCache is no pytree
    flashover.package(flashover.export(model, args), tmp_path / "p.flash")
    loaded, jit = flashover.load(tmp_path / "p.flash"), flashover.compile(model)
    with torch.no_grad():
        assert_equal_bits(loaded(*args), jit(*args))


# ---- what is computed of weights alone ----
def _convolutions():
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.Conv2d(32, 32, 3)]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(32 * 36, 8)).eval()


def test_prepared_tensors_are_found_and_follow_exchanged_weights(tmp_path):
    model, x = _convolutions(), torch.randn(2, 3, 8, 8)
    program = flashover.export(model, (x,))
    flashover.package(program, tmp_path / "with.flash")
    flashover.package(program, tmp_path / "without.flash", prepare=False)
    there, not_there = flashover.load(tmp_path / "with.flash"), flashover.load(tmp_path / "without.flash")
    assert there.entries["forward"].prepared > 0 and not_there.entries["forward"].prepared == 0
    want = not_there(x)
    assert torch.equal(there(x), want)
    other = {name: w + 1 for name, w in there.weights().items() if w.is_floating_point()}
    there.exchange(other)
    not_there.exchange(other)
    changed = not_there(x)
    assert not torch.equal(changed, want) and torch.equal(there(x), changed)


def test_prepared_tensors_are_found_for_all_sizes(tmp_path):
    model = _convolutions()
    program = flashover.export(model, (torch.randn(2, 3, 8, 8),), dynamic_shapes=[{0: Dim("n", max=8)}])
    flashover.package(program, tmp_path / "p.flash")
    loaded, jit = flashover.load(tmp_path / "p.flash"), flashover.compile(model, dynamic=True)
    for n in (3, 1, 5):
        x = torch.randn(n, 3, 8, 8)
        with torch.no_grad():
            torch.testing.assert_close(loaded(x), jit(x))


def test_what_is_missing_is_computed_beside_what_was_prepared(tmp_path):
    model, size = PartlyPrepared().eval(), Dim("size", min=4, max=32)
    program = flashover.export(model, (torch.randn(2, 3, 8, 8),), dynamic_shapes=[{2: size, 3: size}])
    flashover.package(program, tmp_path / "p.flash")
    loaded = flashover.load(tmp_path / "p.flash")
    assert loaded.entries["forward"].prepared > 0
    for n in (8, 12):
        x = torch.randn(2, 3, n, n)
        torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-4)


def test_layouts_for_another_number_of_threads_are_not_taken(tmp_path):
    flashover.package(flashover.export(_convolutions(), (torch.randn(2, 3, 8, 8),)), tmp_path / "p.flash")
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert flashover.load(tmp_path / "p.flash").entries["forward"].prepared == 0
    finally:
        torch.set_num_threads(threads)


def test_changed_prepared_tensors_are_seen_by_their_checksum(tmp_path):
    flashover.package(flashover.export(_convolutions(), (torch.randn(2, 3, 8, 8),)), tmp_path / "p.flash")
    other = _changed(tmp_path / "p.flash", -200, tmp_path)  # (they come last)
    with pytest.raises(exc.UserError, match="wrong checksum of prepared tensors"):
        flashover.load(other)


# ---- several kinds of machines ----
LOWER_LEVELS = ["scalar"] if _C.missing_feature("avx512") else ["avx2", "scalar"]  # than this machine's own


def _run_limited(level, source, **environment):
    """In a process that may use no more of the processor than `level`."""
    limited = {**os.environ, **LIBRARY_LEVELS[level], "FLASHOVER_ISA": level, **environment}
    return python("-c", source, env=limited, timeout=200)


_LOADS = """
import flashover, numpy, torch
loaded = flashover.load(PATH)
numpy.save(PATH + ".npy", loaded(torch.ones(2, 3, 8, 8)).detach().numpy())
print(loaded.entries["forward"].target, loaded.entries["forward"].prepared, sep=",")
"""


@pytest.mark.skipif(bool(os.environ.get("FLASHOVER_ISA")), reason="this process itself is limited")
@pytest.mark.skipif(bool(_C.missing_feature("avx2")), reason="this machine has one level")
def test_one_file_for_several_levels_and_the_best_one_is_taken(tmp_path):
    model, path = _convolutions(), tmp_path / "p.flash"
    program = flashover.export(model, (torch.randn(2, 3, 8, 8),))
    flashover.package(program, path, targets=["scalar", "native", "avx2"])
    assert flashover.package_info(path)["entries"][0]["targets"][1:] == ["x86-64 avx2", "x86-64 scalar"]
    loaded = flashover.load(path)
    x = torch.ones(2, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(loaded(x), flashover.compile(model)(x)) and loaded.entries["forward"].prepared > 0
    for level in LOWER_LEVELS:
        target = f"x86-64 {level}"
        done = _run_limited(level, _LOADS.replace("PATH", repr(str(path))))
        assert done.stdout.strip() == f"{target},0", done.stderr
        got = torch.from_numpy(np.load(f"{path}.npy"))
        torch.testing.assert_close(got, model(x).detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(bool(os.environ.get("FLASHOVER_ISA")), reason="this process itself is limited")
@pytest.mark.skipif(bool(_C.missing_feature("avx2")), reason="this machine has one level")
def test_a_package_without_code_for_this_machine_says_what_is_missing(tmp_path):
    flashover.package(flashover.export(lambda x: x * 2, (torch.ones(2),)), tmp_path / "p.flash", targets=["avx2"])
    assert torch.equal(flashover.load(tmp_path / "p.flash")(torch.ones(2)), torch.full((2,), 2.0))
    done = _run_limited("scalar", f"import flashover; flashover.load({str(tmp_path / 'p.flash')!r})")
    assert done.returncode != 0
    assert "does not run on this machine:\n- for x86-64 avx2: plan: this machine lacks avx2" in done.stderr


def test_targets_that_cannot_be_built(tmp_path, monkeypatch):
    program = flashover.export(lambda x: x * 2, (torch.ones(2),))
    with pytest.raises(exc.UserError, match=r"no target sm_9; there are native, sm_120, .*, avx512, avx2, scalar"):
        flashover.package(program, tmp_path / "p.flash", targets=["sm_9"])
    with pytest.raises(TypeError, match="list of levels"):
        flashover.package(program, tmp_path / "p.flash", targets="avx2")
    monkeypatch.setenv("FLASHOVER_ISA", "scalar")
    with pytest.raises(exc.UserError, match=r"cannot be built here: .* lacks avx512"):
        flashover.package(program, tmp_path / "p.flash", targets=["avx512"])


@pytest.mark.skipif(bool(os.environ.get("FLASHOVER_ISA")), reason="this process itself is limited")
@pytest.mark.skipif(bool(_C.missing_feature("avx2")), reason="this machine has one level")
def test_what_another_processor_prepared_is_not_taken(tmp_path):
    """A process that may use fewer instruction sets counts as another machine."""
    path, x = tmp_path / "p.flash", torch.randn(2, 3, 8, 8)
    source = f"""
import flashover, torch
{inspect.getsource(_convolutions)}
flashover.package(flashover.export(_convolutions(), (torch.randn(2, 3, 8, 8),)), {str(path)!r})
assert flashover.load({str(path)!r}).entries["forward"].prepared > 0
"""
    done = _run_limited(LOWER_LEVELS[0], source)
    assert done.returncode == 0, done.stderr
    loaded = flashover.load(path)
    assert flashover.package_info(path)["entries"][0]["prepared"] > 0 == loaded.entries["forward"].prepared
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), _convolutions()(x), rtol=1e-4, atol=1e-4)


# ---- files that anybody may have written ----
def test_what_a_package_says_of_itself_without_running_anything(net):
    info = flashover.package_info(net[1])
    (entry,) = info["entries"]
    assert [name for name, *_ in entry["arguments"]] == ["x", "more['k']"]
    assert "s0 <= 100" in entry["guards"] and "x86-64" in entry["target"]
    assert {name for name, *_ in info["weights"]} >= {"lin.weight", "norm.running_var"}
    assert "x: f32[s0,4]" in repr(flashover.load(net[1]))


def test_a_file_that_was_changed_anywhere_is_refused(net):
    whole = net[1].read_bytes()
    _C.check_package(whole)
    random.seed(0)
    for _ in range(300):
        at = random.randrange(len(whole) - 4096)  # (the weights come last: load() looks at their bytes)
        changed = bytearray(whole)
        changed[at] ^= 1 << random.randrange(8)
        with pytest.raises(exc.UserError, match=r"damaged|no package|format"):
            _C.check_package(bytes(changed))
    for size in (0, 1, 47, 48, 100, 4096, len(whole) // 2, len(whole) - 1):
        with pytest.raises(exc.UserError, match=r"damaged|no package"):
            _C.check_package(whole[:size])
    with pytest.raises(exc.UserError, match="damaged"):
        _C.check_package(whole + b"\0")


def _changed(path, at, tmp_path):
    changed = bytearray(path.read_bytes())
    changed[at] ^= 1
    other = tmp_path / "other.flash"
    other.write_bytes(changed)
    return other


def test_changed_weights_are_seen_by_their_checksum(net, tmp_path):
    """Those that calls read when they are loaded, all others when they are asked for."""
    model, path = net[0], net[1]
    for name, weight in model.lin.named_parameters(prefix="lin"):
        other = _changed(path, path.read_bytes().index(weight.detach().numpy().tobytes()), tmp_path)
        with pytest.raises(exc.UserError, match="wrong checksum of weights"):
            flashover.load(other).weights()
        assert flashover.load(other, verify=False).weights()[name].shape == weight.shape


def test_a_format_of_another_version(net, tmp_path):
    changed = bytearray(net[1].read_bytes())
    changed[8:12] = struct.pack("<I", 99)
    other = tmp_path / "other.flash"
    other.write_bytes(changed)
    with pytest.raises(exc.UserError, match="has format 99"):
        flashover.load(other)


def test_files_that_are_none(tmp_path):
    with pytest.raises(exc.UserError, match="cannot open"):
        flashover.load(tmp_path / "missing.flash")
    with pytest.raises(exc.UserError, match="no regular file"):
        flashover.load(tmp_path)
    (tmp_path / "text").write_text("hello" * 100)
    with pytest.raises(exc.UserError, match="no package"):
        flashover.load(tmp_path / "text")


def test_a_file_is_replaced_as_a_whole(net):
    path = net[1]
    before = path.read_bytes()
    with pytest.raises(exc.UserError, match="cannot write"):
        flashover.package(flashover.export(lambda x: x * 2, (torch.ones(2),)), path / "inside")
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == [path.name]
    assert stat.S_IMODE(path.stat().st_mode) & 0o133 == 0


def test_containers_that_name_modules_are_refused(tmp_path):
    from collections import defaultdict

    program = flashover.export(lambda x: defaultdict(list, {"a": x * 2}), (torch.ones(2),))
    with pytest.raises(exc.UserError, match="defaultdict"):
        flashover.package(program, tmp_path / "p.flash")
