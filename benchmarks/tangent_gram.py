"""What does an exact tangent Gram matrix cost beside the dense Jacobian it stands for?

Two networks, each in one process by alternating rounds (processor time, median of ratios): the
5-200-2000-200-1 network of 803 601 parameters on which the linearised method was timed, n = 500,
and LeNet-5 on 28x28 images with one output, n = 500.  The peer is ``torch.func``: ``vmap(jacrev)``
and the product of what it gives with itself, once in float64 as ours is (which the solver needs)
and once all in float32.  Ours is checked against the Jacobian of a float64 copy on a few samples.
The peer writes 1.6 GB for the first network.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.linalg.gram import tangent_gram

SAMPLES, CHECKED, COLUMNS = 500, 20, 100_000
LEAST = {"mlp": 100.0, "lenet": 10.0}


def dense(model: nn.Module, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The Jacobian ``[n, p]`` of a network with one output, times itself."""
    values = {name: p.detach() for name, p in model.named_parameters()}

    def of_one(held: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(model, held, (sample[None],))[0, 0]

    parts = vmap(jacrev(of_one), in_dims=(None, 0))(values, x)
    total = torch.zeros(len(x), len(x), dtype=dtype)
    for part in parts.values():
        for rows in part.flatten(1).split(COLUMNS, 1):  # bounds the copy, not the Jacobian
            rows = rows.to(dtype)
            total.addmm_(rows, rows.T)
    return total


def networks() -> dict[str, tuple[nn.Module, Tensor]]:
    widths = (5, 200, 2000, 200, 1)
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ELU()]
    lenet = dt.build("lenet5", size=28, classes=1)
    return {
        "mlp": (nn.Sequential(*layers[:-1]), torch.randn(SAMPLES, 5)),
        "lenet": (getattr(lenet, "module", lenet).eval(), torch.rand(SAMPLES, 1, 28, 28)),
    }


def measured(name: str, model: nn.Module, x: Tensor, rounds: int) -> dict[str, Any]:
    exact = dense(copy.deepcopy(model).double(), x[:CHECKED].double(), torch.float64)
    found = tangent_gram(model, x[:CHECKED]).squeeze()  # warms up, too
    error = float((found - exact).norm() / exact.norm())
    work: dict[str, Callable[[], Tensor]] = {
        "ours": lambda: tangent_gram(model, x),
        "float64": lambda: dense(model, x, torch.float64),
        "float32": lambda: dense(model, x, torch.float32),
    }
    times: dict[str, list[float]] = {kind: [] for kind in work}
    for _ in range(rounds):
        for kind, run in work.items():
            began = time.process_time()
            run()
            times[kind].append(time.process_time() - began)
    ratios = {
        kind: statistics.median(b / a for a, b in zip(times["ours"], times[kind], strict=True))
        for kind in ("float64", "float32")
    }
    middle = {f"{kind} s": statistics.median(each) for kind, each in times.items()}
    print(name, *(f"{kind}: {ratio:.1f}" for kind, ratio in ratios.items()), middle, f"{error:.0e}")
    return {
        "network": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "samples": len(x),
        "dense / ours": ratios["float64"],
        "must be at least": LEAST[name],
        "holds": ratios["float64"] >= LEAST[name] and error < 1e-5,
        "dense in float32 / ours": ratios["float32"],
        **middle,
        "relative error": error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/tangent_gram.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    rows = [measured(name, *made, args.rounds) for name, made in networks().items()]
    evidence = Evidence(
        claim="the exact tangent Gram matrix costs at most a hundredth of the dense Jacobian's on "
        "a network of matrices and a tenth on LeNet-5",
        holds=all(row["holds"] for row in rows),
        rows=tuple(rows),
        command="python benchmarks/tangent_gram.py",
        settings=environment(threads=args.threads, rounds=args.rounds),
    )
    evidence.save(args.output)
    if not evidence.holds:
        raise SystemExit("the layers cost more than that")


if __name__ == "__main__":
    main()
