"""What does an exact tangent Gram matrix cost beside the dense Jacobian it stands for?

Two networks, each in one process by alternating rounds (processor time, median of ratios): the
5-200-2000-200-1 network of 803 601 parameters on which the linearised method was timed, n = 500,
and LeNet-5 on 28x28 images with one output, n = 500.  Ours has features of float32 and products of
float64, which the solver needs.  The peers:

- ``torch.func``: ``vmap(jacrev)`` and the product of what it gives with itself, once in float64 as
  ours is and once all in float32 (1.6 GB for the first network);
- nngeometry 0.4, which contracts linear layers too, in float64 and float32, where it is installed.

Each is checked against the Jacobian of a float64 copy on a few samples.  The floor is what no
method of this kind can avoid: a forward pass, a backward pass to the first layer, and half of a
float64 product of rows as long as the factors are, all timed in the same rounds.
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
from dovetail.linalg.tangent import tangent_gram

try:
    from nngeometry.gram import GramMatrix
    from nngeometry.layercollection import LayerCollection
except ImportError:
    GramMatrix = LayerCollection = None

SAMPLES, CHECKED, COLUMNS = 500, 20, 100_000
DENSE = {"mlp": 100.0, "lenet": 10.0}
CONTRACTED = 2.0
# Numbers a sample's factors have: what goes in and comes back of matrices, kernels written out.
FACTORS = {"mlp": (5 + 200) + (200 + 2000) + (2000 + 200) + (200 + 1), "lenet": 2572 + 809}


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


def contracted(model: nn.Module, x: Tensor) -> Tensor:
    """The peer that contracts layers, all samples in one batch."""
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=len(x))
    layers = LayerCollection.from_model(model)
    found = GramMatrix(model, loader, lambda *d: model(d[0]), layer_collection=layers)
    return found.data[0, :, 0]


def passes(model: nn.Module, x: Tensor) -> Tensor:
    """Forward, and backward as far as the first layer."""
    held = {name: p.detach() for name, p in model.named_parameters()}
    first = next(name for name in held if name.endswith("bias"))
    held[first] = held[first].clone().requires_grad_()
    return torch.autograd.grad(functional_call(model, held, (x,)).sum(), held[first])[0]


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
    wide, rows = copy.deepcopy(model).double(), torch.randn(SAMPLES, FACTORS[name]).double()
    work: dict[str, Callable[[Tensor], Tensor]] = {
        "ours": lambda x: tangent_gram(model, x).squeeze(),
        "dense float64": lambda x: dense(model, x, torch.float64),
        "dense float32": lambda x: dense(model, x, torch.float32),
    }
    if GramMatrix is not None:
        work["nngeometry float64"] = lambda x: contracted(wide, x.double())
        work["nngeometry float32"] = lambda x: contracted(model, x)
    few = x[:CHECKED]
    exact = dense(wide, few.double(), torch.float64)
    errors = {  # warms up, too
        kind: float((run(few).double() - exact).norm() / exact.norm()) for kind, run in work.items()
    }
    work["passes"] = lambda x: passes(model, x)
    work["product"] = lambda x: rows @ rows.T
    times: dict[str, list[float]] = {kind: [] for kind in work}
    elapsed: dict[str, list[float]] = {kind: [] for kind in work}
    for _ in range(rounds):
        for kind, run in work.items():
            began, noted = time.process_time(), time.perf_counter()
            run(x)
            times[kind].append(time.process_time() - began)
            elapsed[kind].append(time.perf_counter() - noted)
    floors = [a + b / 2 for a, b in zip(times["passes"], times["product"], strict=True)]
    row: dict[str, Any] = {
        "network": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "samples": len(x),
        "dense / ours": ratio(times["dense float64"], times["ours"]),
        "must be at least": DENSE[name],
        "dense / ours, elapsed": ratio(elapsed["dense float64"], elapsed["ours"]),
        "dense float32 / ours": ratio(times["dense float32"], times["ours"]),
    }
    holds = row["dense / ours"] >= DENSE[name] and errors["ours"] < 1e-6
    for kind in ("float64", "float32"):
        key = f"nngeometry {kind}"
        row[f"{key} / ours"] = ratio(times[key], times["ours"]) if key in times else None
    if GramMatrix is not None:
        holds = holds and row["nngeometry float64 / ours"] >= CONTRACTED
    row |= {"ours / floor": ratio(times["ours"], floors), "holds": holds}
    row |= {f"{kind} s": statistics.median(each) for kind, each in times.items()}
    row |= {f"error of {kind}": error for kind, error in errors.items()}
    for key, value in row.items():
        print(
            f"{name}: {key}: {value:.3g}" if isinstance(value, float) else f"{name}: {key}: {value}"
        )
    return row


def ratio(slow: list[float], fast: list[float]) -> float:
    """The median over rounds."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/tangent_gram.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    peer = "not installed" if GramMatrix is None else "0.4"
    print(f"nngeometry: {peer}")
    rows = [measured(name, *made, args.rounds) for name, made in networks().items()]
    evidence = Evidence(
        claim="the exact tangent Gram matrix costs at most a hundredth of the dense Jacobian's on "
        "a network of matrices, a tenth on LeNet-5, and half of nngeometry's in float64",
        holds=all(row["holds"] for row in rows),
        rows=tuple(rows),
        command=f"python benchmarks/tangent_gram.py --threads {args.threads}",
        settings=environment(threads=args.threads, rounds=args.rounds, nngeometry=peer),
    )
    evidence.save(args.output)
    if not evidence.holds:
        raise SystemExit("the layers cost more than that")


if __name__ == "__main__":
    main()
