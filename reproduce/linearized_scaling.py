"""Does inference in the linearised network scale nearly linearly?  (Figure 2 of the source.)

**Left**: the 5-200-2000-200-1 network (803 601 parameters, ELU), n from 300 to 100 000 inputs
x ~ N(0, I_5).  Targets: sin(2 x_0) + x_1 x_2 with noise of deviation 0.1, and the source's own,
which are noise alone.  The network is trained on 3000 other points of the first target (Adam, 600
batches of 256); the prior's mean is zero, its variance such that a function value has 1, the noise
variance 0.01.  Measured for the posterior mean: processor seconds from the inputs to the weights,
the relative residual, in float64, and the peak memory of the process, which does nothing else.
Three ways: conjugate gradients in function space with a preconditioner of 512 landmarks; Gram
matrix and Cholesky factor; and, as the source has it, plain conjugate gradients in parameter space
by Fisher products, at most 200.  Where it is cheap, the bound on standard deviations that the
landmarks give is compared with the exact ones.

**Centre**: 1000 inputs and networks of four hidden layers of equal width, up to 1e8 parameters (the
scale ``small``: 1e7), untrained: processor seconds of the exact log density, by Gram matrix and
Cholesky factor.

**Right** (Fisher products by finite differences) is benchmarks/fisher_products.py.

The claims, fixed beforehand: the slope of log time against log n over n >= 10 000 is at most 1.2
and the residual at most 1e-2 within 8 GB, for both targets; the slope of log time against log p
over p >= 1e6 is at most 1.1.  One seed: times are the subject, and every size runs by itself.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from dovetail.adapt.iterative import condition_iteratively
from dovetail.adapt.posterior import condition_on_functions
from dovetail.core.errors import first_line
from dovetail.core.evidence import Evidence, environment
from dovetail.core.files import write_whole
from dovetail.core.seeds import generator, seeded
from dovetail.linalg.conjugate_gradients import ConvergenceError, columnwise, conjugate_gradients
from dovetail.linalg.curvature import fisher_product
from dovetail.linalg.jacobian import Jacobian
from dovetail.linalg.tangent import TangentFeatures

NOISE, TOLERANCE, TESTS = 0.01, 1e-2, 50
SLOPE_N, SLOPE_P, LARGE_N, LARGE_P, MEMORY = 1.2, 1.1, 10_000, 1_000_000, 8e9
SIZES = {
    "tiny": {"n": (300, 1000), "widths": (10, 100)},
    "small": {
        "n": (300, 1000, 3000, 10_000, 30_000, 100_000),
        "widths": (10, 30, 100, 300, 600, 1000, 1900),
    },
    "paper": {
        "n": (300, 1000, 3000, 10_000, 30_000, 100_000),
        "widths": (10, 30, 100, 300, 600, 1000, 1900, 3000, 5800),
    },
}
MOST = {  # inputs, for each way; the time of a Cholesky factor has nothing to do with the targets
    ("cg", "signal"): math.inf,
    ("cg", "noise"): math.inf,
    ("cholesky", "signal"): 10_000,
    ("fisher", "signal"): 3000,
    ("fisher", "noise"): 1000,
}
COMPARED = 3000  # inputs up to which exact variances are solved for


def mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ELU()]
    return nn.Sequential(*layers[:-1])


def drawn(n: int, target: str, purpose: str) -> tuple[Tensor, Tensor]:
    """Inputs ``[n, 5]`` and targets ``[n, 1]``."""
    draw = generator(0, purpose)
    x = torch.randn(n, 5, generator=draw)
    noise = torch.randn(n, 1, generator=draw)
    if target == "noise":
        return x, noise
    return x, (2 * x[:, :1]).sin() + x[:, 1:2] * x[:, 2:3] + math.sqrt(NOISE) * noise


def trained(kept: Path) -> nn.Sequential:
    """The network of the left figure, trained once."""
    with seeded(0, "network"):
        net = mlp(5, 200, 2000, 200, 1)
    file = kept / "network.safetensors"
    if file.exists():
        net.load_state_dict(load_file(file))
        return net.requires_grad_(False)
    x, y = drawn(3000, "signal", "source")
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    draw = generator(0, "batches")
    for _ in range(600):
        rows = torch.randint(len(x), (256,), generator=draw)
        loss = (net(x[rows]) - y[rows]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    kept.mkdir(parents=True, exist_ok=True)
    write_whole(file, save(net.state_dict()))
    return net.requires_grad_(False)


def left(way: str, n: int, target: str, kept: Path) -> dict[str, Any]:
    net = trained(kept)
    x, y = drawn(n, target, "data")
    new, _ = drawn(TESTS, target, "tests")
    size = float(TangentFeatures(net, x[:1000]).own().mean())
    residual, noise = y.double(), torch.full((n, 1), NOISE, dtype=torch.float64)
    scales = {name: 1 / size for name, _ in net.named_parameters()}
    row: dict[str, Any] = {}
    began, wall = time.process_time(), time.perf_counter()
    if way == "fisher":
        # The same mean: (J^T J + noise / s I) w = J^T r, with a residual in another norm.
        around = Jacobian(net, x)
        penalty = NOISE * size
        right = around.vjp(y).double()
        try:
            found = conjugate_gradients(
                columnwise(lambda w: fisher_product(around, w.float()).double() + penalty * w),
                right,
                tolerance=TOLERANCE,
                max_iterations=200,
            )
            row |= {"residual by parameters": found.residual, "iterations": found.iterations}
            moved = around.jvp(found.solution.float()).double()
            dual = (residual - moved) / NOISE
            back = around.jvp(around.vjp(dual.float())).double() / size
            row["residual"] = float((moved - back).norm() / residual.norm())
        except ConvergenceError as error:
            row |= {"note": first_line(error)}
    elif way == "cg":
        features = TangentFeatures(net, x, memory=4 * 2**30)
        fit = condition_iteratively(features, residual, noise, scales, tolerance=TOLERANCE)
        row |= {key: fit.diagnostics[key] for key in ("residual", "iterations")}
    else:
        exact = condition_on_functions(TangentFeatures(net, x), residual, noise, scales)
        row["log density"] = exact.log_evidence
        assert exact.weights.isfinite().all()
    row |= {"cpu s": time.process_time() - began, "s": time.perf_counter() - wall}
    row["peak GB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    began = time.process_time()
    tests = TangentFeatures(net, new)
    if way == "cg":
        bound = fit.variance(tests, exact=False)
        row["bounds of 50 variances, cpu s"] = time.process_time() - began
        if n <= COMPARED:
            few = TangentFeatures(net, new[:5])
            row["bound / deviation"] = float((bound[:5] / fit.variance(few)).sqrt().mean())
    elif way == "cholesky":
        exact.variance(tests)
        row["50 variances, cpu s"] = time.process_time() - began
    return row


def centre(width: int) -> dict[str, Any]:
    with seeded(0, "network"):
        net = mlp(5, width, width, width, width, 1).requires_grad_(False)
    x, y = drawn(1000, "signal", "data")
    noise = torch.full((1000, 1), NOISE, dtype=torch.float64)
    began, wall = time.process_time(), time.perf_counter()
    features = TangentFeatures(net, x)
    fit = condition_on_functions(features, y.double(), noise, {})
    return {
        "parameters": features.size,
        "log density": fit.log_evidence,
        "cpu s": time.process_time() - began,
        "s": time.perf_counter() - wall,
        "peak GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


def alone(job: dict[str, Any], threads: int, kept: Path) -> dict[str, Any]:
    """One job in a process of its own, from disk if it was done before."""
    file = kept / ("_".join(f"{value}" for value in job.values()) + f"_{threads}.json")
    if not file.exists():
        options = ["--threads", str(threads), "--kept", str(kept), "--one", json.dumps(job)]
        command = [sys.executable, __file__, *options]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, said.splitlines()[-1].encode())
    row: dict[str, Any] = job | json.loads(file.read_text())
    print(row, flush=True)
    return row


def slope(rows: list[dict[str, Any]], across: str, least: int) -> float:
    """Of log time against log size, by least squares over the large ones."""
    points = [(math.log(r[across]), math.log(r["cpu s"])) for r in rows if r[across] >= least]
    if len(points) < 2:
        return math.nan
    middle_x, middle_y = (sum(each) / len(points) for each in zip(*points, strict=True))
    rise = sum((x - middle_x) * (y - middle_y) for x, y in points)
    return rise / sum((x - middle_x) ** 2 for x, _ in points)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=tuple(SIZES), default="small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kept", type=Path, default=Path("data/linearized_scaling"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument(
        "--output", type=Path, default=Path("reproduce/results/linearized_scaling.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.one:
        job = json.loads(args.one)
        figure = job.pop("figure")
        print(json.dumps(left(**job, kept=args.kept) if figure == "left" else centre(**job)))
        return
    trained(args.kept)
    sizes = SIZES[args.scale]
    rows = [
        alone({"figure": "left", "way": way, "n": n, "target": target}, args.threads, args.kept)
        for (way, target), most in MOST.items()
        for n in sizes["n"]
        if n <= most
    ]
    iterated = [
        [row for row in rows if row["way"] == "cg" and row["target"] == target]
        for target in ("signal", "noise")
    ]
    wide = [
        alone({"figure": "centre", "width": width}, args.threads, args.kept)
        for width in sizes["widths"]
    ]
    slopes = {
        "n, signal": slope(iterated[0], "n", LARGE_N),
        "n, noise": slope(iterated[1], "n", LARGE_N),
        "parameters": slope(wide, "parameters", LARGE_P),
    }
    evidence = Evidence(
        claim="the posterior mean takes time nearly linear in n, to 100 000 inputs at 8e5 "
        "parameters within 8 GB, and the log density in the parameters, to 1e7 and more",
        holds=slopes["n, signal"] <= SLOPE_N
        and slopes["n, noise"] <= SLOPE_N
        and slopes["parameters"] <= SLOPE_P
        and all(
            row["residual"] <= TOLERANCE and row["peak GB"] * 1e9 <= MEMORY
            for some in iterated
            for row in some
        ),
        rows=(*rows, *wide, *({"figure": "slope", "of": k, "slope": v} for k, v in slopes.items())),
        command=f"python reproduce/linearized_scaling.py --scale {args.scale}",
        settings=environment(threads=args.threads, scale=args.scale),
    )
    evidence.save(args.output)
    print(slopes, "holds" if evidence.holds else "does not hold")


if __name__ == "__main__":
    main()
