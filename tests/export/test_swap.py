"""Weights change while eight threads serve: with torch, without it, and where only a part was prepared."""

import os
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from small_models import PartlyPrepared
from torch.export import Dim

import flashover

RUNTIME = Path(flashover.__file__).parent / "runtime"
SIZE = 128
TIMES = [300, pytest.param(10_000, marks=pytest.mark.slow)]


@pytest.fixture
def product(tmp_path):
    layers = [torch.nn.Linear(SIZE, SIZE, bias=False) for _ in range(2)]
    program = flashover.export(torch.nn.Sequential(*layers).eval(), (torch.ones(8, SIZE),))
    flashover.package(program, tmp_path / "p.flash")
    return tmp_path / "p.flash"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("library", ["flashover_runtime", "flashover_bare"])
def test_no_call_sees_a_torn_set(library, times, product, tmp_path):
    if not (RUNTIME / "lib" / f"lib{library}.so").exists():
        pytest.skip(f"lib{library} is not built: ./x build")
    entry = flashover.package_info(product)["entries"][0]
    if library == "flashover_bare" and entry["needs_torch"]:
        pytest.skip("this machine computes it with torch's libraries")
    lib = RUNTIME / "lib"
    source, program = Path(__file__).parent / "swap.cpp", tmp_path / "swap"
    built = subprocess.run(
        [
            *("g++", "-std=c++17", "-O1", "-pthread", str(source), f"-I{RUNTIME / 'include'}", f"-L{lib}"),
            *(f"-Wl,-rpath,{lib}", "-Wl,--allow-shlib-undefined", f"-l{library}", "-o", str(program)),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert built.returncode == 0, built.stderr
    names = list(flashover.load(product).weights())
    command = [str(program), str(product), str(times), str(SIZE), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 torn, 0 failed" in done.stdout


@pytest.mark.parametrize("times", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_partly_prepared_package_serves_from_its_first_call_on(times, tmp_path):
    """Eight threads begin at once with what the file has a part of; then weights change, and all of it is computed."""
    model, size = PartlyPrepared().eval(), Dim("size", min=4, max=32)
    program = flashover.export(model, (torch.randn(2, 3, 8, 8),), dynamic_shapes=[{2: size, 3: size}])
    flashover.package(program, tmp_path / "p.flash")
    loaded = flashover.load(tmp_path / "p.flash")
    assert loaded.entries["forward"].prepared > 0
    inputs = [torch.randn(2, 3, n, n) for n in (8, 12)]
    with torch.no_grad():
        before = [model(x) for x in inputs]
        sets = [{n: w.detach().clone() for n, w in model.named_parameters()}]
        sets.append({n: 2 * w for n, w in sets[0].items()})
        after = [torch.func.functional_call(model, sets[1], (x,)) for x in inputs]
    stop, failures = threading.Event(), []

    def close(got, want):
        return all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(got, want, strict=True))

    def serve(at):
        try:
            while True:
                got = loaded(inputs[at])
                assert close(got, before[at]) or close(got, after[at])
                if stop.is_set():
                    return
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=serve, args=(i % 2,)) for i in range(8)]
    for t in threads:
        t.start()
    for i in range(times):
        loaded.exchange(sets[(i + 1) % 2])
    stop.set()
    for t in threads:
        t.join()
    assert not failures
