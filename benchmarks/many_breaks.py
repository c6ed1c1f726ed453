"""Libraries with many graph breaks beside eager: what the race of the first calls (docs/user/first-calls.md) leaves.

    python benchmarks/many_breaks.py                       # gpytorch and torchsde where they are installed
    python benchmarks/many_breaks.py --libraries FOLDER    # installed there (pip install --target FOLDER --no-deps ...)

Each program is called 120 times compiled, then eager and compiled calls in turn; medians of 5 rounds of 20.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

import flashover

Step = Callable[[], Any]


def int8(compiled: bool) -> Step:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[m for _ in range(4) for m in (torch.nn.Linear(256, 256), torch.nn.ReLU())]).eval()
    quantized: Any = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    x = torch.randn(64, 256)
    call = flashover.compile(quantized) if compiled else quantized

    def step() -> Any:
        with torch.no_grad():
            return call(x)

    return step


def quantization_aware(compiled: bool) -> Step:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU())
    model = torch.nn.Sequential(model, torch.nn.Flatten(), torch.nn.Linear(16 * 196, 10))
    model.train()
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("x86")  # type: ignore[assignment]
    prepared: Any = torch.ao.quantization.prepare_qat(model)
    call = flashover.compile(prepared) if compiled else prepared
    x, optimizer = torch.randn(8, 3, 16, 16), torch.optim.SGD(prepared.parameters(), lr=0.01)

    def step() -> Any:
        optimizer.zero_grad()
        loss = call(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def gaussian_process(compiled: bool) -> Step:
    import gpytorch

    class Model(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, x: Any, y: Any, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    torch.manual_seed(0)
    x = torch.linspace(0, 1, 100)
    y = torch.sin(x * 6) + 0.1 * torch.randn(100)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(x, y, likelihood)
    model.train(), likelihood.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def loss_of(inputs: Any, targets: Any) -> Any:
        return -evidence(model(inputs), targets)

    call = flashover.compile(loss_of) if compiled else loss_of

    def step() -> Any:
        optimizer.zero_grad()
        loss = call(x, y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def stochastic_equation(compiled: bool) -> Step:
    import torchsde

    class Equation(torch.nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift, self.spread = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

        def f(self, t: Any, y: Any) -> Any:
            return self.drift(y)

        def g(self, t: Any, y: Any) -> Any:
            return self.spread(y).sigmoid()

    torch.manual_seed(0)
    sde, y0, times = Equation(), torch.zeros(32, 3), torch.linspace(0, 1, 10)

    def solve(y: Any) -> Any:
        return torchsde.sdeint(sde, y, times, method="euler", dt=0.05)

    call = flashover.compile(solve) if compiled else solve

    def step() -> Any:
        with torch.no_grad():
            return call(y0)

    return step


PROGRAMS = {
    "int8, four linears": int8,
    "QAT, a training step": quantization_aware,
    "gpytorch, a training step": gaussian_process,
    "torchsde, sdeint": stochastic_equation,
}


def seconds_of(step: Step, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - start) / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libraries", default="", help="a folder to look for libraries in")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if options.libraries:
        sys.path.append(options.libraries)
    warnings.simplefilter("ignore")
    print("| program | breaks | eager ms | compiled / eager's speed | what became of it |\n|---|---|---|---|---|")
    for name, make in PROGRAMS.items():
        if options.only not in name:
            continue
        try:
            eager, compiled = make(False), make(True)
        except ImportError as missing:
            print(f"| {name} | | | | {missing} |")
            continue
        flashover.reset()
        before = flashover.compile_stats()
        for _ in range(120):
            compiled()
        breaks = flashover.compile_stats()["graph_breaks"] - before["graph_breaks"]
        rounds = [(seconds_of(eager, 20), seconds_of(compiled, 20)) for _ in range(5)]
        ratio = statistics.median(e / c for e, c in rounds)
        ran_eager = flashover.compile_stats()["eager_calls"] - before["eager_calls"]
        print(
            f"| {name} | {breaks} | {statistics.median(e for e, _ in rounds) * 1e3:.2f} | {ratio:.2f}x | "
            f"{ran_eager} of 220 calls ran eager |",
            flush=True,
        )


if __name__ == "__main__":
    main()
