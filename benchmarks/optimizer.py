"""One optimizer step over many parameters: eager (for loop, foreach, fused), torch.compile, flashover; interleaved.

python benchmarks/optimizer.py [--tensors 150] [--numel 20000] [--no-inductor]
"""

import argparse
import time

import torch

import flashover

O = torch.optim


def parameters(tensors: int, numel: int) -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    sizes = [max(1, int(numel * f)) for f in torch.linspace(0.01, 2, tensors).tolist()]
    params = [torch.nn.Parameter(torch.randn(n)) for n in sizes]
    for p in params:
        p.grad = torch.randn_like(p)
    return params


def measure(steps: dict, rounds: int) -> dict[str, float]:
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensors", type=int, default=150)
    parser.add_argument("--numel", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--no-inductor", action="store_true")
    args = parser.parse_args()
    cases = {
        "SGD momentum": (O.SGD, {"lr": 1e-3, "momentum": 0.9}),
        "Adam": (O.Adam, {"lr": 1e-3}),
        "AdamW amsgrad": (O.AdamW, {"lr": 1e-3, "amsgrad": True}),
        "RMSprop": (O.RMSprop, {"lr": 1e-3}),
    }
    print(f"{args.tensors} tensors of {args.numel} elements on average, {torch.get_num_threads()} threads; ms a step")
    for name, (cls, kw) in cases.items():
        steps, first = {}, {}

        def add(label, make, cls=cls, kw=kw, steps=steps, first=first, **more):
            try:
                step = make(cls(parameters(args.tensors, args.numel), **kw, **more).step)
                start = time.perf_counter()
                step()
                first[label] = time.perf_counter() - start
                step()
                step()
            except Exception as e:  # fused is not there for every optimizer
                print(f"  {label}: {type(e).__name__}")
                return
            steps[label] = step

        add("eager", lambda step: step, foreach=False)
        add("foreach", lambda step: step, foreach=True)
        if cls is not O.RMSprop:
            add("fused", lambda step: step, fused=True)
        if not args.no_inductor:
            add("torch.compile", torch.compile)
        add("flashover", flashover.compile)
        best = measure(steps, args.rounds)
        print(f"{name:14s} " + "  ".join(f"{k} {1e3 * v:.2f}" for k, v in best.items()))
        print(" " * 15 + "first call: " + "  ".join(f"{k} {v:.2f} s" for k, v in first.items() if v > 0.05))


if __name__ == "__main__":
    main()
